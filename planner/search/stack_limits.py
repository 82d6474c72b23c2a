"""What a stack cannot do is refused where it was asked for, and left out of the space where it was not."""

from collections.abc import Iterator

from cluster_specs.cluster import ClusterSpec
from cluster_specs.software import SoftwareSpec
from cluster_specs.usual_stacks import device_family, lacking_axes, runs_on, usual_stack
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.plans import Pins


def check_stack(evaluator: Evaluator, pins: Pins) -> None:
    """Refuse devices that the stack does not run on, and pinned axes over which it splits nothing.

    Raises ``InputError``.
    """
    software = evaluator.software
    check_devices(evaluator.whole, software)
    for axis in lacking_axes(software):
        degree = getattr(pins, axis) or 1
        if degree > 1:
            raise InputError(
                f"--{axis} {degree}: stack {software.name} has no {axis} ranks (it splits over "
                f"{' and '.join(('data', *software.splits))}); leave it out, or use a --stack that has them"
            )


def check_devices(cluster: ClusterSpec, software: SoftwareSpec) -> None:
    """Refuse devices that the stack does not run on; raises ``InputError``."""
    for device in (pool.device for pool in cluster.pools):
        if not runs_on(software, device):
            raise InputError(
                f"stack {software.name} runs on {' and '.join(software.runs_on)}, not on {device.name} "
                f"({device_family(device)}): use --stack {usual_stack(device)}, or another that `meshwright stacks` "
                "lists for it"
            )


def within_stack(evaluator: Evaluator, pins: Pins) -> Pins:
    """The pins, and nothing split over axes that the stack lacks."""
    return pins.model_copy(update=dict.fromkeys(lacking_axes(evaluator.software), 1))


def beyond_stack(software: SoftwareSpec) -> Iterator[str]:
    """Of what is left out of a space: the axes that the stack lacks."""
    if lacking := lacking_axes(software):
        yield f"{', '.join(lacking)} ranks, which {software.name} does not have (--stack)"
