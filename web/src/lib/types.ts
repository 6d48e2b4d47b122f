// The data of every view, as the Python package hands it out (src/pencil/explore).

export type Input = {
  text?: string;
  source?: string;
  picture?: string; // data:image/png;base64,…
  label?: string;
  options?: Record<string, number>;
};

/** Training steps on one input and its target, taken by a copy of the model. */
export type Lesson = { input: Input; target: string; steps: number; rate: number };

/** What is being looked at: a model, what it is given, what was changed inside it, and the training of its copy. */
export type State = {
  model: string;
  input: Input;
  edits: string[];
  lessons?: Lesson[];
  step?: string; // a target: what is recorded is one more training step
  rate?: number; // of that step: so many times the run's learning rate
  other?: Input; // whose values an edit with =patch takes
  at?: number; // a step of the run's training, whose weights are looked at
};

export type Control = {
  name: "temperature" | "top_k" | "top_p" | "min_p" | "seed" | "tokens" | "guidance" | "steps" | "step";
  value: number;
  least: number;
  most: number;
  within?: string; // the setting whose value is the most it can be; empty: none
  whole: boolean;
  help: string;
};

export type Model = {
  id: string;
  name: string;
  path?: string; // the folder of the run, or the name of an example that comes with Pencil
  family: string;
  summary: string;
  parameters: number;
  step: number | null;
  depth: number;
  heads: number;
  live: boolean; // small enough to compute again at every change
  input: {
    text?: { label: string; longest: number; optional: boolean };
    source?: { label: string; longest: number };
    picture?: { height: number; width: number; channels: 1 | 3; frames?: number };
    label?: { classes: string[] };
  };
  output: "tokens" | "classes" | "picture" | "vector";
  unmeasured?: string; // why no score says what a head does; empty where scores can be measured
  target?: Target | string; // how a training step is told the right answer; or why there is none
  controls: Control[];
  example: Input;
  examples: { name: string; input: Input }[];
};

/** A class, a text, or "TIME SEED PICTURE" of a picture that is noised. */
export type Target = {
  label: string; classes: string[];
  picture?: { height: number; width: number; channels: 1 | 3 } | null; examples?: { name: string; picture: string }[];
};

export type Bar = { label: string; id: number; logit: number; probability: number; cell: string };

export type ChosenRow = {
  label: string;
  id: number;
  logit: number;
  scaled: number; // divided by the temperature
  probability: number; // before anything is cut
  kept: boolean;
  cut: "" | "top-k" | "top-p" | "min-p";
  final: number; // after the cuts, summing to one again
  from: number; // its interval of [0, 1)
  to: number;
  drawn: boolean;
};

export type Chosen = {
  rows: ChosenRow[];
  uniform: number | null; // the random number; null where the largest was taken
  rest: number; // the probability of the rows that are not listed
};

export type OutToken = {
  text: string;
  id: number;
  position: number;
  cell: string;
  probability: number;
  top: Bar[];
  chosen: Chosen;
};

/** `guide`: the clean picture predicted with the condition minus the one without it; bytes, of which 127 stands for `top`. */
export type Frame = {
  step: number; time: number; picture: string; clean?: string; guide?: { shape: [number, number]; values: string; top: number };
};

export type Answer = {
  state: State;
  milliseconds: number;
  words: string[];
  text?: string;
  tokens?: OutToken[];
  classes?: Bar[];
  vector?: number[];
  nearest?: unknown;
  picture?: string;
  frames?: Frame[];
  grid?: [number, number] | [number, number, number];
  first_patch?: number;
  first_word?: number;
  notes: string[];
};

export type Tensor = {
  name: string;
  symbol: string;
  formula: string;
  shape: number[];
  axes: string[];
  kind: string;
  op: string;
  dtype: string;
  portions: boolean; // shares of a whole: made by a softmax, or truth values
  path: string;
  named: boolean;
};

export type MapKind = "model" | "block" | "attention" | "mlp" | "norm" | "matrix" | "embedding" | "head" | "other";

