"""What the keepers of servers say of them, and who may use these.

Nothing of it is recorded: a keeper says it again after each reconnect. It holds as long as the
process that said it keeps the lease. What opens a server is told to those who may use it: its owner
and the members of the groups with which it is shared, and no administrator beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...compose import leases as of_leases, servers as of_servers
from ...policy.books.state import Lease, State
from ...policy.words import events as ev
from ...policy.words.model import EnvironmentName, LeaseId, LeasePhase, ProcessId, TaskKind
from ...protocol import documents as doc
from ...protocol.calls import Call, ServingParams
from ...protocol.messages import Method
from ..host.outcome import Outcome
from ..manager import Manager
from ..views.status import display_state
from .guests import Guest


class Serving:
    """Keeps it, and answers who asks. ``news``: what people see has changed."""

    def __init__(
        self,
        manager: Manager,
        news: Callable[[], None],
        unknown: Callable[[Guest, Call], None],
    ) -> None:
        self._manager = manager
        self._news = news
        self._unknown = unknown
        self._told: dict[LeaseId, tuple[ProcessId, ServingParams]] = {}
        #: How often the servers of each environment have slept since the node manager started.
        self.sleeps: Counter[EnvironmentName] = Counter()
        self.calls: Mapping[Method, Callable[[Guest, Call], None]] = {
            Method.SERVING: self._tell,
            Method.SERVERS: self._list,
        }
        manager.listeners.append(self._heard)

    def _of(self, lease: Lease) -> ServingParams | None:
        """What the keeper of a server says of it, if this is one and its keeper said something."""
        process, told = self._told.get(lease.id, (None, None))
        return told if process == lease.task.process else None

    def document(self, lease: Lease) -> doc.Serving | None:
        """The same for the status."""
        told = self._of(lease)
        if told is None:
            return None
        return {
            "address": told.address,
            "model": told.model,
            "requests": told.requests,
            "held": told.held,
            "sleeps": told.sleeps,
            "wake_seconds": told.wake_seconds,
        }

    def _tell(self, guest: Guest, call: Call) -> None:
        params, who = call.params, guest.who
        lease = self._manager.state.leases.get(LeaseId(params.lease))
        if (
            lease is None
            or lease.phase is LeasePhase.ENDED
            or lease.task.kind is not TaskKind.SERVER
            or (lease.environment, lease.task.process) != (who.environment, who.process)
        ):
            self._unknown(guest, call)
            return
        # To groups that one is not in one has nothing to say.
        own = {f"group:{name}" for name in who.groups}
        params = replace(params, share=tuple(one for one in params.share if one in own))
        before = self._told.get(lease.id)
        if before is not None:
            self.sleeps[lease.environment] += max(0, params.sleeps - before[1].sleeps)
        self._told[lease.id] = who.process, params
        if before != self._told[lease.id]:
            self._news()
        guest.conn.reply(call.id, {"state": lease.phase.value})

    def _heard(self, outcome: Outcome, _state: State) -> None:
        for event in outcome.events:
            if isinstance(event, ev.LeaseEnded):
                self._told.pop(event.lease, None)

    def _list(self, guest: Guest, call: Call) -> None:
        state, who = self._manager.state, guest.who
        groups = {f"group:{name}" for name in who.groups}
        servers: list[doc.Server] = []
        for name in self._told:
            lease = state.leases[name]
            told, mine = self._of(lease), who.viewer.is_mine(lease.environment)
            if told is None or not (mine or groups.intersection(told.share)):
                continue
            server: doc.Server = {
                "environment": lease.environment,
                "mine": mine,
                "name": lease.task.name,
                "address": told.address,
                "model": told.model,
                "token": told.token,
                "says": [],
                "snippet": "",
            }
            waits, shown = name in state.queue.waiting, display_state(state, lease)
            standing = of_leases.of_server(shown, waits, self.document(lease))
            server["says"] = of_servers.says(server, standing)
            server["snippet"] = of_servers.snippet(server)
            servers.append(server)
        servers.sort(key=lambda one: (not one["mine"], one["environment"], one["name"]))
        guest.conn.reply(call.id, {"servers": servers})
