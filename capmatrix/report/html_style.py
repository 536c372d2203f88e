"""The style sheet of the HTML report: light and dark, a colour and a word for each verdict."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #ffffff; --fg: #1b1f24; --soft: #59636e; --line: #d5dae0; --panel: #f5f7f9; --head: #eceff3;
  --pass: #17752f; --pass-bg: #e3f5e6; --wrong: #b3122b; --wrong-bg: #fde3e5; --crash: #8f0f4a; --crash-bg: #fbe0ee;
  --error: #b54708; --error-bg: #fdeadb; --timeout: #7a3fb5; --timeout-bg: #f0e5fb; --rejected: #2459a6;
  --rejected-bg: #e2ecfa; --unavailable: #59636e; --unavailable-bg: #eceff2; --unverified: #7a5c00;
  --unverified-bg: #fbf1cc; --notrun: #7a838d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #101418; --fg: #e4e8ec; --soft: #9aa5b1; --line: #2c343c; --panel: #171c22; --head: #1e252c;
    --pass: #6fd388; --pass-bg: #12301c; --wrong: #ff8b95; --wrong-bg: #43161d; --crash: #ff90c4; --crash-bg: #40142b;
    --error: #ffae70; --error-bg: #40250f; --timeout: #cba6f7; --timeout-bg: #2d1f42; --rejected: #8fb9f5;
    --rejected-bg: #16294a; --unavailable: #a3adb8; --unavailable-bg: #232a31; --unverified: #e6c75a;
    --unverified-bg: #352c0b; --notrun: #7d8791;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main, header.page { max-width: 92rem; margin: 0 auto; padding: 0 1.5rem; }
header.page { padding-top: 1.8rem; }
h1 { font-size: 1.55rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .2rem; }
h3 { font-size: 1rem; margin: 0; }
p { margin: .3rem 0 .8rem; }
.soft { color: var(--soft); }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }
nav { margin: .6rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
a { color: var(--rejected); }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; margin: .9rem 0; padding: 0; list-style: none; }
.chip, .v { border-radius: .4rem; padding: .05rem .5rem; font-weight: 600; white-space: nowrap; }
.chip small { font-weight: 400; }
.pass { color: var(--pass); background: var(--pass-bg); } .wrong { color: var(--wrong); background: var(--wrong-bg); }
.crash { color: var(--crash); background: var(--crash-bg); }
.error { color: var(--error); background: var(--error-bg); }
.timeout { color: var(--timeout); background: var(--timeout-bg); }
.rejected { color: var(--rejected); background: var(--rejected-bg); }
.unavailable { color: var(--unavailable); background: var(--unavailable-bg); }
.unverified { color: var(--unverified); background: var(--unverified-bg); }
.weak { background: transparent; box-shadow: inset 0 0 0 1px currentColor; }
.wrap { overflow: auto; max-height: 88vh; border: 1px solid var(--line); border-radius: .6rem; margin: .7rem 0; }
table { border-collapse: separate; border-spacing: 0; }
.matrix { width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem; }
.matrix th, .matrix td { border-bottom: 1px solid var(--line); }
.matrix thead th { position: sticky; top: 0; z-index: 2; background: var(--head); white-space: nowrap; }
.matrix thead th:first-child { left: 0; z-index: 3; }
.matrix tbody th { position: sticky; left: 0; z-index: 1; background: var(--bg); font-weight: 500; }
.matrix tbody tr.group th { background: var(--panel); font-weight: 600; }
.matrix tbody tr.group .soft { font-weight: 400; margin-left: .4rem; }
.matrix tbody tr:last-child > * { border-bottom: 0; }
.matrix td + td, .matrix th + td, .matrix th + th { border-left: 1px solid var(--line); }
.rung { color: var(--soft); font-size: .88em; margin-left: .35rem; }
.marks { display: block; font-size: .84em; margin-top: .15rem; }
.mark { border: 1px dashed currentColor; border-radius: .3rem; padding: 0 .3rem; }
.mark { margin-right: .25rem; white-space: nowrap; }
.notrun { color: var(--notrun); font-style: italic; }
sup { margin-left: .15rem; } sup a { text-decoration: none; padding: 0 .1rem; }
summary { cursor: pointer; }
td > details > summary { list-style: none; position: relative; padding-right: 1rem; }
td > details > summary::-webkit-details-marker { display: none; }
td > details > summary::after { content: "\\25B8"; position: absolute; top: 0; right: 0; color: var(--soft); }
td > details[open] > summary::after { content: "\\25BE"; }
.batches { width: 27rem; max-width: 80vw; margin-top: .5rem; border-top: 1px dashed var(--line); font-size: .9em; }
.batches > div { padding: .45rem 0; border-bottom: 1px dashed var(--line); overflow-wrap: anywhere; }
.batches > div:last-child { border-bottom: 0; }
.batches dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .6rem; margin: .2rem 0 0; }
.batches dt { color: var(--soft); } .batches dd { margin: 0; }
ol.notes { padding-left: 2.2rem; font-size: .93em; } ol.notes li { margin: .15rem 0; overflow-wrap: anywhere; }
ol.notes li:target { background: var(--unverified-bg); outline: 4px solid var(--unverified-bg); }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: .6rem; }
.panel { padding: .8rem 1.2rem; margin: 1rem 0 0; }
.panel ul { margin: .3rem 0; padding-left: 1.2rem; } .panel ul.chips { padding: 0; margin-top: .7rem; }
.two { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0 1rem; align-items: start; }
@media (max-width: 60rem) { .two { grid-template-columns: minmax(0, 1fr); } }
svg { max-width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--fg); }
svg .n { font-weight: 600; text-anchor: middle; } svg .end { text-anchor: end; }
.legend { display: grid; grid-template-columns: max-content 1fr; gap: .3rem .9rem; margin: .5rem 0; }
.legend dd { margin: 0; }
.env { width: 100%; }
.env td, .env th { border-bottom: 1px solid var(--line); font-size: .92em; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .88em; margin: 2rem 0 2.5rem; }
@media print { .wrap { max-height: none; overflow: visible; } .matrix thead th, .matrix tbody th { position: static; } }
"""
