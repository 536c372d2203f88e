// Figures: drawn before the page was written.
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
})();
