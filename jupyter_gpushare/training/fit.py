"""Fit both families of models to records, choose the better one of each metric, and try what was
chosen on families that neither the fit nor the choice has seen.

There are hundreds of records, not thousands, and people will ask about models that none of them is
like. So a good figure is easily had, and says nothing: by an error on what was fitted, by a choice
that was made with an eye on what it is judged by, or by a sister of the model that is asked about.
Two things are done against that. A *family* (all sizes of one architecture) is asked about by what
was fitted without it (`splits`); the figures of models whose sisters were known stand beside that
one. And the choice between the ways is made inside of what is known, by families that are left out
there in turn (`chosen`), before others judge it (`choices`, `tried`).

The time is asked with the utilisation that was predicted, as in use, though it is fitted with the
measured one: so the utilisation comes first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..predict import analytic
from ..predict.estimates import VERSION, Metric
from ..predict.features import vector
from ..predict.models import read_model, relative
from ..predict.records import Record
from ..predict.table import VERSION as TABLE
from .rates import fit_rates

#: numpy's, whose types are not read here.
Array = Any
#: `map`, or that of a pool of processes.
Run = Callable[..., Iterable[Any]]
#: Numbers of records.
Rows = Any
#: Families of one layer each: they are for training; nobody asks for the time of one layer.
PARTS = frozenset({"layer"})
#: A need is told too low if it is more than this above.
UNDER = 0.05
#: The memory that is reserved is to be too little in 7 % of cases at most.
ENOUGH_MEMORY = 0.93
#: How much of the trees' correction is used, as a choice: what they learn of some families is true
#: of others in part only. For the choice families are laid into parts: one of them is asked, by a
#: choice that was made between those that are left, in turn.
STRENGTHS = {"trees, none": 0.0, "trees, half": 0.5, "trees": 1.0}
CHOICES = ("source", *STRENGTHS)
OUTER, INNER = 5, 3


@dataclass
class Data:
    """The records of one metric, with what its models take and what they tell."""

    metric: Metric
    records: list[Record]
    truth: Array  # as it was measured
    dry: Array  # the analytic dry run alone
    vectors: Array  # the source's
    shares: Array  # the measured utilisation, in hundredths; for the time only
    families: Array
    variants: Array

    @property
    def is_ratio(self) -> bool:
        """Errors are relative; those of the utilisation are in hundredths."""
        return self.metric is not Metric.UTILISATION

    def scaled(self, values: Array) -> Array:
        return np.log(values) if self.is_ratio else values

    def unscaled(self, values: Array) -> Array:
        return np.exp(values) if self.is_ratio else np.clip(values, 1.0, 100.0)

    def with_shares(self, shares: Array) -> Data:
        """The same, asked with other utilisations than the measured ones."""
        if self.metric is not Metric.TIME:
            return self
        vectors = self.vectors.copy()
        vectors[:, -1] = shares
        return replace(self, shares=shares, vectors=vectors)

    def loss(self, told: Array, rows: Rows) -> float:
        """What a choice makes small: the median error; of the memory, of which enough for nine of
        ten is reserved, the error that nine of ten stay below."""
        share = 0.9 if self.metric is Metric.MEMORY else 0.5
        return float(np.quantile(self.errors(told, rows), share))

    def errors(self, told: Array, rows: Rows = ...) -> Array:
        truth = self.truth[rows]
        return np.abs(told / truth - 1) if self.is_ratio else np.abs(told - truth)


def data_of(metric: Metric, records: Iterable[Record]) -> Data:
    """The records that have this metric."""
    measured: dict[Metric, Callable[[Record], float]] = {
        Metric.UTILISATION: lambda r: r.utilisation,
        Metric.MEMORY: lambda r: float(r.memory),
        Metric.TIME: lambda r: r.seconds,
    }
    dry: dict[Metric, Callable[[Record], float]] = {
        Metric.UTILISATION: lambda r: analytic.utilisation(r.features, r.hardware),
        Metric.MEMORY: lambda r: float(analytic.memory(r.features, r.hardware)),
        Metric.TIME: lambda r: analytic.seconds(r.features, r.hardware),
    }
    kept = [r for r in records if measured[metric](r) > 0 and dry[metric](r) > 0]
    if metric is Metric.TIME:
        kept = [r for r in kept if r.utilisation > 0]
    with_share = metric is Metric.TIME
    return Data(
        metric=metric,
        records=kept,
        truth=np.array([measured[metric](r) for r in kept]),
        dry=np.array([dry[metric](r) for r in kept]),
        vectors=np.array(
            [vector(r.features, r.hardware, r.utilisation if with_share else None) for r in kept]
        ),
        shares=np.array([r.utilisation for r in kept]),
        families=np.array([r.family for r in kept]),
        variants=np.array([r.name.rsplit("-b", 1)[0] or r.family for r in kept]),
    )


# -- the two families of models ----------------------------------------------------------------


def fit_mlp(data: Data, rows: Rows) -> dict[str, Any]:
    """The source's network, by back-propagation on the mean absolute error."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is so small that more would only wait for each other
    x, y = data.vectors[rows], data.scaled(data.truth[rows])
    means, scales = x.mean(0), x.std(0)
    scales[scales < 1e-6] = 1.0
    mean, scale = float(y.mean()), float(y.std()) or 1.0
    given = torch.tensor((x - means) / scales, dtype=torch.float32)
    wanted = torch.tensor((y - mean) / scale, dtype=torch.float32)[:, None]
    net = nn.Sequential(
        nn.Linear(given.shape[1], 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    rounds = 400
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rounds)
    for _ in range(rounds):
        optimizer.zero_grad()
        nn.functional.l1_loss(net(given), wanted).backward()
        optimizer.step()
        schedule.step()
    layers = [
        [_short(layer.weight.detach().numpy()), _short(layer.bias.detach().numpy())]
        for layer in net
        if isinstance(layer, nn.Linear)
    ]
    return {
        "is": "mlp",
        "means": _short(means),
        "scales": _short(scales),
        "layers": layers,
        "mean": mean,
        "scale": scale,
    }


def boosted(given: Array, wanted: Array) -> Any:
    """They are few and shallow, for there are hundreds of runs, not thousands."""
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        loss="absolute_error",
        n_estimators=120,
        learning_rate=0.08,
        max_depth=3,
        min_samples_leaf=6,
        subsample=0.7,
        max_features=0.4,
        random_state=0,
    ).fit(given, wanted)


