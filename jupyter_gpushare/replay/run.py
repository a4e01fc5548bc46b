"""A whole trace on many nodes: sessions are bound to hosts, hosts are shared out to processes."""

from __future__ import annotations

import heapq
import multiprocessing
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from .behaviour import Behaviour, Options, PolicyName, behaviour
from .generate import DAY, Population, Runs
from .ideal import Ideal
from .node import GPU_MEMORY, VirtualNode
from .tally import Tally, Window
from .trace import LARGEST, Session, read_trace


@dataclass(frozen=True, slots=True)
class Cluster:
    """``gpus`` GPUs in hosts of ``node_gpus``; the last host has what is left."""

    gpus: int
    node_gpus: int = 8
    gpu_memory: int = GPU_MEMORY

    @property
    def nodes(self) -> tuple[int, ...]:
        """GPUs of each node."""
        whole, rest = divmod(self.gpus, self.node_gpus)
        return (self.node_gpus,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class Source:
    """Where sessions come from: a population that is made up, or a trace in a file."""

    population: Population | Runs | None = None
    trace: Path | None = None

    def sessions(self, gpu_memory: int = LARGEST) -> Iterator[Session]:
        """All sessions in the order of their start. Raises `TraceError`, `OSError`.

        A trace may count its seconds from any instant: here they begin with its first session.
        ``gpu_memory``, in bytes, is what a GPU has: a trace with more to move is wrong.
        """
        if self.population is not None:
            yield from self.population.sessions()
        if self.trace is not None:
            with self.trace.open("rb") as file:
                begin: float | None = None
                for session in read_trace(file, gpu_memory):
                    begin = session.start if begin is None else begin
                    yield session.earlier(begin) if begin else session


@dataclass(frozen=True, slots=True)
class Scan:
    """What a source holds, read once before anything is replayed. Seconds."""

    sessions: int = 0
    cells: int = 0
    end: float = 0.0
    open_gpu_seconds: float = 0.0
    open_seconds: float = 0.0

    @classmethod
    def of(cls, sessions: Iterable[Session], until: float | None = None) -> Scan:
        """Count; with ``until`` only what happens before it."""
        count = cells = 0
        last = asked = opened = 0.0
        for one in sessions:
            if until is not None and one.start >= until:
                continue  # but the whole trace is read: a mistake in it is found before the replay
            end = one.end if until is None else min(one.end, until)
            count += 1
            cells += len(one.submits) if until is None else bisect_left(one.submits, until)
            last = max(last, end)
            span = max(0.0, end - one.start)
            asked += one.gpus * span
            opened += span
        return cls(count, cells, last, asked, opened)


def assign(sessions: Iterable[Session], nodes: Sequence[int]) -> Iterator[tuple[int, Session]]:
    """Each session with its node: where open sessions ask for the fewest GPUs, for its size.

    A session stays on its node, as a notebook server stays on its host. What counts is when
    sessions are open in the trace, so every policy sees the same sessions on a node.
    """
    asked = [0.0] * len(nodes)
    ends: list[tuple[float, int, int]] = []
    for session in sessions:
        while ends and ends[0][0] <= session.start:
            _end, node, gpus = heapq.heappop(ends)
            asked[node] -= gpus / nodes[node]
        node = min(range(len(nodes)), key=asked.__getitem__)
        asked[node] += session.gpus / nodes[node]
        heapq.heappush(ends, (session.end, node, session.gpus))
        yield node, session


@dataclass(frozen=True, slots=True)
class Job:
    """One policy on every ``of``-th node, beginning with ``part``."""

    source: Source
    cluster: Cluster
    window: Window
    behaviour: Behaviour | None
    part: int = 0
    of: int = 1


def play(job: Job) -> Tally:
    """Replay; without a behaviour the clairvoyant schedule."""
    from ..policy.words.model import Bytes

    sizes, window = job.cluster.nodes, job.window
    total = Tally()
    if job.behaviour is None:
        pool = Ideal(job.cluster.gpus, window)
        for session in job.source.sessions():
            if session.start < window.end:
                pool.run_until(session.start)
                pool.add(session)
        return pool.finish()
    nodes = {
        number: VirtualNode(sizes[number], job.behaviour, window, Bytes(job.cluster.gpu_memory))
        for number in range(job.part, len(sizes), job.of)
    }
    for number, session in assign(job.source.sessions(), sizes):
        node = nodes.get(number)
        if node is not None and session.start < window.end:
            node.run_until(session.start)
            node.add(session)
    for number in list(nodes):
        total.merge(nodes.pop(number).finish())
    return total


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of the comparison: a policy with its options."""

    label: str
    policy: PolicyName
    options: Options = field(default_factory=Options)

    @property
    def behaviour(self) -> Behaviour | None:
        if self.policy is PolicyName.CLAIRVOYANT:
            return None
        return behaviour(self.policy, self.options)


class Crew:
    """Processes that replay; a context manager. With ``workers`` 1 nothing is started."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = max(1, workers)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Crew:
        if self.workers > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def replay(
        self, source: Source, cluster: Cluster, window: Window, variants: Sequence[Variant]
    ) -> list[Tally]:
        """One tally for each variant."""
        parts = min(self.workers, len(cluster.nodes))
        tallies = []
        waiting: list[list[Future[Tally]]] = []
        for variant in variants:
            of = 1 if variant.behaviour is None else parts
            jobs = [Job(source, cluster, window, variant.behaviour, part, of) for part in range(of)]
            if self._pool is None:
                tallies.append(_sum(map(play, jobs)))
            else:
                waiting.append([self._pool.submit(play, job) for job in jobs])
        tallies += [_sum(future.result() for future in futures) for futures in waiting]
        return tallies


def _sum(parts: Iterable[Tally]) -> Tally:
    total = Tally()
    for part in parts:
        total.merge(part)
    return total


def next_try(works: Mapping[int, bool], low: int, high: int) -> int | None:
    """The next number to try in the search for the most that works, or ``None`` if it is found.

    ``works`` is what is known so far, between ``low`` and ``high``. A number that fails is taken
    to mean that all greater ones do. It doubles at first: too many cost the most to find out.
    """
    bad = min((count for count, well in works.items() if not well), default=high + 1)
    good = max((count for count, well in works.items() if well and count < bad), default=low - 1)
    if bad - good <= 1:
        return None
    if good < low and bad > high:
        return low
    return min(2 * good, high) if bad > high else (good + bad) // 2


def beside(works: Mapping[int, bool], low: int, high: int) -> int | None:
    """A number near the bound that :func:`next_try` found which was not tried, if there is one.

    More people do not always fare worse: others may work out above a number that fails, and a
    smaller one may fail. So the numbers around the bound are tried, too.
    """
    bad = min((count for count, well in works.items() if not well), default=high + 1)
    around = (bad - 1, bad - 2, bad + 1, bad + 2)
    return next((count for count in around if low <= count <= high and count not in works), None)


def following(works: Mapping[int, bool], low: int, high: int) -> int | None:
    """The number that a search tries after those in ``works``, or ``None`` if it is finished."""
    return next_try(works, low, high) or beside(works, low, high)


def replay_people(variant: Variant, population: Population, cluster: Cluster, people: int) -> Tally:
    """What is counted with this many people of a population."""
    window = Window(min(WARM_UP, population.seconds / 2), population.seconds)
    source = Source(replace(population, people=people))
    with Crew() as crew:
        return crew.replay(source, cluster, window, [variant])[0]


def search(
    variant: Variant, population: Population, cluster: Cluster, step: int, low: int, high: int
) -> dict[int, Tally]:
    """What was counted on the way to the most people, ``step`` x ``low`` to ``step`` x ``high``.

    The keys are people. The most of them below the first for whom :func:`works_out` is not true
    are the answer.
    """
    found: dict[int, Tally] = {}
    works: dict[int, bool] = {}
    while (count := following(works, low, high)) is not None:
        people = step * count
        found[people] = replay_people(variant, population, cluster, people)
        works[count] = works_out(found[people])
    return found


def works_out(tally: Tally) -> bool:
    """Whether people can work so: 95 % of cells within 5 s, and 95 % of the GPU time served."""
    return tally.is_prompt and tally.served >= 0.95 and not tally.refused


def window_of(scan: Scan, warm_up: float | None, *, is_made_up: bool) -> Window:
    """What counts of a source that was scanned. Seconds.

    Without a ``warm_up`` that somebody wishes: made-up sessions begin with all GPUs free, which is
    no usual day, so the first days do not count where there are enough. All of a trace counts.
    """
    if warm_up is None:
        warm_up = WARM_UP if is_made_up and scan.end > 2 * WARM_UP else 0.0
    return Window(min(warm_up, scan.end), scan.end)


#: Seconds of a made-up population that are replayed before anything counts.
WARM_UP = 2 * DAY
