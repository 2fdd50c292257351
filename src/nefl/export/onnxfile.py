"""ONNX files, run by ONNX Runtime.

A file ends in a checksum of all bytes before it, as a last note that every reader of ONNX knows:
nothing parses a file that does not have it.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nefl.artifacts.card import CARD_KEY, Card, card_from_json, card_to_json
from nefl.errors import RunError
from nefl.export.runner import Save
from nefl.extras import need, quiet

EXTRA = "onnx"
INPUT, OUTPUT = "inputs", "outputs"
OPSET = 20
CALIBRATION_BATCH = 32

# The note {"sha256": 64 digits} as protobuf writes it: field 14 of a model, 74 bytes long.
_NOTE = b"\x72\x4a\x0a\x06sha256\x12\x40"
_DIGITS = 64
SEAL_BYTES = len(_NOTE) + _DIGITS


class OnnxRunner:
    """A network of an ONNX file, in ONNX Runtime."""

    def __init__(self, card: Card, session: Any) -> None:
        self.card = card
        self._session = session
        self._input = session.get_inputs()[0].name  # older files call it otherwise

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of a batch of inputs, as the card's signature describes both."""
        (outputs,) = self._session.run(None, {self._input: inputs.contiguous().numpy()})
        return torch.from_numpy(outputs)


def prepare(network: nn.Module, card: Card, calibration: Tensor) -> Save:
    """Translate the network; return what writes the file, with whatever card.

    Raises:
        ConfigError: if ONNX is not installed.
    """
    need("onnx", EXTRA)
    need("onnxscript", EXTRA)
    need("onnxruntime", EXTRA)
    batch = torch.export.Dim("batch", min=1, max=2**16)
    with quiet():
        program = torch.onnx.export(
            network,
            (calibration[:2].clone(),),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: batch},),
            opset_version=OPSET,
            verbose=False,
            optimize=True,
        )
    if program is None:
        raise RunError("the network could not be translated to ONNX")
    model = program.model_proto
    if card.quantized:
        model = _quantize(model, calibration)
    # Where it came from is the code's own affair; it would also differ from machine to machine.
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.metadata_props[:]

    def save(path: Path, final: Card) -> None:
        del model.metadata_props[:]
        entry = model.metadata_props.add()
        entry.key, entry.value = CARD_KEY, card_to_json(final)
        content = model.SerializeToString(deterministic=True)
        path.write_bytes(seal(content))

    return save


def open_onnx(path: Path) -> OnnxRunner:
    """Open an ONNX file.

    Raises:
        ConfigError: if ONNX Runtime is not installed.
        RunError: if the file is missing, foreign, cut off or damaged.
    """
    onnx, runtime = need("onnx", EXTRA), need("onnxruntime", EXTRA)
    content = _checked(path)
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception:  # protobuf raises its own kind, of no common base
        raise RunError(f"{path}: is no ONNX file, or damaged; export it again") from None
    notes = {entry.key: entry.value for entry in model.metadata_props}
    card = card_from_json(notes.get(CARD_KEY), path)
    # Tensors in other files could name any path; nefl writes none.
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in _tensors(model, onnx)):
        raise RunError(f"{path}: keeps tensors in other files, which nefl never writes")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises its own kinds, of no common base
        raise RunError(f"{path}: ONNX Runtime does not take it ({error})") from None
    return OnnxRunner(card, session)


def seal(content: bytes) -> bytes:
    """Return the bytes of a model with their checksum behind them."""
    return content + _NOTE + hashlib.sha256(content).hexdigest().encode()


def _checked(path: Path) -> bytes:
    """Return the bytes of a file that has its checksum, without it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    content = data[:-SEAL_BYTES]
    if data[len(content) : -_DIGITS] != _NOTE:
        raise RunError(f"{path}: is no ONNX file that `nefl export` wrote, or is cut off")
    if seal(content) != data:
        raise RunError(
            f"{path}: is damaged: its contents do not have its checksum; copy it anew, or export "
            "it again (older files too, whose sum left out the description)"
        )
    return content


def _tensors(message: Any, onnx: Any) -> Iterator[Any]:
    """Yield every tensor of a model, wherever it stands: in attributes, subgraphs, functions."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                if isinstance(part, onnx.TensorProto):
                    yield part
                elif not isinstance(part, str):
                    yield from _tensors(part, onnx)


def _quantize(model: Any, calibration: Tensor) -> Any:
    """Quantize weights by channel and activations by what training examples show."""
    quantization = need("onnxruntime.quantization", EXTRA)
    preparation = need("onnxruntime.quantization.shape_inference", EXTRA)
    onnx = need("onnx", EXTRA)
    batches = iter(torch.split(calibration, CALIBRATION_BATCH))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[name-defined,misc]
        def get_next(self) -> dict[str, Any] | None:
            batch = next(batches, None)
            return None if batch is None else {INPUT: batch.numpy()}

    with tempfile.TemporaryDirectory() as folder, quiet():
        plain, ready, done = (Path(folder) / f"{name}.onnx" for name in ("plain", "ready", "done"))
        onnx.save_model(model, str(plain))
        preparation.quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(ready),
            str(done),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
        return onnx.load_model(str(done))
