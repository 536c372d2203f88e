// Figures and pairs: drawn before the page was written, or small enough to draw at once.
(() => {
  "use strict";
  const c = window.capmatrix,
    { el } = c,
    plots = document.getElementById("plots").content;
  c.registerView(
    "plots",
    "Plots",
    container => {
      container.append(plots.cloneNode(true));
      return () => {};
    },
    { when: () => plots.children.length > 0 },
  );
  c.registerView(
    "pairs",
    "Pairs",
    container => {
      for (const t of c.data.pairs) {
        container.append(
          el(
            "section",
            { className: "home" },
            el("h2", {}, `${t.target}: ${t.models}`),
            el(
              "div",
              { className: "wrap" },
              el(
                "table",
                { className: "plain" },
                el(
                  "thead",
                  {},
                  el(
                    "tr",
                    {},
                    c.data.pair_headings.map(h => el("th", { scope: "col" }, h)),
                  ),
                ),
                el(
                  "tbody",
                  {},
                  t.rows.map(r =>
                    el(
                      "tr",
                      {},
                      r.cells.map((x, k) =>
                        el(
                          "td",
                          {},
                          k === r.cells.length - 1
                            ? [el("i", { className: `s ${r.verdict}`, "aria-hidden": "true" }), x]
                            : x,
                        ),
                      ),
                    ),
                  ),
                ),
              ),
            ),
            t.notes.length
              ? el(
                  "ul",
                  { className: "why" },
                  t.notes.map(([k, x]) => el("li", {}, el("span", { className: "n" }, `[${k}]`), el("span", {}, x))),
                )
              : null,
          ),
        );
      }
      return () => {};
    },
    { when: () => c.data.pairs.length > 0 },
  );
})();