def exported(regressor: Any) -> dict[str, Any]:
    """scikit-learn's trees as plain numbers."""
    trees = []
    for (one,) in regressor.estimators_:
        tree = one.tree_
        rows = zip(
            tree.feature, tree.threshold, tree.value[:, 0, 0], tree.children_left,
            tree.children_right, strict=True,
        )  # fmt: skip
        trees.append(
            [
                [-1, float(f"{value:.5g}"), 0, 0]
                if left < 0
                # scikit-learn compares in single precision: more digits tell nothing.
                else [int(place), float(f"{threshold:.9g}"), int(left), int(right)]
                for place, threshold, value, left, right in rows
            ]
        )
    start = float(regressor.init_.constant_[0, 0])
    return {"is": "trees", "start": start, "rate": regressor.learning_rate, "trees": trees}


def _short(array: Array) -> Any:
    return np.vectorize(lambda x: float(f"{x:.6g}"))(array).tolist()


# -- fitting and trying ------------------------------------------------------------------------


def bases(data: Data, train: Rows, asked: Rows) -> Array:
    """The estimate that the trees correct: for the time that of rates fitted to ``train``."""
    if data.metric is not Metric.TIME:
        return data.dry[asked]
    told = np.zeros(len(asked))
    for kind in {data.records[row].hardware.name for row in asked}:
        of_kind = [data.records[row] for row in train if data.records[row].hardware.name == kind]
        rates = fit_rates(of_kind or [data.records[row] for row in train])
        for place, row in enumerate(asked):
            if data.records[row].hardware.name == kind:
                told[place] = analytic.calibrated(data.records[row].features, rates)
    return told


def relatives(data: Data, rows: Rows, base: Array) -> Array:
    """What the trees take."""
    with_share = data.metric is Metric.TIME
    return np.array(
        [
            relative(
                data.records[row].features,
                data.records[row].hardware,
                float(told),
                float(data.shares[row]) if with_share else None,
            )
            for row, told in zip(rows, base, strict=True)
        ]
    )


