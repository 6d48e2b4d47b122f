// The views of the page, in their groups. A view is one line here and one component beside this file.

import type { Component } from "svelte";
import type { Source } from "../lib/source";
import type { Model } from "../lib/types";
import Compare from "./Compare.svelte";
import Documents from "./Documents.svelte";
import Katas from "./Katas.svelte";
import Change from "./Change.svelte";
import Learn from "./Learn.svelte";
import Look from "./Look.svelte";
import Numbers from "./Numbers.svelte";
import Share from "./Share.svelte";
import Training from "./Training.svelte";
import TourOfModel from "./TourOfModel.svelte";
import Heads from "./Heads.svelte";

export type Group = "look" | "inside" | "try" | "lessons";

export type View = {
  id: string; // its name in the address
  title: string;
  group: Group | null; // null: a button leads to it
  component: Component;
  needs: "answer" | "trace" | "nothing"; // what is computed before it is shown
  receipts: boolean; // whether a number of it opens the drawer with its receipt
  when?: (source: Source, model: Model) => boolean; // where it has nothing to show it has no tab
};

export const GROUPS: { id: Group; title: string }[] = [
  { id: "look", title: "Look" },
  { id: "inside", title: "Inside" },
  { id: "try", title: "Try" },
  { id: "lessons", title: "Lessons" },
];

export const VIEWS: View[] = [
  { id: "look", title: "Look", group: "look", component: Look, needs: "answer", receipts: true, when: (source) => source.can("answer") },
  { id: "numbers", title: "Numbers", group: "inside", component: Numbers, needs: "trace", receipts: true },
  { id: "heads", title: "Heads", group: "inside", component: Heads, needs: "trace", receipts: true, when: (source) => source.can("attention") },
  { id: "change", title: "Change", group: "try", component: Change, needs: "nothing", receipts: true, when: (source) => source.can("edit") },
  { id: "compare", title: "Compare", group: "try", component: Compare, needs: "trace", receipts: true, when: (source) => source.can("compare") },
  { id: "learn", title: "Learn", group: "try", component: Learn, needs: "nothing", receipts: true, when: (source) => source.can("learning") },
  { id: "training", title: "Training", group: "try", component: Training, needs: "answer", receipts: true, when: (source) => source.can("training") },
  { id: "tour", title: "Tour", group: "lessons", component: TourOfModel, needs: "trace", receipts: false, when: (source) => source.can("tour") },
  { id: "documents", title: "Documents", group: "lessons", component: Documents, needs: "nothing", receipts: false, when: (source) => source.can("documents") },
  { id: "katas", title: "Katas", group: "lessons", component: Katas, needs: "nothing", receipts: false, when: (source) => source.can("katas") },
  { id: "share", title: "Share", group: null, component: Share, needs: "nothing", receipts: false, when: (source) => source.can("answer") || source.can("export") },
];
