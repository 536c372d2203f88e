"""Records with times, the figures they make, and where the parts of a plot lie."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import msgspec
import samples
from samples import cell, environment, record

from capmatrix.cell import Environment, Record, Timing
from capmatrix.paths import matrices_dir
from capmatrix.report.plots import Figure, figures

RESULTS = matrices_dir() / "results"
SVG = "{http://www.w3.org/2000/svg}"
DETAIL = "graph replay; 256 requests, 4.00 TB/s read here"


def timing(phase: str = "decode", median: float = 4000.0, **changes: Any) -> Timing:
    base = Timing(phase, "seed", median, median * 0.9, median * 1.2, 24, 0.5, 256, DETAIL)  # type: ignore[arg-type]
    return msgspec.structs.replace(base, **changes)


def gpu(name: str = "AMD Instinct MI300X", **hardware: Any) -> Environment:
    facts = {"vendor": "amd", "arch": "gfx942", "name": name, **hardware}
    return Environment(id="env-device", target="device", versions=dict(samples.VERSIONS), hardware=facts)


def timed(*times: Timing, **changes: Any) -> Record:
    return record(cell(target="device", **changes), times=times)


def drawn(*records: Record, where: Environment | None = None, **more: Any) -> list[Figure]:
    environments = [where or gpu(), *map(environment, ("offline:gfx942", "interpreter:gfx950"))]
    return figures(records, {e.id: e for e in environments}, **more)


def only(kind: str, found: list[Figure]) -> Figure:
    (one,) = [f for f in found if f.kind == kind]
    return one


def parsed(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(figure.svg)


def place(element: ElementTree.Element) -> tuple[float, float]:
    """Where a marker is."""
    found = re.fullmatch(r"translate\((\S+) (\S+)\)", element.attrib["transform"])
    assert found
    return float(found[1]), float(found[2])


def marks(root: ElementTree.Element, words: str) -> list[tuple[float, float]]:
    """Markers whose title begins with ``words``."""
    out = []
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and (title.text or "").startswith(words):
            out += [place(e) for e in group if e.get("class") == "cm-mark"]
    return out


def said(element: ElementTree.Element) -> str:
    """What a ``<text>`` shows; the title of a shortened one stands before it."""
    return (element.text or "") + "".join(e.tail or "" for e in element)


def texts(root: ElementTree.Element) -> list[str]:
    """What every ``<text>`` shows."""
    return [said(e) for e in root.iter(f"{SVG}text")]


def tick(root: ElementTree.Element, value: str) -> list[float]:
    """Heights of the tick labels that say ``value``: their grid line lies 4 pixels above the baseline."""
    return [
        float(e.attrib["y"]) - 4 for e in root.iter(f"{SVG}text") if e.text == value and "cm-e" in e.attrib["class"]
    ]


def lines(root: ElementTree.Element, classes: str) -> list[list[float]]:
    """Coordinates of the lines of these classes."""
    found = [e.attrib["d"] for e in root.iter(f"{SVG}path") if e.attrib["class"] == classes]
    return [[float(n) for n in re.findall(r"[\d.]+", d)] for d in found]
