"""Why a plan is as it is: the walk that practitioners take, with this job's numbers at every step.

Does one device do? Do memory optimisations make it fit a device, a node? Only then are operators split, inside the
fastest links, and layers, across the slow ones. Every number is the evaluator's.
"""

import textwrap
from collections.abc import Iterator, Sequence

from cluster_specs.software import load_software
from cluster_specs.units import format_bandwidth, format_bytes, format_duration, format_rate, format_seconds
from planner.analysis.economics import economics
from planner.analysis.ladder import Step, steps
from planner.analysis.naming import EXCHANGES
from planner.analysis.questions import known
from planner.analysis.sensitivity import WORTH_NAMING, next_bottleneck, sensitivity
from planner.evaluation.setting import batch_name, caveats_of, describe_trained, graph_of
from planner.models.catalog import counted
from planner.operators import model_flops
from planner.plans import Plan
from planner.search.pooled import stage_list
from planner.search.recommend import set_apart

WIDTH = 80
"""Columns of the text, where nobody says otherwise."""

INDENT = "  "
"""Of sentences under a title."""

MOST_PARTS = 6
"""Parts of the step that are named."""

MOST_ALTERNATIVES = 3


def explain(plan: Plan, width: int = WIDTH) -> str:
    """The decisions behind ``plan``, where its time goes, what binds, what was assumed, why others lost.

    Plain text of some 60 lines of ``width`` columns at most. Raises ``InputError`` for a plan without an estimate.
    """
    return laid_out(paragraphs(plan), width)


def laid_out(lines: Sequence[str], width: int) -> str:
    """`paragraphs` in lines of ``width`` columns at most."""
    return "\n".join(each for line in lines for each in _broken(line, width))


def paragraphs(plan: Plan) -> list[str]:
    """What `explain` says: titles and, indented, sentences under them, of any length."""
    estimate = known(plan)
    devices = " + ".join(f"{pool.num_devices} x {pool.device.name}" for pool in plan.cluster.pools)
    trained, fed = describe_trained(plan.model, plan.job), counted(plan.model)
    return [
        f"{plan.model.name} ({plan.model.parameters / 1e9:.1f}e9 parameters) on {devices}, "
        f"{batch_name(plan.model, plan.job)}. "
        f"{trained + '. ' if trained else ''}A device has {format_bytes(estimate.memory_limit_bytes)}. "
        f"A step takes {format_seconds(estimate.step_time_s)}: {estimate.tokens_per_s:,.0f} {fed}/s, "
        f"{_days(estimate.tokens_per_s)} for 1e12 {fed}.",
        *_walk(plan),
        *_section("Where the time goes", _time(plan)),
        *_section("What binds", _bounds(plan)),
        *_section("What it costs", _costs(plan)),
        *_section("What was assumed", assumptions(plan)),
        *_section("Why not the next best", _alternatives(plan)),
    ]


def _broken(line: str, width: int) -> list[str]:
    """Columns of a line: of a sentence under a title, which is indented, or of any other."""
    return wrapped(line.strip(), width) if line.startswith(INDENT) else textwrap.wrap(line, width) or [""]


def _days(tokens_per_s: float) -> str:
    days = 1e12 / tokens_per_s / 86400
    return f"{days:,.0f} days" if days >= 10 else f"{days:.1f} days"


def _section(title: str, sentences: Iterator[str]) -> Iterator[str]:
    text = [INDENT + sentence for sentence in sentences]
    if text:
        yield ""
        yield title
        yield from text


def wrapped(sentence: str, width: int = WIDTH) -> list[str]:
    """Lines of a sentence under a title."""
    return textwrap.wrap(sentence, width, initial_indent=INDENT, subsequent_indent=2 * INDENT)


def _walk(plan: Plan) -> Iterator[str]:
    if plan.cluster.others or plan.plan.stages_differ:
        yield from _section(
            "Stages, each with devices of its own", iter([stage_list(plan.cluster, plan.plan) + "."])
        )
        return
    for number, question in enumerate(steps(plan), start=1):
        yield ""
        yield f"{number}. {question.title}"
        for step in question.tried:
            yield INDENT + _tried(step)
        if question.remark:
            yield INDENT + question.remark


def _tried(step: Step) -> str:
    estimate = step.estimate
    verdict = "fits" if step.fits else "does not fit"
    exposed = estimate.time.get("data", 0.0) / estimate.step_time_s
    waits = f", {exposed:.0%} of it waiting for data-parallel traffic" if exposed >= 0.01 else ""
    return (
        f"{step.words}: {format_bytes(estimate.memory_bytes)} {verdict}, {format_seconds(estimate.step_time_s)} "
        f"a step{waits}."
    )


