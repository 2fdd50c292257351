"""The price of a submodel, as it is counted and as run folders note it; no torch is needed here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubmodelProfile:
    """The cost of one submodel.

    Attributes:
        index: its number, from 1.
        gamma_w: the paper's ratio of parameters kept by width alone.
        gamma_d: the ratio kept by depth alone.
        gamma: the ratio of its parameters to the full model's.
        width: kept fraction of channels, one number or one for each stage.
        channels: channels that each stage hands on.
        blocks: initial step size of each block by stage, 0 = absent.
        params: weights, norm scales and shifts, classifiers; no step sizes, no buffers, nothing
            that is frozen.
        step_sizes: how many learned step sizes it has.
        macs: multiply-accumulates of its convolutions for one example, as the paper counts.
        macs_total: the same for all layers.
        train_macs: those of a training step for one example: all classifiers and all members
            within that are trained, forward and backward; the mean where steps differ.
        train_memory_bytes: weights, gradients, what the optimiser keeps, buffers, a batch of
            inputs and the activations that autograd keeps for it; of frozen weights nothing but
            themselves. Scratch space of kernels comes on top.
        payload_bytes: what is sent to a client, and again what it sends back; the mean where the
            two differ.
        activation_bytes: the part of the training memory that a batch takes.
        frozen: frozen weights under those that are trained; they need memory, once, and no more.
        down_bytes: what is sent to a client, encoded; runs of earlier versions did not note it.
        up_bytes: what it sends back, likewise.
    """

    index: int
    gamma_w: float
    gamma_d: float
    gamma: float
    width: float | tuple[float, ...]
    channels: tuple[int, ...]
    blocks: tuple[tuple[float, ...], ...]
    params: int
    step_sizes: int
    macs: int
    macs_total: int
    train_macs: int
    train_memory_bytes: int
    payload_bytes: int
    activation_bytes: int = 0
    frozen: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
