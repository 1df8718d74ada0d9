// Elements and words. Every text from the cluster becomes a text node: names and keys are never markup.
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== "").map(child));
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(node, attributes);
  node.append(...children.flat());
  return node;
}

function child(one) {
  return one instanceof Node ? one : String(one);
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

/** Replace the children of a node, unless they are the same as before: a selection and the focus survive, and what is unfolded (`data-open` names it). */
export function replace(node, ...children) {
  const fresh = el("div", null, ...children);
  const unfolded = new Set(Array.from(node.querySelectorAll("details[open][data-open]"), (one) => one.dataset.open));
  if (unfolded.size) for (const one of fresh.querySelectorAll("details[data-open]")) one.open = unfolded.has(one.dataset.open);
  if (fresh.innerHTML === node.innerHTML) return;
  const id = document.activeElement && node.contains(document.activeElement) ? document.activeElement.dataset.focus : "";
  node.replaceChildren(...fresh.childNodes);
  if (id) for (const one of node.querySelectorAll("[data-focus]")) if (one.dataset.focus === id) one.focus();
}

/** A table. Columns: {name, cell(row), n: numbers, sort(row), wrap}. The caption names it for screen readers.
 *  `options.isOrdered`: the rows are in order already, and a click on a heading asks for another one. */
export function table(caption, columns, rows, options = {}) {
  const sort = options.sort || null;
  let shown = rows;
  if (sort && sort.column !== null && !options.isOrdered) {
    const value = columns[sort.column].sort;
    shown = [...rows].sort((a, b) => order(value(a), value(b)) * (sort.down ? -1 : 1));
  }
  const head = columns.map((one, at) => {
    const dir = sort && sort.column === at ? (sort.down ? "descending" : "ascending") : null;
    const name = sort && (one.sort || (options.isOrdered && one.order))
      ? el("button", { type: "button", "data-focus": "sort" + caption + at, onclick: () => { sort.down = sort.column === at ? !sort.down : Boolean(one.n); sort.column = at; options.again(); } }, one.name)
      : one.name;
    return el("th", { scope: "col", class: one.n ? "n" : null, "aria-sort": dir }, name);
  });
  const body = shown.map((row) => el("tr", null, columns.map((one) => el("td", { class: one.n ? "n" : one.wide ? "wrap wide" : one.wrap ? "wrap" : one.keep ? "keep" : null }, one.cell(row)))));
  if (!body.length) return el("div", { class: "scroll" }, el("p", { class: "empty" }, options.empty || "nothing"));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, "data-focus": caption }, el("table", { "aria-label": caption }, el("thead", null, el("tr", null, head)), el("tbody", null, body)));
}

function order(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

export function tile(label, value, kind) {
  return el("div", { class: "tile " + (kind || "") }, el("b", null, value), el("span", null, label));
}

export function tag(text, kind) {
  return el("span", { class: "tag " + (kind || "") }, text);
}

export function foot(...commands) {
  return el("p", { class: "foot" }, commands.length > 1 ? "The same in a terminal: " : "The same in a terminal: ", commands.flatMap((one, at) => [at ? ", " : "", el("code", null, one)]));
}

export function number(value) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : Math.round(value).toLocaleString("en-US");
}

export function count(value, one, several) {
  return `${number(value)} ${value === 1 ? one : several}`;
}

export function size(bytes) {
  if (bytes < 0 || bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${bytes < 10 && at ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

export function duration(ms) {
  if (ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function clock(ms, withDay) {
  if (!ms) return "–";
  const date = new Date(ms);
  const time = date.toLocaleTimeString("en-GB") + "." + String(date.getMilliseconds()).padStart(3, "0");
  return withDay ? `${date.toLocaleDateString("sv-SE")} ${time.slice(0, 8)}` : time;
}

/** A key as people read it: control and direction characters are made visible. */
export function key(text) {
  if (text === "") return "-∞";
  return visible(text);
}

export function visible(text) {
  // eslint-disable-next-line no-control-regex
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202f\u2060-\u2069\ufeff]/g, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
}
