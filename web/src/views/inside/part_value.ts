/** A part of a sum in a narrow column: two decimals, more where it is small. */
export function partValue(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = value === 0 ? "0" : size >= 1e5 || size < 5e-4 ? value.toExponential(0) : value.toFixed(size >= 0.1 ? 2 : 3);
  return text.replace(/-/g, "−");
}
