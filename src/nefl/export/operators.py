"""Which operators a torch.export archive (.pt2) may call.

Not all operators of torch compare what they are given with the memory they read and write: some
take indices or sizes on trust, and a made-up file could end the process or read its memory by
them. So only those on this list are called: what torch.export writes for nefl's own models, and
plain operators of inference that compare their arguments. Attention is one of the former that
does not: torch is given a function that does in its place.
"""

import re
from typing import Any

import torch
from torch import Tensor

_PYTHON = re.compile(
    r"_operator\.(add|sub|mul|floordiv|mod|neg|getitem|ge|gt|le|lt|eq|ne)"
    r"|torch\.sym_(int|max|min|not|ite)"
)

_ATEN = """
    conv1d.default conv1d.padding conv2d.default conv2d.padding linear.default
    matmul.default mm.default bmm.default addmm.default einsum.default
    scaled_dot_product_attention.default embedding.default index_select.default

    add.Tensor add.Scalar add_.Tensor sub.Tensor sub.Scalar sub_.Tensor rsub.Scalar addcmul.default
    mul.Tensor mul.Scalar mul_.Tensor div.Tensor div.Scalar div_.Tensor
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar cos.default sin.default outer.default
    neg.default abs.default exp.default log.default
    sqrt.default rsqrt.default reciprocal.default erf.default maximum.default minimum.default
    eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
    gt.Tensor gt.Scalar ge.Tensor ge.Scalar where.self masked_fill.Scalar tril.default triu.default

    relu.default relu_.default relu6.default relu6_.default gelu.default silu.default silu_.default
    mish.default sigmoid.default tanh.default elu.default leaky_relu.default leaky_relu_.default
    prelu.default softplus.default hardtanh.default hardtanh_.default hardswish.default
    hardswish_.default hardsigmoid.default clamp.default clamp_.default clamp_min.default
    clamp_max.default softmax.int log_softmax.int _softmax.default _log_softmax.default
    dropout.default dropout_.default feature_dropout.default

    batch_norm.default layer_norm.default group_norm.default rms_norm.default
    max_pool1d.default max_pool2d.default avg_pool1d.default avg_pool2d.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default
    mean.default mean.dim sum.default sum.dim_IntList amax.default amin.default var.correction
    var.dim linalg_vector_norm.default norm.ScalarOpt_dim

    flatten.using_ints unflatten.int view.default reshape.default permute.default transpose.int
    t.default movedim.int unsqueeze.default squeeze.default squeeze.dim squeeze.dims expand.default
    expand_as.default repeat.default cat.default stack.default split.Tensor split_with_sizes.default
    split.sizes chunk.default unbind.int select.int slice.Tensor narrow.default flip.default
    roll.default pad.default constant_pad_nd.default

    clone.default contiguous.default alias.default detach.default detach_.default
    lift_fresh_copy.default to.dtype to.dtype_layout to.device to.other _to_copy.default
    type_as.default sym_size.int _assert_scalar.default _assert_tensor_metadata.default
    full.default zeros.default ones.default arange.default arange.start arange.start_step
    scalar_tensor.default full_like.default zeros_like.default ones_like.default
    new_zeros.default new_ones.default new_full.default
"""
_INT8 = """
    quantize_per_tensor.default quantize_per_channel.default
    dequantize_per_tensor.default dequantize_per_channel.default
"""

OPERATORS = frozenset(
    [f"torch.ops.aten.{name}" for name in _ATEN.split()]
    + [f"torch.ops.quantized_decomposed.{name}" for name in _INT8.split()]
)
"""Operators with their overloads, as torch.export names them."""


def is_allowed(target: str) -> bool:
    """Return whether an archive may call what it names so."""
    return target in OPERATORS or _PYTHON.fullmatch(target) is not None


def guard(network: torch.fx.GraphModule) -> None:
    """Let a network compare the shapes of keys and values, which torch's attention does not."""
    for node in network.graph.nodes:
        if node.target is torch.ops.aten.scaled_dot_product_attention.default:
            node.target = _attention
    network.recompile()


def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Tensor:
    # With fewer values than keys torch 2.13 reads past the end of the values.
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"attention: keys {tuple(key.shape)}, values {tuple(value.shape)}")
    attend = torch.ops.aten.scaled_dot_product_attention.default
    return attend(query, key, value, *others, **named)  # type: ignore[no-any-return]
