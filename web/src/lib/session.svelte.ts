// What the page shows now, and how it changes. The address is the only state; everything else follows from it.

import { EMPTY, INPUTS, LARGE, leftOut, read, today, written, type Address } from "./address";
import { axesOf, cellName, cellParts, MEANS, whereabouts, type Axis } from "./cells";
import { Problem, type Progress, type Source, type Watch } from "./source";
import type { Answer, Frame, Input, Learning, Lesson, Model, Outline, OutToken, Receipt, Slice, State, Taken, Tensor } from "./types";

type How = "push" | "replace" | "follow";
export type Change = Partial<Omit<Address, "more">> & { more?: Record<string, string | null> };

/** What has come of an answer; with it the training steps that were taken before it. */
type Arriving = { tokens: OutToken[]; frames: Frame[]; taken: Taken[] };
const NOTHING: Arriving = { tokens: [], frames: [], taken: [] };
/** Names that only the trace of a training step has. */
const OF_A_STEP = /^(grad|clipped|old|new):|^grad_norm$/;

export class Session {
  source = $state.raw<Source>(undefined as unknown as Source);
  models = $state.raw<Model[]>([]);
  address = $state.raw<Address>(EMPTY);
  /** The cells followed to come to the present one, which is the last. */
  trail = $state.raw<string[]>([]);

  answer = $state.raw<Answer | null>(null);
  answering = $state(false);
  answerProblem = $state.raw<Problem | null>(null);
  /** What has come of an answer that is still being computed. */
  partial = $state.raw<Arriving>(NOTHING);
  progress = $state.raw<Progress | null>(null);

  private answerKey = $state("");

  outline = $state.raw<Outline | null>(null);
  recording = $state(false);
  recordProblem = $state.raw<Problem | null>(null);

  receipt = $state.raw<Receipt | null>(null);
  receiptProblem = $state.raw<Problem | null>(null);

  /** A sentence while no server listens; requests wait. */
  lost = $state("");

  /** Sentences to read, newest last. */
  notices = $state.raw<{ id: number; text: string }[]>([]);
  /** Operations of the library that have no name of ours are listed only when asked for. */
  everything = $state(false);
  /** Whether the next cell that is shown takes the focus: a link that was followed is gone. */
  refocus = false;
  /** Whether the drawer with the receipt is open: someone chose the present cell, as against the one a view begins with. */
  opened = $state(false);
  /** The end of the colour scale, where it is held fixed; null: each tensor's own. */
  locked = $state<number | null>(null);

