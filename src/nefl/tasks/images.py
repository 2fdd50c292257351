"""Image classification: uint8 images with labels, augmented and normalised."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nefl.config import RunConfig
from nefl.data.arrays import IMAGE, LABEL
from nefl.data.augment import BatchTransform, make_transform
from nefl.data.catalog import DATASETS
from nefl.data.columns import Dataset
from nefl.nesting.signature import Signature
from nefl.tasks.task import Rows, Task

KIND = "image-classification"


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """From rows of images to inputs: augmented with a generator, as they are without."""

    training: BatchTransform
    evaluating: BatchTransform

    def __call__(self, rows: Rows, generator: torch.Generator | None) -> Tensor:
        """Return float32 [batch, C, H, W]."""
        transform = self.evaluating if generator is None else self.training
        return transform(rows[IMAGE], generator)


def image_task(config: RunConfig, data: Dataset) -> Task:
    """Return the task of telling images apart.

    Raises:
        ConfigError: if the augmentation is unknown.
    """
    policy = augmentation(config, data.name)
    mean, std = tuple(data.facts["mean"]), tuple(data.facts["std"])
    channels, height, width = data.train[IMAGE].shape[1:]
    shape = (channels, height, width)
    training, evaluating = (
        make_transform(policy, mean, std, shape, train=train) for train in (True, False)
    )
    names = tuple(data.facts["class_names"])
    input_shape = training.output_shape
    return Task(
        data.name,
        data.train,
        data.test,
        Signature(input_shape, len(names)),
        ImageInputs(training, evaluating),
        LABEL,
        "cross-entropy",
        ("accuracy",),
        kind=KIND,
        labels=LABEL,
        class_names=names,
        arguments={"classes": len(names), "input_shape": input_shape},
        facts={"mean": list(mean), "std": list(std), "image_shape": list(shape)},
        folder=data.folder,
        checksums=data.checksums,
    )


def augmentation(config: RunConfig, dataset: str) -> str:
    """Return the augmentation of a run: what it says, else what the data set is used with."""
    if config.data.augment is not None:
        return config.data.augment
    return DATASETS[dataset].augmentation if dataset in DATASETS else "none"
