// "Copy the Python": a few lines that show the same in a notebook.

import type { Session } from "./session.svelte";
import type { Input, Model } from "./types";

export const quoted = (text: string) => JSON.stringify(text);

const PICTURE = "page-picture.png";
export const OTHER_PICTURE = "other-picture.png";
const SHORT = 8000; // letters of a picture that is written into the lines themselves

/** The line that makes the file of a picture. */
export function pictureLine(picture: string, file = PICTURE): string {
  if (picture.length >= SHORT) return `# ${file}: the picture that was given to the page, under this name`;
  return `Path(${quoted(file)}).write_bytes(b64decode(${quoted(picture.split(",")[1] ?? "")}))`;
}

/** The model on screen: a run by its folder, one at a checkpoint, or the example that comes with Pencil. */
export function opened({ name, path, step }: Model): string {
  if (path === "") return "Subject.of_example().loaded";
  const folder = quoted(path ?? `runs/${name.split("@")[0]}`);
  return name.includes("@") && step !== null ? `Subject.open(${folder}, step=${step}).loaded` : folder;
}

/** The call that records an input, as `pencil.trace` takes it; `written` is what the model wrote after it. */
export function traced(model: Model, input: Input, written = "", file = PICTURE): string {
  const given = [opened(model)], text = written ? (input.text ?? "") + written : input.text;
  const put = (word: string, value: string | number | undefined) => value !== undefined && value !== "" && given.push(`${word}=${typeof value === "number" ? value : quoted(value)}`);
  if (input.picture) given.push(quoted(file));
  else if (model.input.source) given.push(quoted(input.source ?? ""));
  if (model.output === "picture") {
    put("label", input.label);
    put("prompt", input.text);
    for (const word of ["step", "steps", "guidance", "seed"]) put(word, input.options?.[word]);
  } else if (model.input.picture || model.input.source) put("text", text);
  else if (text !== undefined) given.push(quoted(text));
  return `pencil.trace(${given.join(", ")})`;
}

/** The lines of the present state and cell; a view adds its own with `more`. With `prompt` without what was written. */
export function python(session: Session, more: string[] = [], prompt = false): string {
  const { source, model, input, cell, address, answer, stale } = session;
  const lines = source.kind === "file" ? [] : ["import pencil", ""];
  if (source.kind === "file") lines.push("from pencil.tracing.file import load", "", "t = load(\"trace.safetensors\")  # the file of pencil trace --out");
  else {
    if (input.picture) lines.push(pictureLine(input.picture));
    const writes = model.controls.some((one) => one.name === "temperature");
    lines.push(`t = ${traced(model, input, writes && !prompt && !stale ? answer?.text : "")}`);
  }
  for (const edit of address.edits) {
    const cut = edit.lastIndexOf("=");
    lines.push(`t = t.edit(${quoted(edit.slice(0, cut))}, ${edit.slice(cut + 1)})`);
  }
  if (more.length) lines.push(...more);
  else if (cell) lines.push(`print(t[${quoted(cell)}])`);
  if (lines.some((line) => line.includes("b64decode"))) lines.unshift("from base64 import b64decode", "from pathlib import Path", "");
  if (lines.some((line) => line.includes("Subject."))) lines.splice(lines.indexOf("import pencil") + 1, 0, "from pencil.explore.subject import Subject");
  return `${lines.join("\n")}\n`;
}

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
