"""What every model for images asks of its inputs."""

from nefl.nesting.signature import Signature

SMALL_IMAGES = Signature((3, 32, 32), 10)
"""Ten classes of small colour images, as CIFAR-10 has them."""

LARGE_IMAGES = Signature((3, 224, 224), 10)
"""Ten classes of images of the size that ImageNet's networks take."""

LARGE_PATCH = 16
"""Sides of patches from which a transformer is made for large images."""

SMALLEST, LARGEST = 8, 1024
"""Sides of an image in pixels."""


def image_misfit(signature: Signature, multiple: int = 1) -> str | None:
    """Say why a signature is not that of an image classifier, if it is not.

    Args:
        signature: what the model would take and give.
        multiple: what sides must be multiples of.
    """
    if signature.tokens or len(signature.input_shape) != 3:
        return "give channels, height and width of images, as in 3x32x32"
    sides = signature.input_shape[1:]
    if min(sides) < SMALLEST or max(sides) > LARGEST:
        return f"images have sides from {SMALLEST} to {LARGEST} pixels"
    if any(side % multiple for side in sides):
        return f"it needs sides that are multiples of its patch, {multiple}"
    return None
