"""The kinds of graph nodes, and which operation of a framework is of which kind.

The table has a fixed order and a version: a trained model knows its inputs by both. New kinds go
to the end, with a new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Rises when a kind is added.
VERSION: Final = 1

#: The kinds that the source names.
SOURCE: Final = (
    "AddV2",
    "BiasAdd",
    "BiasAddGrad",
    "Mul",
    "MatMul",
    "Conv2D",
    "Concat",
    "Softmax",
    "ReLU",
    "MaxPool",
    "AvgPool",
)
#: All kinds, in the order in which a vector has them. `OTHER` is work of no kind of its own.
OTHER: Final = "Other"
KINDS: Final = (
    *SOURCE,
    "Attention",
    "Norm",
    "Embedding",
    "SiLU",
    "GELU",
    "DepthwiseConv2D",
    "Conv2DGrad",
    "DepthwiseConv2DGrad",
    "AttentionGrad",
    "NormGrad",
    "EmbeddingGrad",
    "Recurrent",
    "RecurrentGrad",
    OTHER,
)
PLACE: Final[Mapping[str, int]] = {kind: place for place, kind in enumerate(KINDS)}