  model = $derived(this.models.find((one) => one.id === this.address.model) ?? this.models[0]);
  /** A file has one input and its edits, whatever the address says. */
  input: Input = $derived(this.model ? (this.source.state?.input ?? completed(this.address.input, this.model)) : {});
  /** The training steps that the copy on screen has taken; none: these are the run's own weights. */
  lessons: Lesson[] = $derived(this.source?.state ? (this.source.state.lessons ?? []) : this.address.lessons);
  /** The step of the training whose weights are looked at; null: the run's own. */
  at: number | null = $derived(this.source?.can("training") && !this.lessons.length && /^\d+$/.test(this.address.more.at ?? "") ? Number(this.address.more.at) : null);
  /** The other input of Compare, which a change may be patched from; null: there is none. */
  otherInput: Input | null = $derived(inputOf(this.address.more["b.input"]));
  state: State = $derived({
    model: this.model?.id ?? "", input: this.input, edits: this.source?.state?.edits ?? this.address.edits,
    ...(this.lessons.length ? { lessons: this.lessons } : {}),
    ...(this.address.edits.some((edit) => /=\s*patch$/.test(edit)) && this.otherInput ? { other: this.otherInput } : {}),
    ...(this.at === null ? {} : { at: this.at }),
  });
  /** The changes that are in what the page shows. */
  edits: string[] = $derived(this.source?.edits ?? this.address.edits);
  /** One text for one state: the same text, the same answer. */
  key: string = $derived(JSON.stringify(this.state));
  /** The target of the training step on screen; null: none is, or it is not known yet. */
  step: string | null = $derived(
    !this.edits.length && (this.address.view === LEARN || (this.address.view === NUMBERS && OF_A_STEP.test(this.address.cell))) ? this.target : null,
  );
  /** The learning rate of the step, as a multiple of the run's. */
  rate: number = $derived(Number(this.address.more.rate) || 1);
  /** The training step that would be taken next. */
  next: State = $derived({ ...this.state, step: this.step ?? "", rate: this.rate });
  nextKey: string = $derived(JSON.stringify(this.next));
  /** The training step that was taken last, where the address asks for its numbers; null: it asks for those of the next. */
  taken: State | null = $derived.by(() => {
    const { lessons, input: { options, ...own }, state: { lessons: _, ...state } } = this, last = lessons.at(-1);
    if (this.step === null || !this.address.more.past || !last) return null;
    const before = [...lessons.slice(0, -1), ...(last.steps > 1 ? [{ ...last, steps: last.steps - 1 }] : [])];
    const input = JSON.stringify(own) === JSON.stringify(last.input) ? this.input : { ...last.input, options };
    return { ...state, input, ...(before.length ? { lessons: before } : {}), step: last.target, rate: last.rate };
  });
  /** What is recorded: the model's answer, or a training step. */
  recorded: State = $derived(this.step === null ? this.state : (this.taken ?? this.next));
  recordedKey: string = $derived(JSON.stringify(this.recorded));
  /** Whether the changes of the address are in effect: the model may refuse them, and computes nothing then. */
  change: "made" | "pending" | "refused" = $derived(
    this.answerKey === this.key || !this.source?.can("answer") ? "made" : (this.answerProblem ?? this.recordProblem) ? "refused" : "pending",
  );
  stale: boolean = $derived(this.answer !== null && this.answerKey !== this.key);
  cell: string = $derived(this.address.cell);
  where: string = $derived(this.outline && this.cell ? whereabouts(this.outline, this.cell) : "");
  tensor: Tensor | null = $derived(this.tensorOf(this.cell));

  /** The parts that are divided in Why, and the number they are parts of: `divisionOf` names it. */
  divided: { of: string; open: string[] } = { of: "", open: [] };

  private outlineKey = "";
  private traceKept = "";
  private outlineAsked: Promise<Outline> | null = null;
  private answerStop: AbortController | null = null;
  private recordStop: AbortController | null = null;
  private nextStop: AbortController | null = null;
  private cancelled = "";
  private noticed = 0;
  private depth = 0; // how many places of the history are before this one
  private small = $state.raw<Map<string, string>>(new Map()); // large pictures, and each as the model sees it
  private readonly slices = new Map<string, Promise<Slice>>();

  /** What the model should answer: what was chosen, or what there is to begin with; null: there is nothing yet. */
  get target(): string | null {
    const wanted = this.model?.target;
    if (!wanted || typeof wanted === "string") return null;
    if (!wanted.label) return ""; // the input has it
    const chosen = this.address.more.target, { answer, input } = this;
    if (chosen !== undefined) return chosen;
    if (wanted.picture) {
      const { examples = [] } = wanted;
      return `0.5 0 ${(examples.find((one) => one.name === (input.label ?? input.text)) ?? examples[0])?.picture}`;
    }
    if (this.stale) return null;
    const example = this.model.examples.find((one) => one.input.picture === input.picture && one.input.text === input.text);
    if (wanted.classes.length) return example && wanted.classes.includes(example.name) ? example.name : (answer?.classes?.[0]?.label ?? null);
    if (!answer) return null;
    if (!/\[mask\]/i.test(input.text ?? "")) return answer.text ?? "";
    return input.text!.split(/\[mask\]/i).reduce((text, piece, i) => text + (answer.tokens?.[i - 1]?.text ?? "") + piece);
  }

  // ---- the address

  /** Begin with a source: read its models and the address. */
  async open(source: Source): Promise<void> {
    this.source = source;
    this.models = await source.models();
    this.recall(history.state);
    if (source.shown) this.divided = { of: this.divisionOf(source.shown.more.why ?? "", source.shown.more.against ?? null), open: source.shown.open };
    this.remember("replaceState");
    addEventListener("popstate", (event) => this.recall(event.state));
  }

