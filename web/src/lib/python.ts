// "Copy the Python": a few lines that show the same in a notebook.

import type { Session } from "./session.svelte";
import type { Input, Model, Target } from "./types";

export const quoted = (text: string) => JSON.stringify(text);

const PICTURE = "page-picture.png";
export const OTHER_PICTURE = "other-picture.png";
const SHORT = 8000; // letters of a picture that is written into the lines themselves

/** The line that makes the file of a picture. */
export function pictureLine(picture: string, file = PICTURE): string {
  if (picture.length >= SHORT) return `# ${file}: the picture that was given to the page, under this name`;
  return `Path(${quoted(file)}).write_bytes(b64decode(${quoted(picture.split(",")[1] ?? "")}))`;
}

/** The model on screen: a run by its folder, one at a checkpoint, or an example by its name; `whole` is its session. */
export function opened({ name, path, step }: Model, whole = false): string {
  const folder = quoted(path ?? `runs/${name.split("@")[0]}`);
  if (name.includes("@") && step !== null) return `Session.open(${folder}, step=${step})${whole ? "" : ".loaded"}`;
  return whole ? `Session.open(${folder})` : folder;
}

/** The call that records an input, as `pencil.trace` takes it; `written` is what the model wrote after it. */
export function traced(model: Model, input: Input, written = "", file = PICTURE): string {
  const args = [opened(model)], text = written ? (input.text ?? "") + written : input.text;
  const put = (word: string, value: string | number | undefined) => value !== undefined && value !== "" && args.push(`${word}=${typeof value === "number" ? value : quoted(value)}`);
  if (input.picture) args.push(quoted(file));
  else if (model.input.source) args.push(quoted(input.source ?? ""));
  if (model.output === "picture") {
    put("label", input.label);
    put("prompt", input.text);
    for (const word of ["step", "steps", "guidance", "seed"]) put(word, input.options?.[word]);
  } else if (model.input.picture || model.input.source) put("text", text);
  else if (text !== undefined) args.push(quoted(text));
  return `pencil.trace(${args.join(", ")})`;
}

/** A trace with one more edit: its value is a number, a word that Python takes as well, or the trace that is patched from. */
export function edited(trace: string, edit: string): string {
  const cut = edit.lastIndexOf("="), value = edit.slice(cut + 1).trim();
  return `${trace}.edit(${quoted(edit.slice(0, cut))}, ${value === "patch" ? "source" : /^(mean|noise)/.test(value) ? quoted(value) : value})`;
}

/** The lines of the present state and cell; a view adds its own with `more`. With `prompt` without what was written. */
export function python(session: Session, more: string[] = [], prompt = false): string {
  const { source, model, input, cell, state, answer, stale } = session;
  const alone = source.kind === "file" && !source.state; // a trace whose model is not known
  const lines = alone ? [] : ["import pencil", "", ...own(session)];
  if (session.step !== null) lines.push(...stepped(session));
  else if (alone) lines.push("from pencil.tracing.file import load", "", "t = load(\"trace.safetensors\")  # the file of pencil trace --out");
  else {
    if (input.picture) lines.push(pictureLine(input.picture));
    const writes = model.controls.some((one) => one.name === "temperature");
    lines.push(`t = ${traced(model, input, writes && !prompt && !stale ? answer?.text : "")}`);
  }
  if (state.at !== undefined) lines.push(`# of the weights after step ${state.at}: from pencil.explore.session import Session; Session.open("RUN", step=${state.at}).loaded`);
  if (state.other) lines.push(`source = ${traced(model, state.other, "", OTHER_PICTURE)}  # what the patch is from`);
  for (const edit of state.edits) lines.push(`t = ${edited("t", edit)}`);
  if (more.length) lines.push(...more);
  else if (cell) lines.push(`print(t[${quoted(cell)}])`);
  return program(lines);
}

/** Where the page has a copy that was trained: the lines are of the run. */
const own = ({ step, recorded, lessons }: Session) =>
  (step === null ? lessons : (recorded.lessons ?? [])).length ? ["# the run's own weights, without the steps of the page: other numbers than there"] : [];

