"""Figures as Vega-Lite: one description, drawn by the browser in a page or written to a file."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from nefl.errors import ConfigError

Spec = dict[str, Any]
Theme = Literal["light", "dark"]

VEGA_LITE = "6.1"
FILE_WIDTH = 420
PNG_SCALE = 2
FORMATS = (".svg", ".png", ".pdf", ".json")
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

# Okabe and Ito's colours, moved apart until people with any colour vision tell them apart, and
# stand out from the page by 3:1; tests measure both.
RUN_COLOURS: dict[Theme, list[str]] = {
    "light": ["#1c4dad", "#de7905", "#01a785", "#a282c0", "#8a5c2c", "#4b0000", "#4b375b"],
    "dark": ["#3bbbfb", "#f98100", "#17843f", "#a15692", "#f2f27d", "#ffb39f", "#cef8ff"],
}
SUBMODEL_COLOURS: dict[Theme, list[str]] = {
    "light": ["#da7c00", "#a00000", "#ac7699", "#0869d0", "#002c30"],
    "dark": ["#ffda4c", "#966600", "#d54481", "#7a98f1", "#69ffaa"],
}
INKS: dict[Theme, tuple[str, str, str]] = {
    "light": ("#1b1f24", "#d5d9de", "#ffffff"),
    "dark": ("#e8eaed", "#3b4148", "#16191d"),
}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: what it is called on the command line and in the page.
        title: its heading.
        about: what it shows, in a sentence or two: for those who cannot see it, and its caption.
        spec: the Vega-Lite description, without data.
        records: the data.
        notes: what a reader must know besides: runs that are drawn with others, what is cut.
    """

    name: str
    title: str
    about: str
    spec: Spec
    records: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def theme(name: Theme) -> Spec:
    """Return the Vega configuration of a theme."""
    ink, line, _ = INKS[name]
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": ink,
            "titleColor": ink,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 180,
            "labelFlush": False,
        },
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelLimit": 260,
        },
        "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 11},
        "title": {"color": ink},
        "text": {"color": ink},
        "tick": {"color": ink},
        "rule": {"color": ink},
        "line": {"strokeWidth": 1.8},
        "mark": {"color": RUN_COLOURS[name][0]},
        "range": {
            "category": RUN_COLOURS[name],
            "ordinal": SUBMODEL_COLOURS[name],
            "heatmap": {"scheme": "blues" if name == "light" else "viridis"},
        },
    }


def vl_convert() -> ModuleType:
    """Return the library that draws figures.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import vl_convert as library
    except ImportError:
        raise ConfigError(
            "reports and figures need vl-convert; install it with: pip install 'nefl[report]'"
        ) from None
    return library


def complete(figure: Figure, width: int = FILE_WIDTH) -> Spec:
    """Return a description with its data and a width of its own, for a file."""
    spec = copy.deepcopy(figure.spec)
    if spec.get("width") == "container":
        spec["width"] = width
    spec["data"] = {"values": figure.records}
    spec["background"] = "white"
    spec["padding"] = 8
    return spec


def check_format(path: Path) -> None:
    """Raise if a file's name tells no format that a figure can have.

    Raises:
        ConfigError: naming those that it can have.
    """
    if path.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS[:-1])
        raise ConfigError(f"{path}: give a name that ends with {known} or {FORMATS[-1]}")


def draw(figure: Figure, path: Path) -> bytes:
    """Draw a figure in the format that a file's name tells: .svg, .png or .pdf.

    A `.json` file gets the Vega-Lite description itself, with its data.

    Raises:
        ConfigError: if the name tells none, or the library is missing.
    """
    check_format(path)
    spec = complete(figure)
    suffix = path.suffix.lower()
    if suffix == ".json":
        return json.dumps(spec | {"config": theme("light")}, indent=1).encode()
    options = {"vl_version": VEGA_LITE, "config": theme("light")}
    library = vl_convert()
    if suffix == ".svg":
        return str(library.vegalite_to_svg(spec, **options)).encode()
    if suffix == ".png":
        return bytes(library.vegalite_to_png(spec, scale=PNG_SCALE, **options))
    return bytes(library.vegalite_to_pdf(spec, **options))


def browser_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that needs nothing else."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    return str(vl_convert().javascript_bundle(snippet, vl_version=VEGA_LITE))
