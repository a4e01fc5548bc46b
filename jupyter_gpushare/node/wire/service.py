"""Connections and the manager: who waits for which lease, and who is told what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from ...policy import core
from ...policy.books.state import Lease, State
from ...policy.recall.outlook import Outlook, outlooks
from ...policy.say import texts
from ...policy.say.effects import (
    Effect,
    TellBudget,
    TellEnded,
    TellGranted,
    TellLimit,
    TellOverLimit,
    TellRecall,
    TellStopped,
    TellTurn,
    WarnOfRecall,
)
from ...policy.words import commands as cmd
from ...policy.words.events import (
    ActivityChanged,
    BudgetChanged,
    BudgetsMeasured,
    GpuLost,
    GpuPutBack,
    GpuRestored,
    GpuTakenOut,
    GrantingChanged,
    LeaseQueued,
    RecallMoved,
    ResumeQueued,
)
from ...policy.words.model import (
    Allocation,
    EndReason,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ProcessId,
)
from ...policy.words.recalls import MEMORY, RecallPhase
from ...protocol.calls import (
    Call,
    DailyUsageParams,
    HistoryParams,
    QuotaName,
    ReadingsParams,
    ReleaseParams,
    UsageParams,
)
from ...protocol.errors import DOMAIN_ERROR, Reason
from ...protocol.framing import Encoded, encoded
from ...protocol.messages import FEATURES, PAGES, PROTOCOL, CallId, Method, Notice
from ..host.clock import Clock
from ..host.outcome import Outcome
from ..inventory.readings import Readings, figures
from ..ledger.ledger import LedgerError, Reads
from ..manager import Manager
from ..people.fairness import RoundRobin
from ..views import history
from ..views.board import Slices, Took, Wanted, hand_out
from ..views.logs import call_tag, is_heard, say
from ..views.status import (
    NodeFacts,
    Place,
    Sheet,
    environment_quota,
    group_quota,
    measured_by_lease,
    out_of_service,
    places,
    quota_document,
)
from ..views.waits import Waits
from . import translate, vouchers
from .translate import Caller

#: What changes what the voucher of a lease says; a grant brings one anyway.
_CHANGES_VOUCHER = (Method.PARKED, Method.RESTORED, Method.MEMORY)

#: What changes where requests stand, or why, though nobody is told of an effect.
_MOVES_QUEUE = (
    *(LeaseQueued, ResumeQueued, GrantingChanged, BudgetsMeasured, BudgetChanged),
    *(ActivityChanged, GpuLost, GpuRestored, GpuTakenOut, GpuPutBack),
)
QUEUE_INTERVAL = 1.0
#: Seconds after which waiting people are told again, though nothing changed: estimates grow old.
REMIND_INTERVAL = 30.0
WATCH_INTERVAL = 0.2
#: So many who ask for a status, of each environment, are answered together.
LOOKS = 8
#: The pause after a push, as a multiple of the time that it took: at most a fifth of a core.
WATCH_REST = 4.0
#: To a client whose process cannot be found.
UNSEEN = (
    "The calling process has ended, or the node manager cannot see it: then /proc is mounted with "
    "hidepid, and its log says what the administrator can do."
)
#: Records read at the start for the waits of the last hour; a busier hour is told in part.
_RECALLED = 20_000


#: Whose quota is doubted, where it is nobody's in particular.
_NOBODYS: Final = "A user without a quota of their own"
_MEMBER: Final = "A member of the group {}"


class Principal(Protocol):
    """What identity says of a connection."""

    @property
    def environment(self) -> str: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def admin(self) -> bool: ...
    @property
    def all_servers(self) -> bool: ...


class Conn(Protocol):
    """One connection, as the transport gives it."""

    @property
    def id(self) -> int: ...
    @property
    def process(self) -> ProcessId | None: ...
    def reply(self, call_id: CallId, result: Any) -> None: ...
    def error(
        self,
        call_id: CallId | None,
        code: int,
        reason: Reason,
        message: str,
        data: dict[str, Any] | None = None,
    ) -> None: ...
    def notify(self, method: str, params: dict[str, Any] | Encoded) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Somebody to tell when a lease is granted; ``call_id`` ``None``: by a notification."""

    conn: Conn
    call_id: CallId | None


@dataclass(slots=True)
class _Guest:
    """A connection that said hello."""

    conn: Conn
    who: Caller
    leases: set[LeaseId] = field(default_factory=set)
    watching: bool = False
    # A status change could not be sent, because the client does not read.
    behind: bool = False
    # The Hub's pages ask for the person who opens them, on whatever node that person works.
    only_looks: bool = False


