"""Elastic training over many hosts by Ray Train: each worker holds a lease of its own host's node
manager.

Ray Train starts the workers, keeps their checkpoints, and starts them again from the newest one
when their number changes. What it cannot know is which cards are free: it counts resources that are
fixed when a host joins. So its scaling policy is given another count here: the cards that the node
managers have for this job, which are idle, or its own. All else of its elastic mode stays. The
count may be old when a worker begins, and that does no harm: a worker has a card only by a lease of
its own host's node manager, and where it gets none it leaves, and the others go on without it.

A card that a notebook wants goes back at the end of the step under way: all workers save together,
the one on that card gives its lease up, and the others go on without it. When a card becomes idle
they save together as well, and start again with one more. So no step is lost in either case.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ..client import acquire, api
from ..client.errors import GpuShareError
from ..console.node import connect
from ..console.verb import Refused
from ..jobs.hostside import idle_in
from ..jobs.rayengine import connected
from ..protocol import names
from ..protocol.messages import Method
from ..protocol.sizes import Memory, parse_memory
from .records import ElasticError

#: Seconds between two looks at the hosts' cards, and in which a host must answer.
_LOOK: Final = 1.0
_PATIENCE: Final = 10.0
#: Seconds in which a worker must get the card that was idle a moment ago.
_GRANTED_WITHIN: Final = 30.0
_PAUSE: Final = 0.2
#: What a worker needs in Ray's own count: next to nothing, since cards are counted here.
_OF_RAY: Final = {"CPU": 0.01}
_FASTER: Final = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5"}
#: What a Ray worker must not have from whoever started Ray: each asks for a lease of its own.
_NOT_INHERITED: Final = (names.LEASE, names.SECRET, names.RUN, names.RESTARTS)


class CardWanted(Exception):
    """This worker's card was asked back, or another task got it: the others go on without it."""


class LeaseEnded(ElasticError):
    """Somebody ended a worker's lease: the job has saved, and stops."""


class MoreRoom(Exception):
    """A card became idle: all start again, with one worker more."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers have in common. Without ``memory`` each has what the quota gives."""

    name: str
    least: int
    most: int
    memory: Memory | None
    every: int


# -- where there are cards -------------------------------------------------------------------------


class HostCards:
    """On a host: how many of its cards this job may have. An actor of Ray, pinned there."""

    def count(self, job: str, memory: Memory | None) -> tuple[int, int]:
        """The numbers of the job's own cards, and of idle ones for it. 0 where nobody answers."""
        try:
            with connect(os.environ) as node:
                return cards(node.call(Method.STATUS), job, memory)
        except Refused:
            return 0, 0


def cards(status: Mapping[str, Any], job: str, memory: Memory | None) -> tuple[int, int]:
    """The cards that the job has on a host, and the idle ones that its quota allows.

    A card on which there are others' tasks as well is not the job's.
    """
    ours = [one for one in status["leases"] if one["mine"] and one.get("job") == job]
    others = [one for one in status["leases"] if one not in ours]
    held = {part["uuid"] for one in ours for part in one["gpus"]}
    held -= {part["uuid"] for one in others for part in one["gpus"]}
    idle = idle_in(status, memory)
    quota = status["quota"]
    # Whoever waits is to have an idle card first.
    left = len(idle) - sum(not one["mine"] for one in status["queue"])
    return len(held), max(0, min(left, quota["gpus"] - quota["used_gpus"]))


