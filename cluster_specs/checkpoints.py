"""How training frameworks save and load their states, as sourced data: ``data/checkpoints.toml``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from cluster_specs.record import Record

Amount = Literal[
    "states",
    "weights",
    "master_weights",
    "optimizer",
    "reloaded",
    "written",
    "largest_shard",
    "largest",
    "all_weights",
    "all_states",
]
"""What memory is counted in; the file says what each is."""


class CheckpointWay(Record):
    """One way to save or to load, and what it takes beside the states, in multiples of amounts."""

    does: Literal["save", "load"]
    way: str
    call: str
    """What one calls for it, or the name of its format."""
    device: Mapping[Amount, float] = {}
    """On each device."""
    host: Mapping[Amount, float] = {}
    """On its host, for each rank."""
    first: Mapping[Amount, float] = {}
    """On the host of the first rank besides."""
    source: str


class CheckpointFamily(Record):
    """Ways of some stacks."""

    name: str
    stacks: tuple[str, ...] = Field(min_length=1)
    ways: tuple[CheckpointWay, ...] = Field(min_length=1)


@cache
def checkpoint_families() -> tuple[CheckpointFamily, ...]:
    """All that are known."""
    text = (files("cluster_specs") / "data" / "checkpoints.toml").read_text(encoding="utf-8")
    return tuple(CheckpointFamily.model_validate(each) for each in tomllib.loads(text)["families"])


def checkpoint_family(stack: str) -> CheckpointFamily | None:
    """That of a stack, by name; None where it is not known."""
    return next((family for family in checkpoint_families() if stack in family.stacks), None)
