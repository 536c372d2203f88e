// The heat map as data: one section an architecture and set of versions; rows, columns and groups by the axes that the
// user picks; a tile is the numbers of its records.
//
//   capmatrix.heat.model() -> {axes, homes}; a home: {names, codes, indices, absent, columns, groups,
//       varying, batches, hidden}; groups hold rows, rows hold tiles: record numbers by a column's key
//   capmatrix.heat.shown(name, code), named(name, code), axisTitle(name): words for a column's value, and for a column
//   capmatrix.heat.kernelBlock(findings): the kernels' block where it is not the manager's, else null
//   capmatrix.heat.beside(i): the records that differ from record i in target and batch alone
(() => {
  "use strict";
  const c = window.capmatrix;
  // Axes that a row's name must tell where they vary and no axis of the table does: one tile, one point of the matrix.
  const VARIANT = ["dtype", "execution", "runner", "scales", "role", "method", "k", "switches", "force"];
  const BY_DRAFTER = new Set(["role", "method", "k"]);
  const WORDS = {
    runner: v => `runner ${v}`,
    role: v => `role ${v}`,
    method: v => `method ${v}`,
    k: v => `k=${v}`,
    scales: v => `${String(v).replace("_", "-")} scales`,
    switches: v => v || "no switches",
    force: v => (v ? `forced ${v.replace("_", " ")}` : ""),
    dtype: v => ({ bfloat16: "bf16", float16: "fp16", float32: "fp32" })[v] || v,
  };
  const HOME = ["arch", "versions"];

  const axisTitle = name => (c.column(name) ? c.column(name).title : name);
  const list = (key, standard) =>
    c.params[key] === undefined ? standard : c.params[key].split(",").filter(x => c.column(x));
  const chosen = () => ({
    rows: list("rows", ["backend"]),
    columns: list("cols", ["block_size", "kv_cache_dtype"]),
    groups: list("by", ["drafter", "tp"]),
    split: c.params.split !== "0",
  });

  // Of a record, one key for its codes in several columns: a number where that is exact, else a string.
  function keyOf(names) {
    const columns = names.map(c.column),
      size = columns.reduce((product, x) => product * x.values.length, 1);
    if (size > Number.MAX_SAFE_INTEGER) return i => columns.map(x => x.codes[i]).join(",");
    const codes = columns.map(x => x.codes),
      sizes = columns.map(x => x.values.length);
    return i => {
      let key = 0;
      for (let k = 0; k < codes.length; k++) key = key * sizes[k] + codes[k][i];
      return key;
    };
  }
  // Entries by key, each with the codes of its first record; tuples of codes sort as the columns' values do.
  const byCodes = (a, b) => {
    for (let k = 0; k < a.codes.length; k++) if (a.codes[k] !== b.codes[k]) return a.codes[k] - b.codes[k];
    return 0;
  };
  const sorted = map => [...map.values()].sort(byCodes);
  function gather(map, names, key, i, make) {
    let found = map.get(key);
    if (!found) map.set(key, (found = { key, codes: names.map(name => c.column(name).codes[i]), ...make() }));
    return found;
  }
  function split(indices, names) {
    const out = new Map(),
      key = keyOf(names);
    for (const i of indices) gather(out, names, key(i), i, () => ({ indices: [] })).indices.push(i);
    return out;
  }

  // Axes among VARIANT that vary in a home; what a drafter fixes counts only if it varies within one.
  function varying(indices, used) {
    return VARIANT.filter(name => {
      if (used.has(name) || c.column(name).values.length < 2) return false;
      const codes = c.column(name).codes,
        perDrafter = BY_DRAFTER.has(name),
        seen = new Map();
      const D = c.column("drafter").codes,
        T = c.column("tp").codes;
      // What is forced is told wherever it is.
      if (name === "force") return indices.some(i => c.column(name).values[codes[i]] !== "");
      for (const i of indices) {
        const key = perDrafter ? D[i] * 100000 + T[i] : 0,
          before = seen.get(key);
        if (before === undefined) seen.set(key, codes[i]);
        else if (before !== codes[i]) return true;
      }
      return false;
    });
  }

  // What varies in a home does not change with the filters.
  const remembered = new Map();

  // Sections of the table as data: homes > groups > rows > tiles (record numbers by column key).
  function model() {
    const axes = chosen(),
      used = new Set([...axes.rows, ...axes.columns, ...axes.groups]);
    const homeAxes = HOME.filter(name => !used.has(name));
    const visible = c.visible(),
      every = c.every(),
      homes = split(visible, homeAxes),
      all = visible.length === every.length ? homes : split(every, homeAxes);
    const V = c.column("verdict"),
      B = c.column("batch").codes;
    for (const home of homes.values()) {
      home.absent = home.indices.every(i => V.values[V.codes[i]] === "unavailable");
      home.names = homeAxes;
      const whole = all.get(home.key) || home;
      const asked = `${homeAxes} ${home.key} ${[...used]} ${whole.indices.length}`;
      if (!remembered.has(asked)) remembered.set(asked, varying(whole.indices, used));
      home.varying = axes.split ? remembered.get(asked) : [];
      const rowAxes = [...axes.rows, ...home.varying],
        columns = new Map(),
        groups = new Map();
      const groupOf = keyOf(axes.groups),
        rowOf = keyOf(rowAxes),
        columnOf = keyOf(axes.columns);
      const tileOf = keyOf([...axes.groups, ...rowAxes, ...axes.columns]);
      // What was run, whatever is filtered: the batches that a tile of a group should have, and the tiles there are.
      home.batches = new Map();
      const known = new Set();
      for (const i of whole.indices) {
        const key = groupOf(i);
        if (!home.batches.has(key)) home.batches.set(key, new Set());
        home.batches.get(key).add(B[i]);
        if (whole !== home) known.add(tileOf(i));
      }
      for (const i of home.indices) {
        const group = gather(groups, axes.groups, groupOf(i), i, () => ({ rows: new Map(), indices: [] }));
        group.indices.push(i);
        const row = gather(group.rows, rowAxes, rowOf(i), i, () => ({ tiles: new Map() }));
        const column = gather(columns, axes.columns, columnOf(i), i, () => ({}));
        const tile = row.tiles.get(column.key);
        if (tile) tile.push(i);
        else row.tiles.set(column.key, [i]);
      }
      home.columns = sorted(columns);
      home.groups = sorted(groups);
      for (const group of home.groups) group.rows = sorted(group.rows);
      const sizes = [...axes.groups, ...rowAxes, ...axes.columns].map(name => c.column(name).values.length);
      // Whether a tile without a visible record has one that is filtered: such a one was run.
      home.hidden = (group, row, column) => {
        if (!known.size) return false;
        const codes = [...group.codes, ...row.codes, ...column.codes];
        const exact = sizes.reduce((product, size) => product * size, 1) <= Number.MAX_SAFE_INTEGER;
        return known.has(exact ? codes.reduce((key, code, k) => key * sizes[k] + code, 0) : codes.join(","));
      };
    }
    const out = [...homes.values()].sort((a, b) => a.absent - b.absent || byCodes(a, b));
    return { axes, homes: out };
  }

  const shown = (name, code) => {
    const v = c.column(name).values[code];
    return (WORDS[name] || (x => String(c.label(x))))(v);
  };
  const named = (name, code) => {
    const v = c.label(c.column(name).values[code]);
    return (
      { block_size: `block ${v}`, tp: `TP ${v}`, k: `k=${v}`, kernel_block: `kernel block ${v}` }[name] ||
      (WORDS[name] ? WORDS[name](c.column(name).values[code]) : String(Array.isArray(v) ? v.join(" ") : v))
    );
  };

  function kernelBlock(findings) {
    const K = c.column("kernel_block"),
      B = c.column("block_size");
    const ran = findings.filter(f => c.ran(c.value("verdict", f.deciding)));
    if (!ran.length) return null;
    const first = K.values[K.codes[ran[0].deciding]];
    if (first === null || ran.some(f => K.values[K.codes[f.deciding]] !== first)) return null;
    return ran.every(f => B.values[B.codes[f.deciding]] === first) ? null : first;
  }

  // What a tile of the usual table shares.
  const POINT = ["arch", "versions", "backend", "block_size", "kv_cache_dtype", "drafter", "tp", ...VARIANT];
  function beside(i) {
    const same = POINT.map(name => [c.column(name).codes, c.column(name).codes[i]]);
    const out = [i];
    for (const j of c.every()) if (j !== i && same.every(([codes, code]) => codes[j] === code)) out.push(j);
    return out;
  }

  c.heat = { model, chosen, shown, named, axisTitle, kernelBlock, beside };
})();
