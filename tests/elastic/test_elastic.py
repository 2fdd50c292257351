"""One file, one copy of the weights, and a model that changes its size in microseconds."""

from pathlib import Path
from time import perf_counter

import pytest
import torch

import nefl
from nefl.elastic.select import Choice
from nefl.errors import ConfigError, NestingError
from nefl.export.source import open_run, predict_batches


def test_every_submodel_does_what_was_trained(digits_run: Path, elastic_file: Path) -> None:
    source, trained = open_run(digits_run), nefl.load(elastic_file)
    inputs, _ = source.test_batch(30)
    elastic = nefl.ElasticModel(trained)
    for number in range(1, 6):
        wanted = predict_batches(source.submodel(number), inputs)
        for views in (None, True, False):
            got = predict_batches(trained.model(number, views=views), inputs)
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(elastic(inputs, number), wanted, rtol=1e-5, atol=1e-5)


def test_the_file_is_no_larger_than_its_tensors_and_their_names(
    digits_run: Path, elastic_file: Path
) -> None:
    state = open_run(digits_run).state
    tensors = [t for group in (state.shared, *state.per_submodel) for t in group.values()]
    weights = sum(t.numel() * t.element_size() for t in tensors)
    with elastic_file.open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    assert elastic_file.stat().st_size == weights + header


def test_weights_are_views_of_the_one_copy_where_that_costs_nothing(elastic_file: Path) -> None:
    trained = nefl.load(elastic_file)
    whole = {t.untyped_storage().data_ptr() for t in trained.state.shared.values()}
    full = trained.model(5)
    shared = [p for n, p in full.named_parameters() if n in trained.state.shared]
    assert shared
    assert all(p.untyped_storage().data_ptr() in whole for p in shared)
    small = dict(trained.model(1).named_parameters())
    assert small["conv1.weight"].untyped_storage().data_ptr() in whole  # its rows are whole
    assert small["layer2.0.conv1.weight"].untyped_storage().data_ptr() not in whole
    assert all(p.is_contiguous() for p in small.values())
    viewed = dict(trained.model(1, views=True).named_parameters())
    assert viewed["layer2.0.conv1.weight"].untyped_storage().data_ptr() in whole


def test_switching_takes_microseconds(elastic_file: Path) -> None:
    model = nefl.ElasticModel(nefl.load(elastic_file))
    assert model.current == 5
    times = []
    for turn in range(2000):
        started = perf_counter()
        model.switch(1 + turn % 5)
        times.append(perf_counter() - started)
    assert sorted(times)[1000] < 50e-6
    with pytest.raises(NestingError, match="submodel 6: this family has 1 to 5"):
        model.switch(6)


def test_latency_is_measured_where_the_model_is(elastic_file: Path) -> None:
    model = nefl.ElasticModel(nefl.load(elastic_file)).to("meta")
    assert len(model.measure(repeats=1)) == 5


def test_select_goes_by_what_is_limited(elastic_file: Path) -> None:
    model = nefl.ElasticModel(nefl.load(elastic_file))
    costs = model.costs
    assert model.select(nefl.Budget(macs=costs[1].macs)).submodel == 2
    assert model.current == 2
    assert model.select(nefl.Budget(memory=1e9)).submodel == 5
    assert model.select(nefl.Budget(params=1)) == Choice(1, fits=False)
    with pytest.raises(ConfigError, match="latency has not been measured"):
        model.select(nefl.Budget(latency=1.0))
    table = model.measure(repeats=3)
    assert len(table) == 5
    assert model.select(nefl.Budget(latency=10 * max(table))).submodel == 5
