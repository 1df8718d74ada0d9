// The rows of all regions, as the master tells them (regions/page/model.py has the format).
export const STATES = [
  { name: "open", color: "--s-open" },
  { name: "closed", color: "--s-closed" },
  { name: "not open", color: "--s-bad", bad: true },
  { name: "offline", color: "--s-offline", bad: true, moving: true },
  { name: "opening", color: "--s-moving", bad: true, moving: true },
  { name: "opened", color: "--s-moving", moving: true },
  { name: "closing", color: "--s-closing", moving: true },
  { name: "closed, moving", color: "--s-offline", bad: true, moving: true },
  { name: "parked", color: "--s-parked", bad: true },
  { name: "not reported", color: "--s-unknown" },
  { name: "impaired", color: "--s-impaired" },
  { name: "gone", color: "--s-none" },
];
export const OPEN = 0, GONE = 11;

export class Model {
  constructor() {
    this.reset();
  }

  /** `keysHidden`: the starts of rows are names without an order (`--admin-hide-keys`). */
  reset(keysHidden = false) {
    this.keysHidden = keysHidden;
    this.tables = [];
    this.servers = [];
    this.length = 0;
    this.isComplete = false;
    this.numbers = new Map();
    this.key = [];
    this.start = [];
    this.alloc(1024);
    this.changed = new Set();
    this.byState = new Array(STATES.length).fill(0);
    this.isReordered = true;
    this.orders = [];
    this.unordered = []; // rows that `ordered` has not seen
    this.hasGone = false; // a row that it has seen is gone
    this.hasAstral = false;
    this.version = (this.version || 0) + 1;
  }

  alloc(capacity) {
    const grow = (Type, old) => { const fresh = new Type(capacity); if (old) fresh.set(old); return fresh; };
    const keep = this.length ? this : {};
    this.table = grow(Int32Array, keep.table);
    this.state = grow(Uint8Array, keep.state);
    this.server = grow(Int32Array, keep.server);
    this.since = grow(Float64Array, keep.since);
    this.size = grow(Float64Array, keep.size);
    this.load = grow(Float64Array, keep.load);
    this.capacity = capacity;
  }

  part(one) {
    this.name(one);
    const since = one.since || [], size = one.size || [], load = one.load || [];
    for (let i = 0; i < one.key.length; i++) {
      const n = one.first + i;
      if (n >= this.capacity) this.alloc(Math.max(n + 1, this.capacity * 2));
      if (n >= this.length) { this.length = n + 1; this.isReordered = true; }
      const isNew = this.key[n] === undefined;
      if (isNew) this.unordered.push(n);
      this.key[n] = one.key[i];
      this.start[n] = one.start[i];
      if (!this.hasAstral && /[\ud800-\udfff]/.test(one.start[i])) this.orderAnew();
      this.table[n] = one.table[i];
      this.size[n] = size.length ? size[i] : -1;
      this.load[n] = load.length ? load[i] : 0;
      this.numbers.set(one.key[i], n);
      if (isNew) this.byState[this.state[n]]++;
      this.row(n, one.state[i], one.server[i], since.length ? since[i] : 0);
    }
    this.isReordered = true;
  }

  /** Note that keys must be compared by code points from now on. */
  orderAnew() {
    this.hasAstral = true;
    for (const { rows } of this.orders) for (const n of rows) this.unordered.push(n);
    this.orders = [];
  }

  name(one) {
    for (const [at, name] of one.tables || []) this.tables[at] = name;
    for (const [at, name] of one.servers || []) this.servers[at] = name;
  }

  row(n, state, server, since) {
    if (state === GONE) {
      if (this.numbers.get(this.key[n]) === n) this.numbers.delete(this.key[n]); // its region may have come back with another number
      this.isReordered = this.hasGone = true;
    }
    if (this.key[n] !== undefined) { this.byState[this.state[n]]--; this.byState[state]++; } // else its part is on its way
    this.state[n] = state;
    this.server[n] = server;
    this.since[n] = since;
    this.changed.add(n);
  }

  delta(one) {
    this.name(one);
    if (one.new) this.part(one.new);
    const n = one.n || [];
    for (let i = 0; i < n.length; i++) if (n[i] < this.length) this.row(n[i], one.state[i], one.server[i], one.since[i]);
    for (const [at, bytes] of one.sized || []) { if (at < this.length) { this.size[at] = bytes; this.changed.add(at); } }
    for (const [at, per_s] of one.loaded || []) { if (at < this.length) { this.load[at] = per_s; this.changed.add(at); } }
  }

  /** Rows of each table in key order, that of region ids if keys are hidden: [{table, rows}], tables in the order in which they were first seen.
   *  Only new rows are sorted; they are merged with those that are in order. */
  ordered() {
    if (!this.isReordered) return this.orders;
    const { start, key } = this, starts = this.hasAstral ? byCodePoints : byUnits;
    const byKey = (a, b) => byUnits(key[a], key[b]);
    const compare = this.keysHidden ? byKey : (a, b) => starts(start[a], start[b]) || byKey(a, b);
    const groups = new Map(this.orders.map(({ table, rows }) => [table, this.hasGone ? rows.filter((n) => this.state[n] !== GONE) : rows]));
    const fresh = new Map();
    for (const n of this.unordered) {
      if (this.state[n] === GONE) continue;
      let rows = fresh.get(this.table[n]);
      if (!rows) fresh.set(this.table[n], (rows = []));
      rows.push(n);
    }
    for (const [table, rows] of fresh) groups.set(table, merged(groups.get(table) || [], rows.sort(compare), compare));
    this.orders = [...groups].filter(([, rows]) => rows.length).map(([table, rows]) => ({ table, rows }));
    this.unordered = [];
    this.isReordered = this.hasGone = false;
    return this.orders;
  }

  /** Number of rows by state. */
  counts() {
    return this.byState;
  }
}

/** Two sorted lists as one. */
function merged(a, b, compare) {
  if (!a.length || !b.length || compare(a[a.length - 1], b[0]) < 0) return a.length ? a.concat(b) : b;
  const found = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) found.push(compare(a[i], b[j]) <= 0 ? a[i++] : b[j++]);
  while (i < a.length) found.push(a[i++]);
  while (j < b.length) found.push(b[j++]);
  return found;
}

function byUnits(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function byCodePoints(a, b) {
  const x = Array.from(a), y = Array.from(b);
  for (let i = 0; i < x.length && i < y.length; i++) if (x[i] !== y[i]) return x[i].codePointAt(0) - y[i].codePointAt(0);
  return x.length - y.length;
}
