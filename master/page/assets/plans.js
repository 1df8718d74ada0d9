// Bulk plans: what was planned, and how far it is. The balancer: its last rounds with their moves and reasons.
import { clock, count, duration, el, foot, number, replace, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";

export function plans(main, state) {
  const live = el("div"), before = el("div"), list = el("div"), balancer = el("p", { class: "lead" }), rounds = el("div");
  main.append(el("h1", null, "Plans, balance"), live, el("h2", null, "Regions by server"), before, el("h2", null, "Rounds of the balancer"), balancer, rounds, el("h2", null, "All plans"), list, foot("rk plan list", "rk plan show ID --html FILE", "rk balance status"));
  let first = null, rate = [];
  const view = follow("plans", () => ({}), 1000, show, (text) => replace(live, el("p", { class: "reasons degraded" }, text)));
  function show(found) {
    const shown = [...found.kept.plans].reverse();
    const running = shown.find((one) => !one.finished_ms);
    if (running) progress(running); else { first = null; rate = []; replace(live, el("p", { class: "lead" }, "No plan is being applied.")); }
    replace(balancer, found.balancer || "Only the active master balances, and knows its rounds.");
    replace(rounds, found.balancer ? table("Rounds of the balancer", [
      { name: "time", wrap: true, cell: (one) => clock(one.at_ms, true) + (one.times > 1 ? `, ${number(one.times)} times since ${clock(one.first_ms, true)}` : "") },
      { name: "what", cell: (one) => one.what },
      { name: "moves", n: true, cell: (one) => number(one.count || 0) },
      { name: "which, and why", wide: true, cell: (one) => (one.why ? visible(one.why) : moves(one)) },
    ], [...found.rounds].reverse(), { empty: "This master has had no round yet." }) : "");
    replace(list, table("Plans", [
      { name: "plan", wrap: true, cell: (one) => el("code", null, visible(one.plan_id)) },
      { name: "state", cell: (one) => tag(one.state || "PLANNING", one.finished_ms ? "" : "warn") },
      { name: "why", wrap: true, cell: (one) => visible(one.reason || "") },
      { name: "engine", cell: (one) => one.engine || "" },
      { name: "done", n: true, cell: (one) => `${number(one.assigned || 0)} of ${number(one.regions || 0)}` },
      { name: "created", keep: true, cell: (one) => clock(one.created_ms, true) },
      { name: "took", n: true, cell: (one) => (one.finished_ms ? duration(one.finished_ms - one.created_ms) : "") },
      { name: "note", wrap: true, cell: (one) => visible(one.note || "") },
    ], shown, { empty: "there was no plan yet" }), found.kept.older ? el("p", { class: "sum" }, `and ${number(found.kept.older)} older ones`) : "");
  }
  function moves(round) {
    const lines = round.moves.map((one) => el("div", null, el("code", null, visible(one.key)), ` of ${visible(state.tableName(one.table))}: ${state.place(one.source)} → ${state.place(one.destination)}, ${visible(one.reason)}`));
    const more = round.count > lines.length ? [el("div", null, `and ${number(round.count - lines.length)} others`)] : [];
    const next = round.more ? [el("div", null, "A limit ended the round: another one follows.")] : [];
    return lines.length < 2 ? [...lines, ...next] : el("details", { "data-open": `${round.at_ms} ${round.what}` }, el("summary", { "data-focus": `round ${round.at_ms} ${round.what}` }, count(round.count, "move", "moves")), lines, more, next);
  }
  function progress(plan) {
    const done = plan.assigned || 0, all = plan.regions || 0, at = performance.now();
    rate = [...rate, [at, done]].slice(-20);
    const [t0, d0] = rate[0], per_s = at > t0 ? (done - d0) / ((at - t0) / 1000) : 0;
    const bar = el("span", { class: "meter", role: "progressbar", "aria-label": "Progress of the plan", "aria-valuemin": 0, "aria-valuemax": all, "aria-valuenow": done }, el("i"));
    bar.firstChild.style.width = `${all ? (done / all) * 100 : 0}%`;
    replace(live, el("div", { class: "card" }, el("p", null, el("b", null, visible(plan.plan_id)), ` ${number(done)} of ${number(all)}, ${per_s.toFixed(1)}/s`, per_s > 0 ? `, ${duration(((all - done) / per_s) * 1000)} left` : ""), bar));
    live.querySelector(".meter i").style.width = `${all ? (done / all) * 100 : 0}%`;
    if (!first && state.figures) first = new Map(state.figures.servers.map((one) => [one.uuid, one.open || 0]));
  }
  function bars() {
    const found = state.figures.servers.filter((one) => one.state !== "gone");
    const most = Math.max(1, ...found.map((one) => Math.max(one.open || 0, (first && first.get(one.uuid)) || 0)));
    replace(before, table("Regions by server", [
      { name: "server", keep: true, cell: (one) => one.address },
      { name: "rack", cell: (one) => visible(one.rack || "") },
      ...(first ? [{ name: "at the begin", n: true, cell: (one) => number(first.get(one.uuid) || 0) }] : []),
      { name: "now", n: true, cell: (one) => number(one.open || 0) },
      { name: "coming, going", n: true, cell: (one) => `${number(one.coming || 0)}, ${number(one.going || 0)}` },
      { name: "share", cell: (one) => { const bar = el("span", { class: "meter" }, el("i")); bar.firstChild.style.width = `${((one.open || 0) / most) * 100}%`; return bar; } },
    ], found));
  }
  return { figures: bars, end: view.end };
}
