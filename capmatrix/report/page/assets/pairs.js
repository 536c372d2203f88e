// Pairs: few enough to draw at once. The search narrows them as it does cells; filters are of cells alone.
//
// Adds to window.capmatrix: pairCount(), how many pairs there are; pairsFound(), the set of rows that the search lets
// through; pairCounts(), [{look, words, number}] of all.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c,
    { headings, about, legend } = c.data.pair_words;
  const look = r => (r.torn ? "torn" : r.verdict);
  const at = headings.indexOf("block");

  // A token of an id (b128, tp4, k3) is meant whole, any other word as a part. A block that vLLM took is none of the id.
  const all = c.data.pairs.flatMap(t =>
    t.rows.map(r => ({
      r,
      words: [t.title, t.target, t.versions, t.models, r.id, ...r.cells].join(" ").toLowerCase(),
      tokens: new Set([...r.id.toLowerCase().split("-"), `b${(r.cells[at].match(/\d+/) || [""])[0]}`]),
    })),
  );
  let query = null,
    found = new Set();
  function pairsFound() {
    if (query === c.state.query) return found;
    query = c.state.query;
    const wanted = query
      .trim()
      .toLowerCase()
      .split(/\s+/)
      .filter(w => w && w !== "and");
    const fits = x => wanted.every(w => (/^(b|tp|k)\d+$/.test(w) ? x.tokens.has(w) : x.words.includes(w)));
    found = new Set(all.filter(fits).map(x => x.r));
    return found;
  }
  function pairCounts() {
    const count = (look_, words, fits) => ({ look: look_, words, number: all.filter(x => fits(x.r)).length });
    const said = word => r => r.cells[r.cells.length - 1].includes(word);
    return [
      ...c.data.legend.verdicts.map(v => count(v.name, v.name, r => r.verdict === v.name)),
      count("torn", "of them contradict themselves", said("CONTRADICTION")),
      count("", "failures expected", said(", expected")),
    ].filter(x => x.number);
  }
  Object.assign(c, { pairCount: () => all.length, pairsFound, pairCounts });

  const result = r => [el("i", { className: `s ${look(r)}`, "aria-hidden": "true" }), r.cells[r.cells.length - 1]];
  function table(t, rows) {
    const notes = new Set(rows.map(r => r.note));
    return el(
      "section",
      {},
      el("h3", {}, t.models),
      el(
        "div",
        { className: "wrap wide" },
        el(
          "table",
          { className: "plain pairs" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              headings.map(h => el("th", { scope: "col" }, h)),
            ),
          ),
          el(
            "tbody",
            {},
            rows.map(r =>
              el(
                "tr",
                { className: r.torn ? "is-torn" : undefined, title: r.id },
                r.cells.map((x, k) => el("td", {}, k === r.cells.length - 1 ? result(r) : x)),
              ),
            ),
          ),
        ),
      ),
      el(
        "ul",
        { className: "why" },
        t.notes
          .filter(([k]) => notes.has(k))
          .map(([k, x]) => el("li", {}, el("span", { className: "n" }, `[${k}]`), el("span", {}, x))),
      ),
    );
  }

  c.registerView(
    "pairs",
    "Pairs",
    container => {
      const shown = pairsFound();
      container.append(
        el("p", { className: "soft" }, about),
        el(
          "details",
          { className: "pairs-legend" },
          el("summary", {}, "Legend of pairs"),
          el(
            "dl",
            { className: "legend" },
            legend.map(([sign, meaning]) => [el("dt", {}, el("code", {}, sign)), el("dd", {}, meaning)]),
          ),
        ),
      );
      let home = "",
        section = null;
      for (const t of c.data.pairs) {
        const rows = t.rows.filter(r => shown.has(r));
        if (!rows.length) continue;
        const about_ = [t.versions, t.target].filter(Boolean).join("; ");
        if (home !== `${t.title}\n${about_}`) {
          home = `${t.title}\n${about_}`;
          section = el("section", { className: "home" }, el("h2", {}, t.title), el("p", { className: "soft" }, about_));
          container.append(section);
        }
        section.append(table(t, rows));
      }
      if (!section)
        container.append(
          el(
            "p",
            { className: "empty" },
            "No pair matches. ",
            el("button", { type: "button", className: "linkish", onclick: c.clearFilters }, "Clear all"),
          ),
        );
    },
    { when: () => all.length > 0 },
  );
})();
