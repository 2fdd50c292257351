"""The table of known data sets: what each must contain, and what a user must put where."""

from dataclasses import dataclass

from nefl.data.arrays import Shape

_CIFAR10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
# fmt: off
_CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar",
    "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile",
    "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster",
    "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster",
    "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman",
    "worm",
)
# fmt: on
_DIGITS = tuple("0123456789")
_FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is read.

    Attributes:
        classes: number of classes.
        input_shape: (C, H, W).
        augmentation: the policy used unless a run says otherwise.
        rows: (train, test) examples of the complete set; None where the user chooses.
        class_names: position = label; empty where the source names them.
        label_columns: columns of a parquet file that may hold the label, the first found counts.
        folders: sub-folders of a root in which its files usually lie.
        hub: repository on the Hugging Face hub, where there is one.
        wanted: what a user must put into a folder, for messages.
    """

    classes: int
    input_shape: Shape
    augmentation: str
    rows: tuple[int, int] | None = None
    class_names: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ("label",)
    folders: tuple[str, ...] = ("data", "plain_text")
    hub: str | None = None
    wanted: str = ""


_PARQUET = "train-*.parquet and test-*.parquet"

DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(10, (1, 8, 8), "crop", (1437, 360), _DIGITS),
    "cifar10": DatasetInfo(
        10,
        (3, 32, 32),
        "crop-flip",
        (50_000, 10_000),
        _CIFAR10,
        folders=("data", "plain_text", "cifar-10-batches-py", "cifar-10-batches-bin"),
        hub="uoft-cs/cifar10",
        wanted=f"{_PARQUET}, or cifar-10-batches-py/, or cifar-10-batches-bin/",
    ),
    "cifar100": DatasetInfo(
        100,
        (3, 32, 32),
        "crop-flip",
        (50_000, 10_000),
        _CIFAR100,
        label_columns=("fine_label", "label"),
        folders=("data", "cifar100", "cifar-100-python", "cifar-100-binary"),
        hub="uoft-cs/cifar100",
        wanted=f"{_PARQUET}, or cifar-100-python/, or cifar-100-binary/",
    ),
    "svhn": DatasetInfo(
        10,
        (3, 32, 32),
        "svhn",
        (73_257, 26_032),
        _DIGITS,
        folders=("cropped_digits", "data"),
        hub="ufldl-stanford/svhn",
        wanted=f"train_32x32.mat and test_32x32.mat, or {_PARQUET}",
    ),
    "cinic10": DatasetInfo(
        10,
        (3, 32, 32),
        "crop-flip",
        (90_000, 90_000),
        _CIFAR10,
        hub="flwrlabs/cinic10",
        wanted=f"train/<class>/*.png and test/<class>/*.png, or {_PARQUET}",
    ),
    "fashion-mnist": DatasetInfo(
        10,
        (1, 28, 28),
        "crop-flip",
        (60_000, 10_000),
        _FASHION,
        folders=("data", "fashion_mnist"),
        hub="zalando-datasets/fashion_mnist",
        wanted=(
            "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
            f"t10k-labels-idx1-ubyte (.gz or not), or {_PARQUET}; "
            "or install Debian's package dataset-fashion-mnist"
        ),
    ),
    "synthetic": DatasetInfo(10, (3, 32, 32), "none"),
}
