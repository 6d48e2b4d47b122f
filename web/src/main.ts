// The page begins here: over the data inside it, or over the server it came from.

import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { heat, scaleOf } from "./lib/colour";
import { Graph } from "./lib/evaluate/graph";
import { erf, formatNumber, WORK } from "./lib/evaluate/numbers";
import { receipt } from "./lib/evaluate/receipt";
import { FileSource } from "./lib/file";
import { events, ServerSource } from "./lib/server";
import { problem, session } from "./lib/session.svelte";
import type { Model } from "./lib/types";
import * as picture from "./views/picture/layout";

// the arithmetic by itself, for tests and for the console
Object.assign(globalThis, { pencil: { Graph, receipt, WORK, erf, formatNumber, heat, scaleOf, events, picture, session } });

async function begin(target: HTMLElement) {
  try {
    const inside = document.getElementById("graph") !== null;
    const connection = { lost: (sentence: string) => (session.lost = sentence), restarted: (models: Model[]) => session.restarted(models) };
    await session.open(inside ? await FileSource.opened() : await ServerSource.opened(connection));
  } catch (error) {
    const sentence = document.createElement("p");
    sentence.className = "wait";
    const old = typeof DecompressionStream === "undefined";
    sentence.textContent = old ? "This browser cannot open the numbers in this page; a newer one can." : problem(error).message;
    return target.replaceChildren(sentence);
  }
  // the typeface is within: words that were laid out in another would move when it is read
  await Promise.all([...document.fonts].map((face) => face.load().catch(() => undefined)));
  target.replaceChildren();
  mount(App, { target });
}

const target = document.getElementById("app");
if (target) void begin(target);
