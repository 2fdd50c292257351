"""int8 for networks that torch exports: post-training, calibrated on training images (torchao)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from nefl.extras import need

EXTRA = "executorch"
BATCH = 32


def quantize(network: nn.Module, calibration: Tensor, target: Literal["x86", "xnnpack"]) -> Any:
    """Return the network with int8 weights and activations, as a graph for `torch.export`.

    Args:
        network: the plain network.
        calibration: inputs from training images, which show the ranges of activations.
        target: the kernels that will run it, which decide on what is quantized and how.

    Raises:
        ConfigError: if torchao or the target's quantizer is not installed.
    """
    pt2e = need("torchao.quantization.pt2e.quantize_pt2e", EXTRA)
    batch = torch.export.Dim("batch", min=1, max=2**16)
    example = (calibration[:2].clone(),)
    shapes = ({0: batch},) if target == "x86" else None
    if target == "xnnpack":
        example = (calibration[:1].clone(),)
    graph = torch.export.export(network, example, dynamic_shapes=shapes).module()
    prepared = pt2e.prepare_pt2e(graph, _quantizer(target))
    with torch.no_grad():
        for inputs in calibration.split(BATCH if target == "x86" else 1):
            prepared(inputs)
    return pt2e.convert_pt2e(prepared)


def _quantizer(target: str) -> Any:
    if target == "x86":
        x86 = need("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer", EXTRA)
        quantizer = x86.X86InductorQuantizer()
        return quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    xnnpack = need("executorch.backends.xnnpack.quantizer.xnnpack_quantizer", EXTRA)
    quantizer = xnnpack.XNNPACKQuantizer()
    return quantizer.set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=False)
    )
