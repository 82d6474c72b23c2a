"""Parts of a cluster among whose devices batch, layers and heads divide better than among all."""

from collections.abc import Iterator

from cluster_specs.changes import resized
from cluster_specs.cluster import ClusterSpec
from planner.search.numbers import rounder


def rounder_clusters(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    """Fewer of its nodes, then all nodes with fewer devices of each, the most of both first.

    None of pools, nor of tori, which are looked at whole.
    """
    if cluster.others or cluster.torus is not None:
        return
    for nodes in rounder(cluster.nodes):
        yield cluster.model_copy(update={"nodes": nodes})
    for devices in rounder(cluster.devices_per_node):
        yield resized(cluster, cluster.name.partition(":")[0], cluster.nodes, devices)


def said(part: ClusterSpec, cluster: ClusterSpec) -> str:
    """``part`` of ``cluster`` in words."""
    if part.devices_per_node == cluster.devices_per_node:
        return f"{part.nodes} of the {cluster.nodes} nodes"
    return f"{part.devices_per_node} of the {cluster.devices_per_node} devices of each node ({part.name})"