/** The lines that record the training step on the present input towards a target. */
function stepped({ model, recorded, taken }: Session): string[] {
  const { input = {}, step: target = "", rate = 1 } = recorded;
  const wanted: Target = typeof model.target === "object" ? model.target : { label: "", classes: [] };
  const word = !wanted.label || wanted.picture ? "" : `, ${wanted.classes.length ? "target" : "text"}=${quoted(target)}`;
  const [time, seed, noised] = wanted.picture ? target.split(" ") : [], picture = noised ?? input.picture;
  const named = input.label ? `label=${quoted(input.label)}, ` : input.text ? `prompt=${quoted(input.text)}, ` : "";
  const what = noised ? `${named}target=Path(${quoted(PICTURE)}), time=${time}, seed=${seed}` : quoted(picture ? PICTURE : (input.source ?? input.text ?? ""));
  const lines = [...(taken ? ["# the step just taken"] : []), ...(rate === 1 ? [] : [`# with the run's learning rate, of which the page has ${rate}`]), ...(picture ? [pictureLine(picture)] : [])];
  const run = opened(model), loaded = run.startsWith("Session.") ? run : `pencil.load(${run})`;
  return [...lines, `run = ${loaded}`, "# step_on: as this page does; for your own model and loss: pencil.trace_step", `t = step_on(run, pencil.trace(run, ${what}${word}))`];
}

/** Lines with the imports that they need. */
function program(lines: string[]): string {
  if (lines.some((line) => line.includes("step_on("))) lines.splice(lines.indexOf("import pencil") + 1, 0, "from pencil.api.step import step_on");
  const coded = ["b64decode", "b64encode"].filter((name) => lines.some((line) => line.includes(`${name}(`)));
  if (lines.some((line) => line.includes("Path("))) lines.unshift("from pathlib import Path", "");
  if (coded.length) lines.unshift(`from base64 import ${coded.join(", ")}`);
  if (lines.some((line) => line.includes("Session."))) lines.splice(lines.indexOf("import pencil") + 1, 0, "from pencil.explore.session import Session");
  return `${lines.join("\n")}\n`;
}

/** The lines that give the answer of the present state, with its settings. */
export function answered(session: Session): string {
  const { model, input, state } = session, options = input.options ?? {};
  const lines = ["import pencil", "", ...own(session)], file = quoted(PICTURE);
  if (input.picture) lines.push(pictureLine(input.picture));
  const writes = model.controls.some((one) => one.name === "temperature");
  const begun = Boolean(input.text) && (model.input.picture || model.input.source) && model.output === "tokens";
  const nothing = writes && !model.input.picture && !model.input.source && !input.text;
  if (state.edits.length || begun || nothing || model.output === "vector") {
    // what `pencil.predict` does not take: edits, how an answer begins, and the vector as the page shows it
    const { picture, options: _options, ...texts } = input;
    const entries = Object.entries(texts).map(([name, value]) => `${quoted(name)}: ${quoted(value)}`);
    if (picture) entries.push(`"picture": "data:image/png;base64," + b64encode(Path(${file}).read_bytes()).decode()`);
    entries.push(`"options": {${Object.entries(options).map(([name, value]) => `${quoted(name)}: ${value}`).join(", ")}}`);
    lines.push(`session = ${opened(model, true)}`, `given = {${entries.join(", ")}}`);
    lines.push(`answer = session.answer({"input": given, "edits": [${state.edits.map(quoted).join(", ")}]})`);
    lines.push(model.output === "picture" ? `print(answer["picture"])  # as a data address` : model.output === "classes" ? `print(answer["classes"][0]["label"])` : `print(answer[${quoted(model.output === "vector" ? "vector" : "text")}])`);
    return program(lines);
  }
  const what = input.picture ? file : quoted((model.input.source ? input.source : (input.text || input.label)) ?? "");
  const settings = SETTINGS.flatMap(([name, word, off]) => (options[name] === undefined || options[name] === off ? [] : [`${word}=${options[name]}`]));
  const call = `pencil.predict(${[opened(model), ...(model.output === "picture" && !input.text && !input.label ? [] : [what]), ...settings].join(", ")})`;
  lines.push(`answer = ${call}`);
  if (model.output === "picture") lines.push(`answer.save("drawn.png")`, `print("drawn.png", answer.size)`);
  else lines.push(writes ? "print(answer.new)" : "print(answer)");
  return program(lines);
}

/** Options of the page that `pencil.predict` has too, by its word, and the value at which each does nothing. */
const SETTINGS: [string, string, number | null][] = [
  ["tokens", "max_new_tokens", null], ["temperature", "temperature", null], ["top_k", "top_k", 0], ["top_p", "top_p", 1], ["min_p", "min_p", 0],
  ["steps", "steps", null], ["guidance", "guidance", null], ["seed", "seed", null],
];

/** Put a text on the clipboard. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page from a file, or inside a notebook, may not use the clipboard by itself
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "hidden";
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}
