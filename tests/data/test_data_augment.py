"""Augmentation: exact against plain loops, repeatable, and only from the given generator."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from nefl.data import POLICIES, make_transform
from nefl.data.augment import crop_and_flip, jitter_colours
from nefl.errors import ConfigError, DataError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
SHAPE = (3, 32, 32)


def batch(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("policy", ["none", "crop", "crop-flip", "svhn"])
def test_evaluation_only_normalises(policy: str) -> None:
    images = batch(4, *SHAPE)
    before = images.clone()
    out = make_transform(policy, MEAN, STD, SHAPE, train=False)(images, None)
    scaled = images.double() / 255
    expected = (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(images, before)


def test_crop_and_flip_equals_a_plain_loop() -> None:
    images = batch(64, *SHAPE)
    out = crop_and_flip(images, 4, (32, 32), True, seeded(3))
    draws = seeded(3)
    top = torch.randint(0, 9, (64, 1), generator=draws)
    left = torch.randint(0, 9, (64, 1), generator=draws)
    mirrored = torch.randint(0, 2, (64, 1), generator=draws)
    for n in range(64):
        y, x = int(top[n]), int(left[n])
        window = nnf.pad(images[n], (4, 4, 4, 4))[:, y : y + 32, x : x + 32]
        assert torch.equal(out[n], window.flip(-1) if mirrored[n] else window)
    assert 0 < int(mirrored.sum()) < 64
    assert len(set(top.flatten().tolist())) == 9


def test_crop_does_not_mirror() -> None:
    column = torch.zeros((200, 1, 8, 8), dtype=torch.uint8)
    column[:, :, :, 2] = 255
    out = make_transform("crop", (0.0,), (1.0,), (1, 8, 8), train=True)(column, seeded(1))
    # Padded by an eighth of the height, 1: the column moves by one at most, mirrored it would be 5.
    lit = out.amax(dim=(1, 2)).argmax(dim=1)
    assert set(lit.tolist()) == {1, 2, 3}


def test_svhn_pads_by_two_and_never_mirrors() -> None:
    column = torch.zeros((200, *SHAPE), dtype=torch.uint8)
    column[:, :, :, 5] = 255
    out = make_transform("svhn", (0.0,) * 3, (1.0,) * 3, SHAPE, train=True)(column, seeded(1))
    lit = out.amax(dim=(1, 2)).argmax(dim=1)
    assert set(lit.tolist()) == {3, 4, 5, 6, 7}


def test_the_authors_augmentation_is_taken_where_the_paper_is_silent() -> None:
    """Contrast 0.2 to 1.8, brightness by a quarter, saturation 0.5 to 1.5; mirrored for a ViT."""
    assert POLICIES["svhn"].jitter == (0.8, 63 / 255, 0.5)
    column = torch.zeros((20, *SHAPE), dtype=torch.uint8)
    column[:, :, :, 5] = 255  # left of the middle, even when shifted
    out = make_transform("vit", (0.0,) * 3, (1.0,) * 3, SHAPE, train=True)(column, seeded(1))
    lit = out.amax(dim=(1, 2)).argmax(dim=1)
    assert lit.min() < 112 < lit.max()


def test_jitter_equals_a_plain_computation() -> None:
    images = batch(6, *SHAPE)
    strengths = 0.4, 0.3, 0.2
    out = jitter_colours(images, strengths, seeded(2))
    spread = torch.tensor(strengths, dtype=torch.float64).view(3, 1, 1, 1, 1)
    draws = torch.rand((3, 6, 1, 1, 1), generator=seeded(2)).double()
    factors = 1 - spread + 2 * spread * draws
    luma = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(3, 1, 1)
    for n in range(6):
        contrast, brightness, saturation = factors[:, n, 0, 0, 0]
        pixels = images[n].double()
        middle = (pixels * luma).sum(0).mean()
        pixels = ((pixels - middle) * contrast + middle).clamp(0, 255)
        pixels = (pixels * brightness).clamp(0, 255)
        grey = (pixels * luma).sum(0, keepdim=True)
        pixels = ((pixels - grey) * saturation + grey).clamp(0, 255)
        torch.testing.assert_close(out[n].double(), pixels, rtol=1e-4, atol=1e-3)


def test_jitter_of_grey_images_stays_in_range() -> None:
    out = jitter_colours(batch(5, 1, 8, 8), (0.9,) * 3, seeded(2))
    assert out.shape == (5, 1, 8, 8)
    assert out.min() >= 0
    assert out.max() <= 255


def test_vit_sizes() -> None:
    images = batch(2, *SHAPE)
    train = make_transform("vit", MEAN, STD, SHAPE, train=True)(images, seeded(0))
    test = make_transform("vit", MEAN, STD, SHAPE, train=False)(images, None)
    assert train.shape == test.shape == (2, 3, 224, 224)


def test_vit_crops_a_window_of_the_padded_enlargement() -> None:
    images = batch(3, *SHAPE)
    out = make_transform("vit", (0.0,) * 3, (1.0,) * 3, SHAPE, train=True)(images, seeded(4))
    draws = seeded(4)
    top, left = (torch.randint(0, 256 + 56 - 224 + 1, (3, 1), generator=draws) for _ in range(2))
    mirrored = torch.randint(0, 2, (3, 1), generator=draws) == 1
    large = nnf.interpolate(images.float(), (256, 256), mode="bilinear") / 255
    padded = nnf.pad(large, (28, 28, 28, 28))
    for n in range(3):
        y, x = int(top[n]), int(left[n])
        window = padded[n, :, y : y + 224, x : x + 224]
        torch.testing.assert_close(out[n], window.flip(-1) if mirrored[n] else window)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_repeats_bit_for_bit_and_only_from_the_generator(policy: str) -> None:
    transform = make_transform(policy, MEAN, STD, SHAPE, train=True)
    images = batch(5, *SHAPE)
    first = transform(images, seeded(1))
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert torch.equal(transform(images, seeded(1)), first)
    assert torch.equal(torch.get_rng_state(), state)
    if policy != "none":
        assert not torch.equal(transform(images, seeded(2)), first)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_threads_do_not_change_the_bits(policy: str) -> None:
    transform = make_transform(policy, MEAN, STD, SHAPE, train=True)
    images = batch(33, *SHAPE)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = transform(images, seeded(1))
        torch.set_num_threads(2)
        assert torch.equal(transform(images, seeded(1)), alone)
    finally:
        torch.set_num_threads(threads)


def test_an_images_values_do_not_depend_on_its_place_in_the_batch() -> None:
    transform = make_transform("none", MEAN, STD, (3, 5, 7), train=False)
    images = batch(9, 3, 5, 7)
    together = transform(images, None)
    for n in range(9):
        assert torch.equal(transform(images[n : n + 1], None)[0], together[n])


def test_memory_maps_are_left_alone() -> None:
    array = np.zeros((2, *SHAPE), np.uint8)
    transform = make_transform("none", MEAN, STD, SHAPE, train=True)
    transform(torch.from_numpy(array), None)
    assert not array.any()


def test_a_transform_can_be_sent_to_another_process() -> None:
    transform = make_transform("crop-flip", MEAN, STD, SHAPE, train=True)
    copy = pickle.loads(pickle.dumps(transform))  # noqa: S301  # our own
    images = batch(3, *SHAPE)
    assert torch.equal(copy(images, seeded(1)), transform(images, seeded(1)))


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown augmentation 'rotate'"):
        make_transform("rotate", MEAN, STD, SHAPE, train=True)
    with pytest.raises(ConfigError, match="1 means and 3 deviations for 3 channels"):
        make_transform("none", (0.5,), STD, SHAPE, train=True)
    with pytest.raises(ConfigError, match=r"channel 1 has standard deviation 0.0"):
        make_transform("none", MEAN, (0.1, 0.0, 0.1), SHAPE, train=True)
    transform = make_transform("crop", MEAN, STD, SHAPE, train=True)
    with pytest.raises(ConfigError, match=r"needs a torch.Generator"):
        transform(batch(2, *SHAPE), None)
    with pytest.raises(DataError, match=r"expected uint8 images of \(3, 32, 32\)"):
        transform(batch(2, 3, 8, 8), seeded(0))
    with pytest.raises(DataError, match="float32"):
        transform(batch(2, *SHAPE).float(), seeded(0))
