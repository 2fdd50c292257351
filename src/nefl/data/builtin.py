"""Data sets that need no files: scikit-learn's digits, and a synthetic one of any size."""

from dataclasses import dataclass

import numpy as np

from nefl.data.arrays import Decoded, Images, Shape, Split
from nefl.data.catalog import DATASETS
from nefl.data.subsets import choose_stratified
from nefl.errors import ConfigError

_DIGITS_TEST = 360
_DIGITS_SEED = 0
_DIGITS_LARGEST = 16  # grey levels run from 0 to 16
_PATTERN_CELLS = 4  # a class pattern is this many cells high and wide: smooth enough for a conv net
_CHUNK = 4096  # images generated at once


def read_digits() -> Decoded:
    """scikit-learn's digits, grey levels scaled to 0..255, in a fixed stratified split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    levels = bunch.images.astype(np.int64)
    pixels = ((levels * 255 + _DIGITS_LARGEST // 2) // _DIGITS_LARGEST).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    test = choose_stratified(labels, _DIGITS_TEST, np.random.default_rng(_DIGITS_SEED))
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Decoded(
        Split(pixels[train], labels[train]),
        Split(pixels[test], labels[test]),
        DATASETS["digits"].class_names,
    )


@dataclass(frozen=True)
class SyntheticOptions:
    """Options of `synthetic`.

    Attributes:
        classes: number of classes, each with a pattern of its own.
        shape: (C, H, W) of an image.
        train: training examples, balanced over the classes.
        test: test examples, likewise.
        noise: standard deviation of the noise, as a fraction of the full range of values.
        seed: patterns and noise follow from it.
    """

    classes: int = DATASETS["synthetic"].classes
    shape: Shape = DATASETS["synthetic"].input_shape
    train: int = 2000
    test: int = 500
    noise: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ConfigError(f"synthetic: shape {self.shape}, expected three sizes (C, H, W)")
        if self.classes < 2 or self.train < 1 or self.test < 1:
            raise ConfigError("synthetic: needs 2 classes and 1 example of train and test at least")
        if not 0 <= self.noise <= 10 or self.seed < 0:
            raise ConfigError(
                "synthetic: noise must lie in 0..10 and the seed must not be negative"
            )


def make_synthetic(options: SyntheticOptions) -> Decoded:
    """Images that are their class's pattern plus Gaussian noise."""
    channels, height, width = options.shape
    rng = np.random.default_rng([options.seed, 0])
    cells = rng.integers(48, 208, (options.classes, channels, _PATTERN_CELLS, _PATTERN_CELLS))
    rows = np.arange(height) * _PATTERN_CELLS // height
    columns = np.arange(width) * _PATTERN_CELLS // width
    patterns = cells[:, :, rows[:, None], columns].astype(np.float32)
    return Decoded(
        _noisy(patterns, options, options.train, stream=1),
        _noisy(patterns, options, options.test, stream=2),
        tuple(f"class-{label}" for label in range(options.classes)),
    )


def _noisy(
    patterns: np.typing.NDArray[np.float32], options: SyntheticOptions, count: int, stream: int
) -> Split:
    rng = np.random.default_rng([options.seed, stream])
    labels = rng.permutation(np.arange(count, dtype=np.int64) % options.classes)
    images: Images = np.empty((count, *options.shape), np.uint8)
    scale = np.float32(255 * options.noise)
    for start in range(0, count, _CHUNK):
        clean = patterns[labels[start : start + _CHUNK]]
        noisy = clean + scale * rng.standard_normal(clean.shape, np.float32)
        images[start : start + _CHUNK] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return Split(images, labels)
