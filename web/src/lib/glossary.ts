// The words of the field, each with its one line in docs/glossary.md, which the build reads.

import glossary from "virtual:glossary";

const LINES = new Map(Object.entries(glossary));
const plural = (word: string) => word.replace(/ies$/, "y").replace(/s$/, "");

/** The one line of a word; undefined: the glossary does not have it. */
export function definition(word: string): string | undefined {
  const bare = word.toLowerCase();
  return LINES.get(bare) ?? LINES.get(plural(bare)) ?? LINES.get(`${bare}s`);
}

const singular = [...LINES.keys()].filter((word) => /^[a-z][a-z -]{2,}$/.test(word)).map((word) => word.replace(/([^s])s$/, "$1"));
const longest = [...new Set(singular)].sort((a, b) => b.length - a.length);
const WORDS = new RegExp(`(?<![\\p{L}-])(${longest.join("|")})(s?)(?![\\p{L}-])`, "giu");

/** A text cut at the words that the glossary has, every word once; `told` are those that were marked before. */
export function marked(text: string, told: Set<string>): { text: string; term: boolean }[] {
  const parts: { text: string; term: boolean }[] = [];
  let at = 0;
  for (const match of text.matchAll(WORDS)) {
    const word = match[1].toLowerCase();
    if (told.has(word)) continue;
    told.add(word);
    parts.push({ text: text.slice(at, match.index), term: false }, { text: match[0], term: true });
    at = match.index + match[0].length;
  }
  return [...parts, { text: text.slice(at), term: false }].filter((part) => part.text);
}
