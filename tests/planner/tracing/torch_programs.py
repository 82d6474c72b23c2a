"""Modules of PyTorch with their inputs, as ``FILE.py:NAME`` names them: what one process checks under layouts."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):  # type: ignore[misc]
    """Attention of shared heads, and a gated pair of layers."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, size = heads, shared, width // heads
        self.before, self.between = nn.RMSNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, shared * size, bias=False)
        self.value, self.out = nn.Linear(width, shared * size), nn.Linear(width, width)
        self.up, self.gate = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        y = self.before(x)
        query = self.query(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = (f(y).unflatten(-1, (self.shared, -1)).transpose(1, 2) for f in (self.key, self.value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):  # type: ignore[misc]
    """Blocks between an embedding and logits that share its weight."""

    def __init__(self, blocks: int = 1, words: int = 128, width: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, 4, 2) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Any, labels: Any) -> Any:
        x = self.drop(self.words(tokens))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten(), label_smoothing=0.1)


class Image(nn.Module):  # type: ignore[misc]
    """Convolutions with statistics of the batch and of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.groups = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32)
        self.last = nn.Linear(32, 8)

    def forward(self, image: Any, label: Any) -> Any:
        x = F.relu(self.norm(self.first(image)))
        x = F.max_pool2d(F.relu(self.groups(self.second(x))), 2)
        return F.cross_entropy(self.last(x.mean((2, 3))), label)


class Mixture(nn.Module):  # type: ignore[misc]
    """Each token by the expert that a router picks, written with products by batch, scatters and gathers."""

    def __init__(self, width: int = 32, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.empty(experts, width, 2 * width).uniform_(-0.1, 0.1))
        self.down = nn.Parameter(torch.empty(experts, 2 * width, width).uniform_(-0.1, 0.1))
        self.register_buffer("rows", torch.arange(128) % 16)

    def forward(self, x: Any, y: Any) -> Any:
        odds, picked = self.router(x).softmax(-1).max(-1)
        place = picked * 16 + self.rows
        slots = torch.zeros(128, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, place, x)
        made = torch.bmm(F.gelu(torch.bmm(slots.unflatten(0, (8, 16)), self.up)), self.down)
        return F.mse_loss(made.flatten(0, 1)[place] * odds[:, None], y)


class Words(nn.Module):  # type: ignore[misc]
    """Few rows, many columns: the softmax goes over what is split."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 4096)

    def forward(self, x: Any, y: Any) -> Any:
        made = self.layer(x)
        return F.cross_entropy(made, y) - made.softmax(-1).square().mean()


class Large(nn.Module):  # type: ignore[misc]
    """Of one image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3, stride=2, padding=1)
        self.norm, self.patches = nn.GroupNorm(1, 6), nn.Conv2d(5, 4, 4, stride=4, padding=1)

    def forward(self, image: Any) -> Any:
        x = F.relu(self.norm(self.first(image)))
        return F.relu(self.patches(F.relu(self.second(x)))).square().mean()


class Signal(nn.Module):  # type: ignore[misc]
    """Of one sequence, of which windows are long."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 8, 9, padding=4), nn.Conv1d(8, 8, 9, padding=4, groups=4)

    def forward(self, signal: Any) -> Any:
        return self.second(F.gelu(self.first(signal))).square().mean()


class Dilated(nn.Module):  # type: ignore[misc]
    """Of one sequence, of which windows meet every second or fourth element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv1d(4, 4, 5, s, 2 * d, dilation=d) for s, d in ((1, 2), (2, 4)))

    def forward(self, signal: Any) -> Any:
        return self.second(F.gelu(self.first(signal))).square().mean()


class Square(nn.Module):  # type: ignore[misc]
    """A convolution of an image too small to lie in parts along one dim alone, and what follows it."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 31, 5, padding=2), nn.Conv2d(31, 31, 5, padding=2, bias=False)
        self.after, self.last = after, nn.Conv2d(31, 3, 3, padding=1)

    def forward(self, x: Any, target: Any) -> Any:
        x = self.after(self.second(F.relu(self.first(x))))
        return F.mse_loss(self.last(x), target)


class Noisy(nn.Module):  # type: ignore[misc]
    """Attention that drops three of four scores, by numbers that are the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 48)

    def forward(self, x: Any) -> Any:
        arrays = self.layer(x).unflatten(-1, (4, 12)).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(*arrays, dropout_p=0.75).square().mean()


class Scores(nn.Module):  # type: ignore[misc]
    """Returns two arrays; a constant is written in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, x: Any) -> tuple[Any, Any]:
        made = self.layer(x) * torch.tensor([1.0, -1.0]).repeat(16)
        return made.softmax(-1), made.logsumexp(-1)