  /**
   * Change the address. "push" is a new place in the history, "replace" the same one (sliders, other slices),
   * "follow" goes from a cell to one it was made of, and keeps the trail. In `more`, null removes a name.
   */
  go(change: Change, how: How = "push"): void {
    const { more, ...rest } = change;
    const entries = Object.entries({ ...this.address.more, ...more }).filter(([, value]) => value !== null) as [string, string][];
    const next: Address = { ...this.address, ...rest, more: Object.fromEntries(entries) };
    // what is shared is the view one comes from
    if (next.view === SHARE && this.address.view !== SHARE) next.more = { ...next.more, of: this.address.view || this.source.first || LOOK };
    if (change.input !== undefined && more?.target === undefined) delete next.more.target; // it was the old one's
    if (change.input !== undefined) delete next.more.past;
    if (next.view !== LEARN && next.view !== NUMBERS && OF_A_STEP.test(next.cell)) next.cell = ""; // other views have no step
    // a receipt belongs to its view, and closes with it
    if (next.view !== this.address.view) {
      this.opened = change.cell !== undefined && next.cell !== "";
      if (change.cell === undefined && !WITH_A_CELL.includes(next.view)) next.cell = "";
    }
    if (next.cell !== this.address.cell) {
      this.opened = next.cell !== "" && (how !== "replace" || this.opened);
      const before = how === "follow" ? this.trail : how === "replace" ? this.trail.slice(0, -1) : [];
      this.trail = next.cell ? [...before, next.cell] : [];
    }
    if (written(next) === written(this.address)) return;
    const { recordedKey: recorded, cell } = this, ofStep = this.step !== null && change.lessons !== undefined && cell !== "";
    this.address = next;
    if (ofStep && next.cell === cell && this.recordedKey !== recorded) {
      this.address = { ...next, cell: "" };
      this.trail = [];
      this.notify("The receipt was of another training step, and is closed.");
    }
    this.remember(how === "replace" ? "replaceState" : "pushState");
  }

  /** Open the receipt of a cell; `how` is "follow" where it is a term of the present one. */
  openCell(cell: string, how: How = "push", change: Change = {}): void {
    this.go({ ...change, cell }, how);
    if (how !== "replace") this.opened = cell !== "";
  }

  /** Close the drawer; where a view is about one number, that one stays chosen. */
  shut(): void {
    this.opened = false;
    if (!WITH_A_CELL.includes(this.address.view)) this.go({ cell: "" }, "replace");
    this.remember("replaceState");
  }

  /** Open a tensor at its first cell, or at the one worth looking at. */
  openTensor(name: string, change: Change = {}, how: How = "push"): void {
    const tensor = this.tensorOf(name);
    const index = this.source.striking?.(name) ?? tensor?.shape.map(() => 0) ?? [];
    const { opened } = this; // the receipt is written only where it is asked for
    this.go({ ...change, cell: cellName(name, index) }, how);
    this.opened = opened;
  }

  /** Another input: the example's names are kept, the rest is replaced; a cell of the old trace stays where it is. */
  setInput(change: Input, how: How = "replace"): void {
    const options = { ...this.input.options, ...change.options };
    const input: Input = { ...this.input, ...change, ...(Object.keys(options).length ? { options } : {}) };
    this.go({ input }, how);
  }

  /** A name for a number that Why divides: of this state, a cell, and what it is compared with. */
  divisionOf(cell: string, against: string | null): string {
    return JSON.stringify([this.key, cell, against]);
  }

  addEdit(edit: string): void {
    this.go({ edits: [...this.address.edits, edit] });
  }

  back(): void {
    if (this.depth > 0) history.back(); // the page before this one is not ours
  }

  /** A link that shows the same in another window, and what of it had no room there. */
  link(change: Partial<Address> = {}): { text: string; lacking: string[]; fitted: boolean } {
    const address = { ...this.address, ...change }, text = written(address, this.small);
    return { text: location.href.split("#")[0] + text, lacking: leftOut(address, this.small), fitted: text.includes("image/png;fitted") };
  }

  /** A large picture stands in the address as the model sees it, which the answer has: it gives the same answer. */
  keepSmall(input: Input, seen: Input): void {
    if (!input.picture || input.picture.length <= LARGE || !seen.picture || this.small.has(input.picture)) return;
    this.small = new Map([...this.small, [input.picture, seen.picture] as const].slice(-PICTURES));
    this.remember("replaceState");
  }