def trees_of(data: Data, rows: Rows, strength: float, base: Array) -> dict[str, Any]:
    """Trees over what the base leaves."""
    base = np.maximum(base, 1e-9)
    left = data.scaled(data.truth[rows]) - data.scaled(base)
    found = exported(boosted(relatives(data, rows, base), left))
    return {**found, "start": found["start"] * strength, "rate": found["rate"] * strength}


def told_by(data: Data, train: Rows, asked: Rows) -> dict[str, Array]:
    """What each way says of ``asked`` when it knows ``train``."""
    network = read_model(fit_mlp(data, train))
    both = bases(data, train, np.concatenate([train, asked]))
    trees = read_model(trees_of(data, train, 1.0, both[: len(train)]))
    base = both[len(train) :]
    corrected = np.array([trees.value(row) for row in relatives(data, asked, base)])
    return {
        "mean": np.full(len(asked), data.unscaled(data.scaled(data.truth[train]).mean())),
        "dry run": data.dry[asked],
        "source": data.unscaled(np.array([network.value(row) for row in data.vectors[asked]])),
        **{
            name: data.unscaled(data.scaled(base) + strength * corrected)
            for name, strength in STRENGTHS.items()
        },
    }


def chosen(data: Data, train: Rows) -> str:
    """The choice that is best on families of ``train`` which it has not seen."""
    found: dict[str, list[Array]] = {}
    rows: list[Array] = []
    for known, asked in splits(data, train, data.families, INNER):
        rows.append(asked)
        for way, told in told_by(data, known, asked).items():
            found.setdefault(way, []).append(told)
    if not rows:
        return "trees, half"
    of = np.concatenate(rows)
    return min(CHOICES, key=lambda way: data.loss(np.concatenate(found[way]), of))


def parts(groups: Array, most: int) -> Iterable[Array]:
    """Masks that leave out each group once, at most ``most`` of them at a time."""
    names = sorted(set(groups))
    size = max(1, math.ceil(len(names) / most))
    for first in range(0, len(names), size):
        yield np.isin(groups, names[first : first + size])


def splits(data: Data, rows: Rows, groups: Array, most: int) -> Iterable[tuple[Rows, Rows]]:
    """What is known and what is asked, each group asked once. Parts are for training only."""
    rows = np.asarray(rows)
    is_part = np.isin(data.families[rows], list(PARTS))
    for out in parts(np.where(is_part, "", groups[rows]), most):
        asked = out & ~is_part
        if asked.any() and not asked.all():
            yield rows[~asked], rows[asked]


def choices(data: Data, run: Run = map) -> Array:
    """For each record what is chosen by families other than its own, a part of them at a time."""
    every = np.arange(len(data.records))
    found: Array = np.full(len(every), "trees, half", dtype=object)
    outer = list(splits(data, every, data.families, OUTER))
    for (_known, asked), way in zip(
        outer, run(partial(chosen, data), [known for known, _ in outer]), strict=True
    ):
        found[asked] = way
    return found


def asked_anew(job: tuple[Data, Rows, Rows]) -> dict[str, Array]:
    return told_by(*job)


def tried(
    data: Data, groups: Array, most: int, ways: Array, shares: Array, run: Run = map
) -> dict[str, Array]:
    """What each way says of all records, each time without having seen the record's group, and what
    that of ``ways`` says. 0: not asked. ``shares`` are the utilisations to ask the time with."""
    every = np.arange(len(data.records))
    found: dict[str, Array] = {}
    jobs = []
    for train, asked in splits(data, every, groups, most):
        mixed = data.shares.copy()
        # Trained with the measured utilisation, asked with the predicted one: as in use.
        mixed[asked] = shares[asked]
        jobs.append((data.with_shares(mixed), train, asked))
    for (_data, _train, asked), told in zip(jobs, run(asked_anew, jobs), strict=True):
        as_chosen = [told[way][place] for place, way in enumerate(ways[asked])]
        for name, values in {**told, "chosen": np.array(as_chosen)}.items():
            found.setdefault(name, np.zeros(len(every)))[asked] = values
    return found