class Asked(nn.Module):  # type: ignore[misc]
    """Few queries of what they attend to, and a score of each with where it came from."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.score = nn.Bilinear(64, 64, 8)

    def forward(self, few: Any, many: Any) -> Any:
        asked = self.norm(self.into(few))
        found = self.attention(asked, many, many, need_weights=False)[0]
        return self.score(found, few).square().mean()


def tokens() -> tuple[Any, Any]:
    """Of a batch, and what follows them."""
    rng = torch.Generator().manual_seed(0)
    found = torch.randint(128, (8, 33), generator=rng)
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def language() -> tuple[Any, ...]:
    """On the CPU, with numbers."""
    torch.manual_seed(0)
    return Language(), *tokens()


def two_blocks() -> tuple[Any, ...]:
    """The same, twice as deep."""
    torch.manual_seed(0)
    return Language(2), *tokens()


def dropped() -> tuple[Any, ...]:
    """With dropout."""
    return Language(dropout=0.1), *tokens()


def image() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Image(), torch.zeros(16, 3, 32, 32), torch.zeros(16, dtype=torch.long)


def settled() -> tuple[Any, ...]:
    """The same, evaluated."""
    module, *inputs = image()
    return module.eval(), *inputs


def precise() -> tuple[Any, ...]:
    """The same in fp64."""
    module, images, labels = image()
    return module.double(), images.double(), labels


def mixture() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Mixture(), torch.zeros(128, 32), torch.zeros(128, 32)


def large() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Large(), torch.zeros(1, 3, 128, 128)


def picture() -> tuple[Any, ...]:
    """The same on the CPU, with numbers."""
    torch.manual_seed(0)
    return Large(), torch.randn(1, 3, 128, 128)


def signal() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Signal(), torch.zeros(1, 4, 256)


def dilated() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Dilated(), torch.zeros(1, 4, 512)


def square() -> tuple[Any, ...]:
    """The norm reads the image as one row."""
    with torch.device("meta"):
        return Square(nn.GroupNorm(1, 31)), torch.zeros(1, 3, 20, 20), torch.zeros(1, 3, 20, 20)


def pooled() -> tuple[Any, ...]:
    """Before the mean, the gradient is the same all over the image."""
    with torch.device("meta"):
        return Square(nn.AdaptiveAvgPool2d(1)), torch.zeros(1, 3, 20, 20), torch.zeros(1, 3, 1, 1)


def short_signal() -> tuple[Any, ...]:
    """Shorter than two windows."""
    with torch.device("meta"):
        return Signal(), torch.zeros(1, 4, 16)


def noisy() -> tuple[Any, ...]:
    """On the CPU, with numbers."""
    torch.manual_seed(0)
    return Noisy(), torch.randn(2, 8, 16)


def words() -> tuple[Any, ...]:
    """Without numbers."""
    with torch.device("meta"):
        return Words(), torch.zeros(3, 32), torch.zeros(3, dtype=torch.long)


def scores() -> tuple[Any, ...]:
    """Without a loss."""
    return Scores(), torch.randn(16, 64, generator=torch.Generator().manual_seed(0))


def asked() -> tuple[Any, ...]:
    """Six queries, so that heads are split elsewhere."""
    with torch.device("meta"):
        return Asked(), torch.zeros(8, 6, 64), torch.zeros(8, 16, 64)


class Bags(nn.Module):  # type: ignore[misc]
    """Means of few of many rows, and sums that are weighed."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.means, self.sums = nn.EmbeddingBag(rows, 16), nn.EmbeddingBag(rows, 16, mode="sum")
        self.head = nn.Linear(32, 1)

    def forward(self, index: Any, weights: Any, labels: Any) -> Any:
        both = self.means(index), self.sums(index, per_sample_weights=weights)
        return F.mse_loss(self.head(torch.cat(both, 1)).squeeze(1), labels)


class UnevenBags(nn.Module):  # type: ignore[misc]
    """Sums of as many rows as offsets say."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.EmbeddingBag(16, 4, mode="mean"), nn.Linear(4, 1)

    def forward(self, index: Any, starts: Any, labels: Any) -> Any:
        return F.mse_loss(self.head(self.rows(index, starts)).squeeze(1), labels)


class Recurrent(nn.Module):  # type: ignore[misc]
    """Each word by the rows of a recurrent layer, and all by its last state."""

    def __init__(self, kind: str, **how: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(48, 16), getattr(nn, kind)(16, 32, batch_first=True, **how)
        self.head = nn.Linear(32 * (1 + self.layer.bidirectional), 48)

    def forward(self, tokens: Any, labels: Any) -> Any:
        rows, last = self.layer(self.words(tokens))
        state = last[0] if isinstance(last, tuple) else last
        return F.cross_entropy(self.head(rows).flatten(0, 1), labels.flatten()) + state.square().mean()


def few_rows() -> tuple[Any, ...]:
    """On the CPU, with numbers."""
    torch.manual_seed(0)
    return Bags(64), torch.randint(0, 64, (64, 4)), torch.rand(64, 4), torch.rand(64)


def many_rows() -> tuple[Any, ...]:
    """So many that none has all of them."""
    torch.manual_seed(0)
    return Bags(4096), torch.randint(0, 4096, (16, 4)), torch.rand(16, 4), torch.rand(16)


def uneven_bags() -> tuple[Any, ...]:
    """Of no row to seven."""
    torch.manual_seed(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(0, 8, (511,)).cumsum(0)])
    return UnevenBags(), torch.randint(0, 16, (2048,)), starts, torch.rand(512)


def _recurrent(kind: str, **how: Any) -> tuple[Any, ...]:
    with torch.device("meta"):
        words = torch.zeros(8, 6, dtype=torch.long)
        return Recurrent(kind, **how), words, words.clone()


def lstm() -> tuple[Any, ...]:
    """Both ways."""
    return _recurrent("LSTM", bidirectional=True)


def gru() -> tuple[Any, ...]:
    """Without numbers."""
    return _recurrent("GRU")


def rnn() -> tuple[Any, ...]:
    """Without biases."""
    return _recurrent("RNN", bias=False)
