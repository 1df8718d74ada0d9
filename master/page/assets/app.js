// The frame of the page: the stream, the header, the navigation, and which page is shown.
import { el, replace, duration, number } from "./dom.js";
import { Heat } from "./heat.js";
import { Model } from "./model.js";
import { overview } from "./overview.js";
import { regions } from "./regions.js";
import { region } from "./region.js";
import { transitions } from "./transitions.js";
import { servers } from "./servers.js";
import { store } from "./store.js";
import { tables } from "./tables.js";
import { tablets } from "./tablets.js";
import { plans } from "./plans.js";
import { runs } from "./runs.js";
import { audit } from "./audit.js";

const PAGES = [
  ["", "Overview", overview],
  ["regions", "Regions", regions],
  ["transitions", "Transitions", transitions],
  ["servers", "Servers", servers],
  ["store", "Store", store],
  ["tables", "Tables", tables],
  ["tablets", "Tablets", tablets],
  ["plans", "Plans, balance", plans],
  ["runs", "Runs and drills", runs],
  ["audit", "Audit", audit],
];
// The token of a secured master has become a cookie: keep it out of the history of the browser.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const STEPS_KEPT = 500;

/** Everything that the pages read. `figures` is null before the first second. */
export const state = {
  model: new Model(),
  heat: new Heat(),
  figures: null,
  figuresAt: 0,
  steps: [],
  isLive: false,
  lostAt: 0,
  /** For measurements: when the map was drawn last, the longest drawing, and the characters of all messages. */
  drawnAt: 0,
  frameMs: 0,
  bytes: 0,
  /** Now, by the master's clock. */
  now() { return this.figures ? this.figures.now_ms + (performance.now() - this.figuresAt) : Date.now(); },
  /** The address of a server by its uuid. */
  place(uuid) {
    if (!uuid) return "–";
    const one = this.figures && this.figures.servers.find((server) => server.uuid === uuid);
    return one ? one.address : uuid.slice(0, 8);
  },
  tableName(id) {
    const one = this.figures && this.figures.tables.find((table) => table.table_id === id);
    return one ? one.name : id;
  },
};
window.rk = state; // for the browser's console, and for tests

const main = document.getElementById("main");
let shown = null;
let shownAs = null;

function route() {
  const [name, ...rest] = decodeURI(location.hash.replace(/^#\/?/, "")).split("/");
  const id = rest.map(decodeURIComponent).join("/");
  if (`${name}/${id}` === shownAs) return;
  shownAs = `${name}/${id}`;
  if (shown && shown.end) shown.end();
  const found = name === "region" ? region : (PAGES.find(([path]) => path === name) || PAGES[0])[2];
  main.replaceChildren();
  shown = found(main, state, id);
  const title = main.querySelector("h1");
  document.title = (title ? title.textContent + " · " : "") + "RegionKeeper";
  navigation();
  const here = document.querySelector("#nav [aria-current]");
  if (here) here.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the pages are one line
  if (state.figures && shown.figures) shown.figures();
  if (shown.rows) shown.rows();
  if (shown.steps) shown.steps(state.steps);
}

function navigation() {
  const here = location.hash.replace(/^#\/?/, "").split("/")[0];
  const figures = state.figures;
  const counts = figures ? {
    regions: [figures.counts.regions], transitions: [figures.counts.rit, figures.counts.parked > 0],
    servers: [figures.servers.filter((one) => one.state !== "gone").length, figures.servers.some((one) => one.state === "silent")],
    store: [figures.store.length, figures.store.some((one) => !one.role)], tables: [figures.counts.tables],
  } : {};
  replace(document.getElementById("nav"), PAGES.map(([path, title]) => el("a", {
    href: "#/" + path, "data-focus": path, "aria-current": path === here || (here === "region" && path === "regions") ? "page" : null,
  }, title, path in counts ? el("span", { class: "count" + (counts[path][1] ? " alert" : "") }, number(counts[path][0])) : "")));
}

function header() {
  const figures = state.figures;
  const verdict = document.getElementById("verdict"), told = document.getElementById("told"), banner = document.getElementById("banner");
  if (!state.isLive) {
    verdict.textContent = "not connected";
    verdict.className = "verdict";
    const others = figures ? figures.masters.filter((one) => one.page && one.uuid !== figures.uuid) : [];
    replace(banner, "This master does not answer; what you see is ", figures ? `${duration(performance.now() - state.figuresAt)} old` : "nothing yet",
      ". The page connects again by itself", others.length ? [". Other masters: ", others.map((one, at) => [at ? ", " : "", el("a", { href: `http://${one.page}/${location.hash}`, "data-focus": one.page }, one.page)])].flat(3) : "", ".");
    banner.hidden = performance.now() - state.lostAt < 1500;
  } else if (figures) {
    banner.hidden = true;
    verdict.textContent = figures.verdict.toUpperCase();
    verdict.className = "verdict " + figures.verdict;
  }
  if (figures) {
    const age = figures.role === "active" ? "" : figures.stale_ms < 0 ? ", which still reads the cluster" : `, ${duration(figures.stale_ms)} old`;
    const since = figures.role === "active" && figures.active_since_ms ? `, for ${duration(state.now() - figures.active_since_ms)}` : "";
    const active = figures.masters.find((one) => one.role === "active");
    replace(told, `told by ${figures.role === "active" ? "active master" : figures.role === "standby" ? "standby master" : "a master that is becoming active,"} ${figures.address}${age}${since}${figures.epoch ? `, epoch ${figures.epoch}` : ""}${state.model.keysHidden ? "; keys are hidden" : ""}`,
      figures.role !== "active" && active && active.page ? [" · ", el("a", { href: `http://${active.page}/${location.hash}`, "data-focus": "active" }, "the active one")] : "");
  }
}

// --- the stream ------------------------------------------------------------------------------------------------------

let frame = 0;
function soon() {
  if (!frame) frame = requestAnimationFrame(() => {
    frame = 0;
    if (shown && shown.rows) shown.rows();
    state.model.changed.clear();
  });
}

function listen() {
  const stream = new EventSource("/ui/stream");
  const on = (name, take) => stream.addEventListener(name, (event) => { alive(); state.bytes += event.data.length; take(JSON.parse(event.data)); });
  const alive = () => { if (!state.isLive) { state.isLive = true; header(); } };
  stream.onopen = alive;
  stream.onerror = () => {
    if (state.isLive || !state.lostAt) state.lostAt = performance.now();
    state.isLive = false;
    header();
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => { stream.close(); listen(); }, 2000);
  };
  on("begin", (one) => { state.model.reset(one.keys_hidden); state.steps = []; soon(); });
  on("part", (one) => { state.model.part(one); soon(); });
  on("end", () => { state.model.isComplete = true; soon(); performance.mark("rk-complete"); });
  on("delta", (one) => { state.model.delta(one); soon(); if (shown && shown.delta) shown.delta(one); });
  on("steps", (found) => {
    // A new listener gets the steps in memory, some of which may come again with the next message.
    const known = new Set(state.steps.map(String));
    const fresh = found.filter((step) => !known.has(String(step)));
    state.steps = state.steps.concat(fresh).slice(-STEPS_KEPT);
    if (shown && shown.steps && fresh.length) shown.steps(fresh);
  });
  on("figures", (one) => {
    state.figures = one;
    state.figuresAt = performance.now();
    navigation();
    header();
    if (shown && shown.figures) shown.figures();
    if (state.heat.sample(state.model, state.now()) && shown && shown.heat) shown.heat();
  });
}

addEventListener("hashchange", route);
setInterval(header, 1000);
route();
listen();
