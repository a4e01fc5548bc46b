"""Connects clients with the manager: which client waits for which lease, and is told what.

The manager knows leases and no connections; the transport knows connections and no leases. Here the
two meet, in three maps: who is connected (``_guests``), which connections use a lease and hear of
it (``_holders``), and whose call a lease's grant will answer (``_waiters``). None of it is durable
and none of it decides anything: when a connection goes, its leases stay, since a task is alive as
long as its process is.

A call becomes a command (:mod:`.translate`), and the manager's decision its answer. A request that
must wait is answered later, by the event that grants or ends the lease. All else that clients hear
comes from events and effects (:mod:`.notices`), never from a call that another client made. So a
client that was away, or whom something could not be told, is simply disconnected: when it attaches
again, it is told from the state what it missed.

What must always hold: each call gets one answer, or its connection ends. The service decides
whether a caller may make a call before it makes a command of it. Nothing here waits, because the
manager's loop runs it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...daemon.membership import Membership
from ...ledger.learned import Learned
from ...ledger.ledger import LedgerError
from ...policy import core
from ...policy.books.state import State
from ...policy.recall.outlook import Outlook, outlooks
from ...policy.say.effects import Effect, TellTurn
from ...policy.turns import expected
from ...policy.words import commands as cmd, events as ev
from ...policy.words.described import chosen
from ...policy.words.model import (
    EndReason,
    EnvironmentName,
    FlagKind,
    FlagPhase,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ProcessId,
)
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc, names
from ...protocol.background import Background, event_or_time
from ...protocol.batchjob import came_along
from ...protocol.calls import Call
from ...protocol.errors import Reason
from ...protocol.messages import FEATURES, PAGES, PROTOCOL, CallId, Method, Notice
from ...quotas.hub import HubQuotas
from ..host.outcome import Outcome
from ..host.processes import ProcessError, is_alive, lineage, started_with
from ..manager import Manager
from ..people.identity import Principal
from ..views.lately import Lately
from ..views.logs import call_tag, is_heard, say
from ..views.pauses import Pauses
from ..views.report import report
from ..views.sharing import own_share
from ..views.status import (
    Place,
    out_of_service,
    places,
    quota_document,
)
from . import notices, translate, vouchers
from .certifying import Certifying
from .guests import Guest
from .ledgercalls import LedgerCalls
from .pool import PoolCalls
from .predictions import Predictions
from .quotacalls import QuotaCalls
from .runs import Runs
from .serving import Serving
from .statuses import Statuses
from .translate import Caller
from .transport import Connection

#: Calls that change the content of a lease's voucher; a grant brings a voucher anyway.
_CHANGES_VOUCHER = (
    *(Method.GAVE, Method.PARKED, Method.RESTORED, Method.MEMORY),
    Method.STOPPABLE,
)

QUEUE_INTERVAL = 1.0
#: Seconds after which waiting people are told again without a change: estimates grow old.
REMIND_INTERVAL = 30.0
#: To a client whose process cannot be found.
UNSEEN = (
    "The calling process has ended, or the node manager cannot see it: then /proc is mounted with "
    "hidepid, and its log says what the administrator can do."
)
#: Records read at the start for the waits of the last hour; a busier hour is told in part.
_RECALLED = 20_000


async def _unknown(_name: str) -> bool | None:
    """Nobody can tell whether there is a user of that name."""
    return None


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Somebody to tell when a lease is granted: by the answer to a call, or by a notification."""

    conn: Connection
    call_id: CallId | None  # ``None`` where its call was answered before


