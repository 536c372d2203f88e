// What is around the views: title, overview, search, filters, tabs, keys. Runs last.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c;
  const top = document.getElementById("overview"),
    bar = document.getElementById("toolbar"),
    main = document.getElementById("view");
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: c.home === "pairs" ? "Search: ROCM_ATTN b128 eagle3   ( / )" : "Search: ROCM_ATTN b128 verify   ( / )",
    "aria-label": c.home === "pairs" ? "Search pairs" : "Search cells",
    value: c.state.query,
  });
  const tools = el("div", { className: "tools", role: "search" }),
    tabs = el("div", { className: "tabs", role: "tablist" }),
    count = el("span", { className: "count soft", role: "status" });

  // Filters: one a column that has more than one value.
  const choices = x => {
    const out = [];
    for (const v of x.values) for (const w of c.words(v)) if (!out.includes(w)) out.push(w);
    return out;
  };
  const filters = [...c.columns.values()]
    .filter(x => x.filter && choices(x).length > 1)
    .map(x => {
      const summary = el("summary", {}, x.title),
        inner = el("div", {}),
        box = el("details", { className: "filter", dataset: { axis: x.name } }, summary, inner);
      const name = () => {
        const chosen = c.filters[x.name] || [];
        box.classList.toggle("on", chosen.length > 0);
        summary.textContent = c.text(
          chosen.length ? `${x.title}: ${chosen.length === 1 ? chosen[0].slice(0, 28) : chosen.length}` : x.title,
        );
      };
      function fill() {
        const counts = new Map(),
          perCode = new Uint32Array(x.values.length);
        for (const i of c.without(x.name)) perCode[x.codes[i]]++;
        x.values.forEach((v, code) => {
          for (const w of c.words(v)) counts.set(w, (counts.get(w) || 0) + perCode[code]);
        });
        const chosen = new Set(c.filters[x.name] || []);
        inner.replaceChildren(
          ...choices(x)
            .slice(0, 400)
            .map(w =>
              el(
                "label",
                { className: counts.get(w) ? "" : "none" },
                el("input", {
                  type: "checkbox",
                  value: w,
                  checked: chosen.has(w),
                  onchange: () => {
                    c.setFilter(
                      x.name,
                      [...inner.querySelectorAll("input:checked")].map(b => b.value),
                    );
                  },
                }),
                el("span", {}, w),
                el("span", { className: "soft" }, (counts.get(w) || 0).toLocaleString("en")),
              ),
            ),
          el("button", { type: "button", className: "linkish", onclick: () => c.setFilter(x.name, []) }, "All"),
        );
      }
      box.addEventListener("toggle", () => {
        if (!box.open) return;
        for (const other of filters) if (other.box !== box) other.box.open = false;
        fill();
      });
      return { box, name, fill };
    });
  addEventListener("pointerdown", e => {
    for (const f of filters) if (f.box.open && !f.box.contains(e.target)) f.box.open = false;
  });

  const clear = el("button", { type: "button", className: "linkish", onclick: c.clearFilters }, "Clear all");
  const FIRST = [
    "run",
    "arch",
    "backend",
    "drafter",
    "block_size",
    "kv_cache_dtype",
    "batch",
    "target",
    "verdict",
    "rung",
    "flags",
  ];
  const rest = el("span", { className: "more", hidden: true });
  const more = el(
    "button",
    {
      type: "button",
      "aria-expanded": "false",
      onclick: () => {
        rest.hidden = !rest.hidden;
        more.setAttribute("aria-expanded", String(!rest.hidden));
      },
    },
    "More filters",
  );
  for (const f of filters) if (!FIRST.includes(f.box.dataset.axis)) rest.append(f.box);
  tools.append(
    search,
    ...FIRST.flatMap(name => filters.filter(f => f.box.dataset.axis === name).map(f => f.box)),
    more,
    rest,
    clear,
  );
  more.hidden = !rest.children.length;
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => c.setQuery(search.value), 120);
  });
  search.addEventListener("keydown", e => {
    if (e.key !== "Enter") return;
    clearTimeout(typing);
    c.setQuery(search.value);
    if (c.state.view === "list" && c.focusList) c.focusList();
    else if (c.focusTile) c.focusTile();
  });

  // Tabs. A view is rendered when first shown; see registerView.
  const order = ["table", "list", "compare", "history", "plots", "pairs"];
  const rank = v => (order.includes(v.name) ? order.indexOf(v.name) : order.length);
  const ofCells = ["table", "list"]; // nothing to show where a run has pairs alone
  const views = c.views
    .filter(v => (v.when ? v.when() : c.home !== "pairs" || !ofCells.includes(v.name)))
    .sort((a, b) => rank(a) - rank(b));
  const slots = new Map();
  for (const v of views) {
    const tab = el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${v.name}`,
        "aria-controls": `view-${v.name}`,
        onclick: () => c.setView(v.name),
      },
      v.title,
    );
    const box = el("section", {
      id: `view-${v.name}`,
      role: "tabpanel",
      "aria-labelledby": `tab-${v.name}`,
      hidden: true,
    });
    tab.addEventListener("keydown", e => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!step) return;
      const next = views[(views.indexOf(v) + step + views.length) % views.length];
      c.setView(next.name);
      slots.get(next.name).tab.focus();
    });
    slots.set(v.name, { v, tab, box, update: null, stale: true });
    tabs.append(tab);
    main.append(box);
  }
  tabs.append(count);
  bar.append(tools, tabs);
  function showView(what) {
    const wanted = slots.has(c.state.view) ? c.state.view : c.home;
    for (const [name, slot] of slots) {
      const on = name === wanted;
      slot.tab.setAttribute("aria-selected", String(on));
      slot.tab.tabIndex = on ? 0 : -1;
      slot.box.hidden = !on;
      if (!on) {
        if (what !== "cell") slot.stale = true;
        continue;
      }
      if (slot.update) {
        if (slot.stale || what) slot.update(slot.stale ? "filter" : what);
      } else {
        slot.box.replaceChildren();
        slot.update = slot.v.render(slot.box) || null;
      }
      slot.stale = false;
    }
  }
  // Headings of tables stick below the bar, however many lines it has.
  new ResizeObserver(() => {
    const height = getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;
    document.documentElement.style.setProperty("--bar", `${height}px`);
  }).observe(bar);
  function recount() {
    const [shown, all, noun] =
      c.state.view === "pairs" && slots.has("pairs")
        ? [c.pairsFound().size, c.pairCount(), "pair"]
        : [c.visible().length, c.every().length, "cell"];
    const nouns = noun === "pair" && all === 1 ? noun : `${noun}s`;
    count.textContent =
      shown === all
        ? `${all.toLocaleString("en")} ${nouns}`
        : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} ${nouns}`;
  }
  function refresh() {
    recount();
    for (const f of filters) {
      f.name();
      if (f.box.open) f.fill();
    }
    if (filters.some(f => rest.contains(f.box) && f.box.classList.contains("on"))) {
      rest.hidden = false;
      more.setAttribute("aria-expanded", "true");
    }
    clear.hidden = !Object.keys(c.filters).length && !c.state.query;
    if (document.activeElement !== search) search.value = c.state.query;
  }

  addEventListener("keydown", e => {
    const typingIn = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName || "");
    if (e.key === "Escape") {
      const open = filters.find(f => f.box.open);
      if (open) {
        open.box.open = false;
        open.box.firstChild.focus();
      } else if (c.state.cell) c.close();
      else if (e.target === search) {
        search.value = "";
        c.setQuery("");
        search.blur();
      }
    } else if (e.key === "/" && !typingIn && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      search.focus();
      search.select();
    }
  });

  // What all cells share, so that no filter is needed for it.
  const fixed = [...c.columns.values()]
    .filter(
      x =>
        x.filter &&
        x.values.length === 1 &&
        !["run", "arch", "versions", "force", "advertised"].includes(x.name) &&
        x.values[0] !== "" &&
        !Array.isArray(x.values[0]),
    )
    .map(x => `${x.title.toLowerCase()} ${c.label(x.values[0])}`)
    .join(", ");

  top.append(...c.overview());
  if (fixed) top.append(el("p", { className: "soft" }, `Of all cells: ${fixed}.`));
  c.onChange(what => {
    if (what === "filter") refresh();
    else if (what === "view") recount();
    showView(what);
  });
  refresh();
  showView();
  if (c.state.cell) c.changed("cell");
  document.documentElement.dataset.ready = "true";
})();
