// The comparison: two runs, versions, architectures or values of an axis side by side. Differences are strong, the rest
// is faint; a click shows both evidences.
(() => {
  "use strict";
  const c = window.capmatrix, { el } = c;
  const KINDS = c.compare.KINDS, MOST = 100, MOST_ROWS = 120;
  const DIFFERENT = new Set(KINDS.slice(0, KINDS.indexOf("same")));
  const HOME = ["arch", "target"];
  const VARIANT = ["dtype", "execution", "runner", "scales", "role", "method", "k", "switches", "force"];
  const WORDS = { block_size: v => `block ${v}`, tp: v => `TP ${v}`, k: v => `k=${v}`, runner: v => `runner ${v}`, role: v => `role ${v}`, method: v => `method ${v}`, scales: v => `${String(v).replace("_", "-")} scales`, force: v => (v ? `forced ${v}` : ""), switches: v => v || "no switches" };
  const words = (name, i) => { const v = c.value(name, i); return (WORDS[name] || (x => String(c.label(x))))(v); };
  const shownValues = column => column.values.map(v => String(c.label(v)));
  const either = entry => (entry.left >= 0 ? entry.left : entry.right);
  const verdictOf = i => (i < 0 ? "not run" : c.value("verdict", i));

  // What is compared: as the address says, else the last two runs, versions, architectures ...
  function choice() {
    const axes = c.compare.axes(), by = axes.find(x => x.name === c.params.compare) || axes[0];
    if (!by) return null;
    const values = by.name === "run" ? c.compare.runs.map(run => run.name).filter(name => by.values.includes(name)) : shownValues(by);
    const newest = by.name === "run" || by.name === "versions", others = newest ? values.slice(-2) : values;
    const left = values.includes(c.params.left) ? c.params.left : others[0];
    const right = values.includes(c.params.right) && c.params.right !== left ? c.params.right : (newest ? [...values].reverse() : values).find(v => v !== left);
    return { axes, by: by.name, values, left, right };
  }
  function choose(changes) {
    for (const [key, v] of Object.entries(changes).slice(1)) { if (v) c.params[key] = v; else delete c.params[key]; }
    const [[key, v]] = Object.entries(changes);
    c.setParam(key, v);
  }

  let known = { token: "", entries: [] };
  function entriesOf(now) {
    const token = JSON.stringify([now.by, now.left, now.right]);
    if (known.token !== token) known = { token, entries: c.compare.compare(now.by, now.left, now.right) };
    return known.entries;
  }
  // The filters choose cells: an entry is shown where they let any of its records through.
  function shownEntries(entries) {
    if (!Object.keys(c.filters).length && !c.state.query.trim()) return entries;
    const seen = new Set(c.visible()), through = new Set();
    const ids = new Set();
    for (const i of seen) ids.add(c.id(i));
    for (const entry of entries) if ([entry.left, entry.right].some(i => i >= 0 && (seen.has(i) || ids.has(c.id(i))))) through.add(entry);
    return entries.filter(entry => through.has(entry));
  }

  function side(i) {
    if (i < 0) return el("span", { className: "v none" }, "not run");
    return c.markOf(c.value("verdict", i), c.ran(c.value("verdict", i)) ? c.value("rung", i) : "");
  }

  // Tables: homes > groups > rows > tiles, each tile the entries of its batches and kinds of target.
  function model(entries, now) {
    const homes = new Map(), used = new Set([now.by, "backend", "block_size", "kv_cache_dtype", "drafter", "tp"]);
    const homeAxes = now.by === "arch" || now.by === "target" ? [] : HOME.slice(0, 1);
    const varying = VARIANT.filter(name => {
      if (used.has(name)) return false;
      const codes = c.column(name).codes, perDrafter = new Map(), D = c.column("drafter").codes, T = c.column("tp").codes;
      const follows = name === "role" || name === "method" || name === "k";
      for (const entry of entries) {
        const i = either(entry), key = follows ? `${D[i]},${T[i]}` : "";
        if (!perDrafter.has(key)) perDrafter.set(key, codes[i]);
        else if (perDrafter.get(key) !== codes[i]) return true;
      }
      return false;
    });
    const rowAxes = [...(now.by === "backend" ? [] : ["backend"]), ...varying];
    const groupAxes = ["drafter", "tp"].filter(name => name !== now.by);
    const columnAxes = ["block_size", "kv_cache_dtype"].filter(name => name !== now.by);
    const codesOf = (names, i) => names.map(name => c.column(name).codes[i]);
    const child = (map, names, i, make) => {
      const codes = codesOf(names, i), key = codes.join(",");
      if (!map.has(key)) map.set(key, { codes, i, ...make() });
      return map.get(key);
    };
    for (const entry of entries) {
      const i = either(entry);
      const home = child(homes, homeAxes, i, () => ({ groups: new Map(), columns: new Map() }));
      const group = child(home.groups, groupAxes, i, () => ({ rows: new Map() }));
      const row = child(group.rows, rowAxes, i, () => ({ tiles: new Map() }));
      const column = child(home.columns, columnAxes, i, () => ({}));
      const key = column.codes.join(",");
      if (!row.tiles.has(key)) row.tiles.set(key, []);
      entry.tile = row.tiles.get(key);
      entry.tile.push(entry);
    }
    const sorted = map => [...map.values()].sort((a, b) => { for (let k = 0; k < a.codes.length; k++) if (a.codes[k] !== b.codes[k]) return a.codes[k] - b.codes[k]; return 0; });
    return { homes: sorted(homes), homeAxes, groupAxes, rowAxes, columnAxes, sorted };
  }

  const rank = entry => KINDS.indexOf(entry.kind);
  function tile(entries, kind, where, open) {
    if (!entries) return el("td", { className: "d notrun" }, el("span", {}, "not run"));
    const counted = entries.filter(e => (kind ? e.kinds.includes(kind) || e.kind === kind : DIFFERENT.has(e.kind)));
    const worst = (counted.length ? counted : entries).reduce((a, b) => (rank(b) < rank(a) ? b : a));
    // Where nothing differs a tile says what a table would: the worst of its batches.
    const same = !counted.length && worst.kind === "same" ? c.summary.summarise(entries.filter(e => e.kind === "same").map(e => e.right)).verdict : "";
    const one = same || verdictOf(worst.left), two = same || verdictOf(worst.right), moved = one !== two;
    const count = entries.length > 1 && counted.length ? el("small", {}, ` ${counted.length}/${entries.length}`) : null;
    const label = `${where}: ${moved ? `left ${one}, right ${two}` : one}; ${c.compare.title(worst.kind, choice().by)}${counted.length ? `, ${counted.length} of ${entries.length}` : ""}`;
    const half = (v, word) => el("span", { className: `half ${v === "not run" ? "none" : v}` }, v === "not run" ? null : el("i", { className: `s ${v}`, "aria-hidden": "true" }), word);
    // What times say: the worst that is slower and the best that is faster, since batches of a tile may go either way.
    const ratios = counted.flatMap(e => e.times).filter(t => t.kind).sort((a, b) => b.ratio - a.ratio), slowest = ratios[0], fastest = ratios[ratios.length - 1];
    const speeds = ratios.length ? [slowest.kind === "slower" ? slowest : null, fastest.kind === "faster" ? fastest : null].filter(Boolean) : [];
    const still = { rung: "rung", mark: "marks", route: "kernels" }[worst.kind];
    const inner = moved ? [half(one, one), counted.length ? el("span", { className: "to", "aria-hidden": "true" }, "→") : null, half(two, two)]
      : speeds.length && counted.length ? speeds.map(t => el("span", { className: `half ${t.kind}` }, `${t.kind} ×${c.three(t.ratio)}`)) : [half(one, (counted.length && still) || one)];
    inner.push(count);
    const td = el("td", { className: `d ${counted.length ? `strong k-${worst.kind}` : "faint"}`, tabIndex: -1, title: label, "aria-label": label, role: "button" }, el("span", { className: "pair" }, inner));
    td.open = () => open(worst);
    return td;
  }

  function render(container) {
    const bar = el("div", { className: "axes" }), counts = el("ul", { className: "chips" }), tables = el("div", {}), list = el("div", {});
    const drawer = el("section", { className: "both", hidden: true, "aria-label": "Both evidences" });
    container.append(bar, counts, tables, list, drawer);
    let returnTo = null, rowsShown = MOST_ROWS, listShown = MOST;
    tables.addEventListener("click", e => { const td = e.target.closest("td.d"); if (td && td.open) td.open(); });
    tables.addEventListener("keydown", e => {
      const td = e.target.closest("td.d");
      if (!td || e.altKey || e.ctrlKey || e.metaKey) return;
      const rowsOf = [...tables.querySelectorAll("tr")].filter(tr => tr.querySelector("td.d")), at = rowsOf.indexOf(td.parentNode);
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
      if (step) {
        const cells = rowsOf[at + step[0]] ? rowsOf[at + step[0]].cells : [];
        const next = cells[Math.min(td.cellIndex + step[1], cells.length - 1)];
        if (next && next.matches("td")) { next.focus(); next.scrollIntoView({ block: "nearest", inline: "nearest" }); }
      } else if ((e.key === "Enter" || e.key === " ") && td.open) td.open();
      else return;
      e.preventDefault();
    });

    function controls(now) {
      const pick = (title, values, chosen, change) => el("label", {}, title, el("select", { "aria-label": title, onchange: e => change(e.target.value) }, values.map(([v, t]) => el("option", { value: v, selected: v === chosen }, t))));
      const sides = now.values.map(v => [v, v]);
      bar.replaceChildren(
        pick("Compare by", now.axes.map(x => [x.name, x.title]), now.by, v => choose({ compare: v, left: "", right: "", kind: "", entry: "" })),
        pick("Left", sides, now.left, v => choose({ left: v, right: v === now.right ? now.left : now.right, entry: "" })),
        pick("Right", sides, now.right, v => choose({ right: v, left: v === now.left ? now.right : now.left, entry: "" })),
        el("button", { type: "button", className: "linkish", onclick: () => choose({ left: now.right, right: now.left, entry: "" }) }, "Swap"));
    }

    function summary(entries, now) {
      const found = new Map(KINDS.map(kind => [kind, 0]));
      for (const entry of entries) found.set(entry.kind, found.get(entry.kind) + 1);
      counts.replaceChildren(...KINDS.filter(kind => found.get(kind)).map(kind => el("li", {}, el("button", {
        type: "button", className: `kind k-${kind}`, dataset: { kind }, "aria-pressed": String(c.params.kind === kind), onclick: () => choose({ kind: c.params.kind === kind ? "" : kind }),
      }, el("b", {}, found.get(kind).toLocaleString("en")), ` ${c.compare.title(kind, now.by)}`))));
    }

    function draw(anew = true) {
      const now = choice();
      if (anew) { rowsShown = MOST_ROWS; listShown = MOST; }
      drawnFor = drawing();
      tables.replaceChildren();
      list.replaceChildren();
      if (!now || now.right === undefined) {
        tables.append(el("p", { className: "empty" }, "There is nothing to compare: no axis has two values here. Give a report of several runs."));
        return;
      }
      controls(now);
      const entries = shownEntries(entriesOf(now)), kind = KINDS.includes(c.params.kind) ? c.params.kind : "";
      summary(entries, now);
      const counted = KINDS.map(k => [entries.filter(e => e.kind === k).length, c.compare.short(k, now.by)]).filter(x => x[0]);
      tables.append(el("p", { className: "on-paper" }, `${now.left} on the left, ${now.right} on the right: ${counted.map(x => x.join(" ")).join(", ")}`));
      const both = entries.filter(e => e.left >= 0 && e.right >= 0).length;
      if (!both) tables.append(el("p", { className: "empty" }, "No cell is on both sides: they agree in nothing that is aligned on. What only one side has was not run on the other; that says nothing of the backend."));
      else if (both < entries.length) tables.append(el("p", { className: "soft" }, "What only one side has was not run on the other; that says nothing of the backend."));
      tables.append(...timesOf(entries, now));
      const facts = c.compare.facts(entries);
      if (facts.length) {
        tables.append(el("details", { className: "facts" }, el("summary", {}, `What differs in the environment (${facts.length})`),
          el("table", { className: "beside" }, el("tbody", {}, facts.map(([name, one, two, count]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, one), el("td", {}, two), el("td", { className: "soft" }, count === 1 ? "1 cell" : `${count.toLocaleString("en")} cells`)))))));
      }
      const m = model(entries, now), rowCount = m.homes.reduce((sum, h) => sum + [...h.groups.values()].reduce((n, g) => n + g.rows.size, 0), 0);
      // Of many rows only those in which something differs are drawn, and of these no more than a page can bear.
      const interests = row => [...row.tiles.values()].some(found => found.some(e => (kind ? e.kind === kind : DIFFERENT.has(e.kind))));
      let room = rowsShown, leftOut = 0;
      const drawn = row => { if (rowCount <= MOST_ROWS || (interests(row) && room-- > 0)) return true; leftOut++; return false; };
      for (const home of m.homes) {
        const columns = m.sorted(home.columns);
        const head = el("tr", {}, el("th", {}, m.rowAxes.length ? c.column(m.rowAxes[0]).title : ""), columns.map(col => el("th", { scope: "col" }, m.columnAxes.map(name => words(name, col.i)).join(", ") || "all")));
        const body = el("tbody", {});
        for (const group of m.sorted(home.groups)) {
          const names = m.groupAxes.map(name => words(name, group.i)).join(", ");
          const kept = m.sorted(group.rows).filter(drawn);
          if (names && kept.length) body.append(el("tr", { className: "group" }, el("th", { colSpan: columns.length + 1, scope: "colgroup" }, names)));
          for (const row of kept) {
            const name = m.rowAxes.map(axis => words(axis, row.i)).filter(Boolean);
            body.append(el("tr", {}, el("th", { scope: "row" }, el("code", {}, name[0] || "all"), name.length > 1 ? el("div", { className: "soft" }, name.slice(1).join(", ")) : null),
              columns.map(col => tile(row.tiles.get(col.codes.join(",")), kind, [...name, names, ...m.columnAxes.map(axis => words(axis, col.i))].join(", "), open))));
          }
        }
        if (!body.children.length) continue;
        tables.append(el("section", { className: "home" }, el("h2", {}, m.homeAxes.map(name => words(name, home.i)).join(", ")), el("div", { className: "wrap wide" }, el("table", { className: "matrix diff" }, el("thead", {}, head), body))));
      }
      if (leftOut) {
        tables.append(el("p", { className: "soft left-out" }, `${leftOut.toLocaleString("en")} rows are not drawn${room < 0 ? ". " : ": nothing differs in them."}`,
          room < 0 ? el("button", { type: "button", className: "linkish", onclick: () => { rowsShown += MOST_ROWS; draw(false); } }, "Draw more") : null));
      }
      const first = tables.querySelector("td.strong") || tables.querySelector("td.d");
      if (first) first.tabIndex = 0;
      rows(entries.filter(e => (kind ? e.kind === kind : DIFFERENT.has(e.kind))), now);
      showEntry(entries);
    }
    // How many times agree, as the command says it; those that do not, and times that one side alone has.
    function timesOf(entries, now) {
      const out = [], found = c.compare.agreement(entries, now.by), many = (n, one, more) => (n === 1 ? one : more);
      if (found) {
        const apart = found.apart.length, total = found.agree + apart;
        const said = `${found.agree.toLocaleString("en")} of ${total.toLocaleString("en")} ${many(total, "time", "times")} on the same hardware agree within their intervals`;
        out.push(el("p", { className: "agreement" }, apart ? `${said}; ${apart.toLocaleString("en")} ${many(apart, "does", "do")} not.` : `${said}.`));
        // In whole microseconds where there are many: three figures would show most of these as the same.
        const figure = v => (v >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4))));
        const us = ([median, low, high]) => `${figure(median)} µs (${figure(low)} to ${figure(high)})`;
        const line = ([entry, t]) => el("tr", {}, el("td", {}, el("button", { type: "button", className: "linkish mono", onclick: () => open(entry) }, c.id(either(entry)))), el("td", {}, `${t.phase}, ${t.workload}`), el("td", { className: "num" }, us(t.left)), el("td", { className: "num" }, us(t.right)), el("td", { className: "num" }, c.compare.ratio(t)));
        if (apart) {
          out.push(el("details", { className: "apart" }, el("summary", {}, `Times that do not agree (${apart.toLocaleString("en")})`), el("div", { className: "scroll" }, el("table", { className: "grid" },
            el("thead", {}, el("tr", {}, ["Cell", "Call", now.left, now.right, "Right over left"].map(h => el("th", { scope: "col" }, h)))), el("tbody", {}, found.apart.slice(0, MOST).map(line)))),
            apart > MOST ? el("p", { className: "soft" }, `and ${(apart - MOST).toLocaleString("en")} more`) : null));
        }
      }
      c.compare.lacking(entries).forEach((n, k) => { if (n) out.push(el("p", { className: "soft lacking" }, `${n.toLocaleString("en")} ${many(n, "time", "times")} of the ${["left", "right"][k]} ${many(n, "has", "have")} none on the ${["right", "left"][k]}.`)); });
      return out;
    }
    function showEntry(entries) {
      const wanted = c.params.entry && entryOf(entries, c.params.entry);
      if (wanted) show(wanted); else shut(false);
    }
    // Everything that a drawing depends on; opening an entry changes none of it.
    const drawing = () => JSON.stringify([{ ...c.params, entry: "" }, c.filters, c.state.query]);
    let drawnFor = "";

    function rows(found, now) {
      if (!found.length) return;
      const anyTimes = found.some(e => e.times.length);
      found.sort((a, b) => rank(a) - rank(b) || either(a) - either(b));
      list.append(el("h2", {}, c.params.kind ? c.compare.title(c.params.kind, now.by) : "What differs"), el("div", { className: "scroll" }, el("table", { className: "grid differences" },
        el("thead", {}, el("tr", {}, ["Cell", now.left, now.right, "", anyTimes ? "Time, right over left" : ""].map(h => el("th", { scope: "col" }, h)))),
        el("tbody", {}, found.slice(0, listShown).map(entry => {
          const t = entry.times[0];
          return el("tr", { onclick: () => open(entry) }, el("td", {}, el("button", { type: "button", className: "linkish mono" }, c.id(either(entry)))), el("td", {}, side(entry.left)), el("td", {}, side(entry.right)), el("td", { className: "what" }, c.compare.short(entry.kind, now.by)), el("td", { className: "num" }, t ? c.compare.ratio(t) : ""));
        })))));
      if (found.length > listShown) {
        list.append(el("p", { className: "soft" }, `and ${(found.length - listShown).toLocaleString("en")} more `,
          el("button", { type: "button", className: "linkish", onclick: () => { listShown += MOST; draw(false); } }, "List more")));
      }
    }

    // In the address an entry is the cell id of its left record, or of its right one where there is none.
    const nameOf = entry => c.id(either(entry));
    function entryOf(entries, id) {
      c.find(id);  // decodes all ids at once
      return entries.find(e => nameOf(e) === id);
    }
    function open(entry) {
      returnTo = document.activeElement;
      c.setParam("entry", nameOf(entry));
    }
    function shut(tell = true) {
      if (drawer.hidden) return;
      drawer.hidden = true;
      drawer.replaceChildren();
      if (!tell) return;
      c.setParam("entry", "");
      if (returnTo && returnTo.isConnected) returnTo.focus({ preventScroll: true });
    }
    async function show(entry) {
      const now = choice(), members = entry.tile || [entry];
      const batches = members.length > 1 ? el("ul", { className: "batches" }, members.map(e => el("li", {}, el("button", { type: "button", "aria-pressed": String(e === entry), onclick: () => choose({ entry: nameOf(e) }) }, [c.value("batch", either(e)), now.by === "target" ? "" : String(c.value("target", either(e))).split(":")[0]].filter(Boolean).join(", "), " ", el("small", {}, c.compare.short(e.kind, now.by)))))) : null;
      const evidence = await Promise.all([entry.left, entry.right].map(i => (i < 0 ? null : c.evidence(i))));
      if (c.params.entry !== nameOf(entry)) return;
      const link = i => (i < 0 ? el("span", { className: "soft" }, "not run: says nothing of the backend") : el("button", { type: "button", className: "linkish", onclick: () => c.open(i) }, "all of it"));
      const table = el("table", { className: "beside" },
        el("thead", {}, el("tr", {}, el("th", {}), el("th", { scope: "col" }, now.left, " ", side(entry.left), " ", link(entry.left)), el("th", { scope: "col" }, now.right, " ", side(entry.right), " ", link(entry.right)))),
        c.compare.sections(entry.left, evidence[0], entry.right, evidence[1]).map(([title, lines]) => el("tbody", {}, el("tr", { className: "group" }, el("th", { colSpan: 3, scope: "colgroup" }, title)), lines.map(([label, a, b]) => el("tr", { className: a === b ? "faint" : "differs" }, el("th", { scope: "row" }, label), el("td", {}, a), el("td", {}, b))))));
      const ratios = entry.times.map(t => el("p", {}, `${t.phase}, ${t.workload}: right over left ${c.compare.ratio(t)}${t.kind ? `, ${t.kind}` : c.compare.hardware(entry.left) === c.compare.hardware(entry.right) ? "" : ", on different hardware"}`));
      drawer.replaceChildren(el("header", {}, el("h2", {}, c.compare.title(entry.kind, now.by)), el("button", { type: "button", className: "shut", "aria-label": "Close", onclick: () => shut() }, "×")), ...[batches, ...ratios].filter(Boolean), el("div", { className: "scroll" }, table));
      drawer.hidden = false;
      drawer.dataset.entry = nameOf(entry);
    }
    // Before the page's own keys: what lies on top of the drawer closes first.
    addEventListener("keydown", e => { if (e.key === "Escape" && !drawer.hidden && !container.hidden && !c.state.cell && !document.querySelector("details.filter[open]")) shut(); }, true);

    draw();
    return what => {
      if (what === "cell") return;
      if (drawnFor === drawing()) showEntry(shownEntries(entriesOf(choice()))); else draw();
    };
  }
  c.registerView("compare", "Compare", render, { when: () => c.compare.axes().length > 0 });
})();
