// The heat map on the screen: tables of tiles, keys to move over them, groups far from the screen left undrawn.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c,
    { model, shown, named, kernelBlock, axesBar, about, head, why } = c.heat;
  const LAZY = 600; // tiles, above which groups are drawn only near the screen
  const MARKS = new Map(c.data.legend.marks.map(m => [m.name, m.letter]));

  const BY_RECORD = ["batch", "target", "verdict", "rung", "phase", "flags", "advertised", "kernel_block", "lengths"];

  function drawTile(node, indices, expected, where, hidden) {
    if (!indices) {
      const word = hidden ? "filtered" : "not run";
      node.className = `${node.className} t notrun${hidden ? " filtered" : ""}`;
      node.setAttribute("aria-label", c.text(`${where}: ${word}`));
      node.append(el("span", {}, el("span", { className: "w" }, word)));
      return null;
    }
    const found = c.summary.summarise(indices),
      strength = c.rungOf.get(found.rung).strength;
    node.className = `${node.className} t ${found.verdict} r${strength + 1}`;
    const letters = [...MARKS].filter(([flag]) => found.flags.has(flag));
    const part = found.ran && found.ran < expected ? `${found.ran}/${expected}` : "",
      kernel = kernelBlock(found.findings);
    const ran = c.ran(found.verdict);
    const words = [
      found.verdict,
      ran ? found.rung : "",
      ...letters.map(l => l[0]),
      part && `${part} batches ran`,
      kernel && `kernel block ${kernel}`,
    ]
      .filter(Boolean)
      .join(", ");
    const inner = el(
      "span",
      {},
      el(
        "span",
        {},
        el(
          "span",
          { className: "w" },
          found.verdict,
          part ? el("span", { className: "part" }, ` ${part}`) : null,
          kernel ? el("span", { className: "part" }, ` k${kernel}`) : null,
        ),
        letters.length ? el("sup", {}, letters.map(l => l[1]).join("")) : null,
      ),
      ran ? el("small", {}, found.rung) : null,
    );
    node.append(inner);
    node.title = `${words}\n${c.value("reason", found.deciding)}`.trim();
    node.setAttribute("aria-label", c.text(`${where}: ${words}`));
    return found;
  }

  function render(container) {
    let grids = [],
      focus = { grid: 0, row: 0, column: 0 },
      watching = null;
    const body = el("div", {}),
      bar = el("div", { className: "axes" });
    container.append(bar, body);

    function drawGroup(group) {
      if (group.drawn) return;
      group.drawn = true;
      const { home, grid, axes } = group.context;
      group.body.replaceChildren();
      group.body.style.height = "";
      const names = axes.groups.map((name, k) => named(name, group.codes[k])).filter(Boolean);
      if (names.length) {
        group.body.append(
          el(
            "tr",
            { className: "group" },
            el(
              "th",
              { colSpan: 1 + home.columns.length, scope: "colgroup" },
              names.join(", "),
              el("span", { className: "soft" }, group.about),
            ),
          ),
        );
      }
      // Of filtered records, or of one batch, nothing says how many there should be.
      const partly =
        c.state.query || BY_RECORD.some(name => c.filters[name]) || [...axes.rows, ...axes.columns].includes("batch");
      const expected = (home.batches.get(group.key) || new Set()).size;
      group.rows.forEach((row, r) => {
        const main = axes.rows.map((name, k) => shown(name, row.codes[k])).join(", ");
        const variant = home.varying
          .map((name, k) => named(name, row.codes[axes.rows.length + k]))
          .filter(Boolean)
          .join(", ");
        const tr = el(
          "tr",
          {},
          el("th", { scope: "row" }, el("code", {}, main), variant ? el("div", { className: "soft" }, variant) : null),
        );
        row.cells = home.columns.map((column, k) => {
          const td = el("td", { tabIndex: -1, className: column.edge ? "edge" : "" }),
            indices = row.tiles.get(column.key);
          const where = [main, variant, ...names, ...axes.columns.map((name, j) => named(name, column.codes[j]))]
            .filter(Boolean)
            .join(", ");
          const found = drawTile(
            td,
            indices,
            partly ? 0 : expected,
            where,
            !indices && home.hidden(group, row, column),
          );
          td.dataset.at = `${grid},${group.start + r},${k}`;
          if (column.edge) td.classList.add("edge");
          td.tile = found && { indices, found, where };
          tr.append(td);
          return td;
        });
        group.body.append(tr);
      });
      markSelected();
    }
    function clearGroup(group) {
      if (!group.drawn || group.body.contains(document.activeElement)) return;
      group.drawn = false;
      group.body.style.height = `${group.body.offsetHeight}px`;
      const height = group.body.offsetHeight;
      group.rows.forEach(row => {
        row.cells = null;
      });
      group.body.replaceChildren(el("tr", {}, placeholder(group, height)));
    }
    function placeholder(group, height) {
      const td = el("td", { colSpan: 1 + group.context.home.columns.length });
      td.style.height = `${height}px`;
      return td;
    }

    // A table that does not fit scrolls by itself. Measured once all is there, so that the page is laid out once.
    function markWide() {
      const narrow = [...body.querySelectorAll(".wrap:not(.wide)")];
      for (const wrap of narrow.filter(x => x.scrollWidth > x.clientWidth + 1)) wrap.classList.add("wide");
    }
    function draw() {
      axesBar(bar);
      if (watching) watching.disconnect();
      const { axes, homes } = model();
      const columns = homes.reduce((most, h) => Math.max(most, h.columns.length), 0);
      container.classList.toggle(
        "compact",
        c.params.compact === "1" || (columns > 12 && c.params.compact === undefined),
      );
      body.replaceChildren();
      grids = [];
      if (!homes.length) {
        body.append(
          el(
            "p",
            { className: "empty" },
            "No cell matches. ",
            el("button", { type: "button", className: "linkish", onclick: c.clearFilters }, "Clear the filters"),
          ),
        );
        return;
      }
      const tiles = homes.reduce(
        (sum, h) => sum + h.groups.reduce((s, g) => s + g.rows.length * h.columns.length, 0),
        0,
      );
      const lazy = tiles > LAZY;
      const byBody = new Map();
      watching = lazy
        ? new IntersectionObserver(
            entries => {
              for (const e of entries) {
                const g = byBody.get(e.target);
                if (e.isIntersecting) drawGroup(g);
                else clearGroup(g);
              }
              markWide();
            },
            { rootMargin: "900px" },
          )
        : null;
      homes.forEach((home, number) => {
        const title = home.names.includes("arch")
          ? shown("arch", home.codes[home.names.indexOf("arch")])
          : "All architectures";
        const versions = home.names.includes("versions")
          ? shown("versions", home.codes[home.names.indexOf("versions")])
          : "";
        const T = c.column("target");
        const targets = [...new Set(home.indices.map(i => T.codes[i]))]
          .sort((a, b) => a - b)
          .map(code => T.values[code]);
        home.columns.forEach((column, k) => {
          column.edge = axes.columns.length > 1 && k > 0 && column.codes[0] !== home.columns[k - 1].codes[0];
        });
        const table = el("table", {
          className: "matrix",
          role: "grid",
          "aria-label": c.text(title),
          "aria-readonly": "true",
        });
        table.append(head(axes, home));
        const grid = { home, table, rows: [], groups: [] };
        let start = 0;
        for (const group of home.groups) {
          group.context = { home, grid: number, axes };
          group.start = start;
          start += group.rows.length;
          group.body = el("tbody", {});
          group.about = about(axes, group);
          grid.rows.push(...group.rows.map(row => ({ row, group })));
          table.append(group.body);
          if (lazy) {
            byBody.set(group.body, group);
            group.body.append(el("tr", {}, placeholder(group, 30 + group.rows.length * 42)));
            watching.observe(group.body);
          } else drawGroup(group);
        }
        grids.push(grid);
        const wrap = el("div", { className: "wrap" }, table);
        const facts = el(
          "p",
          { className: "soft" },
          versions,
          versions ? "; " : "",
          targets.map((t, k) => [k ? ", " : "", el("code", {}, t)]),
        );
        const reason = home.absent ? c.value("reason", home.indices[0]) : "";
        // A target on which nothing could be run is a line, not a table of nothing.
        body.append(
          home.absent
            ? el(
                "section",
                { className: "home absent" },
                el(
                  "details",
                  { open: homes.length === 1 },
                  el(
                    "summary",
                    {},
                    el("h2", {}, title),
                    ` ${home.indices.length.toLocaleString("en")} cells unavailable: ${reason}`,
                  ),
                  facts,
                  wrap,
                  why(home),
                ),
              )
            : el("section", { className: "home" }, el("h2", {}, title), facts, wrap, why(home)),
        );
      });
      markWide();
      const first = tileAt(0, 0, 0);
      if (first) first.tabIndex = 0;
    }

    function tileAt(grid, row, column) {
      const g = grids[grid],
        entry = g && g.rows[row];
      if (!entry || column < 0 || column >= g.home.columns.length) return null;
      drawGroup(entry.group);
      return entry.row.cells[column];
    }
    function move(grid, row, column) {
      if (grids[grid] && row < 0) {
        grid--;
        row = grids[grid] ? grids[grid].rows.length - 1 : 0;
      } else if (grids[grid] && row >= grids[grid].rows.length) {
        grid++;
        row = 0;
      }
      if (!grids[grid]) return;
      const node = tileAt(grid, row, Math.min(column, grids[grid].home.columns.length - 1));
      if (!node) return;
      const before = tileAt(focus.grid, focus.row, focus.column);
      if (before) before.tabIndex = -1;
      focus = { grid, row, column };
      node.tabIndex = 0;
      if (node.closest("details")) node.closest("details").open = true;
      node.focus();
      node.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    const at = node => {
      const [grid, row, column] = node.dataset.at.split(",").map(Number);
      return { grid, row, column };
    };
    function openTile(node) {
      if (!node.tile) return;
      const i = node.tile.found.deciding;
      c.tile = node.tile;
      c.open(i);
    }
    body.addEventListener("click", e => {
      const node = e.target.closest("td.t");
      if (node) {
        focus = at(node);
        openTile(node);
      }
    });
    body.addEventListener("keydown", e => {
      const node = e.target.closest && e.target.closest("td.t");
      if (!node || e.altKey || e.ctrlKey || e.metaKey) return;
      const { grid, row, column } = at(node);
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (steps[e.key]) move(grid, row + steps[e.key][0], column + steps[e.key][1]);
      else if (e.key === "Home") move(grid, row, 0);
      else if (e.key === "End") move(grid, row, grids[grid].home.columns.length - 1);
      else if (e.key === "Enter" || e.key === " ") openTile(node);
      else return;
      e.preventDefault();
    });

    function markSelected() {
      for (const node of body.querySelectorAll('td[aria-selected="true"]')) node.removeAttribute("aria-selected");
      const i = c.opened();
      if (i < 0) return;
      for (const g of grids)
        for (const { row } of g.rows) {
          if (!row.cells) continue;
          for (const node of row.cells)
            if (node.tile && node.tile.indices.includes(i)) node.setAttribute("aria-selected", "true");
        }
    }
    c.focusTile = () => {
      const node = tileAt(focus.grid, focus.row, focus.column);
      if (node) node.focus();
    };

    const everything = () => {
      for (const g of grids) for (const { group } of g.rows) drawGroup(group);
    };
    addEventListener("beforeprint", everything);
    draw();
    return what => {
      if (what === "cell") markSelected();
      else draw();
    };
  }
  c.registerView("table", "Table", render);
})();
