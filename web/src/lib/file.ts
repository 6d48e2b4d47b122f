// The source that is inside the page: the graph of a trace and its arrays, and what was prepared of other views.

import { unzipped } from "./bytes";
import { cellName, cellParts, labelsAlong, MEANS } from "./cells";
import { Graph, ravel, type Meta, type Typed } from "./evaluate/graph";
import { receipt, shortened } from "./evaluate/receipt";
import type { Num } from "./evaluate/numbers";
import { size } from "./evaluate/numbers";
import { bare, marked, pieces } from "./evaluate/writing";
import { mapOf, namesOf, tensorsOf } from "./outline";
import { parsed } from "./server";
import { Problem, WORDS, type Feature, type Shown, type Source } from "./source";
import type {
  Answer, Attention, Contributions, Model, Outline, Picture, PictureOf, Receipt, Slice, State, Tensor,
} from "./types";
import type { TourOf } from "./tour";

/** What a file may hold besides its trace; the keys of `contributions` are made by the function below. */
export type Views = {
  model?: Model;
  answer?: Answer;
  outline?: Pick<Outline, "map"> & Partial<Outline>;
  attention?: Attention;
  tour?: TourOf;
  picture?: Picture;
  picture_of?: Record<string, PictureOf>; // by cell
  contributions?: Record<string, Contributions>;
  python?: string;
  view?: string; // the one it begins with
  shown?: Shown; // what was open on the page
  left_out?: string[];
};

export const partKey = (cell: string, against?: string | null, part?: string | null) => `${cell}|${against ?? ""}|${part ?? ""}`;

