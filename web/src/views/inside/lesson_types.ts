// What the server returns of documents and katas.

export type Grid = { where: string; rows: (number | string)[][]; down: string[]; across: string[] };
export type Shown = { symbol: string; source: string; name: string; ours: string; formula: string; meaning: string; shape: number[]; axes: string[]; cut: string; grids: Grid[] };
export type Unfolded = { title: string; lines: string[]; command: string };
export type Printed = { printed: string; true: string; verdict: string; note: string };
export type Compared = { name: string; formula: string; line: number; where: string; rows: Printed[][] };
export type Claim = { line: number; text: string; verdict: string; values: string; note: string; command: string };
export type Figure = { caption: string; command: string };
export type Section = {
  title: string; level: number; about: string; text: string; then: string; skipped: string;
  shown: Shown[]; unfolded: Unfolded[]; compared: Compared[]; claims: Claim[]; corrections: [number, string][];
  katas: string[]; figures: Figure[];
};
export type DocumentOf = { number: string; title: string; credit: string; sections: Section[] };
export type DocumentName = { number: string; title: string; sections: number };

export type KataName = { name: string; title: string; topic: string; due: string; attempts: number; solved: number; seen: number; wrong: number };
export type KataList = { katas: KataName[]; next: string | null };
export type Given = { name: string; rows: string[][]; across: string[]; down: string[] };
export type Question = {
  kata: string; title: string; topic: string; seed: number | null; drawing: string; given: Given[]; ask: string;
  digits: string; choices: string[]; blanks: { label: string; decimals: number; words: boolean }[]; rows: [string, number][]; across: string[]; tries_left: number;
};
export type Graded = { right: boolean[]; unread: number[]; solved: boolean; hint: { name: string; hint: string } | null; tries_left: number; outcome: string | null; due: string };
export type Working = { answers: string[]; working: string[]; outcome: string | null; due: string };
