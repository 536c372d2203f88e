// The history: a strip a cell, a square a run, oldest first; where the verdict changed, the edge between two squares is
// strong. Only the strips on the screen exist.
(() => {
  "use strict";
  const c = window.capmatrix, { el } = c;
  const HEIGHT = 30, SPARE = 12;

  const { runs, age } = c.compare, V = c.column("verdict"), R = c.column("rung"), RUN = c.column("run");

  let strips = null;
  function all() {
    if (strips) return strips;
    const found = new Map();
    for (let i = 0; i < c.n; i++) {
      const id = c.id(i);
      if (!found.has(id)) found.set(id, { id, records: new Array(runs.length).fill(-1), turns: [], moved: [] });
      found.get(id).records[age[RUN.codes[i]]] = i;
    }
    for (const strip of found.values()) {
      let before = -1;
      strip.records.forEach((i, at) => {
        if (i < 0) return;
        if (before >= 0 && V.codes[i] !== V.codes[before]) strip.turns.push(at);
        else if (before >= 0 && R.codes[i] !== R.codes[before]) strip.moved.push(at);
        before = i;
      });
    }
    return (strips = [...found.values()]);
  }

  function render(container) {
    const bar = el("div", { className: "axes" }), head = el("div", { className: "head" }), body = el("div", { className: "body", role: "list" });
    const box = el("div", { className: "list history", tabIndex: 0, "aria-label": "History of cells" }, head, body), note = el("p", { className: "soft" });
    container.append(bar, note, box);
    let order = [], drawn = new Map();

    function square(strip, at) {
      const i = strip.records[at], turn = strip.turns.includes(at) ? " turn" : strip.moved.includes(at) ? " moved" : "";
      if (i < 0) return el("span", { className: "h none", title: `${runs[at].name}: not run` }, "·");
      const v = c.value("verdict", i), rung = c.ran(v) ? ` (${c.value("rung", i)})` : "";
      const label = `${runs[at].name}: ${v}${rung}${turn === " turn" ? ", changed" : turn === " moved" ? ", another rung" : ""}\n${c.value("versions", i)}\n${c.value("reason", i)}`.trim();
      return el("button", { type: "button", className: `h ${v}${turn}`, title: label, "aria-label": label, onclick: () => c.open(i) }, el("i", { className: `s ${v}`, "aria-hidden": "true" }));
    }
    function row(k) {
      const strip = order[k];
      const node = el("div", { className: "row", role: "listitem" }, el("span", { className: "squares" }, runs.map((_, at) => square(strip, at))), el("code", { title: strip.id }, strip.id));
      node.style.top = `${k * HEIGHT}px`;
      return node;
    }
    function show() {
      const first = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - SPARE), last = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / HEIGHT) + SPARE);
      for (const [k, node] of drawn) if (k < first || k >= last) { node.remove(); drawn.delete(k); }
      for (let k = first; k < last; k++) if (!drawn.has(k)) { const node = row(k); drawn.set(k, node); body.append(node); }
    }
    function draw() {
      const seen = new Set(Array.from(c.visible(), c.id)), shown = all().filter(strip => seen.has(strip.id));
      const changed = shown.filter(strip => strip.turns.length);
      const which = c.params.changed === "1" ? changed : shown;
      // Those that changed first, the last change before older ones.
      order = [...which].sort((a, b) => (b.turns.length ? b.turns[b.turns.length - 1] + 1 : 0) - (a.turns.length ? a.turns[a.turns.length - 1] + 1 : 0));
      note.textContent = c.text(`${changed.length.toLocaleString("en")} of ${shown.length.toLocaleString("en")} cells changed their verdict over ${runs.length} runs. A dot: not run there, which says nothing of the backend.`);
      bar.replaceChildren(el("label", {}, el("input", { type: "checkbox", checked: c.params.changed === "1", onchange: e => c.setParam("changed", e.target.checked ? "1" : "") }), "only those that changed"));
      head.replaceChildren(el("span", { className: "squares" }, runs.map(run => el("span", { className: "h", title: `${run.name}\n${run.title}\n${run.created}` }, run.created.slice(5, 10) || String(run.k + 1)))), el("span", {}, "Cell"));
      body.style.height = `${order.length * HEIGHT}px`;
      for (const node of drawn.values()) node.remove();
      drawn = new Map();
      box.scrollTop = 0;
      show();
    }
    let waiting = false;
    box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; show(); });
    });
    addEventListener("resize", () => { if (box.isConnected) show(); });
    draw();
    return what => { if (what !== "cell") draw(); };
  }
  c.history = { all };
  c.registerView("history", "History", render, { when: () => runs.length > 1 });
})();