def _time(plan: Plan) -> Iterator[str]:
    estimate = known(plan)
    parts = sorted(estimate.time.items(), key=lambda part: -part[1])[:MOST_PARTS]
    yield ", ".join(f"{name.replace('_', ' ')} {s / estimate.step_time_s:.1%}" for name, s in parts) + (
        f" of {format_seconds(estimate.step_time_s)} (MFU {estimate.mfu:.1%}, HFU {estimate.hfu:.1%})."
    )
    graph = graph_of(plan.model, plan.job)
    in_full = estimate.mfu * model_flops(graph, 1, causal=False) / model_flops(graph, 1)
    yield (
        f"MFU counts masked attention as nothing, over a dense peak of {format_rate(estimate.dense_peak)}"
        + (f"; with attention in full it is {in_full:.1%}." if in_full > estimate.mfu else ".")
    )


def _bounds(plan: Plan) -> Iterator[str]:
    estimate = known(plan)
    largest = sorted(estimate.memory.items(), key=lambda part: -part[1])[:3]
    yield (
        f"Memory: {estimate.memory_bytes / estimate.memory_limit_bytes:.0%} of the fullest device "
        f"(pipeline rank {estimate.fullest_stage}, {estimate.peak_phase}), mostly "
        + ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)
        + "."
    )
    worth = [each for each in sensitivity(plan) if each.time_saved_fraction >= WORTH_NAMING]
    if worth:
        found = ", ".join(f"{each.number} {each.time_saved_fraction:.1%}" for each in worth)
        yield f"Time: a tenth better, each would save this much of the step: {found}."
    bottleneck = next_bottleneck(plan)
    if bottleneck is not None:
        yield f"Next bottleneck: with {bottleneck.at_factor:.3g} times the {bottleneck.now}, the {bottleneck.next}."


def _costs(plan: Plan) -> Iterator[str]:
    spent = economics(plan)
    money = "no price is known" if spent.cost is None else f"{spent.cost:,.0f} {spent.currency} at list price"
    yield (
        f"{spent.tokens:.3g} tokens: {format_duration(spent.time_to_train_s)} with failures and checkpoints (goodput "
        f"{spent.goodput:.1%}), {spent.device_hours:,.0f} device-hours, {money}."
    )


def assumptions(plan: Plan) -> Iterator[str]:
    """What the estimate of ``plan`` takes for granted, in sentences."""
    software, device = load_software(plan.job.stack), plan.cluster.device
    low, high = known(plan).step_time_interval_s
    torus = [] if plan.cluster.torus is None else [("torus link", plan.cluster.torus.bandwidth)]
    paths = [*torus, *((link.name, link.bandwidth) for link in plan.cluster.links)]
    links = ", ".join(f"{name} {format_bandwidth(bandwidth)}" for name, bandwidth in paths)
    yield f"Software: {software.name} ({software.summary}); {plan.job.attention} attention, {plan.job.precision}."
    if plan.plan.expert_ranks > 1:
        yield (
            f"Experts: tokens by {EXCHANGES[plan.job.token_exchange]}; the fullest rank gets "
            f"{plan.job.expert_imbalance:g} times the mean (--expert-imbalance)."
        )
    yield (
        f"Rates that last: {device.efficiency.matmul:.0%} of peak in large matrix products, "
        f"{device.efficiency.memory:.0%} of memory bandwidth; links per device, one way: {links or 'none'}."
    )
    yield f"Step time of such runs, four in five: {format_seconds(low)} to {format_seconds(high)}."
    yield from (f"{said[0].upper()}{said[1:]}." for said in caveats_of(plan))
    guesses = [name for name, source in plan.cluster.sources.items() if source.startswith("assumed")]
    if guesses:
        yield f"Not published, assumed: {', '.join(guesses)}."
    yield f"Sources: meshwright clusters {plan.cluster.name}, meshwright models {plan.model.name}."


def _alternatives(plan: Plan) -> Iterator[str]:
    for other in plan.alternatives[:MOST_ALTERNATIVES]:
        yield f"{set_apart(other.plan, plan.plan)}: {other.loses_because}."
    if plan.optimality is not None and plan.optimality.proven:
        done = plan.optimality
        yield f"{done.evaluated:,} plans were priced in full; {done.pruned:,} were excluded by sound bounds."