class Service:
    """Answers calls; one class, as each answer, notice and end looks who waits for what.

    Calls that need none of that have a class of their own (`Statuses`, `QuotaCalls`, `PoolCalls`,
    `Predictions`, `LedgerCalls`, `Serving`). All methods run on the manager's loop.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        key: bytes,
        name: str,
        version: str,
        heartbeat_interval: float,
        models: Path | None = None,
        learned: Learned | None = None,
        membership: Membership | None = None,
        preset: doc.Preset | None = None,
        knows: Callable[[str], Awaitable[bool | None]] = _unknown,
        groups: HubQuotas | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        """``knows`` as of `Identity`; ``groups`` are JupyterHub's, where it tells quotas."""
        self._manager = manager
        self._key = key
        self._name = name
        self._version = version
        self._heartbeat_interval = heartbeat_interval
        self._log = log or logging.getLogger(__name__)
        self._guests: dict[int, Guest] = {}
        self._holders: dict[LeaseId, set[int]] = {}
        self._waiters: dict[LeaseId, list[_Waiter]] = {}
        #: Waiters on behalf of locked tasks: any answer unlocks the task.
        self._locked: dict[LeaseId, _Waiter] = {}
        self._queue_changed = asyncio.Event()
        self._background = Background()
        self._lately = Lately()
        self._pauses = Pauses()
        self.statuses = Statuses(
            manager,
            name=name,
            version=version,
            guests=self._guests,
            lately=self._lately,
            outlooks=self._outlooks,
            pauses=self._pauses,
            preset=preset,
            quotas_as_of=lambda: None if groups is None else groups.when_away(),
            hints=lambda: self._pool.hints,
            predictions=lambda is_theirs: self._predictions.documents(is_theirs),
            serving=lambda lease: self.serving.document(lease),
        )
        self.serving = Serving(manager, self.statuses.news, self._fail_unknown)
        self.quotas = QuotaCalls(
            manager,
            self._background.start,
            self._ask,
            self._answer,
            knows,
            dict if groups is None else groups.members,
        )
        self._pool = PoolCalls(
            manager,
            report=lambda: report(
                manager.state,
                manager.config,
                name,
                version,
                manager.clock.boot(),
                self._lately.waited(manager.clock.wall()),
                self.statuses.talking(),
                self._predictions.for_pool(),
            ),
            ask=self._ask,
            refused=self._answer,
            news=self._hints_changed,
        )
        self._predictions = Predictions(
            manager,
            models=models,
            recent=lambda: self._lately.waited(manager.clock.wall()),
            measured=lambda *told: self._runs.measured(*told),
            news=self.statuses.news,
            log=self._log,
        )
        self._runs = Runs(
            manager,
            self._background.start,
            self._log,
            self._predictions.run_of,
            self._predictions.of,
            learned,
        )
        self._ledger = LedgerCalls(
            manager, self._background.start, lambda conn: conn in self._guests
        )
        start = self._background.start
        #: Calls that are more than one command.
        self._special: dict[Method, Callable[[Guest, Call], None]] = {
            Method.ATTACH: self._attach,
            Method.RELEASE: self._release,
            Method.TURN_LOCKED: self._is_locked,
            Method.STATUS: self.statuses.ask,
            Method.WATCH: self.statuses.ask,
            Method.PREDICT: lambda guest, call: start(self._predictions.answer(guest, call)),
            **self._ledger.calls,
            **Certifying(membership, self._background.start, self._log).calls,
            **self.quotas.calls,
            **self._pool.calls,
            **self.serving.calls,
        }
        #: What tells clients of each kind of event or effect; of some a call is answered, too.
        self._tells: dict[type, Callable[[Any, State], None]] = {
            **dict.fromkeys(notices.TELLS, self._tell),
            ev.LeaseGranted: self._granted,
            ev.LeaseEnded: self._ended,
            ev.ResumeCancelled: self._stopped,
        }
        manager.listeners.append(self._heard)

    async def recall(self) -> None:
        """Read what runs needed from the ledger, and the waits of the last hour, for people.

        If these cannot be read, waits are counted from now on: no grant depends on them.
        """
        await self._runs.recall()
        reads = self._manager.reads
        try:
            records = await reads.ask("", lambda ledger: ledger.history(None, _RECALLED))
        except (LedgerError, ValueError) as error:
            self._log.error("The waits of the last hour could not be read: %s", error)
        else:
            self._lately.refill(reversed(records))

    def start(self) -> None:
        """Begin to push queue positions and status changes."""
        self._background.start(self._push_positions())
        self._background.start(self.statuses.push())
        self._background.start(self.statuses.answer_all())
        self._background.start(self._pool.push())

    async def close(self) -> None:
        """Stop pushing."""
        await self._background.cancel()

    # -- the transport calls these --------------------------------------------

    def on_open(self, conn: Connection) -> None:
        """A new connection; it has no identity until it says hello."""

    def on_hello(self, conn: Connection, principal: Principal, call: Call) -> None:
        """Identity has spoken."""
        if call.params.protocol != PROTOCOL:
            conn.turn_away(
                Reason.UNSUPPORTED_PROTOCOL,
                f"This node manager speaks protocol {PROTOCOL}, the client "
                f"{call.params.protocol}. Install the same release of jupyter_gpushare on both.",
                call.id,
            )
            return
        if conn.process is None and not conn.is_remote:
            conn.turn_away(Reason.NOT_ALLOWED, UNSEEN, call.id)
            return
        who = Caller(
            EnvironmentName(principal.environment),
            # Nobody has pid 0, so it stands for the process of another host, which owns no lease
            # here.
            conn.process or ProcessId(self._manager.state.boot.boot_id, 0, 0),
            principal.admin,
            tuple(principal.groups),
            principal.all_servers,
            principal.pool,
            conn.is_remote,
        )
        if self._manager.walls is not None and not who.is_remote:
            self._manager.walls.met(who.environment, who.process.pid)
        looks = call.params.client.name == PAGES
        self._guests[conn.id] = Guest(conn, who, only_looks=looks)
        command = cmd.Introduce(self._manager.clock.boot(), who.environment, who.groups)
        tag = call_tag(conn.id, call.id)
        welcome = partial(self._welcome, conn, who, call)
        if who.pool:
            welcome(core.Done(None))  # it is nobody, has no quota and is not in the books
        else:
            answer = self._or_hang_up(conn, welcome)
            self._manager.ask(command, answer, tag, owner=who.environment)
        say(
            self._log,
            logging.DEBUG,
            "connection.hello",
            call=tag,
            environment=who.environment,
            admin=who.admin or None,
            pid=who.process.pid,
        )

    def _parks(self, environment: EnvironmentName) -> bool:
        """Whether kernels of this environment may be asked for their GPUs at all."""
        config = self._manager.config
        if config.moving is not None:
            return True
        own = self._manager.state.quotas.resolve(environment)[0].idle_timeout
        return bool(config.idle_timeout or config.idle_timeouts if own is None else own)

    def _welcome(self, conn: Connection, who: Caller, call: Call, decision: core.Decision) -> None:
        manager = self._manager
        welcome: doc.Welcome = {
            "protocol": PROTOCOL,
            "node": {
                "name": self._name,
                "version": self._version,
                "simulated": manager.inventory.simulated,
            },
            "environment": who.environment,
            "parks": self._parks(who.environment),
            "turn_lock": manager.config.turn_lock,
            "admin": who.admin,
            "quota": quota_document(manager.state, who.environment, manager.config),
            "heartbeat_interval": self._heartbeat_interval,
            "features": list(FEATURES),
        }
        conn.reply(call.id, welcome)

    def on_call(self, conn: Connection, call: Call) -> None:
        """A call of somebody who said hello."""
        guest = self._guests.get(conn.id)
        if is_heard(self._log, logging.DEBUG):
            tag, method = call_tag(conn.id, call.id), call.method.value
            say(self._log, logging.DEBUG, "call", call=tag, method=method)
        if guest is None:
            conn.error(call.id, Reason.NOT_ALLOWED, "Say hello first.")
        elif guest.who.is_remote and call.method not in translate.FROM_ELSEWHERE:
            conn.error(
                call.id,
                Reason.NOT_ALLOWED,
                f"{call.method.value} is for processes of this host only.",
            )
        elif call.method in translate.POOL_ONLY and not guest.who.pool:
            conn.error(
                call.id,
                Reason.NOT_ALLOWED,
                f"Only the pool of this host may call {call.method.value}.",
            )
        elif call.method in translate.ADMIN_ONLY and not translate.may(guest.who, call.method):
            conn.error(
                call.id,
                Reason.NOT_ALLOWED,
                f"Only an administrator may call {call.method.value}; you are "
                f"{guest.who.environment}.",
            )
        elif (special := self._special.get(call.method)) is not None:
            special(guest, call)
        else:
            self._command(guest, call)

    def on_close(self, conn: Connection) -> None:
        """A connection is gone. Its leases stay: the task may come back, or die and be seen."""
        guest = self._guests.pop(conn.id, None)
        self._ledger.forget(conn.id)
        self._pool.forget(conn.id)
        if guest is None:
            return
        tag = call_tag(conn.id, None)
        say(self._log, logging.DEBUG, "connection.closed", call=tag)
        if guest.locks is not None:
            self._lock_is_over(guest, guest.locks)
        for lease in guest.leases:
            self._holders.get(lease, set()).discard(conn.id)
            waiters = [w for w in self._waiters.get(lease, ()) if w.conn is not conn]
            if waiters:
                self._waiters[lease] = waiters
            else:
                self._waiters.pop(lease, None)

    # -- calls ---------------------------------------------------------------

    def _command(self, guest: Guest, call: Call) -> None:
        # The policy makes no random numbers, so a new lease's id comes with the command.
        fresh = LeaseId(secrets.token_hex(16))
        make = translate.COMMANDS[call.method]
        command = make(self._manager.clock.boot(), guest.who, call.params, fresh)
        if isinstance(command, cmd.RequestLease):
            # Its release may come while it is not decided yet, and finds the lease by this.
            guest.asked = call.params.request_id, fresh
            command = self._runs.with_estimate(command)
        self._ask(guest, call, command, partial(self._answer, guest, call))

    def _ask(
        self,
        guest: Guest,
        call: Call,
        command: cmd.Command,
        answer: Callable[[core.Decision], None],
    ) -> None:
        tag, owner = call_tag(guest.conn.id, call.id), guest.who.environment
        self._manager.ask(command, self._or_hang_up(guest.conn, answer), tag, owner=owner)

    def _or_hang_up(
        self, conn: Connection, answer: Callable[[core.Decision], None]
    ) -> Callable[[core.Decision], None]:
        """Like ``answer``; a client that cannot be answered is disconnected and asks again."""

        def answered(decision: core.Decision) -> None:
            if not self._manager.observers.call(answer, decision):
                conn.close()

        return answered

    def _attach(self, guest: Guest, call: Call) -> None:
        if not translate.knows_secret(self._key, call.params.lease, call.params.secret):
            self._fail_unknown(guest, call)
        elif call.params.pid is not None:
            self._attach_child(guest, call)
        elif call.params.voucher is None:
            self._command(guest, call)
        else:
            self._present(guest, call)

    def _attach_child(self, guest: Guest, call: Call) -> None:
        """A program that `run` has started, say, which goes on if `run` is killed."""
        who = guest.who
        family = lineage(call.params.pid, who.process.boot_id)
        if who.process not in family[1:]:
            pid = call.params.pid
            guest.conn.error(call.id, Reason.NOT_ALLOWED, f"Process {pid} is no child of yours.")
            return
        name = LeaseId(call.params.lease)
        command = cmd.Attach(self._manager.clock.boot(), name, who.environment, family[0])
        self._ask(guest, call, command, partial(self._answer, guest, call))

    def _present(self, guest: Guest, call: Call) -> None:
        """A lease that the ledger perhaps forgot, or knows as it was before."""
        state, voucher = self._manager.state, vouchers.read(self._key, call.params.voucher)
        if voucher is None or voucher.lease != call.params.lease or state.rebuild is None:
            self._command(guest, call)  # only the ledger knows it
            return
        who, readings = guest.who, self._manager.readings.by_gpu
        measured = vouchers.measured_of(voucher, readings)
        at = self._manager.clock.boot()
        keeper = call.params.keeper
        command = cmd.Present(at, voucher, who.environment, who.process, measured, keeper)
        self._ask(guest, call, command, partial(self._answer, guest, call))

    def _release(self, guest: Guest, call: Call) -> None:
        name = call.params.lease
        if call.params.request_id is not None:
            name = self._manager.state.asked(guest.who.process, call.params.request_id)
            if name is None and guest.asked is not None:
                request_id, fresh = guest.asked
                name = fresh if request_id == call.params.request_id else None
            if name is None:
                self._fail_unknown(guest, call)
                return
        lease = self._manager.state.leases.get(name)
        others = lease.members - {guest.who.process} if lease is not None else ()
        # The end of others may not have been noticed yet.
        ends = call.params.ends and _live(others)
        named = replace(call.params, lease=name, request_id=None, ends=ends)
        self._command(guest, Call(call.id, call.method, named))

    def _is_locked(self, guest: Guest, call: Call) -> None:
        """The driver has locked the task. The answer comes when its turn does, and unlocks it."""
        name = LeaseId(call.params.lease)

        def answer(decision: core.Decision) -> None:
            if isinstance(decision, core.Done) and guest.locks == name:
                self._locked[name] = _Waiter(guest.conn, call.id)
                self._unlock(name, self._manager.state)
            else:
                self._answer(guest, call, decision)

        command = translate.COMMANDS[call.method](
            self._manager.clock.boot(), guest.who, call.params, name
        )
        self._ask(guest, call, command, answer)

    def _unlock(self, name: LeaseId, state: State) -> None:
        """Answer for a locked task that does not wait for its turn any more."""
        turn, waiter = state.turns.get(name), self._locked.get(name)
        if waiter is not None and (turn is None or turn.phase is not TurnPhase.WAITS):
            del self._locked[name]
            if waiter.call_id is not None:
                done = translate.done_result(core.Done(name), Method.TURN_LOCKED, state)
                waiter.conn.reply(waiter.call_id, done)

    def _lock_is_over(self, guest: Guest, name: LeaseId) -> None:
        if (waiter := self._locked.get(name)) is not None and waiter.conn is guest.conn:
            del self._locked[name]
        command = cmd.EndLock(self._manager.clock.boot(), name)
        tag = call_tag(guest.conn.id, None)
        self._manager.ask(command, call=tag, owner=guest.who.environment)

    # -- answers ---------------------------------------------------------------

    def _answer(self, guest: Guest, call: Call, decision: core.Decision) -> None:
        conn, state = guest.conn, self._manager.state
        if isinstance(decision, core.Refuse):
            reason = translate.reason_of(decision.reason)
            conn.error(call.id, reason, decision.message, dict(decision.numbers))
        elif isinstance(decision, core.Done):
            if call.method is Method.QUOTA_UNSET:
                conn.reply(call.id, self.quotas.answer(call.params))
            elif call.method in (Method.GPU_DRAIN, Method.GPU_RESUME):
                gpu = call.params.gpu
                offset = self._manager.clock.wall() - self._manager.clock.boot()
                out = out_of_service(state, GpuUuid(gpu), guest.who.viewer, offset)
                changed = decision.count > 0
                conn.reply(call.id, {"gpu": gpu, "out_of_service": out, "changed": changed})
            else:
                result = translate.done_result(decision, call.method, state)
                lease = state.leases.get(decision.lease) if decision.lease else None
                if call.method in _CHANGES_VOUCHER and lease is not None:
                    result |= translate.voucher(state, lease, self._key)
                if call.method is Method.PIN and lease is not None:
                    for word, until in (
                        ("seconds", lease.pins.until),
                        ("turn_seconds", lease.pins.turn_until),
                    ):
                        result[word] = max(0.0, (until or 0.0) - self._manager.clock.boot())
                if call.method is Method.TURN_LOCK and decision.count:
                    guest.locks = decision.lease
                    result["seconds"] = self._manager.config.turn_lock
                if call.method is Method.TURN_ASK and lease is not None:
                    result |= self._turn_left(lease.id, state)
                if call.method is Method.PROGRESS and lease is not None:
                    self._runs.stepped(lease, call.params.done, call.params.seconds)
                if call.method is Method.PROMISE and lease is not None:
                    result["share"] = own_share(state, lease)
                if call.method is Method.MEMORY and lease is not None:
                    self._runs.stepped(lease, call.params.steps)
                    result["gate"] = not notices.has_turn(state, lease.id)
                    if call.params.alone:
                        taker = state.taker(lease.id)
                        leads = taker.leader == guest.who.process and not taker.overran
                        result["leads"] = leads
                conn.reply(call.id, result)
            if call.method is Method.TURN_ASK and decision.lease is not None:
                # It may have had its turn, or need none.
                self._tell(TellTurn(decision.lease), state)
        else:
            self._lease_answer(guest, call, decision.lease)

    def _lease_answer(self, guest: Guest, call: Call, name: LeaseId) -> None:
        lease = self._manager.state.leases.get(name)
        if lease is None or lease.phase is LeasePhase.ENDED:
            self._fail_unknown(guest, call)
            return
        guest.leases.add(name)
        self._holders.setdefault(name, set()).add(guest.conn.id)
        state, attached = self._manager.state, call.method is Method.ATTACH
        waits = name in state.queue.waiting
        if attached or not waits:
            guest.conn.reply(call.id, translate.lease_result(state, lease, self._key))
        if not waits or (lease.phase is LeasePhase.PARKED and attached):
            self._tell(TellTurn(name), state)  # a client that came back has missed it
            if attached:
                self._send(notices.again(lease, guest, self._scene(state)))
            return
        waiter = _Waiter(guest.conn, None if attached else call.id)
        self._waiters.setdefault(name, []).append(waiter)
        place = places(state)[name]
        self._tell_position(name, (waiter,), place, self._outlooks().get(name))

    def _fail_unknown(self, guest: Guest, call: Call) -> None:
        guest.conn.error(call.id, Reason.UNKNOWN_LEASE, core.unknown_lease().message)

    # -- news -------------------------------------------------------------------

    def _heard(self, outcome: Outcome, state: State) -> None:
        """The manager carried something out; tell those whom it concerns."""
        observers = self._manager.observers
        observers.call(self._lately.heard, outcome, self._manager.clock.wall())
        observers.call(self._pauses.heard, outcome)
        for happened in (*outcome.events, *outcome.effects):
            # One by one: what cannot be told to one client is told to the others.
            tell = self._tells.get(type(happened))
            if tell is not None and not observers.call(tell, happened, state):
                self._hang_up(getattr(happened, "lease", None))
        for event in outcome.events:
            match event:
                case ev.FlagMoved(kind=FlagKind.SQUATTER, phase=FlagPhase.RAISED):
                    observers.call(self._may_be_member, event.process, state)
        for name in tuple(self._locked):
            observers.call(self._unlock, name, state)
        if any(not chosen(event, event.ABOUT.is_quiet) for event in outcome.events):
            self.statuses.news()
        if outcome.effects or any(event.ABOUT.moves_queue for event in outcome.events):
            self._queue_changed.set()

    def _may_be_member(self, process: ProcessId, state: State) -> None:
        """A process on a GPU that has no lease may have been started by a task that has one.

        Its parents may have ended, so only its environment tells: the secret of that lease. A batch
        system hands that secret to the jobs which the task submits, and they are no part of it.
        """
        environ = started_with(process)
        lease, secret = environ.get(names.LEASE, ""), environ.get(names.SECRET, "")
        known = state.leases.get(LeaseId(lease))
        if known is None or not translate.knows_secret(self._key, lease, secret):
            return
        if known.phase is LeasePhase.HELD and not came_along(environ):
            at, who = self._manager.clock.boot(), known.environment
            self._manager.ask(cmd.Attach(at, known.id, who, process), owner=who)

    def _tell(self, happened: ev.Event | Effect, state: State) -> None:
        self._send(notices.about(happened, self._scene(state)))

    def _scene(self, state: State) -> notices.Scene:
        manager, at = self._manager, self._manager.clock.boot()
        readings = manager.readings.by_gpu
        return notices.Scene(
            state, manager.config, at, readings, self._guests, self._holders, self._key
        )

    @staticmethod
    def _send(told: Iterable[notices.Told]) -> None:
        for guests, notice, says in told:
            for guest in guests:
                guest.conn.notify(notice.value, says)

    def _hang_up(self, lease: LeaseId | None) -> None:
        """Disconnect the clients of ``lease`` that missed a message, so that they attach again."""
        if lease is None:
            return
        holders = [self._guests.get(conn_id) for conn_id in self._holders.get(lease, ())]
        waiters = [waiter.conn for waiter in self._waiters.get(lease, ())]
        for conn in {guest.conn for guest in holders if guest is not None}.union(waiters):
            conn.close()

    def _granted(self, event: ev.LeaseGranted, state: State) -> None:
        name = event.lease
        lease = state.leases.get(name)
        # The state is that after the whole batch, in which the lease may have ended again.
        if lease is None or lease.phase is not LeasePhase.HELD:
            return
        # Nobody waits where it was granted at once: the answer says it.
        for waiter in self._waiters.pop(name, ()):
            if waiter.call_id is None:
                told = notices.granted(lease, state, self._key)
                waiter.conn.notify(Notice.GRANTED.value, told)
            else:
                waiter.conn.reply(waiter.call_id, translate.lease_result(state, lease, self._key))

    def _ended(self, event: ev.LeaseEnded, _state: State) -> None:
        reason, message = translate.ended_message(event.reason, event.detail)
        for waiter in self._waiters.pop(event.lease, ()):
            if waiter.call_id is not None:
                waiter.conn.error(waiter.call_id, reason, message)
        for conn_id in self._holders.pop(event.lease, ()):
            guest = self._guests.get(conn_id)
            if guest is None:
                continue
            guest.leases.discard(event.lease)
            # Whoever left the queue knows that, for it is what they asked for.
            if event.reason is not EndReason.CANCELLED:
                told = {
                    "lease": event.lease,
                    "reason": event.reason.value,
                    "message": message,
                }
                guest.conn.notify(Notice.REVOKED.value, told)

    def _turn_left(self, name: LeaseId, state: State) -> dict[str, float]:
        """What a task that waits for its turn is told: about how long, if anybody can tell."""
        turn = state.turns.get(name)
        if turn is None or turn.phase is not TurnPhase.WAITS:
            return {}
        at, cells = self._manager.clock.boot(), self._pauses.cells
        left = expected.seconds_left(state, self._manager.config, name, at, cells)
        return {} if left is None else {"seconds": left}

    def _stopped(self, event: ev.ResumeCancelled, _state: State) -> None:
        for waiter in self._waiters.pop(event.lease, ()):
            if waiter.call_id is not None:
                text = "The task waits no more; its lease stays parked."
                waiter.conn.error(waiter.call_id, Reason.NO_RESOURCES, text)

    def _hints_changed(self) -> None:
        """The pool said where else people would get a GPU."""
        self._queue_changed.set()
        self.statuses.news()

    def _outlooks(self) -> dict[LeaseId, Outlook]:
        recent = self._lately.waited(self._manager.clock.wall())
        return outlooks(
            self._manager.state, self._manager.config, self._manager.clock.boot(), recent
        )

    def _tell_position(
        self, name: LeaseId, waiters: tuple[_Waiter, ...], place: Place, outlook: Outlook | None
    ) -> None:
        state, at = self._manager.state, self._manager.clock.boot()
        lease, config = state.leases[name], self._manager.config
        notice = translate.queued_notice(
            state,
            lease,
            self._key,
            at,
            place,
            outlook,
            config,
            self._pool.hints,
            self._manager.clock.wall(),
            self._name,
        )
        for waiter in waiters:
            waiter.conn.notify(Notice.QUEUED.value, notice)

    async def _push_positions(self) -> None:
        while True:
            await event_or_time(self._queue_changed, REMIND_INTERVAL)
            if self._manager.state.queue.waiting and not self._queue_changed.is_set():
                self.statuses.news()
            # What changes within this second is told together.
            await asyncio.sleep(QUEUE_INTERVAL)
            self._queue_changed.clear()
            self._manager.observers.call(self._tell_positions)

    def _tell_positions(self) -> None:
        if not self._waiters:
            return
        coming = self._outlooks()
        for name, place in places(self._manager.state).items():
            waiters = tuple(self._waiters.get(name, ()))
            if waiters:
                self._tell_position(name, waiters, place, coming.get(name))


def _live(processes: Iterable[ProcessId]) -> bool:
    """Whether one of them lives; so also where that cannot be told just now."""
    try:
        return any(map(is_alive, processes))
    except ProcessError:
        return True
