// One region: what it waits for, and its life over time.
import { clock, duration, el, foot, key, replace, size, svg, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";
import { STATES } from "./model.js";
import { regionOf } from "./regions.js";

const LIFE_COLORS = { "": "--s-open", OFFLINE: "--s-offline", OPENING: "--s-moving", OPENED: "--s-moving", CLOSING: "--s-closing", CLOSED: "--s-closed" };

export function region(main, state, id) {
  const now = el("div"), life = el("div"), head = el("p", { class: "lead" }), bar = el("div", { class: "bar", role: "group", "aria-label": "Widths of the steps", hidden: true });
  main.append(el("h1", null, `Region ${visible(id)}`), head, now, el("h2", null, "Its life"), bar, life, foot(`rk why ${id}`, `rk history --region ${id}`));
  const failed = (node) => (text) => replace(node, el("p", { class: "reasons degraded" }, text));
  const one = follow("region", () => ({ id }), 5000, show, failed(now));
  const past = follow("life", () => ({ id }), 10000, showLife, failed(life));

  function show(found) {
    const record = found.record;
    const link = (other, text) => (other ? el("a", { href: "#/region/" + encodeURIComponent(other), "data-focus": text }, text) : "");
    replace(head, "Table ", el("a", { href: "#/tables/" + encodeURIComponent(found.table), "data-focus": "table" }, visible(found.table)), `, keys from ${key(record.start_key || "")} to ${record.end_key ? key(record.end_key) : "+∞"}  `, link(found.before, "← previous"), " ", link(found.after, "next →"));
    const n = state.model.numbers.get(`${id}-0`);
    replace(now, found.replicas.map((replica) => el("div", { class: "card" }, el("dl", null,
      el("dt", null, `replica ${replica.replica}`), el("dd", null, tag(replica.standing, replica.standing === "OPEN" ? "good" : replica.standing === "PARKED" ? "bad" : "warn"), " ", rename(visible(replica.headline), state)),
      row("who must act", replica.actor === "nobody" ? "" : `${replica.actor}: ${rename(visible(replica.step || ""), state)}`),
      row("server", place(replica.server || replica.destination || replica.source)),
      row("since", replica.since_ms ? `${clock(replica.since_ms, true)}, ${duration(state.now() - replica.since_ms)} ago` : ""),
      row("attempt", replica.attempt ? `${replica.attempt} of ${replica.attempts_max}` : ""),
      row("deadline", replica.deadline_ms ? `${clock(replica.deadline_ms)}: ${rename(visible(replica.at_deadline || ""), state)}` : ""),
      row("last error", rename(visible(replica.last_error || ""), state)),
      row("epoch", replica.epoch || ""),
      row("size", n !== undefined && state.model.size[n] >= 0 ? size(state.model.size[n]) : ""),
      row("not eligible", (replica.ruled_out || []).map((text) => el("div", null, rename(visible(text), state)))),
      row("what to do", (replica.way_out || []).map((text) => el("div", null, el("code", null, rename(visible(text), state)))))))),
    found.tablet ? members(found.tablet.tablets[0]) : "");
  }
  function members(tablet) {
    return tablet ? el("p", null, tag(tablet.health, tablet.health === "HEALTHY" ? "good" : "warn"), " ", rename(visible(tablet.reason || ""), state), " ", el("a", { href: "#/tablets" }, "members")) : "";
  }
  function row(name, value) {
    return !value || !value.length && typeof value !== "number" ? [] : [el("dt", null, name), el("dd", null, value)];
  }
  function place(server) {
    return server ? state.place(Array.isArray(server) ? server[0] : server.uuid) : "";
  }
  let latest = null, byTime = false;
  const scales = [["each step alike", false], ["by time", true]].map(([text, value]) => el("button", { type: "button", "data-focus": text, "aria-pressed": String(value === byTime), onclick: () => { byTime = value; if (latest) showLife(latest); } }, text));
  bar.append(...scales);
  function showLife(found) {
    latest = found;
    const steps = found.steps.filter((one) => one.key);
    scales.forEach((one, at) => one.setAttribute("aria-pressed", String((at === 1) === byTime)));
    bar.hidden = !steps.length;
    replace(life, steps.length ? bars(steps) : "", el("p", { class: "sum" }, found.is_complete ? "" : "Older steps are not shown: the history is searched from its end."),
      table("Steps", [
        { name: "time", keep: true, cell: (one) => clock(one.at_ms, true) },
        { name: "replica", cell: (one) => one.key.slice(regionOf(one.key).length + 1) },
        { name: "step", keep: true, cell: (one) => (one.key ? `${one.before || "at rest"} → ${one.after || "at rest"}` : visible(one.cause)) },
        { name: "by", cell: (one) => one.actor },
        { name: "server", keep: true, cell: (one) => state.place(one.server) },
        { name: "cause", cell: (one) => visible(one.cause) },
        { name: "epoch", n: true, cell: (one) => one.epoch || "" },
        { name: "attempt", n: true, cell: (one) => one.attempt || "" },
        { name: "detail", wrap: true, cell: (one) => rename(visible(one.detail || one.origin || ""), state) },
      ], [...found.steps].reverse(), { empty: "the history has no step of this region" }));
  }
  /** A bar for each replica: its state over time. Rest is long and steps are short, so steps can have equal widths. */
  function bars(steps) {
    const shown = steps.slice(byTime ? -400 : -40), keys = [...new Set(shown.map((one) => one.key))].sort();
    const width = 1000, line = 26, first = shown[0].at_ms, span = Math.max(1, state.now() - first);
    const x = (i) => (byTime ? (i < shown.length ? (shown[i].at_ms - first) / span : 1) : i / shown.length) * width;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${keys.length * line}`, class: "life", preserveAspectRatio: "none", height: keys.length * line, role: "img", "aria-label": `States of the region ${byTime ? "over time" : "one after another"}; a table with the same steps follows` });
    keys.forEach((name, at) => {
      shown.forEach((one, i) => {
        if (one.key !== name) return;
        let end = shown.findIndex((later, j) => j > i && later.key === name);
        if (end < 0) end = shown.length;
        const next = shown[end];
        const rect = svg("rect", { x: x(i), y: at * line + 4, width: Math.max(1, x(end) - x(i) - (byTime ? 0 : 1)), height: line - 8, rx: 2 },
          svg("title", null, `${one.after || "at rest"} on ${state.place(one.server)} from ${clock(one.at_ms, true)}${next ? `, ${duration(next.at_ms - one.at_ms)}` : " until now"}`));
        rect.style.fill = `var(${LIFE_COLORS[one.after] || "--s-unknown"})`;
        drawing.append(rect);
      });
    });
    return el("div", { class: "card" }, drawing, el("div", { class: "ends" }, el("span", null, clock(shown[0].at_ms, true)), el("span", null, byTime ? "now" : clock(shown[shown.length - 1].at_ms, true))));
  }
  const numbers = () => STATES.map((_one, at) => state.model.numbers.get(at === 0 ? id : `${id}-${at - 1}`)).filter((one) => one !== undefined);
  let timer = 0;
  return {
    rows() {
      const mine = numbers();
      if (mine.some((one) => state.model.changed.has(one)) && !timer) timer = setTimeout(() => { timer = 0; one.again(); past.again(); }, 300);
    },
    end() { clearTimeout(timer); one.end(); past.end(); },
  };
}