  private remember(method: "pushState" | "replaceState"): void {
    if (method === "pushState") this.depth++;
    const hash = written(this.address, this.small);
    const entry = { address: $state.snapshot(this.address), hash, trail: $state.snapshot(this.trail), depth: this.depth, opened: this.opened };
    // a page inside a notebook has no address of its own; a picture may be too large for the history
    for (const [state, url] of [[entry, hash], [entry, undefined], [null, hash]] as const) {
      try {
        return history[method](state, "", url);
      } catch {
        continue;
      }
    }
  }

  private recall(entry: { address?: Address; hash?: string; trail?: string[]; depth?: number; opened?: boolean } | null): void {
    this.depth = entry?.depth ?? 0;
    const { hash } = location;
    // the history has the whole picture, and the address a small one
    const first = { ...EMPTY, view: this.source.first, cell: this.source.shown?.cell ?? "", more: this.source.shown?.more ?? {} };
    const address = entry?.address && (!hash || hash === entry.hash) ? entry.address : hash ? read(hash) : first;
    this.address = today(address);
    this.opened = address.cell !== "" && (entry?.opened ?? true);
    this.trail = entry?.trail?.at(-1) === address.cell ? entry!.trail! : address.cell ? [address.cell] : [];
  }

  // ---- answers and traces

  /** Another server has taken the place of this one's, with other models: nothing that was computed holds. */
  restarted(models: Model[]): void {
    this.models = models;
    this.slices.clear();
    this.outlineAsked = null;
    void this.compute(true);
    if (this.outline) this.trace(true).catch(() => undefined);
  }

  /** Compute the answer of the present state, unless it is here; what was being computed before is dropped. */
  async compute(again = false): Promise<void> {
    const { key, state } = this;
    if (!again && this.cancelled === key) return;
    this.answerStop?.abort();
    if (!again && this.answerKey === key) {
      // back at the input of the answer that is here
      this.answering = false;
      this.answerProblem = this.progress = null;
      return;
    }
    const stop = (this.answerStop = new AbortController());
    this.answering = true;
    this.cancelled = "";
    this.answerProblem = null;
    this.progress = null;
    this.partial = NOTHING;
    try {
      const answer = await this.source.answer(state, this.watch(stop));
      if (stop.signal.aborted) return;
      this.answer = answer;
      this.answerKey = key;
      this.keepSmall(state.input, answer.state.input ?? {});
    } catch (error) {
      if (!stop.signal.aborted) this.answerProblem = problem(error);
    } finally {
      if (this.answerStop === stop) {
        this.answering = false;
        this.progress = null;
      }
    }
  }

  /** Stop what is being computed; the answer from before stays. */
  cancel(): void {
    this.cancelled = this.key;
    this.answerStop?.abort();
    this.recordStop?.abort();
    this.nextStop?.abort();
    this.answering = this.recording = false;
    this.progress = null;
  }

  /** The trace of the present state, recorded when it is first asked for. */
  trace(again = false): Promise<Outline> {
    const { recordedKey: key, recorded: state } = this;
    if (!again && this.outlineAsked && this.outlineKey === key) return this.outlineAsked;
    this.recordStop?.abort();
    const stop = (this.recordStop = new AbortController());
    this.outlineKey = key;
    this.traceKept = "";
    this.recording = true;
    this.recordProblem = null;
    const recording = this.source.record(state, this.watch(stop));
    this.outlineAsked = recording;
    recording.then(
      (outline) => {
        if (this.outlineAsked !== recording) return;
        Object.assign(MEANS, outline.legend);
        this.outline = outline;
        this.traceKept = outline.trace;
        this.recording = false;
        this.progress = null;
      },
      (error) => {
        if (this.outlineAsked !== recording) return;
        this.outlineAsked = null;
        this.recording = false;
        this.progress = null;
        if (!stop.signal.aborted) this.recordProblem = problem(error);
      },
    );
    return recording;
  }

  /** Ask something of the present trace; one that is no longer kept is recorded again. */
  async ask<T>(question: (trace: string) => Promise<T>): Promise<T> {
    const { trace } = await this.trace();
    try {
      return await question(trace);
    } catch (error) {
      if (!(error instanceof Problem && error.gone)) throw error;
      // of several questions that find it gone the first records it again, and the others wait for that
      return question((await this.trace(this.traceKept === trace)).trace);
    }
  }

