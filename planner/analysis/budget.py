"""From a compute budget to a model and its tokens, by a published scaling law that the user names."""

import math
from typing import NamedTuple

from cost_models.scaling_laws import allocate, scaling_law, tokens_for
from planner.errors import InputError
from planner.models.catalog import list_models, load_model


class Scaled(NamedTuple):
    """A model and tokens for a budget."""

    model: str
    tokens: float
    assumed: tuple[str, ...]
    """What the law says, and what was made of it."""


def scaled(flops: float, law: str, model: str | None = None) -> Scaled:
    """The shipped decoder nearest to the law's optimum, and the tokens that the budget then pays for.

    A ``model`` that is given keeps its size; only its tokens follow. Raises ``InputError`` for a budget that is not
    positive, ``UnknownName`` for the law or the model.
    """
    chosen = scaling_law(law)
    best = allocate(flops, chosen)
    optimum = f"{best.parameters:.3g} parameters and {best.tokens:.3g} tokens for {flops:.3g} FLOPs"
    said = f"{law} ({chosen.source}): {optimum}"
    name = model or _nearest(best.parameters)
    parameters = load_model(name).parameters
    tokens = tokens_for(flops, parameters)
    made = f"{name} has {parameters:.3g} parameters, so the budget pays for {tokens:.3g} tokens"
    return Scaled(name, tokens, (said, made))


def _nearest(parameters: float) -> str:
    """The shipped dense decoder whose count is nearest, by ratio."""
    dense = [
        m for m in map(load_model, list_models()) if m.architecture == "decoder" and not _experts(m.config)
    ]
    if not dense:
        raise InputError("no shipped model is a dense decoder")
    return min(dense, key=lambda m: (abs(math.log(m.parameters / parameters)), m.name)).name


def _experts(config: object) -> bool:
    return any("expert" in str(key) for key in config) if isinstance(config, dict) else False
