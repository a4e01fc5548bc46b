"""``python -m jupyter_gpushare.elastic.member FD``: one card's part of a job, on its own lease.

It takes the lease, as a sweep's worker does, holds it, and hears when the node manager wants it
back. Its child, the same module with the word ``agent``, is where torch is: torch's elastic agent
meets the other members' agents in the job's meeting place, starts the worker, and starts it again
when the job changes. The agent has no thread and no lease of its own, and has loaded torch: so it
forks workers, which begin at once.

Who meets is said by the leader, for it knows at once who has come, has died, or is to leave;
torch's own rendezvous hears of a dead one by its silence.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..client.acquire import checkpoint, on_preempt
from ..jobs.core import End
from ..jobs.worker import Channel, begin
from ..protocol import names
from .meeting import Meeting, Word

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerGroup
    from torch.distributed.elastic.rendezvous import RendezvousInfo

#: Seconds that a worker has to come to its next step's end, and where another one has failed.
PATIENCE: Final = 60
PATIENCE_AFTER_FAILURE: Final = 20
#: Seconds between two looks at the leader's word.
_LOOK: Final = 0.05
_HOST: Final = "127.0.0.1"
#: Ranks of one host listen for each other on no interface that others can reach.
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def main(descriptor: int) -> int:
    """Hold a card until its agent has ended, or the node manager wants it; the exit code."""
    channel = Channel(descriptor)
    begun = begin(channel, "elastic", beside=True)
    if begun is None:
        return 0
    head, _train, candidate = begun
    told = json.loads(candidate)
    with open(told["output"], "ab") as output:
        agent = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.member", str(descriptor), "agent"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(descriptor,),
            # The agent's own torch asks for no card; its workers join this one's lease.
            env={**os.environ, names.SWITCH: "off"},
        )
    assert agent.stdin is not None
    agent.stdin.write(json.dumps({**head, **told}).encode())
    agent.stdin.close()

    def leave() -> None:
        channel.say(report={"leaves": True})
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Until its worker has come to its step's end and is saved. Then this process ends, too.
            agent.wait(PATIENCE)

    on_preempt(leave)
    while agent.poll() is None:
        checkpoint()  # here the node manager's wish is heard
        time.sleep(_LOOK)
    return agent.returncode


def run_agent(descriptor: int) -> int:
    """Train until the job is done, or goes on without this member; the exit code."""
    told = json.loads(sys.stdin.buffer.read())
    from torch.distributed.elastic.agent.server import WorkerSpec
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from . import training

    # The first optimizer would load it, in each worker anew, and that takes the longest.
    import_module("torch._dynamo")
    channel = Channel(descriptor)
    agent_kind, meeting_kind = _kinds()
    for setting in _INTERFACES:
        os.environ.setdefault(setting, "lo")
    meeting = Meeting(Path(told["meeting"]))
    spec = WorkerSpec(
        role="rank",
        local_world_size=1,
        rdzv_handler=meeting_kind(meeting, told["name"], told["number"], channel),
        entrypoint=training.main,
        args=(told["name"],),
        max_restarts=10**9,  # the leader counts
        monitor_interval=_LOOK,
        local_addr=_HOST,
    )
    with tempfile.TemporaryDirectory(prefix="gpushare-elastic-") as logs:
        specs = DefaultLogsSpecs(log_dir=logs)
        agent = agent_kind(spec, specs, start_method="fork", exit_barrier_timeout=10)
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
    from torch.distributed import DistError
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import (
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Rendezvous(RendezvousHandler):  # type: ignore[misc]
        """Meets those whom the leader has named for a generation."""

        def __init__(self, meeting: Meeting, name: str, number: int, channel: Channel) -> None:
            self._meeting, self._name, self._number = meeting, name, number
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
                word = self._meeting.heard()
                if word.generation == self._generation:
                    time.sleep(_LOOK)
                    continue
                self._generation = word.generation
                if word.ends or self._number in word.leaving:
                    raise RendezvousGracefulExitError("the job goes on without this member")
                if self._number in word.members:
                    with contextlib.suppress(DistError):
                        return self._met(word)

        def _met(self, word: Word) -> RendezvousInfo:
            rank, store = word.members.index(self._number), self._meeting.store(word.generation)
            os.environ[names.MEETING] = f"{self._meeting.folder} {word.generation}"
            # For programs that meet by `env://`: rank 0 hosts a store of torch's, as under
            # TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
            at = RendezvousStoreInfo.build(rank, store, _HOST)
            return RendezvousInfo(store, rank, len(word.members), at)

        def num_nodes_waiting(self) -> int:
            """If it is more than 0, the agent stops its worker, and comes to the next meeting."""
            word = self._meeting.heard()
            if word.generation == self._generation:
                return 0
            self.is_gentle = word.gentle
            return 1

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            """Only the leader ends a job."""

        def shutdown(self) -> bool:
            return True

    class Agent(LocalElasticAgent):  # type: ignore[misc]
        """Gives a worker the time to come to the end of its step."""

        def _stop_workers(self, worker_group: WorkerGroup) -> None:
            gentle = worker_group.spec.rdzv_handler.is_gentle
            if self._pcontext is not None:  # `_shutdown` takes no time-out in older torches
                self._pcontext.close(timeout=PATIENCE if gentle else PATIENCE_AFTER_FAILURE)
            self._shutdown()

    return Agent, Rendezvous


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit(main(int(sys.argv[1])))
    code = run_agent(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the card waits for our end, and taking torch down takes long