def figures(data: Data, told: Array) -> dict[str, float]:
    """How wrong it is: the median, and how often it told too little by more than 5 %."""
    asked = told > 0
    errors = data.errors(told)[asked]
    found = {
        "median error": float(np.median(errors)),
        "p90 error": float(np.quantile(errors, 0.9)),
    }
    if data.is_ratio:
        ratio = data.truth[asked] / told[asked]
        enough = ENOUGH_MEMORY if data.metric is Metric.MEMORY else 0.9
        p90 = leave_one_out_p90(ratio, data.families[asked], enough)
        found["p90"] = float(np.quantile(ratio, enough))
        found["under"] = float(np.mean(ratio > 1 + UNDER))
        found["under p90"] = float(np.mean(ratio > p90 * (1 + UNDER)))
        found["over p90"] = float(np.median(p90 / ratio) - 1)
    return found


def leave_one_out_p90(ratio: Array, families: Array, enough: float) -> Array:
    """For each record the p90 of the ratios of the other families, so that none judges itself."""
    others = (ratio[families != own] for own in families)
    return np.array(
        [max(1.0, float(np.quantile(one, enough))) if one.size else 1.0 for one in others]
    )


def _looked_up(data: Data, told: dict[int, float]) -> Array:
    """The utilisations with which the time is asked: those that were told, else the measured."""
    return np.array([told.get(id(r)) or r.utilisation for r in data.records])


def train(records: Sequence[Record], measured_on: str, run: Run = map) -> dict[str, Any]:
    """The document of models that `Predictor.read` takes, with its card's figures."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    document: dict[str, Any] = {
        "version": VERSION,
        "table": TABLE,
        "metrics": {},
        "rates": {},
        "card": {"measured on": measured_on, "records": len(records), "metrics": {}},
    }
    card = document["card"]
    card["families"] = sorted({r.family for r in records} - PARTS)
    card["kinds"] = sorted({r.hardware.name for r in records})
    #: By the kind of trial what was told of the utilisation, for the time takes that.
    shares: dict[str, dict[int, float]] = {"unseen": {}, "kindred": {}}
    for metric in Metric:
        data = data_of(metric, records)
        ways = choices(data, run)
        unseen, kindred = (
            tried(data, groups, most, ways, _looked_up(data, shares[trial]), run)
            for trial, groups, most in (
                ("unseen", data.families, 1000),
                ("kindred", data.variants, 4),
            )
        )
        if metric is Metric.UTILISATION:
            for trial, told in (("unseen", unseen), ("kindred", kindred)):
                pairs = zip(data.records, told["chosen"], strict=True)
                shares[trial] = {id(record): value for record, value in pairs}
        card["metrics"][metric.value] = {
            "unseen families": {way: figures(data, told) for way, told in unseen.items()},
            "unseen models": {way: figures(data, told) for way, told in kindred.items()},
            "by family": {
                str(family): float(
                    np.median(data.errors(unseen["chosen"])[data.families == family])
                )
                for family in card["families"]
            },
        }
        kinds = np.array([r.hardware.name for r in data.records])
        card["metrics"][metric.value]["by kind"] = {
            kind: {
                way: figures(data, np.where(kinds == kind, unseen[way], 0.0))
                for way in ("dry run", "chosen")
            }
            for kind in card["kinds"]
            if (unseen["chosen"][kinds == kind] > 0).any()
        }
        # The dry run alone is used for GPUs without records: other GPUs tell how wrong it is.
        gpus = np.array([r.hardware.capability > 0 for r in data.records])
        alone = np.where(gpus, unseen["dry run"], 0.0)
        dry = figures(data, alone if (alone > 0).any() else unseen["dry run"])
        of = card["metrics"][metric.value]["unseen families"]
        every = np.arange(len(data.records))
        better = chosen(data, every)
        card["metrics"][metric.value]["used"] = better
        is_source = better == "source"
        document["metrics"][metric.value] = {
            "model": fit_mlp(data, every)
            if is_source
            else trees_of(data, every, STRENGTHS[better], bases(data, every, every)),
            "error": of["chosen"]["median error"],
            "p90": of["chosen"].get("p90", 1.0),
            "dry_error": dry["median error"],
            "dry_p90": dry.get("p90", 1.0),
        }
        if metric is Metric.TIME:
            for kind in card["kinds"]:
                rates = fit_rates([r for r in data.records if r.hardware.name == kind])
                document["rates"][kind] = {
                    node: [float(f"{x:.6g}") for x in row] for node, row in rates.items()
                }
    return document
