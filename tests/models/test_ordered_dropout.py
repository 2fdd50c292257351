"""Ordered dropout trains narrower nets within a client's own, and nothing outside them."""

import pytest
import torch
from torch import nn

from nefl.methods import make_family
from nefl.models.ordered_dropout import OrderedDropout, serving
from nefl.nesting.corners import corner, extract
from nefl.server.evaluate import measure_norms

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def build(submodel: int, seed: int = 0) -> OrderedDropout:
    family = make_family("resnet8", "fjord-od")
    module = family.build(family.specs[submodel - 1])
    assert isinstance(module, OrderedDropout)
    module.load_state_dict(extract(family.initial_state(seed), family, submodel))
    return module


@pytest.mark.parametrize("submodel", [1, 3, 5])
def test_it_serves_as_the_plain_net_of_its_width(submodel: int) -> None:
    module = build(submodel)
    plain_family = make_family("resnet8", "fjord")
    plain = plain_family.build(plain_family.specs[submodel - 1])
    plain.load_state_dict(extract(plain_family.initial_state(0), plain_family, submodel))
    for net in (plain, module):
        net.eval()
    with torch.no_grad():
        torch.testing.assert_close(module(IMAGES), plain(IMAGES), rtol=0, atol=0)


def test_a_step_trains_one_width_and_its_norms_alone() -> None:
    module = build(5).train()
    family = make_family("resnet8", "fjord-od")
    drawn = set()
    for seed in range(12):
        torch.manual_seed(seed)
        module.zero_grad(set_to_none=True)
        torch.autograd.backward(module(IMAGES).square().mean())
        gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        widths = {name.split(".")[1] for name in gradients if name.startswith("norms")}
        assert len(widths) == 1
        width = int(widths.pop())
        drawn.add(width)
        for name, gradient in gradients.items():
            if name.startswith("net."):
                inside = corner(family.layout(width)[name].shape)
                outside = gradient.clone()
                outside[inside] = 0
                assert not outside.any(), f"{name}: width {width} reached outside its corner"
                assert gradient[inside].any()
    assert len(drawn) > 2, "widths vary from step to step"


def test_running_statistics_are_those_of_the_width_that_was_drawn() -> None:
    module = build(2).train()
    torch.manual_seed(0)
    for _ in range(6):
        module(IMAGES)
    tracked = [
        int(tensor) for name, tensor in module.state_dict().items() if name.endswith("tracked")
    ]
    per_norm = len(tracked) // 2
    first, second = set(tracked[:per_norm]), set(tracked[per_norm:])
    assert len(first) == len(second) == 1
    assert first.pop() + second.pop() == 6


def test_a_widths_norms_have_one_name_in_all_submodels() -> None:
    family = make_family("resnet8", "fjord-od")
    for k in range(1, 6):
        widths = {n.split(".")[1] for n in family.layout(k) if n.startswith("norms.")}
        assert widths == {str(j) for j in range(1, k + 1)}
        assert not family.own_names(k)


def test_the_widest_net_has_no_norms_of_its_own() -> None:
    module = build(3)
    assert not any(isinstance(child, nn.BatchNorm2d) for child in module.net.modules())
    assert len(list(module.parameters())) == len({id(p) for p in module.parameters()})


def test_it_serves_as_a_plain_family() -> None:
    family = make_family("resnet8", "fjord-od")
    state = family.initial_state(1)
    for name, tensor in state.shared.items():  # every width has norms of its own
        if name.endswith("running_mean"):
            tensor += int(name.split(".")[1]) / 10
    plain, weights = serving(family, state)
    for number in (1, 3, 5):
        ours, theirs = (f.build(f.specs[number - 1]).eval() for f in (family, plain))
        ours.load_state_dict(extract(state, family, number))
        theirs.load_state_dict(extract(weights, plain, number))
        assert not isinstance(theirs, OrderedDropout)
        with torch.no_grad():
            torch.testing.assert_close(theirs(IMAGES), ours(IMAGES), rtol=0, atol=0)


def test_other_families_serve_as_they_are() -> None:
    family = make_family("resnet8", "fjord")
    state = family.initial_state(1)
    assert serving(family, state) == (family, state)


def test_its_norms_are_measured_as_those_of_the_plain_net() -> None:
    module = build(3)
    plain_family = make_family("resnet8", "fjord")
    plain = plain_family.build(plain_family.specs[2])
    plain.load_state_dict(extract(plain_family.initial_state(0), plain_family, 3))
    for net in (plain, module):
        measure_norms(net, [IMAGES * 3 + 1], torch.contiguous_format)
    ours, theirs = module.norms["3"].state_dict(), plain.state_dict()
    means = [name for name in theirs if name.endswith(("running_mean", "running_var"))]
    for name in means:
        path, _, leaf = name.rpartition(".")
        torch.testing.assert_close(ours[f"{path.replace('.', '_')}.{leaf}"], theirs[name])
    assert any(bool(theirs[name].any()) for name in means)
