"""What models need on this node's GPUs: predicted from dry runs, and remembered by task.

A task's newest prediction is what its next request reserves, if the request names no memory and its
reserve is an estimate. The lease that the task has (its newest one) is given the predicted share of
its GPU at once. A process that joined a lease (a command of `run`) predicts for the task that holds
it. Predictions are kept in memory only, so a node manager that was started anew knows none.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...compose.predictions import kind_says, says
from ...ledger.ledger import LedgerError
from ...policy.books.state import Lease, State
from ...policy.recall.outlook import Recent, of_newcomer
from ...policy.words import commands as cmd
from ...policy.words.model import Bytes, EnvironmentName, GpuUuid, LeasePhase, ProcessId
from ...policy.words.promises import Expected
from ...predict.estimates import Basis, Estimates, Predictor, WrongModels
from ...predict.features import Features, Hardware
from ...predict.kinds import KINDS, hardware_of
from ...protocol import documents as doc
from ...protocol.calls import Call, PredictParams
from ...protocol.errors import Reason
from ...protocol.hostreports import HostEstimate, KindShare
from ..manager import Manager
from .guests import Guest

#: Tasks whose newest prediction is remembered: of one environment, and in all.
OF_ENVIRONMENT: Final = 20
IN_ALL: Final = 5_000
#: The relative error (median) of a time on which decisions may rely. The replay of docs/replay.md
#: shows that the order of turns is better with times that are wrong by this than without any.
SMALL: Final = 0.4
#: The newest ones that a status shows; the people of whom the pool is told the newest one.
SHOWN: Final = 3
TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a task's model needs: one estimate for each kind of GPU."""

    environment: EnvironmentName
    process: ProcessId
    kernel_id: str | None
    path: str | None
    at: float  # Unix seconds
    features: Features
    shapes: str
    kinds: tuple[Hardware, ...]
    estimates: tuple[Estimates, ...]
    elsewhere: tuple[Estimates, ...] = ()  # on kinds that other hosts of the pool may have

    @property
    def memory(self) -> Bytes:
        """Bytes that are enough on each kind of GPU, in nine of ten cases."""
        return Bytes(max((one.memory_p90 for one in self.estimates), default=0))


def is_sure(one: Estimates) -> bool:
    """Whether decisions may rely on the time of an estimate."""
    return one.basis is not Basis.DRY_RUN and one.error <= SMALL


def by_kind(estimates: Iterable[Estimates]) -> tuple[Expected, ...]:
    """The same for the policy."""
    return tuple(
        Expected(one.kind, one.utilisation, one.memory_p90, one.seconds, is_sure(one))
        for one in estimates
    )


def features_of(params: PredictParams) -> Features:
    """The features that a call told. Raises :class:`ValueError` for a kind that is not known."""
    return Features.read(
        {
            "framework": params.framework,
            "nodes": {
                one.kind: [one.largest, one.count, one.flops, one.bytes]
                for one in params.operations
            },
            "batch": params.batch,
            "iterations": params.iterations,
            "inputs": params.inputs,
            "peak": params.peak,
            "training": params.training,
        }
    )


