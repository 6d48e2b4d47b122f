// The source that asks the server of `pencil explore`.

import { Problem, type Event, type Feature, type Shown, type Source, type Watch } from "./source";
import type {
  Ablations, Along, Training,
  Answer, Attention, Changed, Contributions, Difference, Learning, Model, Outline, Picture, PictureOf, Receipt, Slice, State,
} from "./types";
import type { DocumentName, DocumentOf } from "../views/inside/lesson_types";
import type { TourOf } from "./tour";

const SECRET = "pencil.secret";
const IN_ADDRESS = /[#&]secret=([\w-]*)/;
const WRONG_IN_ITSELF = [400, 403, 413, 415]; // statuses
const PAUSE = 1000; // milliseconds between two looks for a server that has stopped
const NO_SECRET = "Open the address that pencil explore printed: it holds a secret, which this page does not know.";

/** What the page does while nothing answers, and when another server answers in its place. */
export type Connection = { lost: (sentence: string) => void; restarted: (models: Model[]) => void };

const pause = (milliseconds: number) => new Promise((done) => setTimeout(done, milliseconds));

/** The secret of the printed address, taken out of the address so that no link shows it; the tab keeps it. */
function takeSecret(): string {
  const match = IN_ADDRESS.exec(location.hash);
  try {
    if (match) sessionStorage.setItem(SECRET, match[1]);
  } catch {
    return match?.[1] ?? ""; // a browser that keeps nothing: it stays in the address
  }
  if (match) {
    const rest = location.hash.replace(match[0], "").replace(/^&/, "#");
    history.replaceState(history.state, "", location.pathname + rest);
  }
  return sessionStorage.getItem(SECRET) ?? "";
}

/** Tabs of one browser give each other the secret: one that was opened by a link has a storage of its own. */
async function ofOtherTabs(): Promise<string> {
  const tabs = new BroadcastChannel(SECRET);
  const answered = new Promise<string>((done) => (tabs.onmessage = ({ data }) => data.secret && done(data.secret)));
  tabs.postMessage({ asks: true });
  const secret = await Promise.race([answered, pause(300).then(() => "")]);
  tabs.close();
  if (secret) sessionStorage.setItem(SECRET, secret);
  return secret;
}

function answerOtherTabs(secret: string): void {
  const tabs = new BroadcastChannel(SECRET);
  tabs.onmessage = ({ data }) => data.asks && tabs.postMessage({ secret });
}

/** The token of a server: it follows from the secret, the port and the server's name; the secret is never sent. */
async function tokenFor(secret: string, server: string): Promise<string> {
  const bytes = (text: string) => new TextEncoder().encode(text);
  const key = await crypto.subtle.importKey("raw", bytes(secret), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const signed = await crypto.subtle.sign("HMAC", key, bytes(`${location.port || 80} ${server}`));
  return [...new Uint8Array(signed)].map((one) => one.toString(16).padStart(2, "0")).join("");
}

// JSON has no infinities: numbers that are not finite come as words, under these names only
const WORD: Record<string, number> = { inf: Infinity, "-inf": -Infinity, nan: NaN };
const NUMERIC = new Set(
  ("value logit scaled probability final from to uniform rest reworked recorded allowed low high most relative total share " +
    "score baseline milliseconds time loss norm before after gradient change").split(" "),
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
  private readonly page = Math.random().toString(36).slice(2, 12); // by this name the page takes turns with others
  private token = "";
  private command = "pencil explore";
  private modelsJson = ""; // as JSON, once they were read
  private waiting: Promise<void> | null = null; // for a server that has stopped

  private constructor(private readonly secret: string, private readonly connection: Connection) {}

  static async opened(connection: Connection): Promise<ServerSource> {
    // the printed address pasted into this tab changes only what follows the #, and loads nothing by itself
    addEventListener("popstate", () => {
      if (!IN_ADDRESS.test(location.hash)) return;
      takeSecret();
      location.reload();
    });
    const secret = takeSecret() || (await ofOtherTabs());
    if (!secret) throw new Problem(NO_SECRET);
    answerOtherTabs(secret);
    const source = new ServerSource(secret, connection);
    await source.connect().catch(() => {
      throw new Problem(source.stopped(), true);
    });
    return source;
  }

  can(_feature: Feature): boolean {
    return true;
  }

  async models(): Promise<Model[]> {
    const { models, command } = await this.get<{ models: Model[]; command?: string }>("models");
    this.command = command ?? this.command;
    this.modelsJson = JSON.stringify(models);
    return models;
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

  attention(trace: string, scores = false, watch: Watch = {}): Promise<Attention> {
    return scores ? this.stream(`trace/${trace}/attention?scores=1`, undefined, "attention", watch) : this.get(`trace/${trace}/attention`);
  }

  picture(trace: string): Promise<Picture> {
    return this.get(`trace/${trace}/picture`);
  }

  pictureOf(trace: string, cell: string): Promise<PictureOf> {
    return this.get(`trace/${trace}/picture/of`, { cell });
  }

  contributions(trace: string, cell: string, against?: string | null, part?: string | null): Promise<Contributions> {
    return this.get(`trace/${trace}/contributions`, { cell, against, part });
  }

  learning(trace: string): Promise<Learning> {
    return this.get(`trace/${trace}/learning`);
  }

  compare(a: State, b: State, watch: Watch = {}): Promise<Difference> {
    return this.post("compare", { a, b }, watch.signal);
  }

  edit(state: State, edit: string, watch: Watch = {}): Promise<Changed> {
    return this.post("edit", { state, edit }, watch.signal);
  }

  ablations(state: State, cell: string, to: Ablations["to"], watch: Watch = {}): Promise<Ablations> {
    return this.stream("ablations", { state, cell, to }, "ablations", watch);
  }

  training(model: string): Promise<Training> {
    return this.get(`models/${model}/training`);
  }

  along(state: State, cell: string, watch: Watch = {}): Promise<Along> {
    return this.stream("along", { state, cell }, "along", watch);
  }

  tour(trace: string): Promise<TourOf> {
    return this.get(`trace/${trace}/tour`);
  }

  documents(): Promise<{ documents: DocumentName[] }> {
    return this.get("documents");
  }

  document(number: string): Promise<DocumentOf> {
    return this.get(`documents/${encodeURIComponent(number)}`);
  }

  figure(number: string, section: number, figure: number): Promise<{ picture: string }> {
    return this.get(`documents/${encodeURIComponent(number)}/figure`, { section, figure });
  }

  katas(): Promise<unknown> {
    return this.get("katas");
  }

  kata(name: string, seed: number | "new" | null, words: string): Promise<unknown> {
    return this.get(`katas/${encodeURIComponent(name)}`, { seed, words });
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
    const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const words = new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
    const reply = await this.request(`/api/${path}${words && `?${words}`}`, {});
    return parsed<T>(await reply.text());
  }

  private async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    return parsed<T>(await (await this.sent(path, body, signal)).text());
  }

  private sent(path: string, body: unknown, signal?: AbortSignal, accept = "*/*"): Promise<Response> {
    if (body === undefined) return this.request(`/api/${path}`, { headers: { Accept: accept }, signal });
    const headers = { "Content-Type": "application/json", Accept: accept };
    return this.request(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  /** Make the token of the server that listens now, and see whether it has other models than the one before. */
  private async connect(): Promise<void> {
    const { server, shared } = await (await fetch("/server")).json();
    // a page from another machine over HTTP has no cryptography: what a class is given is a token, which is sent
    this.token = `${shared ? this.secret : await tokenFor(this.secret, server)}.${this.page}`;
    if (!this.modelsJson) return;
    const reply = await fetch("/api/models", { headers: { "X-Pencil-Token": this.token } });
    if (!reply.ok) return; // the request that follows shows why
    const { models } = parsed<{ models: Model[] }>(await reply.text());
    if (this.modelsJson === JSON.stringify(models)) return;
    this.modelsJson = JSON.stringify(models);
    this.connection.restarted(models);
  }

  /** Wait until a server listens again. */
  private async back(signal?: AbortSignal | null): Promise<void> {
    if (!this.modelsJson) throw new Problem(this.stopped(), true);
    this.waiting ??= this.look().finally(() => (this.waiting = null));
    const aborted = new Promise<never>((_, fail) => signal?.addEventListener("abort", () => fail(signal.reason)));
    await (signal ? Promise.race([this.waiting, aborted]) : this.waiting);
  }

  private async look(): Promise<void> {
    this.connection.lost(`${this.stopped()}. This page then goes on by itself.`);
    for (let away = true; away; ) {
      await pause(PAUSE);
      away = await this.connect().then(() => false, () => true);
    }
    this.connection.lost("");
  }

  private stopped(): string {
    return `The server has stopped; start it again with: ${this.command}`;
  }

  /** A request whose failures are sentences; while no server listens it waits, and is sent again to the next one. */
  private async request(address: string, init: RequestInit): Promise<Response> {
    let reply: Response, renewed = false;
    for (;;) {
      try {
        reply = await fetch(address, { ...init, headers: { ...init.headers, "X-Pencil-Token": this.token } });
        if (reply.status !== 403 || renewed) break;
        renewed = true; // another server may listen at the same port
        await this.connect();
      } catch (error) {
        if (init.signal?.aborted) throw error;
        await this.back(init.signal);
      }
    }
    if (reply.ok) return reply;
    const text = await reply.text().catch(() => "");
    let sentence = `The server answered with status ${reply.status}.`;
    try {
      sentence = JSON.parse(text).error ?? sentence;
    } catch {
      // not JSON: the status says it
    }
    throw refusal(sentence, reply.status);
  }

  /** A request that is answered by events; the last of them is the result. */
  private async stream<T>(path: string, body: unknown, last: string, { signal, onEvent }: Watch): Promise<T> {
    for (;;) {
      const reply = await this.sent(path, body, signal, "text/event-stream");
      if (!reply.headers.get("content-type")?.startsWith("text/event-stream")) return parsed<T>(await reply.text());
      try {
        for await (const { name, data } of events(reply.body!)) {
          if (name === "error") {
            const { error, status } = parsed<{ error: string; status: number }>(data);
            throw refusal(error, status);
          }
          if (name === last) return parsed<T>(data);
          onEvent?.({ kind: name, ...parsed<object>(data) } as Event);
        }
      } catch (error) {
        if (error instanceof Problem || signal?.aborted) throw error;
      }
      await this.back(signal); // it broke off: the whole of it comes again
      onEvent?.({ kind: "again" });
    }
  }
}

/** The problem of a status: a request that is wrong in itself fails again as long as it is the same. */
function refusal(sentence: string, status: number): Problem {
  return new Problem(sentence, !WRONG_IN_ITSELF.includes(status), status === 404 || status === 410);
}

/** The events of a stream: their name and their data; comments are passed over. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: string }> {
  const reader = body.getReader(), decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // a carriage return at the end may be half of a line end
      text = (text + decoder.decode(value, { stream: true })).replace(/\r\n/g, "\n");
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const of = (field: string) => lines.filter((line) => line.startsWith(`${field}:`)).map((line) => line.slice(field.length + 1).replace(/^ /, ""));
        const data = of("data").join("\n");
        if (data) yield { name: of("event").at(-1) ?? "message", data };
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
