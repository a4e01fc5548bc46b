"""Many hosts through Ray: one actor for each host, pinned there, which is its `OneHost`.

Ray starts our code on the hosts and says which are alive. It schedules no model: which card a
model gets, each host's own node manager decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from ..client.errors import GpuShareError
from .core import End, Send
from .engine import Event, OneHost, Silent
from .hostside import Ended, Job
from .records import SweepError

#: Seconds after which a host answers though nothing has happened.
_POLL: Final = 2.0
#: Calls that an actor serves at once: one waits for events.
_CALLS: Final = 4


class _Host:
    """What the sweep knows of a host. ``running``: number and attempt; ``asked``: for idle cards"""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self.actor = name, actor
        self.running: set[tuple[int, int]] = set()
        self.asked = False
        self.poll = actor.events.remote(_POLL)


def connected(ray: Any, refused: type[GpuShareError]) -> None:
    """Connect this process to a cluster if it is not. Raises ``refused`` where there is none."""
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise refused(
            "No Ray cluster can be reached. Start one: `ray start --head` on one host,"
            " `ray start --address=HOST:6379` on the others."
        ) from error


class RayHosts:
    """The hosts of a Ray cluster, which this process is connected to or connects to."""

    def __init__(self, job: Job) -> None:
        """Raises `SweepError` without Ray, or without a cluster."""
        try:
            self._ray = ray = import_module("ray")
        except ImportError as error:
            raise SweepError("Sweeps over many hosts need Ray: pip install ray") from error
        connected(ray, SweepError)
        self._job = job
        self._pinned = import_module("ray.util.scheduling_strategies")
        self._actors = ray.remote(num_cpus=0, max_concurrency=_CALLS)(OneHost)
        self._hosts: dict[str, _Host] = {}
        self._lost: list[Event] = []

    def hosts(self) -> Iterable[str]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        counts: dict[str, int] = {}
        for node in alive:
            counts[_name(node)] = counts.get(_name(node), 0) + 1
        for node in alive:
            name, at = _name(node), node["NodeID"]
            if counts[name] > 1:
                name = f"{name}-{at[:6]}"
            if name not in self._hosts:
                there = self._pinned.NodeAffinitySchedulingStrategy(at, soft=False)
                actor = self._actors.options(scheduling_strategy=there).remote(self._job, name)
                self._hosts[name] = _Host(name, actor)
        return tuple(self._hosts)

    def ask(self, host: str) -> None:
        self._hosts[host].asked = True
        self._hosts[host].actor.ask.remote(host)

    def start(self, send: Send, candidate: bytes) -> None:
        known = (send.number, send.attempt)
        host = self._hosts.get(send.host)
        # Lost since the card was drawn. Told as an event, since that is where the sweep hears of
        # ends.
        if host is None:
            self._lost.append(_lost(known, send.host))
            return
        host.running.add(known)
        host.actor.start.remote(send, candidate)

    def stop(self, number: int, attempt: int) -> None:
        for host in list(self._hosts.values()):
            if (number, attempt) in host.running:
                host.actor.stop.remote(number, attempt)

    def events(self, within: float) -> list[Event]:
        if not self._ray.is_initialized():  # else Ray would start a cluster of its own
            raise SweepError(f"Ray was shut down; sweep.load({self._job.name!r}) goes on.")
        found, self._lost = self._lost, []
        polls = {host.poll: host for host in self._hosts.values()}
        if not polls:
            if not found:  # no host is there: nobody could say anything
                time.sleep(within)
            return found
        ready, _ = self._ray.wait(list(polls), timeout=0.0 if found else within)
        for poll in ready:
            host = polls[poll]
            try:
                came: list[Event] = self._ray.get(poll)
            except self._ray.exceptions.RayError:
                # Also a raylet's end: what it ran ends with it, and its leases with that.
                del self._hosts[host.name]
                found += [_lost(known, host.name) for known in sorted(host.running)]
                if host.asked:
                    found.append(Silent(host.name, "Its Ray process has ended."))
                continue
            host.poll = host.actor.events.remote(_POLL)
            for event in came:
                if isinstance(event, Ended):
                    host.running.discard((event.number, event.attempt))
                elif not hasattr(event, "attempt"):
                    host.asked = False
            found += came
        return found

    def close(self) -> None:
        for host in self._hosts.values() if self._ray.is_initialized() else ():
            self._ray.kill(host.actor)
        self._hosts.clear()


def _name(node: dict[str, Any]) -> str:
    """What its administrator calls it, else its own name; Ray's is its address by default."""
    name = str(node.get("NodeName") or "")
    return name if name and name != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _lost(known: tuple[int, int], host: str) -> Ended:
    return Ended(*known, End.HOST_FAULT, error=f"Host {host} was lost.")
