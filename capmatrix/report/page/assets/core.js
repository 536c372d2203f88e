// The page's core: the model, what is chosen (filters, view, open cell), and the seams other scripts use.
//
// window.capmatrix:
//   data                  the model, as report/page/data.py documents it
//   n                     how many records
//   home                  the view that is shown first: of a run of pairs alone that of pairs, which has no tab of cells
//   column(name)          {name, title, filter, values, codes}: codes is a typed array, one code a record
//   value(name, i)        record i's value of a column; measure(name): {title, unit, values}, or undefined
//   id(i), find(id, run)  cell id of a record; record of a cell id (of a run's name, or the current one), or -1
//   evidence(i)           promise of {record, commands}: the whole record, decoded on demand
//   environment(i, ev)    the environment that a decoded record names, or undefined
//   filters               {column name: array of chosen values as text}; change it through setFilter
//   setFilter(name, values), setQuery(text), setView(name), open(i), close()
//   visible()             Uint32Array of the records that the filters let through (old ones only if a run is chosen)
//   every()               the same without any filter: the current record of each cell
//   onChange(f)           f(what) after every change; what: "filter", "view" or "cell"
//   registerView(name, title, render)
//                         a tab. render(container) is called when it is first shown; if it returns a function, that is
//                         called at each change while the tab is shown, else the container is emptied and render called
//                         again. An optional fourth argument {when: () => boolean} hides the tab.
//   params, setParam(key, value)
//                         further state of a view that the address keeps (text values)
//   el(tag, properties, ...children), text(value), markOf(verdict, rung), cellLink(id), unit(value, unit)
//   summary               see summary.js
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("model").textContent);
  const n = data.n;

  // Text of records: shown as text, what a terminal or a reader of bidirectional text would obey replaced.
  const UNSHOWN = /[^\S \n\t]|[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}]/gu;
  const text = value => String(value).replace(UNSHOWN, c => (c === "\n" || c === "\t" ? c : "\uFFFD"));

  function el(tag, properties, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "dataset") Object.assign(node.dataset, value);
      else if (name in node && typeof value !== "string") node[name] = value;
      else node.setAttribute(name === "className" ? "class" : name, text(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child === undefined || child === null || child === false) continue;
      node.append(child instanceof Node ? child : text(child));
    }
    return node;
  }

  function unpack(packed, size) {
    let most = 0;
    for (let i = 0; i < packed.length; i += 2) if (packed[i] > most) most = packed[i];
    const out = most < 256 ? new Uint8Array(size) : most < 65536 ? new Uint16Array(size) : new Uint32Array(size);
    for (let i = 0, at = 0; i < packed.length; i += 2) {
      out.fill(packed[i], at, at + packed[i + 1]);
      at += packed[i + 1];
    }
    return out;
  }

  const columns = new Map();
  for (const c of data.columns) {
    columns.set(c.name, {
      name: c.name,
      title: c.title,
      filter: c.filter,
      values: c.values,
      codes: unpack(c.packed, n),
    });
  }
  const measures = new Map(data.measures.map(m => [m.name, m]));
  const old = unpack(data.old, n);
  const point = unpack(data.point, n);
  const column = name => columns.get(name);
  const value = (name, i) => {
    const c = columns.get(name);
    return c.values[c.codes[i]];
  };

  // Cell ids, decoded from the last one that stands in full.
  let ids = null;
  function id(i) {
    if (ids) return ids[i];
    let out = "";
    for (let j = i - (i % data.id_step); j <= i; j++) out = out.slice(0, data.ids[2 * j]) + data.ids[2 * j + 1];
    return out;
  }
  function find(wanted, run) {
    if (!ids) {
      const all = new Array(n);
      for (let i = 0, before = ""; i < n; i++) all[i] = before = before.slice(0, data.ids[2 * i]) + data.ids[2 * i + 1];
      ids = all;
    }
    let found = -1;
    for (let i = 0; i < n; i++) {
      if (ids[i] !== wanted) continue;
      if (run ? value("run", i) === run : !old[i]) return i;
      if (!run) found = i;
    }
    return found;
  }

  const decoded = new Map();
  async function chunk(number) {
    const packed = atob(document.getElementById(`e${number}`).textContent);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  async function evidence(i) {
    const number = Math.floor(i / data.chunk);
    if (!decoded.has(number)) {
      if (decoded.size > 24) decoded.delete(decoded.keys().next().value);
      decoded.set(number, chunk(number));
    }
    return (await decoded.get(number))[i % data.chunk];
  }

  // What is chosen. Values of filters are text; a value that several words make up matches by any of them.
  const home = !n && data.pairs.length ? "pairs" : "table"; // the view that is shown first
  const state = { view: home, query: "", cell: "", run: "" };
  const filters = {};
  const params = {};
  const listeners = [];
  const NONE = "none";
  const label = v => (v === null ? "unknown" : v === "" || (Array.isArray(v) && !v.length) ? NONE : v);
  const words = v => (Array.isArray(v) ? (v.length ? v : [NONE]) : [String(label(v))]);

  let seen = null,
    seenWithout = new Map();
  function accepted(name, chosen) {
    const c = columns.get(name),
      out = new Uint8Array(c.values.length),
      wanted = new Set(chosen);
    c.values.forEach((v, code) => {
      if (words(v).some(w => wanted.has(w))) out[code] = 1;
    });
    return out;
  }
  // A word of the search matches a record by any column's value, or by a token of its id such as b128 or tp4.
  const TOKENS = { block_size: "b", tp: "tp", k: "k" };
  function matcher(word) {
    const hits = [];
    for (const c of columns.values()) {
      if (c.name === "run" || c.name === "versions") continue;
      const ok = new Uint8Array(c.values.length);
      let any = false;
      c.values.forEach((v, code) => {
        const token = TOKENS[c.name] === undefined ? "" : TOKENS[c.name] + v;
        if (token ? word === token || word === String(v) : words(v).join(" ").toLowerCase().includes(word))
          ok[code] = any = 1;
      });
      if (any) hits.push([c.codes, ok]);
    }
    return i => {
      for (const [codes, ok] of hits) if (ok[codes[i]]) return true;
      return false;
    };
  }
  function filtered(without, bare) {
    const tests = [],
      runs = !bare && without !== "run" && filters.run;
    if (!bare) {
      for (const [name, chosen] of Object.entries(filters)) {
        if (name !== without && columns.has(name)) tests.push([columns.get(name).codes, accepted(name, chosen)]);
      }
    }
    const q = bare ? "" : state.query.trim().toLowerCase();
    const whole = q.length > 40 && !/\s/.test(q) ? find(state.query.trim()) : -1;
    const search =
      whole >= 0
        ? [i => i === whole]
        : q
            .split(/\s+/)
            .filter(w => w && w !== "and")
            .map(matcher);
    const out = new Uint32Array(n);
    let count = 0;
    next: for (let i = 0; i < n; i++) {
      if (old[i] && !runs) continue;
      for (const [codes, ok] of tests) if (!ok[codes[i]]) continue next;
      for (const f of search) if (!f(i)) continue next;
      out[count++] = i;
    }
    return out.subarray(0, count);
  }
  const visible = () => seen || (seen = filtered());
  let bare = null;
  const every = () => bare || (bare = filtered(undefined, true));
  // Records that all filters but one let through: for the counts beside that one's values.
  function without(name) {
    if (!filters[name]) return visible();
    if (!seenWithout.has(name)) seenWithout.set(name, filtered(name));
    return seenWithout.get(name);
  }

  function changed(what) {
    if (what === "filter") {
      seen = null;
      seenWithout.clear();
    }
    write();
    for (const f of listeners) f(what);
  }
  function setFilter(name, values) {
    if (values && values.length) filters[name] = values.map(String);
    else delete filters[name];
    changed("filter");
  }
  function clearFilters() {
    for (const name of Object.keys(filters)) delete filters[name];
    state.query = "";
    changed("filter");
  }
  function setQuery(query) {
    state.query = query;
    changed("filter");
  }
  function setView(view) {
    state.view = view;
    changed("view");
  }
  function setParam(key, v) {
    if (v === "" || v === undefined || v === null) delete params[key];
    else params[key] = String(v);
    changed("view");
  }
  function open(i) {
    state.cell = id(i);
    state.run = find(state.cell) === i ? "" : value("run", i);
    changed("cell");
  }
  function close() {
    if (state.cell) {
      state.cell = state.run = "";
      changed("cell");
    }
  }
  const opened = () => (state.cell ? find(state.cell, state.run) : -1);

  // The address: #view=list&backend=A,B&q=words&cell=ID&of=RUN. Commas inside values are escaped.
  let written = null;
  function write() {
    const parts = [];
    const put = (key, v) => parts.push(`${encodeURIComponent(key)}=${v}`);
    if (state.view !== home) put("view", encodeURIComponent(state.view));
    for (const [name, chosen] of Object.entries(filters)) put(name, chosen.map(encodeURIComponent).join(","));
    for (const [key, v] of Object.entries(params)) put(`.${key}`, encodeURIComponent(v));
    if (state.query.trim()) put("q", encodeURIComponent(state.query.trim()));
    if (state.cell) put("cell", encodeURIComponent(state.cell).replace(/%3A/g, ":"));
    if (state.run) put("of", encodeURIComponent(state.run));
    written = parts.length ? `#${parts.join("&")}` : "";
    if (written === location.hash) return;
    try {
      history.replaceState(null, "", written || location.pathname + location.search);
    } catch {
      location.hash = written;
    }
  }
  const plain = part => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  function read() {
    for (const name of Object.keys(filters)) delete filters[name];
    for (const key of Object.keys(params)) delete params[key];
    Object.assign(state, { view: home, query: "", cell: "", run: "" });
    for (const part of location.hash.slice(1).split("&")) {
      const at = part.indexOf("=");
      if (at < 1) continue;
      const key = plain(part.slice(0, at)),
        raw = part.slice(at + 1);
      if (key === "view") state.view = plain(raw);
      else if (key === "q") state.query = plain(raw);
      else if (key === "cell") state.cell = plain(raw);
      else if (key === "of") state.run = plain(raw);
      else if (key.startsWith(".")) params[key.slice(1)] = plain(raw);
      else if (columns.has(key)) filters[key] = raw.split(",").map(plain);
    }
  }
  addEventListener("hashchange", () => {
    if (location.hash === written) return;
    read();
    changed("filter");
    changed("view");
    changed("cell");
  });

  // Words and figures.
  const verdictOf = new Map(data.legend.verdicts.map(v => [v.name, v]));
  const rungOf = new Map(data.legend.rungs.map((r, i) => [r.name, { ...r, strength: i }]));
  const ran = verdict => Boolean(verdictOf.get(verdict) && verdictOf.get(verdict).ran);
  function markOf(verdict, rung, extra) {
    const weak = verdict === "pass" && rung && rungOf.get(rung).strength < 2 ? " weak" : "";
    const pips =
      ran(verdict) && rung
        ? el("span", { className: `pips r${rungOf.get(rung).strength + 1}`, title: `${rung} rung` })
        : null;
    return el(
      "span",
      { className: `v ${verdict}${weak}` },
      el("i", { className: `s ${verdict}`, "aria-hidden": "true" }),
      verdict,
      pips ? [" ", el("small", {}, rung), pips] : null,
      extra,
    );
  }
  const three = v => (Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3))));
  function unit(v, kind) {
    if (v === null || v === undefined) return "";
    if (kind === "B") return v >= 1024 ? `${three(v / 1024)} KiB` : `${v} B`;
    if (kind === "us") return v >= 1000 ? `${three(v / 1000)} ms` : `${three(v)} µs`;
    if (kind === "s") return v < 1 ? `${three(v * 1000)} ms` : `${three(v)} s`;
    return three(v);
  }
  function cellLink(name, words_) {
    return el(
      "a",
      {
        className: "cell",
        href: `#cell=${encodeURIComponent(name)}`,
        onclick: event => {
          const i = find(name);
          if (i < 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          open(i);
        },
      },
      words_ || name,
    );
  }

  const views = [];
  function registerView(name, title, render, options) {
    views.push({ name, title, render, when: options && options.when });
  }

  window.capmatrix = {
    data,
    n,
    home,
    column,
    columns,
    value,
    measure: name => measures.get(name),
    measures,
    id,
    find,
    evidence,
    point,
    environment: (i, ev) => data.environments[ev.record.environment],
    filters,
    params,
    state,
    setFilter,
    clearFilters,
    setQuery,
    setView,
    setParam,
    open,
    close,
    opened,
    visible,
    every,
    without,
    words,
    label,
    onChange: f => listeners.push(f),
    views,
    registerView,
    changed,
    read,
    el,
    text,
    markOf,
    cellLink,
    unit,
    three,
    ran,
    verdictOf,
    rungOf,
    isOld: i => Boolean(old[i]),
  };
  read();
})();