  /** A training step as the view Learn shows it, whichever step is open. */
  async learning(step: State): Promise<Learning> {
    if (JSON.stringify(step) === this.recordedKey) return this.ask((trace) => this.source.learning(trace));
    this.nextStop?.abort();
    const { trace } = await this.source.record(step, { signal: (this.nextStop = new AbortController()).signal });
    return this.source.learning(trace);
  }

  /** A matrix of the present trace; the last ones are kept. */
  async slice(name: string, index: (number | null)[]): Promise<Slice> {
    const { trace } = await this.trace(), key = JSON.stringify([trace, name, index]);
    let slice = this.slices.get(key);
    this.slices.delete(key); // the one used last is the last to go
    slice ??= this.ask((now) => this.source.slice(now, name, index));
    this.slices.set(key, slice);
    if (this.slices.size > SLICES) this.slices.delete(this.slices.keys().next().value!);
    slice.catch(() => this.slices.delete(key));
    return slice;
  }

  /** Ask for the receipt of the present cell. */
  async unfold(): Promise<void> {
    const { cell, recordedKey: key } = this;
    if (!cell) {
      this.receipt = this.receiptProblem = null;
      return;
    }
    try {
      const receipt = await this.ask((trace) => this.source.receipt(trace, cell));
      if (this.cell !== cell || this.recordedKey !== key) return;
      this.receipt = receipt;
      this.receiptProblem = null;
    } catch (error) {
      if (this.cell !== cell || this.recordedKey !== key || aborted(error)) return;
      this.receiptProblem = problem(error);
    }
  }

  private watch(stop: AbortController): Watch {
    return {
      signal: stop.signal,
      onEvent: (event) => {
        if (stop.signal.aborted) return;
        const { kind, ...data } = event;
        if (kind === "progress") this.progress = data as Progress;
        if (kind === "token") this.partial = { ...this.partial, tokens: [...this.partial.tokens, data as OutToken] };
        if (kind === "again") this.partial = NOTHING;
        if (kind === "frame") this.partial = { ...this.partial, frames: [...this.partial.frames, data as Frame] };
      },
    };
  }

  // ---- what is in the trace

  tensorOf(cell: string): Tensor | null {
    const parts = cellParts(cell);
    return (parts && this.outline?.tensors.find((one) => one.name === parts.name)) ?? null;
  }

  axes(tensor: Tensor): Axis[] {
    return axesOf(tensor, this.outline?.labels ?? {});
  }

  // ---- sentences

  /** Show a sentence until it is closed. */
  notify(what: unknown): void {
    if (aborted(what)) return;
    const text = typeof what === "string" ? what : problem(what).message;
    if (this.notices.some((one) => one.text === text)) return;
    this.notices = [...this.notices.slice(-3), { id: ++this.noticed, text }];
  }

  dismiss(id: number): void {
    this.notices = this.notices.filter((one) => one.id !== id);
  }
}

/** An input that stands in the address as JSON. */
function inputOf(text: string | undefined): Input | null {
  try {
    const input: unknown = JSON.parse(text ?? "null");
    return typeof input === "object" ? (input as Input | null) : null;
  } catch {
    return null;
  }
}

/** An input with what the address leaves out: options alone are of the example; a picture and a source are always needed. */
function completed(input: Input | null, { example, input: takes }: Model): Input {
  if (!input) return example;
  const options = { ...example.options, ...input.options };
  if (!INPUTS.some((name) => input[name] !== undefined)) return { ...example, options };
  const whole = { ...input };
  for (const name of ["picture", "source"] as const) if (takes[name] && whole[name] === undefined && example[name] !== undefined) whole[name] = example[name];
  return whole;
}

// the names of views that something here depends on
const LOOK = "look";
const LEARN = "learn";
const NUMBERS = "numbers";
const SHARE = "share"; // it shares the others
const WITH_A_CELL = [NUMBERS, "change", SHARE]; // they are about the chosen number, with its receipt or without
const SLICES = 24; // matrices kept
const PICTURES = 8; // large pictures known in a small form

const aborted = (error: unknown) => error instanceof DOMException && error.name === "AbortError";

export function problem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(error instanceof Error ? error.message : String(error));
}

export const session = new Session();
