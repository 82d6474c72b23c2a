"""Layers in a loop of groups in a loop, under policies: memory is what XLA takes, work what the policy asks."""

from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from plain_programs import f  # noqa: E402

from planner import from_jax, shard  # noqa: E402
from planner.tracing.program import Program, elements  # noqa: E402

pytestmark = pytest.mark.jax
GROUPS, LAYERS, WIDTH, ROWS, LENGTH = 4, 4, 64, 8, 32


def again(policy: Any = None) -> Callable[[Any], Any]:
    return lambda body: jax.checkpoint(body, policy=policy)


def plain(body: Any) -> Any:
    return body


def case(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> tuple[Any, ...]:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def group(x: Any, layers: Any) -> tuple[Any, None]:
        return jax.lax.scan(inner(layer), x, layers)[0], None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jax.lax.scan(outer(group), x, p)[0] - y) ** 2).mean()

    up, down = ((GROUPS, LAYERS, *sides) for sides in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))
    x = f(ROWS, LENGTH, WIDTH)
    return jax.value_and_grad(loss), {"up": f(*up), "down": f(*down)}, x, x


def products(program: Program) -> float:
    """Work, as a multiple of the forward pass's."""
    forward = 2 * ROWS * LENGTH * WIDTH * 4 * WIDTH * GROUPS * LAYERS
    return sum(elements(op.sizes) * op.times for op in program.operations if op.kind == "product") / forward


QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Memory is the same, and compiled in less time."""

DOTS = jax.checkpoint_policies.dots_saveable
CASES = {
    "nothing": (plain, plain, 3),
    "layers": (plain, again(), 3.5),  # of a layer's two products the second is not wanted again
    "groups": (again(), plain, 4),
    "both": (again(), again(), 4.5),
    "groups but products": (again(DOTS), plain, 3),
    "groups, layers but products": (again(), again(DOTS), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_in_loops_take_what_is_planned(name: str) -> None:
    outer, inner, work = CASES[name]
    step, *arguments = case(outer, inner)
    program = from_jax(step, *arguments)
    assert products(program) == work
    planned = shard(program, "dgx-h100:1", {"data": 1}, recompute=False).memory_bytes
    found = jax.jit(step).lower(*arguments).compile(QUICKLY).memory_analysis()
    taken = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert planned == pytest.approx(taken, rel=0.1)
