// Numbers of things, as a person would say them.

/** 1,234 or 12.3 M. */
export function counted(count: number): string {
  if (count < 100_000) return count.toLocaleString("en");
  const [of, letter] = count < 1e9 ? [count / 1e6, "M"] : [count / 1e9, "B"];
  return `${of < 10 ? of.toFixed(2) : of.toFixed(1)} ${letter}`;
}
