"""The recipes' published figures against the paper's own tables, where its source is at hand."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nefl.recipes import load_recipe, recipe_names

LABELS = {
    3: "tab:other-dataset",
    4: "tab:resnet-pretrained",
    6: "tab:vit-niid",
    7: "tab:ablation",
    8: "tab:ablation-stepsize",
    10: "tab:ablation-appx",
    11: "tab:110-04",
}
METHOD = {
    "HeteroFL": "heterofl",
    "FjORD": "fjord",
    "DepthFL": "depthfl",
    "ScaleFL": "scalefl",
    "NeFL-W": "nefl-w",
    "NeFL-D": "nefl-d",
    "NeFL-DO": "nefl-do",
    "NeFL-WD": "nefl-wd",
    "NeFL-D (N/L)": "nefl-d-nl",
    "NeFL-DO (N/L)": "nefl-do-nl",
    "NeFL-WD (N/L)": "nefl-wd-nl",
}
# What the paper calls just NeFL: the figures of these two rows are the same in other tables.
NEFL = {"resnet18": "nefl-wd", "resnet34": "nefl-d"}
NUMBER = re.compile(r"\d+(\.\d+)?")
Pair = tuple[float, float]


@pytest.fixture(scope="module")
def paper() -> str:
    given = os.environ.get("NEFL_TEST_PAPER")
    beside = Path(__file__).parents[3] / "shared" / "paper" / "nefl.tex"
    path = Path(given) if given else beside
    if not path.is_file():
        pytest.skip("needs the paper's LaTeX source; set NEFL_TEST_PAPER to its file")
    return path.read_text()


def table(paper: str, number: int) -> str:
    """The source of one table, without comments and markup."""
    start = paper.rindex(r"\begin{table", 0, paper.index(rf"\label{{{LABELS[number]}}}"))
    text = paper[start : paper.index(r"\end{table", start)]
    text = re.sub(r"(?<!\\)%.*", "", text)
    text = re.sub(r"\\(blue|red)\{\([^}]*\)\}|\\cite\{[^}]*\}|\\GR\{0\}", "", text)
    text = re.sub(r"\\textsubscript\{O\}", "O", text)
    text = re.sub(r"Pre-trained\\\\\s*", "Pre-trained ", text)
    for _ in range(2):
        text = re.sub(r"\\textbf\{([^{}]*)\}", r"\1", text)
        text = re.sub(r"(?<=[& ])\{([^{}]*)\}", r"\1", text)
    return text


def rows(paper: str, number: int) -> Iterator[tuple[str, str, list[float]]]:
    """Model with what goes with it, method as printed, and the numbers of every row."""
    model = ""
    text = table(paper, number)
    if number == 7:  # the model stands below its half of the table
        halves = text.split(r"\begin{subtable}")[1:]
        text = "".join(
            "ResNet18 & x " * (i == 0) + "ResNet34 & x " * i + h for i, h in enumerate(halves)
        )
    for row in re.split(r"\\\\", text):
        named = re.findall(r"(ResNet18|ResNet34|ResNet56|ResNet110|ViT|Wide ResNet101)", row)
        if named:
            model = named[-1].lower() + "-pretrained" * ("Pre-trained" in row or number == 6)
        cells = [cell.strip() for cell in row.split("&")]
        numbers = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
        method = next((c for c in reversed(cells) if c in METHOD or c == "NeFL (ours)"), "")
        if numbers and (method or number == 6):
            yield model, method, numbers


def pairs(numbers: list[float]) -> list[Pair]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def printed(paper: str, number: int) -> dict[str, Pair]:
    """The recipe that each pair of figures in a table belongs to, told from the table alone."""
    found: dict[str, Pair] = {}
    for model, label, numbers in rows(paper, number):
        base, _, pretrained = model.partition("-")
        end = f"-{pretrained}" if pretrained else ""
        method = NEFL[base] if label == "NeFL (ours)" else METHOD.get(label, "nefl-d")
        name = {"vit": "vit_b_16", "wide resnet101": "wide_resnet101_2"}.get(base, base)
        if number == 3:
            names = [
                f"paper-{d}-{name}-{method}" for d in ("cifar10", "cifar100", "cinic10", "svhn")
            ]
        elif number in (4, 6):
            first = f"paper-cifar10-{name}-{method}{end}"
            names = [first, f"{first}-dirichlet"]
        elif number == 8:
            names = [f"paper-cifar10-{name}-{method}{fixed}{end}" for fixed in ("", "-nl")]
        else:
            names = [f"paper-cifar10-{name}-{method}{end}" + "-severe" * (number == 11)]
        found |= dict(zip(names, pairs(numbers), strict=True))
    return found


def figures(name: str, number: int) -> Pair:
    published = load_recipe(name).published
    assert published.worst is not None
    assert published.average is not None
    other = re.search(rf"Table {number} \(average ([\d.]+)\)", published.source)
    return published.worst, float(other[1]) if other else published.average


@pytest.mark.parametrize(
    ("number", "count"), [(3, 40), (4, 20), (6, 4), (7, 14), (8, 12), (10, 60), (11, 6)]
)
def test_a_tables_rows_are_recipes_with_its_figures(paper: str, number: int, count: int) -> None:
    expected = printed(paper, number)
    assert len(expected) == count
    found = {
        name
        for name in recipe_names()
        if re.search(rf"Table {number}\b(?!, from)", load_recipe(name).published.source)
    }
    assert found == expected.keys()
    for name, pair in expected.items():
        assert figures(name, number) == pair, name


def test_fresh_runs_with_label_skew_follow_from_the_differences(paper: str) -> None:
    start = paper.index(r"\label{tab:resnet-pretrained}")
    text = paper[start : paper.index(r"\end{table", start)]
    text = re.sub(r"\\textbf\{([^{}]*)\}|\\GR\{0\}", r"\1", text)
    number, change = r"(\d+\.\d+)", r"\\(?:red|blue)\{\(\$\\(up|down)arrow\$ (\d+\.\d+)\)\}"
    entries = re.findall(rf"{number} {change}", text)
    assert len(entries) == 40
    fresh = Counter(
        round(float(value) + (1 if way == "down" else -1) * float(by), 2)
        for value, way, by in (entry for i, entry in enumerate(entries) if i % 4 >= 2)
    )
    names = [n for n in recipe_names() if "differences" in load_recipe(n).published.source]
    published = [load_recipe(name).published for name in names]
    assert Counter(v for p in published for v in (p.worst, p.average)) == fresh
    for name in names:
        skewed = load_recipe(name.replace("-dirichlet", "-pretrained-dirichlet"))
        mine = load_recipe(name)
        assert skewed.model.method == mine.model.method
        assert skewed.partition == mine.partition


def test_figures_without_numbers_have_none() -> None:
    for name in recipe_names():
        published = load_recipe(name).published
        only_pictures = re.fullmatch(r"(Figure \d+(, )?)+|Table 15", published.source)
        assert (published.worst is None) == bool(only_pictures or not published.source), name
        assert (published.worst is None) == (published.average is None)


@pytest.mark.parametrize(("figure", "count"), [(6, 22), (7, 25), (8, 5)])
def test_every_curve_and_bar_has_a_recipe(figure: int, count: int) -> None:
    place = re.compile(rf"Figure {figure}\b")
    found = [n for n in recipe_names() if place.search(load_recipe(n).published.source)]
    assert len(found) == count


def test_the_papers_protocol() -> None:
    for name in recipe_names():
        config = load_recipe(name)
        if not name.startswith("paper-"):
            continue
        large = config.model.name in ("vit_b_16", "wide_resnet101_2")
        rounds = 100 if large or config.data.name == "svhn" else 500
        assert config.rounds == rounds
        assert config.local.batch_size == 32
        assert config.local.momentum == config.local.weight_decay == 0
        assert config.local.epochs == (1 if large else 5)
        assert config.local.learning_rate == (0.03 if large else 0.1)
        share = config.clients.per_round / config.clients.count
        assert share == (1 if large else 0.1)
        assert config.clients.capability == "tiers"
        assert config.partition.alpha == 0.5
