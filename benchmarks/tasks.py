"""What the built-in tasks learn: each recipe, beside a simple baseline on the same examples.

    python benchmarks/tasks.py [--out FOLDER] [recipe ...]

The baselines see the same training examples, all in one place: logistic regression, the mean and
ridge regression, counts of the last bytes. Runs that are in the folder already are not made again.
"""

import argparse
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nefl
from nefl.data.tokens import BYTES
from nefl.tasks.dealing import subset
from nefl.tasks.finding import load_task
from nefl.tasks.task import Task

RECIPES = ("breast-cancer", "diabetes", "digit-strokes", "stdlib-packages", "stdlib")
ORDER = 3
"""Bytes that the n-gram looks back at, the longest context first."""

Rows = np.ndarray


def logistic(task: Task, column: str, test: Rows) -> dict[str, float]:
    train, truth = np.asarray(task.train[column]), np.asarray(task.train[str(task.target)])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(train.reshape(len(train), -1), truth)
    asked = np.asarray(task.test[column])[test]
    right = model.predict(asked.reshape(len(asked), -1)) == task.test[str(task.target)][test]
    return {"logistic regression, accuracy": float(right.mean())}


def numbers(task: Task, test: Rows) -> dict[str, float]:
    x, y = np.asarray(task.train["features"]), np.asarray(task.train["target"])
    asked, truth = np.asarray(task.test["features"])[test], np.asarray(task.test["target"])[test]
    ridge = make_pipeline(StandardScaler(), Ridge(1.0)).fit(x, y)
    return {
        "the mean, mae": float(np.abs(truth - y.mean()).mean()),
        "ridge regression, mae": float(np.abs(truth - ridge.predict(asked)).mean()),
    }


def as_text(rows: Rows) -> list[str]:
    return ["".join(map(chr, row[row != BYTES])) for row in rows]


def bag_of_bytes(task: Task, test: Rows) -> dict[str, float]:
    bags = HashingVectorizer(analyzer="char", ngram_range=(1, 4), n_features=2**16)
    model = LogisticRegression(max_iter=500)
    model.fit(bags.transform(as_text(task.train["tokens"])), task.train["label"])
    said = model.predict(bags.transform(as_text(task.test["tokens"][test])))
    return {"1- to 4-grams, logistic, accuracy": float((said == task.test["label"][test]).mean())}


def n_gram(task: Task, test: Rows) -> dict[str, float]:
    """Counts of the last bytes, mixed with those of shorter contexts (Witten and Bell's way)."""
    after: dict[bytes, Counter[int]] = {}
    for row in np.asarray(task.train["tokens"]):
        text = row.tobytes()
        for place in range(1, len(text)):
            for back in range(min(ORDER, place) + 1):
                context = text[place - back : place]
                after.setdefault(context, Counter())[text[place]] += 1
    totals = {context: (sum(c.values()), len(c)) for context, c in after.items()}

    def chance(text: bytes, place: int) -> float:
        found = 1 / 256
        for back in range(min(ORDER, place) + 1):
            context = text[place - back : place]
            if context in after:
                seen, kinds = totals[context]
                found = (after[context][text[place]] + kinds * found) / (seen + kinds)
        return found

    texts = [row.tobytes() for row in np.asarray(task.test["tokens"])[test]]
    logs = [math.log(chance(text, place)) for text in texts for place in range(1, len(text))]
    return {f"{ORDER + 1}-gram, perplexity": math.exp(-sum(logs) / len(logs))}


def examples(config: nefl.RunConfig) -> tuple[Task, Rows]:
    """Return a recipe's task with the training examples that it takes, and its test rows."""
    task = load_task(config)
    chosen = subset(task, config)
    train = {name: np.asarray(column)[chosen.train] for name, column in task.train.items()}
    return replace(task, train=train, folder=None), chosen.test


def baseline(task: Task, test: Rows) -> dict[str, float]:
    match task.kind:
        case "table-classification":
            return logistic(task, "features", test)
        case "series-classification":
            return logistic(task, "series", test)
        case "table-regression":
            return numbers(task, test)
        case "text-classification":
            return bag_of_bytes(task, test)
    return n_gram(task, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--out", type=Path, help="folder of the runs")
    given = parser.parse_args()
    out = given.out or Path(mkdtemp(prefix="nefl-tasks-"))
    print("| recipe | metric | worst | average | best | baseline |\n|---|---|---|---|---|---|")
    for recipe in given.recipes:
        run = out / recipe
        done = nefl.resume(run) if run.exists() else nefl.train(recipe, run)
        beside = baseline(*examples(nefl.load_recipe(recipe)))
        said = "; ".join(f"{name} {value:.4g}" for name, value in beside.items())
        found = [f"{done.summary[key]:.4g}" for key in ("worst", "average", "best")]
        print(
            f"| `{recipe}` | {done.summary['metric']} | {' | '.join(found)} | {said} |", flush=True
        )


if __name__ == "__main__":
    main()
