// The panel beside the tables: one cell's evidence, decoded when it is opened, and the records beside it.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c;
  const panel = document.getElementById("panel");
  let shownFor = -1,
    returnTo = null;

  // The records beside this one: of its tile, or of its point over batches and targets.
  function beside(i) {
    const indices = c.tile && c.tile.indices.includes(i) ? c.tile.indices : c.heat.beside(i);
    const { findings } = c.summary.summarise(indices);
    const B = c.column("batch");
    const lines = findings
      .slice()
      .sort((a, b) => B.codes[a.deciding] - B.codes[b.deciding])
      .flatMap(f => [f.deciding, ...f.others].map((j, k) => ({ j, other: k > 0, conflict: f.conflicts.includes(j) })));
    if (lines.length < 2) return null;
    const kinds = new Set(lines.map(x => c.value("target", x.j)));
    return el(
      "ul",
      { className: "batches", "aria-label": "Records of this tile" },
      lines.slice(0, 80).map(({ j, other, conflict }) =>
        el(
          "li",
          {},
          el(
            "button",
            {
              type: "button",
              "aria-pressed": String(j === i),
              title: other ? "does not decide: a stronger target's record does" : "decides its batch",
              onclick: () => {
                c.open(j);
              },
            },
            c.value("batch", j),
            kinds.size > 1 ? el("span", { className: "soft" }, c.value("target", j).split(":")[0]) : null,
            c.markOf(c.value("verdict", j)),
            conflict ? el("span", { className: "mark" }, "!") : other ? el("span", { className: "soft" }, "·") : null,
          ),
        ),
      ),
      lines.length > 80 ? el("li", { className: "soft" }, `and ${lines.length - 80} more: see the list`) : null,
    );
  }

  async function show(i) {
    shownFor = i;
    panel.hidden = false;
    const name = c.id(i);
    const head = el(
      "header",
      {},
      el(
        "h2",
        { id: "panel-title", tabIndex: -1 },
        el("code", {}, c.value("backend", i)),
        ` block ${c.value("block_size", i)}, ${c.value("kv_cache_dtype", i)}, ${c.value("batch", i)}`,
      ),
      el(
        "div",
        { className: "soft" },
        `${c.value("arch", i)}; ${c.value("drafter", i)}, TP ${c.value("tp", i)}; ${c.value("target", i)}`,
      ),
      el("button", { type: "button", className: "shut", "aria-label": "Close", onclick: c.close }, "×"),
      beside(i),
    );
    const body = el("div", { className: "evidence", "aria-busy": "true" }, el("p", { className: "soft" }, "…"));
    const focused = panel.contains(document.activeElement);
    panel.replaceChildren(head, body);
    panel.scrollTop = 0;
    if (!focused || document.activeElement === document.body) head.querySelector("h2").focus({ preventScroll: true });
    let ev;
    try {
      ev = await c.evidence(i);
    } catch (error) {
      body.replaceChildren(
        el(
          "p",
          { className: "no" },
          `The evidence could not be decoded: ${error.message}. This browser may be too old (DecompressionStream).`,
        ),
      );
      return;
    }
    if (shownFor !== i) return;
    const permalink = el(
      "button",
      { type: "button", className: "linkish", onclick: () => c.copy(permalink, location.href) },
      "Copy",
    );
    body.replaceChildren(
      ...c.sections(i, ev),
      c.section("Cell id", el("pre", {}, name), el("p", { className: "soft" }, "Link to this cell: ", permalink)),
    );
    body.setAttribute("aria-busy", "false");
    body.dataset.cell = name;
  }

  c.onChange(what => {
    if (what !== "cell") return;
    const i = c.opened();
    if (i < 0) {
      const was = !panel.hidden;
      panel.hidden = true;
      panel.replaceChildren();
      shownFor = -1;
      if (c.state.cell) {
        panel.hidden = false;
        panel.replaceChildren(
          el(
            "header",
            {},
            el("h2", {}, "No such cell"),
            el("button", { type: "button", className: "shut", "aria-label": "Close", onclick: c.close }, "×"),
          ),
          el("p", {}, "This page has no record of ", el("code", {}, c.state.cell)),
        );
      } else if (was && returnTo && returnTo.isConnected) returnTo.focus({ preventScroll: true });
      return;
    }
    if (panel.hidden) returnTo = document.activeElement === document.body ? null : document.activeElement;
    if (i !== shownFor) show(i);
  });
})();
