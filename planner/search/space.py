"""Which plans are looked at: every combination of degrees and choices that model, cluster, job and pins allow.

The space is stated here and nowhere else, so that "proven best" has a meaning: tensor parallelism inside one
scale-up domain; context parallelism over powers of two that leave `MIN_CONTEXT_TOKENS` per rank; expert
parallelism over divisors of the experts, on data ranks and, in stacks that reuse them, context ranks; any pipeline
that divides the devices, with looped virtual stages, but only for a model that is too large for one scale-up domain
(`searches_pipelines`) or on request;
nothing over axes that the stack lacks (`planner.search.stack_limits`);
micro-batches of powers of two, without a pipeline of any size that divides, up to `most_sequences`; the stack's ZeRO
stages, hybrid sharding inside a node; the recompute policies `SEARCHED_POLICIES`;
the stack's schedules except `BY_PIN_ONLY`, and GPipe only where there is no 1F1B (same bubble, more memory); under
`AUTOMATIC` those as well.
Layers are cut by what the slowest stage takes, with few micro-batches by the simulated step. The best plans of this
space are finished outside of it: boundaries are moved and recomputation relaxed stage by stage, where that makes them
faster. Of adapters, all ranks are data-parallel.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

from cluster_specs.cluster import ClusterSpec
from cluster_specs.software import SoftwareSpec
from planner.evaluation.checks import waits
from planner.evaluation.evaluator import Evaluator
from planner.graph import HEAD_DIMS, Graph, has_scans
from planner.pipeline.generators import refusal, schedule_entry
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Job, Objective, Offload, Pins, Sharding, ZeroStage
from planner.search.candidates import Candidate, Family, parallelism
from planner.search.numbers import divisors, powers_of_two
from planner.search.stack_limits import beyond_stack

MIN_CONTEXT_TOKENS = 2048
"""Shorter pieces of a sequence leave attention kernels too small to be worth context parallelism."""

MAX_VIRTUAL_STAGES = 8
"""More stages per rank only add sends: the bubble is below a percent by then."""

MAX_MICRO_BATCH, MAX_MICRO_BATCH_TOKENS = 32, 2**18
"""Sequences of a micro-batch, or more where they are short: this many tokens keep any kernel busy."""

BY_PIN_ONLY = ("breadth-first", "dualpipev", "interleaved-zb", "zb-h1", "zb-h2", "zb-v")
"""Schedules that are searched only where the schedule is to be found (`AUTOMATIC`), and priced when asked for:
breadth-first holds more activations than interleaved 1F1B for the same bubble, and what a split backward costs in
kernels is not in the cost model."""

SEARCHED_POLICIES = ("none", "selective", "full")
"""The others are habits of some stacks: they are priced when asked for."""

SEPARATOR = ","


def stage_policies(pins: Pins) -> tuple[str, ...]:
    """The policy of each stage; empty where they are not fixed stage by stage."""
    several = pins.recompute is not None and SEPARATOR in pins.recompute
    return tuple(policy.strip() for policy in (pins.recompute or "").split(SEPARATOR)) if several else ()


def commonest(policies: Sequence[str]) -> str:
    """The policy that most stages have; a plan's own."""
    return Counter(policies).most_common(1)[0][0]


def scale_up_size(cluster: ClusterSpec) -> int:
    """Devices that share the fastest links: a node, an NVLink domain, a TPU slice."""
    if cluster.torus is not None or not cluster.links:
        return cluster.devices_per_node
    return min(cluster.links[0].devices, cluster.num_devices)


def device_counts(cluster: ClusterSpec, pins: Pins, objective: Objective) -> list[int]:
    """How many devices a plan may use: all, or any even part of the cluster where fewer are better."""
    fixed = [pins.data, pins.tensor, pins.pipeline, pins.context]
    if all(f is not None for f in fixed):
        return [math.prod(f for f in fixed if f is not None)]
    if objective == "time":
        return [cluster.num_devices]
    whole = [n * cluster.devices_per_node for n in divisors(cluster.nodes)]
    inside = [n for n in divisors(cluster.devices_per_node) if n < cluster.devices_per_node]
    return [*inside, *whole]


PARAMETERS_PER_DEVICE = 2.5e9
"""Above this share of the model on each device of a scale-up domain, pipelines are searched.

At 16 to 18 bytes of states each it is half of an 80 GB device. It is a number of parameters and not of bytes so that
more memory never takes plans away.
"""


NO_PIPELINES = "pipelines, as the model is small for a scale-up domain (--pipeline)"
"""Of what is left out of a space: what `searches_pipelines` says no to."""


def searches_pipelines(evaluator: Evaluator, pins: Pins) -> bool:
    """Whether pipelines are searched: for models that are large for one scale-up domain, or on request.

    For smaller ones memory optimisations and copies of the domain do the job: the order in which practitioners
    decide. A search that finds nothing without pipelines looks at them too.
    """
    if evaluator.job.adapter is not None:
        return False
    if stage_policies(pins) or any(
        p is not None for p in (pins.pipeline, pins.virtual_stages, pins.schedule)
    ):
        return True
    return evaluator.setting.parameters > PARAMETERS_PER_DEVICE * scale_up_size(evaluator.cluster)


