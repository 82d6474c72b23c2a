"""A PyTorch module as a `Program`, by ``torch.export`` on tensors without storage."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.tracing.factors import Rule, Shape, elementwise, no_rule, opaque, retyped
from planner.tracing.program import Operation, Program, Role, Tie, Value
from planner.tracing.reading.kernels import NONE, rule_for
from planner.tracing.reading.products import grouped_product
from planner.tracing.reading.torch_calls import Call, Operand, TorchRule, arguments_of, kind_of, leaves
from planner.tracing.reading.torch_convolutions import gradients
from planner.tracing.reading.torch_lookups import bag_rules
from planner.tracing.reading.torch_rules import TORCH_RULES, pointwise

if TYPE_CHECKING:
    from planner.tracing.reading.torch_lifted import Traced
    from planner.tracing.reading.torch_optimizers import Update

UPDATE = "update."
"""What begins the names of all that an optimizer's step makes."""


class Reading(NamedTuple):
    """A module as a `Program`, and the graphs that it was read from."""

    program: Program
    traced: "Traced"
    update: "Update | None"
    constants: Mapping[str, Any] = NONE
    """Tensors that the module has written in it."""


def from_torch(
    module: Any,
    *example_inputs: Any,
    gradient: bool = False,
    optimizer: Callable[[list[Any]], Any] | None = None,
    name: str | None = None,
    replicate_unknown: bool = False,
    trips: int | None = None,
    rules: Mapping[str, str] = NONE,
) -> Program:
    """``module`` on ``example_inputs`` as a `Program`; build both under ``torch.device("meta")`` to allocate nothing.

    With ``gradient`` the module must return one number, and the program is that of the gradients of its parameters
    and of the number; they are to lie as the parameters do. Parameters that require no gradient, or that none reaches,
    are frozen, where others have one.

    ``optimizer`` makes an optimizer of parameters, as ``torch.optim.AdamW`` does, or a function that says its options
    and groups. With it the program is a step of training: the gradients, and new weights and states, which are to lie
    as the old ones do.

    A way through the module that depends on values is the one that the inputs take, which need values then; of a
    ``torch.cond`` it is the branch with more operators; a ``while_loop`` runs ``trips`` times.

    Recurrent layers are loops over time. A module that takes gradients in its forward pass is read as it runs.

    ``rules`` say of operators that libraries define, as ``library.name``, how their loops index their arrays
    (`planner.tracing.reading.kernels`).

    Raises ``Unsupported`` for an operator without a rule, unless ``replicate_unknown``: then it is computed alike
    everywhere, and listed. ``InputError`` where ``gradient`` has nothing to differentiate, or PyTorch cannot export or
    differentiate the module.
    """
    return read_module(
        module,
        *example_inputs,
        gradient=gradient,
        optimizer=optimizer,
        name=name,
        replicate_unknown=replicate_unknown,
        trips=trips,
        rules=rules,
    ).program


def read_module(
    module: Any,
    *example_inputs: Any,
    gradient: bool = False,
    optimizer: Callable[[list[Any]], Any] | None = None,
    name: str | None = None,
    replicate_unknown: bool = False,
    trips: int | None = None,
    rules: Mapping[str, str] = NONE,
) -> Reading:
    """As `from_torch`, with what it read."""
    from planner.tracing.reading.torch_export import Core, core_program
    from planner.tracing.reading.torch_lifted import traced, traced_running
    from planner.tracing.reading.torch_optimizers import update_of
    from planner.tracing.reading.torch_running import NOTE, TakesGradient

    gradient = gradient or optimizer is not None
    try:
        core = core_program(module, example_inputs, trips, gradient)
        found = traced(core.exported, module, example_inputs, gradient)
    except TakesGradient:
        core = Core(None, (NOTE,), NONE)
        found = traced_running(module, example_inputs, gradient)
    update = None if optimizer is None else update_of(optimizer, found.weights, _has_rule)
    title = name or type(module).__name__
    program = _Importer(title, replicate_unknown, rules).run(
        found.graph, found.roles, found.gradients, update
    )
    program = program.model_copy(update={"applied": (*core.notes, *found.notes)})
    return Reading(program, found, update, core.constants)