class Service:
    """Answers calls. All methods run on the manager's loop."""

    def __init__(
        self,
        manager: Manager,
        clock: Clock,
        *,
        key: bytes,
        name: str,
        version: str,
        heartbeat_interval: float,
        log: logging.Logger | None = None,
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._key = key
        self._name = name
        self._version = version
        self._heartbeat_interval = heartbeat_interval
        self._log = log or logging.getLogger(__name__)
        self._guests: dict[int, _Guest] = {}
        self._holders: dict[LeaseId, set[int]] = {}
        self._waiters: dict[LeaseId, list[_Waiter]] = {}
        self._queue_changed = asyncio.Event()
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        self._changes = 0
        self._lookers: RoundRobin[tuple[_Guest, Call]] = RoundRobin()
        #: Who has taken how many seconds of statuses, and whether somebody has taken too many.
        self.took: Took = lambda environment, seconds: None
        self.owes: Callable[[str], bool] = lambda environment: False
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = Waits()
        self._figures: object = None
        #: When JupyterHub told its groups' quotas, while it is away (Unix seconds).
        self.quotas_as_of: Callable[[], float | None] = lambda: None
        #: Whether identity knows somebody of that name; ``None``: it cannot tell.
        self.knows: Callable[[str], Awaitable[bool | None]] = _unknown
        #: The members of JupyterHub's groups that have a quota, and which groups those are.
        self.members: Callable[[], Mapping[EnvironmentName, tuple[str, ...]]] = dict
        self.ledger: str | None = None  # its path, for administrators
        manager.listeners.append(self._heard)
        manager.measured.append(self._measured)

    async def recall(self) -> None:
        """Read from the ledger what only people want to know: the waits of the last hour.

        Where that cannot be read they are told from now on: nobody's GPUs hang on it.
        """
        reads = self._manager.reads
        try:
            records = await reads.ask("", lambda ledger: ledger.history(None, _RECALLED))
        except (LedgerError, ValueError) as error:
            self._log.error("The waits of the last hour could not be read: %s", error)
        else:
            self._waits.refill(reversed(records))

    def start(self) -> None:
        """Begin to push queue positions and status changes."""
        self._spawn(self._push_positions())
        self._spawn(self._push_status())
        self._spawn(self._answer_lookers())

    async def close(self) -> None:
        """Stop pushing."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the transport calls these --------------------------------------------

    def on_open(self, conn: Conn) -> None:
        """A connection; it is nobody until it says hello."""

    def on_hello(self, conn: Conn, principal: Principal, call: Call) -> None:
        """Identity has spoken."""
        if call.params.protocol != PROTOCOL:
            self._fail(
                conn,
                call.id,
                Reason.UNSUPPORTED_PROTOCOL,
                f"This node manager speaks protocol {PROTOCOL}, the client "
                f"{call.params.protocol}. Install the same release of jupyter_gpushare on both.",
            )
            conn.close()
            return
        if conn.process is None:
            self._fail(conn, call.id, Reason.NOT_ALLOWED, UNSEEN)
            conn.close()
            return
        who = Caller(
            EnvironmentName(principal.environment),
            conn.process,
            principal.admin,
            tuple(principal.groups),
            principal.all_servers,
        )
        looks = call.params.client_name == PAGES
        self._guests[conn.id] = _Guest(conn, who, only_looks=looks)
        command = cmd.Introduce(self._clock.boot(), who.environment, who.groups)
        tag = call_tag(conn.id, call.id)
        welcome = partial(self._welcome, conn, who, call)
        self._manager.ask(command, self._or_hang_up(conn, welcome), tag, who.environment)
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
        """Whether idle kernels of this environment may be asked for their GPUs at all."""
        config = self._manager.config
        own = self._manager.state.quotas.resolve(environment)[0].idle_timeout
        return bool(config.idle_timeout or config.idle_timeouts if own is None else own)

    def _welcome(self, conn: Conn, who: Caller, call: Call, decision: core.Decision) -> None:
        conn.reply(
            call.id,
            {
                "protocol": PROTOCOL,
                "node": {
                    "name": self._name,
                    "version": self._version,
                    "simulated": self._manager.inventory.simulated,
                },
                "environment": who.environment,
                "parks": self._parks(who.environment),
                "admin": who.admin,
                "quota": quota_document(self._manager.state, who.environment, self._manager.config),
                "heartbeat_interval": self._heartbeat_interval,
                "features": FEATURES,
            },
        )

    def on_call(self, conn: Conn, call: Call) -> None:
        """A call of somebody who said hello."""
        guest = self._guests.get(conn.id)
        if is_heard(self._log, logging.DEBUG):
            tag, method = call_tag(conn.id, call.id), call.method.value
            say(self._log, logging.DEBUG, "call", call=tag, method=method)
        if guest is None:
            self._fail(conn, call.id, Reason.NOT_ALLOWED, "Say hello first.")
        elif call.method in translate.ADMIN_ONLY and not guest.who.admin:
            self._fail(
                conn,
                call.id,
                Reason.NOT_ALLOWED,
                f"Only an administrator may call {call.method.value}; you are "
                f"{guest.who.environment}.",
            )
        elif (special := self._special.get(call.method)) is not None:
            special(self, guest, call)
        else:
            self._command(guest, call)

    def on_close(self, conn: Conn) -> None:
        """A connection is gone. Its leases stay: the task may come back, or die and be seen."""
        guest = self._guests.pop(conn.id, None)
        self._manager.care.forget(conn.id)
        if guest is None:
            return
        tag = call_tag(conn.id, None)
        say(self._log, logging.DEBUG, "connection.closed", call=tag)
        for lease in guest.leases:
            self._holders.get(lease, set()).discard(conn.id)
            waiters = [w for w in self._waiters.get(lease, ()) if w.conn is not conn]
            if waiters:
                self._waiters[lease] = waiters
            else:
                self._waiters.pop(lease, None)

    # -- calls ---------------------------------------------------------------

    def _command(self, guest: _Guest, call: Call) -> None:
        fresh = LeaseId(secrets.token_hex(16))
        make = translate.COMMANDS[call.method]
        command = make(self._clock.boot(), guest.who, call.params, fresh)
        self._ask(guest, call, command, partial(self._answer, guest, call))

    def _ask(
        self,
        guest: _Guest,
        call: Call,
        command: cmd.Command,
        answer: Callable[[core.Decision], None],
    ) -> None:
        tag, owner = call_tag(guest.conn.id, call.id), guest.who.environment
        self._manager.ask(command, self._or_hang_up(guest.conn, answer), tag, owner)

    def _or_hang_up(
        self, conn: Conn, answer: Callable[[core.Decision], None]
    ) -> Callable[[core.Decision], None]:
        """Like ``answer``; a client that cannot be answered is disconnected and asks again."""

        def answered(decision: core.Decision) -> None:
            if not self._manager.observers.call(answer, decision):
                conn.close()

        return answered

    def _attach(self, guest: _Guest, call: Call) -> None:
        if not translate.knows_secret(self._key, call.params.lease, call.params.secret):
            self._fail_unknown(guest, call)
        elif call.params.voucher is None:
            self._command(guest, call)
        else:
            self._present(guest, call)

    def _present(self, guest: _Guest, call: Call) -> None:
        """A lease that the ledger perhaps forgot, or knows as it was before."""
        state, voucher = self._manager.state, vouchers.read(self._key, call.params.voucher)
        if voucher is None or voucher.lease != call.params.lease or state.rebuild is None:
            self._command(guest, call)  # nobody but the ledger says what it is
            return
        who, readings = guest.who, self._manager.readings.by_gpu
        measured = vouchers.measured_of(voucher, readings)
        at = self._clock.boot()
        command = cmd.Present(at, voucher, who.environment, who.process, measured)
        self._ask(guest, call, command, partial(self._answer, guest, call))

    def _release(self, guest: _Guest, call: Call) -> None:
        name = call.params.lease
        if call.params.request_id is not None:
            known = self._manager.state.by_request
            name = known.get((guest.who.process, call.params.request_id))
            if name is None:
                self._fail_unknown(guest, call)
                return
        self._command(guest, Call(call.id, call.method, ReleaseParams(name, None)))

    def _status(self, guest: _Guest, call: Call) -> None:
        self._lookers.put(guest.who.environment, (guest, call))
        self._asked.set()

    def _news(self) -> None:
        self._changes += 1
        self._changed.set()

    def _usage(self, guest: _Guest, call: Call) -> None:
        params: UsageParams = call.params
        until = self._clock.wall()
        since = until - params.since
        mine = self._visible(guest, params.environment)

        def work(ledger: Reads) -> Encoded:
            rows = [
                encoded(
                    {
                        "environment": row.environment,
                        "gpu_seconds_held": row.gpu_seconds_held,
                        "gpu_seconds_busy": row.gpu_seconds_busy,
                        "leases": row.leases,
                    }
                )
                for row in ledger.usage(since, until, mine)
            ]
            return encoded({"since": since, "until": until}, rows=rows)

        self._spawn(self._from_ledger(guest, call, work, mine))

    def _usage_daily(self, guest: _Guest, call: Call) -> None:
        params: DailyUsageParams = call.params
        now = self._clock.wall()
        whose = self._visible(guest, params.environment) or guest.who.environment
        gpus = len(self._manager.state.gpus)
        viewer = guest.who.viewer if params.environment is None else None

        def of(ledger: Reads, name: str) -> dict[str, Any]:
            days = ledger.usage_daily(now, params.days, params.utc_offset, name)
            return {
                "environment": name,
                "days": [{**asdict(day), "capacity": gpus * (day.end - day.start)} for day in days],
            }

        def work(ledger: Reads) -> Encoded:
            own = of(ledger, whose)
            if viewer is None or not viewer.all_servers:
                return encoded(own)
            used = ledger.usage(own["days"][0]["start"], now, None)
            servers = (row.environment for row in used if viewer.is_mine(row.environment))
            others = [encoded(of(ledger, name)) for name in servers if name != whose]
            return encoded(own, servers=others)

        self._spawn(self._from_ledger(guest, call, work, whose))

    def _readings(self, guest: _Guest, call: Call) -> None:
        params: ReadingsParams = call.params
        state = self._manager.state
        uuids = sorted(state.gpus, key=lambda uuid: state.gpus[uuid].gpu.index)
        since = self._clock.wall() - params.since
        guest.conn.reply(call.id, self._manager.samples.document(since, uuids))

    def _history(self, guest: _Guest, call: Call) -> None:
        params: HistoryParams = call.params
        mine = self._visible(guest, params.environment)

        def work(ledger: Reads) -> Encoded:
            records = ledger.history(mine, params.limit)
            # A row at a time: a thousand at once would hold up the loop's thread.
            return encoded({}, events=[encoded(history.entry(record)) for record in records])

        self._spawn(self._from_ledger(guest, call, work, mine))

    def _visible(self, guest: _Guest, asked: str | None) -> str | None:
        """Whose records may be read: everybody's only by an administrator."""
        who = guest.who
        if who.admin or (asked is not None and who.viewer.is_mine(asked)):
            return asked
        return who.environment

    async def _from_ledger(
        self,
        guest: _Guest,
        call: Call,
        work: Callable[[Reads], Encoded],
        whose: str | None,
    ) -> None:
        who = guest.who.environment
        try:
            key = (call.method, call.params, whose)
            guest.conn.reply(call.id, await self._manager.reads.ask(who, work, key))
        except LedgerError as error:
            self._fail(guest.conn, call.id, Reason.UNAVAILABLE, str(error))

    def _ledger_care(self, guest: _Guest, call: Call) -> None:
        self._spawn(self._take_care(guest, call))

    async def _take_care(self, guest: _Guest, call: Call) -> None:
        manager, conn = self._manager, guest.conn
        try:
            if call.method is Method.LEDGER_BACKUP:
                answer = await manager.care.part(conn.id, call.params.offset)
            elif call.method is Method.LEDGER_CHECK:
                answer = await manager.care.check()
            else:
                before, _ = await manager.in_ledger(manager.ledger.size)
                await manager.tidy(spare=0.0)
                after, _ = await manager.in_ledger(manager.ledger.size)
                answer = {"before": before, "after": after}
        except (LedgerError, OSError) as error:
            self._fail(conn, call.id, Reason.UNAVAILABLE, str(error))
        else:
            conn.reply(call.id, answer)
        if conn.id not in self._guests:  # it hung up meanwhile
            manager.care.forget(conn.id)

    def _quota_set(self, guest: _Guest, call: Call) -> None:
        """Somebody may have to ask JupyterHub first who that is."""
        self._spawn(self._set_quota(guest, call))

    async def _set_quota(self, guest: _Guest, call: Call) -> None:
        whose, is_known = call.params.whose, True
        groups: tuple[str, ...] = ()
        if whose.environment is not None:
            name = EnvironmentName(whose.environment)
            # Asked before it is set: who has a quota is known afterwards.
            is_known = name in self._known_names() or await self.knows(name) is not False
            groups = self.members().get(name, ())
        command = translate.quota_set(self._clock.boot(), guest.who, call.params, groups)
        self._ask(guest, call, command, partial(self._quota_is_set, guest, call, is_known))

    def _quota_is_set(
        self, guest: _Guest, call: Call, is_known: bool, decision: core.Decision
    ) -> None:
        """The quota in force, and what of it an administrator may not have meant."""
        if not isinstance(decision, core.Done):
            self._answer(guest, call, decision)
            return
        state, whose = self._manager.state, call.params.whose
        book = state.quotas
        if whose.environment is not None:
            name = EnvironmentName(whose.environment)
            who, quota = str(name), book.resolve(name)[0]
        else:
            who = _MEMBER.format(whose.group) if whose.group is not None else _NOBODYS
            quota = book.of_group(whose.group) or book.of_default
        warnings = texts.doubt_texts(who, quota, _capacities(state), is_known=is_known)
        guest.conn.reply(call.id, {**self._quota_answer(whose), "warnings": warnings})

    def quota_warnings(self) -> list[str]:
        """What of all quotas in force an administrator may not have meant."""
        state, book = self._manager.state, self._manager.state.quotas
        everybody = [
            (_NOBODYS, book.of_default),
            *((_MEMBER.format(name), quota) for name, quota in sorted(book.of_groups.items())),
            *sorted({**book.users, **book.overrides}.items()),
        ]
        sizes = _capacities(state)
        return [text for who, quota in everybody for text in texts.doubt_texts(who, quota, sizes)]

    def _seen_names(self) -> set[EnvironmentName]:
        """Everybody who was here since the ledger began."""
        state = self._manager.state
        seen = {*state.quotas.groups_of, *state.accounts}
        return seen | {lease.environment for lease in state.leases.values()}

    def _known_names(self) -> set[EnvironmentName]:
        """The same, and everybody who is configured, has a quota, or is of a group with one."""
        book = self._with_members().quotas
        return self._seen_names() | {*book.users, *book.overrides, *book.groups_of}

    def _quota_list(self, guest: _Guest, call: Call) -> None:
        state, config = self._with_members(), self._manager.config
        book, seen = state.quotas, self._seen_names()
        quotas = [
            {**environment_quota(state, name, config), "seen": name in seen}
            for name in sorted(self._known_names())
        ]
        guest.conn.reply(
            call.id,
            {
                "quotas": quotas,
                "warnings": self.quota_warnings(),
                "default": group_quota(state, None, config),
                "groups": [group_quota(state, name, config) for name in sorted(book.of_groups)],
            },
        )

    def _with_members(self) -> State:
        """The state, with the groups of those whom only JupyterHub has told of yet."""
        state = self._manager.state
        book = state.quotas
        told = {n: g for n, g in self.members().items() if n not in book.groups_of}
        return replace(state, quotas=replace(book, groups_of=book.groups_of.update(told)))

    def _quota_answer(self, whose: QuotaName) -> dict[str, Any]:
        state, config = self._with_members(), self._manager.config
        if whose.environment is None:
            return group_quota(state, whose.group, config)
        name = EnvironmentName(whose.environment)
        return {**environment_quota(state, name, config), "seen": name in self._seen_names()}

    _special = {  # noqa: RUF012 - a constant table of methods
        Method.ATTACH: _attach,
        Method.RELEASE: _release,
        Method.STATUS: _status,
        Method.WATCH: _status,
        Method.USAGE: _usage,
        Method.USAGE_DAILY: _usage_daily,
        Method.READINGS: _readings,
        Method.HISTORY: _history,
        Method.QUOTA_LIST: _quota_list,
        Method.QUOTA_SET: _quota_set,
        Method.LEDGER_BACKUP: _ledger_care,
        Method.LEDGER_CHECK: _ledger_care,
        Method.LEDGER_VACUUM: _ledger_care,
    }

    # -- answers ---------------------------------------------------------------

    def _answer(self, guest: _Guest, call: Call, decision: core.Decision) -> None:
        conn, state = guest.conn, self._manager.state
        if isinstance(decision, core.Refuse):
            reason = translate.reason_of(decision.reason)
            self._fail(conn, call.id, reason, decision.message, dict(decision.numbers))
        elif isinstance(decision, core.Done):
            if call.method is Method.QUOTA_UNSET:
                conn.reply(call.id, self._quota_answer(call.params))
            elif call.method in (Method.GPU_DRAIN, Method.GPU_RESUME):
                gpu = call.params.gpu
                out = out_of_service(state, GpuUuid(gpu), guest.who.viewer)
                changed = decision.count > 0
                conn.reply(call.id, {"gpu": gpu, "out_of_service": out, "changed": changed})
            else:
                result = translate.done_result(decision, call.method, state)
                lease = state.leases.get(decision.lease) if decision.lease else None
                if call.method in _CHANGES_VOUCHER and lease is not None:
                    result |= translate.voucher(state, lease, self._key)
                if call.method is Method.PIN and lease is not None:
                    result["seconds"] = max(0.0, (lease.pinned_until or 0.0) - self._clock.boot())
                conn.reply(call.id, result)
            if call.method is Method.TURN_ASK and decision.lease is not None:
                self._tell_turn(decision.lease, state)  # it may have had its turn, or need none
        else:
            self._lease_answer(guest, call, decision.lease)

    def _lease_answer(self, guest: _Guest, call: Call, name: LeaseId) -> None:
        lease = self._manager.state.leases.get(name)
        if lease is None or lease.phase is LeasePhase.ENDED:
            self._fail_unknown(guest, call)
            return
        guest.leases.add(name)
        self._holders.setdefault(name, set()).add(guest.conn.id)
        waits = name in self._manager.state.queue.waiting
        if not waits or (lease.phase is LeasePhase.PARKED and call.method is Method.ATTACH):
            result = translate.lease_result(self._manager.state, lease, self._key)
            guest.conn.reply(call.id, result)
            self._tell_turn(name, self._manager.state)  # one that came back missed it
            if call.method is Method.ATTACH:
                self._tell_limits_again(guest, lease, self._manager.state)
                recall = self._manager.state.memory_recall(name)
                if recall and recall.is_asked and guest.who.process == lease.task.process:
                    self._tell_recall(name, self._manager.state)  # it may have missed that, too
            return
        attached = call.method is Method.ATTACH
        if attached:
            result = translate.lease_result(self._manager.state, lease, self._key)
            guest.conn.reply(call.id, result)
        waiter = _Waiter(guest.conn, None if attached else call.id)
        self._waiters.setdefault(name, []).append(waiter)
        place = places(self._manager.state)[name]
        self._tell_position(name, (waiter,), place, self._outlooks().get(name))

    def _fail(
        self,
        conn: Conn,
        call_id: CallId,
        reason: Reason,
        message: str,
        data: dict[str, Any] | None = None,
    ) -> None:
        conn.error(call_id, DOMAIN_ERROR, reason, message, data)

    def _fail_unknown(self, guest: _Guest, call: Call) -> None:
        refusal = core.unknown_lease()
        self._fail(guest.conn, call.id, Reason.UNKNOWN_LEASE, refusal.message)

    # -- news -------------------------------------------------------------------

    def _heard(self, outcome: Outcome, state: State) -> None:
        """The manager carried something out; tell those whom it concerns."""
        observers = self._manager.observers
        observers.call(self._waits.heard, outcome, state, self._clock.wall())
        for effect in outcome.effects:
            # One by one: what cannot be told to one client is told to the others.
            if not observers.call(self._tell, effect, state):
                self._hang_up(getattr(effect, "lease", None))
        if any(event.DURABLE or not _is_quiet(event) for event in outcome.events):
            self._news()
        if outcome.effects or any(isinstance(e, _MOVES_QUEUE) for e in outcome.events):
            self._queue_changed.set()

    def _tell(self, effect: Effect, state: State) -> None:
        if isinstance(effect, TellGranted):
            self._granted(effect.lease, state)
        elif isinstance(effect, TellEnded):
            self._ended(effect)
        elif isinstance(effect, TellBudget):
            self._budget(effect)
        elif isinstance(effect, TellRecall):
            self._tell_recall(effect.lease, state)
        elif isinstance(effect, TellLimit):
            self._tell_task(effect.lease, state, Notice.LIMIT, translate.limit_notice(effect))
        elif isinstance(effect, TellOverLimit):
            notice = translate.over_limit_notice(effect, state, self._manager.config)
            self._tell_task(effect.lease, state, Notice.OVER_LIMIT, notice)
        elif isinstance(effect, WarnOfRecall):
            self._warn(effect, state)
        elif isinstance(effect, TellTurn):
            self._tell_turn(effect.lease, state)
        elif isinstance(effect, TellStopped):
            self._stopped(effect.lease)

    def _hang_up(self, lease: LeaseId | None) -> None:
        """Disconnect the clients of ``lease`` that missed a message, so that they attach again."""
        if lease is None:
            return
        holders = [self._guests.get(conn_id) for conn_id in self._holders.get(lease, ())]
        waiters = [waiter.conn for waiter in self._waiters.get(lease, ())]
        for conn in {guest.conn for guest in holders if guest is not None}.union(waiters):
            conn.close()

    def _measured(self, readings: Readings) -> None:
        """Memory in use and utilisation change without any event: tell those who watch."""
        now = figures(readings)
        if now != self._figures:
            self._figures = now
            self._news()

    def _granted(self, name: LeaseId, state: State) -> None:
        lease = state.leases.get(name)
        if lease is None or lease.phase is not LeasePhase.HELD:
            return
        waiters = self._waiters.pop(name, ())
        if not waiters:
            return  # granted at once: the answer says it
        result = translate.lease_result(state, lease, self._key)
        for waiter in waiters:
            if waiter.call_id is None:
                told = {part: value for part, value in result.items() if part != "secret"}
                waiter.conn.notify(Notice.GRANTED.value, told)
            else:
                waiter.conn.reply(waiter.call_id, result)

    def _ended(self, effect: TellEnded) -> None:
        reason, message = translate.ended_message(effect.reason, effect.detail)
        for waiter in self._waiters.pop(effect.lease, ()):
            if waiter.call_id is not None:
                self._fail(waiter.conn, waiter.call_id, reason, message)
        for conn_id in self._holders.pop(effect.lease, ()):
            guest = self._guests.get(conn_id)
            if guest is None:
                continue
            guest.leases.discard(effect.lease)
            if effect.reason is not EndReason.CANCELLED:
                told = {
                    "lease": effect.lease,
                    "reason": effect.reason.value,
                    "message": message,
                }
                guest.conn.notify(Notice.REVOKED.value, told)

    def _tell_recall(self, name: LeaseId, state: State) -> None:
        """Only the task itself can hide its GPUs; a child of it, or a page, cannot."""
        lease, recall = state.leases.get(name), state.memory_recall(name)
        if lease is None or recall is None:
            return
        measured = measured_by_lease(state, self._manager.readings.by_gpu)
        notice = translate.park_notice(recall, state, lease, measured)
        self._tell_task(name, state, Notice.PARK, notice)

    def _tell_task(self, name: LeaseId, state: State, kind: Notice, notice: dict[str, Any]) -> None:
        """Tell the task's own process; not a child that shares the lease, nor a page."""
        lease = state.leases.get(name)
        for conn_id in self._holders.get(name, ()) if lease is not None else ():
            guest = self._guests.get(conn_id)
            if lease and guest is not None and guest.who.process == lease.task.process:
                guest.conn.notify(kind.value, notice)

    def _tell_limits_again(self, guest: _Guest, lease: Lease, state: State) -> None:
        """A task that was away may have missed what it may use now."""
        lifted = tuple(
            Allocation(gpu, lift.memory)
            for (name, gpu), lift in state.lifts.items()
            if name == lease.id
        )
        again = state.rebuild is not None and lease.id in state.rebuild.done
        if again and lease.id not in state.takers and lease.phase is LeasePhase.HELD:
            lifted = lifted or lease.allocations  # it may have been lifted before
        if lifted and guest.who.process == lease.task.process:
            notice = translate.limit_notice(TellLimit(lease.id, lifted))
            guest.conn.notify(Notice.LIMIT.value, notice)

    def _warn(self, effect: WarnOfRecall, state: State) -> None:
        """The task says it on its terminal; whoever watches shows a countdown."""
        lease, recall = state.leases.get(effect.lease), state.memory_recall(effect.lease)
        if lease is None or recall is None:
            return
        notice = translate.park_warning(effect, recall, state, lease)
        for guest in tuple(self._guests.values()):
            concerned = effect.lease in guest.leases or guest.watching
            if concerned and guest.who.viewer.is_mine(lease.environment):
                guest.conn.notify(Notice.PARK_WARNING.value, notice)

    def _tell_turn(self, name: LeaseId, state: State) -> None:
        """Only the task itself computes between two gates; its children are not gated."""
        lease = state.leases.get(name)
        if lease is None or lease.phase is not LeasePhase.HELD or name not in state.takers:
            return
        notice = translate.turn_notice(state, lease, self._manager.config)
        if notice is not None:
            self._tell_task(name, state, *notice)

    def _stopped(self, name: LeaseId) -> None:
        for waiter in self._waiters.pop(name, ()):
            if waiter.call_id is not None:
                text = "The task waits no more; its lease stays parked."
                self._fail(waiter.conn, waiter.call_id, Reason.NO_RESOURCES, text)

    def _budget(self, effect: TellBudget) -> None:
        notice = translate.budget_notice(effect, self._manager.config)
        for guest in tuple(self._guests.values()):
            concerned = guest.leases or guest.watching
            if concerned and guest.who.environment == effect.environment:
                guest.conn.notify(Notice.BUDGET.value, notice)

    def _outlooks(self) -> dict[LeaseId, Outlook]:
        recent = self._waits.waited(self._clock.wall())
        return outlooks(self._manager.state, self._manager.config, self._clock.boot(), recent)

    def _tell_position(
        self, name: LeaseId, waiters: tuple[_Waiter, ...], place: Place, outlook: Outlook | None
    ) -> None:
        state, at = self._manager.state, self._clock.boot()
        lease, config = state.leases[name], self._manager.config
        notice = translate.queued_notice(state, lease, self._key, at, place, outlook, config)
        for waiter in waiters:
            waiter.conn.notify(Notice.QUEUED.value, notice)

    async def _push_positions(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMIND_INTERVAL):
                    await self._queue_changed.wait()
            if self._manager.state.queue.waiting and not self._queue_changed.is_set():
                self._news()
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

    async def _push_status(self) -> None:
        told = self._changes
        while True:
            # Who could not be told before gets the newest status, even if nothing changes again.
            is_behind = any(guest.behind for guest in self._guests.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0 if is_behind else None):
                    await self._changed.wait()
            self._changed.clear()
            changed, told = told != self._changes, self._changes
            watchers: RoundRobin[_Guest] = RoundRobin()
            # Who missed the last one is first, else it were the same ones each time.
            for guest in sorted(self._guests.values(), key=lambda guest: not guest.behind):
                if guest.watching and (changed or guest.behind):
                    guest.behind = True  # until it is told
                    if not self.owes(guest.who.environment):
                        watchers.put(guest.who.environment, guest)
            wanted = [
                (guest.who.viewer, 0, partial(self._tell_status, guest))
                for guest in watchers.take(len(watchers), len(watchers))
            ]
            slices = Slices()
            if wanted:
                await self._manager.observers.wait(self._hand_out(wanted, slices, _as_change))
            await asyncio.sleep(max(WATCH_INTERVAL, slices.spent * WATCH_REST))

    def _tell_status(self, guest: _Guest, change: Encoded) -> None:
        # An environment that used more than its share of the processor is told later than others.
        if not self.owes(guest.who.environment):
            guest.behind = not guest.conn.notify(Notice.CHANGED.value, change)

    def _answer_look(self, guest: _Guest, call: Call, changes: int, status: Encoded) -> None:
        guest.conn.reply(call.id, status)
        if call.method is Method.WATCH:
            guest.watching = True
            if changes != self._changes:
                # It was made before the newest change, which nobody has told this one.
                guest.behind = True
                self._changed.set()  # no news for the others

    async def _answer_lookers(self) -> None:
        """All who ask for a status while one is made wait for the next, and share it.

        A few of each environment: who asks for many makes others wait for no more.
        """
        while True:
            await self._asked.wait()
            asked = self._lookers.take(len(self._lookers), LOOKS)
            if not self._lookers:
                self._asked.clear()
            slices = Slices()
            wanted = [
                (
                    guest.who.viewer,
                    getattr(call.params, "page", 0),
                    partial(self._answer_look, guest, call, self._changes),
                )
                for guest, call in asked
                if self._guests.get(guest.conn.id) is guest
            ]
            if not await self._manager.observers.wait(self._hand_out(wanted, slices)):
                for guest, _call in asked:
                    guest.conn.close()  # it comes back and asks
            await asyncio.sleep(slices.spent)

    async def _hand_out(
        self,
        wanted: Iterable[Wanted],
        slices: Slices,
        form: Callable[[Encoded], Encoded] = lambda status: status,
    ) -> None:
        manager = self._manager
        facts = NodeFacts(
            name=self._name,
            version=self._version,
            simulated=manager.inventory.simulated,
            started=manager.started_wall,
            now=self._clock.wall(),
            boot=self._clock.boot(),
            problem=manager.readings.problem,
            quotas_as_of=self.quotas_as_of(),
            ledger=self.ledger,
        )
        sheet = Sheet(
            manager.state,
            facts,
            manager.config,
            manager.readings.by_gpu,
            self._waits.document(facts.now),
            (guest.who.environment for guest in self._guests.values() if not guest.only_looks),
            self._outlooks,
        )
        await hand_out(sheet, wanted, slices, self.took, form)


def _as_change(status: Encoded) -> Encoded:
    """What a notification says of a status."""
    return encoded({"status": status})


def _capacities(state: State) -> list[int]:
    return [books.gpu.memory for books in state.gpus.values()]


async def _unknown(_name: str) -> bool | None:
    return None


def _is_quiet(event: object) -> bool:
    """Events that change nothing a person sees."""
    if isinstance(event, RecallMoved):
        return event.give in MEMORY and event.phase is RecallPhase.TOLD
    return type(event).__name__ in (
        "HeartbeatSeen",
        "UsageSettled",
        "DeadlinesExtended",
        "LineLooked",
        "WorkSeen",
    )
