"""The exported JAX module trains a small model of the plan's structure, on simulated devices, as one device does."""

from planner.exporters.jax import FILE, to_jax
from planner.exporters.placements import layout_of
from planner.plans import Plan
from planner.verification.arrays import task_of
from planner.verification.miniature import scaled_down
from planner.verification.process import QUICKLY_COMPILED, run_program
from planner.verification.record import Verification, training_checks

DEVICES = 8


def verify_with_jax(plan: Plan, python: str | None = None) -> Verification:
    """Train a small model for two steps under the exported shardings; losses and parameters must be one device's.

    Raises ``Unsupported`` where JAX's exporter refuses the plan or the program the model, else as `run_program`.
    """
    to_jax(plan)
    small, left_out = scaled_down(plan, DEVICES)
    task = task_of(layout_of(small, "jax"), small) | {"dtype": "float32"}
    flags = (f"--xla_force_host_platform_device_count={small.plan.num_devices}", *QUICKLY_COMPILED)
    environment = {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    files = {FILE: to_jax(small)[FILE]}
    found = run_program("jax_check", files, task, ("jax",), python, environment=environment)
    axes = ", ".join(
        f"{axis} {getattr(small.plan, axis)}" for axis in ("data", "tensor", "context", "expert")
    )
    return Verification(
        tool="jax",
        versions=(f"jax {found['version']}",),
        what=f"a small model of the structure of {plan.model.name} on {found['devices']} CPU devices ({axes})",
        checks=training_checks(found),
        notes=(
            *left_out,
            "in fp32 with SGD, where a wrong scale of a gradient shows; sizes and speed are not checked here",
        ),
    )
