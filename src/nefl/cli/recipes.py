"""`nefl recipes`: what there is to run, and what was published for it."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import typer

from nefl.cli.terminal import console_for_tables, in_columns, say
from nefl.config import RunConfig
from nefl.errors import unknown_name
from nefl.recipes import load_recipe, recipe_names
from nefl.recipes.writing import to_toml

_PLACE = re.compile(r"(Table|Figure) (\d+)")


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Show those whose name or description has all."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only this method, such as nefl-wd.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model, such as resnet18.")] = None,
    data: Annotated[str | None, typer.Option(help="Only this data set, such as cifar10.")] = None,
    partition: Annotated[str | None, typer.Option(help="Only this one: iid or dirichlet.")] = None,
    source: Annotated[
        str | None, typer.Option(help='Only what stands there, as in "Table 3" or "Figure 7".')
    ] = None,
    pretrained: Annotated[
        bool | None, typer.Option("--pretrained/--fresh", help="Only with, or without, a file.")
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print one with all its settings, as TOML.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the recipes: complete, named configurations, with the figures published for them."""
    if show is not None:
        config = load_recipe(show)
        say(json.dumps(config.to_dict(), indent=2) if as_json else to_toml(config).rstrip())
        return
    filters = {
        "model.method": method,
        "model.name": model,
        "data.name": data,
        "partition.kind": partition,
    }
    wanted = {key: value for key, value in filters.items() if value is not None}
    every = {name: load_recipe(name) for name in recipe_names()}
    _check_filters(every.values(), wanted, source)
    found = {
        name: config
        for name, config in every.items()
        if has_words(name, config, words or [])
        and is_from(config, source)
        and all(_setting(config, key) == value for key, value in wanted.items())
        and pretrained in (None, config.model.weights is not None)
    }
    if as_json:
        say(json.dumps({name: c.to_dict() for name, c in found.items()}, indent=2))
    else:
        _list(found)


def _check_filters(
    recipes: Collection[RunConfig], wanted: Mapping[str, str], source: str | None
) -> None:
    """Raise if a filter asks for what no recipe has: a slip, not a question."""
    for key, value in wanted.items():
        known = sorted({str(_setting(config, key)) for config in recipes})
        if value not in known:
            raise unknown_name(f"recipes: {key}", value, known)
    if source is not None and not any(is_from(config, source) for config in recipes):
        named = {place for c in recipes for place in _PLACE.findall(c.published.source)}
        places = sorted(named, key=lambda place: (place[0], int(place[1])))
        raise unknown_name("recipes: source", source, [" ".join(place) for place in places])


def has_words(name: str, config: RunConfig, words: Sequence[str]) -> bool:
    """Whether all words are in a recipe's name, description or source, in any case."""
    text = f"{name} {config.about} {config.published.source}".lower()
    return all(word.lower() in text for word in words)


def is_from(config: RunConfig, source: str | None) -> bool:
    """Whether a recipe's figures stand there; Table 1 is not Table 10."""
    if source is None:
        return True
    place = re.compile(rf"\b{re.escape(source.strip())}\b", re.IGNORECASE)
    return place.search(config.published.source) is not None


def _setting(config: RunConfig, key: str) -> object:
    part, name = key.split(".")
    return getattr(getattr(config, part), name)


def _list(found: Mapping[str, RunConfig]) -> None:
    headings = ("recipe", "clients", "rounds", "worst", "average", "published in, or about")
    rows = [
        (
            name,
            f"{config.clients.per_round}/{config.clients.count}",
            str(config.rounds),
            _percent(config.published.worst),
            _percent(config.published.average),
            config.published.source or config.about,
        )
        for name, config in found.items()
    ]
    width = console_for_tables().width
    say("\n".join(in_columns(headings, rows, width, folded=(0, 5))))
    more = "" if found else "; give fewer words, or none"
    say(f"{len(found)} of {len(recipe_names())} recipes{more}")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
