// The source that asks the server of `pencil explore`.

import { Problem, type Event, type Feature, type Shown, type Source, type Watch } from "./source";
import type {
  Answer, Attention, Changed, Contributions, Difference, How, Light, Model, Outline, Receipt, Slice, State,
} from "./types";

const meta = (name: string) => document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";

// JSON has no infinities: numbers that are not finite come as words, under these names only
const WORD: Record<string, number> = { inf: Infinity, "-inf": -Infinity, nan: NaN };
const NUMERIC = new Set(
  ("value logit scaled probability final from to uniform rest reworked recorded allowed low high most relative total share " +
    "score baseline milliseconds time").split(" "),
);

export function parsed<T>(text: string): T {
  return JSON.parse(text, (key, value) => (typeof value === "string" && NUMERIC.has(key) && value in WORD ? WORD[value] : value));
}

export class ServerSource implements Source {
  readonly kind = "server";
  readonly title = "";
  readonly about: string[] = [];
  readonly first = "";
  readonly leftOut: string[] = [];
  private readonly token = meta("token");

  can(_feature: Feature): boolean {
    return true;
  }

  async models(): Promise<Model[]> {
    return (await this.get<{ models: Model[] }>("models")).models;
  }

  answer(state: State, watch: Watch = {}): Promise<Answer> {
    return this.stream<Answer>("answer", state, "answer", watch);
  }

  record(state: State, watch: Watch = {}): Promise<Outline> {
    return this.stream<Outline>("record", state, "outline", watch);
  }

  slice(trace: string, name: string, index: (number | null)[], minus?: string): Promise<Slice> {
    return this.get(`trace/${trace}/slice`, { name, index: index.map((i) => i ?? ":").join(","), minus });
  }

  receipt(trace: string, cell: string, digits?: number): Promise<Receipt> {
    return this.get(`trace/${trace}/receipt`, { cell, digits });
  }

  attention(trace: string, scores = false): Promise<Attention> {
    return this.get(`trace/${trace}/attention`, { scores: scores ? 1 : null });
  }

  light(trace: string, layer: number | null, head: number | null, how: How): Promise<Light> {
    return this.get(`trace/${trace}/light`, { layer, head, how });
  }

  contributions(trace: string, cell: string, against?: string | null, part?: string | null): Promise<Contributions> {
    return this.get(`trace/${trace}/contributions`, { cell, against, part });
  }

  compare(a: State, b: State, watch: Watch = {}): Promise<Difference> {
    return this.post("compare", { a, b }, watch.signal);
  }

  edit(state: State, edit: string, watch: Watch = {}): Promise<Changed> {
    return this.post("edit", { state, edit }, watch.signal);
  }

  tours(): Promise<unknown> {
    return this.get("tours");
  }

  tour(number: string, trace: string | null): Promise<unknown> {
    return this.get(`tours/${encodeURIComponent(number)}`, { trace });
  }

  figure(number: string, section: number, figure: number, trace: string | null): Promise<{ picture: string }> {
    return this.get(`tours/${encodeURIComponent(number)}/figure`, { section, figure, trace });
  }

  katas(): Promise<unknown> {
    return this.get("katas");
  }

  kata(name: string, seed: number | "new" | null): Promise<unknown> {
    return this.get(`katas/${encodeURIComponent(name)}`, { seed });
  }

  kataAnswer(name: string, seed: number | null, answers: string[]): Promise<unknown> {
    return this.post(`katas/${encodeURIComponent(name)}/answer`, { seed, answers });
  }

  kataWorking(name: string, seed: number | null): Promise<unknown> {
    return this.post(`katas/${encodeURIComponent(name)}/working`, { seed });
  }

  async exported(state: State, view: string, shown: Shown, watch: Watch = {}): Promise<Blob> {
    const { html } = await this.stream<{ html: string }>("export", { state, view, shown }, "file", watch);
    return new Blob([html], { type: "text/html" });
  }

  private async get<T>(path: string, query: Record<string, string | number | null | undefined> = {}): Promise<T> {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const asked = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    const reply = await this.request(`/api/${path}${asked && `?${asked}`}`, { headers: { "X-Pencil-Token": this.token } });
    return parsed<T>(await reply.text());
  }

  private async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    return parsed<T>(await (await this.sent(path, body, signal)).text());
  }

  private sent(path: string, body: unknown, signal?: AbortSignal, accept = "*/*"): Promise<Response> {
    const headers = { "X-Pencil-Token": this.token, "Content-Type": "application/json", Accept: accept };
    return this.request(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  /** A request whose failures are sentences. */
  private async request(address: string, init: RequestInit): Promise<Response> {
    let reply: Response;
    try {
      reply = await fetch(address, init);
    } catch (error) {
      throw init.signal?.aborted ? error : stopped();
    }
    if (reply.ok) return reply;
    const text = await reply.text().catch(() => "");
    let sentence = `The server answered with status ${reply.status}.`;
    try {
      sentence = JSON.parse(text).error ?? sentence;
    } catch {
      // not JSON: the status says it
    }
    throw new Problem(sentence, reply.status >= 500, reply.status === 404 || reply.status === 410);
  }

  /** A request that is answered by events; the last of them is the result. */
  private async stream<T>(path: string, body: unknown, last: string, { signal, onEvent }: Watch): Promise<T> {
    const reply = await this.sent(path, body, signal, "text/event-stream");
    if (!reply.headers.get("content-type")?.startsWith("text/event-stream")) return parsed<T>(await reply.text());
    try {
      for await (const { name, data } of events(reply.body!)) {
        if (name === "error") throw new Problem(parsed<{ error: string }>(data).error);
        if (name === last) return parsed<T>(data);
        onEvent?.({ kind: name, ...parsed<object>(data) } as Event);
      }
    } catch (error) {
      throw error instanceof Problem || signal?.aborted ? error : stopped();
    }
    throw stopped();
  }
}

function stopped(): Problem {
  return new Problem(`The server has stopped; start it again with: ${meta("command") || "pencil explore"}`, true);
}

/** The events of a stream: their name and their data; comments are passed over. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: string }> {
  const reader = body.getReader(), decoder = new TextDecoder();
  let kept = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // a carriage return at the end may be half of a line end
      kept = (kept + decoder.decode(value, { stream: true })).replace(/\r\n/g, "\n");
      for (let end = kept.indexOf("\n\n"); end >= 0; end = kept.indexOf("\n\n")) {
        const lines = kept.slice(0, end).split("\n");
        kept = kept.slice(end + 2);
        const of = (field: string) => lines.filter((line) => line.startsWith(`${field}:`)).map((line) => line.slice(field.length + 1).replace(/^ /, ""));
        const data = of("data").join("\n");
        if (data) yield { name: of("event").at(-1) ?? "message", data };
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
