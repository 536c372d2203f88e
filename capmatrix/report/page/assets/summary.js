// From many records to one word, as capmatrix/summary.py does it: over targets, then over batches. A test holds the two
// against each other.
//
//   capmatrix.summary.summarise(indices) -> {verdict, rung, flags, deciding, findings}
//       findings: [{deciding, others, conflicts}], record numbers; one a point and batch
//   capmatrix.summary.rank(i): the smaller the more a record decides among those of one point
(() => {
  "use strict";
  const c = window.capmatrix;
  const verdicts = c.data.legend.verdicts,
    rungs = c.data.legend.rungs;
  const V = c.column("verdict"),
    R = c.column("rung"),
    F = c.column("flags");
  // Position of a verdict in the order of severity, and of a rung in that of strength, by code of the column.
  const severity = V.values.map(v => verdicts.findIndex(w => w.name === v));
  const strength = R.values.map(r => rungs.findIndex(w => w.name === r));
  const tells = V.values.map(v => verdicts.find(w => w.name === v).tells);
  const group = V.values.map((v, i) => (tells[i] ? 0 : v === "unverified" ? 1 : v === "rejected" ? 2 : 3));

  function rank(i) {
    const v = V.codes[i];
    return group[v] * 10000 + (100 - strength[R.codes[i]]) * 100 + severity[v];
  }

  function overTargets(members) {
    const ordered = members
      .map(i => [rank(i), i])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1])
      .map(p => p[1]);
    const first = ordered[0],
      others = ordered.slice(1),
      v = V.codes[first];
    const conflicts =
      tells[v] || V.values[v] === "rejected"
        ? others.filter(i => V.codes[i] !== v && (tells[V.codes[i]] || V.values[V.codes[i]] === "rejected"))
        : [];
    return { deciding: first, others, conflicts };
  }

  function summarise(indices) {
    const points = new Map();
    for (const i of indices) {
      const key = c.point[i],
        found = points.get(key);
      if (found) found.push(i);
      else points.set(key, [i]);
    }
    const findings = Array.from(points.values(), overTargets);
    const ran = findings.filter(f => c.ran(V.values[V.codes[f.deciding]]));
    const considered = ran.length ? ran : findings;
    let worst = Infinity;
    for (const f of considered) worst = Math.min(worst, severity[V.codes[f.deciding]]);
    const verdict = verdicts[worst];
    let deciding = null;
    for (const f of considered) {
      if (severity[V.codes[f.deciding]] !== worst) continue;
      const s = strength[R.codes[f.deciding]];
      if (!deciding || (verdict.failed ? s > deciding.s : s < deciding.s)) deciding = { f, s };
    }
    const flags = new Set();
    for (const f of considered) for (const flag of F.values[F.codes[f.deciding]]) flags.add(flag);
    if (findings.some(f => f.conflicts.length)) flags.add("conflict");
    return {
      verdict: verdict.name,
      rung: rungs[deciding.s].name,
      flags,
      deciding: deciding.f.deciding,
      findings,
      ran: ran.length,
    };
  }

  c.summary = { summarise, rank };
})();
