"""One point of the space of plans, and those that have most in common with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from planner.pipeline.generators import schedule_entry
from planner.plans import Offload, Parallelism, Sharding, ZeroStage


class Candidate(NamedTuple):
    """One point of the space, before layers are cut into stages."""

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    virtual_stages: int
    micro_batch: int
    num_microbatches: int
    zero_stage: ZeroStage
    sharding: Sharding
    shard_degree: int
    recompute: str
    schedule: str
    offload: tuple[Offload, ...] = ()
    lean: bool = False
    """Operators are split to keep the fewest activations instead of to be fastest."""

    @property
    def num_devices(self) -> int:
        """Devices used."""
        return self.data * self.tensor * self.pipeline * self.context


Choice = tuple[tuple[ZeroStage, Sharding, int], str]
"""How states are sharded (ZeRO stage, sharding, shard degree), and what is recomputed."""


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates that differ only in how states are sharded and what is recomputed.

    Each is made when it is asked for: most families are excluded by what their candidates have in common.
    """

    degrees: tuple[int, int, int, int, int, int, int, int]
    """Of a `Candidate`, up to its micro-batches."""
    choices: tuple[Choice, ...]
    schedule: str
    offload: tuple[Offload, ...]

    def __len__(self) -> int:
        """How many they are."""
        return len(self.choices)

    def __getitem__(self, index: int) -> Candidate:
        """One of them."""
        states, policy = self.choices[index]
        return Candidate(*self.degrees, *states, policy, self.schedule, self.offload)

    def __iter__(self) -> Iterator[Candidate]:
        """All of them, in the order of the space."""
        return map(self.__getitem__, range(len(self)))

    @property
    def policies(self) -> set[str]:
        """What they recompute."""
        return {policy for _, policy in self.choices}

    def under(self, policy: str) -> list[Candidate]:
        """Those that recompute so."""
        return [self[n] for n, (_, own) in enumerate(self.choices) if own == policy]


@lru_cache(maxsize=1 << 12)
def parallelism(candidate: Candidate) -> Parallelism:
    """The candidate as the record that the evaluator prices; stages are added to the winners only."""
    c = candidate
    return Parallelism.model_construct(
        data=c.data,
        tensor=c.tensor,
        pipeline=c.pipeline,
        context=c.context,
        expert=c.expert,
        virtual_stages=c.virtual_stages,
        micro_batch=c.micro_batch,
        num_microbatches=c.num_microbatches,
        zero_stage=c.zero_stage,
        sharding=c.sharding,
        shard_degree=c.shard_degree,
        replicate_degree=max(1, c.data * c.context // c.shard_degree),
        sequence_parallel=True,
        recompute=c.recompute,
        schedule=c.schedule,
        stages=(),
        offload=c.offload,
    )


def splits_backward(c: Candidate) -> bool:
    """Whether the candidate's pipeline makes gradients of inputs and of weights in passes of their own."""
    return c.pipeline > 1 and schedule_entry(c.schedule).splits_backward


def alternates(c: Candidate) -> bool:
    """Whether the candidate's pipeline has every stage once, and whole backwards."""
    return schedule_entry(c.schedule).copies == 1 and not splits_backward(c)
