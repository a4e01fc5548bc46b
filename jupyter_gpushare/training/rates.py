"""Seconds of each kind of graph node on one kind of GPU, fitted to measured iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ..predict.analytic import OF_BANDWIDTH, OF_FLOPS, START, Rates
from ..predict.records import Record
from ..predict.table import KINDS

#: numpy's, whose types are not read here.
Array = Any
#: How strongly a kind's own rates are drawn to those of all kinds together: a little where there
#: are hundreds of runs, more where there are few.
DRAWN = 0.003
OF_FEW = 0.8
#: Of many, a few are wrong by much; what weighs is the relative error, not its square.
ROUNDS = 8


def fit_rates(records: Sequence[Record]) -> Rates:
    """Rates that make the relative errors small. A kind that no record has is as all others."""
    hardware = records[0].hardware
    seconds = np.array([record.seconds for record in records])
    counts = np.zeros((len(records), len(KINDS), 3))
    for row, record in enumerate(records):
        for node in record.features.nodes:
            counts[row, KINDS.index(node.kind)] = node.flops, node.bytes, node.count
    first = np.array(
        [
            1 / (hardware.flops * OF_FLOPS or 1e12),
            1 / (hardware.bandwidth * OF_BANDWIDTH or 1e11),
            START,
        ]
    )
    of_all = first * _solve(counts.sum(1) * first / seconds[:, None], 0.03)
    columns = (counts * of_all).reshape(len(records), -1) / seconds[:, None]
    found = np.tile(of_all, len(KINDS)) * _solve(columns, max(DRAWN, OF_FEW / len(records)))
    rows = found.reshape(len(KINDS), 3)
    return {
        kind: (float(a), float(b), float(c)) for kind, (a, b, c) in zip(KINDS, rows, strict=True)
    }


def _solve(columns: Array, drawn: float) -> Array:
    """Factors of the columns, none negative, each drawn to 1; their sum is near 1 in each row."""
    size = columns.shape[1]
    weights = np.ones(len(columns))
    factors = np.ones(size)
    for _ in range(ROUNDS):
        matrix = np.vstack([columns * weights[:, None], np.eye(size) * drawn])
        factors, _ = nnls(matrix, np.concatenate([weights, np.full(size, drawn)]), maxiter=2000)
        told = np.maximum(columns @ factors, 1e-3)
        weights = 1 / np.sqrt(np.maximum(np.abs(np.log(told)), 0.03) * np.maximum(told, 0.3))
    return factors
