"""``from jupyter_gpushare import sweep``: many models on the GPUs that nobody uses.

A sweep runs for hours or days on cards that belong to others as soon as they want them, and the
notebook that began it may be closed, killed or on a machine that dies. So nothing of it may be only
in memory. What happens next is decided by `core`, which is pure; what came of each model is in the
records, in one transaction for all that was heard at once. Whoever loads the sweep goes on from
there: results stay, and a model that was under way begins again.

One process at a time runs a sweep, by a lock that ends with it. Anybody of the same user may look
(:class:`Look`), also while it runs or when nobody runs it, because a look needs the records only.

A thread of its own drives it, so that the notebook stays free. A model gets its card as any other
batch task does, from its host's node manager: the sweep only guesses where a card is idle, and when
the guess was wrong the model goes back into the line.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from ..client.errors import GpuShareError
from ..protocol.sizes import Memory
from . import core, hostside, show
from .best import Best, best
from .core import End, Phase, Pick
from .engine import Engine, Event, Idle, OneHost, Silent
from .hostside import Ended, Granted, Job, Lost, Reported
from .records import Model, Plan, Records, SweepError
from .worker import Code, report


@dataclass(frozen=True, slots=True)
class Status:
    """How a sweep stands. ``by_host`` counts by phase; ``why`` says why hosts name no card."""

    name: str
    counts: Mapping[Phase, int]
    by_host: Mapping[str, Mapping[Phase, int]]
    why: Mapping[str, str]
    is_over: bool
    error: str = ""
    best: Best | None = None

    def __str__(self) -> str:
        told = ", ".join(f"{self.counts[phase]} {phase.value}" for phase in Phase)
        lines = [f"Sweep {self.name}: {told}."]
        for host, counts in sorted(self.by_host.items()):
            of = ", ".join(f"{count} {phase.value}" for phase, count in counts.items() if count)
            lines.append(f"  {host}: {of}")
        lines += [f"  {host} names no card: {why}" for host, why in sorted(self.why.items())]
        if self.best is not None:
            lines.append(f"  {self.best}")
        return "\n".join([*lines, *([self.error] if self.error else [])])


class Look:
    """A sweep as it is recorded, whoever runs it. Nothing is run or changed."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.name = records.name

    def status(self) -> Status:
        """How it stands now. It ``is_over`` when nobody runs it."""
        is_run = self._records.is_run()
        found = self._counted({}, not is_run)
        if is_run or not found.counts[Phase.QUEUED]:
            return found
        nobody = f"Nobody runs it just now; sweep.load({self.name!r}) goes on."
        return replace(found, error=nobody)

    def results(self) -> Any:
        """One row a model: a pandas ``DataFrame`` where pandas is installed, else a `Table`."""
        rows = [model.row for model in self.models()]
        try:
            pandas = import_module("pandas")
        except ImportError:
            return Table(rows)
        return pandas.DataFrame(rows).set_index("model")

    def models(self) -> list[Model]:
        """All that is recorded of each model, also its traceback and what it printed."""
        running = self._running()
        return [
            replace(model, phase=Phase.RUNNING) if model.number in running else model
            for model in self._records.models()
        ]

    def best(self, key: str | None = None, most: bool | None = None) -> Best | None:
        """Which model has the best result so far; ``None`` if no result is a number.

        ``key`` is the number of the result that counts, by default the first one. ``most`` says
        whether more of it is better. Left out, more is better of ``accuracy`` and the like, and
        less of all others.
        """
        done = [row for row in self._records.standing() if row[1] is Phase.DONE]
        return best([(number, came) for number, *_, came in done], key, most)

    def reports(self) -> list[tuple[int, dict[str, Any]]]:
        """What each model reported in its last attempt: its number, and what it said."""
        return self._records.reports()

    def __repr__(self) -> str:
        return str(self.status())

    def _running(self) -> Collection[int]:
        return self._records.underway() if self._records.is_run() else ()

    def _counted(self, why: Mapping[str, str], is_over: bool, error: str = "") -> Status:
        running, by_host = self._running(), dict[str, dict[Phase, int]]()
        counts, done = dict.fromkeys(Phase, 0), list[tuple[int, Mapping[str, Any]]]()
        for number, recorded, _, host, came in self._records.standing():
            phase = Phase.RUNNING if number in running else recorded
            counts[phase] += 1
            if host and phase is not Phase.QUEUED:
                by_host.setdefault(host, dict.fromkeys(Phase, 0))[phase] += 1
            if phase is Phase.DONE:
                done.append((number, came))
        return Status(self.name, counts, by_host, why, is_over, error, best(done))


