"""Runs the graphs that a module was read from, every array a ``DTensor`` that lies as a `ShardedProgram` says."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

from planner.errors import InputError
from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.dtensor.bags import BAGS
from planner.tracing.applying.dtensor.convolutions import CONVOLUTIONS
from planner.tracing.applying.dtensor.forms import form_of
from planner.tracing.applying.dtensor.graphs import (
    AGAIN,
    by_chance,
    last_readers,
    planned_graph,
    title_of,
)
from planner.tracing.applying.dtensor.lookups import look_up, split_rows
from planner.tracing.applying.dtensor.loops import Loops
from planner.tracing.applying.dtensor.made import maker_of, number_of
from planner.tracing.applying.dtensor.moves import Moves, in_order, placements
from planner.tracing.applying.dtensor.pieces import KINDS, LOCAL, Alone, Pieces
from planner.tracing.applying.dtensor.seen import shown
from planner.tracing.applying.sites import Site, sites_of
from planner.tracing.applying.views import View
from planner.tracing.factors import Rule
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims, Operation
from planner.tracing.reading.from_torch import Reading
from planner.tracing.reading.torch_calls import kind_of, leaves
from planner.tracing.sharded import ShardedProgram, SharedCopy

OWN = MappingProxyType({**BAGS, **CONVOLUTIONS})
"""Operators that are run in a way of their own, by name."""

BROKEN = (torch.OutOfMemoryError, torch.distributed.DistError)
"""What is no matter of how arrays lie."""


class Runner:
    """Runs operators under layouts on a mesh whose dims have the names of the plan's axes."""

    def __init__(self, sharded: ShardedProgram, mesh: Any, reading: Reading) -> None:
        self.sharded, self.mesh, self.reading = sharded, mesh, reading
        self.moves, self.sites = Moves(mesh), sites_of(sharded)
        self.again = {s.name: s for s in sharded.recomputed}
        self.planned: dict[Any, Any] = {}
        """Graphs as they were read -> as they run."""
        self.copied = {(c.value, reader): c for c in sharded.copies for reader in c.readers}
        self.brought: dict[SharedCopy, tuple[Any, set[str]]] = {}
        """Copies that several operators share, with those that have yet to read them."""
        self.inside: dict[str, dict[tuple[int, Partition, bool], tuple[Array, Any]]] = {}
        """What was moved for an operator, until the last of its members has run: by identity and place."""
        self.read: dict[str, Operation] = {op.name: op for op in reading.program.operations}
        """Operators as they were read, before any clean-up."""
        self.alike: dict[str, str] = {}
        """Operators that are computed alike on every device, as ``DTensor`` has no rule for them, with what it says."""
        self.pieces, self.loops = Pieces(self), Loops(self)
        self.outside: dict[int, dict[Any, Any]] = {}
        """What was moved of arrays from outside of a loop, for all its steps."""
        self.second = False
        """Whether it is a second run that runs."""
        self.chance = False
        """Whether what runs draws random numbers."""
        self.at = ""
        """The operator of PyTorch that is running, or the value that a result is brought to."""

    def owner(self, title: str) -> str:
        """The operator of the program that an operator of PyTorch is part of."""
        site = self.sites.get(title)
        return title if site is None else site.operation.name

    def placements(self, partition: Partition) -> list[Any]:
        """Of an array that lies so."""
        return placements(partition, tuple(self.sharded.mesh))

    def distributed(self, tensor: Any, partition: Partition) -> Any:
        """A whole tensor that all devices have, of which each takes its part."""
        return distribute_tensor(tensor, self.mesh, self.placements(partition), src_data_rank=None)

    def positions(self, count: int, axes: Sequence[str]) -> Array:
        """0, 1, and so on up to ``count``, split by some axes."""
        whole = torch.arange(count, device=self.mesh.device_type)
        return Array("", (count,), self.distributed(whole, (tuple(axes),)))

    def walk(self, graph: Any, given: Sequence[Array | None], prefix: str = "") -> list[Array | None]:
        """The results of ``graph``, each array freed when nothing reads it any more."""
        env: dict[Any, Any] = {}
        if graph not in self.planned:
            self.planned[graph] = planned_graph(graph, self.sharded, self.sites, prefix)
        graph = self.planned[graph]
        arguments, last = iter(given), last_readers(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(arguments)
            elif node.op == "output":
                return [env[n] if hasattr(n, "op") else None for n in leaves(node.args)]
            elif node.op == "get_attr":
                env[node] = self._constant(node)
            elif node in last:
                self.second, self.chance = AGAIN in node.meta, by_chance(node)
                env[node] = self._node(node, title_of(node), env)
            for done in last.get(node, ()):
                env.pop(done, None)
        raise AssertionError("a graph ends with its output")

    def _constant(self, node: Any) -> Array:
        tensor = getattr(node.graph.owning_module, node.target).to(self.mesh.device_type)
        return Array("", tuple(tensor.shape), self.distributed(tensor, ((),) * tensor.ndim))

    def _by_name(self, kind: str, title: str, node: Any, env: Mapping[Any, Any]) -> Any:
        """What an operator makes that is run in a way of its own; ``NotImplemented`` where it is not."""
        if kind in self.loops.kinds:
            return self.loops.run(title, node, env)
        own = KINDS.get(kind) or OWN.get(kind)
        if own is None:
            return NotImplemented
        given = torch.fx.node.map_arg((node.args, dict(node.kwargs)), env.__getitem__)
        return own(self.pieces if kind in KINDS else self, title, node, *given)

    def _node(self, node: Any, title: str, env: Mapping[Any, Any]) -> Any:
        def value(tree: Any) -> Any:
            return torch.fx.node.map_arg(tree, env.__getitem__)

        if "getitem" in str(node.target):
            return env[node.args[0]][node.args[1]]
        kind = kind_of(node.target)
        made = self._by_name(kind, title, node, env)
        if made is not NotImplemented:
            return made
        nodes = [n for n in leaves((node.args, node.kwargs)) if hasattr(n, "op")]
        rows = split_rows(kind, node, self.site(title))
        if rows is not None:
            return look_up(self, title, kind, rows, value(node.args))
        read = self.read.get(title)
        if not nodes or (number_of(node) is not None and read is not None and not read.inputs):
            return self._of_numbers(node, title)
        places = sorted(
            range(len(nodes)), key=lambda k: nodes[k].op == "get_attr"
        )  # which the program has not
        operands = [env[nodes[k]] for k in places]

        def call(*now: Any) -> Any:
            left = iter(x for _, x in sorted(zip(places, now, strict=True), key=lambda pair: pair[0]))
            args, how = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda _: next(left))
            return form_of(node.target, kind, self._sums_split(title))(*args, **self._here(how))

        if title not in self.sites and read is not None and read.kind == "view" and len(operands) == 1:
            shape = tuple(node.meta["val"].shape)
            return Array("", shape, seen=View(None, call, operands[0], _rule(read)))
        alone = kind in LOCAL or self._adds_up(title, node)
        return self.run(title, call, operands, "yes" if alone else "perhaps")

    def _adds_up(self, title: str, node: Any) -> bool:
        """Whether devices add what they have to rows that all of them have, which are zeros if their sums are added."""
        site = self.site(title)
        if site is None or site.operation.kind != "accumulate" or len(site.writes) != 1:
            return False
        split = {*site.sharding.split.values()}
        values, result = ({f for dim in dims for f in dim} for dims in (site.reads[-1], site.writes[0]))
        return split <= values and (number_of(node.args[0]) == 0 or split <= result)

    def _here(self, how: Mapping[str, Any]) -> dict[str, Any]:
        device = torch.device(self.mesh.device_type)
        return {name: device if isinstance(x, torch.device) else x for name, x in how.items()}

    def _sums_split(self, title: str) -> bool:
        """Whether an operator sums over a loop that is split."""
        site = self.site(title)
        over = set() if site is None else {f for r in site.operation.reductions for f in r.over}
        return site is not None and bool(over & {*site.sharding.split.values()})

    def _of_numbers(self, node: Any, title: str) -> Array:
        """What reads no array, or its shape alone."""
        make, shape = maker_of(node, self.mesh, self._here(node.kwargs), self.chance), node.meta["val"].shape
        self.at, site = title, self.site(title)
        if site is None and not self.chance:
            return Array("", tuple(shape), made=make)
        place = site.left()[0] if site else ((),) * len(shape)
        return Array(title, tuple(shape), make(self.placements(place)))

    def run(
        self, title: str, function: Callable[..., Any], operands: Sequence[Any], alone: Alone = "perhaps"
    ) -> Any:
        """What one operator makes of arrays, each where the plan has it."""
        self.at, site = title, self.site(title)
        try:
            if site is None:
                return self._arrays(title, self.as_they_lie(function, [*map(self.somewhere, operands)]))
            made = self._planned(title, site, function, operands, alone)
        except BROKEN:
            raise
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise InputError(f"{title} cannot run in parts, as PyTorch says: {said}") from error
        if title == site.operation.members[-1].name:
            self.done(site.operation.name)
        return self._arrays(title, made)

    @contextmanager
    def lasting(self, arrays: Sequence[Array]) -> Iterator[None]:
        """What is moved of ``arrays`` meanwhile is moved once for each of its readers, however often these run."""
        before = self.outside
        self.outside = {**before, **{id(array): {} for array in arrays}}
        try:
            yield
        finally:
            self.outside = before

    def forget(self) -> None:
        """Let go of all that was moved."""
        self.inside.clear()
        self.brought.clear()

    def done(self, reader: str) -> None:
        """Let go of what was moved for an operator."""
        self.inside.pop(reader, None)
        for copy, (_, left) in list(self.brought.items()):
            left.discard(reader)
            if not left:
                del self.brought[copy]

    def _planned(
        self,
        title: str,
        site: Site,
        function: Callable[..., Any],
        operands: Sequence[Any],
        alone: Alone,
    ) -> Any:
        count, loops = len(site.reads), site.without_ring()
        placed = [self.put(x, loops.lies(dims), site) for x, dims in zip(operands, site.reads, strict=False)]
        waits = [x.placements for x in placed if any(p.is_partial() for p in x.placements)]
        placed += [self.somewhere(x) for x in operands[count:]]
        if alone == "no" or (alone == "perhaps" and _meets_neighbours(site)):
            made = self._by_all(function, placed, "windows reach into what other devices have")
        elif alone == "yes":
            made = self._locally(loops, function, placed)
        else:
            made = None if waits or self.chance else self._by_each(site, function, placed)
            made = self.as_they_lie(function, placed) if made is None else made
        if waits and title != site.operation.total:
            return made
        several = isinstance(made, tuple | list)
        left = iter(site.left())
        found = [
            self._left(x, next(left, ((),) * x.ndim), site) if isinstance(x, torch.Tensor) else x
            for x in (made if several else [made])
        ]
        return found if several else found[0]

    def site(self, title: str) -> Site | None:
        """What is planned for the operator, or for its second run if that is what runs."""
        site = self.sites.get(title)
        if site is None or not self.second or site.operation.name not in self.again:
            return site
        return site._replace(sharding=self.again[site.operation.name])

    def _arrays(self, title: str, made: Any) -> Any:
        """What an operator makes, by the names that the program has for it."""
        if isinstance(made, tuple | list):
            return [
                Array(f"{title}:{k}" if len(made) > 1 else title, tuple(x.shape), x)
                if isinstance(x, torch.Tensor)
                else None
                for k, x in enumerate(made)
            ]
        return Array(title, tuple(made.shape), made)

    def put(self, array: Array, partition: Partition, site: Site) -> Any:
        """An operand where its reader has it; parts of a sum wait, where the reader says so."""
        return self.lying(array, partition, site.operation.name, bool(site.operation.addends))

    def lying(self, array: Array, partition: Partition, reader: str = "", waits: bool = False) -> Any:
        """``array`` moved for an operator, once for all its members; a view moves as what it shows."""
        if array.made is not None:
            return array.made(self.placements(partition))
        lasts, key = self.outside.get(id(array)), (id(array), partition, waits)
        moves = self.inside.setdefault(reader, {}) if lasts is None else lasts.setdefault(reader, {})
        if key not in moves:
            moves[key] = (array, self._moved(array, partition, reader, waits))
        return moves[key][1]

    def _moved(self, array: Array, partition: Partition, reader: str, waits: bool) -> Any:
        held = array.held if array.seen is None else shown(self, array, partition, reader, waits)
        shared = self.copied.get((array.name, reader))
        if shared is not None:
            if shared not in self.brought:
                self.brought[shared] = self.moves.moved(held, shared.partition), {*shared.readers}
            held, _ = self.brought[shared]
        return self.moves.moved(held, partition, tuple(self.sharded.mesh) if waits else ())

    def somewhere(self, array: Array) -> Any:
        """``array`` as it lies."""
        if array.made is not None:
            return array.made([Replicate()] * self.mesh.ndim)
        if array.seen is not None:
            return self.as_they_lie(array.seen.equation, [self.somewhere(array.seen.source)])
        return array.held

    def _left(self, array: Any, partition: Partition, site: Site) -> Any:
        """A result as it is left: parts of a sum wait where the plan says so."""
        return self.moves.moved(array, partition, () if site.operation.addends else site.sharding.parts)

    def _locally(self, site: Site, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """On what each device has, where that makes a part of what is to be made, or an addend of it."""
        made = function(*(x.to_local() for x in operands))
        several = isinstance(made, tuple | list)
        dims = iter(site.writes)
        found = [
            DTensor.from_local(x, self.mesh, self._addends(site, next(dims)), run_check=False)
            if isinstance(x, torch.Tensor)
            else x
            for x in (made if several else [made])
        ]
        return found if several else found[0]

    def _addends(self, site: Site, dims: Dims) -> list[Any]:
        """How a result lies before it is summed."""
        inside, split = {f for dim in dims for f in dim}, site.sharding.split
        return [
            Partial() if axis in split and split[axis] not in inside else place
            for axis, place in zip(self.sharded.mesh, self.placements(site.lies(dims)), strict=True)
        ]

    def shapes_here(self, title: str) -> list[tuple[int, ...]]:
        """What one device makes of each result of an operator."""
        site, mesh = self.site(title), self.sharded.mesh
        assert site is not None
        sizes = site.operation.sizes
        return [
            tuple(
                math.prod(sizes[f] for f in dim) // math.prod(mesh[axis] for axis in axes)
                for dim, axes in zip(dims, site.lies(dims), strict=True)
            )
            for dims in site.writes
        ]

    def as_they_lie(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """By ``DTensor``; where it cannot, by each device of all there is."""
        try:
            return in_order(function, operands)
        except BROKEN:
            raise
        except RuntimeError as error:
            return self._by_all(function, operands, str(error).strip().partition("\n")[0])

    def _by_all(self, function: Callable[..., Any], operands: Sequence[Any], why: str) -> Any:
        """What every device makes of all there is, and why it does."""
        self.alike[self.at] = why
        whole = [Replicate()] * self.mesh.ndim
        made = function(*(x.redistribute(self.mesh, whole).to_local() for x in operands))
        return torch.utils._pytree.tree_map(self._everywhere, made)

    def _by_each(self, site: Site, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """What each device makes of what it has, if that is its part of all; None where it is not.

        It is not where sizes are written in the operator. Each loop that is split must index all that is made, and
        nothing of what neighbours have may be needed.
        """
        split, kind = {*site.sharding.split.values()}, self.read[self.at].kind
        indexed = [*site.writes, *(site.reads[-1:] if kind == "accumulate" else ())]  # values come last
        apart = all(split <= {f for dim in dims for f in dim} for dims in indexed)
        if not apart or self._sums_split(self.at) or kind == "view":
            return None
        try:
            made = self._locally(site, function, operands)
        except BROKEN:
            raise
        except (RuntimeError, StopIteration):  # or it makes more than the program has
            return None
        shapes = [tuple(x.to_local().shape) for x in leaves(made) if isinstance(x, torch.Tensor)]
        return made if shapes == self.shapes_here(self.at) else None

    def _everywhere(self, made: Any) -> Any:
        """What every device has made whole."""
        if not isinstance(made, torch.Tensor):
            return made
        return DTensor.from_local(made, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)


def _meets_neighbours(site: Site) -> bool:
    """Whether a device needs of what others have: windows reach over the borders of what is split."""
    return bool({h.factor for h in site.operation.halos} & {*site.sharding.split.values()})


def _rule(op: Operation) -> Rule:
    """The loops of an operator as it was read."""
    return Rule(op.kind, op.sizes, op.reads, op.writes)