export type MapNode = {
  path: string;
  title: string;
  kind: MapKind;
  parameters: number;
  shape?: number[];
  formula?: string;
  tensors: string[];
  children: MapNode[];
};

export type Outline = {
  trace: string;
  tensors: Tensor[];
  labels: Record<string, string[]>;
  facts: Record<string, unknown>;
  map: MapNode;
  start: string;
  legend?: Record<string, string>; // what the letters of axes mean
  edges?: { from: string; by: string; to: string }[]; // from one residual stream to the next, by the path of a module
};

export type Slice = {
  name: string;
  index: (number | null)[];
  shape: number[];
  values: string | Float64Array; // base64 of little-endian float64, or the numbers themselves; see `numbersOf`
  rows: string[];
  columns: string[];
  low: number;
  high: number;
};

export type Term = { cell: string; label: string; value: number };

export type Receipt = {
  cell: string;
  label: string;
  name: string;
  index: number[];
  kind: string;
  op: string;
  formula: string;
  meaning: string;
  lines: string[];
  steps: { word: string; formula: string; value: number }[];
  terms: Term[];
  leading: number[];
  reworked: number | null;
  recorded: number;
  allowed: number;
  agrees: boolean;
  masked: boolean;
  ends: string[];
  /** Made in the page only: formulas whose numbers are marked as links, and every term of a sum that was shortened. */
  marked?: { formula: string; steps: string[] };
  sums?: { title: string; rows: () => { formula: string; value: string }[] }[];
};

/** `names` are those it has earned; `scored` is what its highest score above chance measures. */
export type HeadSeen = { head: number; names: string[]; scored?: string; score: number | null; baseline: number | null; thumbnail: string };

export type AttentionLayer = { name: string; layer: number; heads: HeadSeen[]; thumb: [number, number] };

export type Attention = {
  groups: { name: string; layers: AttentionLayer[]; queries: string[]; keys: string[] }[];
};

export type PartKind =
  | "block" | "head" | "mlp" | "token" | "patch" | "pixel" | "position" | "bias" | "norm" | "condition" | "embedding" | "rest";

export type Part = {
  id: string;
  label: string;
  kind: PartKind;
  value: number;
  share: number;
  cell: string | null;
  parts: number;
};

export type Contributions = {
  cell: string;
  against: string | null;
  value: number;
  total: number;
  allowed: number;
  held: string[];
  parts: Part[];
};

export type Difference = {
  /** `counted`: of ids and masks `most` is how many differ, and `relative` their share. */
  tensors: { name: string; shape: number[]; most: number; relative: number; cell: string; counted?: boolean }[];
  first: string | null;
  only_a: string[];
  only_b: string[];
  notes: string[];
};

// ---- the picture of the model: one line per token, what hangs from the lines, and what it all meant for one number.
// Everything counts from 0 here, and from 1 on the screen.

export type LaneKind = "token" | "patch" | "class" | "special" | "condition";

/** One line of a stack: a token, a patch, the class token, a delimiter, or what a diffusion model is told. */
export type Lane = {
  label: string;
  kind: LaneKind;
  at?: number[]; // of a patch: its row and column, after its frame where there are frames
  written: boolean; // by the model itself, not given
};

/** Lines that attend to one another: one stack in most models, two with an encoder, "condition" for what sets the norms. */
export type Stack = {
  id: string;
  title: string;
  lanes: Lane[];
  grid?: number[]; // how many patches there are: down and across, after the frames where there are frames
  stream: string; // name of the residual stream before its first block, [batch, lane, width]; empty: it has none
};

/** What hangs from the lines of a stack, in the order of computing. */
export type PictureColumn = {
  path: string; // of the module: blocks.0.attn
  kind: "attn" | "cross" | "mlp";
  stack: string; // whose stream it adds to
  keys: string; // the stack that it reads: another one for cross-attention
  block: number;
  heads: number; // 1 for an MLP
  pattern: string; // name of its attention pattern, [batch, head, query, key]; empty for an MLP
  stream: string; // name of the residual stream after it
  normed: "before" | "after"; // pre-norm reads a normed copy of the stream; post-norm norms the stream itself
  thumb: [number, number]; // rows and columns of a thumbnail
  thumbs: string; // base64 of bytes, heads × rows × columns, 255 for a weight of 1
  condition?: string; // the stack that sets its norm (adaLN)
};