def left_out(evaluator: Evaluator, pins: Pins, pipelines: bool) -> tuple[str, ...]:
    """What no candidate is, unless a pin asks for it; ``pipelines`` says whether these were searched."""
    if evaluator.job.adapter is not None:
        return ("model parallelism, which adapters are not planned with",)
    several = evaluator.cluster.num_devices > 1
    table = (
        *((several, words) for words in beyond_stack(evaluator.software)),
        (
            not pipelines and several,
            NO_PIPELINES,
        ),
        (
            pipelines and pins.schedule is None and pins.pipeline != 1,
            f"the schedules {', '.join(BY_PIN_ONLY)} (--schedule)",
        ),
        (
            pins.offload is None and evaluator.cluster.device.host_bandwidth is not None,
            "states or activations on the hosts (--offload)",
        ),
        (
            pins.recompute is None,
            f"recomputation other than {', '.join(SEARCHED_POLICIES)} (--recompute)",
        ),
    )
    return tuple(words for holds, words in table if holds)


def _pinned(options: Iterable[int], pin: int | None) -> list[int]:
    """The pin, if there is one; legality is judged where it is used."""
    return [pin] if pin is not None else list(options)


SPLIT_DIMS = (*HEAD_DIMS, "ffn", "state_groups")
"""Dims that tensor ranks must split evenly, where a model has them.

Source of the last: NVIDIA/Megatron-LM ``megatron/core/ssm/mamba_mixer.py``; arXiv:2405.21060, section 8.1.
"""


def tensor_degrees(graph: Graph, cluster: ClusterSpec) -> list[int]:
    """Tensor-parallel degrees that split heads and feed-forward evenly inside one scale-up domain."""
    dims = [graph.dims[d] for d in SPLIT_DIMS if d in graph.dims]
    return [t for t in divisors(scale_up_size(cluster)) if all(size % t == 0 for size in dims)]