def shapes_of(features: Features) -> str:
    """The name of a model's structure and its batch; the same for any count of iterations."""
    # Iterations change no tensor: who trains longer has the same model.
    told = json.dumps(replace(features, iterations=1).document(), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


class Predictions:
    """Answers calls, and remembers. All methods belong to the manager's loop.

    ``models`` is where models that were trained on this node may be; without it those that came
    with the package predict. They are read on another thread, when they are first needed.
    ``recent`` are the waits of requests granted lately. ``measured`` corrects estimates by what
    earlier runs of the same shapes needed.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        models: Path | None,
        recent: Callable[[], Recent],
        measured: Callable[[str, str | None, str, int, Estimates], Estimates],
        news: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._manager = manager
        self._models = models
        self._recent = recent
        self._measured = measured
        self._news = news
        self._log = log
        self._predictor: tuple[float | None, Predictor] | None = None
        self._newest: OrderedDict[ProcessId, Prediction] = OrderedDict()
        self._of: dict[EnvironmentName, OrderedDict[ProcessId, Prediction]] = {}
        #: The newest of each person, also when the task is over: a server may start elsewhere then.
        self._last: OrderedDict[EnvironmentName, Prediction] = OrderedDict()
        #: These tasks asked about one model and batch only, so that is what they run.
        self._alone: set[ProcessId] = set()

    def of(self, process: ProcessId) -> Prediction | None:
        """The newest prediction of a task."""
        return self._newest.get(process)

    def run_of(self, process: ProcessId) -> Prediction | None:
        """What a task's run computes, as far as can be told: it asked about one model only."""
        return self._newest.get(process) if process in self._alone else None

    def forget(self, process: ProcessId) -> None:
        """A task is over."""
        self._alone.discard(process)
        if (gone := self._newest.pop(process, None)) is not None:
            mine = self._of[gone.environment]
            del mine[process]
            if not mine:
                del self._of[gone.environment]

    def documents(self, is_own: Callable[[str], bool]) -> list[doc.Predicted]:
        """The newest predictions of somebody's tasks, as of now; the newest first."""
        own = [one for who, mine in self._of.items() if is_own(who) for one in mine.values()]
        newest = sorted(own, key=lambda one: one.at, reverse=True)[:SHOWN]
        # Each change is told to all who watch, so here nothing is foreseen.
        return [self._document(one, foresees=False) for one in newest]

    def for_pool(self) -> list[HostEstimate]:
        """The newest prediction of each person, by which the pool ranks hosts; the newest first."""
        return [
            HostEstimate(
                one.environment,
                one.at,
                tuple(
                    KindShare(of.kind, of.utilisation, of.memory_p90)
                    for of in (*one.estimates, *one.elsewhere)
                ),
            )
            for one in reversed(self._last.values())
        ]

    # -- inside --------------------------------------------------------------------------

    async def answer(self, guest: Guest, call: Call) -> None:
        """Somebody asks what a model needs."""
        params: PredictParams = call.params
        who = guest.who.environment
        kinds = tuple(self.kinds().values())
        others = KINDS if self._manager.state.quotas.pool is not None else ()
        try:
            features = features_of(params)
            predicted, elsewhere = await self._manager.reads.ask(
                who, lambda _: (self._predict(features, kinds), self._predict(features, others))
            )
        except ValueError as error:
            why = f"The model's needs could not be predicted: {error}."
            guest.conn.error(call.id, Reason.BAD_REQUEST, why)
            return
        except (WrongModels, OSError, LedgerError) as error:
            guest.conn.error(call.id, Reason.UNAVAILABLE, str(error))
            return
        shapes = shapes_of(features)
        estimates = tuple(
            self._measured(who, params.code, shapes, params.iterations, one) for one in predicted
        )
        prediction = Prediction(
            who,
            self._holder(guest),
            params.task.kernel_id,
            params.task.path,
            self._manager.clock.wall(),
            features,
            shapes,
            kinds,
            estimates,
            elsewhere,
        )
        self._remember(prediction)
        await self._foresee(guest, by_kind(estimates))
        begun = self._manager.clock.boot()
        document = self._document(prediction)
        self._manager.charges.took(who, self._manager.clock.boot() - begun)
        guest.conn.reply(call.id, document)
        self._news()

    def _own(self, guest: Guest) -> tuple[Lease, ...]:
        """The leases that its process holds, or has joined."""
        state = self._manager.state
        found = (state.leases[name] for name in state.by_handle.get(guest.who.process, ()))
        return tuple(lease for lease in found if lease.environment == guest.who.environment)

    def _holder(self, guest: Guest) -> ProcessId:
        """Whose next request this is about: a command that `run` starts again asks for nothing."""
        own = self._own(guest)
        asks = not own or any(lease.task.process == guest.who.process for lease in own)
        return guest.who.process if asks else own[0].task.process

    async def _foresee(self, guest: Guest, expected: tuple[Expected, ...]) -> None:
        """Tell the policy what to expect of the task's newest lease: one command for each call."""
        at, who, process = self._manager.clock.boot(), guest.who.environment, guest.who.process
        has_gpus = (LeasePhase.HELD, LeasePhase.PARKED)
        own = [lease for lease in self._own(guest) if lease.phase in has_gpus]
        newest = max(own, key=lambda lease: lease.order, default=None)
        # A dry run tells what the model needs on one GPU; how it is split over more nobody knows.
        if newest is not None and newest.request.gpus == 1:
            command = cmd.Foresee(at, newest.id, who, process, expected)
            await self._manager.submit(command, owner=who)

    def _predict(self, features: Features, kinds: Sequence[Hardware]) -> tuple[Estimates, ...]:
        models = self._models if self._models is not None and self._models.exists() else None
        made = None if models is None else models.stat().st_mtime
        # Only the one thread of the ledger's reads comes here, so models are never read twice.
        if self._predictor is None or self._predictor[0] != made:
            self._predictor = made, self._load(models)
        return self._predictor[1].predict(features, kinds)

    def _load(self, models: Path | None) -> Predictor:
        """Models that cannot be used are said, and those that came with the package predict."""
        try:
            return Predictor.load(models)
        except WrongModels as error:
            if models is None:
                raise
            self._log.error("%s Until then the models of the package predict.", error)
            return Predictor.load()

    def kinds(self) -> dict[str, Hardware]:
        """The kinds of this node's GPUs by name, in their order; the smallest one of each."""
        builds = self._manager.inventory.builds()
        found: dict[str, Hardware] = {}
        for books in sorted(self._manager.state.gpus.values(), key=lambda one: one.gpu.order):
            gpu, build = books.gpu, builds.get(books.gpu.uuid)
            known = found.get(gpu.name)
            if known is None or gpu.memory < known.memory:
                found[gpu.name] = hardware_of(
                    gpu.name,
                    gpu.memory,
                    None if build is None else build.capability,
                    None if build is None else build.cores,
                )
        return found

    def _remember(self, prediction: Prediction) -> None:
        process, who = prediction.process, prediction.environment
        before = self._newest.get(process)
        alone = before is None or (before.shapes == prediction.shapes and process in self._alone)
        # It is put in anew so that the oldest comes first in each of the books, which are cut at
        # that end.
        self.forget(process)
        self._newest[process] = prediction
        self._last.pop(who, None)
        self._last[who] = prediction
        if len(self._last) > TOLD:
            self._last.popitem(last=False)
        mine = self._of.setdefault(who, OrderedDict())
        mine[process] = prediction
        if alone:
            self._alone.add(process)
        if len(mine) > OF_ENVIRONMENT:
            self.forget(next(iter(mine)))
        if len(self._newest) > IN_ALL:
            self.forget(next(iter(self._newest)))

    def _document(self, prediction: Prediction, *, foresees: bool = True) -> doc.Predicted:
        state, config, at = self._manager.state, self._manager.config, self._manager.clock.boot()
        gpus = _by_kind(state)
        recent = self._recent()
        kinds: list[doc.PredictedKind] = []
        for one in prediction.estimates:
            here = gpus.get(one.kind, frozenset[GpuUuid]())
            if not here:
                # The call took time on another thread, and the GPUs may have changed.
                continue  # there is none any more
            who, memory = prediction.environment, Bytes(one.memory_p90)
            starts, wait = of_newcomer(
                state, config, at, recent, who, memory, here, foresees=foresees
            )
            kind: doc.PredictedKind = {
                "kind": one.kind,
                "gpus": len(here),
                "memory": one.memory,
                "memory_p90": one.memory_p90,
                "seconds": one.seconds,
                "seconds_p90": one.seconds_p90,
                "utilisation": one.utilisation,
                "error": one.error,
                "basis": one.basis.value,
                "starts": starts.value,
                "wait": None
                if wait is None
                else {"low": wait.low, "high": wait.high, "basis": wait.basis.value},
            }
            kinds.append({**kind, "says": kind_says(kind)})
        told: doc.Predicted = {
            "kernel_id": prediction.kernel_id,
            "path": prediction.path,
            "at": prediction.at,
            "batch": prediction.features.batch,
            "iterations": prediction.features.iterations,
            "kinds": kinds,
        }
        told["says"] = says(told)
        return told


def _by_kind(state: State) -> Mapping[str, frozenset[GpuUuid]]:
    found: dict[str, frozenset[GpuUuid]] = {}
    for uuid, books in state.gpus.items():
        found[books.gpu.name] = found.get(books.gpu.name, frozenset()) | {uuid}
    return found