/** What the model is drawn from; `graph` in place of the rest where its blocks declare no residual stream. */
export type Picture = {
  stacks: Stack[];
  columns: PictureColumn[];
  graph?: { nodes: { path: string; title: string; operations: number }[]; edges: [number, number][] };
};

/** What one column did for the chosen number. */
export type ColumnOf = {
  rows: string; // base64 of float32, heads × keys: where the chosen line looks; empty for an MLP and for other stacks
  added: string; // base64 of float32, one for each head: what it added to the number
  ids: string[]; // of the same parts in `Contributions`, one for each head; "" where it added nothing
};

export type PicturePart = { id: string; label: string; value: number; cell: string | null };

/** What one input did for the chosen number by way of all paths. */
export type PictureInput = { stack: string; lane: number; value: number; cell: string | null };

export type Lens = {
  after: number; // so many blocks: 0 is before the first
  value: number; // the chosen number, had the model stopped there
  cell: string; // it opens as any other number
  probability?: number; // these four where the number is a logit
  rank?: number; // 0 is the likeliest
  top?: { id: number; label: string; probability: number; cell: string }[];
  picture?: string; // of a diffusion model: the clean picture that it would predict there
};

/** The picture for one number: Σ added + Σ rest = value, and Σ inputs + Σ noInput = value, each within `allowed`. */
export type PictureOf = {
  cell: string;
  label: string;
  value: number;
  allowed: number;
  held: string[];
  stack: string; // whose lines it is read from
  query: number[]; // the line that is read; all lines of which a mean is read
  columns: ColumnOf[]; // as in `Picture`
  rest: PicturePart[]; // embeddings, positions, biases (each of all blocks together): what no column added
  inputs: PictureInput[];
  noInput: PicturePart[]; // what belongs to no input: biases, positions, special tokens
  pixels?: { shape: number[]; values: string }; // base64 of float32: the parts of the patches among `inputs`, by pixel
  lens: Lens[];
  unlensed?: string; // why there is no lens
};

/** A number of the answer, on the same tokens; of a logit also its probability, and the likeliest there. */
export type Measured = { value: number; probability?: number; top?: string };
/** A head whose values are set to 0 or to their mean; `edit` does the same to the page. */
export type Ablated = Measured & { name: string; group: string; layer: number; head: number; edit: string; change: number };
export type Ablations = Measured & { cell: string; to: "0" | "mean"; heads: Ablated[] };

/** The training of a run: its losses by step, and the steps whose weights are kept. */
export type Training = {
  kept: number[];
  own: number | null; // the step of the weights that the run is used with
  step: number; // how far it is, and for how many steps it is trained
  steps: number;
  train_loss: [number, number][];
  val_loss: [number, number][];
};
/** One number of the answer as the model of each kept step computes it. */
export type Along = { cell: string; points: (Measured & { step: number })[] };

/** The loss before a training step that was taken, and how likely each target was. */
export type Taken = { loss: number; probabilities: number[] };

/** A weight and its gradient, as two small matrices: base64 of little-endian float32. */
export type Pair = { name: string; symbol: string; shape: number[]; norm: number; thumb: [number, number]; value: string; gradient: string };

export type WeightChange = {
  cell: string; label: string; before: number; after: number; gradient: number; change: number; relative: number | null;
};

export type Learning = {
  loss: number;
  targets: { after: string; label: string; probability: number; cell: string }[];
  norm: number | null; // of all gradients together, where they are clipped
  clip: number | null;
  rates: Record<string, number>; // of each optimizer
  parts: { id: string; norm: number; heads: { name: string; norms: number[] }[]; pairs: Pair[] }[];
  changes: WeightChange[];
  history: Taken[];
  undescribed: string[];
  note: string;
};

export type Changed = Difference & { before: Answer; after: Answer };