class Cards:
    """Knows the cards of all hosts. It is an actor of Ray, beside the controller."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ray = import_module("ray")
        self._pinned = import_module("ray.util.scheduling_strategies")
        self._hosts: dict[str, Any] = {}
        self._places: list[str] = []
        self._before = 0
        self._now = 0
        self._one_looks = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def decide(self) -> list[str]:
        """The Ray nodes with a card for a worker, one for each card; at most as many as wanted.

        No worker runs meanwhile: what the last ones held is about to be free.
        """
        until = time.monotonic() + _PATIENCE
        found = self._look()
        while any(held for held, _idle in found.values()) and time.monotonic() < until:
            time.sleep(_PAUSE)
            found = self._look()
        # Of a worker that has not ended yet the card is still the job's.
        there = {node: held + idle for node, (held, idle) in found.items()}
        places: list[str] = []
        # One of each host in turn: what is asked back on one host leaves the most elsewhere.
        while any(there.values()) and len(places) < self._job.most:
            for node in [one for one in sorted(there) if there[one]]:
                there[node] -= 1
                places.append(node)
        self._places = places[: self._job.most]
        self._before = self._now = len(self._places)
        return self._places

    def places(self, count: int) -> list[str]:
        """Where ``count`` workers are to be, or nothing if fewer were decided."""
        return self._places[:count] if count <= len(self._places) else []

    def has_more(self) -> bool:
        """Whether there are more cards than at the last decision."""
        return self._now > self._before

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK)
            self._now = min(self._job.most, sum(map(sum, self._look().values())))

    def _look(self) -> dict[str, tuple[int, int]]:
        with self._one_looks:
            return self._ask()

    def _ask(self) -> dict[str, tuple[int, int]]:
        ray = self._ray
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        for gone in self._hosts.keys() - set(alive):
            del self._hosts[gone]
        for node in alive:
            if node not in self._hosts:
                there = self._pinned.NodeAffinitySchedulingStrategy(node, soft=False)
                actor = ray.remote(num_cpus=0)(HostCards)
                self._hosts[node] = actor.options(scheduling_strategy=there).remote()
        asked = {
            node: actor.count.remote(self._job.name, self._job.memory)
            for node, actor in self._hosts.items()
        }
        found: dict[str, tuple[int, int]] = {}
        done, _late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=_PATIENCE)
        for node, answer in asked.items():
            if answer in done:
                try:
                    found[node] = ray.get(answer)
                except ray.exceptions.RayError:
                    self._hosts.pop(node, None)
        return found


# -- in a worker -----------------------------------------------------------------------------------


@dataclass
class _Worker:
    """This process as one of the job's workers."""

    job: Job
    cards: Any
    steps: int = 0
    more: Any = None

    def hold(self) -> None:
        """Get a card of this host that no other worker has. Raises `CardWanted`."""
        os.environ.update({names.JOB: self.job.name, names.JOB_KIND: "elastic"})
        until = time.monotonic() + _GRANTED_WITHIN
        acquire.on_preempt(_together)
        acquire.checkpoint()  # it names its gates, so the end of an optimizer's step is none
        while True:
            try:
                grant = api.request(1, self.job.memory, "batch", wait=False)
                # The node manager lets tasks of one person share a card. Here each worker is to
                # have its own.
                if not any(gpu.shared_with for gpu in grant.gpus):
                    return
                api.release()
            except GpuShareError as error:
                why = str(error)
            else:
                why = "Another task of yours is on the card."
            if time.monotonic() > until:
                raise CardWanted(f"The card is not to be had any more: {why}")
            time.sleep(_PAUSE)

    def sees_more(self) -> bool:
        """On the first rank: whether there is room for one more. It asks, and waits for nothing."""
        ray = import_module("ray")
        if self.more is None:
            self.more = self.cards.has_more.remote()
            return False
        ready, _ = ray.wait([self.more], timeout=0)
        if not ready:
            return False
        answer, self.more = ray.get(self.more), None
        return bool(answer)


def _together() -> None:
    """Do nothing: a worker saves its state with the others at the end of a step, not alone.

    Only who says how to save can be asked to stop, so something must be said.
    """


_worker: _Worker | None = None


def step(save: Callable[[Path], object], **metrics: Any) -> None:
    """A step has ended; every worker says so after each.

    ``save(folder)`` writes the state into an empty folder; it is called on the first rank only,
    each ``every`` steps, and when a worker leaves or one more can come. ``metrics`` are
    reported with it.
    """
    worker = _worker
    if worker is None:
        raise ElasticError(
            "step() belongs into a function that elastic.raytrain.run() has started."
        )
    import torch
    from torch import distributed

    first = distributed.get_rank() == 0
    worker.steps += 1
    lost = acquire.broker().own.lost
    said = [acquire.is_asked_to_stop(), first and worker.sees_more(), lost is not None]
    wants = torch.tensor(said, dtype=torch.int32)
    if distributed.get_backend() == "nccl":
        wants = wants.cuda()
    # All or none: a rank that stopped alone would leave the others in their next collective.
    distributed.all_reduce(wants, op=distributed.ReduceOp.MAX)
    leaves, grows, ends = (bool(one) for one in wants.tolist())
    if leaves or grows or ends or worker.steps % worker.job.every == 0:
        _save(save, metrics, first)
    if not (leaves or grows or ends):
        return
    distributed.barrier()  # the checkpoint is everybody's before one ends
    if ends:
        if lost is not None:
            raise LeaseEnded(lost)
        threading.Event().wait()  # Ray ends this process
    if leaves:
        if acquire.is_asked_to_stop():
            api.release()
            raise CardWanted("Somebody's notebook wants the card.")
    elif first:
        raise MoreRoom("There is an idle card.")
    threading.Event().wait()  # Ray ends this process, and starts it anew


