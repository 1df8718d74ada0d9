// Colors of the canvas and of curves, read from the style sheet, so that light and dark are defined once.
const query = matchMedia("(prefers-color-scheme: dark)");
let kept = new Map();
const watchers = new Set();
query.addEventListener("change", () => { kept = new Map(); for (const one of watchers) one(); });

export function color(name) {
  if (!kept.has(name)) kept.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return kept.get(name);
}

/** Call `action` when the theme changes; returns a function that ends this. */
export function onTheme(action) {
  watchers.add(action);
  return () => watchers.delete(action);
}

export function isDark() {
  return query.matches;
}

export function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** A color between two, `part` from 0 to 1. */
export function blend(from, to, part) {
  const a = rgb(from), b = rgb(to);
  return "#" + a.map((one, at) => Math.round(one + (b[at] - one) * part).toString(16).padStart(2, "0")).join("");
}

/** The color of the n-th server. Neighbors in the list differ as much as possible. */
export function serverColor(n) {
  const hue = (n * 137.508) % 360, light = isDark() ? 0.5 + 0.12 * (n % 3 - 1) : 0.6 + 0.1 * (n % 3 - 1);
  const part = (k) => { const x = (k + hue / 30) % 12; return light - 0.42 * Math.min(light, 1 - light) * Math.max(-1, Math.min(x - 3, 9 - x, 1)); };
  return "#" + [part(0), part(8), part(4)].map((one) => Math.round(255 * one).toString(16).padStart(2, "0")).join("");
}