const FORMAT = "pencil trace 1"; // as src/pencil/tracing/file.py writes it
const KINDS = { u8: Uint8Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
const real = (value: Num) => (Array.isArray(value) ? size(value) : value);

export class FileSource implements Source {
  readonly kind = "file";
  readonly title: string;
  readonly about: string[];
  readonly first: string;
  readonly leftOut: string[];
  readonly state?: State;
  readonly shown?: Shown;
  readonly edits: string[];
  private readonly names: string[];
  private readonly tensors: Tensor[];
  private readonly ranges = new Map<number, [number, number]>();

  constructor(
    readonly graph: Graph,
    readonly views: Views = {},
  ) {
    this.title = graph.meta.title ?? "trace";
    this.about = graph.meta.about ?? [];
    this.first = views.view ?? (views.answer ? "" : "numbers");
    this.leftOut = views.left_out ?? [];
    this.state = views.answer?.state;
    this.shown = views.shown;
    this.edits = views.answer?.state?.edits ?? graph.nodes.flatMap((n) => (n.kind === "edited" ? [n.name.replace(/:edit$/, "")] : []));
    Object.assign(MEANS, graph.meta.legend);
    this.names = namesOf(graph);
    this.tensors = tensorsOf(graph, this.names);
  }

  /** Read the data that is inside this page. */
  static async opened(): Promise<FileSource> {
    const text = (id: string) => document.getElementById(id)?.textContent ?? "";
    const meta: Meta = JSON.parse(text("graph"));
    if (meta.format !== FORMAT) {
      const format = typeof meta.format === "string" ? `“${meta.format.slice(0, 40)}”` : "of no known kind";
      throw new Problem(`This page cannot read the trace in it: it is ${format}, and this version of Pencil reads “${FORMAT}”. Record it again with this version, or open the file as the version that wrote it made it.`);
    }
    const raw = await unzipped(text("arrays"));
    const arrays: Record<string, Typed> = {};
    for (const [key, [kind, begin, count]] of Object.entries(meta.arrays)) {
      arrays[key] = new KINDS[kind as keyof typeof KINDS](raw, begin, count);
    }
    const views = text("views") ? new TextDecoder().decode(await unzipped(text("views"))) : "{}";
    return new FileSource(new Graph(meta, arrays), parsed<Views>(views));
  }

  can(feature: Feature): boolean {
    const here: Partial<Record<Feature, unknown>> = { ...this.views, record: true };
    return Boolean(here[feature]);
  }

  async models(): Promise<Model[]> {
    if (this.views.model) return [this.views.model];
    const about = { family: "", summary: "", parameters: 0, step: null, depth: 0, heads: 0, live: false };
    const rest = { input: {}, output: "vector" as const, controls: [], example: {}, examples: [] };
    return [{ id: "a", name: this.title, ...about, ...rest }];
  }

  async answer(state: State): Promise<Answer> {
    void state;
    return this.views.answer ?? this.missing("answer");
  }

  async record(): Promise<Outline> {
    const { labels, meta } = this.graph;
    const map = this.views.outline?.map ?? mapOf(this.tensors, this.title);
    return { trace: "file", tensors: this.tensors, labels, facts: meta.facts ?? {}, map, start: this.start(), edges: this.views.outline?.edges };
  }

  async slice(_: string, name: string, index: (number | null)[]): Promise<Slice> {
    const node = this.node(name), n = this.graph.nodes[node], values = this.orMissing(() => this.graph.values(node));
    const shown = index.flatMap((i, d) => (i === null ? [d] : []));
    const [down, across] = shown.length > 1 ? shown.slice(-2) : [-1, shown[0] ?? -1];
    const count = (d: number) => (d < 0 ? 1 : n.shape[d]);
    const out = new Float64Array(count(down) * count(across)), at = index.map((i) => i ?? 0);
    const strides = n.shape.map((_, d) => n.shape.slice(d + 1).reduce((a, b) => a * b, 1));
    const base = ravel(at, n.shape), [r, c] = [down < 0 ? 0 : strides[down], across < 0 ? 0 : strides[across]];
    for (let i = 0; i < out.length; i++) out[i] = values[base + Math.floor(i / count(across)) * r + (i % count(across)) * c];
    const [low, high] = this.range(node);
    const shape = shown.length > 1 ? [count(down), count(across)] : shown.map(count);
    return { name, index, shape, values: out, rows: this.words(node, down), columns: this.words(node, across), low, high };
  }

  async receipt(_: string, cell: string, digits?: number): Promise<Receipt> {
    const parts = cellParts(cell), node = parts ? this.node(parts.name) : -1;
    if (!parts || parts.index.length !== this.graph.nodes[node].shape.length) throw new Problem(`${cell} is no cell of this trace`);
    const n = this.graph.nodes[node], r = this.orMissing(() => receipt(this.graph, node, ravel(parts.index, n.shape), digits));
    const address = (at: number, index: number[]) => cellName(this.names[at], index);
    const where = new Map(r.terms.map((term) => [`${term.node}:${term.place}`, address(term.node, term.index)]));
    // links to cells begin with @; the others are steps of this receipt
    const links = (text: string) =>
      pieces(text).map(({ what, text }) => (what ? marked(where.has(what) ? `@${where.get(what)}` : what, text) : text)).join("");
    const terms = r.terms.map((term) => ({ cell: address(term.node, term.index), label: term.where, value: real(term.value) }));
    const order = terms.map((_, i) => i).sort((i, j) => Math.abs(terms[j].value) - Math.abs(terms[i].value) || i - j);
    return {
      cell: address(node, parts.index), label: r.label, name: this.names[node], index: parts.index, kind: n.kind, op: n.op,
      formula: bare(r.formula), meaning: r.meaning, lines: r.lines,
      steps: r.steps.map((step) => ({ word: step.word, formula: bare(step.formula), value: real(step.value) })),
      terms, leading: order.slice(0, 8), reworked: r.reworked === null ? null : real(r.reworked), recorded: real(r.recorded),
      allowed: r.allowed, agrees: r.agrees, masked: r.masked, ends: r.ends,
      marked: { formula: links(r.formula), steps: r.steps.map((step) => links(step.formula)) },
      sums: shortened(this.graph, r.tree).map(({ title, rows }) => ({
        title,
        rows: () => rows().map((row) => ({ ...row, formula: links(row.formula) })),
      })),
    };
  }

  async attention(): Promise<Attention> {
    return this.views.attention ?? this.missing("attention");
  }

  async picture(): Promise<Picture> {
    return this.views.picture ?? this.missing("picture", "the picture of the model");
  }

  async pictureOf(_: string, cell: string): Promise<PictureOf> {
    return this.views.picture_of?.[cell] ?? this.missing("picture");
  }

  async contributions(_: string, cell: string, against?: string | null, part?: string | null): Promise<Contributions> {
    const contributions = this.views.contributions?.[partKey(cell, against, part)];
    return contributions ?? this.missing("contributions", part ? "what this part is made of" : against ? "the contributions to this difference" : undefined);
  }

  learning = () => this.missing("learning");
  compare = () => this.missing("compare");
  edit = () => this.missing("edit");
  ablations = () => this.missing("edit");
  training = () => this.missing("training");
  along = () => this.missing("training");
  tour = async () => this.views.tour ?? this.missing("tour");
  documents = () => this.missing("documents");
  document = () => this.missing("documents");
  figure = () => this.missing("documents");
  katas = () => this.missing("katas");
  kata = () => this.missing("katas");
  kataAnswer = () => this.missing("katas");
  kataWorking = () => this.missing("katas");
  exported = () => this.missing("export");

  private async missing(feature: Feature, what = WORDS[feature]): Promise<never> {
    throw new Problem(`This file does not hold ${what}; open the model with pencil explore to see it.`);
  }

  /** What is computed from values that may have been left out of the file. */
  private orMissing<T>(compute: () => T): T {
    try {
      return compute();
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new Problem(`${why[0].toUpperCase()}${why.slice(1)}; open the model with pencil explore to see them.`);
    }
  }

  private node(name: string): number {
    const node = Object.hasOwn(this.graph.names, name) ? this.graph.names[name] : this.names.indexOf(name);
    if (node < 0) throw new Problem(`This file holds no tensor ${name}.`);
    return node;
  }

  /** The labels along an axis of a node, or else its indices. */
  private words(node: number, axis: number): string[] {
    const tensor = this.tensors[node], count = axis < 0 ? 1 : tensor.shape[axis];
    const letter = axis >= 0 && tensor.axes.length === tensor.shape.length ? tensor.axes[axis] : "";
    const words = letter ? labelsAlong(this.graph.labels, tensor.name, letter, count) : null;
    return words ?? Array.from({ length: count }, (_, i) => (axis < 0 ? "" : String(i)));
  }

  /** The least and the largest finite value of a whole tensor; zero is within. */
  private range(node: number): [number, number] {
    let range = this.ranges.get(node);
    if (!range) {
      let low = 0, high = 0;
      for (const v of this.graph.values(node)) {
        if (v > high && v < Infinity) high = v;
        if (v < low && v > -Infinity) low = v;
      }
      this.ranges.set(node, (range = [low, high]));
    }
    return range;
  }

  // ---- the cell to open first

  private isPattern(node: number): boolean {
    const tensor = this.tensors[node];
    return tensor.shape.length > 2 && tensor.portions && tensor.dtype !== "bool" && this.graph.has(node) && this.range(node)[0] >= 0;
  }

  /** Of an attention pattern, the largest weight of the most even row; else the first cell. */
  striking(name: string): number[] {
    const node = this.node(name), { shape } = this.graph.nodes[node];
    const zero = shape.map(() => 0);
    if (!this.isPattern(node)) return zero;
    const [rows, columns] = shape.slice(-2), values = this.graph.values(node);
    const peaks = Array.from({ length: rows }, (_, r) => Math.max(...values.subarray(r * columns, (r + 1) * columns)));
    const place = Math.max(0, Array.prototype.indexOf.call(values, Math.min(...peaks.filter((p) => p > 0))));
    return [...zero.slice(0, -2), Math.floor(place / columns), place % columns];
  }

  private start(): string {
    const start = this.graph.meta.start ?? "", parts = cellParts(start);
    if (parts && Object.hasOwn(this.graph.names, parts.name)) {
      return parts.index.length ? start : cellName(parts.name, this.striking(parts.name));
    }
    const ids = this.graph.nodes.map((_, i) => i).filter((i) => this.graph.nodes[i].size && this.graph.has(i));
    const named = ids.filter((i) => this.graph.nodes[i].named);
    const first = named.find((i) => this.isPattern(i)) ?? ids.find((i) => this.isPattern(i)) ?? named.at(-1) ?? ids.at(-1)!;
    return cellName(this.names[first], this.striking(this.names[first]));
  }
}
