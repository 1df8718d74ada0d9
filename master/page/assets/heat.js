// Load over keys and time: a column for each reading of the loads, the keys of all tables from top to bottom.
import { blend, color, rgb } from "./theme.js";

const KEYS = 160, COLUMNS = 180;
export const PERIOD_MS = 10000;

/** The columns so far. They begin when the page is opened: the master keeps no loads of the past. */
export class Heat {
  constructor() {
    this.columns = [];
    this.sampledAt = 0;
  }

  /** Take a column, at most one in each period. Returns true if there is a new one. */
  sample(model, now) {
    if (!model.isComplete || now - this.sampledAt < PERIOD_MS) return false;
    this.sampledAt = now;
    const sums = new Float64Array(KEYS), total = model.numbers.size;
    let place = 0;
    for (const { rows } of model.ordered()) for (const n of rows) sums[Math.floor((place++ / total) * KEYS)] += model.load[n];
    this.columns.push({ at: now, sums });
    if (this.columns.length > COLUMNS) this.columns.shift();
    return true;
  }

  /** Draw all columns, the latest one at the right. Returns the highest load of a cell. */
  draw(canvas) {
    const width = (canvas.width = COLUMNS), height = (canvas.height = KEYS), context = canvas.getContext("2d");
    const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const top = Math.max(1e-9, ...this.columns.map((one) => one.sums.reduce((a, b) => Math.max(a, b), 0)));
    const tints = Array.from({ length: 32 }, (_one, at) => { const [r, g, b] = rgb(blend(color("--heat-0"), color("--heat-1"), at / 31)); return (255 << 24 | b << 16 | g << 8 | r) >>> 0; });
    this.columns.forEach(({ sums }, at) => {
      const x = width - this.columns.length + at;
      for (let y = 0; y < KEYS; y++) pixels[y * width + x] = tints[Math.floor(Math.sqrt(sums[y] / top) * 31.99)];
    });
    context.putImageData(image, 0, 0);
    return top < 1e-8 ? 0 : top;
  }
}