def _has_rule(target: Any) -> bool:
    return kind_of(target) in TORCH_RULES or _tagged(target) is not None


def _tagged(target: Any) -> TorchRule | None:
    """The rule of an operator that PyTorch, or the library that defines it, says to work on every element by itself.

    Primitives (``prims.add``) have no such tags: those are that the operators of their names have.
    """
    from torch import Tag, ops

    namesake = getattr(ops.aten, kind_of(target).removeprefix("prims."), None)
    tags = {*getattr(target, "tags", ())}
    if kind_of(target).startswith("prims.") and namesake is not None:
        tags |= {*getattr(namesake, namesake.overloads()[0]).tags}
    return pointwise if Tag.pointwise in tags else None


class _Importer:
    """Values and operators as they are met."""

    def __init__(self, name: str, replicate_unknown: bool, rules: Mapping[str, str]) -> None:
        self.name, self.replicate_unknown, self.rules = name, replicate_unknown, rules
        self.values: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self.replicated: list[str] = []
        self.ties: list[Tie] = []
        self.names: dict[Any, Any] = {}
        """Node of the traced graph -> value, or values where it makes several."""
        self.prefix = ""
        """Of what is made."""

    def run(
        self, graph: Any, roles: Sequence[tuple[str, Role]], gradients: int, update: Any = None
    ) -> Program:
        """``gradients``: how many of the first results are those of the first inputs; ``update``: what follows them."""
        given = [n for n in graph.nodes if n.op == "placeholder"]
        inputs = [
            self._value(path, node.meta["val"], role, path)
            for node, (path, role) in zip(given, roles, strict=True)
        ]
        results = self._walk(graph, inputs)
        lie = list(zip(results[:gradients], inputs, strict=False))
        if update is not None:
            weights, made = zip(*((weight, g) for g, weight in lie if g is not None), strict=True)
            states = [self._value(path, x, "input", path) for path, x in update.states]
            self.prefix = UPDATE
            new = self._walk(update.graph, [*weights, *made, *states])
            lie, results = list(zip(new, [*weights, *states], strict=True)), [*new, *results[gradients:]]
            inputs += states
        ties = [Tie(source=o, target=p) for o, p in lie if o is not None and o != p]
        return Program(
            name=self.name,
            values=tuple(self.values.values()),
            operations=tuple(self.operations),
            inputs=tuple(inputs),
            outputs=tuple(dict.fromkeys(n for n in results if n is not None)),
            results=tuple(results),
            ties=(*ties, *self.ties),
            replicated=tuple(self.replicated),
            rules=dict(self.rules),
            sums_at_once=True,
        )

    def _walk(self, graph: Any, given: Sequence[str]) -> list[str | None]:
        """Record the operators of ``graph``, whose inputs are called ``given``; what its results are called."""
        names = iter(given)
        results: list[str | None] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                self.names[node] = next(names)
            elif node.op == "get_attr":
                self.names[node] = None
            elif node.op == "output":
                results = [self.names[n] if hasattr(n, "op") else None for n in leaves(node.args)]
            elif kind_of(node.target) in ("steps", "steps_backward"):
                self._loop(node)
            elif "getitem" in str(node.target):
                self.names[node] = self.names[node.args[0]][node.args[1]] if node.users else None
            elif any(hasattr(made, "dtype") for made in leaves(node.meta.get("val"))):  # else a check
                self._call(node)
        return results

    def _title(self, node: Any) -> str:
        return f"{self.prefix}{node.name}"

    def _value(self, name: str, tensor: Any, role: Role = "intermediate", path: str = "") -> str:
        dtype = str(tensor.dtype).removeprefix("torch.")
        while name in self.values:  # a parameter or an input may be called like an operator
            name += "'"
        self.values[name] = Value(name=name, shape=_shape(tensor), dtype=dtype, role=role, path=path)
        return name

    def _loop(self, node: Any) -> None:
        """Steps of a recurrent layer: one of them, run as often as there are rows."""
        from planner.tracing.reading.torch_lifted import core_operators
        from planner.tracing.reading.torch_loops import LOOPS, Loop

        def known(nodes: Sequence[Any]) -> list[Value | None]:
            return [None if n is None else self.values[self.names[n]] for n in nodes]

        def traced(graph: Any, names: Sequence[str]) -> Program:
            inner = _Importer(self.name, self.replicate_unknown, self.rules)
            return inner.run(graph, [(n, "input") for n in names], 0)

        given, body = LOOPS[kind_of(node.target)](node, known)
        loop = Loop(self._title(node), given.rows[0].shape[0])
        self.names[node] = loop.run(given, body, core_operators(), traced)
        self.values |= {v.name: v for v in loop.values}
        self.operations += loop.operations
        self.ties += loop.ties

    def _call(self, node: Any) -> None:
        kind = kind_of(node.target)
        tensors = [
            n for n in leaves((node.args, node.kwargs)) if hasattr(n, "op") and self.names[n] is not None
        ]
        inputs = [self.names[n] for n in tensors]
        made = node.meta["val"]
        results = list(made) if isinstance(made, tuple | list) else [made]
        outputs = [
            self._value(self._title(node) if len(results) == 1 else f"{self._title(node)}:{k}", tensor)
            if hasattr(tensor, "dtype")
            else None
            for k, tensor in enumerate(results)
        ]
        self.names[node] = outputs if isinstance(made, tuple | list) else outputs[0]
        call = Call(
            _named(node),
            [self.values[n].shape for n in inputs],
            [self.values[n].shape for n in outputs if n is not None],
            self.values[next(n for n in outputs if n is not None)].dtype,
        )
        written = [n for n in outputs if n is not None]
        before = self.values[inputs[0]].dtype if inputs else call.dtype
        if kind in _SPLIT:
            _SPLIT[kind](self, node, call, inputs, written)
        else:
            self._add(
                self._title(node), kind, inputs, written, self._rule(node, kind, call, before), _digest(node)
            )

    def _rule(self, node: Any, kind: str, call: Call, before: str) -> Rule:
        given = rule_for(self.rules, [kind], call.inputs, call.outputs)
        if given is not None:
            return given
        rule = TORCH_RULES.get(kind) or _tagged(node.target)
        if rule is not None:
            return retyped(rule(call), before, call.dtype)
        if not self.replicate_unknown:
            raise no_rule(f"{self._title(node)} ({kind})")
        self.replicated.append(self._title(node))
        return opaque(call.inputs, call.outputs)

    def _add(
        self, title: str, kind: str, inputs: Sequence[str], outputs: Sequence[str], rule: Rule, key: str
    ) -> None:
        """Record one operator; tensors that its rule does not read (sizes to copy) are left out."""
        reads = rule.reads[: len(inputs)]
        fields = {**rule._asdict(), "reads": reads, "writes": rule.writes[: len(outputs)]}
        self.operations.append(
            Operation(
                name=title,
                primitive=kind,
                inputs=tuple(inputs[: len(reads)]),
                outputs=tuple(outputs),
                key=key,
                **fields,
            )
        )

    def _affine(self, node: Any, call: Call, inputs: list[str], outputs: list[str]) -> None:
        """``bias + a b`` as a product and a sum."""
        bias, left, right = inputs
        shapes = (self.values[left].shape, self.values[right].shape)
        kind = "bmm" if len(shapes[0]) == 3 else "mm" if len(shapes[1]) == 2 else "mv"
        mid = f"{self._title(node)}.product"
        self.values[mid] = self.values[outputs[0]].model_copy(update={"name": mid})
        pair = call._replace(inputs=shapes)
        key = _digest(node)
        self._add(mid, kind, [left, right], [mid], TORCH_RULES[kind](pair), key)
        added = [self.values[mid].shape, self.values[bias].shape]
        self._add(self._title(node), "add", [mid, bias], outputs, elementwise(added, call.outputs), key)

    def _convolution(self, node: Any, call: Call, inputs: list[str], outputs: list[str]) -> None:
        """A convolution, and the sum with its bias."""
        rule, key = TORCH_RULES["convolution"](call), _digest(node)
        if len(inputs) < 3:
            return self._add(self._title(node), "convolution", inputs, outputs, rule, key)
        mid = f"{self._title(node)}.product"
        self.values[mid] = self.values[outputs[0]].model_copy(update={"name": mid})
        self._add(mid, "convolution", inputs[:2], [mid], rule, key)
        whole = elementwise([call.outputs[0]], call.outputs)
        channel = (whole.writes[0][1],)
        return self._add(
            self._title(node),
            "add",
            [mid, inputs[2]],
            outputs,
            whole._replace(reads=(*whole.reads, channel)),
            key,
        )

    def _convolution_backward(self, node: Any, call: Call, inputs: list[str], outputs: list[str]) -> None:
        """Gradients of the input, the filter and the bias."""
        found = gradients(call)
        wanted = [k for k, needed in enumerate(call.arguments["output_mask"]) if needed]
        for k, name in zip(wanted, outputs, strict=True):
            rule, read = found[k]
            self._add(
                name, f"convolution_backward_{k}", [inputs[i] for i in read], [name], rule, _digest(node)
            )

    def _bags(self, node: Any, call: Call, inputs: list[str], outputs: list[str]) -> None:
        """Sums by bag, and by themselves the small arrays beside them."""
        for place, (name, rule) in enumerate(zip(outputs, bag_rules(call), strict=True)):
            self._add(name, "embedding_bag", inputs[place > 0 :], [name], rule, f"{_digest(node)}:{place}")

    def _grouped_backward(self, node: Any, call: Call, inputs: list[str], outputs: list[str]) -> None:
        """Gradients of the rows and of the matrices of a product by group."""
        rows, matrices, ends, gradient = inputs
        shapes = {name: self.values[name].shape for name in inputs}
        pairs = ((gradient, matrices, (1, 2)), (rows, gradient, (1, 1)))
        key = _digest(node)
        for name, shape, (left, right, depth) in zip(outputs, call.outputs, pairs, strict=True):
            rule = grouped_product(shapes[left], shapes[right], shapes[ends][0], shape, depth)
            rule = rule or opaque([shapes[left], shapes[right], shapes[ends]], [shape])
            self._add(name, "grouped_mm_backward", [left, right, ends], [name], rule, key)