def context_degrees(graph: Graph, seq_len: int) -> list[int]:
    """Context-parallel degrees: the sequence is dealt out in two chunks per rank; recurrences have it whole."""
    if "seq" not in graph.dims or "heads" not in graph.dims or has_scans(graph):
        return [1]
    return [1, *(c for c in powers_of_two(seq_len // MIN_CONTEXT_TOKENS) if c > 1 and seq_len % (2 * c) == 0)]


def _layouts(
    evaluator: Evaluator, pins: Pins, devices: int, pipelines: bool
) -> Iterator[tuple[int, int, int, int, int]]:
    """(data, tensor, pipeline, context, expert) whose product is ``devices``."""
    graph, cluster, job = evaluator.graph, evaluator.cluster, evaluator.job
    experts = graph.dims.get("experts", 1)
    stages = graph.num_layers if pipelines else 1
    for t in _pinned(tensor_degrees(graph, cluster), pins.tensor):
        for c in _pinned(context_degrees(graph, job.seq_len), pins.context):
            if devices % (t * c):
                continue
            rest = devices // (t * c)
            for p in _pinned([p for p in divisors(rest) if p <= stages], pins.pipeline):
                if rest % p or p > graph.num_layers:
                    continue
                d = rest // p
                if (pins.data is not None and d != pins.data) or job.global_batch % d:
                    continue
                for e in _pinned(divisors(experts), pins.expert):
                    if spreads_experts(evaluator, d, c, e):
                        yield d, t, p, c, e


def _data_parallel(
    evaluator: Evaluator, pins: Pins, devices: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """As `_layouts`, of data-parallel ranks alone."""
    if pins.data in (None, devices) and evaluator.job.global_batch % devices == 0:
        yield devices, 1, 1, 1, 1


def spreads_experts(evaluator: Evaluator, data: int, context: int, expert: int) -> bool:
    """Whether experts can be spread over so many ranks: data ranks, and context ranks where a stack reuses those."""
    ranks = data * context if evaluator.software.experts_nearest else data
    return ranks % expert == 0 and evaluator.graph.dims.get("experts", 1) % expert == 0


def _zero_choices(
    evaluator: Evaluator, pins: Pins, d: int, t: int, p: int, c: int
) -> Iterator[tuple[ZeroStage, Sharding, int]]:
    """(ZeRO stage, sharding, shard degree) of a layout."""
    ranks = d * c
    near = math.gcd(ranks, max(1, scale_up_size(evaluator.cluster) // t))
    table: list[tuple[ZeroStage, Sharding, int]] = [
        (0, "NO_SHARD", 1),
        (1, "NO_SHARD", ranks),
        (2, "SHARD_GRAD_OP", ranks),
        (3, "FULL_SHARD", ranks),
        (3, "HYBRID_SHARD", near),
    ]
    for zero, sharding, degree in table:
        if pins.zero_stage is None and pins.sharding is None and zero not in evaluator.software.zero_stages:
            continue
        if zero and ranks == 1 and pins.zero_stage is None and pins.sharding is None:
            continue
        if sharding == "HYBRID_SHARD" and (near in (1, ranks) and pins.sharding != "HYBRID_SHARD"):
            continue
        if pins.zero_stage not in (None, zero) or pins.sharding not in (None, sharding):
            continue
        if brings_weights(zero, ranks) or "weights" not in (pins.offload or ()):
            yield zero, sharding, degree


def brings_weights(zero: ZeroStage, ranks: int) -> bool:
    """Whether a layer's weights are brought when it runs, so that they may be on the host until then."""
    return zero == 3 or (zero == 0 and ranks == 1)


def offloaded(family: Family, offload: tuple[Offload, ...]) -> Family:
    """Those of a family that can leave so much to the host, which do."""
    one = family[0]
    choices = tuple(
        (states, policy)
        for states, policy in family.choices
        if "weights" not in offload or brings_weights(states[0], one.data * one.context)
    )
    return replace(family, choices=choices, offload=offload)


def searched_schedules(software: SoftwareSpec, pins: Pins) -> tuple[str, ...]:
    """The pinned schedule, or those that are looked at; a schedule that is found need not be one of the stack's."""
    if pins.schedule and pins.schedule != AUTOMATIC:
        return (pins.schedule,)
    offered = software.schedules
    usual = tuple(s for s in offered if s not in BY_PIN_ONLY and not (s == "gpipe" and "1f1b" in offered))
    return usual if pins.schedule is None else (*usual, *BY_PIN_ONLY)


def _pipelines(evaluator: Evaluator, pins: Pins, p: int, m: int) -> Iterator[tuple[str, int]]:
    """(schedule, virtual stages) for ``p`` ranks and ``m`` micro-batches."""
    if p == 1 and len(stage_policies(pins)) > 1:
        return
    if p == 1:
        alone = pins.schedule if pins.schedule not in (None, AUTOMATIC) else None
        yield alone or "1f1b", pins.virtual_stages or 1
        return
    for name in searched_schedules(evaluator.software, pins):
        most = min(
            schedule_entry(name).stages_per_rank[1] or MAX_VIRTUAL_STAGES, evaluator.graph.num_layers // p
        )
        for v in _pinned(range(1, most + 1), pins.virtual_stages):
            if name == "interleaved" and v == 1 and pins.schedule in (None, AUTOMATIC):
                continue  # that is 1f1b
            if len(stage_policies(pins)) not in (0, v * p):
                continue
            if v * p <= evaluator.graph.num_layers and not refusal(name, p, v, m):
                yield name, v


def most_sequences(job: Job) -> int:
    """The largest micro-batch that is looked at."""
    return max(MAX_MICRO_BATCH, MAX_MICRO_BATCH_TOKENS // job.seq_len)


def micro_batches(job: Job, data: int, pipeline: int, pins: Pins) -> list[int]:
    """Micro-batch sizes that cut a data rank's share of the batch evenly."""
    share, most = job.global_batch // data, most_sequences(job)
    usual = divisors(share) if pipeline == 1 else powers_of_two(share)
    return [b for b in _pinned((b for b in usual if b <= most), pins.micro_batch) if share % b == 0]


def policies(pins: Pins) -> tuple[str, ...]:
    """Rematerialisation policies that are looked at."""
    if stage_policies(pins):
        return (commonest(stage_policies(pins)),)
    return (pins.recompute,) if pins.recompute else SEARCHED_POLICIES


def candidates(
    evaluator: Evaluator, pins: Pins, objective: Objective, pipelines: bool | None = None
) -> Iterator[Candidate]:
    """Every point of the space, in a fixed order; ``pipelines`` None leaves them to `searches_pipelines`."""
    return chain.from_iterable(families(evaluator, pins, objective, pipelines))


def families(
    evaluator: Evaluator, pins: Pins, objective: Objective, pipelines: bool | None = None
) -> Iterator[Family]:
    """The same, those together that differ only in how states are sharded and what is recomputed."""
    pipelines = searches_pipelines(evaluator, pins) if pipelines is None else pipelines
    offload = pins.offload or ()
    for devices in device_counts(evaluator.cluster, pins, objective):
        layouts = _layouts(evaluator, pins, devices, pipelines)
        if evaluator.job.adapter is not None:
            layouts = _data_parallel(evaluator, pins, devices)
        for d, t, p, c, e in layouts:
            choices = tuple(product(_zero_choices(evaluator, pins, d, t, p, c), policies(pins)))
            for b in micro_batches(evaluator.job, d, p, pins):
                m = evaluator.job.global_batch // (d * b)
                for schedule, v in _pipelines(evaluator, pins, p, m) if choices else ():
                    family = Family((d, t, p, c, e, v, b, m), choices, schedule, offload)
                    yield from _stepped(evaluator, family)


def _stepped(evaluator: Evaluator, family: Family) -> Iterator[Family]:
    """Those of a family whose weights can be stepped when the job says, where there are any."""
    if not evaluator.job.step_in_backward:
        yield family
        return
    pairs = zip(family, family.choices, strict=True)
    if found := [choice for one, choice in pairs if not waits(parallelism(one), evaluator.software)]:
        yield replace(family, choices=tuple(found))
