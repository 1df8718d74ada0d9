// Alarms of the auditor, and what needs an operator.
import { clock, count, duration, el, foot, number, replace, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";

export function audit(main, state) {
  const problems = el("div"), list = el("div"), checks = el("div"), whole = el("div");
  main.append(el("h1", null, "Audit"), el("h2", null, "Problems now"), problems, el("h2", null, "Alarms"),
    el("p", { class: "lead" }, "Each master checks every transition against the rules, independently of the work. An alarm is a broken rule, with the steps that led to it."), list, el("h2", null, "Checks of this master"),
    el("p", { class: "lead" }, "What this master compares all the time, and what it has found since its session with the store began. rk fsck reads the whole store and asks every server."), checks, el("h2", null, "The last rk fsck"), whole, foot("rk audit", "rk fsck", "rk fsck --deep"));
  const view = follow("alarms", () => ({}), 3000, (found) => { show(found.kept); showChecks(found); showWhole(found.kept.fsck); }, (text) => replace(list, el("p", { class: "reasons degraded" }, text)));
  function show(found) {
    replace(list, found.alarms.length ? table("Alarms", [
      { name: "time", keep: true, cell: (one) => clock(one.at_ms, true) },
      { name: "rule", cell: (one) => one.rule },
      { name: "replica", cell: (one) => el("code", null, visible(one.key)) },
      { name: "what", wrap: true, cell: (one) => rename(visible(one.text), state) },
      { name: "steps", wrap: true, cell: (one) => el("details", { "data-open": one.alarm_id }, el("summary", { "data-focus": one.alarm_id }, number((one.steps || []).length)), (one.steps || []).map((step) => el("div", { class: "mono" }, visible(JSON.stringify(step))))) },
    ], [...found.alarms].reverse()) : el("p", { class: "reasons healthy" }, "No alarm."), found.older ? el("p", { class: "sum" }, `and ${number(found.older)} older ones`) : "");
  }
  function showChecks({ checks: all, role }) {
    const isMade = all.some((one) => one.at_ms);
    replace(checks, isMade ? table("Checks", [
      { name: "check", wide: true, cell: (one) => one.name },
      { name: "last", keep: true, cell: (one) => (one.at_ms ? clock(one.at_ms, true) : role === "active" ? "not yet" : "by the active master") },
      { name: "times", n: true, cell: (one) => number(one.times || 0) },
      { name: "found", n: true, cell: (one) => number(one.found || 0) },
      { name: "what it found last", wide: true, cell: (one) => (one.findings || []).length ? [...one.findings].reverse().map((each) => el("div", null, clock(each.at_ms, true), " ", rename(visible(each.text), state))) : "nothing" },
    ], all) : el("p", { class: "reasons" }, "This master has checked nothing yet."));
  }
  function showWhole(one) {
    if (!one) { replace(whole, el("p", { class: "reasons" }, "rk fsck has not been run on this cluster yet, or by an older version.")); return; }
    const found = one.findings || [], all = (one.errors || 0) + (one.warnings || 0);
    const words = all ? `${count(one.errors || 0, "error", "errors")}, ${count(one.warnings || 0, "warning", "warnings")}` : "Nothing was wrong";
    replace(whole, el("p", { class: "reasons " + (one.errors ? "unavailable" : all ? "degraded" : "healthy") },
      `${words}: ${clock(one.at_ms, true)}, ${duration(state.now() - one.at_ms)} ago, in ${duration(one.took_s * 1000)} by ${visible(one.by)}${one.deep ? ", with all rows" : ""}${one.fixed ? `; ${count(one.fixed, "step was", "steps were")} taken` : ""}.`),
    found.length ? table("Findings of the last fsck", [
      { name: "problem", keep: true, cell: (each) => tag(visible(each.problem), each.is_warning ? "warn" : "bad") },
      { name: "what", wide: true, cell: (each) => rename(visible(each.text), state) },
      { name: "step", wide: true, cell: (each) => (each.step ? ["rk fsck --fix would ", rename(visible(each.step), state)] : "") },
    ], found) : "", all > found.length ? el("p", { class: "sum" }, `and ${number(all - found.length)} more: rk fsck --json has all`) : "");
  }
  return {
    figures() {
      const found = state.figures.problems || [];
      replace(problems, found.length ? el("ul", { class: "reasons degraded" }, found.map((text) => el("li", null, rename(visible(text), state)))) : el("p", { class: "reasons healthy" }, state.figures.role === "active" ? "Nothing needs an operator." : "Only the active master lists problems."));
    },
    end: view.end,
  };
}
