// Region servers, and which server's heartbeats reach which master.
import { count, duration, el, foot, number, replace, size, table, tag, visible } from "./dom.js";

const KINDS = { up: "good", silent: "bad", gone: "bad", fenced: "bad", draining: "warn", drained: "warn", leaving: "warn", shunned: "warn" };

export function servers(main, state) {
  const list = el("div"), matrix = el("div"), alarms = el("div");
  const order = { column: null, down: false };
  main.append(el("h1", null, "Region servers"), list, alarms, el("h2", null, "Heartbeats"),
    el("p", { class: "lead" }, "Time since the last heartbeat of each server at each master. A server sends one each second; after 5 s it is silent."), matrix,
    foot("rk server list", "rk status", "rk why SERVER"));
  const columns = [
    { name: "server", keep: true, sort: (one) => one.address, cell: (one) => el("span", { title: one.uuid }, one.address) },
    { name: "state", sort: (one) => one.state, cell: (one) => tag(one.state, KINDS[one.state.split(" ")[0]]) },
    { name: "kind", sort: (one) => one.kind || "", cell: (one) => visible(one.kind || "") },
    { name: "rack", sort: (one) => one.rack || "", cell: (one) => visible(one.rack || "") },
    { name: "group", sort: (one) => one.group || "", cell: (one) => visible(one.group || "") },
    { name: "open", n: true, sort: (one) => one.open || 0, cell: (one) => number(one.open || 0) },
    { name: "coming", n: true, sort: (one) => one.coming || 0, cell: (one) => number(one.coming || 0) },
    { name: "going", n: true, sort: (one) => one.going || 0, cell: (one) => number(one.going || 0) },
    { name: "tablets", n: true, sort: (one) => one.tablets || 0, cell: (one) => (one.tablets === undefined ? "" : number(one.tablets)) },
    { name: "leads", n: true, sort: (one) => one.leaders || 0, cell: (one) => (one.leaders === undefined ? "" : number(one.leaders)) },
    { name: "requests/s", n: true, sort: (one) => one.load || 0, cell: (one) => number(one.load || 0) },
    { name: "disk free", n: true, sort: (one) => one.disk_free || 0, cell: (one) => (one.disk_free ? size(one.disk_free) : "") },
    { name: "why", wrap: true, cell: (one) => visible(one.why || "") },
  ];
  function draw() {
    const found = state.figures.servers, more = state.figures.not_listed.servers || 0;
    replace(list, table("Region servers", columns, found, { sort: order, again: draw, empty: "no region server is registered" }), more ? el("p", { class: "sum" }, `and ${count(more, "more server", "more servers")}`) : "");
    const told = found.flatMap((one) => (one.alarms || []).map((text) => `${one.address}: ${visible(text)}`));
    replace(alarms, told.length ? el("ul", { class: "reasons degraded" }, told.map((text) => el("li", null, text))) : "");
    const masters = state.figures.masters;
    const heard = (one, master) => (master.uuid === state.figures.uuid ? one.heard_ms : (one.elsewhere || {})[master.address]);
    replace(matrix, table("Heartbeats by master", [
      { name: "server", keep: true, cell: (one) => one.address },
      ...masters.map((master) => ({ name: `${master.address} (${master.role})`, cell: (one) => {
        const ms = heard(one, master);
        const isTold = master.uuid === state.figures.uuid || found.some((other) => master.address in (other.elsewhere || {}));
        if (!isTold) return el("span", { class: "soft", title: "this master has not answered the one that shows this page" }, "no answer yet");
        if (ms === undefined || ms < 0) return tag("never", one.state === "gone" ? "" : "bad");
        return tag(duration(Math.floor(ms / 100) * 100), ms > 5000 ? "bad" : ms > 2000 ? "warn" : "good");
      } })),
    ], found));
  }
  return { figures: draw };
}
