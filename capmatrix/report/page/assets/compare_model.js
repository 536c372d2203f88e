// Two selections of records side by side, as capmatrix/analysis/compare.py aligns and judges them. A test holds the two
// against each other.
//
//   capmatrix.compare.KINDS               kinds of entry, those that matter most first; "left", "right": one side alone
//   capmatrix.compare.title(kind, by)     a kind in words; by run or version time goes by from left to right
//   capmatrix.compare.short(kind, by)     the same in a word or two
//   capmatrix.compare.axes()              columns with two or more values that can be compared by
//   capmatrix.compare.compare(by, left, right) -> [{key, left, right, kind, kinds, times}]
//       left, right: record numbers or -1; values as text; the newest run's record counts, then the strongest rung's
//   capmatrix.compare.agreement(entries, by) -> {agree, apart: [[entry, time], ...]} or null, as
//       capmatrix/analysis/agreement.py counts: of two runs or versions, times on the same hardware
//   capmatrix.compare.lacking(entries) -> [left, right]: times that the other side has none for
//   capmatrix.compare.ratio(time)         right over left and what it lies between, in figures that tell it from 1
//   capmatrix.compare.facts(entries) -> [[name, left, right, entries], ...]: what the environments state differently
//   capmatrix.compare.sections(i, a, j, b) -> [[title, [[label, left, right], ...]], ...] of two records' evidence
//   capmatrix.compare.runs, age           the runs, oldest first; of each code of the column "run" its place among them
//   capmatrix.compare.hardware(i)         the GPU's name of a record's environment, or ""
(() => {
  "use strict";
  const c = window.capmatrix, extra = c.data.extra.compare;
  const KINDS = ["regression", "slower", "lost", "verdict", "fix", "faster", "rung", "mark", "route", "same", "left", "right"];
  const ORDERED = {
    regression: "Regressions", slower: "Slower", lost: "Evidence lost", verdict: "Other changes of verdict", fix: "Fixes",
    faster: "Faster", rung: "Rungs changed", mark: "Marks changed", route: "Kernels or kernel blocks changed",
    same: "The same", left: "Only on the left", right: "Only on the right",
  };
  const UNORDERED = {
    ...ORDERED, regression: "Works on the left alone", slower: "Slower on the right",
    lost: "Works on the left, not told on the right", verdict: "Other differences of verdict",
    fix: "Works on the right alone", faster: "Faster on the right", rung: "Rungs differ", mark: "Marks differ",
    route: "Kernels or kernel blocks differ",
  };
  // The same in a word or two, for a column of a list.
  const SHORT = { verdict: "verdict", lost: "evidence lost", rung: "rung", mark: "marks", route: "kernels", same: "same", left: "only left", right: "only right" };
  const short = (kind, by) => SHORT[kind] || (title(kind, by) === UNORDERED[kind] && kind === "regression" ? "works left" : title(kind, by) === UNORDERED[kind] && kind === "fix" ? "works right" : kind);
  const MARGIN = 1.05;
  const CELL = ["target", "backend", "block_size", "kv_cache_dtype", "drafter", "tp", "geometry", "dtype", "batch", "execution", "runner", "scales", "force", "switches"];
  // What follows from an axis, or is reduced with it, so that nothing is aligned on it either.
  const FOLLOWING = { target: ["geometry"], tp: ["geometry"], drafter: ["geometry"] };
  const BY = ["run", "versions", "arch", ...CELL.filter(name => name !== "geometry")];
  const title = (kind, by) => (by === "run" || by === "versions" ? ORDERED : UNORDERED)[kind];

  function unpack(packed) {
    const out = new Uint32Array(c.n);
    for (let k = 0, at = 0; k < packed.length; k += 2) { out.fill(packed[k], at, at + packed[k + 1]); at += packed[k + 1]; }
    return out;
  }
  const environments = unpack(extra.environment), routes = unpack(extra.route);
  const environment = i => c.data.environments[extra.environments[environments[i]]];
  const hardware = i => { const e = environment(i), facts = (e && e.hardware) || {}; return String(facts.name || facts.gpu || ""); };

  const axes = () => BY.map(c.column).filter(x => x && x.values.length > 1);

  // A record's key: what it must share with another to stand beside it.
  function keys(by) {
    const without = new Set([by, ...(FOLLOWING[by] || [])]);
    const names = CELL.filter(name => !without.has(name)), found = names.map(c.column), K = c.column("k"), B = c.column("batch");
    const kindOf = by === "arch" ? new Map() : null;
    const target = names.indexOf("target");
    const kinds = kindOf && found[target].values.map(v => { const kind = String(v).split(":")[0]; if (!kindOf.has(kind)) kindOf.set(kind, kindOf.size); return kindOf.get(kind); });
    const asksK = B.values.map(v => /^(verify|mixed$|padded$)/.test(String(v)));
    const withK = !without.has("batch");
    return i => {
      let out = "";
      for (let k = 0; k < found.length; k++) out += `${k === target && kinds ? kinds[found[k].codes[i]] : found[k].codes[i]},`;
      return withK && asksK[B.codes[i]] ? `${out}k${K.codes[i]}` : out;
    };
  }

  // Runs, oldest first, ties as given; and of each code of the column its place among them.
  const runs = c.data.runs.map((run, k) => ({ ...run, k, date: run.created.slice(0, 19) })).sort((a, b) => (a.date < b.date ? -1 : a.date > b.date ? 1 : a.k - b.k));
  const age = c.column("run").values.map(name => runs.findIndex(run => run.name === name));

  const V = c.column("verdict"), R = c.column("rung"), F = c.column("flags"), RUN = c.column("run"), KB = c.column("kernel_block");
  const strength = R.values.map(r => c.rungOf.get(r).strength);
  const passes = V.values.map(v => v === "pass");
  const bad = V.values.map(v => v === "rejected" || c.verdictOf.get(v).failed);

  function times(i, j) {
    const out = [], before = extra.times[i], after = extra.times[j];
    if (!before || !after) return out;
    const same = hardware(i) === hardware(j);
    for (const [phase, workload, median, low, high] of after) {
      const was = before.find(t => t[0] === phase && t[1] === workload);
      if (!was || !(Math.min(was[2], was[3], was[4]) > 0)) continue;
      let kind = "";
      if (same && low > was[4] && median > was[2] * MARGIN) kind = "slower";
      else if (same && high < was[3] && median * MARGIN < was[2]) kind = "faster";
      out.push({ phase, workload, left: was.slice(2), right: [median, low, high], ratio: median / was[2], low: low / was[4], high: high / was[3], kind });
    }
    return out;
  }

  function judge(i, j) {
    const kinds = [], v = V.codes[i], w = V.codes[j];
    if (v !== w) kinds.push(passes[v] ? (bad[w] ? "regression" : "lost") : passes[w] && bad[v] ? "fix" : "verdict");
    else {
      if (R.codes[i] !== R.codes[j]) kinds.push("rung");
      if (F.codes[i] !== F.codes[j]) kinds.push("mark");
    }
    const blocks = KB.values[KB.codes[i]] !== null && KB.values[KB.codes[j]] !== null && KB.codes[i] !== KB.codes[j];
    if (blocks || (routes[i] && routes[j] && routes[i] !== routes[j])) kinds.push("route");
    const timed = times(i, j);
    for (const t of timed) if (t.kind) kinds.push(t.kind);
    kinds.sort((a, b) => KINDS.indexOf(a) - KINDS.indexOf(b));
    return { kind: kinds[0] || "same", kinds, times: timed };
  }

  function compare(by, left, right) {
    const column = c.column(by), keyOf = keys(by), sides = [new Map(), new Map()];
    const wanted = [left, right].map(value => column.values.findIndex(v => String(c.label(v)) === value));
    const newer = (i, j) => age[RUN.codes[i]] - age[RUN.codes[j]];
    const better = (i, j) => newer(i, j) > 0 || (newer(i, j) === 0 && strength[R.codes[i]] >= strength[R.codes[j]]);
    for (let i = 0; i < c.n; i++) {
      const side = sides[column.codes[i] === wanted[0] ? 0 : 1];
      if (!wanted.includes(column.codes[i])) continue;
      const key = keyOf(i), before = side.get(key);
      if (before === undefined || better(i, before)) side.set(key, i);
    }
    const out = [];
    for (const key of new Set([...sides[0].keys(), ...sides[1].keys()])) {
      const i = sides[0].has(key) ? sides[0].get(key) : -1, j = sides[1].has(key) ? sides[1].get(key) : -1;
      out.push({ key, left: i, right: j, ...(i < 0 ? { kind: "right", kinds: ["right"], times: [] } : j < 0 ? { kind: "left", kinds: ["left"], times: [] } : judge(i, j)) });
    }
    return out;
  }

  // Whether two timed runs agree: how many times have intervals that meet, and the others, the furthest apart first.
  function agreement(entries, by) {
    if (by !== "run" && by !== "versions") return null;
    let agree = 0;
    const apart = [], distance = t => Math.max(t.ratio, 1 / t.ratio);
    for (const e of entries) {
      if (e.left < 0 || e.right < 0 || hardware(e.left) !== hardware(e.right)) continue;
      for (const t of e.times) { if (t.low <= 1 && 1 <= t.high) agree++; else apart.push([e, t]); }
    }
    return agree || apart.length ? { agree, apart: apart.sort((a, b) => distance(b[1]) - distance(a[1])) } : null;
  }
  function lacking(entries) {
    const named = i => (extra.times[i] || []).map(t => JSON.stringify(t.slice(0, 2)));
    const without = (i, j) => { const other = named(j); return named(i).filter(name => !other.includes(name)).length; };
    return entries.reduce(([a, b], e) => [a + without(e.left, e.right), b + without(e.right, e.left)], [0, 0]);
  }
  function ratio(t) {
    const all = [t.ratio, t.low, t.high], shown = n => all.map(v => Number(v.toPrecision(n)));
    const digits = [3, 4].find(n => shown(n).every((v, k) => v !== 1 || all[k] === 1)) || 5;
    const [value, low, high] = shown(digits).map(v => v.toLocaleString("en", { maximumSignificantDigits: digits }));
    return `×${value} (${low} to ${high})`;
  }

  // What the environments of both sides state differently: [name, left, right, entries].
  function facts(entries) {
    const pairs = new Map(), out = new Map();
    for (const e of entries) {
      if (e.left < 0 || e.right < 0) continue;
      const key = environments[e.left] * c.n + environments[e.right];
      if (!pairs.has(key)) pairs.set(key, { e, count: 0 });
      pairs.get(key).count++;
    }
    for (const { e, count } of pairs.values()) {
      for (const line of differing(e.left, e.right)) {
        const key = JSON.stringify(line);
        if (!out.has(key)) out.set(key, [...line, 0]);
        out.get(key)[3] += count;
      }
    }
    return [...out.values()].sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
  }
  function differing(i, j) {
    const one = environment(i), two = environment(j);
    if (!one || !two) return one === two ? [] : [["environment", one ? "recorded" : "not recorded", two ? "recorded" : "not recorded"]];
    const mine = flat(one), theirs = flat(two);
    const out = [...new Set([...mine.keys(), ...theirs.keys()])].filter(k => mine.get(k) !== theirs.get(k)).sort().map(k => [k, mine.get(k) || "none", theirs.get(k) || "none"]);
    const ours = one.extensions || [], other = two.extensions || [];
    const only = (x, y) => x.filter(word => !y.includes(word)).sort().join("; ") || "nothing else";
    if (ours.some(w => !other.includes(w)) || other.some(w => !ours.includes(w))) out.push(["changed by capmatrix", only(ours, other), only(other, ours)]);
    return out;
  }

  // Evidence, row by row; what either side lacks is a dash.
  const NOTHING = "–";
  const said = v => (v === undefined || v === null || v === "" ? NOTHING : typeof v === "object" ? JSON.stringify(v) : String(v));
  const rows = list => list.map(([label, a, b]) => [label, said(a), said(b)]).filter(r => r[1] !== NOTHING || r[2] !== NOTHING);
  const num = v => (Number.isInteger(v) ? String(v) : c.three(v));

  function kernel(k) {
    const parts = [`${k.name} (${k.kind.replace("_", "-")})`];
    if ((k.calls || 1) !== 1) parts.push(`×${k.calls}`);
    if (k.grid) parts.push(`grid ${k.grid.join("×")}`);
    for (const [name, v] of [["warps", k.num_warps], ["VGPR", k.vgprs], ["AGPR", k.agprs], ["SGPR", k.sgprs]]) if (v !== undefined && v !== null) parts.push(`${name} ${v}`);
    if (k.lds_bytes !== undefined && k.lds_bytes !== null) parts.push(`LDS ${c.unit(k.lds_bytes, "B")}`);
    const spills = [k.vgpr_spills, k.sgpr_spills].filter(Boolean);
    if (spills.length) parts.push(`spills ${spills.join("+")}`);
    if (k.scratch_bytes) parts.push(`scratch ${c.unit(k.scratch_bytes, "B")}`);
    return parts.join(", ");
  }
  function check(x) {
    if (!x) return NOTHING;
    const parts = [x.ok === true ? "ok" : x.ok === false ? "BAD" : "not judged"];
    if (x.relative_l2 !== undefined && x.relative_l2 !== null) parts.push(`relative L2 ${num(x.relative_l2)}`);
    else if (x.max_abs !== undefined && x.max_abs !== null) parts.push(`largest ${num(x.max_abs)}`);
    if (x.bound !== undefined && x.bound !== null) parts.push(`bound ${num(x.bound)}`);
    if (x.worst_row_error !== undefined && x.worst_row_error !== null) parts.push(`worst row ${num(x.worst_row_error)}`);
    if (x.nan_count) parts.push(`${x.nan_count} NaN`);
    if (x.unwritten_count) parts.push(`${x.unwritten_count} unwritten`);
    return parts.join(", ");
  }
  const timing = t => (t ? `${c.unit(t.median_us, "us")} (${c.unit(t.low_us, "us")} to ${c.unit(t.high_us, "us")}), ${t.repeats} repeats${t.share_of_roofline ? `, ${c.three(t.share_of_roofline * 100)} % of roofline` : ""}` : "not timed");
  const failure = r => (r.failure ? `${r.failure.type}: ${r.failure.message}` : "");

  // Lists of both sides by a name of their entries, in the left one's order.
  function beside(one, two, nameOf) {
    const sides = [one, two].map(list => new Map((list || []).map(x => [nameOf(x), x])));
    return [...new Set([...sides[0].keys(), ...sides[1].keys()])].map(name => [name, sides[0].get(name), sides[1].get(name)]);
  }
  function flat(e) {
    const out = new Map();
    if (!e) return out;
    const add = (prefix, facts) => { for (const [k, v] of Object.entries(facts || {})) out.set(prefix + k, typeof v === "object" ? JSON.stringify(v) : String(v)); };
    add("", e.versions); add("commit of ", e.commits); add("hardware ", e.hardware); add("identity ", e.identity); add("switch ", e.switches);
    return out;
  }

  function sections(i, a, j, b) {
    const one = a ? a.record : {}, two = b ? b.record : {}, get = f => [a ? f(one, i) : "", b ? f(two, j) : ""];
    const row = (label, f) => [label, ...get(f)];
    const cache = [...new Set([...Object.keys(one.kv_cache || {}), ...Object.keys(two.kv_cache || {})])];
    const lines = Math.max((one.route || []).length, (two.route || []).length);
    const timed = beside(one.times, two.times, t => `${t.phase}, ${t.workload}`);
    const found = [
      ["Outcome", rows([
        row("verdict", r => (c.ran(r.verdict) ? `${r.verdict} (${r.rung})` : r.verdict)), row("marks", r => (r.flags || []).join(", ")),
        row("ended at", r => r.phase), row("reasons", r => (r.reasons || []).join("\n")), row("failure", failure),
        row("deepest frame", r => r.failure && r.failure.frame), row("repeats", r => (r.repeats || []).join(", ")),
        row("run", (r, k) => c.value("run", k)), row("when", r => r.started_at), row("cell id", r => r.cell_id),
      ])],
      ["Claims", rows(beside(one.claims, two.claims, x => x.layer).map(([name, x, y]) => [name, ...[x, y].map(z => (z ? `${z.accepts === true ? "yes" : z.accepts === false ? "no" : NOTHING} ${z.detail || ""}`.trim() : ""))]))],
      ["Set-up", rows([
        row("kernel block", r => r.kernel_block), row("layout", r => r.layout), row("implementation", r => r.implementation),
        row("graph support", r => r.graph_support), ...cache.map(k => row(`KV cache ${k}`, r => (r.kv_cache || {})[k])),
      ])],
      ["Route", rows(Array.from({ length: lines }, (_, k) => {
        const both = [one, two].map(r => (r.route || [])[k]);
        return [(both[0] || both[1]).phase, ...both.map(x => (x ? kernel(x) : ""))];
      }))],
      ["Numbers (error, and the worst row's over its own bound)", rows(beside(one.checks, two.checks, x => ((x.cache || "zeroed") === "zeroed" ? x.part : `${x.part}, ${x.cache} slots`)).map(([name, x, y]) => [name, check(x), check(y)]))],
      ["Times of a call", timed.map(([name, x, y]) => [name, timing(x), timing(y)])],
      ["Environment: what differs", a && b ? differing(i, j) : []],
    ];
    return found.filter(s => s[1].length);
  }

  c.compare = { KINDS, title, short, axes, compare, agreement, lacking, ratio, facts, sections, hardware, runs, age };
})();
