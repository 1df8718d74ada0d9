// Activations and failovers phase by phase, and drills as time lines.
import { clock, duration, el, foot, number, replace, svg, table, tag, visible } from "./dom.js";
import { follow, get } from "./data.js";

const TINTS = ["--accent", "--s-moving", "--s-open", "--s-closing", "--s-parked", "--s-unknown", "--s-offline"];
const VERDICTS = { held: "good", broken: "bad", failed: "bad", interrupted: "warn", unfinished: "warn" };

export function runs(main, state, id) {
  return id ? drill(main, state, id) : all(main, state);
}

function all(main, state) {
  const list = el("div"), drills = el("div");
  main.append(el("h1", null, "Runs and drills"), el("h2", null, "Drills"), el("p", { class: "lead" }, "Failures on purpose: struck, noticed, reassigned, healed."), drills,
    el("h2", null, "Runs"), el("p", { class: "lead" }, "How long masters took to become active, and bulk assignments took, phase by phase."), list, foot("rk runs", "rk drill list"));
  const a = follow("runs", () => ({}), 5000, (found) => replace(list, table("Runs", [
    { name: "when", keep: true, cell: (one) => clock(one.at_ms, true) },
    { name: "kind", cell: (one) => one.kind || one.path },
    { name: "epoch", n: true, cell: (one) => one.epoch },
    { name: "master", keep: true, cell: (one) => one.address },
    { name: "servers", n: true, cell: (one) => number(one.servers || 0) },
    { name: "replicas", n: true, cell: (one) => number(one.replicas || 0) },
    { name: "planned", n: true, cell: (one) => (one.planned ? `${number(one.planned)}${one.engine ? ` (${one.engine})` : ""}` : "") },
    { name: "took", n: true, cell: (one) => duration(one.phases.reduce((sum, phase) => sum + phase[1], 0) * 1000) },
    { name: "phases", cell: (one) => phases(one.phases) },
  ], [...found.runs].reverse(), { empty: "no run was recorded yet" })), (text) => replace(list, el("p", { class: "reasons degraded" }, text)));
  const b = follow("drills", () => ({}), 2000, (found) => replace(drills, table("Drills", [
    { name: "drill", keep: true, cell: (one) => el("a", { href: "#/runs/" + encodeURIComponent(one.drill_id), "data-focus": one.drill_id }, one.drill) },
    { name: "verdict", cell: (one) => tag(one.verdict || "unfinished", VERDICTS[one.verdict || "unfinished"]) },
    { name: "began", keep: true, cell: (one) => clock(one.began_ms, true) },
    { name: "took", n: true, cell: (one) => (one.ended_ms ? duration(one.ended_ms - one.began_ms) : "") },
    { name: "broken", wrap: true, cell: (one) => visible([one.victim, one.action].filter(Boolean).join(" ")) },
    { name: "by", cell: (one) => visible(one.by || "") },
    { name: "error", wrap: true, cell: (one) => visible(one.error || "") },
  ], [...found.drills].reverse(), { empty: "no drill was run on this cluster: rk drill server-crash" })), (text) => replace(drills, el("p", { class: "reasons degraded" }, text)));
  return { end() { a.end(); b.end(); } };
}

/** A bar whose parts are as long as the phases. */
function phases(list) {
  const total = Math.max(0.001, list.reduce((sum, one) => sum + one[1], 0)), width = 180;
  const drawing = svg("svg", { width, height: 16, viewBox: `0 0 ${width} 16`, role: "img", "aria-label": list.map(([name, s]) => `${name} ${s.toFixed(2)} s`).join(", ") });
  let x = 0;
  list.forEach(([name, s], at) => {
    const part = svg("rect", { x, y: 2, width: Math.max(1, (s / total) * width - 1), height: 12, rx: 2 }, svg("title", null, `${name}: ${duration(s * 1000)}`));
    part.style.fill = `var(${TINTS[at % TINTS.length]})`;
    drawing.append(part);
    x += (s / total) * width;
  });
  return drawing;
}

