"""Small models of many families, for the starter set of the predictors (predictor_runs.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """One model, one batch size, training or not."""

    family: str
    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]  # the inputs, and the target last
    loss: Callable[..., torch.Tensor]
    optimizer: str | None  # None: inference

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """It is new at each call."""
        kinds: dict[str, Any] = {
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
            "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
        }
        return None if self.optimizer is None else kinds[self.optimizer](model.parameters())


# -- parts -------------------------------------------------------------------------------------


class Around(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.after = after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(x + self.inner(x))


class Beside(nn.Module):
    """x and f(x), joined along the channels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.inner(x)], 1)


class Turned(nn.Module):
    """f over the other axis."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class LastOf(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, inner: nn.Module, out: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = inner, out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x)[0][:, -1])


class MeanOf(nn.Module):
    """The mean over an axis, then a last layer."""

    def __init__(self, inner: nn.Module, out: nn.Module, axis: int = 1) -> None:
        super().__init__()
        self.inner, self.out, self.axis = inner, out, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x).mean(self.axis))


class Block(nn.Module):
    """A block of a decoder: causal attention, then two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """A small GPT with tied weights."""

    def __init__(self, words: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Vit(nn.Module):
    """Patches of an image through a transformer's encoder."""

    def __init__(self, side: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.encoder = encoder(width, 4, depth)
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.out(self.encoder(x).mean(1))


class Recommender(nn.Module):
    """Embeddings of categories beside numbers, and their products."""

    def __init__(self, rows: int, width: int, fields: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.below = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, width))
        pairs = (fields + 1) ** 2
        self.above = nn.Sequential(
            nn.Linear(pairs + width, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def forward(self, numbers: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        low = self.below(numbers)
        rows = [table(fields[:, place]) for place, table in enumerate(self.tables)]
        all_of = torch.stack([low, *rows], 1)
        crossed = torch.bmm(all_of, all_of.transpose(1, 2)).flatten(1)
        return self.above(torch.cat([low, crossed], 1))


class Unet(nn.Module):
    """Down, and up again beside what was there."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [3, *(width * 2**level for level in range(depth))]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(conv(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs[1:]))
        self.joined = nn.ModuleList(conv(2 * a, a) for a, _ in reversed(pairs[1:]))
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for level, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if level else x)
            seen.append(x)
        for layer, join, beside in zip(self.up, self.joined, reversed(seen[:-1]), strict=True):
            x = join(torch.cat([layer(x), beside], 1))
        return self.out(x).mean((2, 3))


class Pairs(nn.Module):
    """Two layers over a graph with a full matrix of neighbours."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, 10)

    def forward(self, near: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.second(near @ F.relu(self.first(near @ x)))


class Several(nn.Module):
    """What several parts make of the same image, joined along the channels."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class Squeeze(nn.Module):
    """Channels, each times what a small network makes of the means of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.inner(x.mean((2, 3)))[:, :, None, None]


class TextCnn(nn.Module):
    """Convolutions of several widths over words, and the largest of each."""

    def __init__(self, words: int, width: int, channels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.parts = nn.ModuleList(nn.Conv1d(width, channels, k, padding=k // 2) for k in (3, 4, 5))
        self.out = nn.Linear(3 * channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x).transpose(1, 2)
        return self.out(torch.cat([F.relu(part(x)).amax(2) for part in self.parts], 1))


class Gated(nn.Module):
    """A decoder's block as today's have it: RMS norms, few heads of keys, a gated network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.of_keys = heads, heads // 2
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        one, y = width // self.heads, self.before(x)
        q = self.q(y).view(batch, length, self.heads, one).transpose(1, 2)
        kv = self.kv(y).view(batch, length, 2, self.of_keys, one).permute(2, 0, 3, 1, 4)
        k, v = kv.repeat_interleave(2, 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Words through gated blocks."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Gated(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(x)))).flatten(0, 1)


def conv(a: int, b: int, stride: int = 1, groups: int = 1, side: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(a, b, side, stride, side // 2, groups=groups, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(),
    )


def encoder(width: int, heads: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def mlp(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(784, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def cnn(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    last = 3
    for level in range(depth):
        now = width * 2**level
        layers += [nn.Conv2d(last, now, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        last = now
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))


def resnet(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, width)]
    for level in range(3):
        now = width * 2**level
        if level:
            layers.append(conv(now // 2, now, 2))
        for _ in range(depth):
            inner = nn.Sequential(
                conv(now, now), nn.Conv2d(now, now, 3, padding=1, bias=False), nn.BatchNorm2d(now)
            )
            layers.append(Around(inner, nn.ReLU()))
    return nn.Sequential(*layers, Flat(now))


class Both(nn.Module):
    """A layer behind a scale, so that there is something to train, and that its inputs have a
    gradient as they have within a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.scale)


class Attend(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Look(nn.Module):
    """Rows of an embedding; the words are made from the given numbers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.inner = words, nn.Embedding(words, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner((x.abs() * 1e6).long() % self.words)


class Flat(nn.Module):
    """The mean of what is left of an image, and a last layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.out = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.view(x.shape[0], self.channels, -1).mean(2))


def mobilenet(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, width, 2)]
    for level in range(depth):
        now = width * 2 ** (level // 2)
        after = width * 2 ** ((level + 1) // 2)
        layers += [
            nn.Conv2d(now, 4 * now, 1),
            nn.Hardswish(),
            conv(4 * now, 4 * now, groups=4 * now),
            nn.Conv2d(4 * now, after, 1),
        ]
    return nn.Sequential(*layers, Flat(after))


def convnext(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 2, 2)]
    for _ in range(depth):
        layers.append(
            Around(
                nn.Sequential(
                    nn.Conv2d(width, width, 7, padding=3, groups=width),
                    nn.GroupNorm(1, width),
                    nn.Conv2d(width, 4 * width, 1),
                    nn.GELU(),
                    nn.Conv2d(4 * width, width, 1),
                )
            )
        )
    return nn.Sequential(*layers, Flat(width))


def densenet(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, 2 * width, 2)]
    now = 2 * width
    for _ in range(depth):
        layers.append(Beside(conv(now, width)))
        now += width
    return nn.Sequential(*layers, nn.AvgPool2d(2), Flat(now))


def autoencoder(width: int, depth: int) -> nn.Sequential:
    widths = [3, *(width * 2**level for level in range(depth))]
    down = [nn.Conv2d(a, b, 4, 2, 1) for a, b in pairwise(widths)]
    up = [nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in pairwise(widths)]
    layers: list[nn.Module] = []
    for layer in (*down, *reversed(up)):
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def mixer(places: int, width: int, depth: int) -> MeanOf:
    layers: list[nn.Module] = [nn.Linear(48, width)]
    for _ in range(depth):
        over = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        layers += [
            Around(nn.Sequential(nn.LayerNorm(width), Turned(over))),
            Around(nn.Sequential(nn.LayerNorm(width), along)),
        ]
    return MeanOf(nn.Sequential(*layers), nn.Linear(width, 10))


def wave(width: int, depth: int) -> MeanOf:
    layers: list[nn.Module] = [nn.Conv1d(8, width, 3, padding=1)]
    for level in range(depth):
        far = 2 ** (level % 4)
        inner = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=far, dilation=far), nn.ReLU(), nn.Dropout(0.1)
        )
        layers.append(Around(inner))
    return MeanOf(nn.Sequential(*layers), nn.Linear(width, 10), 2)


def inception(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, 4 * width)]
    for level in range(depth):
        layers.append(Several(
            conv(4 * width, width, side=1),
            nn.Sequential(conv(4 * width, width // 2, side=1), conv(width // 2, 2 * width)),
            nn.Sequential(conv(4 * width, width // 4, side=1), conv(width // 4, width, side=5)),
        ))  # fmt: skip
        if level % 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, Flat(4 * width))


def senet(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, width, 2)]
    for level in range(depth):
        if level == depth // 2:
            layers.append(conv(width, 2 * width, 2))
            width *= 2
        layers.append(Around(nn.Sequential(conv(width, width), Squeeze(width))))
    return nn.Sequential(*layers, Flat(width))


# -- all cases ---------------------------------------------------------------------------------

Make = Callable[[], nn.Module]
Batch = Callable[[int], tuple[torch.Tensor, ...]]
classes = F.cross_entropy
#: Which optimizer the variants of a family take, by turns.
OPTIMIZERS = ("adam", "sgd", "adamw", "momentum")


def labels(count: int, of: int = 10) -> torch.Tensor:
    return torch.randint(0, of, (count,))


def images(side: int) -> Batch:
    return lambda n: (torch.randn(n, 3, side, side), labels(n))


def rows(*shape: int) -> Batch:
    return lambda n: (torch.randn(n, *shape), labels(n))


def texts(length: int, words: int) -> Batch:
    return lambda n: (torch.randint(0, words, (n, length)), labels(n * length, words))


def same(side: int) -> Batch:
    def make(n: int) -> tuple[torch.Tensor, ...]:
        x = torch.randn(n, 3, side, side)
        return x, torch.randn(n, 3, side, side)

    return make


def clicks(table: int, fields: int) -> Batch:
    return lambda n: (torch.randn(n, 13), torch.randint(0, table, (n, fields)), labels(n, 2))


def graphs(nodes: int, width: int) -> Batch:
    return lambda n: (torch.randn(n * nodes, n * nodes), torch.randn(n * nodes, width),
                      labels(n * nodes))  # fmt: skip


def variants() -> Iterator[tuple[str, str, Make, Batch, tuple[int, ...], Any]]:
    """Family, variant, model, batch, sizes of batches, loss."""
    for w, d, sizes in ((256, 2, (64, 256)), (512, 4, (64, 256)), (1024, 3, (32, 128)),
                        (2048, 2, (32, 128)), (768, 8, (128,))):  # fmt: skip
        yield "mlp", f"{w}x{d}", lambda w=w, d=d: mlp(w, d), rows(784), sizes, classes
    for w, d, side, sizes in ((16, 3, 32, (32, 128)), (32, 3, 32, (16, 64)),
                              (32, 4, 48, (16, 32)), (64, 2, 32, (8, 32))):  # fmt: skip
        yield "cnn", f"{w}x{d}", lambda w=w, d=d: cnn(w, d), images(side), sizes, classes
    for w, d, sizes in ((16, 1, (16, 64)), (16, 3, (16, 48)), (32, 1, (8, 32)), (32, 2, (8, 24))):
        yield "resnet", f"{w}x{d}", lambda w=w, d=d: resnet(w, d), images(32), sizes, classes
    for w, d, sizes in ((8, 4, (16, 64)), (16, 4, (16, 48)), (16, 6, (8, 32)), (24, 4, (8, 32))):
        yield "mobilenet", f"{w}x{d}", lambda w=w, d=d: mobilenet(w, d), images(48), sizes, classes
    for w, d, sizes in ((24, 2, (8, 32)), (32, 4, (8, 24)), (48, 3, (8, 24)), (64, 2, (4, 16))):
        yield "convnext", f"{w}x{d}", lambda w=w, d=d: convnext(w, d), images(32), sizes, classes
    for w, d, sizes in ((12, 6, (16, 48)), (16, 8, (8, 32)), (24, 5, (16, 32)), (8, 12, (16, 48))):
        yield "densenet", f"{w}x{d}", lambda w=w, d=d: densenet(w, d), images(32), sizes, classes
    for w, d, sizes in ((16, 3, (16, 64)), (32, 3, (8, 32)), (32, 4, (8, 32)), (48, 2, (8, 24))):
        yield ("autoencoder", f"{w}x{d}", lambda w=w, d=d: autoencoder(w, d), same(32), sizes,
               F.mse_loss)  # fmt: skip
    for w, d, side, sizes in ((8, 3, 32, (8, 32)), (16, 3, 32, (8, 16)), (16, 2, 48, (4, 16)),
                              (12, 4, 48, (4, 12))):  # fmt: skip
        yield "unet", f"{w}x{d}", lambda w=w, d=d: Unet(w, d), images(side), sizes, _two
    for w, length, sizes in ((64, 32, (16, 64)), (128, 32, (16, 64)), (256, 24, (16, 64)),
                             (192, 48, (8, 32))):  # fmt: skip
        yield ("lstm", f"{w}x{length}",
               lambda w=w: LastOf(nn.LSTM(32, w, 2, batch_first=True), nn.Linear(w, 10)),
               rows(length, 32), sizes, classes)  # fmt: skip
    for w, length, sizes in ((64, 32, (16, 64)), (128, 32, (16, 64)), (256, 24, (16, 64)),
                             (192, 48, (8, 32))):  # fmt: skip
        yield ("gru", f"{w}x{length}",
               lambda w=w: LastOf(nn.GRU(32, w, 1, batch_first=True), nn.Linear(w, 10)),
               rows(length, 32), sizes, classes)  # fmt: skip
    for w, d, length, sizes in ((64, 2, 64, (8, 32)), (128, 3, 64, (8, 24)), (256, 2, 32, (8, 32)),
                                (192, 4, 96, (2, 8))):  # fmt: skip
        yield ("encoder", f"{w}x{d}x{length}",
               lambda w=w, d=d: MeanOf(encoder(w, 4, d), nn.Linear(w, 10)),
               rows(length, w), sizes, classes)  # fmt: skip
    for w, d, length, words, sizes in ((64, 2, 64, 1000, (4, 16)), (128, 3, 64, 2000, (4, 12)),
                                       (192, 4, 96, 1000, (2, 8)),
                                       (256, 2, 128, 4000, (2, 6))):  # fmt: skip
        yield ("gpt", f"{w}x{d}x{length}",
               lambda w=w, d=d, length=length, words=words: Decoder(words, w, 4, d, length),
               texts(length, words), sizes, classes)  # fmt: skip
    for w, d, patch, sizes in ((64, 3, 4, (8, 32)), (128, 2, 4, (8, 24)), (192, 4, 8, (16, 48)),
                               (96, 6, 4, (4, 16))):  # fmt: skip
        yield (
            "vit",
            f"{w}x{d}",
            lambda w=w, d=d, p=patch: Vit(32, p, w, d),
            images(32),
            sizes,
            classes,
        )
    for table, w, fields, hidden, sizes in ((2000, 16, 8, 128, (256, 1024)),
                                            (10000, 32, 8, 256, (256, 1024)),
                                            (1000, 64, 16, 512, (128, 512)),
                                            (20000, 16, 12, 256, (512,))):  # fmt: skip
        yield ("recommender", f"{table}x{w}x{fields}",
               lambda t=table, w=w, f=fields, h=hidden: Recommender(t, w, f, h),
               clicks(table, fields), sizes, classes)  # fmt: skip
    for places, w, d, sizes in ((64, 64, 2, (16, 64)), (64, 128, 4, (8, 24)), (100, 96, 3, (8, 32)),
                                (36, 256, 2, (8, 32))):  # fmt: skip
        yield ("mixer", f"{places}x{w}x{d}", lambda p=places, w=w, d=d: mixer(p, w, d),
               rows(places, 48), sizes, classes)  # fmt: skip
    for w, d, length, sizes in ((32, 6, 256, (8, 32)), (64, 4, 256, (8, 24)), (48, 8, 128, (8, 32)),
                                (96, 4, 200, (4, 16))):  # fmt: skip
        yield "wave", f"{w}x{d}", lambda w=w, d=d: wave(w, d), rows(8, length), sizes, classes
    for w, hidden, nodes, sizes in ((64, 128, 64, (4, 12)), (128, 256, 64, (8, 16)),
                                    (256, 64, 100, (4, 10))):  # fmt: skip
        yield ("graph", f"{w}x{hidden}x{nodes}", lambda w=w, h=hidden: Pairs(w, h),
               graphs(nodes, w), sizes, classes)  # fmt: skip

    for w, d, sizes in ((16, 3, (8, 32)), (24, 4, (8, 24)), (32, 2, (8, 24)), (40, 4, (4, 16))):
        yield "inception", f"{w}x{d}", lambda w=w, d=d: inception(w, d), images(32), sizes, classes
    for w, d, sizes in ((16, 4, (16, 64)), (32, 2, (16, 48)), (32, 6, (8, 32)), (48, 4, (8, 24))):
        yield "senet", f"{w}x{d}", lambda w=w, d=d: senet(w, d), images(48), sizes, classes
    for words, w, channels, length, sizes in ((2000, 64, 64, 64, (16, 64)),
                                              (5000, 128, 96, 48, (16, 64)),
                                              (1000, 48, 128, 128, (8, 32)),
                                              (8000, 96, 48, 96, (16, 48))):  # fmt: skip
        yield ("textcnn", f"{w}x{channels}x{length}",
               lambda n=words, w=w, c=channels: TextCnn(n, w, c),
               lambda n, length=length, words=words: (torch.randint(0, words, (n, length)),
                                                      labels(n)),
               sizes, classes)  # fmt: skip
    for w, d, length, words, sizes in ((64, 3, 64, 2000, (4, 16)), (128, 2, 96, 1000, (4, 12)),
                                       (192, 3, 64, 3000, (2, 8)),
                                       (256, 2, 96, 1000, (2, 8))):  # fmt: skip
        yield ("llama", f"{w}x{d}x{length}", lambda n=words, w=w, d=d: Llama(n, w, d),
               texts(length, words), sizes, classes)  # fmt: skip

    for name, layer, shape, sizes in LAYERS:
        yield "layer", name, lambda layer=layer: Both(layer()), rows(*shape), sizes, _mean


#: One layer each, so that each kind of node is seen by itself.
LAYERS: tuple[tuple[str, Make, tuple[int, ...], tuple[int, ...]], ...] = (
    ("linear96", lambda: nn.Linear(96, 96), (64, 96), (8, 64)),
    ("linear384", lambda: nn.Linear(384, 384), (384,), (64, 512)),
    ("linear1536", lambda: nn.Linear(1536, 1536), (1536,), (16, 128)),
    ("conv3to24", lambda: nn.Conv2d(3, 24, 3, padding=1), (3, 40, 40), (8, 48)),
    ("conv20", lambda: nn.Conv2d(20, 20, 3, padding=1), (20, 24, 24), (8, 64)),
    ("conv72", lambda: nn.Conv2d(72, 72, 3, padding=1), (72, 14, 14), (8, 32)),
    ("conv144", lambda: nn.Conv2d(144, 144, 3, padding=1, bias=False), (144, 8, 8), (8, 32)),
    ("point40", lambda: nn.Conv2d(40, 160, 1), (40, 20, 20), (8, 48)),
    ("point160", lambda: nn.Conv2d(160, 40, 1), (160, 20, 20), (8, 32)),
    ("stride", lambda: nn.Conv2d(24, 48, 4, 2, 1), (24, 32, 32), (8, 32)),
    ("transposed", lambda: nn.ConvTranspose2d(48, 24, 4, 2, 1), (48, 16, 16), (8, 32)),
    ("transposed2", lambda: nn.ConvTranspose2d(40, 20, 2, 2), (40, 12, 12), (8, 32)),
    ("depthwise3", lambda: nn.Conv2d(80, 80, 3, padding=1, groups=80), (80, 20, 20), (8, 32)),
    ("depthwise7", lambda: nn.Conv2d(40, 40, 7, padding=3, groups=40), (40, 20, 20), (8, 32)),
    ("line", lambda: nn.Conv1d(56, 56, 3, padding=1), (56, 180), (8, 48)),
    ("dilated", lambda: nn.Conv1d(40, 40, 3, padding=4, dilation=4), (40, 180), (8, 48)),
    ("conv8", lambda: nn.Conv2d(8, 8, 3, padding=1), (8, 40, 40), (8, 64)),
    ("conv32to64", lambda: nn.Conv2d(32, 64, 3, padding=1), (32, 16, 16), (8, 64)),
    ("conv3wide", lambda: nn.Conv2d(3, 48, 3, padding=1), (3, 32, 32), (8, 32)),
    ("stride2", lambda: nn.Conv2d(3, 32, 4, 2, 1), (3, 48, 48), (8, 48)),
    ("stride3", lambda: nn.Conv2d(64, 128, 4, 2, 1), (64, 12, 12), (8, 48)),
    ("patch", lambda: nn.Conv2d(3, 96, 4, 4), (3, 40, 40), (8, 48)),
    ("point16", lambda: nn.Conv2d(16, 64, 1), (16, 24, 24), (8, 64)),
    ("transposed3", lambda: nn.ConvTranspose2d(24, 3, 4, 2, 1), (24, 20, 20), (8, 48)),
    ("transposed4", lambda: nn.ConvTranspose2d(96, 48, 4, 2, 1), (96, 8, 8), (8, 32)),
    ("depthwise5", lambda: nn.Conv2d(32, 32, 5, padding=2, groups=32), (32, 24, 24), (8, 48)),
    ("depthwise3w", lambda: nn.Conv2d(160, 160, 3, padding=1, groups=160), (160, 12, 12), (8, 48)),
    ("line24", lambda: nn.Conv1d(24, 24, 3, padding=1), (24, 240), (8, 64)),
    ("line100", lambda: nn.Conv1d(100, 100, 3, padding=2, dilation=2), (100, 160), (8, 32)),
    ("batchnorm", lambda: nn.BatchNorm2d(40), (40, 24, 24), (8, 48)),
    ("groupnorm", lambda: nn.GroupNorm(1, 40), (40, 24, 24), (8, 48)),
    ("layernorm", lambda: nn.LayerNorm(160), (80, 160), (16, 64)),
    ("attention96", lambda: Attend(96), (80, 96), (4, 24)),
    ("attention224", lambda: Attend(224), (48, 224), (4, 24)),
    ("lstm", lambda: LastOf(nn.LSTM(48, 96, 1, batch_first=True), nn.Identity()), (40, 48),
     (8, 48)),
    ("lstm160", lambda: LastOf(nn.LSTM(64, 160, 2, batch_first=True), nn.Identity()), (20, 64),
     (8, 48)),
    ("gru", lambda: LastOf(nn.GRU(48, 96, 1, batch_first=True), nn.Identity()), (40, 48), (8, 48)),
    ("embedding", lambda: Look(5000, 48), (24,), (64, 512)),
    ("embedding2", lambda: Look(800, 128), (64,), (16, 128)),
    ("relu", lambda: nn.ReLU(), (40, 24, 24), (8, 48)),
    ("gelu", lambda: nn.GELU(), (40, 24, 24), (8, 48)),
    ("silu", lambda: nn.SiLU(), (40, 24, 24), (8, 48)),
    ("hardswish", lambda: nn.Hardswish(), (40, 24, 24), (8, 48)),
    ("dropout", lambda: nn.Dropout(0.2), (40, 24, 24), (8, 48)),
    ("softmax", lambda: nn.Softmax(-1), (80, 80), (16, 96)),
    ("maxpool", lambda: nn.MaxPool2d(2), (40, 24, 24), (8, 48)),
    ("avgpool", lambda: nn.AvgPool2d(2), (40, 24, 24), (8, 48)),
    ("around", lambda: Around(nn.Linear(128, 128)), (64, 128), (8, 48)),
    ("beside", lambda: Beside(nn.Conv2d(48, 16, 3, padding=1)), (48, 14, 14), (8, 32)),
)  # fmt: skip


def _mean(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return out.mean()


def _two(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, target % 2)


def cases() -> Iterator[Case]:
    """Training for each size of batch; inference for the last of each variant."""
    for place, (family, name, make, batch, sizes, loss) in enumerate(variants()):
        optimizer = OPTIMIZERS[place % len(OPTIMIZERS)]
        for size in sizes:
            full = f"{family}-{name}-b{size}"
            yield Case(family, f"{full}-{optimizer}", make, lambda b=batch, n=size: b(n), loss,
                       optimizer)  # fmt: skip
        yield Case(family, f"{full}-inference", make, lambda b=batch, n=size: b(n), loss, None)
