"""Whether an exported file does what the trained model does, on real images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nefl.errors import RunError

TOLERANCE = 1e-4
"""Largest difference of a float file's logits, relative to the largest logit if that is above 1."""

MAX_ACCURACY_LOSS = 0.05
"""What an int8 file may lose in accuracy before it counts as broken."""


@dataclass(frozen=True)
class Comparison:
    """A file beside the model it was made from.

    Attributes:
        images: how many test images both were given.
        difference: the largest absolute difference of two logits.
        agreement: the share of images on which both say the same class.
        accuracy: of the file.
        trained_accuracy: of the trained model, on the same images.
        tolerance: what the difference may be.
    """

    images: int
    difference: float
    agreement: float
    accuracy: float
    trained_accuracy: float
    tolerance: float


def compare(got: Tensor, wanted: Tensor, labels: Tensor) -> Comparison:
    """Compare logits [N, classes] of a file with those of the trained model."""
    if got.shape != wanted.shape:
        raise RunError(f"the file gives logits {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    classes, expected = got.argmax(1), wanted.argmax(1)
    return Comparison(
        images=len(labels),
        difference=float((got - wanted).abs().max()),
        agreement=float((classes == expected).float().mean()),
        accuracy=float((classes == labels).float().mean()),
        trained_accuracy=float((expected == labels).float().mean()),
        tolerance=TOLERANCE * max(1.0, float(wanted.abs().max())),
    )


def check(found: Comparison, *, quantized: bool, max_loss: float = MAX_ACCURACY_LOSS) -> None:
    """Refuse a file that does not do what the trained model does.

    Raises:
        RunError: naming by how much it is off.
    """
    if quantized:
        loss = found.trained_accuracy - found.accuracy
        if loss > max_loss:
            raise RunError(
                f"int8 loses {loss:.4f} of accuracy ({found.trained_accuracy:.4f} to "
                f"{found.accuracy:.4f} on {found.images} images), at most {max_loss} is allowed; "
                "export it without --quantize, or allow more with --max-loss"
            )
    elif not found.difference <= found.tolerance:  # also if it is not a number
        raise RunError(
            f"the file's logits differ by {found.difference:.3g} from the trained model's on "
            f"{found.images} images, at most {found.tolerance:.3g} is allowed: no file was "
            "written; try another format, and report this"
        )
    if not torch.isfinite(torch.tensor(found.difference)):
        raise RunError("the logits are not finite: the training diverged; export another run")
