"""DeepSpeed's steps replayed through PyTorch's allocator: what flat arrays leave reserved beside what layers make.

Stages of GPT layers, recomputed whole, under ZeRO-1 in pipelines, arrays in the order in which DeepSpeed makes and
frees them. Prints what is alive and reserved at the most, beside the sum that `planner.evaluation.flat_buffers` takes:
states, gradients, layers and flat arrays, each at their fullest.

Source: deepspeedai/DeepSpeed@v0.5.10 ``runtime/zero/stage_1_and_2.py`` and @27e5b9564 ``runtime/bf16_optimizer.py``.

Run: ``python benchmarks/replaying_flat.py``
"""

from typing import NamedTuple

from replayed_allocator import Allocator, Block

from cluster_specs.units import GIB

BUCKET = 500_000_000
"""Elements of a reduction, and of a gather."""


class Stage(NamedTuple):
    """The first one of a model of GPT's kind, and its share of the work."""

    layers: int
    hidden: int
    heads: int
    tensor: int
    data: int
    in_flight: int
    sequences: int
    wide_sums: bool = False
    """Gradients are added up in fp32, which bf16 jobs do."""
    vocabulary: int = 250_880
    seq: int = 2048

    @property
    def weights(self) -> list[int]:
        """Elements of each: the table, then four a layer."""
        square = self.hidden**2 // self.tensor
        layer = [3 * square, square, 4 * square, 4 * square]
        return [self.vocabulary * self.hidden // self.tensor, *(self.layers * layer)]


class Replay:
    """One stage's arrays over a few steps."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.allocator = stage, Allocator(expandable=False)
        self.row = 2 * stage.seq * stage.sequences * stage.hidden
        self.part = self.row // stage.tensor
        self.scores = 2 * stage.heads // stage.tensor * stage.seq**2 * stage.sequences
        self.total = sum(stage.weights)
        self.shard = self.total // stage.data
        self.gradients: list[Block | None] = [None] * len(stage.weights)

    def take(self, size: float) -> Block:
        """An array of so many bytes."""
        return self.allocator.take(int(size), 0)

    def give(self, *blocks: Block) -> None:
        """Free them."""
        for block in blocks:
            self.allocator.give(block)

    def prepare(self) -> None:
        """Weights, flattened; masters of the shard and states."""
        modules = [self.take(2 * size) for size in self.stage.weights]
        if self.stage.wide_sums:
            self.take(2 * self.total)
            self.give(*modules)
            self.take(4 * self.total)
        else:
            self.give(*modules)
            self.take(2 * self.total)
        copy = self.take(2 * self.shard)
        self.take(4 * self.shard)
        self.give(copy)
        first = None if self.stage.wide_sums else self.take(4 * self.shard)
        self.take(4 * self.shard)
        self.take(4 * self.shard)
        if first is not None:
            self.give(first)

    def layer(self) -> tuple[list[Block], Block]:
        """The forward of one: what its backward reads, and its result."""
        row, part, scores = self.row, self.part, self.scores
        kept = [self.take(size) for size in (row, 3 * part, part, part, part)]
        products = self.take(scores)
        kept.append(self.take(scores))
        self.give(products)
        kept += [self.take(scores // 2), self.take(scores)]
        context = self.take(part)
        kept.append(self.take(part))
        self.give(context)
        for sizes in ((row // 2, row), (row, 4 * part, 4 * part), (row // 2,)):
            result = self.take(row)
            kept += [self.take(size) for size in sizes]
            self.give(result)
        return kept, self.take(row)

    def forward(self) -> list[Block]:
        """Of all layers, whose inputs stay."""
        inputs = [self.take(self.row)]
        for _ in range(self.stage.layers):
            kept, result = self.layer()
            self.give(*kept)
            inputs.append(result)
        return inputs

    def gradient(self, number: int) -> None:
        """Of one weight: added to the one that there is."""
        made = self.take(2 * self.stage.weights[number])
        if self.gradients[number] is None:
            self.gradients[number] = made
        else:
            self.give(made)

    def backward(self, inputs: list[Block]) -> None:
        """Of all layers, each computed again."""
        part, row, scores = self.part, self.row, self.scores
        incoming = self.take(row)
        self.give(inputs.pop())
        for last in range(len(self.stage.weights) - 1, 0, -4):
            kept, result = self.layer()
            before = incoming
            for number, size in ((last, 4 * part), (last - 1, row), (last - 2, part)):
                made = self.take(size)
                self.gradient(number)
                if before is not incoming:
                    self.give(before)
                before = made
            probabilities, products = self.take(scores), self.take(scores)
            mixed = self.take(3 * part)
            self.give(probabilities, products, before)
            self.gradient(last - 3)
            after = self.take(row)
            self.give(mixed, incoming, *kept, result, inputs.pop())
            incoming = after
        self.gradient(0)
        self.give(incoming)

    def update(self) -> None:
        """Reduction by a bucket, the shard flattened and cast, and the gather of updated weights."""
        if self.stage.wide_sums:
            self.give(self.take(4 * BUCKET))
        else:
            bucket, averaged = self.take(2 * BUCKET), self.take(2 * self.shard)
            self.give(bucket, *(block for block in self.gradients if block is not None))
            self.gradients = [None] * len(self.gradients)
            flat, cast = self.take(2 * self.shard), self.take(4 * self.shard)
            self.give(flat, averaged, cast)
        self.give(self.take(2 * self.total / max(1, self.total // BUCKET)))

    def step(self) -> None:
        """As many micro-batches as are in flight, and three more."""
        waiting = [self.forward() for _ in range(self.stage.in_flight)]
        for _ in range(3):
            self.backward(waiting.pop(0))
            waiting.append(self.forward())
        for inputs in waiting:
            self.backward(inputs)
        self.update()


def replayed(stage: Stage, steps: int = 3) -> tuple[float, float]:
    """Most that is alive, and what is reserved in the end [bytes]."""
    replay = Replay(stage)
    replay.prepare()
    for _ in range(steps):
        replay.step()
    return replay.allocator.peak_live, replay.allocator.reserved


STAGES = {
    "025": Stage(6, 14336, 64, 8, 4, 12, 1),
    "026": Stage(6, 14336, 64, 8, 4, 12, 2),
    "028": Stage(6, 14336, 64, 8, 4, 12, 8),
    "029": Stage(12, 14336, 64, 8, 8, 6, 1),
    "031": Stage(12, 14336, 64, 8, 8, 6, 4),
    "068": Stage(18, 14336, 64, 8, 12, 4, 2),
    "069": Stage(18, 14336, 64, 8, 12, 4, 4),
    "070": Stage(36, 14336, 64, 8, 24, 2, 1),
    "072": Stage(6, 14336, 64, 4, 8, 12, 4),
    "076": Stage(12, 14336, 64, 4, 16, 6, 2),
    "077": Stage(6, 14336, 64, 2, 16, 12, 2),
    "079": Stage(3, 14336, 64, 2, 8, 24, 2),
    "first-fp16-80": Stage(8, 14400, 96, 8, 1, 10, 1),
    "first-fp16-160": Stage(8, 14400, 96, 8, 2, 10, 1),
    "first-bf16-160": Stage(8, 14400, 96, 8, 2, 10, 1, wide_sums=True),
}
"""Runs of the BLOOM topology study, of all sizes -> their first stage."""


def main() -> None:
    """Print them."""
    for name, stage in STAGES.items():
        alive, reserved = replayed(stage)
        print(f"{name:16} alive {alive / GIB:5.1f} GiB, reserved {reserved / GIB:5.1f} GiB")


if __name__ == "__main__":
    main()
