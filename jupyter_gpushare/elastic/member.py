"""``python -m jupyter_gpushare.elastic.member FD``: one card's part of a job, on its own lease.

It takes the lease first, as a sweep's worker does, and only then loads torch. Then torch's elastic
agent runs here: it meets the other members' agents through the leader's store, starts the worker,
and starts it again when the job changes. Who meets is said by the leader, for it knows at once who
has come, has died, or is to leave; torch's own rendezvous hears of a dead one by its silence.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..client.acquire import checkpoint, on_preempt
from ..jobs.core import End
from ..jobs.worker import Channel, end_with_input, leased
from ..protocol import names

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.elastic.agent.server.api import WorkerGroup
    from torch.distributed.elastic.rendezvous import RendezvousInfo

#: Seconds that a worker has to come to its next step's end, and where another one has failed.
PATIENCE: Final = 60
PATIENCE_AFTER_FAILURE: Final = 20
#: Seconds between two looks at the leader's word.
_LOOK: Final = 0.05
_HOST: Final = "127.0.0.1"


def main(descriptor: int) -> int:
    """Train until the job is done or this member is to leave; the exit code."""
    channel = Channel(descriptor)
    head = json.loads(sys.stdin.buffer.readline())
    told = json.loads(sys.stdin.buffer.read(head["candidate"]))
    threading.Thread(target=end_with_input, daemon=True).start()
    os.environ[names.JOB] = head["name"]
    if not leased(channel, 1, head["memory"]):
        return 0
    output = os.open(told["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _prepare()
    return _train(channel, head["name"], head["number"], told["port"])


def _prepare() -> None:
    """Workers are forked from a process that has loaded torch, and has no thread and no lease.

    The first optimizer loads ``torch._dynamo``, which takes longer than all the rest.
    """
    os.environ[names.SWITCH] = "off"
    multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", f"{__package__}.training"])
    multiprocessing.forkserver.ensure_running()
    del os.environ[names.SWITCH]


def _prepared() -> None:
    """Wait until workers can be forked."""
    first = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    first.start()
    first.join()


def _train(channel: Channel, name: str, number: int, port: int) -> int:
    # What follows needs torch: only now, for the lease must be there before.
    from torch.distributed import TCPStore
    from torch.distributed.elastic.agent.server import WorkerSpec
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from . import training

    agent_kind, handler_kind = _kinds()
    store = TCPStore(_HOST, port, is_master=False, timeout=timedelta(seconds=20))
    meeting = handler_kind(store, name, number, channel)
    spec = WorkerSpec(
        role="rank",
        local_world_size=1,
        rdzv_handler=meeting,
        entrypoint=training.main,
        args=(name,),
        max_restarts=10**9,  # the leader counts
        monitor_interval=_LOOK,
        local_addr=_HOST,
    )
    with tempfile.TemporaryDirectory(prefix="gpushare-elastic-") as logs:
        agent = agent_kind(
            spec,
            DefaultLogsSpecs(log_dir=logs),
            start_method="forkserver",
            exit_barrier_timeout=10,
        )
        on_preempt(meeting.leave)
        _prepared()
        channel.say(report={"ready": True})
        result = agent.run()
    if result is None:
        channel.say(end=End.PREEMPTED.value)
    elif result.is_failed():
        channel.say(end=End.HOST_FAULT.value, error=str(result.failures))
    else:
        channel.say(end=End.DONE.value)
    return 0


def _kinds() -> tuple[Any, Any]:
    """Our kinds of torch's agent and of its meeting; made here, for torch must not load before."""
    from torch.distributed import DistError, PrefixStore
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import (
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Meeting(RendezvousHandler):
        """Meets those whom the leader has named for a generation."""

        def __init__(self, store: Store, name: str, number: int, channel: Channel) -> None:
            self._store, self._name, self._number = store, name, number
            self._channel = channel
            self._generation = 0
            self.is_gentle = True

        def get_backend(self) -> str:
            return "gpushare"

        def get_run_id(self) -> str:
            return self._name

        def next_rendezvous(self) -> RendezvousInfo:
            self._channel.say(report={"without": self._generation})
            while True:
                checkpoint()  # here the node manager's wish is heard
                newest = self._newest()
                if newest == self._generation:
                    time.sleep(_LOOK)
                    continue
                self._generation = newest
                word = json.loads(self._store.get(f"generation/{newest}"))
                if word["ends"]:
                    raise RendezvousGracefulExitError("the leader has ended the job")
                if self._number in word["members"]:
                    with contextlib.suppress(DistError):
                        return self._met(newest, word["members"].index(self._number), word)

        def _met(self, generation: int, rank: int, word: dict[str, Any]) -> RendezvousInfo:
            store = PrefixStore(f"of/{generation}", self._store)
            # Not the leader's store is shared, but a new one of rank 0's is made for each
            # generation, as torch has it under TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
            at = RendezvousStoreInfo.build(rank, store, _HOST)
            return RendezvousInfo(store, rank, len(word["members"]), at)

        def _newest(self) -> int:
            return int(self._store.get("newest"))

        def num_nodes_waiting(self) -> int:
            """More than 0: the agent is to stop its worker, and come to the next meeting."""
            checkpoint()
            newest = self._newest()
            if newest == self._generation:
                return 0
            self.is_gentle = json.loads(self._store.get(f"generation/{newest}"))["gentle"]
            return 1

        def leave(self) -> None:
            """The node manager wants the card: the others are told, and go on without."""
            self._channel.say(report={"leaves": True})
            until = time.monotonic() + PATIENCE_AFTER_FAILURE
            while self._newest() == self._generation and time.monotonic() < until:
                time.sleep(_LOOK)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            """Only the leader ends a job."""

        def shutdown(self) -> bool:
            return True

    class Agent(LocalElasticAgent):
        """Gives a worker the time to come to the end of its step."""

        def _stop_workers(self, worker_group: WorkerGroup) -> None:
            gentle = worker_group.spec.rdzv_handler.is_gentle
            self._shutdown(timeout=PATIENCE if gentle else PATIENCE_AFTER_FAILURE)

    return Agent, Meeting


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
