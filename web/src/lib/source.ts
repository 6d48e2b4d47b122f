// Where the data comes from: the server of `pencil explore`, or a file that holds it.

import type {
  Ablations, Along, Training,
  Answer, Attention, Changed, Contributions, Difference, Frame, Learning, Model, Outline, OutToken, Picture, PictureOf, Receipt, Slice, State, Taken,
} from "./types";
import type { DocumentName, DocumentOf } from "../views/inside/lesson_types";
import type { TourOf } from "./tour";

/** Something the person can read and mend, in one sentence. */
export class Problem extends Error {
  constructor(
    message: string,
    readonly retry = false, // whether the same request may succeed later
    readonly gone = false, // a trace that is no longer kept, and can be recorded again
  ) {
    super(message);
  }
}

export type Progress = { done: number; total: number; text: string };

export type Event =
  | ({ kind: "progress" } & Progress)
  | ({ kind: "token" } & OutToken)
  | ({ kind: "frame" } & Frame)
  | ({ kind: "lesson" } & Taken)
  | { kind: "again" }; // what came so far is void: the connection broke off, and everything comes anew

export type Watch = { signal?: AbortSignal; onEvent?: (event: Event) => void };

/** What is open: a cell, what the views keep in the address, and the divided parts of Why. */
export type Shown = { cell: string; more: Record<string, string>; open: string[] };

export type Feature =
  | "input" | "answer" | "record" | "picture" | "attention" | "contributions" | "compare" | "edit" | "tour" | "documents" | "katas" | "export" | "scores" | "learning" | "training";

/** One method a view. Every one may reject with a `Problem`. */
export interface Source {
  readonly kind: "server" | "file";
  /** What a file is called, and a sentence about it; empty for a server. */
  readonly title: string;
  readonly about: string[];
  /** The view it begins with; empty: the first there is. */
  readonly first: string;
  /** The one state of a file, and what was open on the page that it was made from. */
  readonly state?: State;
  readonly shown?: Shown;
  /** Sentences: what a file leaves out. */
  readonly leftOut: string[];
  /** The edits a file was made with; of a server they are in the address. */
  readonly edits?: string[];
  /** Whether this source can do something at all; views hide what cannot be done, or say why. */
  can(feature: Feature): boolean;
  models(): Promise<Model[]>;
  answer(state: State, watch?: Watch): Promise<Answer>;
  record(state: State, watch?: Watch): Promise<Outline>;
  /** A matrix of a tensor: `index` has a number for every axis that is fixed, null for those that are shown. */
  slice(trace: string, name: string, index: (number | null)[], minus?: string): Promise<Slice>;
  receipt(trace: string, cell: string, digits?: number): Promise<Receipt>;
  /** The index of the cell of a tensor to look at first; the first one where a source has no better. */
  striking?(name: string): number[];
  /** Every head; with `scores` also what `pencil heads` measures, which takes a while. */
  attention(trace: string, scores?: boolean, watch?: Watch): Promise<Attention>;
  /** The model as lines and what hangs from them; and what each of it meant for one number of the output. */
  picture(trace: string): Promise<Picture>;
  pictureOf(trace: string, cell: string): Promise<PictureOf>;
  contributions(trace: string, cell: string, against?: string | null, part?: string | null): Promise<Contributions>;
  /** A training step, of which the trace is. */
  learning(trace: string): Promise<Learning>;
  compare(a: State, b: State, watch?: Watch): Promise<Difference>;
  edit(state: State, edit: string, watch?: Watch): Promise<Changed>;
  /** A number of the answer with each head switched off in turn, or set to its mean. */
  ablations(state: State, cell: string, to: Ablations["to"], watch?: Watch): Promise<Ablations>;
  training(model: string): Promise<Training>;
  /** A number of the answer over the training. */
  along(state: State, cell: string, watch?: Watch): Promise<Along>;
  /** The tour of the model that a trace is of, with the numbers of the trace. */
  tour(trace: string): Promise<TourOf>;
  documents(): Promise<{ documents: DocumentName[] }>;
  document(number: string): Promise<DocumentOf>;
  /** A figure of a section of a document, as the address of a picture. */
  figure(number: string, section: number, figure: number): Promise<{ picture: string }>;
  katas(): Promise<unknown>;
  /** In the words of the field, or those of the document whose page speaks of WANT, HAVE and GIVE. */
  kata(name: string, seed: number | "new" | null, words: "field" | "document"): Promise<unknown>;
  kataAnswer(name: string, seed: number | null, answers: string[]): Promise<unknown>;
  kataWorking(name: string, seed: number | null): Promise<unknown>;
  /** The current view as one HTML file. */
  exported(state: State, view: string, shown: Shown, watch?: Watch): Promise<Blob>;
}

export const WORDS: Record<Feature, string> = {
  input: "another input",
  answer: "the answer",
  record: "the trace",
  picture: "the picture of this number",
  attention: "the attention of every head",
  contributions: "the contributions to this number",
  compare: "a comparison",
  edit: "a change inside the model",
  tour: "the tour",
  documents: "the documents",
  katas: "the katas",
  export: "the export to a file",
  scores: "the scores of the heads",
  learning: "training steps",
  training: "the training",
};
