"""Trained models as plain numbers: they are read from JSON and evaluated without numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .features import Features, Hardware
from .table import KINDS

Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class Trees:
    """Boosted trees. A node is (input, threshold, left, right); a leaf is (-1, value, 0, 0)."""

    start: float
    rate: float
    trees: tuple[tuple[tuple[int, float, int, int], ...], ...]

    def value(self, numbers: Numbers) -> float:
        total = self.start
        for tree in self.trees:
            place, threshold, left, right = tree[0]
            while place >= 0:
                place, threshold, left, right = tree[left if numbers[place] <= threshold else right]
            # Of a leaf: its value stands where a node has the threshold.
            total += self.rate * threshold
        return total


@dataclass(frozen=True, slots=True)
class Mlp:
    """The source's network: full layers with ReLU between; inputs and output are scaled."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    layers: tuple[tuple[tuple[tuple[float, ...], ...], tuple[float, ...]], ...]
    mean: float
    scale: float

    def value(self, numbers: Numbers) -> float:
        # Beyond what training has seen a network is as wrong as one likes.
        now = [
            min(max((x - mean) / scale, -4.0), 4.0)
            for x, mean, scale in zip(numbers, self.means, self.scales, strict=True)
        ]
        for place, (weights, biases) in enumerate(self.layers):
            last = place == len(self.layers) - 1
            now = [
                sum(w * x for w, x in zip(row, now, strict=True)) + bias
                for row, bias in zip(weights, biases, strict=True)
            ]
            if not last:
                now = [max(x, 0.0) for x in now]
        return now[0] * self.scale + self.mean


#: Numbers in, a number out.
Model = Trees | Mlp


def read_model(document: Mapping[str, Any]) -> Model:
    """Raises `ValueError` where the document is no model."""
    try:
        if document["is"] == "trees":
            trees = tuple(
                tuple((int(place), float(told), int(a), int(b)) for place, told, a, b in tree)
                for tree in document["trees"]
            )
            return Trees(float(document["start"]), float(document["rate"]), trees)
        if document["is"] == "mlp":
            layers = tuple(
                (tuple(tuple(map(float, row)) for row in weights), tuple(map(float, biases)))
                for weights, biases in document["layers"]
            )
            return Mlp(
                tuple(map(float, document["means"])),
                tuple(map(float, document["scales"])),
                layers,
                float(document["mean"]),
                float(document["scale"]),
            )
        raise ValueError(f"no known model: {document['is']!r}")
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no model: {error!r}") from error


def relative(
    features: Features, hardware: Hardware, base: float, utilisation: float | None = None
) -> tuple[float, ...]:
    """What the trees take: shares and ratios, which are alike in small and large models.

    ``base`` is the estimate that the trees correct. ``utilisation`` is for the time only.
    """
    found = {node.kind: node for node in features.nodes}
    flops, moved = features.flops or 1, features.bytes or 1
    count = sum(node.count for node in features.nodes) or 1
    peak = features.peak or 1
    numbers = [
        math.log(flops / moved),
        math.log(count),
        math.log(moved / count),
        math.log(peak),
        math.log(max(base, 1e-12)),
        math.log(max(features.batch, 1)),
        float(features.training),
        math.log1p(hardware.cores),
        hardware.capability,
    ]
    for kind in KINDS:
        node = found.get(kind)
        numbers.append(node.bytes / moved if node else 0.0)
        numbers.append(node.flops / flops if node else 0.0)
        numbers.append(4 * node.largest / peak if node else 0.0)
    if utilisation is not None:
        numbers.append(utilisation)
    return tuple(numbers)