_SPLIT: Mapping[str, Callable[[_Importer, Any, Call, list[str], list[str]], None]] = {
    "_embedding_bag": _Importer._bags,
    "_embedding_bag_forward_only": _Importer._bags,
    "addmm": _Importer._affine,
    "addmv": _Importer._affine,
    "baddbmm": _Importer._affine,
    "convolution": _Importer._convolution,
    "convolution_backward": _Importer._convolution_backward,
    "transformers.grouped_mm_fallback_backward": _Importer._grouped_backward,
}
"""Operators that become several."""


def _shape(tensor: Any) -> Shape:
    return tuple(int(n) for n in tensor.shape)


def _described(arguments: Any) -> Any:
    """Arguments with tensors as their shapes."""
    if isinstance(arguments, tuple | list):
        return [_described(a) for a in arguments]
    if hasattr(arguments, "op"):
        value = arguments.meta.get("val")
        return Operand(_shape(value)) if hasattr(value, "shape") else None
    return arguments


def _named(node: Any) -> dict[str, Any]:
    """Arguments by name, described, with their defaults."""
    given = arguments_of(node.target, node.args, node.kwargs)
    return {name: _described(value) for name, value in given.items()}


def _digest(node: Any) -> str:
    """What is computed, but for the inputs."""
    plain = [_described(node.args), sorted((k, str(_described(v))) for k, v in node.kwargs.items())]
    text = repr((str(node.target), plain, str(node.meta["val"])))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
