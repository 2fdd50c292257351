"""Small first, as a run has it: the rounds that its method asks for, and where it has no place."""

from dataclasses import replace

from nefl.config import RunConfig
from nefl.errors import ConfigError
from nefl.methods import Method, method_of


def with_small_first(config: RunConfig) -> RunConfig:
    """Let a run that begins unlock submodels as its method does, where nothing else is asked for.

    The rounds stand in its settings from then on, so that it keeps to them when it is given more.
    """
    shares = method_of(config.model).small_first
    if shares is None or config.clients.small_first is not None:
        return config
    alone, everyone = (round(share * config.rounds) for share in shares)
    rounds = (alone, max(everyone, alone + 1))
    return replace(config, clients=replace(config.clients, small_first=rounds))


def check_small_first(config: RunConfig, method: Method, submodels: int) -> None:
    """Refuse to unlock submodels where what only they hold is not new.

    Raises:
        ConfigError: naming what it does not go with.
    """
    if config.clients.unlocks is None:
        return
    model, server = config.model, config.server
    reasons = {
        f"with {model.method} there is one model, and no larger one that could come later": (
            submodels == 1
        ),
        f"with {model.method} other channels come first each round": method.rolling,
        "model.start and model.weights bring trained weights for all submodels, which unlocking "
        "would overwrite": model.start is not None or model.weights is not None,
        "an average of products fills all ranks from the first round on": "products"
        in (method.average, server.average),
        "engine.flower.choice 'client' lets nodes train what is not unlocked": (
            config.engine.flower.choice == "client"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(
                f"clients.small_first: {reason}; leave one of them out, or set small_first to "
                "[0, 1], so that all submodels are trained from the first round on"
            )
