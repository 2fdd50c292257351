"""int8 for networks that torch exports: after training, calibrated on its examples (torchao)."""

from typing import Any

import torch
from torch import Tensor, nn

from nefl.extras import need

EXTRA = "executorch"
BATCH = 32


def quantize(network: nn.Module, calibration: Tensor) -> Any:
    """Return the network with int8 weights and activations, as a graph for `torch.export`.

    Weights are quantized by channel and activations by what training examples show, in the way that
    XNNPACK's kernels take them.

    Args:
        network: the plain network.
        calibration: inputs from training examples.

    Raises:
        ConfigError: if torchao or ExecuTorch is not installed.
    """
    pt2e = need("torchao.quantization.pt2e.quantize_pt2e", EXTRA)
    xnnpack = need("executorch.backends.xnnpack.quantizer.xnnpack_quantizer", EXTRA)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=False)
    )
    shapes = ({0: torch.export.Dim("batch", min=1, max=2**16)},)
    graph = torch.export.export(network, (calibration[:2].clone(),), dynamic_shapes=shapes).module()
    prepared = pt2e.prepare_pt2e(graph, quantizer)
    with torch.no_grad():
        for inputs in torch.split(calibration, BATCH):
            prepared(inputs)
    quantized = pt2e.convert_pt2e(prepared)
    _drop_unused(quantized)
    return quantized


def _drop_unused(graph: Any) -> None:
    """Let go of the float weights, which int8 ones have replaced in the graph."""
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for name in [n for n, _ in graph.named_parameters() if n not in used]:
        place, _, last = name.rpartition(".")
        delattr(graph.get_submodule(place), last)
