// Tablets: members, roles, lag, copies.
import { count, duration, el, foot, key, number, replace, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";

export function tablets(main, state) {
  const list = el("div");
  let after = "", earlier = [];
  main.append(el("h1", null, "Tablets"), el("p", { class: "lead" }, "Replicated regions with the members of their groups; the leader first. Lag is in entries of the leader's log."), list, foot("rk tablet list", "rk tablet show ID", "rk tablet matrix"));
  const view = follow("tablets", () => ({ after }), 2000, show, (text) => replace(list, el("p", { class: "reasons degraded" }, text)));
  const go = (id) => { after = id; view.again(); };
  function member(one, tablet) {
    const isLeader = one.number === tablet.leader;
    const kind = one.transition || one.reason ? "warn" : one.health && one.health !== "HEALTHY" ? "bad" : isLeader ? "good" : "";
    const words = [state.place(one.server), isLeader ? "leads" : (one.raft_role || one.role || "").toString().toLowerCase(), one.behind ? `${number(one.behind)} behind` : "", one.transition ? (one.is_parked ? "parked" : one.transition.toLowerCase()) : "", one.state && one.state !== "RUNNING" ? one.state.toLowerCase() : ""];
    return el("span", { title: visible(one.reason || one.last_error || "") }, tag(words.filter(Boolean).join(", "), kind));
  }
  // The health, for how long, why, and what is under way: one column, so that the members have room in a small window.
  function health(one) {
    const kind = one.health === "HEALTHY" ? "good" : one.health === "UNAVAILABLE" ? "bad" : "warn";
    const since = `for ${one.at_least ? "≥ " : ""}${duration(Math.floor(one.for_ms / 1000) * 1000)}`;
    const moves = (one.moves || []).length;
    const more = [one.reason ? rename(visible(one.reason), state) : "", moves ? count(moves, "move under way", "moves under way") : ""];
    return el("div", null, tag(one.health, kind), " ", el("span", { class: "soft keep" }, since), more.filter(Boolean).map((text) => el("div", null, text)));
  }
  function show(found) {
    const shown = found.tablets || [];
    replace(list, table("Tablets", [
      { name: "tablet", wrap: true, cell: (one) => el("a", { href: "#/region/" + encodeURIComponent(one.region_id), "data-focus": one.region_id }, el("code", null, one.region_id)) },
      { name: "table", cell: (one) => visible(one.table) },
      { name: "from", wrap: true, cell: (one) => key(one.start_key || "") },
      { name: "health", wrap: true, cell: health },
      { name: "term", n: true, cell: (one) => number(one.term) },
      { name: "members", wide: true, cell: (one) => el("div", { class: "members" }, [...one.members].sort((a, b) => (b.number === one.leader) - (a.number === one.leader)).map((each) => member(each, one))) },
    ], shown, { empty: "there is no replicated table" }), el("div", { class: "bar" },
      earlier.length ? el("button", { type: "button", "data-focus": "back", onclick: () => go(earlier.pop()) }, "← previous page") : "",
      found.next ? el("button", { type: "button", "data-focus": "next", onclick: () => { earlier.push(after); go(found.next); } }, "next page →") : ""));
  }
  return { end: view.end };
}
