"""Images split over devices: borders that neighbours exchange, by what JAX computes and by the bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import compiled_halos  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from planner.tracing.reading.from_jax import from_jax  # noqa: E402
from planner.tracing.solving.setting import set_up  # noqa: E402

pytestmark = pytest.mark.jax
BATCH, ROWS, COLUMNS, CHANNELS, OUT, DEVICES = 2, 32, 16, 4, 8, 4


def convolved(x, w, padding="SAME"):
    return jax.lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("window", [3, 5])
def test_the_priced_borders_are_what_a_part_of_the_image_lacks(window: int) -> None:
    shapes = (BATCH, ROWS, COLUMNS, CHANNELS), (window, window, CHANNELS, OUT)
    x, w = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes)
    program = from_jax(convolved, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), parameters=1)
    setting = set_up(program, "dgx-h100:1", {"image": DEVICES})
    (op,) = setting.program.operations
    rows = next(h for h in op.halos if op.sizes[h.factor] == ROWS)
    option = next(o for o in setting.problem.options[-1] if o.split == (rows.factor,))
    (exchange,) = setting.pricer.operation(op, option).exchanges
    assert exchange.collective == "send"
    assert exchange.full_bytes == rows.elements * BATCH * COLUMNS * CHANNELS * 4

    part, border = ROWS // DEVICES, rows.elements // 2
    padded = np.pad(x, ((0, 0), (border, border), (0, 0), (0, 0)))
    side = window // 2
    whole = convolved(x, w)
    for k in range(DEVICES):
        seen = padded[:, k * part : (k + 1) * part + 2 * border]
        made = convolved(seen, w, ((0, 0), (side, side)))
        np.testing.assert_allclose(made, whole[:, k * part : (k + 1) * part], rtol=1e-4, atol=1e-4)


def test_no_border_where_windows_are_points() -> None:
    shapes = (BATCH, ROWS, COLUMNS, CHANNELS), (1, 1, CHANNELS, OUT)
    program = from_jax(convolved, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), parameters=1)
    setting = set_up(program, "dgx-h100:1", {"image": DEVICES})
    (op,) = setting.program.operations
    assert op.halos == ()


@pytest.mark.parametrize(("window", "degrees"), [(3, 16), (5, 8), (9, 4), (17, 2)])
def test_no_part_is_shorter_than_its_borders(window: int, degrees: int) -> None:
    """Of 32 rows in at most 16 parts."""
    shapes = (BATCH, ROWS, 1, CHANNELS), (window, 1, CHANNELS, OUT)
    program = from_jax(convolved, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), parameters=1)
    setting = set_up(program, "dgx-h100:2", {"a": 2, "b": 2, "c": 4})
    (op,) = setting.program.operations
    (halo,) = op.halos
    sizes = np.array([2, 2, 4])
    found = {
        int(np.where(np.array(o.split) == halo.factor, sizes, 1).prod()) for o in setting.problem.options[-1]
    }
    assert max(found) == degrees


def test_borders_of_an_image_that_is_a_row_are_those_of_the_image() -> None:
    """Of 32 rows in at most 16 parts, each of which lacks two."""
    shapes = (BATCH, ROWS * COLUMNS, CHANNELS), (3, 1, CHANNELS, OUT)
    program = from_jax(
        lambda x, w: convolved(x.reshape(BATCH, ROWS, COLUMNS, CHANNELS), w),
        *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes),
        parameters=1,
    )
    setting = set_up(program, "dgx-h100:4", {"a": 16, "b": 2})
    (op,) = setting.program.operations
    (halo,) = op.halos
    options = setting.problem.options[-1]
    assert not any(o.split == (halo.factor, halo.factor) for o in options)
    option = next(o for o in options if o.split == (halo.factor, -1))
    (exchange,) = setting.pricer.operation(op, option).exchanges
    assert exchange.full_bytes == 2 * BATCH * COLUMNS * CHANNELS * 4


@pytest.mark.parametrize(("groups", "parts"), [(1, True), (2, False), (CHANNELS, True)])
def test_images_of_groups_of_several_channels_lie_whole(groups: int, parts: bool) -> None:
    """XLA gathers them, whoever asks for parts."""
    shapes = (BATCH, ROWS, COLUMNS, CHANNELS), (3, 3, CHANNELS // groups, OUT)
    program = from_jax(
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        ),
        *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes),
        parameters=1,
    )
    setting = set_up(program, "dgx-h100:1", {"image": DEVICES})
    (op,) = setting.program.operations
    rows = op.writes[0][1][0]
    assert any(o.split == (rows,) for o in setting.problem.options[-1]) == parts


COMPILED = [
    (3, 1, (1, 1), 1),
    (3, 1, (2, 0), 1),
    (3, 2, (0, 1), 1),
    (3, 2, (1, 1), 1),
    (4, 2, (1, 1), 1),
    (5, 2, (2, 2), 1),
    (7, 2, (3, 3), 1),
    (1, 2, (0, 0), 1),
    (4, 4, (0, 0), 1),
    (4, 4, (1, 1), 1),
    (3, 1, (1, 1), 3),
    (5, 2, (2, 2), 5),
    (3, 1, (2, 1), 1, 2),
    (3, 1, (1, 2), 3, 2),
    (4, 1, (2, 2), 1, 2),
    (7, 1, (3, 4), 1, 2),
    (4, 1, (3, 3), 1, 4),
    (3, 1, (2, 2), 3, 1, 2),
    (3, 1, (4, 4), 1, 1, 4),
]
"""Window, stride, padding before and after, width; zeros between rows of the image, as its gradient has them, or of the
window."""


@pytest.fixture(scope="module")
def compiled() -> dict[Any, int]:
    script = Path(__file__).with_name("compiled_halos.py")
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, str(script), json.dumps(COMPILED)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(COMPILED, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", COMPILED)
def test_borders_are_those_that_xla_exchanges(case: Any, compiled: dict[Any, int]) -> None:
    window, stride, padding, width, *zeros = case
    shapes = compiled_halos.SHAPE, (window, width, compiled_halos.SHAPE[-1], 8)
    arrays = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    program = from_jax(
        lambda x, w: compiled_halos.convolved(x, w, stride, padding, *zeros), *arrays, parameters=1
    )
    columns = {} if width == 1 else {"columns": 2}
    setting = set_up(program, "dgx-h100:1", {"rows": 8 // (1 + len(columns)), **columns})
    (op,) = setting.program.operations
    split = tuple(op.writes[0][dim][0] for dim in (1, 2)[: 1 + len(columns)])
    option = next(o for o in setting.problem.options[-1] if o.split == split)
    priced = sum(x.full_bytes for x in setting.pricer.operation(op, option).exchanges)
    assert priced == compiled[case]
