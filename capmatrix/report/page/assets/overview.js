// Above the tables: how many cells got which verdict, and cards that open: cautions, failing regions, disputes, defaults.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c,
    o = c.data.overview;
  // Passes first, then what is not known, what failed, and what did not run.
  const ORDER = [...c.data.legend.verdicts.filter(v => v.ran).reverse(), ...c.data.legend.verdicts.filter(v => !v.ran)];

  function stack() {
    const segments = [];
    for (const v of ORDER) {
      for (const r of c.data.legend.rungs.slice().reverse()) {
        const found = o.counts.filter(x => x[0] === v.name && x[1] === r.name);
        if (!found.length) continue;
        const strength = c.rungOf.get(r.name).strength;
        const look = v.name !== "pass" ? "" : strength < 2 ? " weak" : strength < 4 ? " half" : "";
        const n = found[0][2],
          words = `${n.toLocaleString("en")} ${v.name}${v.ran ? ` (${r.name})` : ""}`;
        const part = el("span", { className: v.name + look, title: words });
        part.style.flex = n;
        segments.push(part);
      }
    }
    return el("div", { className: "stack", role: "img", "aria-label": "Cells by verdict" }, segments);
  }

  function chips() {
    const total = o.counts.reduce((sum, x) => sum + x[2], 0),
      out = [el("li", {}, el("b", {}, total.toLocaleString("en")), " cells")];
    for (const v of ORDER) {
      const found = o.counts.filter(x => x[0] === v.name),
        n = found.reduce((sum, x) => sum + x[2], 0);
      if (!n) continue;
      const rungs =
        v.name === "pass"
          ? c.data.legend.rungs
              .slice()
              .reverse()
              .flatMap(r => {
                const x = found.find(y => y[1] === r.name);
                return x ? [`${x[2].toLocaleString("en")} ${r.name}`] : [];
              })
              .join(", ")
          : "";
      const chosen = () => (c.filters.verdict || []).includes(v.name);
      const b = el(
        "button",
        {
          type: "button",
          className: `c-${v.name}`,
          "aria-pressed": String(chosen()),
          title: v.meaning,
          onclick: () => {
            const now = new Set(c.filters.verdict || []);
            if (now.has(v.name)) now.delete(v.name);
            else now.add(v.name);
            c.setFilter("verdict", [...now]);
          },
        },
        el("i", { className: `s ${v.name}`, "aria-hidden": "true" }),
        el("b", {}, n.toLocaleString("en")),
        ` ${v.name}`,
        rungs && el("small", {}, ` (${rungs})`),
      );
      c.onChange(() => b.setAttribute("aria-pressed", String(chosen())));
      out.push(el("li", {}, b));
    }
    return el("ul", { className: "chips" }, out);
  }
  function pairChips() {
    return el(
      "ul",
      { className: "chips of-pairs" },
      el("li", {}, el("b", {}, c.pairCount().toLocaleString("en")), c.pairCount() === 1 ? " pair" : " pairs"),
      c
        .pairCounts()
        .map(x =>
          el(
            "li",
            { className: x.look && `c-${x.look}` },
            x.look && el("i", { className: `s ${x.look}`, "aria-hidden": "true" }),
            el("b", {}, x.number.toLocaleString("en")),
            ` ${x.words}`,
          ),
        ),
    );
  }

  const examples = ids =>
    ids.length
      ? el(
          "div",
          { className: "soft" },
          "e.g. ",
          ids.map((x, i) => [i ? ", " : "", c.cellLink(x)]),
        )
      : null;

  function regions() {
    return el(
      "ul",
      {},
      o.regions.map(r =>
        el(
          "li",
          {},
          el("code", {}, r.backend),
          ": ",
          r.verdicts.map(v => c.markOf(v)),
          r.where === "always" ? " always" : ` ${r.exact ? "exactly where" : "where"} `,
          r.where === "always" ? null : el("b", {}, r.where),
          el(
            "div",
            { className: "soft" },
            `${r.support} of ${r.failing} failing cells (${r.rungs.join(", ")}); ${r.exceptions} of ${r.passing} passing ones are exceptions`,
          ),
          r.reasons.map(x => el("div", {}, x)),
          examples(r.examples),
          r.against.length
            ? el(
                "div",
                { className: "soft" },
                "exceptions: ",
                r.against.map((x, i) => [i ? ", " : "", c.cellLink(x)]),
              )
            : null,
        ),
      ),
    );
  }
  function disputes() {
    return el(
      "ul",
      {},
      o.disputes.map(d =>
        el(
          "li",
          {},
          el("b", {}, d.kind),
          ": ",
          el("code", {}, d.backend),
          el(
            "dl",
            { className: "legend" },
            ["says", "ran", "edit"].map(k => [
              el("dt", { className: "soft" }, k === "ran" ? "what ran" : k),
              el("dd", {}, d[k]),
            ]),
          ),
          examples(d.examples),
        ),
      ),
    );
  }
  function defaults() {
    const d = o.defaults;
    const rows = d.rows.map(r =>
      el(
        "tr",
        {},
        el("td", {}, el("code", {}, r.architecture)),
        el("td", {}, r.drafter, el("div", { className: "soft" }, `${r.role}, ${r.dtype}`)),
        el("td", { className: "num" }, r.block_size),
        el("td", {}, el("code", {}, r.kv_cache_dtype)),
        el(
          "td",
          {},
          r.backend ? el("code", {}, r.backend) : el("span", { className: "soft" }, "none"),
          r.switches.length ? el("div", { className: "soft" }, `with ${r.switches.join(" ")}`) : null,
          r.marks.map(m => [" ", el("span", { className: "mark", title: d.marks[m] }, m)]),
        ),
        el(
          "td",
          {},
          r.reason,
          r.value === null ? null : el("div", { className: "soft" }, `${r.value} ${r.unit}`),
          el("div", { className: "soft" }, r.rung),
          r.conflicts.map(x => el("div", { className: "hot" }, x)),
        ),
        el(
          "td",
          {},
          el(
            "details",
            {},
            el("summary", { className: "soft" }, `${r.others.length} others`),
            r.others.map(x => el("div", {}, el("code", {}, x.backend), `: ${x.why}`, x.detail ? `, ${x.detail}` : "")),
          ),
        ),
      ),
    );
    return [
      el(
        "p",
        { className: "soft" },
        `What capmatrix derive makes of these runs: policy ${d.policy}, margin ${d.margin} %.`,
      ),
      rows.length
        ? el(
            "table",
            { className: "grid" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["Architecture", "Drafter", "Block", "KV cache", "Default", "Why", "Why not the others"].map(h =>
                  el("th", { className: h === "Block" ? "num" : "" }, h),
                ),
              ),
            ),
            el("tbody", {}, rows),
          )
        : null,
      Object.keys(d.marks).length
        ? el(
            "ul",
            {},
            Object.entries(d.marks).map(([m, words]) =>
              el("li", {}, el("span", { className: "mark" }, m), ` ${words}`),
            ),
          )
        : null,
      d.left_out.length
        ? [
            el("h3", {}, "Left out"),
            bullets(d.left_out),
          ]
        : null,
      d.hints.length
        ? [
            el("h3", {}, "Hints: no default rests on these"),
            bullets(d.hints),
          ]
        : null,
    ];
  }
  const bullets = lines =>
    el(
      "ul",
      {},
      lines.map(x => el("li", {}, x)),
    );
  function legend() {
    const l = c.data.legend,
      items = l.verdicts.map(v => [c.markOf(v.name, v.name === "pass" ? "executed" : ""), v.meaning]);
    items.push([el("span", { className: "soft" }, el("i", {}, "not run")), l.not_run]);
    for (const r of l.rungs) items.push([c.markOf("pass", r.name), r.meaning]);
    for (const m of l.marks)
      items.push([el("span", {}, el("span", { className: "mark" }, m.letter), ` ${m.name}`), m.meaning]);
    items.push([
      el("span", { className: "soft" }, "2/3"),
      "batches that ran, of those that the drafter has in this table",
    ]);
    items.push([el("span", { className: "soft" }, "k32"), "the kernels got blocks of 32 tokens, not the manager's"]);
    return [
      el(
        "dl",
        { className: "legend" },
        items.map(([a, b]) => [el("dt", {}, a), el("dd", {}, b)]),
      ),
      el(
        "p",
        { className: "soft" },
        "Keys: / searches, arrows move over tiles, Enter opens the evidence, Esc closes it.",
      ),
    ];
  }
  function environments() {
    const facts = x =>
      Object.entries(x || {})
        .filter(y => typeof y[1] !== "object")
        .map(([k, v]) => el("div", {}, `${k} ${v}`));
    return el(
      "table",
      { className: "env grid" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Target", "Versions", "Hardware", "Identity", "Switches", "Changed by capmatrix"].map(h => el("th", {}, h)),
        ),
      ),
      el(
        "tbody",
        {},
        Object.values(c.data.environments).map(e =>
          el(
            "tr",
            {},
            el("td", {}, el("code", {}, e.target)),
            el("td", {}, facts(e.versions), facts(e.commits)),
            el("td", {}, facts(e.hardware)),
            el("td", {}, facts(e.identity)),
            el("td", {}, facts(e.switches)),
            el(
              "td",
              {},
              (e.extensions || []).map(x => el("div", {}, x)),
            ),
          ),
        ),
      ),
    );
  }

  const first = (list, words) => (list.length ? words(list[0]) : "");
  const over = o.disputes.filter(d => d.kind.startsWith("over")).length,
    under = o.disputes.length - over;
  const chosen = o.defaults.rows.filter(r => r.backend);
  const provisional = chosen.filter(r => r.marks.includes("provisional")).length;
  const CARDS = [
    ["cautions", o.cautions.length, "What this does not show", first(o.cautions, x => x), () => bullets(o.cautions)],
    [
      "regions",
      o.regions.length,
      `${o.regions.length} failing region${o.regions.length === 1 ? "" : "s"}`,
      first(o.regions, r => `${r.backend}: ${r.verdicts.join("/")} where ${r.where}`),
      regions,
    ],
    [
      "disputes",
      o.disputes.length,
      [over ? `${over} over-advertised` : "", under ? `${under} under-advertised` : ""].filter(Boolean).join(", "),
      first(o.disputes, d => `${d.backend}: ${d.ran}`),
      disputes,
    ],
    [
      "defaults",
      o.defaults.rows.length,
      `${chosen.length} default${chosen.length === 1 ? "" : "s"}${provisional ? `, ${provisional} provisional` : ""}`,
      first(chosen, r => `${r.architecture}, ${r.drafter}, block ${r.block_size}, ${r.kv_cache_dtype}: ${r.backend}`),
      defaults,
    ],
    [
      "environments",
      Object.keys(c.data.environments).length,
      "Environments",
      [...new Set([...c.column("versions").values, ...c.data.pairs.map(t => t.versions)])].filter(Boolean).join("; "),
      environments,
    ],
    ["legend", 1, "Legend and keys", "verdicts, rungs, marks", legend],
  ];

  function cards() {
    const body = el("div", { className: "card-body", id: "card-body", hidden: true }),
      row = el("div", { className: "cards" });
    let shown = "";
    for (const [name, n, title, sub, draw] of CARDS) {
      if (!n) continue;
      const b = el(
        "button",
        {
          type: "button",
          id: `card-${name}`,
          "aria-expanded": "false",
          "aria-controls": "card-body",
          onclick: () => {
            shown = shown === name ? "" : name;
            for (const other of row.children) other.setAttribute("aria-expanded", String(other.id === `card-${shown}`));
            body.hidden = !shown;
            body.replaceChildren(...(shown ? [el("h2", {}, title), ...[draw()].flat(9).filter(Boolean)] : []));
          },
        },
        el("b", {}, title),
        el("span", { className: "soft" }, sub),
      );
      row.append(b);
    }
    return [row, body];
  }

  // On paper nothing opens, so that the signs are told in a line.
  function signs() {
    const l = c.data.legend;
    return el(
      "p",
      { className: "on-paper soft" },
      `Steps: ${l.rungs.map(r => r.name).join(" < ")}. Marks: ${l.marks.map(m => `${m.letter} ${m.name}`).join(", ")}; 2/3: batches that ran; k32: kernel block. Not run says nothing of the backend.`,
    );
  }

  c.overview = () => {
    const pairs = c.pairCount();
    return [c.n || !pairs ? [stack(), chips()] : [], pairs ? pairChips() : [], cards(), signs()].flat(2);
  };
})();
