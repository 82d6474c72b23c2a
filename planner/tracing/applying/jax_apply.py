"""The same JAX function, with every array constrained to lie as a `ShardedProgram` says.

The function is traced again and its equations are run one by one under their names in the program; compiled
under ``jax.jit`` it leaves XLA only the moves that the plan has priced.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from planner.errors import InputError
from planner.tracing.applying.apart import axes_apart, run_apart
from planner.tracing.applying.control import FOLLOWED
from planner.tracing.applying.copies import Copies
from planner.tracing.applying.literals import Known, plain
from planner.tracing.applying.numbers import Numbers
from planner.tracing.applying.orders import ordered
from planner.tracing.applying.parts import (
    Loops,
    Parts,
    Sum,
    added_in_turn,
    added_up,
    batches,
    each_part,
    is_grouped,
    product_in_parts,
    reduced_at_once,
    reduces_several,
    sums_in_turn,
)
from planner.tracing.applying.places import between, fits
from planner.tracing.applying.repeats import Repeats
from planner.tracing.applying.rings import RingProduct, goes_round
from planner.tracing.applying.rows_anew import RowsAnew
from planner.tracing.applying.scopes import scope_of
from planner.tracing.applying.second_runs import SecondRuns
from planner.tracing.applying.sites import Site, sites_of
from planner.tracing.applying.views import View, partition_of, split_of, through
from planner.tracing.factors import Rule
from planner.tracing.layouts import Partition
from planner.tracing.reading.jax_calls import (
    bound,
    call_constants,
    call_operands,
    calls,
    label,
    one_by_one,
    runs_again,
)
from planner.tracing.reading.jax_functions import traced, without_static
from planner.tracing.reading.jax_record import output_names
from planner.tracing.reading.jax_rules import JAX_RULES
from planner.tracing.sharded import ShardedProgram, spec_arguments
from planner.tracing.solving.rings import Ring


def apply_shardings(
    function: Callable[..., Any], sharded: ShardedProgram, mesh: Any, arguments: Sequence[Any]
) -> Callable[..., Any]:
    """``function`` with its arrays laid out on ``mesh`` (a ``jax.sharding.Mesh`` with the plan's axes).

    ``arguments`` are those of `from_jax`, arrays or their shapes. What is returned is to be compiled with
    ``jax.jit``, and called without those that are static. Raises ``InputError`` where the mesh has other axes, or the
    function is not the program's.
    """
    import jax

    if dict(mesh.shape) != dict(sharded.mesh):
        raise InputError(f"the mesh is {dict(mesh.shape)}, the plan is for {dict(sharded.mesh)}")
    function, arguments = without_static(function, arguments)
    _, closed, result, _ = traced(function, arguments)
    paths = [sharded.program.value[n].path for n in sharded.program.inputs]
    if len(closed.jaxpr.invars) != len(paths):
        raise InputError(f"{len(closed.jaxpr.invars)} arrays are given, the program has {len(paths)} inputs")

    def run(*given: Any) -> Any:
        runner = _Runner(sharded, _auto(mesh))
        leaves = jax.tree_util.tree_leaves(given)
        placed = [runner.put(x, sharded.inputs[path]) for x, path in zip(leaves, paths, strict=True)]
        runner.copies.note(placed, sharded.program.inputs)
        made = runner.finish(runner.body(closed.jaxpr, closed.consts, placed, ""))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(result), made)

    return run


def input_shardings(sharded: ShardedProgram, mesh: Any, arguments: Sequence[Any]) -> Any:
    """A ``NamedSharding`` for every array of ``arguments``, static ones left out: for ``jax.device_put``."""
    import jax

    structure, mesh = jax.tree_util.tree_structure(tuple(arguments)), _auto(mesh)
    names = (sharded.program.value[n].path for n in sharded.program.inputs)
    found = [_named(mesh, sharded.inputs[name]) for name in names]
    return jax.tree_util.tree_unflatten(structure, found)


def _auto(mesh: Any) -> Any:
    """The mesh with axes that constraints decide on, not types (``AxisType.Auto``)."""
    from jax.sharding import Mesh

    return Mesh(mesh.devices, mesh.axis_names)


def _named(mesh: Any, partition: Partition) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*spec_arguments(partition)))


class _Runner:
    """Runs equations under constraints."""

    def __init__(self, sharded: ShardedProgram, mesh: Any) -> None:
        self.sharded, self.mesh = sharded, mesh
        self.sites = sites_of(sharded)
        self.owners = {equation: site.operation.name for equation, site in self.sites.items()}
        """Equation -> operator that it is part of."""
        self.lies: dict[int, tuple[Any, Partition]] = {}
        """Arrays that were constrained, by identity, with how they lie."""
        self.views: dict[int, View] = {}
        """Those of them that are views of others."""
        self.reads = {op.name: op.inputs for op in sharded.program.operations}
        self.second = SecondRuns(self)
        self.rows = RowsAnew(self)
        self.numbers = Numbers(lambda array: self.put(array, ((),) * array.ndim))
        self.repeats, self.copies = Repeats(), Copies(sharded)
        self.outside: dict[int, tuple[Any, Any]] = {}
        """What the body of a loop has from outside, by identity, with itself out there."""

    def in_body(self) -> "_Runner":
        """The same in a body of its own, where nothing is known of what others compute."""
        inside = copy.copy(self)
        inside.repeats, inside.copies = Repeats(), self.copies.in_body()
        return inside

    def without_layouts(self) -> "_Runner":
        """The same in the body of a ``shard_map``."""
        inside = self.in_body()
        inside.sites, inside.lies, inside.numbers = {}, {}, Numbers(lambda array: array)
        inside.second, inside.rows = SecondRuns(inside), RowsAnew(inside)
        return inside

    def put(self, array: Any, partition: Partition, reader: str = "") -> Any:
        """``array`` constrained, for an operator; scalars and what does not divide are left alone."""
        if getattr(array, "ndim", 0) == 0 or len(partition) != array.ndim:
            return array
        _, known = self.lies.get(id(array), (array, None))
        shown = None if known == partition else self._shown(array, partition, reader)
        if shown is not None:
            return self._moved(shown, partition, partition)
        known = partition if known is None else known
        shared = self.copies.lying(array, reader)
        if shared is None:
            return self._moved(array, known, partition)
        if (id(array), shared) not in self.copies.made:
            self.copies.made[id(array), shared] = (array, self._moved(array, known, shared))
        return self._moved(self.copies.made[id(array), shared][1], shared, partition)

    def _shown(self, array: Any, partition: Partition, reader: str) -> Any | None:
        """A view made anew of what it shows, which is moved; None where no layout of that is the one wanted."""
        view = self._seen(array, reader)
        for each in () if view is None else through(view, lambda source: self._seen(source, reader)):
            behind = each.behind(partition, self.sharded.mesh)
            if behind is not None:
                source = self.put(each.source, behind, reader)
                return ordered(each, source) if each.equation is None else bound(each.equation, [source])[0]
        return None

    def _seen(self, array: Any, reader: str) -> View | None:
        """The view that ``array`` is, where what is priced is that the operator reads what it shows."""
        view = self.views.get(id(array))
        as_it_lies = view is not None and view.name and view.name in self.reads.get(reader, (view.name,))
        return None if as_it_lies else view

    def _moved(self, array: Any, known: Partition, partition: Partition) -> Any:
        """``array`` from where it lies to ``partition``."""
        import jax

        mesh = self.sharded.mesh
        ways = (place for place in between(known, partition, tuple(mesh)) if fits(array.shape, place, mesh))
        for place in (*ways, partition):
            array = jax.lax.with_sharding_constraint(array, _named(self.mesh, place))
        self.lies[id(array)] = (array, partition)
        return array

    def _apart(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Operands of a call; what is to be computed again is kept apart from the first time, where it lies."""
        import jax

        if not runs_again(equation):
            return operands
        whole = [added_up(x) if isinstance(x, Parts) else plain(x) for x in operands]
        apart = jax.lax.optimization_barrier(tuple(whole))
        known = [self.lies.get(id(x)) for x in whole]
        return [new if lay is None else self.put(new, lay[1]) for new, lay in zip(apart, known, strict=True)]

    def finish(self, arrays: Sequence[Any]) -> list[Any]:
        """What the function returns: as its tie, or the operator that made it, wants it."""
        import jax

        program = self.sharded.program
        tied = {t.source: t.target for t in program.ties if t.target in program.inputs}
        done = []
        for array, name in zip(map(plain, arrays), program.results, strict=True):
            if name in tied:
                with jax.named_scope(scope_of(tied[name])):
                    array = self.put(array, self.sharded.inputs[program.value[tied[name]].path])
            elif name is not None:
                array = self.put(array, self.sharded.outputs[name])
            done.append(array)
        return done

    def body(self, jaxpr: Any, constants: Sequence[Any], given: Sequence[Any], prefix: str) -> list[Any]:
        """Values of the outputs of ``jaxpr``."""
        import jax

        values: dict[Any, Any] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True)
        )

        def read(atom: Any) -> Any:
            return Known(atom.val) if hasattr(atom, "val") else values[atom]

        for index, whole in enumerate(jaxpr.eqns):
            for equation, title in one_by_one(whole, prefix + label(whole, index)):
                operands = [read(atom) for atom in equation.invars]
                inner = calls(equation)
                if inner is not None:
                    given = self._apart(equation, call_operands(equation, operands))
                    made = self.body(inner, call_constants(equation), given, f"{title}/")
                else:
                    with jax.named_scope(scope_of(self._owner(title))):
                        made = self._equation(equation, title, operands)
                values.update(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _on_parts(self, equation: Any, title: str, site: Site | None, operands: list[Any]) -> list[Any]:
        """Views of parts and their additions; the last of these adds up the parts too."""
        made = each_part(equation, [plain(x) for x in operands])
        if site is None or title != site.operation.total:
            return list(made)
        return [self.put(added_up(made[0]), partition_of(site.writes[0], site.sharding.split))]

    def _owner(self, title: str) -> str:
        return self.owners.get(title, title)

    def _equation(self, equation: Any, title: str, operands: list[Any]) -> list[Any]:
        followed = FOLLOWED.get(equation.primitive.name)
        if followed is not None:
            return followed(self, equation, title, operands)
        site, read = self.sites.get(title), tuple(operands)
        known = self.repeats.made(equation, title, read) if site is None else None
        if known is not None:
            return known
        if site is not None:
            operands = self.second.late(site.operation, operands)
        late = list(operands)
        made = self.placed(equation, title, site, operands)
        self.second.remember(equation, title, late, made)
        self.copies.note(made, output_names(title, len(made)))
        shared = any(id(x) in self.lies for x in read)  # constants are made where they are read
        self.repeats.note(equation, title, read, made, shared)
        return made

    def placed(self, equation: Any, title: str, site: Site | None, operands: list[Any]) -> list[Any]:
        """Outputs of an equation, its arrays where ``site`` says."""
        if any(isinstance(x, Parts) for x in operands):
            return self._on_parts(equation, title, site, operands)
        if site is None:
            return self._unplanned(equation, operands)
        given = list(operands)
        places = [i for i, x in enumerate(operands) if not isinstance(x, Known)]
        for i, dims in zip(places, site.reads, strict=True):
            operands[i] = self.put(operands[i], site.lies(dims), site.operation.name)
        made = self._otherwise(equation, operands, site)
        if made is not None:
            return made
        found = bound(equation, [plain(x) for x in operands])
        left = [self.put(x, p) for x, p in zip(found, site.left(), strict=False)]  # a print makes nothing
        shown = len(given) == len(left) == 1 and not isinstance(given[0], Known)
        if site.operation.kind == "view" and shown:
            shows = self._loops(equation, given, left)
            self.views[id(left[0])] = View(left[0], equation, given[0], shows, site.operation.outputs[0])
        return left

    def _otherwise(self, equation: Any, operands: list[Any], site: Site) -> list[Any] | None:
        """Outputs that XLA would not make as priced, told no more than where arrays lie; None where it does."""
        if site.ring and equation.primitive.name == "dot_general":
            return self._in_ring(equation, operands, site, site.ring)
        loops = Loops(self.mesh, site.sharding.split, site.reads, site.writes[0])
        if axes := axes_apart(equation, loops):
            made = run_apart(equation, operands, loops, axes)
            return [self.put(x, place) for x, place in zip(made, site.left(), strict=True)]
        if several := reduces_several(equation, loops):
            return [self.put(reduced_at_once(equation, operands[0], loops, several), site.left()[0])]
        if site.sharding.parts and not site.operation.addends:
            return [product_in_parts(equation, operands, loops, site.sharding.parts)]
        sums = self._sums(equation, site)
        return [self._in_turn(equation, operands, site, sums)] if sums else None

    def _sums(self, equation: Any, site: Site) -> list[Sum]:
        """Of a matrix product, where XLA would not do them as priced if it were only told how the result lies.

        Sums that end in several places it does whole; where an axis does nothing, it may split the work over it, and
        change places afterwards; a dim that the product has in parts already it gathers before it cuts it further. Rows
        by group it gathers before it sums over them, and an operand whose batches axes split in two dims.
        """
        grouped = is_grouped(equation)
        if not grouped and equation.primitive.name != "dot_general":
            return []
        split, left = site.sharding.split, site.left()[0]
        sums = sums_in_turn(split, site.reads, site.writes[0], left)
        further = any({*axes} & {*one.axes} and {*axes} - {*one.axes} for one in sums for axes in left)
        many = len(batches(site.reads, site.writes[0]) & {*split.values()}) > 1
        anew = grouped or len(sums) > 1 or len(split) < len(self.mesh.shape) or further or many
        return sums if anew else []

    def _in_turn(self, equation: Any, operands: list[Any], site: Site, sums: Sequence[Sum]) -> Any:
        """A product whose sums end in several places."""
        loops = Loops(self.mesh, site.sharding.split, site.reads, site.writes[0])
        axes = [a for one in sums for a in self.mesh.shape if a in one.axes]
        parts = product_in_parts(equation, operands, loops, axes)
        return self.put(added_in_turn(parts, axes, sums, self.mesh), sums[-1].after)

    def _in_ring(self, equation: Any, operands: list[Any], site: Site, ring: Ring) -> list[Any]:
        """A product of an attention whose keys go round."""
        loops = Loops(self.mesh, site.sharding.split, site.reads, site.writes[0])
        passed = goes_round(ring, site.reads, site.writes[0])
        if passed is None:
            found = bound(equation, operands)[0]
        else:
            found = RingProduct(equation, loops, ring, site.sharding.ring, site.lies).run(operands, passed)
        return [self.put(found, site.lies(site.writes[0]))]

    def _unplanned(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Outputs of an equation that is no operator of the program: of numbers alone, or a view."""
        if not self.numbers.are(equation, operands):
            return self._seen_through(equation, operands, bound(equation, [plain(x) for x in operands]))
        laid = self.numbers.laid(equation, operands)
        return self.numbers.made(equation, bound(equation, [plain(x) for x in laid]))

    def _seen_through(self, equation: Any, operands: list[Any], made: list[Any]) -> list[Any]:
        """A view lies as what it shows, so that a move happens where its reader is, as priced.

        Where its dims cannot say how that lies, it lies nowhere: each reader has a view of what it has moved.
        """
        known = self.lies.get(id(operands[0])) if len(operands) == 1 else None
        seen = known is not None or (len(operands) == 1 and id(operands[0]) in self.views)
        if equation.primitive.name not in JAX_RULES or not seen:
            return made
        loops = self._loops(equation, operands, made)
        if loops.kind != "view":
            return made
        split = {} if known is None else split_of(loops.reads[0], known[1])
        shown = partition_of(loops.writes[0], {a: split[a] for a in self.mesh.shape if a in split})
        kept = known is not None and {axis for axes in shown for axis in axes} == set(split)
        placed = self.put(made[0], shown) if kept else made[0]
        if placed.dtype == operands[0].dtype:  # what is cast moves in its new width
            self.views[id(placed)] = View(placed, equation, operands[0], loops)
        return [placed]

    def _loops(self, equation: Any, operands: list[Any], made: list[Any]) -> Rule:
        """Of an equation whose primitive has a rule."""
        shapes = [x.shape for x in operands], [x.shape for x in made]
        return JAX_RULES[equation.primitive.name](equation.params, *shapes, str(made[0].dtype))
