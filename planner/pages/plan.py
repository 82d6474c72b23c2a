"""The page of one plan, for who decides: what to run, what it gives, where time and memory go, what it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster_specs.software import load_software
from cluster_specs.units import format_bytes, format_duration, format_rate, format_seconds
from planner.analysis.economics import Economics, Terms, economics
from planner.analysis.guide import assumptions
from planner.analysis.questions import known
from planner.analysis.replicas import scaling
from planner.analysis.sensitivity import sensitivity
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.operators import operator_costs
from planner.evaluation.setting import batch_name
from planner.evaluation.timeline import StepTimeline, step_timeline
from planner.models.catalog import counted
from planner.pages import page
from planner.pages.charts import chart_data, chart_scripts
from planner.pages.plan_figures import (
    contenders_figure,
    memory_figure,
    roofline_figure,
    scaling_figure,
    sensitivity_figure,
    time_figure,
)
from planner.pages.timeline import drawing, drawing_data, drawing_script
from planner.plans import Estimate, Plan
from planner.report.plans import describe_choices, optimality_statement
from planner.report.sweeps import format_money

MOST_ACTIONS = 40_000
"""Actions of a pipeline that are drawn; they take about a megabyte."""


class Content(NamedTuple):
    """What is on the page, before it is HTML."""

    plan: Plan
    """With its estimate."""
    assumed: tuple[str, ...]
    step: StepTimeline
    figures: tuple[page.Figure, ...]
    economics: Economics


def plan_content(
    plan: Plan, assumed: Sequence[str] = (), terms: Terms | None = None, around: bool = True
) -> Content:
    """Everything that the page of ``plan`` shows, and what had to be ``assumed`` to make the plan.

    ``terms`` are those of the training run that the plan is for: tokens, prices, failures. Without ``around`` it leaves
    out what the plan would do on other hardware, which takes a dozen more estimates. Raises ``InputError`` for a plan
    without an estimate.
    """
    estimate = known(plan)
    evaluator = Evaluator(plan.model, plan.cluster, plan.job)
    step = step_timeline(evaluator, plan.plan)
    drawn = [memory_figure(step), time_figure(estimate)]
    if around:
        drawn.append(sensitivity_figure(sensitivity(plan)))
    drawn.append(roofline_figure(operator_costs(evaluator, plan.plan), plan.cluster, plan.job.precision))
    grown = scaling(plan) if around else ()
    if len(grown) > 1:
        drawn.append(scaling_figure(grown, plan.cluster.num_devices))
    if plan.alternatives:
        drawn.append(contenders_figure(plan, estimate))
    return Content(plan, tuple(assumed), step, tuple(drawn), economics(plan, terms))


def plan_page(content: Content) -> str:
    """The page, self-contained."""
    pipeline = [drawing_script()] if content.plan.plan.pipeline > 1 else []
    scripts = [*plan_data(content), *chart_scripts(), *pipeline]
    return page.document(title(content.plan), plan_body(content), scripts)


def title(plan: Plan) -> str:
    """Model, cluster and job in a line."""
    job, cluster = plan.job, plan.cluster
    batch = batch_name(plan.model, job)
    return f"{plan.model.name} on {cluster.name} ({cluster.num_devices:,} devices), {batch}, {job.precision}"


def plan_data(content: Content) -> list[str]:
    """Data of the page's charts, and of the pipeline where there is one."""
    pipeline = [drawing_data(content.step, MOST_ACTIONS)] if content.plan.plan.pipeline > 1 else []
    return [chart_data(content.figures), *pipeline]


def plan_body(content: Content) -> Iterator[str]:
    """The page below its title, part by part."""
    plan, estimate = content.plan, known(content.plan)
    yield _verdict(estimate)
    yield page.cards([*_headlines(estimate, counted(plan.model)), _run(content.economics)])
    yield page.heading("What to run")
    yield page.facts(describe_choices(plan))
    yield page.figures(content.figures)
    if plan.plan.pipeline > 1:
        yield drawing(content.step, MOST_ACTIONS)
    yield from _reasons(plan)
    yield from _foundations(plan, content.assumed, content.economics)


def _verdict(estimate: Estimate) -> str:
    used, limit = format_bytes(estimate.memory_bytes), format_bytes(estimate.memory_limit_bytes)
    if estimate.fits:
        return page.paragraph(f"It fits: the fullest device needs {used} of {limit}.", "good")
    return page.paragraph(f"It does not fit: the fullest device needs {used} and has {limit}.", "bad")


def _headlines(estimate: Estimate, fed: str) -> Iterator[tuple[str, str, str]]:
    low, high = map(format_seconds, estimate.step_time_interval_s)
    yield "Step time", format_seconds(estimate.step_time_s), f"80 % of such runs: {low} to {high}"
    per_device = f"{estimate.tokens_per_s_per_device:,.0f} per device"
    yield "Throughput", f"{estimate.tokens_per_s:,.0f} {fed}/s", per_device
    rate = format_rate(estimate.model_flops_per_s_per_device)
    yield "MFU", f"{estimate.mfu:.1%}", f"HFU {estimate.hfu:.1%}; {rate} of model per device"
    share = f"{estimate.memory_bytes / estimate.memory_limit_bytes:.0%} of the device, peak in {estimate.peak_phase}"
    yield "Memory", format_bytes(estimate.memory_bytes), share
    yield "Bubble", f"{estimate.bubble_fraction:.1%}", "of the pipeline's time its busiest rank waits"


def _run(spent: Economics) -> tuple[str, str, str]:
    money = f", {format_money(spent.cost)} {spent.currency}" if spent.cost is not None else ""
    train = format_duration(spent.time_to_train_s)
    return (
        f"{page.count(spent.tokens)} tokens",
        f"{train}{money}",
        f"failures included; goodput {spent.goodput:.1%}",
    )


def _reasons(plan: Plan) -> Iterator[str]:
    reasons = [plan.explanation] if plan.explanation else []
    if plan.optimality is not None:
        reasons.append(optimality_statement(plan.optimality))
    if reasons:
        yield page.heading("Why this plan")
        yield from map(page.paragraph, reasons)
    if plan.warnings:
        yield page.heading("Warnings")
        yield from page.sentences(plan.warnings)


def _foundations(plan: Plan, assumed: Sequence[str], spent: Economics) -> Iterator[str]:
    """What the numbers rest on: assumptions, then every source."""
    yield page.heading("Assumptions")
    yield from map(page.paragraph, assumptions(plan))
    if assumed:
        yield page.paragraph(f"Not said in the run, so assumed: {', '.join(assumed)}.")
    yield from page.sentences(spent.unknown)
    yield page.heading("Sources")
    software = load_software(plan.job.stack)
    origins: Mapping[str, Mapping[str, str]] = {
        "model": {plan.model.name: plan.model.source or "given by the user"},
        plan.cluster.name: plan.cluster.sources,
        software.name: software.sources,
        "training run": {name.replace("_", " "): text for name, text in spent.assumed.items()},
    }
    rows = [(group, what, origin) for group, named in origins.items() for what, origin in named.items()]
    yield (
        f"<details><summary>Where {len(rows)} facts come from</summary>"
        f"{page.table(page.Table(('of', 'fact', 'source'), tuple(rows), prose=True))}</details>"
    )
