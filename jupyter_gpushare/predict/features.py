"""What a dry run tells of a model and a batch, and the numbers that the predictors take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .table import KINDS, PLACE

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Node:
    """All occurrences of one kind of graph node in one iteration."""

    kind: str
    largest: int  # the largest count of input elements among the occurrences
    count: int  # the occurrences
    flops: int
    bytes: int  # read and written


@dataclass(frozen=True, slots=True)
class Features:
    """What a model and a batch need; the same on each GPU. ``flops`` and ``bytes`` are of one
    iteration, ``peak`` is the most bytes that tensors have at once (weights, gradients and the
    optimizer's state with them), without what an allocator or a driver adds. ``guessed`` of these
    bytes are of a loss that nobody named; whoever is told the features is not told this."""

    framework: str  # "torch", "jax", "tensorflow"
    nodes: tuple[Node, ...]  # the kinds that occur, in the table's order
    batch: int
    iterations: int
    inputs: int  # count of input elements
    peak: int
    training: bool
    guessed: int = 0

    @property
    def flops(self) -> int:
        return sum(node.flops for node in self.nodes)

    @property
    def bytes(self) -> int:
        return sum(node.bytes for node in self.nodes)

    @property
    def largest(self) -> Mapping[str, int]:
        """The source's structure: for each kind of node its largest count of input elements."""
        found = {node.kind: node.largest for node in self.nodes}
        return {kind: found.get(kind, 0) for kind in KINDS}

    def document(self) -> dict[str, Any]:
        """As JSON; `read` is the way back."""
        return {
            "framework": self.framework,
            "nodes": {n.kind: [n.largest, n.count, n.flops, n.bytes] for n in self.nodes},
            "batch": self.batch,
            "iterations": self.iterations,
            "inputs": self.inputs,
            "peak": self.peak,
            "training": self.training,
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Features:
        """The features of a document. Raises `ValueError` where it is none."""
        try:
            found = [Node(kind, *map(int, row)) for kind, row in document["nodes"].items()]
            found.sort(key=lambda node: PLACE[node.kind])
            return cls(
                framework=str(document["framework"]),
                nodes=tuple(found),
                batch=int(document["batch"]),
                iterations=int(document["iterations"]),
                inputs=int(document["inputs"]),
                peak=int(document["peak"]),
                training=bool(document["training"]),
                guessed=int(document.get("guessed", 0)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"these are no features: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of GPU. ``flops`` and ``bandwidth`` are its peak in a second, or 0 if unknown."""

    name: str
    capability: float  # CUDA's compute capability: 9.0
    memory: int  # bytes
    cores: int
    flops: float = 0.0
    bandwidth: float = 0.0  # bytes


def vector(
    features: Features, hardware: Hardware, utilisation: float | None = None
) -> tuple[float, ...]:
    """The source's vector, with ours after it. Counts are given as logarithms.

    ``utilisation`` (hundredths) is the last number of what the predictor of time takes.
    """
    largest = features.largest
    numbers = (
        *(math.log1p(largest[kind]) for kind in KINDS),
        math.log1p(features.batch),
        math.log1p(features.iterations),
        math.log1p(features.inputs),
        hardware.capability,
        hardware.memory / GIB,
        math.log1p(hardware.cores),
        math.log1p(features.flops),
        math.log1p(features.bytes),
        math.log1p(features.peak),
        math.log1p(sum(node.count for node in features.nodes)),
        float(features.training),
    )
    return numbers if utilisation is None else (*numbers, utilisation)
