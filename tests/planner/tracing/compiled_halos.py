"""Bytes that a device sends for a convolution of an image whose rows lie in parts, by XLA's compiler.

python compiled_halos.py '[[3, 2, [1, 1], 1], ...]'    # window, stride, padding before and after, its width

and, if there are zeros in between, from one row of the image to the next, and of the window.

Columns lie in two parts where windows are wider than one.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

SHAPE = 1, 64, 16, 4


def convolved(x, w, stride, padding, spread=1, apart=1):
    dims, side = ("NHWC", "HWIO", "NHWC"), w.shape[1] // 2
    pads, zeros = (tuple(padding), (side, side)), {"lhs_dilation": (spread, 1), "rhs_dilation": (apart, 1)}
    return jax.lax.conv_general_dilated(x, w, (stride, 1), pads, **zeros, dimension_numbers=dims)


def sent(window, stride, padding, width, *zeros):
    columns = 1 if width == 1 else 2
    mesh = jax.make_mesh((jax.device_count() // columns, columns), ("rows", "columns"))
    whole, parts = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (None, "rows", "columns")))
    x = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=parts)
    w = jax.ShapeDtypeStruct((window, width, SHAPE[-1], 8), jnp.float32, sharding=whole)
    compiled = (
        jax.jit(lambda x, w: convolved(x, w, stride, padding, *zeros), out_shardings=parts)
        .lower(x, w)
        .compile()
    )
    found = re.findall(r"f32\[([\d,]*)\]\S* (\S+)\(", compiled.as_text())
    kinds = "all-gather", "all-reduce", "all-to-all", "reduce-scatter"
    assert not [kind for _, kind in found if kind.startswith(kinds)]
    sizes = [shape for shape, kind in found if kind.startswith("collective-permute")]
    return sum(4 * jnp.prod(jnp.array(list(map(int, shape.split(","))))).item() for shape in sizes)


if __name__ == "__main__":
    print(json.dumps([sent(*case) for case in json.loads(sys.argv[1])]))
