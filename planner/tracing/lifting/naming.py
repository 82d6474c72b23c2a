"""Names for the dims of a program: one for all loops that run over the same thing.

Loops are joined where one value is indexed by both. Then the batch is what all data have first, ``seq`` what indices
have second, ``hidden`` what layers hand on, ``heads`` what attention does beside each other, ``vocab`` the rows of
the embedding or the classes of the loss, ``ffn`` what products make and sum inside a layer.
"""

from collections.abc import Sequence

from planner.errors import Unsupported
from planner.graph import BATCH
from planner.tracing.lifting.kernels import Kernel, Lifted
from planner.tracing.lifting.stages import Stage

Class = tuple[int, int]
"""(operator, factor): one of those that are joined stands for all."""


class Naming:
    """Dims of every value, by name."""

    def __init__(self, lifted: Lifted, stages: Sequence[Stage]) -> None:
        self.lifted, self.stages = lifted, stages
        self.drafts = lifted.plain.drafts
        self.parent: dict[Class, Class] = {}
        self.size: dict[Class, int] = {}
        self.indexed: dict[str, list[list[Class]]] = {}
        """Value -> per dim the loops that index it."""
        self.names: dict[Class, str] = {}
        self.pairs: dict[tuple[Class, Class], str] = {}
        """Loops that form one dim together: key heads and queries of each."""
        self.sizes: dict[str, int] = {}
        self._join_loops()
        self._join_across_kernels()
        self._name()

    def find(self, loop: Class) -> Class:
        """What stands for ``loop``."""
        while self.parent.get(loop, loop) != loop:
            self.parent[loop] = loop = self.parent.get(self.parent[loop], self.parent[loop])
        return loop

    def join(self, first: Class, second: Class) -> None:
        """Make two the same."""
        a, b = sorted((self.find(first), self.find(second)))
        self.parent[b] = a
        if b in self.names:
            self.names.setdefault(a, self.names[b])

    def _join_loops(self) -> None:
        for i, draft in enumerate(self.drafts):
            self.size.update(((i, f), n) for f, n in enumerate(draft.sizes))
            for name, dims in (*zip(draft.inputs, draft.reads, strict=True), *zip(draft.outputs, draft.writes, strict=True)):
                here = [[(i, f) for f in dim] for dim in dims]
                for a, b in zip(self.indexed.setdefault(name, here), here, strict=True):
                    for first, second in zip(a, b, strict=True):
                        self.join(first, second)
        for tie in self.lifted.plain.program.ties:
            self._join_values(tie.source, tie.target)
        for name, other in self.lifted.alias.items():
            if len(self._flat(name)) == len(self._flat(other)):
                self._join_values(name, other)

    def _flat(self, name: str) -> list[Class]:
        return [loop for dim in self.indexed.get(name, []) for loop in dim]

    def _join_values(self, first: str, second: str) -> None:
        for a, b in zip(self._flat(first), self._flat(second), strict=False):
            if self.size[a] == self.size[b]:
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

    def loops(self, name: str) -> list[Class]:
        """The loops over ``name``, those that stand for them, in order."""
        return [self.find(loop) for loop in self._flat(name)]

    def dims(self, name: str) -> tuple[str, ...]:
        """Names of the dims of a value; raises ``Unsupported`` where two of them are the same."""
        loops = self.loops(name)
        found: list[str] = []
        for pair, together in self.pairs.items():
            if set(pair) <= set(loops):
                at = min(map(loops.index, pair))
                loops = [x for x in loops if x not in pair]
                loops.insert(at, pair[0])
                found.append(together)
        joined = {pair[0]: n for pair, n in self.pairs.items() if n in found}
        found = [joined.get(x) or self._named(x) for x in loops]
        if len(set(found)) < len(found):
            raise Unsupported(f"{name} has the dims {', '.join(found)}: a graph names each once")
        return tuple(found)

    def _named(self, loop: Class) -> str:
        if loop not in self.names:
            self._give(loop, "dim")
        return self.names[loop]

    def _give(self, loop: Class, wanted: str) -> None:
        """Name a loop, by a number more where the name is taken."""
        if loop in self.names:
            return
        name, number = wanted, 2
        while name in self.sizes:
            name, number = f"{wanted}_{number}", number + 1
        self.names[loop] = name
        if name != BATCH:
            self.sizes[name] = self.size[loop]

    def _name(self) -> None:
        self._name_data()
        for stage in self.stages[1:-1]:
            for name in stage.inputs[:1]:
                if loops := self.loops(name):
                    self._give(loops[-1], "hidden")
        for kernel in self.lifted.kernels:
            if kernel.role == "attention":
                self._name_heads(kernel)
        for stage in self.stages:
            for kernel in stage.kernels:
                self._name_widths(kernel, inner=stage is not self.stages[-1])

    def _name_data(self) -> None:
        program = self.lifted.plain.program
        data = [n for n in program.inputs if n not in self.lifted.plain.weights and self._flat(n)]
        if not data:
            raise Unsupported(f"program {program.name} has no input whose first dim is a batch of two or more")
        batch = self.loops(data[0])[0]
        for name in data:
            loops = self.loops(name)
            if loops[0] != batch:
                raise Unsupported(
                    f"inputs {data[0]} and {name} begin with other dims: the first one of all data is the batch"
                )
            if len(loops) > 1 and program.value[name].dtype.startswith("int"):
                self._give(loops[1], "seq")
        self.names[batch] = BATCH

    def _name_heads(self, kernel: Kernel) -> None:
        """Of queries: what is beside the batch, the positions and what scores sum over."""
        scores = kernel.drafts[0]
        number = self.drafts.index(scores)
        queries, keys, values = (self.loops(n) for n in kernel.inputs)
        made = {self.find((number, f)) for dim in scores.writes[0] for f in dim}
        inner = [x for x in queries if x in keys and x not in made]
        known = {*self.names, *inner}
        heads = [x for x in queries if x not in known and x != self._positions(queries, keys)]
        shared = [x for x in heads if x in keys]
        for loop in inner:
            self._give(loop, "head_dim")
            for other in values:
                if other not in {*self.names, *heads} and self.size[other] == self.size[loop]:
                    self.join(other, loop)
        for other in map(self.find, values):
            if other not in {*self.names, *heads}:
                self._give(other, "v_dim")
        if len(heads) == 2 and len(shared) == 1:
            self._pair(shared[0], next(x for x in heads if x not in shared))
        elif len(heads) == 1:
            self._give(heads[0], "heads")

    def _positions(self, queries: list[Class], keys: list[Class]) -> Class | None:
        """Positions of queries where no data name them (patches of an image)."""
        if "seq" in self.sizes or not self.stages[1].inputs:
            return None
        state = [x for x in self.loops(self.stages[1].inputs[0]) if x in queries and x not in self.names]
        if state:
            self._give(state[0], "seq")
        return state[0] if state else None

    def _pair(self, shared: Class, each: Class) -> None:
        if (shared, each) not in self.pairs:
            self._give(shared, "kv_heads")
            name = "heads" if "heads" not in self.sizes else f"heads_{len(self.pairs) + 1}"
            self.pairs[shared, each] = name
            self.sizes[name] = self.size[shared] * self.size[each]

    def _name_widths(self, kernel: Kernel, inner: bool) -> None:
        if kernel.role == "embedding":
            table = self.loops(kernel.weights[0])
            self._give(table[0], "vocab")
        if kernel.role == "matmul":
            for name in kernel.outputs:
                for loop in self.loops(name):
                    if loop in self.names or any(loop in pair for pair in self.pairs):
                        continue
                    if not inner and self.sizes.get("vocab") == self.size[loop]:
                        self.names[loop] = "vocab"
                    self._give(loop, "ffn" if inner else "vocab")


def follows(naming: Naming) -> dict[str, str]:
    """Key heads are split as the heads that they serve."""
    return {naming.names[shared]: name for (shared, _), name in naming.pairs.items()}
