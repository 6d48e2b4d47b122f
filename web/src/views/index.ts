// The views of the page, in the order of their tabs. A view is one line here and one component beside this file.

import type { Component } from "svelte";
import type { Source } from "../lib/source";
import type { Model } from "../lib/types";
import Answer from "./Answer.svelte";
import Compare from "./Compare.svelte";
import Katas from "./Katas.svelte";
import Knobs from "./Knobs.svelte";
import Learn from "./Learn.svelte";
import MapView from "./Map.svelte";
import Numbers from "./Numbers.svelte";
import Share from "./Share.svelte";
import Tours from "./Tours.svelte";
import Wall from "./Wall.svelte";
import Why from "./Why.svelte";

export type View = {
  id: string; // its name in the address
  title: string; // its tab
  component: Component;
  needs: "answer" | "trace" | "nothing"; // what is computed before it is shown
  receipts: boolean; // whether the panel with the receipt stands beside it
  when?: (source: Source, model: Model) => boolean; // where it has nothing to show it has no tab
};

export const VIEWS: View[] = [
  { id: "answer", title: "Answer", component: Answer, needs: "answer", receipts: true, when: (source) => source.can("answer") },
  { id: "why", title: "Why", component: Why, needs: "trace", receipts: true, when: (source) => source.can("contributions") },
  { id: "heads", title: "Heads", component: Wall, needs: "trace", receipts: true, when: (source) => source.can("attention") },
  { id: "map", title: "Map", component: MapView, needs: "trace", receipts: true },
  { id: "numbers", title: "Numbers", component: Numbers, needs: "trace", receipts: true },
  { id: "change", title: "Change", component: Knobs, needs: "nothing", receipts: true, when: (source) => source.can("edit") },
  { id: "learn", title: "Learn", component: Learn, needs: "nothing", receipts: true, when: (source) => source.can("learning") },
  { id: "compare", title: "Compare", component: Compare, needs: "trace", receipts: true, when: (source) => source.can("compare") },
  { id: "tours", title: "Tours", component: Tours, needs: "trace", receipts: true, when: (source) => source.can("tours") },
  { id: "katas", title: "Katas", component: Katas, needs: "nothing", receipts: false, when: (source) => source.can("katas") },
  { id: "share", title: "Share", component: Share, needs: "nothing", receipts: false, when: (source) => source.can("answer") || source.can("export") },
];
