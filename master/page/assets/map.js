// The map of regions: one cell a region, in key order, one block a table. Drawn by hand: 100,000 cells, many times a second.
import { STATES, GONE } from "./model.js";
import { blend, color, rgb, serverColor } from "./theme.js";

const HEAD = 22, GAP = 10;
/** So many cells are laid out in one frame, and drawn in the next one. */
const MANY = 20000;
export const MODES = ["state", "server", "time in state", "size", "load"];

export class RegionMap {
  constructor(canvas, model) {
    this.canvas = canvas;
    this.model = model;
    this.context = canvas.getContext("2d");
    this.mode = "state";
    this.only = null; // a test of rows: others are drawn faint
    this.silent = new Set(); // indices of silent servers
    this.blocks = [];
    this.cursor = -1;
    this.width = 0;
    this.pending = 0; // the frame in which everything will be drawn
    this.drawn = () => {}; // called with the time at which such a drawing began
  }

  /** Lay all tables out for the present width, and draw everything: many cells in the next frame. */
  layout(tableName) {
    const model = this.model;
    const width = this.canvas.clientWidth || 300;
    const total = model.numbers.size;
    const cell = total <= 400 ? 18 : total <= 4000 ? 11 : total <= 20000 ? 7 : 4;
    const columns = Math.max(1, Math.floor(width / cell));
    this.cell = cell;
    this.at = new Int32Array(model.length).fill(-1);
    this.sequence = new Int32Array(total);
    this.blocks = [];
    let y = 0, place = 0;
    const groups = model.ordered().map((one) => ({ ...one, name: tableName(model.tables[one.table]) })).sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const { name, rows } of groups) {
      const lines = Math.ceil(rows.length / columns);
      this.blocks.push({ name, y, top: y + HEAD, columns, first: place, count: rows.length });
      for (const row of rows) { this.sequence[place] = row; this.at[row] = place++; }
      y += HEAD + lines * cell + GAP;
    }
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.ratio = ratio;
    this.width = width;
    const wide = Math.round(width * ratio), high = Math.round(Math.max(60, y) * ratio);
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.style.height = Math.max(60, y) + "px";
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    if (total <= MANY) { this.draw(); return; }
    this.pending = requestAnimationFrame(() => {
      const began = performance.now();
      this.pending = 0;
      this.draw();
      this.drawn(began);
    });
  }

  prepare(now) {
    const value = (one) => pack(color(one.color));
    this.now = now;
    this.none = pack(color("--s-none"));
    this.stateColors = STATES.map(value);
    this.bad = pack(color("--s-bad"));
    this.ramp = ramp(color("--ramp-0"), color("--ramp-1"));
    this.heat = ramp(color("--heat-0"), color("--heat-1"));
    this.serverColors = this.model.servers.map((_one, at) => pack(serverColor(at)));
    let top = 1;
    const measured = this.mode === "size" ? this.model.size : this.mode === "load" ? this.model.load : [];
    if (measured.length) for (let n = 0; n < this.model.length; n++) if (measured[n] > top) top = measured[n];
    this.top = top;
  }

  /** Packed color of a row. */
  colorOf(n) {
    const model = this.model, state = model.state[n];
    if (state === GONE) return this.none;
    if (this.only && !this.only(n)) return this.faint;
    const isOut = STATES[state].bad || this.silent.has(model.server[n]);
    if (this.mode === "server") return isOut && state !== 4 ? this.bad : model.server[n] < 0 ? this.stateColors[1] : this.serverColors[model.server[n]];
    if (this.mode === "size") return model.size[n] < 0 ? this.stateColors[9] : this.ramp[Math.floor(Math.sqrt(model.size[n] / this.top) * 31.99)];
    if (this.mode === "load") return isOut ? this.bad : this.heat[Math.min(31, Math.floor(Math.sqrt(model.load[n] / this.top) * 31.99))];
    if (this.mode === "time in state") {
      if (state === 0 && !this.silent.has(model.server[n])) return this.heat[0];
      const s = Math.max(0, this.now - model.since[n]) / 1000;
      return this.heat[Math.max(4, Math.min(31, Math.floor(8 * Math.log10(1 + s * 3))))];
    }
    return this.silent.has(model.server[n]) && state === 0 ? this.bad : this.stateColors[state];
  }

  draw(now = Date.now()) {
    const { canvas, context, ratio } = this;
    if (!this.at || !canvas.width) return;
    this.prepare(now);
    this.faint = pack(blend(color("--line"), color("--bg"), 0.5));
    if (!this.image || this.image.width !== canvas.width || this.image.height !== canvas.height) this.image = context.createImageData(canvas.width, canvas.height);
    const image = this.image, pixels = new Uint32Array(image.data.buffer);
    pixels.fill(pack(color("--card")));
    const stride = canvas.width, side = Math.round(this.cell * ratio), inner = Math.max(1, side - (this.cell > 4 ? Math.round(ratio) : ratio > 1 ? 1 : 0));
    for (const block of this.blocks) {
      let line = Math.round(block.top * ratio) * stride;
      for (let i = 0; i < block.count; line += side * stride) {
        // One line of pixels for a line of cells, equal neighbors at once where there is no gap; then its copies.
        const end = Math.min(block.count, i + block.columns);
        let at = line;
        while (i < end) {
          const packed = this.colorOf(this.sequence[block.first + i]);
          let run = 1;
          if (inner === side) while (i + run < end && this.colorOf(this.sequence[block.first + i + run]) === packed) run++;
          pixels.fill(packed, at, at + (run - 1) * side + inner);
          at += run * side;
          i += run;
        }
        for (let y = 1; y < inner; y++) pixels.copyWithin(line + y * stride, line, at);
      }
    }
    context.putImageData(image, 0, 0);
    context.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    context.fillStyle = color("--ink");
    for (const block of this.blocks) context.fillText(`${block.name}`.slice(0, 80) + `  ${block.count.toLocaleString("en-US")}`, 0, (block.y + 15) * ratio);
    this.mark();
  }

  /** Draw only the changed rows. Returns false if the layout is outdated. */
  update(changed, now) {
    if (this.model.isReordered || !this.at) return false;
    if (this.pending) return true; // its cells will be drawn with all others
    if (changed.size > 20000) { this.draw(now); return true; }
    this.now = now;
    if (this.serverColors.length < this.model.servers.length) this.prepare(now);
    const side = Math.round(this.cell * this.ratio), inner = Math.max(1, side - (this.cell > 4 ? Math.round(this.ratio) : this.ratio > 1 ? 1 : 0));
    for (const n of changed) {
      const [x, y] = this.corner(n);
      if (x < 0) continue;
      this.context.fillStyle = css(this.colorOf(n));
      this.context.fillRect(x, y, inner, inner);
    }
    this.mark();
    return true;
  }

  /** Upper left corner of a row's cell in pixels of the canvas; [-1, -1] if it has none. */
  corner(n) {
    const place = n < this.at.length ? this.at[n] : -1;
    if (place < 0) return [-1, -1];
    const block = this.blockOf(place), i = place - block.first, side = Math.round(this.cell * this.ratio);
    return [(i % block.columns) * side, Math.round(block.top * this.ratio) + Math.floor(i / block.columns) * side];
  }

  blockOf(place) {
    let low = 0, high = this.blocks.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.blocks[middle].first <= place) low = middle; else high = middle - 1; }
    return this.blocks[low];
  }

  /** The row at a point of the element, or -1. */
  rowAt(x, y) {
    for (const block of this.blocks) {
      const side = Math.round(this.cell * this.ratio) / this.ratio;
      const line = Math.floor((y - block.top) / side), column = Math.floor(x / side);
      if (line < 0 || column >= block.columns) continue;
      const i = line * block.columns + column;
      if (i < block.count) return this.sequence[block.first + i];
    }
    return -1;
  }

  mark() {
    const row = this.cursor;
    if (row < 0) return;
    const [x, y] = this.corner(row);
    if (x < 0) return;
    const side = Math.round(this.cell * this.ratio);
    this.context.strokeStyle = color("--ink");
    this.context.lineWidth = 2 * this.ratio;
    this.context.strokeRect(x, y, side - this.ratio, side - this.ratio);
  }

  /** Move the cursor by a number of cells in key order, or to a row of cells above or below. */
  move(by, isLine) {
    if (!this.sequence || !this.sequence.length) return -1;
    let place = this.cursor < 0 ? -1 : this.at[this.cursor];
    const columns = place < 0 ? 1 : this.blockOf(place).columns;
    place = Math.max(0, Math.min(this.sequence.length - 1, place < 0 ? 0 : place + by * (isLine ? columns : 1)));
    this.cursor = this.sequence[place];
    return this.cursor;
  }
}

function pack(hex) {
  const [r, g, b] = rgb(hex.length === 4 ? "#" + [...hex.slice(1)].map((one) => one + one).join("") : hex);
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
}

function css(packed) {
  return `rgb(${packed & 255},${(packed >> 8) & 255},${(packed >> 16) & 255})`;
}

function ramp(from, to) {
  return Array.from({ length: 32 }, (_one, at) => pack(blend(from, to, at / 31)));
}
