// The store's nodes, as they answer to `mntr`.
import { duration, el, foot, number, replace, size, table, tag } from "./dom.js";

export function store(main, state) {
  const list = el("div");
  main.append(el("h1", null, "Store"), el("p", { class: "lead" }, "Each node answers for itself, every two seconds, to the master that shows this page."), list, foot("rk coord list", "rk status"));
  function draw() {
    const nodes = state.figures.store;
    const most = Math.max(0, ...nodes.map((one) => Number(one.values.raft_commit_index || 0)));
    const value = (one, name) => number(one.values[name] === undefined ? null : Number(one.values[name]));
    const node = { name: "node", keep: true, cell: (one) => one.address };
    const empty = { empty: "no node has answered yet" };
    replace(list, el("h2", null, "Replication"), table("Replication", [
      node,
      { name: "role", cell: (one) => (one.role ? tag(one.role, "good") : tag("down", "bad")) },
      { name: "up for", n: true, cell: (one) => (one.values.uptime ? duration(Math.floor(Number(one.values.uptime) / 1000) * 1000) : "–") },
      { name: "term", n: true, cell: (one) => value(one, "raft_term") },
      { name: "commit", n: true, cell: (one) => value(one, "raft_commit_index") },
      { name: "applied", n: true, cell: (one) => value(one, "raft_applied_index") },
      { name: "behind", n: true, cell: (one) => (one.role ? number(Math.max(0, most - Number(one.values.raft_commit_index || 0))) : "–") },
      { name: "log p99", n: true, cell: (one) => (one.values.p99_fsynctime ? duration(Number(one.values.p99_fsynctime)) : "–") },
      { name: "trouble", wrap: true, cell: (one) => [one.trouble || "", one.values.disk_full === "1" ? "its disk is full" : "", one.values.snapshot_failed === "1" ? "its snapshot failed" : ""].filter(Boolean).join("; ") },
    ], nodes, empty), el("h2", null, "Load"), table("Load", [
      node,
      { name: "latency", n: true, cell: (one) => (one.values.avg_latency ? `${Number(one.values.avg_latency).toFixed(1)} ms` : "–") },
      { name: "waiting", n: true, cell: (one) => value(one, "outstanding_requests") },
      { name: "connections", n: true, cell: (one) => value(one, "num_alive_connections") },
      { name: "sessions", n: true, cell: (one) => value(one, "global_sessions") },
      { name: "watches", n: true, cell: (one) => value(one, "watch_count") },
      { name: "znodes", n: true, cell: (one) => value(one, "znode_count") },
      { name: "data", n: true, cell: (one) => (one.values.approximate_data_size ? size(Number(one.values.approximate_data_size)) : "–") },
    ], nodes, empty));
  }
  return { figures: draw };
}
