"""A whole trace on many nodes: sessions are bound to hosts, hosts are shared out to processes."""

from __future__ import annotations

import heapq
import multiprocessing
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..policy.words.model import Bytes
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
class TraceFile:
    """A trace in a file. ``gpu_memory``, in bytes, is what a GPU has."""

    path: Path
    gpu_memory: int = LARGEST

    def sessions(self) -> Iterator[Session]:
        """All sessions in the order of their start. Raises `TraceError`, `OSError`.

        A trace may count its seconds from any instant: here they begin with its first session.
        A trace with more to move than a GPU has is wrong.
        """
        with self.path.open("rb") as file:
            begin: float | None = None
            for session in read_trace(file, self.gpu_memory):
                begin = session.start if begin is None else begin
                yield session.earlier(begin) if begin else session


#: Where sessions come from: a population that is made up, or a trace.
Source = Population | Runs | TraceFile


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
        # Each process that replays a part goes through all sessions, so all come to the same nodes.
        node = min(range(len(nodes)), key=asked.__getitem__)
        asked[node] += session.gpus / nodes[node]
        heapq.heappush(ends, (session.end, node, session.gpus))
        yield node, session


def play(
    source: Source,
    cluster: Cluster,
    window: Window,
    behaviour: Behaviour | None,
    part: int = 0,
    of: int = 1,
) -> Tally:
    """Replay one policy on every ``of``-th node, beginning with ``part``; without a behaviour the
    clairvoyant schedule on all."""
    if behaviour is None:
        pool = Ideal(cluster.gpus, window)
        for session in source.sessions():
            if session.start < window.end:
                pool.run_until(session.start)
                pool.add(session)
        return pool.finish()
    sizes = cluster.nodes
    nodes = {
        number: VirtualNode(sizes[number], behaviour, window, Bytes(cluster.gpu_memory))
        for number in range(part, len(sizes), of)
    }
    for number, session in assign(source.sessions(), sizes):
        if (node := nodes.get(number)) is not None and session.start < window.end:
            node.run_until(session.start)
            node.add(session)
    # One after the other, so that each node's state is freed before the next one is finished.
    return _sum(nodes.pop(number).finish() for number in list(nodes))


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


def replay(
    source: Source,
    cluster: Cluster,
    window: Window,
    variants: Sequence[Variant],
    workers: int = 1,
) -> list[Tally]:
    """One tally for each variant. With one worker no process is started."""
    if workers == 1:
        return [play(source, cluster, window, variant.behaviour) for variant in variants]
    parts = min(workers, len(cluster.nodes))
    # A fork would copy what this process's threads hold, such as a locked lock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = []
        for variant in variants:
            of = 1 if variant.behaviour is None else parts
            job = (source, cluster, window, variant.behaviour)
            waiting.append([pool.submit(play, *job, part, of) for part in range(of)])
        return [_sum(future.result() for future in futures) for futures in waiting]


def _sum(parts: Iterable[Tally]) -> Tally:
    total = Tally()
    for part in parts:
        total.merge(part)
    return total


def following(works: Mapping[int, bool], low: int, high: int) -> int | None:
    """The next number to try in the search for the most that works, or ``None`` if it is found.

    ``works`` is what is known so far, between ``low`` and ``high``. A number that fails is taken
    to mean that all greater ones do. It doubles at first: too many cost the most to find out.

    More people do not always fare worse: others may work out above a number that fails, and a
    smaller one may fail. So at last the numbers around the bound are tried, too.
    """
    bad = min((count for count, well in works.items() if not well), default=high + 1)
    good = max((count for count, well in works.items() if well and count < bad), default=low - 1)
    if good < low and bad > high:
        return low
    if bad - good > 1:
        return min(2 * good, high) if bad > high else (good + bad) // 2
    around = (bad - 1, bad - 2, bad + 1, bad + 2)
    return next((count for count in around if low <= count <= high and count not in works), None)


def replay_people(variant: Variant, population: Population, cluster: Cluster, people: int) -> Tally:
    """What is counted with this many people of a population."""
    window = Window(min(WARM_UP, population.seconds / 2), population.seconds)
    return play(replace(population, people=people), cluster, window, variant.behaviour)


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
