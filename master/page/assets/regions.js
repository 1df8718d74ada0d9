// The map of all regions in key order.
import { count, duration, el, foot, key, number, replace, size, visible } from "./dom.js";
import { MODES, RegionMap } from "./map.js";
import { GONE, STATES } from "./model.js";
import { color, onTheme, serverColor } from "./theme.js";

export function regions(main, state) {
  const model = state.model;
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": "Map of regions in key order. Arrow keys move, Enter opens a region." });
  const tip = el("div", { class: "tip", hidden: true });
  const sum = el("p", { class: "sum", role: "status" }), legend = el("div");
  const map = new RegionMap(canvas, model);
  let only = null, version = model.version;
  const find = el("input", { type: "search", placeholder: "table:key or region id", "aria-label": "Find a region", size: 24 });
  const modes = MODES.map((mode) => el("button", { type: "button", "aria-pressed": String(mode === map.mode), onclick: () => { map.mode = mode; only = null; filter(); modes.forEach((one, at) => one.setAttribute("aria-pressed", String(MODES[at] === mode))); again(); } }, mode));
  main.append(el("h1", null, "Regions"), el("p", { class: "lead" }, "One cell is one region (of a replicated table: one tablet, at its leader), in key order. Red is not served."),
    el("div", { class: "bar" }, el("span", { role: "group", "aria-label": "Color by", class: "bar" }, "color by", modes), find), legend, sum,
    el("div", { class: "card map" }, canvas, tip), foot("rk region list TABLE", "rk table show TABLE", "rk why TABLE:KEY"));

  const filter = () => { map.only = only; };
  const again = () => { map.layout((id) => state.tableName(id)); tell(); };
  const silent = () => new Set(state.figures ? model.servers.map((uuid, at) => [uuid, at]).filter(([uuid]) => state.figures.servers.some((one) => one.uuid === uuid && (one.state === "silent" || one.state === "gone"))).map(([, at]) => at) : []);

  function tell() {
    if (map.mode === "server") {
      const counts = new Map();
      for (let n = 0; n < model.length; n++) if (model.state[n] !== GONE) counts.set(model.server[n], (counts.get(model.server[n]) || 0) + 1);
      const found = [...counts].sort((a, b) => a[0] - b[0]).slice(0, 60);
      items(found.map(([at, regions]) => [at < 0 ? "on no server" : state.place(model.servers[at]), at < 0 ? color("--s-closed") : serverColor(at), regions]));
    } else if (map.mode === "size") {
      items([["small", color("--ramp-0")], [`large, up to ${size(map.top)}`, color("--ramp-1")], ["not measured", color("--s-unknown")]]);
    } else if (map.mode === "time in state") {
      items([["open", color("--heat-0")], ["in another state for 1 minute or more", color("--heat-1")]]);
    } else {
      const counts = model.counts();
      items(STATES.map((one, at) => [one.name, color(one.color), counts[at]]).filter((one, at) => at !== GONE && (one[2] || at === 0)));
    }
    const loaded = model.isComplete ? "" : ", loading";
    sum.textContent = sumOf(map.cursor) || count(model.numbers.size, "region", "regions") + loaded;
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
    const bytes = model.size[n] >= 0 ? `, ${size(model.size[n])}` : "";
    return `${visible(state.tableName(model.tables[model.table[n]]))} from ${key(model.start[n])}: ${STATES[model.state[n]].name}${age}${model.server[n] >= 0 ? ` on ${state.place(model.servers[model.server[n]])}` : ""}${bytes} (${model.key[n]})`;
  }

  const open = (n) => { if (n >= 0) location.hash = "#/region/" + encodeURIComponent(regionOf(model.key[n])); };
  const point = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("mousemove", (event) => {
    const [x, y] = point(event), n = map.rowAt(x, y);
    tip.hidden = n < 0;
    if (n < 0) return;
    tip.textContent = sumOf(n);
    tip.style.left = Math.min(x + 14, Math.max(0, canvas.clientWidth - 260)) + "px";
    tip.style.top = y + 18 + "px";
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => open(map.rowAt(...point(event))));
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [1], ArrowLeft: [-1], ArrowDown: [1, true], ArrowUp: [-1, true], Home: [-1e9], End: [1e9] };
    if (event.key in moves) { map.move(...moves[event.key]); map.draw(state.now()); sum.textContent = sumOf(map.cursor); event.preventDefault(); }
    if (event.key === "Enter") open(map.cursor);
  });
  find.addEventListener("change", () => {
    const wanted = find.value.trim();
    if (model.numbers.has(wanted)) { open(model.numbers.get(wanted)); return; }
    for (const [name, n] of model.numbers) if (wanted && name.startsWith(wanted)) { open(n); return; }
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
  let drawnAt = -1e9;
  return {
    rows() {
      const began = performance.now();
      if (!model.isComplete && model.length && began - drawnAt < 400) return;
      if (version !== model.version || model.isReordered || !map.at) { version = model.version; map.cursor = -1; again(); } else map.update(model.changed, state.now());
      drawnAt = performance.now();
      state.frameMs = Math.max(state.frameMs || 0, drawnAt - began);
      tell();
    },
    figures() {
      const found = silent();
      const isOther = found.size !== map.silent.size || [...found].some((one) => !map.silent.has(one));
      map.silent = found;
      if (isOther || map.mode === "time in state") map.draw(state.now());
      tell();
    },
    end() { resize.disconnect(); noTheme(); },
  };
}

/** The region's id in a replica's key. */
export function regionOf(name) {
  return name.replace(/-\d+$/, "");
}
