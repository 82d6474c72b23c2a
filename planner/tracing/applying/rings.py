"""Products of an attention that runs in a ring, as JAX can have them: each device has a part of keys or values, works
on it, and passes it on meanwhile.

A product that reads keys or values gets them part by part, in the order in which they come round; of a product that
makes their gradients, the sum of a part goes round instead and grows on every device, until it is where it belongs.

Source: Li et al., Sequence Parallelism, arXiv:2105.13120, section 3.2.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.parts import Loops
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims
from planner.tracing.sharded import spec_arguments
from planner.tracing.solving.rings import Ring, loops_of


def goes_round(ring: Ring, reads: Sequence[Dims], writes: Dims) -> int | None:
    """Which operand of a product is passed on; 2 is the result, None where nothing is."""
    return next((i for i, d in enumerate((*reads, writes)) if ring.passes(loops_of(d))), None)


class RingProduct(NamedTuple):
    """A product of an attention, and the axes around which its keys go."""

    equation: Any
    loops: Loops
    """``split`` by rows along the ring."""
    ring: Ring
    axes: tuple[str, ...]
    lies: Callable[[Dims], Partition]
    """How an array lies: along queries, or along keys if it goes round."""

    def run(self, operands: Sequence[Any], passed: int) -> Any:
        """The result, of operands that lie so, of which one (or the result) is passed on."""
        import jax

        around = (
            self._sum_goes_round if passed == 2 else lambda *given: self._operand_goes_round(given, passed)
        )
        run: Callable[..., Any] = jax.shard_map(
            around,
            mesh=self.loops.mesh,
            in_specs=tuple(map(self._spec, self.loops.reads)),
            out_specs=self._spec(self.loops.writes),
            check_vma=False,
        )
        return run(*operands)

    def _spec(self, dims: Dims) -> Any:
        from jax.sharding import PartitionSpec

        return PartitionSpec(*spec_arguments(self.lies(dims)))

    def _operand_goes_round(self, operands: Sequence[Any], passed: int) -> Any:
        """Scores side by side, or a sum over keys."""
        import jax

        devices, along, size = self._devices(), self._along(self.loops.writes), self._part(operands)
        shape = list(self._shape(operands, passed))
        dtype = self.equation.outvars[0].aval.dtype
        if along is not None:
            shape[along] *= devices
        wide = dtype if along is not None else jax.numpy.promote_types(dtype, "float32")

        def step(block: Any, number: Any, made: Any) -> Any:
            place = self._place(number)
            given = [
                block if i == passed else self._of_part(x, i, place, size) for i, x in enumerate(operands)
            ]
            found = self._product(given, wide)
            if along is None:
                return made + found
            return jax.lax.dynamic_update_slice_in_dim(made, found, place * size, along)

        def turn(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            block, made = state
            return self._onward(block), step(block, number, made)

        start = (operands[passed], jax.numpy.zeros(shape, wide))
        block, made = jax.lax.fori_loop(0, devices - 1, turn, start)
        return self._summed(step(block, devices - 1, made)).astype(dtype)

    def _sum_goes_round(self, *operands: Any) -> Any:
        """Gradients of keys or values: the sum of a part is begun by its neighbour and ends where it lies."""
        import jax

        devices, size = self._devices(), self._part(operands)
        dtype = self.equation.outvars[0].aval.dtype

        def share(number: Any) -> Any:
            place = self._place(number + 1)
            given = [self._of_part(x, i, place, size) for i, x in enumerate(operands)]
            return self._product(given, dtype)

        def turn(number: Any, made: Any) -> Any:
            return self._onward(made) + share(number)

        return self._summed(jax.lax.fori_loop(1, devices, turn, share(0)))

    def _product(self, operands: Sequence[Any], dtype: Any) -> Any:
        return self.equation.primitive.bind(
            *operands, **{**self.equation.params, "preferred_element_type": dtype}
        )

    def _shape(self, operands: Sequence[Any], passed: int) -> tuple[int, ...]:
        """Of what a device makes of one part."""
        import jax

        size = self._part(operands)
        given = [x if i == passed else self._of_part(x, i, 0, size) for i, x in enumerate(operands)]
        made = jax.eval_shape(
            lambda *arrays: self._product(arrays, self.equation.outvars[0].aval.dtype), *given
        )
        return tuple(made.shape)

    def _of_part(self, array: Any, number: int, place: Any, size: int) -> Any:
        """What an operand has of the keys of one device."""
        import jax

        along = self._along(self.loops.reads[number])
        return array if along is None else jax.lax.dynamic_slice_in_dim(array, place * size, size, along)

    def _along(self, dims: Dims) -> int | None:
        """The dim over keys, of an array that has all of them."""
        return next((i for i, dim in enumerate(dims) if self.ring.keys in dim), None)

    def _part(self, operands: Sequence[Any]) -> int:
        """Keys of one device."""
        places = ((i, self._along(d)) for i, d in enumerate(self.loops.reads))
        i, along = next((i, along) for i, along in places if along is not None)
        size: int = operands[i].shape[along]
        return size if self.ring.passes(loops_of(self.loops.reads[i])) else size // self._devices()

    def _devices(self) -> int:
        return math.prod(self.loops.mesh.shape[a] for a in self.axes)

    def _place(self, number: Any) -> Any:
        """Whose part a device has after so many hops."""
        import jax

        return (jax.lax.axis_index(self.axes) - number) % self._devices()

    def _onward(self, array: Any) -> Any:
        import jax

        n = self._devices()
        return jax.lax.ppermute(array, self.axes, [(i, (i + 1) % n) for i in range(n)])

    def _summed(self, array: Any) -> Any:
        """Over axes beside the ring that split what the product sums over."""
        import jax

        axes = tuple(self._sums())
        return jax.lax.psum(array, axes) if axes else array

    def _sums(self) -> Iterator[str]:
        made = set(loops_of(self.loops.writes))
        read = {f for dims in self.loops.reads for f in loops_of(dims)}
        for axis, factor in self.loops.split.items():
            if axis not in self.axes and factor in read - made:
                yield axis
