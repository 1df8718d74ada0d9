// The map of all regions in key order.
import { count, duration, el, foot, key, number, replace, size, visible } from "./dom.js";
import { PERIOD_MS } from "./heat.js";
import { MODES, RegionMap } from "./map.js";
import { GONE, STATES } from "./model.js";
import { color, onTheme, serverColor } from "./theme.js";

export function regions(main, state) {
  const model = state.model;
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": "Map of regions in key order. Arrow keys move, with Shift they mark a range, Enter opens a region." });
  const tip = el("div", { class: "tip", hidden: true });
  const sum = el("p", { class: "sum", role: "status" }), legend = el("div");
  const map = new RegionMap(canvas, model);
  let version = model.version, range = null;
  const heat = el("canvas", { class: "heat", role: "img", "aria-label": "Load by key and time" }), heatText = el("p", { class: "sum" });
  const find = el("input", { type: "search", placeholder: "table:key or region id", "aria-label": "Find a region", size: 24 });
  const modes = MODES.map((mode) => el("button", { type: "button", "aria-pressed": String(mode === map.mode), onclick: () => { map.mode = mode; select(null); modes.forEach((one, at) => one.setAttribute("aria-pressed", String(MODES[at] === mode))); again(); } }, mode));
  main.append(el("h1", null, "Regions"), el("p", { class: "lead" }, "One cell is one region (of a replicated table: one tablet, at its leader), in key order. Red is not served."),
    el("div", { class: "bar" }, el("span", { role: "group", "aria-label": "Color by", class: "bar" }, "color by", modes), find), legend, sum,
    el("div", { class: "card map" }, canvas, tip), el("h2", null, "Load by key and time"), heatText, el("div", { class: "card map" }, heat), foot("rk region list TABLE", "rk table show TABLE", "rk why TABLE:KEY"));

  /** Mark the cells between two places of the map, or none. Other cells are drawn faint. */
  function select(ends) {
    range = ends && [Math.min(...ends), Math.max(...ends)];
    map.only = range && ((n) => map.at[n] >= range[0] && map.at[n] <= range[1]);
  }
  function sumOfRange() {
    const rows = [...map.sequence.subarray(range[0], range[1] + 1)];
    const open = rows.filter((n) => model.state[n] === 0).length, bytes = rows.reduce((sum, n) => sum + Math.max(0, model.size[n]), 0), load = rows.reduce((sum, n) => sum + model.load[n], 0);
    return `${count(rows.length, "region", "regions")}, ${visible(state.tableName(model.tables[model.table[rows[0]]]))} from ${key(model.start[rows[0]])} to ${visible(state.tableName(model.tables[model.table[rows[rows.length - 1]]]))} ${key(model.start[rows[rows.length - 1]])}: ${number(open)} open, ${size(bytes)}, ${number(load)} requests/s. Escape ends the selection.`;
  }
  function drawHeat() {
    const top = state.heat.draw(heat);
    heatText.textContent = state.heat.columns.length ? `Keys of all tables from top to bottom, a column each ${PERIOD_MS / 1000} s since this page was opened; the warmest cell has ${number(top)} requests/s.` : "The first column comes soon.";
  }
  const again = () => { map.layout((id) => state.tableName(id)); tell(); };
  const silent = () => new Set(state.figures ? model.servers.map((uuid, at) => [uuid, at]).filter(([uuid]) => state.figures.servers.some((one) => one.uuid === uuid && (one.state === "silent" || one.state === "gone"))).map(([, at]) => at) : []);

  function tell() {
    if (map.mode === "server") {
      const counts = new Int32Array(model.servers.length + 1);
      for (let n = 0; n < model.length; n++) if (model.state[n] !== GONE) counts[model.server[n] + 1]++;
      const found = [...counts].map((regions, at) => [at - 1, regions]).filter(([, regions]) => regions).slice(0, 60);
      items(found.map(([at, regions]) => [at < 0 ? "on no server" : state.place(model.servers[at]), at < 0 ? color("--s-closed") : serverColor(at), regions]));
    } else if (map.mode === "size") {
      items([["small", color("--ramp-0")], [`large, up to ${size(map.top)}`, color("--ramp-1")], ["not measured", color("--s-unknown")]]);
    } else if (map.mode === "load") {
      items([["no requests", color("--heat-0")], [`up to ${number(map.top)} requests/s`, color("--heat-1")], ["not served", color("--s-bad")]]);
    } else if (map.mode === "time in state") {
      items([["open", color("--heat-0")], ["in another state for 1 minute or more", color("--heat-1")]]);
    } else {
      const counts = model.counts();
      items(STATES.map((one, at) => [one.name, color(one.color), counts[at]]).filter((one, at) => at !== GONE && (one[2] || at === 0)));
    }
    const loaded = model.isComplete ? "" : ", loading";
    sum.textContent = range && map.sequence && range[1] < map.sequence.length ? sumOfRange() : sumOf(map.cursor) || count(model.numbers.size, "region", "regions") + loaded;
  }

  function items(list) {
    replace(legend, el("ul", { class: "legend", "aria-label": "Legend" }, list.map(([name, tint, regions]) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = tint;
      return el("li", null, swatch, regions === undefined ? name : `${name} ${number(regions)}`);
    })));
    legend.querySelectorAll(".swatch").forEach((one, at) => { one.style.background = list[at][1]; });
  }

  function sumOf(n) {
    if (n < 0 || n >= model.length) return "";
    const age = model.since[n] ? `, for ${duration(state.now() - model.since[n])}` : "";
    const bytes = (model.size[n] >= 0 ? `, ${size(model.size[n])}` : "") + (model.load[n] ? `, ${number(model.load[n])} requests/s` : "");
    return `${visible(state.tableName(model.tables[model.table[n]]))} from ${key(model.start[n])}: ${STATES[model.state[n]].name}${age}${model.server[n] >= 0 ? ` on ${state.place(model.servers[model.server[n]])}` : ""}${bytes} (${model.key[n]})`;
  }

  const open = (n) => { if (n >= 0) location.hash = "#/region/" + encodeURIComponent(regionOf(model.key[n])); };
  const point = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  let from = -1, hasMoved = false;
  canvas.addEventListener("mousedown", (event) => { const n = map.rowAt(...point(event)); from = n < 0 ? -1 : map.at[n]; hasMoved = false; });
  canvas.addEventListener("mousemove", (event) => {
    const [x, y] = point(event), n = map.rowAt(x, y);
    if (event.buttons === 1 && from >= 0 && n >= 0 && map.at[n] !== from) { hasMoved = true; select([from, map.at[n]]); map.draw(state.now()); tell(); }
    tip.hidden = n < 0;
    if (n < 0) return;
    tip.textContent = sumOf(n);
    tip.style.left = Math.min(x + 14, Math.max(0, canvas.clientWidth - 260)) + "px";
    tip.style.top = y + 18 + "px";
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => { if (!hasMoved) open(map.rowAt(...point(event))); });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [1], ArrowLeft: [-1], ArrowDown: [1, true], ArrowUp: [-1, true], Home: [-1e9], End: [1e9] };
    if (event.key in moves && map.sequence && map.sequence.length) {
      const before = map.cursor < 0 ? 0 : map.at[map.cursor], held = range ? (range[0] === before ? range[1] : range[0]) : before;
      map.move(...moves[event.key]);
      select(event.shiftKey ? [held, map.at[map.cursor]] : null);
      map.draw(state.now());
      tell();
      event.preventDefault();
    }
    if (event.key === "Escape" && range) { select(null); map.draw(state.now()); tell(); }
    if (event.key === "Enter") open(map.cursor);
  });
  find.addEventListener("change", () => {
    const wanted = find.value.trim();
    if (model.numbers.has(wanted)) { open(model.numbers.get(wanted)); return; }
    for (const [name, n] of model.numbers) if (wanted && name.startsWith(wanted)) { open(n); return; }
    if (model.keysHidden) { sum.textContent = wanted ? "Keys are hidden: find a region by its id." : ""; return; }
    const cut = wanted.indexOf(":"), name = cut < 0 ? wanted : wanted.slice(0, cut), where = cut < 0 ? "" : wanted.slice(cut + 1);
    for (const { table, rows } of model.ordered()) {
      if (state.tableName(model.tables[table]) !== name) continue;
      let found = -1;
      for (const n of rows) if (model.start[n] <= where) found = n;
      open(found);
      return;
    }
    sum.textContent = wanted ? `There is no region ${wanted}.` : "";
  });
  const resize = new ResizeObserver(() => { if (Math.abs(canvas.clientWidth - map.width) > 1) again(); });
  resize.observe(canvas);
  const noTheme = onTheme(again);
  drawHeat();
  map.drawn = (began) => {
    state.drawnAt = drawnAt = performance.now();
    state.frameMs = Math.max(state.frameMs, drawnAt - began);
  };
  let drawnAt = -1e9, late = 0, wasComplete = model.isComplete;
  return {
    rows() {
      const began = performance.now();
      // A new order of many regions is drawn twice a second, so that frames stay short.
      const isLarge = model.length > 20000 && model.isReordered && map.at && version === model.version;
      const isLast = model.isComplete && !wasComplete; // of a snapshot: shown at once
      wasComplete = model.isComplete;
      if (!isLast && (!model.isComplete || isLarge) && model.length && began - drawnAt < 500) { if (!late) late = setTimeout(() => { late = 0; this.rows(); }, 500); return; }
      if (version !== model.version || model.isReordered || !map.at) { if (version !== model.version) { map.cursor = -1; select(null); } version = model.version; again(); } else { map.update(model.changed, state.now()); tell(); }
      drawnAt = performance.now();
      state.frameMs = Math.max(state.frameMs, drawnAt - began);
      if (!map.pending) state.drawnAt = drawnAt;
    },
    figures() {
      const found = silent();
      const isOther = found.size !== map.silent.size || [...found].some((one) => !map.silent.has(one));
      map.silent = found;
      if (isOther || map.mode === "time in state" || map.mode === "load") map.draw(state.now());
      tell();
    },
    heat: drawHeat,
    end() { clearTimeout(late); cancelAnimationFrame(map.pending); resize.disconnect(); noTheme(); },
  };
}

/** The region's id in a replica's key. */
export function regionOf(name) {
  return name.replace(/-\d+$/, "");
}
