"""Meshwright: how to train a model on a cluster, answered before an accelerator is touched.

Everything below is loaded when it is first used, so that ``import planner`` costs nothing.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster_specs.catalog import list_clusters as list_clusters
    from cluster_specs.catalog import load_cluster as load_cluster
    from cluster_specs.catalog import what_if as what_if
    from cluster_specs.cluster import ClusterSpec as ClusterSpec
    from cluster_specs.errors import InputError as InputError
    from planner.analysis import Comparison as Comparison
    from planner.analysis import FitReport as FitReport
    from planner.analysis.economics import Economics as Economics
    from planner.analysis.economics import Terms as Terms
    from planner.analysis.economics import economics as economics
    from planner.api import compare as compare
    from planner.api import evaluate as evaluate
    from planner.api import explain as explain
    from planner.api import export as export
    from planner.api import fit as fit
    from planner.api import load_model as load_model
    from planner.api import plan as plan
    from planner.api import read_plan as read_plan
    from planner.api import validate as validate
    from planner.errors import Infeasible as Infeasible
    from planner.graph import Graph as Graph
    from planner.models.adapters import Adapter as Adapter
    from planner.models.catalog import build_graph as build_graph
    from planner.models.catalog import list_models as list_models
    from planner.models.model import Model as Model
    from planner.plans import Estimate as Estimate
    from planner.plans import Job as Job
    from planner.plans import Parallelism as Parallelism
    from planner.plans import Pins as Pins
    from planner.plans import Plan as Plan
    from planner.tracing.program import Program as Program
    from planner.tracing.reading.from_jax import from_jax as from_jax
    from planner.tracing.reading.from_torch import from_torch as from_torch
    from planner.tracing.reading.jax_attention import join_attention as join_attention
    from planner.tracing.sharded import ShardedProgram as ShardedProgram
    from planner.tracing.solving.shard import shard as shard
    from planner.training.jax_trees import jax_shardings as jax_shardings
    from planner.training.jax_trees import logical_axis_rules as logical_axis_rules
    from planner.training.monitor import Monitor as Monitor
    from planner.training.planning import plan_for as plan_for

_HOMES = MappingProxyType(
    {
        "cluster_specs.catalog": ("list_clusters", "load_cluster", "what_if"),
        "cluster_specs.cluster": ("ClusterSpec",),
        "cluster_specs.errors": ("InputError",),
        "planner.analysis": ("Comparison", "FitReport"),
        "planner.analysis.economics": ("Economics", "Terms", "economics"),
        "planner.api": (
            "compare",
            "evaluate",
            "explain",
            "export",
            "fit",
            "load_model",
            "plan",
            "read_plan",
            "validate",
        ),
        "planner.errors": ("Infeasible",),
        "planner.graph": ("Graph",),
        "planner.models.adapters": ("Adapter",),
        "planner.models.catalog": ("build_graph", "list_models"),
        "planner.models.model": ("Model",),
        "planner.plans": ("Estimate", "Job", "Parallelism", "Pins", "Plan"),
        "planner.tracing.reading.from_jax": ("from_jax",),
        "planner.tracing.reading.from_torch": ("from_torch",),
        "planner.tracing.reading.jax_attention": ("join_attention",),
        "planner.tracing.program": ("Program",),
        "planner.tracing.sharded": ("ShardedProgram",),
        "planner.tracing.solving.shard": ("shard",),
        "planner.training.jax_trees": ("jax_shardings", "logical_axis_rules"),
        "planner.training.monitor": ("Monitor",),
        "planner.training.planning": ("plan_for",),
    }
)
"""Module -> public names that live there."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, loaded from its module on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
