"""How a compute budget divides into parameters and tokens, by a published law: an input, not an opinion.

Laws of the form ``L(N, D) = E + A / N^alpha + B / D^beta``; tables in ``data/scaling_laws.toml``.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cluster_specs.errors import InputError, UnknownName
from cost_models.constants import constants

FLOPS_PER_PARAMETER_TOKEN = 6.0
"""Forward and backward of dense layers, attention scores apart (arXiv:2001.08361, section 2.1)."""


class ScalingLaw(NamedTuple):
    """One law with its source."""

    name: str
    a: float
    alpha: float
    b: float
    beta: float
    irreducible: float
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Predicted loss [nats per token]."""
        return float(self.irreducible + self.a / parameters**self.alpha + self.b / tokens**self.beta)


class Allocation(NamedTuple):
    """Parameters and tokens for a budget of FLOPs."""

    parameters: float
    tokens: float


def scaling_laws() -> Mapping[str, ScalingLaw]:
    """All laws by name."""
    table = constants("scaling_laws")
    sources = table["sources"]
    return {
        name: ScalingLaw(name=name, source=sources[f"{name}.*"], **fields)
        for name, fields in table.items()
        if name != "sources"
    }


def scaling_law(name: str) -> ScalingLaw:
    """The law of this name; raises ``UnknownName``."""
    laws = scaling_laws()
    if name not in laws:
        raise UnknownName("scaling law", name, laws)
    return laws[name]


def allocate(flops: float, law: ScalingLaw) -> Allocation:
    """The parameters and tokens that give the least loss for ``flops`` of training.

    ``N = G (C/6)^(beta/(alpha+beta))`` with ``G = (alpha A / (beta B))^(1/(alpha+beta))``, ``D = C / (6 N)``.
    Raises ``InputError`` for a budget that is not positive. Source: arXiv:2203.15556, equation 4.
    """
    if not flops > 0:
        raise InputError(f"a compute budget is a positive number of FLOPs, found {flops:g}")
    both = law.alpha + law.beta
    scale = (law.alpha * law.a / (law.beta * law.b)) ** (1 / both)
    parameters = scale * (flops / FLOPS_PER_PARAMETER_TOKEN) ** (law.beta / both)
    return Allocation(parameters, tokens_for(flops, parameters))


def tokens_for(flops: float, parameters: float) -> float:
    """Tokens on which a model of ``parameters`` can be trained for ``flops``: ``D = C / (6 N)``."""
    return flops / (FLOPS_PER_PARAMETER_TOKEN * parameters)
