// The attention that lights patches and words, kept for the answer it belongs to.

import { float32s } from "../../lib/bytes";
import { problem, session } from "../../lib/session.svelte";
import type { Problem } from "../../lib/source";
import type { Attention, How, Light } from "../../lib/types";

export type Look = { how: How; layer: number; head: number };

/** A choice as it is written in the address: head:0:2; of mean:0:2 and rollout:0:2 the rest is kept for the way back. */
export function writtenLook({ how, layer, head }: Look): string {
  return `${how}:${layer}:${head}`;
}

export function readLook(text: string | undefined, depth: number, heads: number): Look {
  const [how, layer, head] = (text ?? "").split(":");
  const within = (value: string | undefined, count: number, other: number) =>
    value && Number(value) >= 0 && Number(value) < count ? Math.floor(Number(value)) : other;
  return {
    how: how === "head" || how === "rollout" ? how : "mean",
    layer: within(layer, depth, Math.max(0, depth - 1)),
    head: within(head, heads, 0),
  };
}

export class Lights {
  light = $state.raw<Light | null>(null);
  /** What is shown while nobody has chosen: one head where it shows more, else the mean of the last block. */
  usual = $state.raw<Look | null>(null);
  busy = $state(false);
  problem = $state.raw<Problem | null>(null);
  private values: Float32Array = new Float32Array();
  private question = "";

  /** The attention of the present state; the same question is asked once. Without a choice, one for this word. */
  async ask(look: Look | null, word: number, again = false): Promise<void> {
    const question = `${session.key} ${look ? writtenLook(look) : word}`;
    if (question === this.question && !again) return;
    this.question = question;
    this.busy = true;
    try {
      const light = look ? await this.read(look) : await this.begin(word, () => this.question === question);
      if (this.question !== question) return;
      this.values = float32s(light.rows);
      this.light = light;
      this.problem = null;
    } catch (error) {
      if (this.question !== question) return;
      this.light = null;
      this.problem = error instanceof DOMException ? null : problem(error);
    }
    this.busy = false;
  }

  private read({ how, layer, head }: Look): Promise<Light> {
    return session.ask((trace) => session.source.light(trace, how === "rollout" ? null : layer, how === "head" ? head : null, how));
  }

  /** The head that attends most to the patches from this word, where the server names it; else the mean of the last block. */
  private async begin(word: number, present: () => boolean): Promise<Light> {
    let look = readLook(undefined, session.model.depth, session.model.heads);
    let light = await this.read(look);
    const leading = light.leading?.[word];
    if (leading) {
      const one: Look = { how: "head", layer: leading[0], head: leading[1] };
      const headLight = await this.read(one).catch(() => null); // a file may hold the mean alone
      if (headLight) [look, light] = [one, headLight];
    }
    if (present()) this.usual = look;
    return light;
  }

  /** Forget what belongs to an earlier answer. */
  clear(): void {
    this.question = "";
    this.light = this.problem = null;
    this.busy = false;
  }

  /** The attention of one word to every patch or key. */
  row(word: number): Float32Array | null {
    if (!this.light || word < 0 || word >= this.light.words.length) return null;
    return this.values.subarray(word * this.light.patches, (word + 1) * this.light.patches);
  }

  /** The attention of every word to one patch or key. */
  column(key: number): number[] | null {
    const { light } = this;
    return light && key < light.patches ? light.words.map((_, word) => this.values[word * light.patches + key]) : null;
  }
}

/** The recorded pattern of a block: of the source, where the model reads one. */
export function patternOf({ groups }: Attention, layer: number): string | null {
  const group = groups.find((one) => one.name === "cross") ?? groups.find((one) => one.name === "") ?? groups[0];
  return group?.layers.find((one) => one.layer === layer)?.name ?? null;
}