def _save(save: Callable[[Path], object], metrics: Mapping[str, Any], first: bool) -> None:
    train = import_module("ray.train")
    if not first:
        train.report(dict(metrics))
        return
    with tempfile.TemporaryDirectory(prefix="gpushare-checkpoint-") as folder:
        save(Path(folder))
        train.report(dict(metrics), checkpoint=train.Checkpoint.from_directory(folder))


def resume(load: Callable[[Path], object]) -> bool:
    """Load the newest state with ``load(folder)``. Returns whether there was one."""
    checkpoint = import_module("ray.train").get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        load(Path(folder))
    return True


def _work(train: Callable[..., Any], job: Job, watch: Any, given: Mapping[str, Any] | None) -> Any:
    """What each worker runs: its lease, then torch, then the person's function."""
    global _worker
    for name in _NOT_INHERITED:
        os.environ.pop(name, None)
    _worker = _Worker(job, watch)
    _worker.hold()
    import torch
    from torch import distributed

    context = import_module("ray.train").get_context()
    collective = import_module("ray.train.collective")
    rank, size = context.get_world_rank(), context.get_world_size()
    address = collective.broadcast_from_rank_zero(_rendezvous() if rank == 0 else None)
    distributed.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=size,
    )
    try:
        return train() if given is None else train(dict(given))
    finally:
        distributed.destroy_process_group()
        api.release()


def _rendezvous() -> str:
    address = import_module("ray.util").get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((address, 0))
        return f"{address}:{probe.getsockname()[1]}"


# -- the job ---------------------------------------------------------------------------------------


def run(
    train: Callable[..., Any],
    *,
    storage: str | os.PathLike[str],
    name: str,
    min_gpus: int = 1,
    max_gpus: int = 8,
    memory: int | str | None = None,
    config: Mapping[str, Any] | None = None,
    every: int = 100,
    max_failures: int = 3,
) -> Any:
    """Train on as many cards of the Ray cluster's hosts as nobody else needs; Ray Train's result.

    ``train()`` (``train(config)`` where there is one) runs in each worker, with torch's process
    group ready. It calls :func:`resume` once, and :func:`step` after each step. ``storage`` is a
    folder that all hosts share, or what else Ray Train takes; a job of the same ``name`` there goes
    on where it was. ``every``: steps after which the state is saved in any case. Workers that end
    by a fault are started again ``max_failures`` times; what goes back or grows is no fault.

    Raises :class:`ElasticError` without Ray Train or a cluster, :class:`LeaseEnded` where somebody
    ended a worker's lease, and Ray's ``TrainingFailedError``.
    """
    if not 1 <= min_gpus <= max_gpus:
        raise ElasticError(f"There is nothing between {min_gpus} and {max_gpus} GPUs.")
    try:
        ray = import_module("ray")
        from . import raypolicy
    except ImportError as error:
        raise ElasticError(
            "Training over many hosts needs Ray Train: pip install 'ray[train]'"
        ) from error
    connected(ray, ElasticError)
    for variable, value in _FASTER.items():
        os.environ.setdefault(variable, value)
    bytes_each = None if memory is None else parse_memory(memory)
    job = Job(name, min_gpus, max_gpus, bytes_each, every)
    watch = ray.remote(num_cpus=0, max_concurrency=8)(Cards).remote(job)
    try:
        return raypolicy.fit(
            lambda: _work(train, job, watch, config),
            job=job,
            cards=watch,
            storage=os.fspath(storage),
            resources=_OF_RAY,
            max_failures=max_failures,
        )
    finally:
        ray.kill(watch)
