"""Small pools of unlike devices, and every way to cut a model over them."""

from itertools import pairwise, product

from cluster_specs.catalog import load_cluster, what_if
from cluster_specs.cluster import ClusterSpec
from cluster_specs.pools import join
from planner.search.unequal import Combination, Stage, UnequalSearch


def pair(name: str) -> ClusterSpec:
    """One node of two devices."""
    return what_if(load_cluster(name), {"devices_per_node": 2})


def mixed() -> ClusterSpec:
    """Two A100 and two H100."""
    return join([pair("dgx-a100-80g"), pair("dgx-h100")], None, "mixed")


def tight(cluster: ClusterSpec, gib: float) -> ClusterSpec:
    return what_if(cluster, {"device.memory": gib * 2**30})


def slowly_joined(cluster: ClusterSpec) -> ClusterSpec:
    """With a tenth of the bandwidth inside a node."""
    near, *others = cluster.links
    links = (near.model_copy(update={"bandwidth": near.bandwidth / 10}), *others)
    return cluster.model_copy(update={"links": links})


def every_cut(search: UnequalSearch, combination: Combination):
    """Every way to cut the layers and fill the pools in order."""
    submeshes = search.submeshes(combination)
    layers = search.evaluator.graph.num_layers
    pools = [search.prices[k].evaluator.cluster.num_devices for k in combination.order]
    for num_stages in range(1, layers + 1):
        for chosen in product(range(len(submeshes)), repeat=num_stages):
            used = [submeshes[k] for k in chosen]
            sums = [sum(s.size for s in used if s.pool == i) for i in range(len(pools))]
            if sums != pools or [s.pool for s in used] != sorted(s.pool for s in used):
                continue
            for ends in product(range(1, layers), repeat=num_stages - 1):
                if all(a < b for a, b in pairwise((0, *ends, layers))):
                    yield tuple(Stage(end, k) for end, k in zip((*ends, layers), chosen, strict=True))
