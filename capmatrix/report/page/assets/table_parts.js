// What stands around the tiles of a heat map: the choice of axes, headings, a group's geometry, reasons below a table.
//
//   capmatrix.heat.axesBar(node), about(axes, group), head(axes, home), why(home)
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c,
    { chosen, named, axisTitle } = c.heat;

  function axesBar(bar) {
    const { rows, columns, groups, split } = chosen();
    const options = [...c.columns.values()].filter(x => x.filter && x.name !== "verdict" && x.name !== "rung");
    const pick = (title, value, change, extra) =>
      el(
        "label",
        {},
        title,
        el(
          "select",
          { onchange: e => change(e.target.value) },
          (extra || []).map(([v, t]) => el("option", { value: v, selected: v === value }, t)),
          options.map(x => el("option", { value: x.name, selected: x.name === value }, x.title)),
        ),
      );
    bar.replaceChildren(
      pick("Rows", rows[0], v => c.setParam("rows", v === "backend" ? "" : v)),
      pick("Columns", columns[0], v => c.setParam("cols", [v, columns[1]].filter(Boolean).join(","))),
      pick("by", columns[1] || "", v => c.setParam("cols", [columns[0], v].filter(Boolean).join(",")), [
        ["", "nothing"],
      ]),
      pick("Groups", groups.join(","), v => c.setParam("by", v === "drafter,tp" ? "" : v || ","), [
        ["drafter,tp", "Drafter and TP"],
        ["", "none"],
      ]),
      el(
        "label",
        {},
        el("input", {
          type: "checkbox",
          checked: split,
          onchange: e => c.setParam("split", e.target.checked ? "" : "0"),
        }),
        "split rows by what else varies",
      ),
      el(
        "label",
        {},
        el("input", {
          type: "checkbox",
          checked: c.params.compact === "1",
          onchange: e => c.setParam("compact", e.target.checked ? "1" : ""),
        }),
        "compact",
      ),
    );
  }

  function about(axes, group) {
    if (!axes.groups.includes("drafter")) return "";
    const G = c.column("geometry"),
      L = c.column("lengths"),
      K = c.column("k");
    const whole = new Set(),
      ks = new Set();
    for (const i of group.indices) {
      whole.add(G.values[G.codes[i]]);
      ks.add(K.values[K.codes[i]]);
    }
    return `${ks.size === 1 && [...ks][0] ? `k=${[...ks][0]}, ` : ""}${[...whole].slice(0, 3).join("; ")}`;
  }

  function head(axes, home) {
    const corner = el(
      "th",
      { scope: "col", className: "corner", rowSpan: axes.columns.length > 1 ? 2 : 1 },
      axes.rows.map(axisTitle).join(", "),
    );
    if (axes.columns.length < 2) {
      return el(
        "thead",
        {},
        el(
          "tr",
          {},
          corner,
          home.columns.map(x =>
            el("th", { scope: "col" }, axes.columns.map((name, k) => named(name, x.codes[k])).join(", ") || "All"),
          ),
        ),
      );
    }
    const upper = el("tr", {}, corner),
      lower = el("tr", {});
    for (let k = 0; k < home.columns.length;) {
      let span = 1;
      while (k + span < home.columns.length && home.columns[k + span].codes[0] === home.columns[k].codes[0]) span++;
      upper.append(
        el(
          "th",
          { scope: "colgroup", colSpan: span, className: k ? "edge" : "" },
          named(axes.columns[0], home.columns[k].codes[0]),
        ),
      );
      k += span;
    }
    for (const x of home.columns)
      lower.append(
        el("th", { scope: "col", className: x.edge ? "edge" : "" }, el("code", {}, named(axes.columns[1], x.codes[1]))),
      );
    return el("thead", {}, upper, lower);
  }

  // Why tiles are not a plain pass: the reasons of records, most frequent first.
  function why(home) {
    const V = c.column("verdict"),
      R = c.column("reason"),
      counts = new Map();
    for (const i of home.indices) {
      if (!R.values[R.codes[i]]) continue;
      const key = V.codes[i] * 1e6 + R.codes[i];
      counts.set(key, (counts.get(key) || 0) + 1);
    }
    const most = [...counts].sort(
      (a, b) => V.values.length && (Math.floor(a[0] / 1e6) - Math.floor(b[0] / 1e6) || b[1] - a[1]),
    );
    if (!most.length) return null;
    const cut = 8,
      line = ([key, count]) => {
        const verdict = V.values[Math.floor(key / 1e6)],
          reason = R.values[key % 1e6];
        return el(
          "li",
          {},
          el("span", { className: "n" }, `${count.toLocaleString("en")} ×`),
          c.markOf(verdict),
          el("span", {}, reason),
        );
      };
    const out = el("ul", { className: "why" }, most.slice(0, cut).map(line));
    if (most.length > cut) {
      out.append(
        el(
          "li",
          {},
          el("span", { className: "n" }),
          el(
            "button",
            {
              type: "button",
              className: "linkish",
              onclick: e => {
                e.target.parentNode.remove();
                out.append(...most.slice(cut, 200).map(line));
              },
            },
            `${most.length - cut} more reasons`,
          ),
        ),
      );
    }
    return out;
  }

  Object.assign(c.heat, { axesBar, about, head, why });
})();
