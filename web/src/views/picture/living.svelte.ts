// The picture of the present trace, and what it all meant for one number; both change together, so that nothing on it is of two inputs.

import { float32s, uint8s } from "../../lib/bytes";
import { problem, session } from "../../lib/session.svelte";
import type { Problem } from "../../lib/source";
import type { Picture, PictureOf } from "../../lib/types";
import { weightsOf, type Chosen, type Head } from "./layout";

const FAST = 1000; // milliseconds: an input that changes faster than this is drawn without the flow

/** The numbers of a picture, decoded once. */
export class Drawn {
  readonly chosen: Chosen;
  readonly thumbs: Uint8Array[];

  constructor(
    readonly trace: string,
    readonly picture: Picture,
    readonly of: PictureOf,
  ) {
    const rows = of.columns.map((one) => (one.rows ? float32s(one.rows) : null));
    const added = of.columns.map((one) => (one.added ? float32s(one.added) : null));
    this.chosen = { stack: of.stack, query: of.query, rows, added };
    this.thumbs = picture.columns.map((one) => uint8s(one.thumbs));
  }

  weights(column: number, head: Head): Float32Array | null {
    return weightsOf(this.chosen.rows[column], this.picture.columns[column].heads, head);
  }
}

export class Living {
  drawn = $state.raw<Drawn | null>(null);
  /** What is drawn in place of the picture, where a model's blocks declare no stream. */
  graph = $state.raw<Picture["graph"] | null>(null);
  problem = $state.raw<Problem | null>(null);
  busy = $state(false);
  /** It changes when the input did, and with it the flow through the picture begins again. */
  flow = $state(0);
  private question = "";
  private last = 0;

  async ask(key: string, cell: string, again = false): Promise<void> {
    const question = `${key} ${cell}`;
    if (question === this.question && !again) return;
    this.question = question;
    this.busy = true;
    try {
      const drawn = await session.ask(async (trace) => {
        const picture = this.drawn?.trace === trace && trace !== "file" ? this.drawn.picture : await session.source.picture(trace);
        if (picture.graph) return picture.graph;
        return new Drawn(trace, picture, await session.source.pictureOf(trace, cell));
      });
      if (this.question !== question) return;
      this.problem = null;
      if (!(drawn instanceof Drawn)) {
        this.graph = drawn;
        this.drawn = null;
        return;
      }
      this.graph = null;
      if (drawn.trace !== this.drawn?.trace) {
        const now = performance.now();
        if (now - this.last > FAST) this.flow++;
        this.last = now;
      }
      this.drawn = drawn;
    } catch (error) {
      if (this.question !== question || error instanceof DOMException) return;
      this.question = "";
      this.drawn = null;
      this.problem = problem(error);
    } finally {
      if (this.question === question || !this.question) this.busy = false;
    }
  }
}