function drill(main, state, id) {
  const head = el("div"), line = el("div"), events = el("div"), report = el("div");
  main.append(el("h1", null, `Drill ${visible(id)}`), head, line, el("h2", null, "Events"), events, report, foot(`rk drill show ${id}`));
  let curves = null;
  const readCurves = () => get("curves").then((found) => { curves = found; }).catch(() => {});
  readCurves();
  const view = follow("drill", () => ({ id }), 2000, (one) => { readCurves(); show(one); }, (text) => replace(head, el("p", { class: "reasons degraded" }, text)));
  function show(one) {
    replace(head, el("p", null, tag(one.verdict || "unfinished", VERDICTS[one.verdict || "unfinished"]), ` ${visible(one.drill)}: ${visible([one.victim, one.action].filter(Boolean).join(" "))}, ${clock(one.began_ms, true)}${one.ended_ms ? `, ${duration(one.ended_ms - one.began_ms)}` : ""}${one.by ? `, by ${visible(one.by)}` : ""}`));
    const end_s = Math.max(1, one.ended_ms ? (one.ended_ms - one.began_ms) / 1000 : (state.now() - one.began_ms) / 1000, ...(one.events || []).map((each) => each[0]));
    const found = one.report || {}, outage = (found.traffic || {}).unavailability;
    replace(line, timeline(one, found.phases || [], end_s));
    replace(events, table("Events", [
      { name: "at", n: true, cell: (each) => `${each[0].toFixed(2)} s` },
      { name: "what", wrap: true, cell: (each) => visible(each[1]) },
    ], one.events || []));
    replace(report, outage ? [el("h2", null, "Unavailable to clients"), el("p", null, `${number(outage.affected)} of ${number(outage.regions)} regions; median ${duration(outage.p50_s * 1000)}, p99 ${duration(outage.p99_s * 1000)}, longest ${duration(outage.longest_s * 1000)}`),
      table("Longest outages", [
        { name: "region", wrap: true, cell: (each) => el("code", null, visible(each.region)) },
        { name: "outages", n: true, cell: (each) => each.outages },
        { name: "longest", n: true, cell: (each) => duration(each.longest_s * 1000) },
      ], (outage.per_region || []).slice(0, 20))] : "",
      (found.checks || found.invariants || []).length ? [el("h2", null, "Checks"), table("Checks", [
        { name: "check", cell: (each) => visible(each.name) }, { name: "verdict", cell: (each) => tag(each.held ? "held" : "broken", each.held ? "good" : "bad") }, { name: "detail", wrap: true, cell: (each) => visible(each.detail) },
      ], found.checks || found.invariants)] : "");
  }
  /** The band of unavailable regions above phases and events. */
  function timeline(one, list, end_s) {
    const width = 1000, top = 96, height = top + 26 * Math.max(1, list.length) + 20, x = (s) => (s / end_s) * width;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plain", role: "img", "aria-label": "Time line of the drill; the events follow as a table" });
    if (curves) {
      const values = curves.series.unavailable.map((value, at) => [(curves.first + at) - one.began_ms / 1000, value || 0]).filter(([s]) => s >= 0 && s <= end_s + 1);
      const most = Math.max(1, ...values.map(([, value]) => value));
      values.forEach(([s, value]) => { if (value) drawing.append(svg("rect", { class: "fill-bad", x: x(s), y: 80 - (value / most) * 64, width: Math.max(1, x(1) - 1), height: (value / most) * 64 }, svg("title", null, `${number(value)} regions unavailable ${s.toFixed(0)} s after the begin`))); });
      drawing.append(svg("text", { x: 0, y: 11, class: "soft" }, values.length ? `regions unavailable, by this master's own view; at most ${number(most)}` : "this master has no curve of that time"));
    }
    drawing.append(svg("line", { x1: 0, x2: width, y1: 80, y2: 80, class: "stroke-line" }));
    for (const each of one.events || []) drawing.append(svg("line", { x1: x(each[0]), x2: x(each[0]), y1: 74, y2: 88, stroke: "currentColor" }, svg("title", null, `${each[0].toFixed(2)} s: ${visible(each[1])}`)));
    list.forEach((phase, at) => {
      const rect = svg("rect", { x: x(phase.began_s), y: top + at * 26, width: Math.max(2, x(phase.seconds)), height: 18, rx: 3 });
      rect.style.fill = `var(${TINTS[at % TINTS.length]})`;
      rect.style.opacity = "0.55";
      const isLate = phase.began_s > end_s * 0.6;
      drawing.append(rect, svg("text", { x: x(phase.began_s) + (isLate ? -6 : 6), y: top + at * 26 + 14, "text-anchor": isLate ? "end" : "start" }, `${visible(phase.name)} ${duration(phase.seconds * 1000)}`));
    });
    drawing.append(svg("text", { x: width, y: height - 4, "text-anchor": "end", class: "soft" }, `${end_s.toFixed(1)} s`));
    return el("div", { class: "card" }, drawing);
  }
  return { end: view.end };
}
