"""What a model is, before it is a graph: a Hugging Face configuration, or a graph given by the user."""

from collections.abc import Mapping
from typing import Any, Literal

from cluster_specs.record import Record
from planner.graph import Graph


class Model(Record):
    """A model by its configuration (``family`` builds the graph) or by its ``graph``."""

    name: str
    family: str
    """Key of ``planner.models.families.FAMILIES``: the Hugging Face ``model_type``; ``graph`` for a graph."""
    config: Mapping[str, Any] = {}
    """Keys of the family's config.json that shape the model."""
    graph: Graph | None = None
    parameters: int = 0
    """Exact count, tied weights once."""
    architecture: Literal["decoder", "encoder", "encoder-decoder", "other"] = "other"
    source: str = ""
    notes: tuple[str, ...] = ()
    """What its file says that training does not follow."""
