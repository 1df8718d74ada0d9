// Regions in transition, the oldest first, and the stream of steps.
import { clock, count, duration, el, foot, number, replace, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";
import { regionOf } from "./regions.js";

const SHOWN = 200;
/** Transitions on a page (master/page/transitions.py). */
const PAGE = 50;

export function transitions(main, state) {
  const list = el("div"), sum = el("p", { class: "sum" }), pager = el("div"), stream = el("div");
  let isPaused = false, wanted = "", steps = [];
  const pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => { isPaused = !isPaused; pause.setAttribute("aria-pressed", String(isPaused)); if (!isPaused) { steps = state.steps; show(); } } }, "pause");
  const filter = el("input", { type: "search", placeholder: "region, server, cause", "aria-label": "Filter the steps", oninput: () => { wanted = filter.value.trim().toLowerCase(); show(); } });
  const order = { column: 3, down: true };
  let first = 0, found = null, now = 0; // one time for all rows of a drawing
  main.append(el("h1", null, "Transitions"), el("p", { class: "lead" }, "Every region that is on its way, by the age of its transition: not of its present state, and not of this page."),
    sum, pager, list, el("h2", null, "Steps"), el("div", { class: "bar" }, filter, pause), stream, foot("rk watch", "rk why TABLE:KEY", "rk history --follow"));

  const columns = [
    { name: "region", wrap: true, order: "region", cell: (one) => el("a", { href: "#/region/" + encodeURIComponent(regionOf(one.key)), "data-focus": one.key }, el("code", null, one.key)) },
    { name: "table", order: "table", cell: (one) => visible(one.table) },
    { name: "state", order: "state", cell: (one) => tag(one.state, one.parked ? "bad" : "warn") },
    { name: "age", n: true, order: "age", cell: (one) => (one.began_at_least ? "≥ " : "") + duration(now - one.began_ms) },
    { name: "in state", n: true, order: "in state", cell: (one) => duration(now - one.since_ms) },
    { name: "deadline", n: true, cell: (one) => deadline(one) },
    { name: "attempt", n: true, order: "attempt", cell: (one) => (one.attempt ? `${one.attempt} of ${one.attempts_max}` : "") },
    { name: "server", cell: (one) => state.place(one.server) },
    { name: "who must act", wide: true, cell: (one) => [one.actor ? el("b", null, one.actor) : "", one.step ? ": " + rename(visible(one.step), state) : rename(visible(one.headline || ""), state)] },
    { name: "last error", wide: true, cell: (one) => rename(visible(one.error || ""), state) },
  ];
  function deadline(one) {
    if (!one.deadline_ms) return "";
    const left = one.deadline_ms - now;
    return el("span", { title: one.at_deadline || "" }, left >= 0 ? `in ${duration(left)}` : `${duration(-left)} ago`);
  }
  const view = follow("transitions", () => ({ first, order: (order.down ? "-" : "") + columns[order.column].order }), 1000,
    (one) => { found = one; first = one.first; draw(); }, (text) => replace(list, el("p", { class: "reasons degraded" }, text)));
  const turn = (to) => { first = Math.max(0, to); view.again(); };
  const step = (text, by, isOff) => el("button", { type: "button", "data-focus": "page" + text, disabled: isOff, onclick: () => turn(by ? Math.min(first + by, 999999999) : 0) }, text);
  function draw() {
    const { total, transitions: rows } = found, end = first + PAGE;
    now = state.now();
    replace(sum, !total ? "" : `${count(total, "region is", "regions are")} in transition` + (total > PAGE ? `, shown are ${number(first + 1)} to ${number(Math.min(end, total))}` : "") + (found.age_ms > 1500 ? `; the order is ${duration(found.age_ms)} old` : ""));
    // Apart from the table, whose ages are drawn anew each second: a button that is replaced meanwhile loses its click.
    replace(pager, total > PAGE ? el("div", { class: "bar" }, step("first", 0, !first), step("← previous", -PAGE, !first), step("next →", PAGE, end >= total), step("last", 1e9, end >= total)) : "");
    if (!total) { replace(list, el("p", { class: "reasons healthy" }, "No region is in transition.")); return; }
    replace(list, table("Regions in transition", columns, rows, { sort: order, isOrdered: true, again: () => turn(0), empty: "all of these have ended" }));
  }
  function show() {
    const match = (one) => !wanted || [one[1], state.place(one[6]), one[5], one[3], one[4], one[8], one[10]].join(" ").toLowerCase().includes(wanted);
    const found = steps.filter(match).slice(-SHOWN).reverse();
    replace(stream, table("Steps", [
      { name: "time", keep: true, cell: (one) => clock(one[0]) },
      { name: "region", wrap: true, cell: (one) => el("a", { href: "#/region/" + encodeURIComponent(regionOf(one[1])), "data-focus": one[0] + one[1] + one[4] }, el("code", null, one[1])) },
      { name: "step", keep: true, cell: (one) => `${one[3] || "at rest"} → ${one[4] || "at rest"}` },
      { name: "by", cell: (one) => one[2] },
      { name: "server", keep: true, cell: (one) => state.place(one[6]) },
      { name: "cause", cell: (one) => visible(one[5]) },
      { name: "attempt", n: true, cell: (one) => one[7] || "" },
      { name: "error", wrap: true, cell: (one) => visible(one[8]) },
      { name: "cause id", cell: (one) => el("code", null, one[9]) },
    ], found, { empty: state.figures && state.figures.role !== "active" ? "only the active master knows the steps" : "no step since this page was opened" }));
  }
  return {
    figures() { if (found) draw(); },
    end: view.end,
    steps() { if (!isPaused) { steps = state.steps; show(); } },
  };
}
