// The list: every record a row, sortable; only the rows on the screen exist.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c;
  const HEIGHT = 30,
    SPARE = 12;
  const ORDER = [
    "verdict",
    "rung",
    "run",
    "arch",
    "target",
    "backend",
    "block_size",
    "kv_cache_dtype",
    "drafter",
    "tp",
    "role",
    "batch",
    "k",
    "dtype",
    "execution",
    "runner",
    "scales",
    "switches",
    "force",
    "kernel_block",
    "flags",
    "advertised",
  ];
  const WIDE = {
    verdict: 138,
    rung: 104,
    drafter: 200,
    backend: 220,
    target: 150,
    arch: 130,
    batch: 150,
    kv_cache_dtype: 120,
    flags: 190,
    switches: 220,
    run: 160,
    advertised: 150,
    method: 90,
  };

  function fields() {
    const out = ORDER.map(name => c.column(name))
      .filter(x => x && (x.values.length > 1 || x.name === "verdict" || x.name === "backend"))
      .map(x => ({
        name: x.name,
        title: x.title,
        width: WIDE[x.name] || 96,
        key: i => x.codes[i],
        draw: i => {
          const v = x.values[x.codes[i]];
          return x.name === "verdict"
            ? c.markOf(v)
            : v === null || v === ""
              ? ""
              : Array.isArray(v)
                ? v.join(", ")
                : String(v);
        },
      }));
    for (const m of c.measures.values()) {
      out.push({
        name: m.name,
        title: m.title,
        width: 116,
        number: true,
        key: i => m.values[i],
        draw: i => c.unit(m.values[i], m.unit),
      });
    }
    const R = c.column("reason");
    out.push({ name: "reason", title: "Reason", width: 620, key: i => R.codes[i], draw: i => R.values[R.codes[i]] });
    return out;
  }

  function render(container) {
    const columns = fields(),
      byName = new Map(columns.map(f => [f.name, f]));
    const head = el("div", { className: "head", role: "row" }),
      body = el("div", { className: "body", role: "rowgroup" });
    const box = el(
      "div",
      { className: "list", role: "grid", tabIndex: 0, "aria-label": "Cells", "aria-readonly": "true" },
      el("div", { role: "rowgroup", className: "top" }, head),
      body,
    );
    let order = [],
      active = 0,
      drawn = new Map();
    container.append(box);
    const width = columns.reduce((sum, f) => sum + f.width, 0);
    head.style.width = body.style.width = `max(100%, ${width}px)`;

    const sorting = () => {
      const s = c.params.sort || "";
      return { name: s.replace(/^-/, ""), down: s.startsWith("-") };
    };
    for (const f of columns) {
      const b = el(
        "button",
        {
          type: "button",
          role: "columnheader",
          onclick: () => {
            const now = sorting();
            c.setParam("sort", now.name !== f.name ? f.name : now.down ? "" : `-${f.name}`);
          },
        },
        f.title,
      );
      b.style.width = `${f.width}px`;
      head.append(b);
    }

    function sort() {
      const { name, down } = sorting(),
        f = byName.get(name),
        found = c.visible();
      order = Array.from(found);
      columns.forEach((g, k) => {
        const on = f === g;
        head.children[k].setAttribute("aria-sort", on ? (down ? "descending" : "ascending") : "none");
        head.children[k].textContent = g.title + (on ? (down ? " ▾" : " ▴") : "");
      });
      if (!f) return;
      // Records without a figure come last, whichever the direction.
      const sign = down ? -1 : 1;
      order.sort((a, b) => {
        const x = f.key(a),
          y = f.key(b);
        if (x === y) return a - b;
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        return sign * (x - y);
      });
    }

    function row(k) {
      const i = order[k];
      const node = el(
        "div",
        {
          className: "row",
          role: "row",
          id: `row${k}`,
          "aria-rowindex": String(k + 2),
          "aria-selected": String(k === active),
          onclick: () => {
            active = k;
            c.tile = null;
            c.open(i);
            show();
          },
        },
        columns.map(f => {
          const span = el("span", { role: "gridcell", className: f.number ? "end" : "" }, f.draw(i));
          span.style.width = `${f.width}px`;
          return span;
        }),
      );
      node.style.top = `${k * HEIGHT}px`;
      return node;
    }
    function show() {
      const first = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - SPARE),
        last = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / HEIGHT) + SPARE);
      for (const [k, node] of drawn)
        if (k < first || k >= last) {
          node.remove();
          drawn.delete(k);
        }
      for (let k = first; k < last; k++) {
        if (!drawn.has(k)) {
          const node = row(k);
          drawn.set(k, node);
          body.append(node);
        } else drawn.get(k).setAttribute("aria-selected", String(k === active));
      }
      box.setAttribute("aria-activedescendant", `row${active}`);
    }
    function refresh() {
      sort();
      box.setAttribute("aria-rowcount", String(order.length + 1));
      body.style.height = `${order.length * HEIGHT}px`;
      for (const node of drawn.values()) node.remove();
      drawn = new Map();
      active = Math.max(0, order.indexOf(c.opened()));
      box.scrollTop = Math.min(box.scrollTop, order.length * HEIGHT);
      show();
    }
    let waiting = false;
    box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        show();
      });
    });
    addEventListener("resize", () => {
      if (box.isConnected) show();
    });
    box.addEventListener("keydown", e => {
      if (e.target !== box) return;
      const page = Math.floor(box.clientHeight / HEIGHT) - 2;
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -order.length, End: order.length }[
        e.key
      ];
      if (e.key === "Enter" && order.length) {
        c.tile = null;
        c.open(order[active]);
      } else if (step) {
        active = Math.min(order.length - 1, Math.max(0, active + step));
        const top = active * HEIGHT,
          room = box.clientHeight - head.offsetHeight - HEIGHT;
        if (top < box.scrollTop) box.scrollTop = top;
        else if (top > box.scrollTop + room) box.scrollTop = top - room;
        show();
      } else return;
      e.preventDefault();
    });
    refresh();
    c.focusList = () => box.focus();
    return what => {
      if (what === "cell") show();
      else refresh();
    };
  }
  c.registerView("list", "List", render);
})();
