"""Augmentation and normalisation of whole batches, from uint8 images to the model's input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from torch import Tensor

from nefl.data.arrays import Shape
from nefl.errors import ConfigError, DataError

Transform = Callable[[Tensor, torch.Generator | None], Tensor]

# Luma weights of ITU-R BT.601, by which colour images turn grey.
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Policy:
    """What happens to a training image before it is normalised.

    Attributes:
        pad: black pixels added on each side before a random crop; None means an eighth of the
            image's height, which is 4 at 32 pixels and 1 at 8.
        flip: mirror every second image, by chance.
        jitter: contrast, brightness and saturation are scaled by up to 1 ± these, if any.
        resize: height and width before padding; 0 leaves them.
        crop: height and width after cropping, and of evaluation images; 0 means the image's own.
    """

    pad: int | None = 0
    flip: bool = False
    jitter: tuple[float, float, float] | None = None
    resize: int = 0
    crop: int = 0

    @property
    def random(self) -> bool:
        """Whether training draws random numbers."""
        return self.pad != 0 or self.flip or self.jitter is not None


POLICIES: dict[str, Policy] = {
    "none": Policy(),
    "crop": Policy(pad=None),
    "crop-flip": Policy(pad=4, flip=True),
    # The paper names no strengths of the jitter, and no mirroring of large images: they are those
    # of the authors' code.
    "svhn": Policy(pad=2, jitter=(0.8, 63 / 255, 0.5)),
    "vit": Policy(pad=28, flip=True, resize=256, crop=224),
}


def make_transform(
    policy: str, mean: Sequence[float], std: Sequence[float], input_shape: Shape, *, train: bool
) -> "BatchTransform":
    """Build the transform of one data set.

    Args:
        policy: a name in `POLICIES`.
        mean: per channel, of pixel / 255.
        std: per channel, of pixel / 255.
        input_shape: (C, H, W) of the images given to it.
        train: with augmentation; without, only the evaluation size and normalisation.

    Returns:
        A callable (images, generator) → float32 [B, C, H', W'], for uint8 images [B, C, H, W] on
        any device. Draws are made on the CPU, from the generator alone, whatever the device.

    Raises:
        ConfigError: unknown policy, or mean and std do not fit the images.
    """
    if policy not in POLICIES:
        raise ConfigError(f"unknown augmentation {policy!r}; expected one of {', '.join(POLICIES)}")
    channels = input_shape[0]
    if len(mean) != channels or len(std) != channels:
        raise ConfigError(f"{len(mean)} means and {len(std)} deviations for {channels} channels")
    if min(std) <= 0:
        raise ConfigError(
            f"channel {list(std).index(min(std))} has standard deviation {min(std)}: a constant "
            "channel cannot be normalised; leave it out of the images"
        )
    deviation = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
    shift = torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1) / deviation
    return BatchTransform(
        POLICIES[policy], input_shape, train, (1 / (255 * deviation)).float(), shift.float()
    )


@dataclass(frozen=True, eq=False)
class BatchTransform:
    """The callable that `make_transform` returns.

    Attributes:
        policy: what to do in training.
        input_shape: (C, H, W) of the images given.
        train: whether to augment.
        scale: float32 [C, 1, 1]; normalised = pixel · scale − shift.
        shift: float32 [C, 1, 1].
    """

    policy: Policy
    input_shape: Shape
    train: bool
    scale: Tensor
    shift: Tensor

    @property
    def output_shape(self) -> Shape:
        """(C, H', W') of what comes out."""
        channels, height, width = self.input_shape
        crop = self.policy.crop
        return (channels, crop or height, crop or width)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Transform a batch; `generator` is needed for training with a random policy."""
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.input_shape:
            raise DataError(
                f"batch is {images.dtype} {tuple(images.shape)}, expected uint8 images of "
                f"{self.input_shape} (C, H, W)"
            )
        pixels = self._augment(images, generator) if self.train else self._resize_to_output(images)
        # Two exactly rounded steps rather than one fused: a value must not depend on whether a
        # vector instruction or the loop's tail computes it. `to` copies, so `images` is untouched.
        normalised = pixels.to(torch.float32, copy=pixels is images)
        return normalised.mul_(self.scale.to(images.device)).sub_(self.shift.to(images.device))

    def _resize_to_output(self, images: Tensor) -> Tensor:
        return resize(images, self.policy.crop) if self.policy.crop else images

    def _augment(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        policy = self.policy
        if policy.random and generator is None:
            raise ConfigError("training with a random augmentation needs a torch.Generator")
        pixels = resize(images, policy.resize) if policy.resize else images
        pad = self.input_shape[1] // 8 if policy.pad is None else policy.pad
        if pad or policy.flip:
            size = self.output_shape[1:]
            pixels = crop_and_flip(pixels, pad, size, policy.flip, generator)
        return jitter_colours(pixels, policy.jitter, generator) if policy.jitter else pixels


def crop_and_flip(
    images: Tensor, pad: int, size: tuple[int, int], flip: bool, generator: torch.Generator | None
) -> Tensor:
    """Pad with black, cut a window of `size` at random from each image, and mirror half of them.

    One gather does both: it costs the same for any offsets, with no loop over the images.
    """
    batch, channels = images.shape[:2]
    padded = nnf.pad(images, (pad, pad, pad, pad)) if pad else images
    height, width = padded.shape[2:]
    top = torch.randint(0, height - size[0] + 1, (batch, 1), generator=generator)
    left = torch.randint(0, width - size[1] + 1, (batch, 1), generator=generator)
    columns = torch.arange(size[1])
    if flip:
        mirrored = torch.randint(0, 2, (batch, 1), generator=generator) == 1
        columns = torch.where(mirrored, columns.flip(0), columns)
    rows = (top + torch.arange(size[0])) * width
    # [B, H'·W'] positions within one padded channel, the same for all channels of an image.
    positions = (rows[:, :, None] + (left + columns)[:, None, :]).view(batch, 1, -1)
    positions = positions.to(images.device).expand(batch, channels, -1)
    return padded.flatten(2).gather(2, positions).view(batch, channels, *size)


def resize(images: Tensor, size: int) -> Tensor:
    """Bilinear resize to size × size, float32 with values 0..255; smooths only when shrinking."""
    shrinks = max(images.shape[2:]) > size
    return nnf.interpolate(
        images.float(), (size, size), mode="bilinear", align_corners=False, antialias=shrinks
    )


def jitter_colours(
    images: Tensor, strengths: tuple[float, float, float], generator: torch.Generator | None
) -> Tensor:
    """Scale contrast, brightness and saturation of each image by factors in 1 ± their strengths.

    Contrast comes first, because the mean it turns about is then a sum of whole numbers, the same
    for any number of threads. Grey images have no saturation. Returns float32 in 0..255.
    """
    batch, channels, height, width = images.shape
    draws = torch.rand((3, batch, 1, 1, 1), generator=generator)
    spread = torch.tensor(strengths).view(3, 1, 1, 1, 1)
    contrast, brightness, saturation = (draws * (2 * spread) + (1 - spread)).to(images.device)
    weights = _LUMA if channels == 3 else (1 / channels,) * channels
    sums = images.sum((2, 3), dtype=torch.int64).double() / (height * width)
    average = sum(sums[:, channel] * weight for channel, weight in enumerate(weights))
    middle = torch.as_tensor(average).float().view(batch, 1, 1, 1)
    pixels = images.float().sub_(middle).mul_(contrast).add_(middle).clamp_(0, 255)
    pixels = pixels.mul_(brightness).clamp_(0, 255)
    if channels != 3:
        return pixels
    red, green, blue = (pixels[:, c : c + 1] * weight for c, weight in enumerate(_LUMA))
    grey = red.add_(green).add_(blue)
    return pixels.sub_(grey).mul_(saturation).add_(grey).clamp_(0, 255)
