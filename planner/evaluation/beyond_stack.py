"""What a plan asks of its software that this does not have: the time is then that of a stack that does."""

from collections.abc import Iterator

from cluster_specs.cluster import ClusterSpec
from cluster_specs.software import SoftwareSpec
from cluster_specs.usual_stacks import device_family, lacking_axes, runs_on
from planner.pipeline.generators import is_written_out, schedule_label, splits_backward
from planner.plans import Parallelism


def devices_beyond(cluster: ClusterSpec, software: SoftwareSpec) -> Iterator[str]:
    """Devices that the stack does not run on, in sentences."""
    for device in {pool.device.name: pool.device for pool in cluster.pools}.values():
        if not runs_on(software, device):
            yield (
                f"{software.name} does not run on {device.name} (but on {' and '.join(software.runs_on)}): its time is "
                "of a stack that does"
            )
    yield from families_beyond(cluster, software)


def families_beyond(cluster: ClusterSpec, software: SoftwareSpec) -> Iterator[str]:
    """Devices of several families in one job, in a sentence; which stacks take them is assumed: none is known to."""
    families = dict.fromkeys(device_family(pool.device) for pool in cluster.pools)
    if len(families) > 1:
        yield (
            f"{software.name} is not known to train on {' and '.join(families)} devices in one job: its time is of a "
            "stack that does"
        )


def choices_beyond(plan: Parallelism, software: SoftwareSpec) -> Iterator[str]:
    """Axes, ZeRO stages and schedules that the stack does not have, in sentences."""
    for axis in lacking_axes(software):
        if getattr(plan, axis) > 1:
            yield f"{software.name} has no {axis} ranks: its time is of a stack that does"
    if plan.shard_degree > 1 and plan.zero_stage not in software.zero_stages:
        stages = ", ".join(map(str, software.zero_stages))
        yield f"{software.name} has no ZeRO {plan.zero_stage} (but {stages}): its time is of a stack that does"
    named = plan.pipeline > 1 and not is_written_out(plan.schedule)
    if named and plan.schedule not in software.schedules:
        schedules = ", ".join(software.schedules)
        yield f"{software.name} has no schedule {plan.schedule} (but {schedules}): its time is of a stack that does"
    if software.split_stack and plan.pipeline > 1 and splits_backward(plan.schedule):
        yield (
            f"{schedule_label(plan.schedule)} splits backwards, which {software.name} can do only as "
            f"{software.split_stack}: plan with --stack {software.split_stack} for its time"
        )
