import torch
from hypothesis import given
from hypothesis import strategies as st

from nefl.methods import make_family
from nefl.nesting.corners import corner, extract, scatter

shapes = st.lists(st.integers(1, 5), max_size=4)


@given(data=st.data(), shape=shapes)
def test_extract_then_scatter_is_the_identity(data: st.DataObject, shape: list[int]) -> None:
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    small = [data.draw(st.integers(1, size)) for size in shape]
    cut = whole[corner(small)].clone()
    target = whole.clone()
    scatter({"x": cut}, {"x": target})
    assert torch.equal(target, whole)
    scatter({"x": cut + 1}, {"x": target})
    assert torch.equal(target[corner(small)], cut + 1)
    assert (target != whole).sum() == cut.numel()


def test_extract_gives_a_submodel_that_loads() -> None:
    family = make_family("resnet8", "nefl-wd")
    state = family.initial_state(0)
    for submodel in range(1, len(family) + 1):
        tensors = extract(state, family, submodel)
        family.build(family.specs[submodel - 1]).load_state_dict(tensors)
        assert list(tensors) == list(family.layout(submodel))


def test_extract_copies_nothing_shared() -> None:
    family = make_family("resnet8", "nefl-w")
    state = family.initial_state(0)
    for name, tensor in extract(state, family, 1).items():
        if name in state.shared:
            assert tensor.data_ptr() == state.shared[name].data_ptr()
