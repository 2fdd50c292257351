"""Arrays on an accelerator, once for all that train there in this process."""

from weakref import ref

import numpy as np
import torch
from torch import Tensor

_COPIES: dict[tuple[int, str], tuple["ref[np.ndarray]", "ref[Tensor]"]] = {}
"""What is there already, by the array it was made from and the device; nothing is kept alive."""


def resident(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array's copy on a device, the same for everybody as long as anybody has it."""
    key = id(array), str(device)
    if key in _COPIES:
        source, copy = _COPIES[key][0](), _COPIES[key][1]()
        if source is array and copy is not None:  # the number of an array that is gone comes again
            return copy
    made = torch.from_numpy(np.array(array)).to(device)
    _COPIES[key] = ref(array), ref(made)
    return made
