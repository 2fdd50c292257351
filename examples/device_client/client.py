"""A client that trains with ExecuTorch's runtime and numpy: nothing of nefl, no autograd.

    nefl handoff digits --submodel 1 "python examples/device_client/client.py"

It follows the contract in docs/on-device.md: one argument, the folder of a task. Written as one
would write it in Kotlin, Swift or C++ (client.cpp is the same in C++): the runtime goes
forward and backward; the optimiser and the running statistics are a few lines of arithmetic.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch  # the runtime's Python API takes and gives its tensors; they only wrap the arrays
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from safetensors.numpy import load_file, save_file

PREFIX = "model."
Array = npt.NDArray[np.float32]


def sha256(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Program:
    """The program: parameters that it reads where they lie, and what one pass gives."""

    def __init__(self, data: bytes, inputs: Array, target: npt.NDArray[np.int64]) -> None:
        self._data = data  # the runtime reads it in place
        self._module = _load_for_executorch_from_buffer(data)
        names = self._module.run_method("__et_training_fqn_forward", ())
        self.names = [name.removeprefix(PREFIX) for name in names]
        self._gradients = self._module.run_method("__et_training_gradients_index_forward", ())[0]
        self._parameters = self._module.run_method("__et_training_parameters_index_forward", ())[0]
        outputs = self._run(inputs, target)  # parameters show themselves behind a first pass
        self.parameters = dict(zip(self.names, outputs[self._parameters :], strict=True))

    def __call__(
        self, inputs: Array, target: npt.NDArray[np.int64]
    ) -> tuple[list[Array], dict[str, Array]]:
        """Return loss and statistics, and the gradients by name."""
        outputs = [array.copy() for array in self._run(inputs, target)[: self._parameters]]
        gradients = dict(zip(self.names, outputs[self._gradients :], strict=True))
        return outputs[: self._gradients], gradients

    def _run(self, inputs: Array, target: npt.NDArray[np.int64]) -> list[Array]:
        given = torch.from_numpy(inputs.copy()), torch.from_numpy(target.copy())
        outputs = self._module.run_method("forward", given, clone_outputs=False)
        return [tensor.numpy() for tensor in outputs]


def train(folder: Path) -> None:
    """Carry out the task in a folder, and write the update beside it."""
    task = json.loads((folder / "task.json").read_text())
    if task["form"] != "nefl-task-1":
        raise SystemExit(f"task.json: form {task['form']}, expected nefl-task-1")
    if task["steps"] is None:
        raise SystemExit("task.json: brings no steps, and this client has no examples of its own")
    for name, expected in task["sha256"].items():
        if sha256(folder / name) != expected:
            raise SystemExit(f"{name}: does not have the checksum that task.json names")
    tensors = load_file(folder / "weights.safetensors")
    batches = load_file(folder / "steps.safetensors")
    inputs, target = batches["inputs"], batches["target"]
    program = Program((folder / "program.pte").read_bytes(), inputs[:2], target[:2])
    for name, parameter in program.parameters.items():
        parameter[...] = tensors[name]
    velocity: dict[str, Array] = {}
    place, total = 0, 0.0
    for size, rate in task["steps"]:
        chosen = slice(place, place + size)
        (loss, *measured), gradients = program(inputs[chosen], target[chosen])
        for name, parameter in program.parameters.items():
            gradient = gradients[name] + np.float32(task["weight_decay"]) * parameter
            if name in velocity:
                gradient += np.float32(task["momentum"]) * velocity[name]
            velocity[name] = gradient
            parameter -= np.float32(rate) * gradient
        for number, (name, values, momentum) in enumerate(task["norms"]):
            count = size * values
            tensors[f"{name}.num_batches_tracked"] += 1
            tracked = tensors[f"{name}.num_batches_tracked"]
            share = np.float32(1 / tracked if momentum is None else momentum)
            mean, variance = measured[2 * number : 2 * number + 2]
            unbiased = variance * np.float32(count / max(count - 1, 1))
            for kept, seen in (("running_mean", mean), ("running_var", unbiased)):
                running = tensors[f"{name}.{kept}"]
                running += share * (seen - running)
        total += float(loss)
        place += size
    tensors |= {name: parameter.copy() for name, parameter in program.parameters.items()}
    save_file(tensors, folder / "update.safetensors")
    report = {
        "form": "nefl-update-1",
        **{key: task[key] for key in ("round", "client", "submodel", "examples")},
        "loss": total / len(task["steps"]),
        "sha256": {"update.safetensors": sha256(folder / "update.safetensors")},
    }
    (folder / "update.json").write_text(json.dumps(report))


if __name__ == "__main__":
    train(Path(sys.argv[1]))
