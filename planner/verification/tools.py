"""The frameworks that can verify a plan, as one table."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planner.errors import UnknownName, Unsupported
from planner.plans import Plan
from planner.verification.record import Verification
from planner.verification.with_jax import verify_with_jax
from planner.verification.with_torch import verify_with_torch
from planner.verification.with_xla import verify_with_xla

TOOLS: Mapping[str, Callable[[Plan, str | None], Verification]] = MappingProxyType(
    {"jax": verify_with_jax, "torch": verify_with_torch, "xla-tpu": verify_with_xla}
)
"""Tool -> function of a plan and the interpreter that has the framework (None: this one)."""


def verify(plan: Plan, tool: str, python: str | None = None) -> Verification:
    """Run or compile the exported ``plan`` with ``tool`` (a key of `TOOLS`), and compare.

    Raises ``UnknownName`` for the tool, ``InputError`` where its packages are missing or it has nothing to say of
    the plan, ``Unsupported`` for adapters, ``ProgramFailed`` where the framework raises an error.
    """
    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    if plan.job.adapter is not None:
        raise Unsupported("verify trains whole models: plan without --lora to verify how states are sharded")
    return TOOLS[tool](plan, python)
