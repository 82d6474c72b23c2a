"""What is derived by value while plans are priced, kept for the next evaluator to which it applies.

Prices of blocks and stages hang on the model, the job, the devices and the links between them, and not on how many
nodes there are, on the global batch, on names or on money. Evaluators that agree in the former share one `Kept`, so a
sweep over counts prices each block once. Nothing in it depends on what was asked before: an answer is the same with
and without.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sized
from typing import Any, NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import BlockCost
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.states import Sync
from planner.evaluation.terms import Assignment, BlockTerms
from planner.evaluation.units import TimedUnit, UnitCost
from planner.models.model import Model
from planner.plans import Job
from planner.sharding.costs import EdgeCost, OpCost
from planner.sharding.mesh import Mesh
from planner.sharding.pricing import Pricer

Key = tuple[object, ...]
Ends = tuple[str, ...]
"""Embedding, head or both, by the names of their blocks."""

MOST_KEPT = 8
"""Kinds of evaluators whose prices are kept."""

MOST_ENTRIES = 1_000_000
"""Of one `Kept`, less than a gigabyte; a fuller one is dropped."""

NO_PRICE_DEPENDS_ON = {"name", "price", "sources", "nodes", "links", "others", "between"}
"""Fields of a cluster; its links come into `fabric` as groups see them."""


class Known(NamedTuple):
    """Stages of any shape that are otherwise alike, and the blocks that they are made of."""

    stages: dict[StageShape, StageCost]
    units: dict[tuple[str, str, Ends], TimedUnit]
    """By block, policy and the ends beside it that keep weights of it."""


class Kept:
    """Tables by value. Whoever fills them says in the key all that the entry depends on."""

    def __init__(self) -> None:
        """Nothing is priced yet."""
        self.meshes: dict[Key, Mesh] = {}
        self.pricers: dict[Key, Pricer] = {}
        self.prices: dict[Key, OpCost | EdgeCost] = {}
        self.derived: dict[Key, Any] = {}
        """Legal strategies, tabulated prices, kept tensors."""
        self.terms: dict[Key, BlockTerms] = {}
        self.blocks: dict[Key, BlockCost] = {}
        self.syncs: dict[Key, Sync] = {}
        self.units: dict[Key, UnitCost] = {}
        self.stages: dict[Key, Known] = {}
        """By all that is not a stage's shape."""
        self.held: dict[int, object] = {}
        """Objects by ``id``, where that stands for them in a key."""
        self.batch_only: dict[int, bool] = {}
        self.written: dict[Key, Mapping[str, Assignment]] = {}
        """Assignments by value, so that equal ones are one object."""
        self.searched: dict[str, dict[Key, Any]] = {}
        """What searches derive, by name."""

    @property
    def entries(self) -> int:
        """How much is kept."""
        flat: list[Sized] = [self.prices, self.derived, self.terms, self.blocks, self.syncs, self.units]
        nested: list[Sized] = [table for known in self.stages.values() for table in known]
        nested += self.searched.values()
        return sum(map(len, [*flat, *nested]))

    def searched_as(self, name: str) -> dict[Key, Any]:
        """The table of a search under this name."""
        return self.searched.setdefault(name, {})


_kept: OrderedDict[str, Kept] = OrderedDict()
_one_at_a_time = threading.Lock()


def kept_for(model: Model, cluster: ClusterSpec, job: Job, software: SoftwareSpec) -> Kept:
    """The tables of all evaluators whose prices are the same; new ones where there are none, or too large ones."""
    asked = {
        "model": model.model_dump(mode="json", exclude={"source"}),
        "fabric": fabric(cluster),
        "job": job.model_dump(mode="json", exclude={"global_batch", "memory_headroom"}),
        "software": software.model_dump(mode="json", exclude={"sources"}),
    }
    key = json.dumps(asked, sort_keys=True)
    with _one_at_a_time:
        found = _kept.pop(key, None)
        if found is None or found.entries > MOST_ENTRIES:
            found = Kept()
        _kept[key] = found
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found


def forget() -> None:
    """Drop everything that is kept."""
    with _one_at_a_time:
        _kept.clear()


def fabric(cluster: ClusterSpec) -> dict[str, Any]:
    """All of one pool on which the price of a plan depends that it has room for."""
    found = cluster.model_dump(mode="json", exclude=NO_PRICE_DEPENDS_ON)
    links = [link.model_dump(mode="json", exclude={"name"}) for link in cluster.links]
    for link in links:
        # A tier that joins all devices does so however many there are, unless each pair has its own cable.
        if link["devices"] >= cluster.num_devices and not link["full_mesh"]:
            link["devices"] = None
    return found | {"links": links, "nodes": cluster.nodes if cluster.torus is not None else None}
