"""Colours of figures: everyone tells them apart, on a light page and a dark one."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from nefl.report.figures.vega import INKS, RUN_COLOURS, SUBMODEL_COLOURS, Theme

Triple = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1, 1.089])
APART = 25
"""Distance in CIELAB; 2 is just seen where two colours touch."""


def linear(colour: str) -> Triple:
    share = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(light: Triple) -> Triple:
    xyz = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colours", [RUN_COLOURS, SUBMODEL_COLOURS])
def test_colours_are_told_apart(colours: dict[Theme, list[str]], vision: str, theme: Theme) -> None:
    seen = np.array(VISIONS[vision])
    for one, other in combinations(colours[theme], 2):
        distance = np.linalg.norm(lab(seen @ linear(one)) - lab(seen @ linear(other)))
        assert distance > APART, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out_from_the_page(theme: Theme) -> None:
    paper = TO_XYZ[1] @ linear(INKS[theme][2])
    for colour in RUN_COLOURS[theme] + SUBMODEL_COLOURS[theme]:
        low, high = sorted((paper, TO_XYZ[1] @ linear(colour)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour
