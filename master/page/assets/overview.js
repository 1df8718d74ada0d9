// The overview: the verdict with its reasons, the counts, and the last half hour.
import { el, replace, tile, number, duration, foot, visible } from "./dom.js";
import { chart } from "./curves.js";
import { get } from "./data.js";
import { rename } from "./names.js";

const SECONDS = 1800;
const CHARTS = [
  ["Unavailable", [["unavailable", "regions", "--s-bad"], ["parked", "parked", "--s-parked"]]],
  ["Regions in transition", [["moving", "in transition", "--s-moving"]]],
  ["Regions open", [["open", "open", "--accent"]]],
  ["Steps per second", [["steps", "all", "--soft"], ["opened", "opened", "--accent"]]],
  ["Requests per second", [["requests", "requests", "--accent"]]],
  ["Slowest heartbeat", [["heard", "age", "--s-moving"]], duration],
  ["Store's slowest sync, p99", [["sync", "while a page is open", "--accent"]], duration],
  ["Store's term: each step is an election", [["term", "while a page is open", "--accent"]]],
  ["Region servers", [["servers", "live", "--accent"], ["silent", "silent", "--s-bad"]]],
  ["Lateness of the master's timer", [["turn", "late", "--soft"]], duration],
];

export function overview(main, state) {
  const reasons = el("div"), tiles = el("div", { class: "tiles" });
  const charts = CHARTS.map(([title, series, shown]) => chart(title, series.map(([, label, tint]) => ({ label, color: tint })), shown));
  main.append(el("h1", null, "Overview"), reasons, tiles, el("h2", null, "The last 30 minutes"),
    el("div", { class: "charts" }, charts.map((one) => one.node)), foot("rk health", "rk status", "rk watch --live"));
  let names = [], times = [], values = [];
  const draw = () => CHARTS.forEach(([, series], at) => charts[at].set(times, series.map(([name]) => values[names.indexOf(name)] || times.map(() => null))));
  const load = () => get("curves").then((found) => {
    names = Object.keys(found.series);
    values = Object.values(found.series);
    times = values.length ? values[0].map((_one, at) => found.first + at) : [];
    draw();
  }).catch(() => {});
  load();
  return {
    figures() {
      const one = state.figures, counts = one.counts;
      replace(reasons, one.reasons.length
        ? el("ul", { class: "reasons " + one.verdict, "aria-label": "Reasons" }, one.reasons.map((text) => el("li", null, rename(visible(text), state))))
        : el("p", { class: "reasons healthy" }, "Everything answers, everything is open, nothing is amiss."));
      const leader = one.store.find((node) => node.role === "leader" || node.role === "standalone");
      const servers = one.servers.filter((server) => server.state !== "gone");
      const silent = servers.filter((server) => server.state === "silent").length;
      replace(tiles,
        tile("regions", number(counts.regions)), tile("replicas open", number(counts.open), counts.open < counts.replicas - (counts.resting || 0) ? "warn" : ""),
        tile("in transition", number(counts.rit), counts.rit ? "warn" : ""), tile("not open", number(counts.unserved), counts.unserved ? "alert" : ""),
        tile("parked", number(counts.parked), counts.parked ? "alert" : ""), tile("tables", number(counts.tables)),
        tile(silent ? `servers, ${silent} silent` : "servers", number(servers.length), silent ? "alert" : ""),
        tile("masters", number(one.masters.length)),
        tile(leader ? `store, term ${leader.values.raft_term || "?"}` : "store, no leader", number(one.store.filter((node) => node.role).length), leader || !one.store.length ? "" : "alert"));
      if (names.length && one.second > times[times.length - 1]) {
        if (one.second > times[times.length - 1] + 2) { load(); return; }
        times.push(one.second);
        values.forEach((series, at) => series.push(one.curves[at]));
        if (times.length > SECONDS) { times.shift(); values.forEach((series) => series.shift()); }
        draw();
      }
    },
    end() { charts.forEach((one) => one.end()); },
  };
}
