"""Names for the dims of a program: one for all loops that run over the same thing.

Loops are joined where one value is indexed by both. Then the batch is what all data have first, ``seq`` what indices
have second, ``hidden`` what layers hand on, ``heads`` what attention does beside each other, ``vocab`` the rows of
the embedding or the classes of the loss, ``ffn`` what products make and sum inside a layer.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property

from planner.graph import BATCH
from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.kernels import PRODUCTS, Kernel, Lifted
from planner.tracing.lifting.plain import no_graph
from planner.tracing.lifting.stages import Stage
from planner.tracing.lifting.views import Loop, Loops
from planner.tracing.program import elements

Class = Loop
"""One of the loops that are joined stands for all."""

POSITIONS = frozenset({BATCH, "seq", "encoder_seq", "pixels", "keys"})
"""Names of what attention does beside each other, or along: none of them is a head."""

SHARED = frozenset({"expert_ffn", "experts", "ffn", "head_dim", "heads", "hidden", "kv_heads", "v_dim"})
"""Names that stacks of layers have in common."""


class Naming:
    """Dims of every value, by name."""

    def __init__(self, lifted: Lifted, stages: Sequence[Stage]) -> None:
        self.lifted, self.stages = lifted, stages
        self.drafts = lifted.plain.drafts
        self.joined = Loops(self.drafts, lifted.plain)
        self.find, self.size, self._flat = self.joined.find, self.joined.size, self.joined.flat
        self.names: dict[Class, str] = {}
        self.together: dict[tuple[Class, ...], str] = {}
        """Loops that form one dim: key heads and the queries of each, rows and columns of patches."""
        self.narrow: dict[str, Class] = {}
        """Keys that are written once for every query head that shares them -> the loop over those, left out."""
        self.sizes: dict[str, int] = {}
        self.attended: dict[int, tuple[tuple[Class, ...], tuple[Class, ...]]] = {}
        """Attention (its id) -> loops over positions of its queries, and of the keys that each of them sees."""
        self._join_across_kernels()
        self._join_layers()
        self._name()

    def join(self, first: Class, second: Class) -> None:
        """Make two the same."""
        a, b = self.find(first), self.find(second)
        self.joined.join(a, b)
        for name in (self.names[x] for x in (a, b) if x in self.names):
            self.names.setdefault(self.find(a), name)

    def _join_values(self, first: str, second: str, apart: Set[frozenset[Class]] = frozenset()) -> None:
        for a, b in zip(self._flat(first), self._flat(second), strict=False):
            if self.size[a] == self.size[b] and frozenset((self.find(a), self.find(b))) not in apart:
                self.join(a, b)

    def _join_across_kernels(self) -> None:
        """What a kernel cuts apart and puts together again (rotary positions) is as it was."""
        for kernel in self.lifted.kernels:
            if kernel.role != "kernel":
                continue
            for made in kernel.outputs:
                for read in kernel.inputs:
                    a, b = self._flat(read), self._flat(made)
                    if [self.size[x] for x in a] == [self.size[x] for x in b]:
                        known = {self.find(x) for x in a} & {self.find(x) for x in b}
                        lone = [(x, y) for x, y in zip(a, b, strict=True) if self.find(x) not in known]
                        if known and all(self.find(y) not in known for _, y in lone):
                            for x, y in lone:
                                self.join(x, y)

    def _join_layers(self) -> None:
        """Layers that stand one after another in the program, and are alike, have the same dims.

        But for what a product sums over and what it makes, where layers hand on nothing else.
        """
        apart = set(self._apart())
        for stage, after in zip(self.stages[1:-2], self.stages[2:-1], strict=False):
            if _shape(stage, self.lifted) != _shape(after, self.lifted):
                continue
            for one, other in zip(stage.kernels, after.kernels, strict=True):
                values = zip(
                    (*one.inputs, *one.outputs, *one.weights),
                    (*other.inputs, *other.outputs, *other.weights),
                    strict=True,
                )
                for first, second in values:
                    self._join_values(first, second, apart)

    def _apart(self) -> Iterator[frozenset[Class]]:
        """Two loops, of which products sum over one and make the other."""
        for kernel in (k for k in self.lifted.kernels if k.role in PRODUCTS):
            read, made = (
                {x for n in names for x in self.loops(n)} for names in (kernel.inputs, kernel.outputs)
            )
            yield from (frozenset((a, b)) for a in read - made for b in made - read)

    def loops(self, name: str) -> list[Class]:
        """The loops over ``name``, those that stand for them, in order."""
        return [self.find(loop) for loop in self._flat(name)]

    def dims(self, name: str) -> tuple[str, ...]:
        """Names of the dims of a value; raises ``Unsupported`` where two of them are the same."""
        loops = [x for x in self.loops(name) if x != self.narrow.get(name)]
        joined: dict[Class, str] = {}
        for group, together in self.together.items():
            if set(group) <= set(loops):
                at = min(map(loops.index, group))
                loops = [x for x in loops if x not in group]
                loops.insert(at, group[0])
                joined[group[0]] = together
        found = [joined.get(x) or self._named(x) for x in loops]
        if len(set(found)) < len(found):
            raise no_graph(f"{name} has the dims {', '.join(found)}, one of them twice")
        return tuple(found)

    def _named(self, loop: Class) -> str:
        if loop not in self.names:
            self._give(loop, "dim")
        return self.names[loop]

    def _give(self, loop: Class, wanted: str) -> None:
        """Name a loop as wanted, by a number more where that is the name of another.

        What is as long, and never in one kernel with it, is the same: heads of an encoder and of a decoder.
        """
        if loop in self.names:
            return
        if wanted in SHARED and self.sizes.get(wanted) == self.size[loop] and not self._meet(wanted, loop):
            self.names[loop] = wanted
            return
        name, number = wanted, 2
        while name in self.sizes:
            name, number = f"{wanted}_{number}", number + 1
        self.names[loop] = name
        if name != BATCH:
            self.sizes[name] = self.size[loop]

    def _meet(self, name: str, loop: Class) -> bool:
        """Whether a kernel has a loop of this name beside ``loop``."""
        for kernel in self.lifted.kernels:
            values = (*kernel.inputs, *kernel.outputs, *kernel.weights)
            found = {x for value in values for x in self.loops(value)}
            if loop in found and any(self.names.get(x) == name for x in found):
                return True
        return False

    def _name(self) -> None:
        self._name_data()
        for stage in self.stages[1:-1]:
            for name in stage.inputs[:1]:
                if loops := self.loops(name):
                    features = [x for x in loops if x in self._learned]
                    self._give((features or loops)[-1], "hidden")
        self._name_positions()
        for kernel in self.lifted.kernels:
            if kernel.role == "attention":
                self._name_heads(kernel)
            elif kernel.role == "dispatch":
                self._name_experts(kernel)
        for stage in self.stages:
            for kernel in stage.kernels:
                self._name_widths(kernel, stage)
        self._name_views()

    def _name_data(self) -> None:
        program = self.lifted.plain.program
        data = [n for n in self.lifted.plain.data if self._flat(n)]
        if not data:
            raise no_graph(f"program {program.name} has no input whose first dim is a batch of two or more")
        batch = self.loops(data[0])[0]
        for name in reversed(
            data
        ):  # labels come last: theirs are the positions of the model, others an encoder's
            loops = self.loops(name)
            if loops[0] != batch:
                raise no_graph(f"inputs {data[0]} and {name} begin with other dims, where all have the batch")
            if len(loops) > 1 and program.value[name].dtype.startswith("int"):
                self._give(loops[1], "encoder_seq" if "seq" in self.sizes else "seq")
        self.names[batch] = BATCH

    def _name_heads(self, kernel: Kernel) -> None:
        """Of queries: what is beside the batch, the positions and what scores sum over."""
        scores = kernel.drafts[0]
        number = self.drafts.index(scores)
        context = self.loops(kernel.outputs[0])
        if not set(self.loops(kernel.inputs[0])) - set(self.loops(kernel.inputs[1])) <= set(context):
            kernel.inputs[:2] = reversed(kernel.inputs[:2])  # of queries every position is in the result
        queries, keys, values = (self.loops(n) for n in kernel.inputs)
        width = scores.attention.width if scores.attention else _contracted(scores)
        inner = [x for x in queries if x in {self.find((number, f)) for f in width}]
        data = {x for x, name in self.names.items() if name in POSITIONS}
        data |= {x for group, name in self.together.items() if name in POSITIONS for x in group}
        data |= self._name_attended(kernel, data)
        heads = self._without_positions([x for x in queries if x not in data and x not in inner])
        shared = [x for x in heads if x in keys and x in values]
        for loop in inner:
            self._give(loop, "head_dim")
            for other in values:
                if other not in {*data, *heads} and self.size[other] == self.size[loop]:
                    self.join(other, loop)
        for other in map(self.find, values):
            if other not in {*data, *self.names, *heads}:
                self._give(other, "v_dim")
        if len(heads) == 2 and len(shared) == 1:
            self._give(shared[0], "kv_heads")
            each = next(x for x in heads if x not in shared)
            self._form((shared[0], each), "heads")
            self.narrow[kernel.inputs[1]] = each
        elif len(heads) == 1:
            self._give(heads[0], "heads")

    def _without_positions(self, beside: Sequence[Class]) -> list[Class]:
        """Of what attention does ``beside`` each other, its heads.

        Weights make heads; where some are made so, others are positions (frames beside pixels, windows beside others).
        """
        heads = [x for x in beside if x in self._learned] or [*beside]
        for loop in (x for x in beside if x not in heads and x not in self._formed):
            self._give(loop, "pixels")
        return heads

    def _name_attended(self, kernel: Kernel, known: Set[Class]) -> Set[Class]:
        """Positions of queries and of keys: known ones, those that both have, or all that only one has."""
        number = self.drafts.index(kernel.drafts[0])
        names = [self.lifted.root(n) for n in kernel.drafts[0].inputs]
        reads = [kernel.drafts[0].reads[names.index(n)] for n in kernel.inputs[:2]]
        if kernel.inputs[0] == kernel.inputs[1]:
            reads[1] = next(r for r in kernel.drafts[0].reads[1:] if r != reads[0])
        used = [{f for dim in dims for f in dim} for dims in reads]
        alone = [[self.find((number, f)) for f in sorted(mine - other)] for mine, other in (used, used[::-1])]
        both = set(alone[0]) & set(alone[1])
        found = []
        for loops, wanted in zip(alone, ("pixels", "keys"), strict=True):
            mine = [x for x in loops if x in known or x in both or x not in self._made] or loops
            new = dict.fromkeys(
                x for x in mine if x not in known and x not in self.names and x not in self._formed
            )
            for group in self._apart_in_weights(new):
                if len(group) == 1:
                    self._give(group[0], wanted)
                else:
                    self._form(group, wanted)
            found.append(tuple(mine))
        self.attended[id(kernel)] = (found[0], found[1])
        return {x for mine in found for x in mine}

    def _apart_in_weights(self, loops: Iterable[Class]) -> list[tuple[Class, ...]]:
        """Loops in groups of which every weight has all or none: a filter has those within a patch of keys."""
        groups: dict[frozenset[str], list[Class]] = {}
        for loop in loops:
            weights = (n for k in self.lifted.kernels if k.role in PRODUCTS for n in k.weights)
            having = frozenset(n for n in weights if loop in self.loops(n))
            groups.setdefault(having, []).append(loop)
        return [tuple(group) for group in groups.values()]

    def over(self, loops: Sequence[Class]) -> str:
        """The dim that loops are, or are part of: windows of an image are of its pixels."""
        within = (name for group, name in self.together.items() if set(loops) <= set(group))
        return next(within, "") or self._named(loops[0])

    def _name_views(self) -> None:
        """What a product reads under another name is as long as what it is: keys as positions of queries."""
        for kernel in (k for k in self.lifted.kernels if k.role == "view"):
            for source, seen in zip(self.loops(kernel.inputs[0]), self.loops(kernel.outputs[0]), strict=True):
                if source != seen and seen not in self.names:
                    self.names[seen] = f"kv_{self._named(source)}"
                    self.sizes[self.names[seen]] = self.size[source]

    def _name_experts(self, dispatch: Kernel) -> None:
        """What the router makes for each token; what products make of what is sent is as wide as an expert."""
        tokens = self.loops(dispatch.inputs[0])
        for loop in self.loops(dispatch.inputs[1]):
            if loop not in tokens:
                self._give(loop, "experts")
        sent = self.loops(dispatch.outputs[0])
        for kernel in self.lifted.kernels:
            if kernel.role == "matmul" and kernel.inputs == dispatch.outputs:
                for loop in (x for name in kernel.outputs for x in self.loops(name) if x not in sent):
                    self._give(loop, "expert_ffn")

    def _name_positions(self) -> None:
        """Of the first state of the layers: what is neither batch nor features, where no indices name it.

        Pixels are no sequence: windows meet there, or weights mix them, and a job makes them neither more nor fewer.
        """
        if not self.stages[1].inputs:
            return
        state = [x for x in self.loops(self.stages[1].inputs[0]) if x not in self.names]
        if "seq" in self.sizes:
            if len(state) == 1 and state[0] in self._attended:  # frames of sound, behind convolutions
                self._give(state[0], "encoder_seq")
            elif (
                len(state) == 1 and self.size[state[0]] == self.sizes["seq"] and state[0] not in self._learned
            ):
                self.names[state[0]] = "seq"  # nodes of a graph, of which each has a label
            return
        fixed = any(k.role == "conv" for k in self.lifted.kernels) or not self._learned.isdisjoint(state)
        state = [x for x in state if x not in self._learned] or state  # rows of patches are their filter's
        if len(state) == 1:
            self._give(state[0], "pixels" if fixed else "seq")
        elif state:
            self._form(tuple(state), "pixels" if fixed else "seq")

    @cached_property
    def _attended(self) -> set[Class]:
        """Loops of what attention reads and makes alike: batches, positions of queries, heads."""
        attentions = [k for k in self.lifted.kernels if k.role == "attention"]
        return {x for k in attentions for x in self.loops(k.inputs[0]) if x in self.loops(k.outputs[0])}

    def _form(self, group: tuple[Class, ...], wanted: str) -> None:
        """Make several loops one dim."""
        if group not in self.together:
            name = wanted if wanted not in self.sizes else f"{wanted}_{len(self.together) + 1}"
            self.together[group] = name
            self.sizes[name] = elements(self.size[x] for x in group)

    @cached_property
    def _learned(self) -> set[Class]:
        """Loops over weights that multiply and over tables: of an image, its channels, wherever they stand."""
        learning = [d for k in self.lifted.kernels if k.role in (*PRODUCTS, "embedding") for d in k.drafts]
        return {x for d in learning for n in d.inputs[:2] if self.lifted.is_weight(n) for x in self.loops(n)}

    @cached_property
    def _made(self) -> set[Class]:
        """Loops that products make of weights: features and heads, never positions."""
        products = [d for k in self.lifted.kernels if k.role in PRODUCTS for d in k.drafts]
        made = (set(self.loops(d.outputs[0])) for d in products)
        pairs = zip(products, made, strict=True)
        return {
            x
            for d, out in pairs
            for n in d.inputs
            if self.lifted.is_weight(n)
            for x in self.loops(n)
            if x in out
        }

    @cached_property
    def _contracted(self) -> set[Class]:
        """Loops of what products read."""
        products = [k for k in self.lifted.kernels if k.role in PRODUCTS]
        return {x for k in products for n in k.inputs for x in self.loops(n)}

    @property
    def _formed(self) -> set[Class]:
        return {x for group in self.together for x in group}

    def _name_widths(self, kernel: Kernel, stage: Stage) -> None:
        """Rows of tables, and what products make: ``ffn`` in layers, ``vocab`` after them."""
        for name in kernel.weights:
            if name in self.lifted.tables.values() and self.loops(name)[0] not in self._formed:
                self._give(self.loops(name)[0], "positions")
        if kernel.role == "embedding":
            self._give(self.loops(kernel.weights[0])[0], "vocab")
        if kernel.role not in PRODUCTS or stage is self.stages[0]:
            return
        for loop in (x for name in kernel.outputs for x in self.loops(name)):
            if loop in self.names or loop in self._formed:
                continue
            last = stage is self.stages[-1]
            if last and self.sizes.get("vocab") == self.size[loop] and not self._meet("vocab", loop):
                self.names[loop] = "vocab"
            self._give(loop, "vocab" if last else "ffn" if loop in self._contracted else "dim")


def _contracted(product: Draft) -> set[int]:
    """Factors that a product sums over."""
    made = {f for dim in product.writes[0] for f in dim}
    return {f for dims in product.reads for dim in dims for f in dim} - made


def follows(naming: Naming) -> dict[str, str]:
    """Key heads are split as the heads that they serve."""
    return {naming.names[g[0]]: name for g, name in naming.together.items() if g[0] in naming.names}


def _shape(stage: Stage, lifted: Lifted) -> list[tuple[object, ...]]:
    """What is the same in layers that are alike."""
    value = lifted.plain.value

    def sizes(names: Sequence[str]) -> list[tuple[int, ...]]:
        return [value[lifted.root(n)].shape for n in names]

    return [
        (k.role, sorted(k.primitives), k.masked, sizes(k.inputs), sizes(k.outputs), sizes(k.weights))
        for k in stage.kernels
    ]
