// Alarms of the auditor, and what needs an operator.
import { clock, el, foot, number, replace, table, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";

export function audit(main, state) {
  const problems = el("div"), list = el("div");
  main.append(el("h1", null, "Audit"), el("h2", null, "Problems now"), problems, el("h2", null, "Alarms"),
    el("p", { class: "lead" }, "Each master checks every transition against the rules, independently of the work. An alarm is a broken rule, with the steps that led to it."), list, foot("rk audit", "rk fsck", "rk fsck --deep"));
  const view = follow("alarms", () => ({}), 3000, show, (text) => replace(list, el("p", { class: "reasons degraded" }, text)));
  function show(found) {
    replace(list, found.alarms.length ? table("Alarms", [
      { name: "time", keep: true, cell: (one) => clock(one.at_ms, true) },
      { name: "rule", cell: (one) => one.rule },
      { name: "replica", cell: (one) => el("code", null, visible(one.key)) },
      { name: "what", wrap: true, cell: (one) => rename(visible(one.text), state) },
      { name: "steps", wrap: true, cell: (one) => el("details", null, el("summary", null, number((one.steps || []).length)), (one.steps || []).map((step) => el("div", { class: "mono" }, visible(JSON.stringify(step))))) },
    ], [...found.alarms].reverse()) : el("p", { class: "reasons healthy" }, "No alarm."), found.older ? el("p", { class: "sum" }, `and ${number(found.older)} older ones`) : "");
  }
  return {
    figures() {
      const found = state.figures.problems || [];
      replace(problems, found.length ? el("ul", { class: "reasons degraded" }, found.map((text) => el("li", null, rename(visible(text), state)))) : el("p", { class: "reasons healthy" }, state.figures.role === "active" ? "Nothing needs an operator." : "Only the active master lists problems."));
    },
    end: view.end,
  };
}
