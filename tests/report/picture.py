"""What a drawn figure shows, read from its SVG: ticks, lines, panels, points."""

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from nefl.report.figures.vega import Figure, draw

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Picture:
    """What is seen.

    Attributes:
        axes: the labels of ticks, by the title of their axis.
        lines: what each line says of itself, by field.
        points: the same of each point.
        bands: the same of each band.
        panels: the headings of panels.
        legend: the names in legends.
        points_in_panels: the places of points, for each panel.
        width: in pixels.
    """

    axes: dict[str, set[str]]
    lines: list[dict[str, str]]
    points: list[dict[str, str]]
    bands: list[dict[str, str]]
    panels: list[str]
    legend: list[str]
    points_in_panels: list[list[str]]
    width: float


def picture(figure: Figure) -> Picture:
    """Draw a figure and read it."""
    root = ET.fromstring(draw(figure, Path("figure.svg")))  # noqa: S314 - our own
    axes: dict[str, set[str]] = {}
    for axis in _marks(root, "role-axis"):
        found = re.search("titled '([^']*)'", axis.get("aria-label", ""))
        if found:
            axes.setdefault(found[1], set()).update(_texts(axis, "role-axis-label"))
    for place in ("row", "column"):  # of a panelled figure the axes stand apart from their titles
        for header in _marks(root, f"role-{place}-footer") + _marks(root, f"role-{place}-header"):
            for title in _texts(root, "role-axis-title"):
                axes.setdefault(title, set()).update(_texts(header, "role-axis-label"))
    panels = [panel for cells in _marks(root, "cell") for panel in cells]
    return Picture(
        axes,
        _said(root, "line mark"),
        _said(root, "point"),
        _said(root, "area mark"),
        _texts(root, "role-title-text"),
        _texts(root, "role-legend-label"),
        [[p.get("transform", "") for p in panel.iter() if _kind(p) == "point"] for panel in panels],
        float(root.get("width", "nan")),
    )


def _kind(element: ET.Element) -> str:
    return element.get("aria-roledescription", "")


def _marks(root: ET.Element, role: str) -> list[ET.Element]:
    return [g for g in root.iter(f"{SVG}g") if role in g.get("class", "").split()]


def _texts(root: ET.Element, role: str) -> list[str]:
    return [
        "".join(text.itertext())
        for group in _marks(root, role)
        for text in group.iter(f"{SVG}text")
    ]


def _said(root: ET.Element, kind: str) -> list[dict[str, str]]:
    labels = [e.get("aria-label", "") for e in root.iter(f"{SVG}path") if _kind(e) == kind]
    return [dict(part.split(": ", 1) for part in label.split("; ")) for label in labels]