class Sweep(show.Running, Look):
    """A sweep that runs, or has run. Its methods may be called from any thread."""

    def __init__(self, records: Records, engine: str | None = None, retry: bool = False) -> None:
        """Raises `SweepError` where another process runs it, or the engine is not to be had."""
        Look.__init__(self, records)
        show.Running.__init__(self)
        records.open()
        try:
            self._engine = _engine_named(engine)(records.job)
            if retry:
                records.retry()
        except BaseException:
            records.close()
            raise
        known, plan = records.standing(), records.plan
        self._state = core.begin(
            [(phase, attempt) for _, phase, attempt, *_ in known],
            gpus=records.job.gpus,
            pick=plan.pick,
            seed=plan.seed,
        )
        self._lock = threading.Lock()  # of the state and the records
        self._why: dict[str, str] = {}
        self._pace, self._deadline = core.Pace(plan.every), 0.0
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="gpushare-sweep", daemon=True)
        self._thread.start()

    # -- what people call ---------------------------------------------------------------

    def stop(self) -> None:
        """Start no model any more, let those that run save and end, and wait for that.

        `sweep.load` goes on with it.
        """
        with self._lock:
            self._stop()
        self._over.wait()

    def status(self) -> Status:
        """How it stands now."""
        with self._lock:
            why, is_over, error = dict(self._why), self._over.is_set(), self._error
        return self._counted(why, is_over, error)

    def page(self) -> str:
        """All that is shown of it, as HTML."""
        return show.page(self.status(), self.reports(), [model.row for model in self.models()])

    def _running(self) -> Collection[int]:
        return self._state.running

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._state.is_over:
                self._begin_round()
                due = self._pace.due
                within = min(due, self._deadline or due) - time.monotonic()
                events = self._engine.events(min(1.0, max(0.01, within)))
                # One transaction for all that has come: each costs a write to the disk.
                with self._lock, self._records.transaction():
                    for event in events:
                        self._heard(event)
                    self._send()
        except Exception as error:  # noqa: BLE001 - it must be said where people look
            self._error = f"The sweep has ended by an error: {type(error).__name__}: {error}"
        finally:
            # First the workers, then the lock, then the word: whoever waits may load the sweep at
            # once.
            self._engine.close()
            self._records.close()
            self._over.set()

    def _begin_round(self) -> None:
        now, plan = time.monotonic(), self._records.plan
        with self._lock:
            if self._state.unasked and now >= self._deadline:
                for host in self._state.unasked:
                    self._skip(host, f"It did not answer within {plan.answer_within:g} s.")
            if not core.wants_round(self._state) or now < self._pace.due:
                return
            self._pace = self._pace.asked(now)
            self._deadline = now + plan.answer_within
            hosts = tuple(self._engine.hosts())
            self._state = core.registered(self._state, hosts)
            self._why = {host: why for host, why in self._why.items() if host in hosts}
        for host in hosts:
            self._engine.ask(host)

    def _stop(self) -> None:
        self._state = core.stopped(self._state)
        for number in self._state.running:
            self._engine.stop(number, self._state.models[number].attempt)

    def _skip(self, host: str, why: str) -> None:
        self._state = core.skipped(self._state, host)
        self._why[host] = why

    def _heard(self, event: Event) -> None:
        records = self._records
        match event:
            case Idle(host, rows):
                self._state = core.answered(self._state, host, rows)
                if rows:
                    self._why.pop(host, None)
                else:
                    self._why[host] = "No GPU is idle there, or your quota allows no more."
            case Silent(host, why):
                self._skip(host, why)
            case Granted(number, attempt, gpus, numbers):
                self._pace = replace(self._pace, granted=True)
                self._state = core.granted(self._state, number, attempt, gpus)
                records.granted(number, gpus, numbers)
            case Reported(number, attempt, values):
                records.reported(number, attempt, values)
            case Lost(_, _, why):
                if not self._state.stopped:
                    self._error = (
                        f"The sweep has stopped, for a lease of it has ended: {why} "
                        f"sweep.load({self.name!r}) goes on."
                    )
                    self._stop()
            case Ended(number, attempt, end):
                model = self._state.models[number]
                self._state, phase = core.ended(self._state, number, attempt, end)
                if self._state.models[number] is not model:  # otherwise it was an earlier attempt
                    records.ended(event, phase)
                    if end is End.NO_ROOM:
                        self._why[model.cards[0].host] = event.error
                    else:
                        self._pace = self._pace.freed()

    def _send(self) -> None:
        while True:
            self._state, send = core.drawn(self._state)
            if send is None:
                return
            self._records.started(send.number, send.attempt, send.host)
            self._engine.start(send, self._records.candidate(send.number))


