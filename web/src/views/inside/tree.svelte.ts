// The tree of contributions: which parts are open, what they divide into, and the one scale of all bars.

import { SvelteMap } from "svelte/reactivity";
import type { Contributions, Part } from "../../lib/types";

type Inside = Part[] | "wait" | (string & {});

export class Tree {
  whole = $state.raw<Contributions | null>(null);
  problem = $state("");
  busy = $state(false);
  /** The largest size among the parts that were read: bars are on one scale, at every depth. */
  top = $state(0);
  private insides = new SvelteMap<string, Inside>();
  private opened = new SvelteMap<string, true>();
  private turn = 0;

  constructor(
    private readonly ask: (cell: string, against: string | null, part: string | null) => Promise<Contributions>,
    readonly open: (cell: string) => void,
  ) {}

  /** The contributions to another number; these parts are open, or else its largest head, with the tokens it read. */
  async of(cell: string, against: string | null, open: string[] | null = null): Promise<void> {
    const turn = ++this.turn;
    this.busy = true;
    this.problem = "";
    try {
      const whole = await this.ask(cell, against, null);
      if (turn !== this.turn) return;
      this.insides.clear();
      this.opened.clear();
      this.top = 0;
      this.whole = whole;
      this.measure(whole.parts);
      const head = largest(whole.parts.filter((part) => part.kind === "head" && part.parts > 0));
      if (open) {
        for (const id of open) this.opened.set(id, true);
        for (const id of open) await this.read(id);
      } else if (head) await this.unfold(head);
    } catch (error) {
      if (turn !== this.turn) return;
      this.whole = null;
      this.problem = (error as Error).message;
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  isOpen(id: string): boolean {
    return this.opened.has(id);
  }

  /** The parts that are open, and shown: not those inside a part that was closed. */
  get shown(): string[] {
    return [...this.opened.keys()].filter((id) => Array.isArray(this.insides.get(id)));
  }

  inside(id: string): Inside | undefined {
    return this.insides.get(id);
  }

  async toggle(part: Part): Promise<void> {
    if (this.opened.delete(part.id)) return;
    await this.unfold(part);
  }

  /** Open a part; a token or a patch also shows what its embedding is made of, the shortest way to the input. */
  private async unfold(part: Part): Promise<void> {
    this.opened.set(part.id, true);
    const inside = await this.read(part.id);
    if (part.kind !== "token" && part.kind !== "patch") return;
    const embedding = inside.find((one) => one.kind === "embedding" && one.parts > 0);
    if (embedding) await this.unfold(embedding);
  }

  private async read(id: string): Promise<Part[]> {
    const inside = this.insides.get(id);
    if (Array.isArray(inside)) return inside;
    const { whole, turn } = this;
    if (!whole || inside === "wait") return [];
    this.insides.set(id, "wait");
    try {
      const { parts } = await this.ask(whole.cell, whole.against, id);
      if (turn !== this.turn) return [];
      this.insides.set(id, parts);
      this.measure(parts);
      return parts;
    } catch (error) {
      if (turn === this.turn) this.insides.set(id, (error as Error).message);
      return [];
    }
  }


  private measure(parts: Part[]): void {
    this.top = parts.reduce((top, part) => Math.max(top, Number.isFinite(part.value) ? Math.abs(part.value) : 0), this.top);
  }
}

function largest(parts: Part[]): Part | undefined {
  return parts.reduce<Part | undefined>((best, part) => (!best || Math.abs(part.value) > Math.abs(best.value) ? part : best), undefined);
}
