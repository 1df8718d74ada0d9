// Tables, and one table with its regions.
import { count, el, foot, key, number, replace, size, table, tag, visible } from "./dom.js";
import { follow } from "./data.js";
import { rename } from "./names.js";

export function tables(main, state, name) {
  return name ? one(main, state, name) : all(main, state);
}

function all(main, state) {
  const list = el("div"), order = { column: 0, down: false };
  main.append(el("h1", null, "Tables"), list, foot("rk table list"));
  function draw() {
    const more = state.figures.not_listed.tables || 0;
    replace(list, table("Tables", [
      { name: "table", wrap: true, sort: (one) => one.name, cell: (one) => el("a", { href: "#/tables/" + encodeURIComponent(one.name), "data-focus": one.name }, visible(one.name)) },
      { name: "state", sort: (one) => one.state, cell: (one) => tag(one.state, one.state === "RUNNING" ? "good" : "warn") },
      { name: "kind", sort: (one) => Boolean(one.is_tablet), cell: (one) => (one.is_tablet ? "tablets" : "shared regions") },
      { name: "regions", n: true, sort: (one) => one.regions, cell: (one) => number(one.regions) },
      { name: "replication", n: true, sort: (one) => one.replication, cell: (one) => one.replication },
      { name: "open", n: true, sort: (one) => one.open, cell: (one) => number(one.open) },
      { name: "in transition", n: true, sort: (one) => one.rit, cell: (one) => number(one.rit) },
      { name: "parked", n: true, sort: (one) => one.parked, cell: (one) => (one.parked ? tag(number(one.parked), "bad") : "0") },
    ], state.figures.tables, { sort: order, again: draw, empty: "there is no table yet: rk table create" }), more ? el("p", { class: "sum" }, `and ${count(more, "more table", "more tables")}`) : "");
  }
  return { figures: draw };
}

function one(main, state, name) {
  const head = el("div"), list = el("div");
  let from = "", earlier = [];
  main.append(el("h1", null, `Table ${visible(name)}`), head, el("h2", null, "Regions"), list, foot(`rk table show ${name}`, `rk why ${name}`));
  const view = follow("table", () => ({ name, from }), 5000, show, (text) => replace(head, el("p", { class: "reasons degraded" }, text)));
  const go = (start) => { from = start; view.again(); };
  function show(found) {
    const record = found.summary.table, told = found.explained;
    replace(head, el("p", null, tag(told.standing, told.standing === "RUNNING" ? "good" : "warn"), " ", rename(visible(told.headline), state)),
      (told.waiting || []).length ? el("ul", { class: "reasons degraded" }, told.waiting.map((one) => el("li", null, `${number(one.replicas)}: ${rename(visible(one.text), state)}`))) : "",
      el("dl", null, el("dt", null, "id"), el("dd", null, el("code", null, record.table_id)), el("dt", null, "replication"), el("dd", null, record.replication || 1),
        el("dt", null, "columns"), el("dd", null, ((record.schema || {}).columns || []).map((column) => visible(`${column.name}: ${column.type}`)).join(", ") || "keys and values"),
        el("dt", null, "size"), el("dd", null, `${found.summary.measured ? "" : "~"}${size(found.summary.size_bytes || 0)}`)));
    replace(list, table("Regions", [
      { name: "region", wrap: true, cell: (one) => el("a", { href: "#/region/" + encodeURIComponent(one.region.region_id), "data-focus": one.region.region_id }, el("code", null, one.region.region_id)) },
      { name: "from", wrap: true, cell: (one) => key(one.region.start_key || "") },
      { name: "to", wrap: true, cell: (one) => (one.region.end_key ? key(one.region.end_key) : "+∞") },
      { name: "servers", wrap: true, cell: (one) => one.replicas.map((replica) => (replica.server ? state.place(uuidOf(replica.server)) : "–")).join(", ") },
      { name: "transition", cell: (one) => one.replicas.filter((replica) => replica.transition).map((replica) => tag(replica.transition.parked ? "PARKED" : replica.transition.state, "warn")) },
      { name: "size", n: true, cell: (one) => size(one.size_bytes || 0) },
    ], found.regions), el("div", { class: "bar" },
      earlier.length ? el("button", { type: "button", "data-focus": "back", onclick: () => go(earlier.pop()) }, "← previous page") : "",
      found.next ? el("button", { type: "button", "data-focus": "next", onclick: () => { earlier.push(from); go(found.next); } }, "next page →") : ""));
  }
  return { end: view.end };
}

export function uuidOf(server) {
  return Array.isArray(server) ? server[0] : server.uuid;
}
