// The evidence of one cell, section by section: everything that its record says.
//
//   capmatrix.sections(i, evidence) -> nodes; capmatrix.copy(button, text)
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c;
  const { layers: LAYERS, checks: CHECKS, kinds: KINDS, flags: FLAGS } = c.data.legend;
  const PHASES = ["select", "configure", "build", "compile", "cache-write", "forward", "graph", "compare", "time"];

  const section = (title, ...children) =>
    children.flat(9).filter(Boolean).length ? el("section", {}, el("h3", {}, title), children) : null;
  const rows = pairs => {
    const found = pairs.filter(p => p && p[1] !== undefined && p[1] !== null && p[1] !== "");
    return found.length
      ? el(
          "dl",
          {},
          found.map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]),
        )
      : null;
  };
  const facts = o =>
    Object.entries(o || {})
      .map(([k, v]) => `${k} ${typeof v === "object" ? JSON.stringify(v) : v}`)
      .join(", ");
  const size = v => (v === undefined || v === null ? "" : c.unit(v, "B"));
  const num = v => (v === undefined || v === null ? "" : Number.isInteger(v) ? String(v) : c.three(v));

  // A table whose columns without any value are left out. cells: text, or [text, class].
  // names: a line of its own above each.
  function grid(heads, lines, names) {
    const keep = heads.map(
      (h, k) =>
        k === 0 ||
        lines.some(l => {
          const x = Array.isArray(l[k]) ? l[k][0] : l[k];
          return x !== "" && x !== null && x !== undefined;
        }),
    );
    const cls = h => (h.startsWith("#") ? "num" : "");
    return el(
      "div",
      { className: "scroll" },
      el(
        "table",
        { className: "grid" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            heads.map((h, k) => (keep[k] ? el("th", { scope: "col", className: cls(h) }, h.replace(/^#/, "")) : null)),
          ),
        ),
        el(
          "tbody",
          {},
          lines.map((l, j) => [
            names ? el("tr", { className: "name" }, el("td", { colSpan: heads.length }, names[j])) : null,
            el(
              "tr",
              { className: names ? "under" : "" },
              l.map((x, k) =>
                keep[k]
                  ? el(
                      "td",
                      { className: `${cls(heads[k])} ${Array.isArray(x) ? x[1] : ""}` },
                      Array.isArray(x) ? x[0] : x,
                    )
                  : null,
              ),
            ),
          ]),
        ),
      ),
    );
  }

  function verdict(r, i) {
    const flags = (r.flags || []).map(f => {
      const m = c.data.legend.marks.find(x => x.name === f);
      return el("div", {}, el("span", { className: "mark" }, f), ` ${m ? m.meaning : FLAGS[f] || ""}`);
    });
    const claim = c.value("advertised", i);
    const meaning = c.verdictOf.get(r.verdict).meaning,
      rung = c.rungOf.get(r.rung).meaning;
    return [
      rows([
        ["verdict", [c.markOf(r.verdict, r.rung), ` ${meaning}`]],
        c.ran(r.verdict) ? ["rung", `${r.rung}: a pass on it means that ${rung}`] : null,
        ["ended at", r.phase],
        (r.reasons || []).length
          ? [
              "reasons",
              el(
                "div",
                {},
                r.reasons.map(x => el("div", {}, x)),
              ),
            ]
          : null,
        flags.length ? ["marks", flags] : null,
        claim
          ? [
              "declaration",
              claim === "over-advertised"
                ? "over-advertised: the backend declares this cell supported"
                : "under-advertised: the backend rejects this cell, and it passes when forced",
            ]
          : null,
        (r.repeats || []).length ? ["repeated", r.repeats.join(", ")] : null,
      ]),
    ];
  }

  function claims(r) {
    return section(
      "Declared, claim layer by claim layer",
      (r.claims || []).length
        ? el(
            "table",
            { className: "grid" },
            el(
              "tbody",
              {},
              r.claims.map(x =>
                el(
                  "tr",
                  {},
                  el("td", {}, LAYERS[x.layer] || x.layer),
                  el(
                    "td",
                    { className: x.accepts === true ? "yes" : x.accepts === false ? "no" : "soft" },
                    x.accepts === true ? "✓ yes" : x.accepts === false ? "✕ no" : "–",
                  ),
                  el(
                    "td",
                    {},
                    x.detail || "",
                    Object.keys(x.data || {}).length
                      ? el(
                          "details",
                          {},
                          el("summary", { className: "soft" }, "data"),
                          el("pre", {}, JSON.stringify(x.data, null, 1)),
                        )
                      : null,
                  ),
                ),
              ),
              el(
                "tr",
                {},
                el("td", {}, el("b", {}, "what ran")),
                el("td", { colSpan: 2 }, c.markOf(r.verdict, r.rung)),
              ),
            ),
          )
        : null,
    );
  }

  function setup(r) {
    const cell = r.cell,
      g = cell.geometry,
      split = r.kernel_block && r.kernel_block !== cell.block_size;
    return section(
      "Cell and set-up",
      rows([
        ["target", cell.target],
        ["backend", `${cell.backend}${r.implementation ? ` (${r.implementation})` : ""}`],
        [
          "drafter",
          `${cell.drafter}, role ${cell.role}, method ${cell.method}, TP ${cell.tp}, k=${cell.num_speculative_tokens}`,
        ],
        [
          "geometry",
          `${g.num_heads}/${g.num_kv_heads} heads of ${g.head_size} a rank${g.sliding_window ? `, window ${g.sliding_window}` : ""}${g.sinks ? ", sinks" : ""}${g.causal === false ? ", non-causal" : ""}${g.mla ? `, MLA latent ${g.mla.kv_lora_rank} + ${g.mla.qk_rope_head_dim}` : ""}${g.scaled ? ", reduced from the family's own" : ""}`,
        ],
        ["batch", `${cell.batch}, ${cell.lengths || "full"} lengths`],
        [
          "KV cache",
          `${cell.kv_cache_dtype}, manager block ${cell.block_size}${r.kernel_block ? `, kernel block ${r.kernel_block}` : ""}${split ? " (differs)" : ""}, ${(cell.scales || "non_unit").replace("_", "-")} scales`,
        ],
        ["execution", `${cell.dtype || "bfloat16"}, ${cell.execution || "eager"}, runner ${cell.runner || "v2"}`],
        cell.forced_block ? ["family's block", `${cell.forced_block} tokens, forced by the target model`] : null,
        cell.force && cell.force !== "none"
          ? ["forced", `${cell.force.replace("_", " ")}${cell.kernel_block ? ` ${cell.kernel_block}` : ""}`]
          : null,
        (cell.switches || []).length ? ["switches", cell.switches.map(x => x.join("=")).join(" ")] : null,
        r.layout ? ["layout", r.layout] : null,
        Object.keys(r.kv_cache || {}).length ? ["KV tensor", facts(r.kv_cache)] : null,
        r.graph_support ? ["graph support", r.graph_support] : null,
        (r.shims || []).length ? ["answered by", r.shims.join("; ")] : null,
      ]),
    );
  }

  function route(r) {
    if (!(r.route || []).length) return null;
    const heads = [
      "phase",
      "kind",
      "#calls",
      "#grid",
      "#warps",
      "#LDS",
      "#VGPR",
      "#AGPR",
      "#SGPR",
      "#spills",
      "#scratch",
      "#compile",
    ];
    const lines = r.route.map(k => {
      const spills =
        k.vgpr_spills === undefined && k.sgpr_spills === undefined
          ? ""
          : `${num(k.vgpr_spills) || "?"} V, ${num(k.sgpr_spills) || "?"} S`;
      return [
        k.phase,
        KINDS[k.kind] || k.kind,
        num(k.calls || 1),
        k.grid ? k.grid.join("×") : "",
        num(k.num_warps),
        size(k.lds_bytes),
        num(k.vgprs),
        num(k.agprs),
        num(k.sgprs),
        [spills, k.vgpr_spills || k.sgpr_spills ? "hot" : ""],
        [size(k.scratch_bytes), k.scratch_bytes ? "hot" : ""],
        k.compile_s === undefined || k.compile_s === null ? "" : c.unit(k.compile_s, "s"),
      ];
    });
    const names = r.route.map((k, j) => [
      el("code", {}, `${j + 1}. ${k.name}`),
      k.detail ? el("div", { className: "soft" }, k.detail) : null,
    ]);
    return section(
      "Route: what ran, in order of first launch",
      grid(heads, lines, names),
      r.route.some(k => (k.compile_s === undefined || k.compile_s === null) && k.vgprs !== undefined)
        ? el("p", { className: "soft" }, "A Triton kernel without a compile time came from Triton's cache.")
        : null,
    );
  }

  function numbers(r) {
    if (!(r.checks || []).length) return null;
    return section(
      "Numerics",
      grid(
        ["", "check", "unused slots", "#rel. L2", "#bound", "#plain", "#worst row", "#max abs", "#NaN", "#unwritten"],
        r.checks.map(x => [
          [
            x.ok === true ? "✓ ok" : x.ok === false ? "✕ bad" : "–",
            x.ok === true ? "yes" : x.ok === false ? "no" : "soft",
          ],
          [[CHECKS[x.part] || x.part, x.detail ? el("div", { className: "soft" }, x.detail) : null], ""],
          x.cache || "zeroed",
          num(x.relative_l2),
          num(x.bound),
          num(x.plain_error),
          x.worst_row_error === undefined || x.worst_row_error === null
            ? ""
            : `${num(x.worst_row_error)}× (row ${x.worst_row})`,
          num(x.max_abs),
          x.nan_count ? String(x.nan_count) : "",
          x.unwritten_count ? String(x.unwritten_count) : "",
        ]),
      ),
      el(
        "p",
        { className: "soft" },
        "Relative to the reference's norm; a row's error is a multiple of its own bound, and a cache write's counts half units in the last place. Bounds follow from dtypes and lengths; plain: a plain implementation in the same dtypes.",
      ),
    );
  }

  const present = v => v !== undefined && v !== null;

  function timing(r) {
    if (!(r.times || []).length) return null;
    return section(
      "Time of one call",
      r.times.map(t => {
        const share = t.share_of_roofline;
        return rows([
          [
            t.phase,
            `${c.unit(t.median_us, "us")} (${c.unit(t.low_us, "us")} to ${c.unit(t.high_us, "us")}, ${t.repeats} repeats), workload ${t.workload}`,
          ],
          share === undefined || share === null
            ? null
            : ["roofline", `${c.three(share * 100)} % of what the measured bandwidth allows`],
          t.query_tokens ? ["query tokens", String(t.query_tokens)] : null,
          t.requests ? ["requests", String(t.requests)] : null,
          (t.rounds || []).length
            ? [
                "rounds",
                t.rounds.map(us => c.unit(us, "us")).join(", ") +
                  (t.drifted ? "; drifted: the interval was widened for them" : ""),
              ]
            : null,
          present(t.metadata_us)
            ? [
                "metadata build",
                `${c.unit(t.metadata_us, "us")} on the host` +
                  (present(t.metadata_synchronisations) ? `, ${t.metadata_synchronisations} synchronisations` : ""),
              ]
            : null,
          present(t.host_us) ? ["call", `${c.unit(t.host_us, "us")} on the host, no part of the time`] : null,
          present(t.bandwidth_tb_s)
            ? ["bandwidth", `${c.three(t.bandwidth_tb_s)} TB/s moved in the same process`]
            : null,
          ...Object.entries(t.clocks || {}).map(([name, [low, high]]) => [
            name.replaceAll("_", " "),
            low === high ? c.three(low) : `${c.three(low)} to ${c.three(high)}`,
          ]),
          t.gpu ? ["gpu", t.gpu] : null,
          t.detail ? ["conditions", t.detail] : null,
        ]);
      }),
    );
  }

  function failure(r) {
    const f = r.failure;
    if (!f) return null;
    const died = [
      f.signal ? `signal ${f.signal}` : "",
      f.exit_code !== undefined && f.exit_code !== null ? `exit code ${f.exit_code}` : "",
    ]
      .filter(Boolean)
      .join(", ");
    return section(
      "Failure",
      rows([
        ["type", f.type],
        ["message", f.message],
        f.frame ? ["deepest frame", el("code", {}, f.frame)] : null,
        died ? ["died with", died] : null,
      ]),
      (f.traceback || []).length
        ? el("details", {}, el("summary", {}, "traceback"), el("pre", {}, f.traceback.join("\n")))
        : null,
      f.stderr_tail ? el("details", {}, el("summary", {}, "end of stderr"), el("pre", {}, f.stderr_tail)) : null,
    );
  }

  function environment(i, ev) {
    const e = c.environment(i, ev),
      r = ev.record;
    const spent = Object.entries(r.durations || {})
      .sort((a, b) => PHASES.indexOf(a[0]) - PHASES.indexOf(b[0]))
      .map(([k, v]) => `${k} ${c.unit(v, "s")}`)
      .join(", ");
    return section(
      "When and where",
      rows([
        ["run", c.value("run", i) + (c.isOld(i) ? " (a later record stands for this cell)" : "")],
        r.started_at
          ? ["when", `${r.started_at} to ${r.ended_at || "?"}${r.attempt > 1 ? `, attempt ${r.attempt}` : ""}`]
          : null,
        spent ? ["durations", spent] : null,
        ["speaks for", c.value("arch", i)],
        ...(e
          ? [
              ["versions", facts(e.versions)],
              ["commits", facts(e.commits)],
              ["hardware", facts(e.hardware)],
              ["identity", facts(e.identity)],
              ["switches", facts(e.switches)],
              (e.extensions || []).length ? ["changed", e.extensions.join("\n")] : null,
            ]
          : [["environment", "not recorded: the target could not be started"]]),
      ]),
    );
  }

  function copy(button, words) {
    const done = () => {
      button.textContent = "Copied";
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1500);
    };
    const fallback = () => {
      const area = el("textarea", { className: "sr" });
      area.value = words;
      document.getElementById("panel").append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      done();
    };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(words).then(done, fallback);
    else fallback();
  }
  function rerun(ev) {
    const titles = {
      pytest: "Exactly this cell",
      capmatrix: "The same by keyword",
      explain: "All of it in a terminal",
    };
    return section(
      "Run it again",
      ev.commands.map(([title, words]) => {
        const button = el("button", { type: "button", onclick: () => copy(button, words) }, "Copy");
        return el(
          "div",
          {},
          el("div", { className: "soft" }, titles[title] || title),
          el("div", { className: "command" }, el("pre", {}, words), button),
        );
      }),
    );
  }

  function sections(i, ev) {
    const r = ev.record;
    const parts = [
      verdict(r, i),
      failure(r),
      rerun(ev),
      claims(r),
      route(r),
      numbers(r),
      timing(r),
      setup(r),
      environment(i, ev),
    ];
    return parts.flat(9).filter(Boolean);
  }
  Object.assign(c, { sections, section, copy });
})();