class Table(list[dict[str, Any]]):
    """Rows where there is no pandas; a notebook shows a table."""

    def _repr_html_(self) -> str:
        return show.table(self)


class Sweeps:
    """What ``sweep`` is: call it to begin a sweep, or :meth:`load` one."""

    SweepError = SweepError

    def __call__(
        self,
        train: Callable[..., Any] | Code,
        candidates: Iterable[Any],
        *,
        gpus: int = 1,
        memory: Memory | str | None = None,
        name: str | None = None,
        pick: str = "random",
        seed: int = 0,
        every: float = 1.0,
        answer_within: float = 5.0,
        engine: str | None = None,
    ) -> Sweep:
        """Try ``train(**candidate)`` for each candidate, on GPUs that nobody uses.

        Each model runs in a process of its own that asks for ``gpus`` cards of one host, with
        ``memory`` on each (default: what the quota gives), in the class ``batch``. It returns a
        number, a text, or a dict of these, and may say how it does meanwhile:
        ``sweep.report(loss=0.3)``. ``pick`` is ``"random"`` or ``"most-free"``. Every ``every``
        seconds hosts are asked what idles there, and one that does not answer within
        ``answer_within`` is left out of that round. ``engine``: ``"ray"`` for all hosts of a Ray
        cluster, ``"here"`` for this host alone; left out it is Ray where this process has called
        ``ray.init`` or ``RAY_ADDRESS`` is set.

        Returns at once. Raises :class:`SweepError`, :class:`ValueError`.
        """
        if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
            raise ValueError(f"gpus={gpus!r}: a model needs a whole number, one GPU at least.")
        if pick not in (words := [one.value for one in Pick]):
            raise ValueError(f"pick={pick!r} is none; say {' or '.join(map(repr, words))}.")
        if not isinstance(train, Code):
            hostside.must_be_callable(train)
        if isinstance(candidates, str | Mapping) or not isinstance(candidates, Iterable):
            raise ValueError(
                "candidates: give a list with one entry for each model, such as "
                "[{'lr': 0.1}, {'lr': 0.01}]."
            )
        candidates = list(candidates)
        if not candidates:
            raise ValueError("candidates: the list is empty, so there is nothing to try.")
        job = Job.here("sweep", name, pickled(train, SweepError), memory, gpus)
        plan = Plan(Pick(pick), seed, every, answer_within)
        _engine_named(engine)
        return Sweep(Records.make(job, plan, candidates), engine).shown()

    def load(self, name: str, *, engine: str | None = None, retry: bool = False) -> Sweep:
        """Go on with a sweep whose kernel or machine died, or that was stopped.

        Models that have a result keep it. With ``retry`` those that have failed run again. Raises
        :class:`SweepError`.
        """
        return Sweep(Records(name), engine, retry).shown()

    def look(self, name: str) -> Look:
        """A sweep of this user as it stands, whoever runs it. Raises :class:`SweepError`."""
        return Look(Records(name))

    def delete(self, name: str) -> None:
        """Remove a sweep with its results. Raises :class:`SweepError` where it runs, or where there
        is none of this name."""
        Records(name).delete()

    def names(self) -> list[str]:
        """This user's sweeps, the newest first."""
        return Records.names()

    report = staticmethod(report)

    def __reduce__(self) -> str:
        return "sweep"  # a model's function may name it


def _engine_named(name: str | None) -> Callable[[Job], Engine]:
    """Raises :class:`ValueError`."""
    if name is None:
        ray = sys.modules.get("ray")
        connected = ray is not None and ray.is_initialized()
        name = "ray" if connected or os.environ.get("RAY_ADDRESS") else "here"
    if name == "ray":
        from .rayengine import RayHosts

        return RayHosts
    if name != "here":
        raise ValueError(f"engine: {name!r} is none; say 'here' or 'ray'")
    return OneHost


def pickled(work: Any, refused: type[GpuShareError]) -> bytes:
    """A function, with what goes with it. Raises ``refused`` where it cannot be sent to another
    process."""
    pack: Callable[[Any], bytes] | None = None
    with contextlib.suppress(ImportError):
        pack = import_module("cloudpickle").dumps
    try:
        packed = (pack or pickle.dumps)(work)
    except Exception as error:
        raise refused(f"The function cannot be sent to another process: {error}") from error
    # Pickled by name it would be looked for in that process's own ``__main__``, and would fail only
    # when the model has its GPU already.
    if pack is None and b"__main__" in packed:
        raise refused(
            "A function of a notebook can be sent to another process with cloudpickle only:"
            " pip install cloudpickle. Or import it from a file."
        )
    return packed


sweep: Final = Sweeps()
