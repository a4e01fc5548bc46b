"""Translates messages to commands, and decisions to answers. Nothing else knows both.

The protocol's words belong to clients, and lose nothing for years; the policy's types change as we
learn. Between them stands this table, so that either can change alone. It decides nothing.

Two things are added to what a client says. Who calls comes from :class:`Caller`, never from a
parameter: a command about a lease names its environment and process, and the policy looks whether
the lease is theirs. And texts are cut to a length in bytes, because they are recorded and shown to
others.

A lease's secret is derived from the node manager's key and stored nowhere. A voucher says what the
lease is, signed with that key; its holder keeps it, in case the ledger is lost. Both are made here,
so that no answer about a lease can forget them.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, TypeVar

from ...compose.waiting import notice_says
from ...figures import ended
from ...policy import core
from ...policy.books.state import Lease, State
from ...policy.decide.rebuild import voucher_of
from ...policy.recall.outlook import Outlook
from ...policy.words import commands as cmd
from ...policy.words.config import PolicyConfig
from ...policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    EndReason,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    Movable,
    PriorityClass,
    ProcessId,
    RefusalReason,
    Request,
    Reserve,
    Rung,
    Task,
    TaskKind,
)
from ...policy.words.promises import Promise
from ...policy.words.recalls import Give
from ...policy.words.turns import Figures
from ...protocol import calls, documents as doc, messages as msg
from ...protocol.errors import Reason
from ...quotas import edits
from ..views.hints import Hints, with_hints
from ..views.outlook import outlook_document
from ..views.status import Place, budget_of, granted_gpus
from ..views.viewer import Viewer
from . import vouchers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller as the kernel, the Hub or a certificate tells it; no field is the client's word.

    One that ``is_remote`` is on another host, and its ``process`` is nobody's.
    """

    environment: EnvironmentName
    process: ProcessId
    admin: bool = False
    groups: tuple[str, ...] = ()
    all_servers: bool = False
    pool: bool = False
    is_remote: bool = False

    @property
    def viewer(self) -> Viewer:
        """The caller as a viewer of statuses."""
        return Viewer(self.environment, self.admin, self.all_servers)


def secret_of(key: bytes, lease: LeaseId) -> str:
    """A lease's secret: derived, so that a retried request gets the same one and none is stored."""
    return hmac.digest(key, lease.encode(), "sha256").hex()


def knows_secret(key: bytes, lease: str, secret: str) -> bool:
    """Whether ``secret`` belongs to ``lease``, in constant time."""
    right = secret_of(key, LeaseId(lease))
    # As bytes: it compares no text with signs beyond ASCII, and a client may send any.
    return hmac.compare_digest(right.encode(), secret.encode("utf-8", "replace"))


#: Bytes that a task's name and path may take as they are stored and sent, escapes included; why
#: its memory stays takes as much as a path.
_LONGEST_NAME: Final = 512
_LONGEST_PATH: Final = 2048


def _within(text: str, most: int) -> str:
    """``text``, cut where its JSON would be longer than ``most`` bytes."""
    # JSON makes six bytes of a sign at most, so a short text need not be encoded to be measured.
    if 6 * len(text) <= most or len(json.dumps(text, ensure_ascii=False).encode()) <= most:
        return text
    fits, over = 0, len(text)
    while over - fits > 1:
        middle = (fits + over) // 2
        if len(json.dumps(text[:middle], ensure_ascii=False).encode()) <= most - 3:
            fits = middle
        else:
            over = middle
    return text[:fits] + "…"


def _name_or_none(name: str | None) -> str | None:
    return None if name is None else _within(name, _LONGEST_NAME)


def _bytes(size: int | None) -> Bytes | None:
    return None if size is None else Bytes(size)


def _request(at: float, who: Caller, params: calls.RequestParams, fresh: LeaseId) -> cmd.Command:
    task = Task(
        process=who.process,
        name=_within(params.task.name, _LONGEST_NAME),
        kind=TaskKind(params.task.kind),
        kernel_id=params.task.kernel_id,
        path=None if params.task.path is None else _within(params.task.path, _LONGEST_PATH),
        job=_name_or_none(params.task.job),
        job_kind=_name_or_none(params.task.job_kind),
    )
    memory = _bytes(params.memory)
    priority_class = PriorityClass(params.priority_class or params.looks or "interactive")
    of_quota = params.gpus is None
    request = Request(
        params.gpus or 0,
        memory,
        priority_class,
        params.request_id,
        _bytes(params.persistent),
        _bytes(params.temporary),
        _bytes(params.turn_offset),
        None if params.reserve is None else Reserve(params.reserve),
        params.live,
        params.code,
        lasts=params.lasts,
        stops=params.stops,
        memory_most=_bytes(params.memory_most),
        keeper=params.keeper,
    )
    detected = params.priority_class is None
    return cmd.RequestLease(
        at, fresh, who.environment, task, request, params.wait, of_quota, detected
    )


def _promise(params: calls.PromiseParams) -> Promise | None:
    if params.deadline is None and params.rate is None:
        return None
    return Promise(params.deadline, params.rate)


def _figures(part: calls.GpuMemory) -> Figures:
    sizes = (part.persistent, part.temporary, part.cache)
    return Figures(GpuUuid(part.uuid), *(Bytes(size) for size in sizes))


_Maker = Callable[[float, Caller, Any, LeaseId], cmd.Command]


def _of_task(kind: type[cmd.OfTask], **parts: Callable[[Any], Any]) -> _Maker:
    """Makes what a task says of its lease: each ``part`` by its function of the call's parameters.

    The others have the value of the parameter with the same name.
    """
    own = fields(kind)[len(fields(cmd.OfTask)) :]
    reads = [parts.get(part.name) or attrgetter(part.name) for part in own]

    def make(at: float, who: Caller, params: Any, _: LeaseId) -> cmd.Command:
        told = (read(params) for read in reads)
        return kind(at, LeaseId(params.lease), who.environment, who.process, *told)

    return make


_PARKED: Final = _of_task(
    cmd.Park, rung=lambda p: Rung(p.rung), movable=lambda p: Movable(p.movable)
)
_TURN_DONE: Final = _of_task(cmd.EndTurn)
#: What a task says by ``gave``.
_GAVE: Final = {
    Give.CACHE: _of_task(cmd.EmptyCache),
    Give.LIFT: _of_task(
        cmd.ConfirmLimit,
        gpus=lambda p: tuple(Allocation(GpuUuid(x.uuid), Bytes(x.memory)) for x in p.limits),
    ),
    Give.TURN: _TURN_DONE,
    Give.TENSORS: _PARKED,
    Give.PROCESS: _PARKED,
}

COMMANDS: Final[dict[msg.Method, _Maker]] = {
    msg.Method.REQUEST: _request,
    msg.Method.ATTACH: _of_task(cmd.Attach),
    msg.Method.HEARTBEAT: _of_task(cmd.Heartbeat),
    msg.Method.ACTIVITY: _of_task(cmd.SetActivity, activity=lambda p: Activity(p.state)),
    msg.Method.PARKING: _of_task(cmd.PlanParking),
    msg.Method.PARKED: _PARKED,
    msg.Method.RESTORED: _of_task(cmd.Restored),
    msg.Method.PIN: lambda at, who, p, _: cmd.Pin(
        at, LeaseId(p.lease), who.environment, p.seconds, who.all_servers
    ),
    msg.Method.ABILITY: _of_task(
        cmd.ReportAbility,
        rung=lambda p: Rung(p.rung),
        why=lambda p: _within(p.why, _LONGEST_PATH),
    ),
    msg.Method.STOPPABLE: _of_task(cmd.OfferStop),
    msg.Method.GAVE: lambda at, who, p, fresh: _GAVE[Give(p.give)](at, who, p, fresh),
    msg.Method.KEPT: _of_task(cmd.Keep, why=lambda p: _within(p.reason, _LONGEST_PATH)),
    msg.Method.RESUME: _of_task(cmd.Resume),
    msg.Method.MEMORY: _of_task(
        cmd.ReportMemory, figures=lambda p: tuple(_figures(part) for part in p.figures)
    ),
    msg.Method.PROGRESS: _of_task(cmd.ReportProgress),
    msg.Method.PROMISE: _of_task(cmd.MakePromise, promise=_promise),
    msg.Method.TURN_ASK: _of_task(cmd.AskTurn, locked=lambda p: False),
    msg.Method.TURN_DONE: _TURN_DONE,
    msg.Method.TURN_LOCK: _of_task(cmd.LockTurn),
    msg.Method.TURN_LOCKED: _of_task(cmd.AskTurn, number=lambda p: None, locked=lambda p: True),
    msg.Method.RELEASE: lambda at, who, p, _: cmd.Release(
        at,
        # By now the service has found the lease of a request that was named by its own id.
        LeaseId(p.lease or ""),
        who.environment,
        who.admin,
        who.all_servers,
        who.process if p.ends else None,
    ),
    msg.Method.TASK_ENDED: lambda at, who, p, _: cmd.EndKernel(
        at, who.environment, p.kernel_id, p.pid
    ),
    msg.Method.TASK_RENAMED: lambda at, who, p, _: cmd.RenameTask(
        at, who.environment, p.kernel_id, p.name, p.path
    ),
    msg.Method.QUOTA_UNSET: lambda at, who, p, _: edits.unset(at, who.environment, p),
    msg.Method.LEASE_REVOKE: lambda at, who, p, _: cmd.Revoke(
        at, LeaseId(p.lease), p.reason, who.environment
    ),
    msg.Method.GPU_DRAIN: lambda at, who, p, _: cmd.TakeOut(
        at, GpuUuid(p.gpu), p.reason, who.environment, p.within
    ),
    msg.Method.NODE_DRAIN: lambda at, who, p, _: cmd.TakeOut(
        at, None, p.reason, who.environment, p.within
    ),
    msg.Method.NODE_RESUME: lambda at, who, p, _: cmd.PutBack(at, None, who.environment),
    msg.Method.GPU_RESUME: lambda at, who, p, _: cmd.PutBack(at, GpuUuid(p.gpu), who.environment),
}

# Calls about the ledger's own file.
OF_LEDGER: Final = frozenset(
    {msg.Method.LEDGER_BACKUP, msg.Method.LEDGER_CHECK, msg.Method.LEDGER_VACUUM}
)
# Only an administrator may call these.
ADMIN_ONLY: Final = OF_LEDGER | {
    msg.Method.QUOTA_LIST,
    msg.Method.QUOTA_SET,
    msg.Method.QUOTA_UNSET,
    msg.Method.LEASE_REVOKE,
    msg.Method.GPU_DRAIN,
    msg.Method.GPU_RESUME,
    msg.Method.NODE_DRAIN,
    msg.Method.NODE_RESUME,
}
# Only the pool that this host has joined may call these.
POOL_ONLY: Final = frozenset(
    {
        msg.Method.POOL_FOLLOW,
        msg.Method.POOL_LEND,
        msg.Method.POOL_HINT,
        msg.Method.POOL_CERTIFY,
    }
)
# What may be called from another host: no process of this one is needed. Pages call these. What
# concerns the ledger's file itself is for somebody who is on this host.
FROM_ELSEWHERE: Final = (POOL_ONLY | ADMIN_ONLY - OF_LEDGER) | {
    msg.Method.STATUS,
    msg.Method.WATCH,
    msg.Method.USAGE,
    msg.Method.USAGE_DAILY,
    msg.Method.READINGS,
    msg.Method.HISTORY,
    msg.Method.RELEASE,
    msg.Method.PIN,
}
# The pool may call these, too, though it is no administrator.
NODES_OWN: Final = frozenset({msg.Method.NODE_DRAIN, msg.Method.NODE_RESUME})


def may(who: Caller, method: msg.Method) -> bool:
    """Whether somebody may make a call that is not for everybody."""
    return who.admin or (who.pool and method in NODES_OWN)


_REASONS: Final = {reason: Reason(reason.value) for reason in RefusalReason}


def reason_of(refusal: RefusalReason) -> Reason:
    """The wire's word for the policy's."""
    return _REASONS[refusal]


def voucher(state: State, lease: Lease, key: bytes) -> doc.NewVoucher:
    """The voucher of a lease as it is now; its holder keeps it in case the ledger is lost."""
    current = voucher_of(state, lease)
    signed = "" if current is None else vouchers.sign(key, current)
    # One that is too long for a line is not told: only a lost ledger makes a difference then.
    return {"voucher": signed} if 0 < len(signed) <= msg.VOUCHER else {}


def lease_result(state: State, lease: Lease, key: bytes) -> doc.Granted:
    """The answer to ``request`` and ``attach``."""
    return {
        "lease": lease.id,
        "secret": secret_of(key, lease.id),
        "gpus": granted_gpus(state, lease),
        "state": lease.phase.value,
        "follows": lease.request.follows,
        "memory_most": lease.request.memory_most,
        "share": state.given.get(lease.id) if lease.request.expected else None,
        **voucher(state, lease, key),
    }


def queued_notice(
    state: State,
    lease: Lease,
    key: bytes,
    at: float,
    place: Place,
    outlook: Outlook | None,
    config: PolicyConfig,
    hints: Hints,
    now: float,
    host: str,
) -> doc.Queued:
    """The notice to a waiting request: its place, why it waits, its outlook.

    ``at`` is this boot's time, and ``now`` is the same moment in Unix seconds. ``host`` is told
    where it is one of several.
    """
    elsewhere = hints.get(lease.environment, ())
    why = core.why_waiting(state, lease.id, place.position - 1, config, at)
    notice: doc.Queued = {
        "lease": lease.id,
        "secret": secret_of(key, lease.id),
        "request_id": lease.request.request_id,
        "position": place.position,
        "ahead": place.ahead,
        "waiting": max(0.0, at - lease.requested_at),
        "reason": reason_of(why.reason).value,
        "message": with_hints(why.message, elsewhere),
        "budget": budget_of(state, lease, config),
        "outlook": outlook_document(state, outlook, Viewer(lease.environment)),
        "hints": list(elsewhere),
        "time": now,
    }
    if state.quotas.pool is not None:
        notice["host"] = host
    notice["says"] = notice_says(notice, now)
    return notice


_ENDED: Final[dict[EndReason, tuple[Reason, str]]] = {
    EndReason.REFUSED: (Reason.OVER_QUOTA, "The quota was lowered while this request waited."),
    EndReason.REVOKED: (Reason.NOT_ALLOWED, "An administrator took the lease back"),
    EndReason.CANCELLED: (Reason.UNKNOWN_LEASE, "The request left the queue."),
    EndReason.RELEASED: (Reason.UNKNOWN_LEASE, "The lease was released."),
    EndReason.KERNEL_ENDED: (Reason.UNKNOWN_LEASE, "The kernel was shut down or restarted."),
    EndReason.PROCESS_GONE: (Reason.UNKNOWN_LEASE, "The task's process is gone."),
    EndReason.REBOOTED: (Reason.UNKNOWN_LEASE, "The host was restarted."),
    EndReason.UNUSED: (
        Reason.UNKNOWN_LEASE,
        "The process that asked for the lease has ended, and the others had nothing on its GPUs.",
    ),
    EndReason.HEARTBEAT_LOST: (
        Reason.UNKNOWN_LEASE,
        "The task gave no sign of life for too long and held no GPU memory, so the lease ended.",
    ),
}


def ended_message(reason: EndReason, detail: str) -> tuple[Reason, str]:
    """The notice to the holder of an ended lease."""
    wire, sentence = _ENDED[reason]
    if reason is EndReason.REVOKED:
        said = (detail or "no reason was given").rstrip()
        return wire, ended(f"{sentence}: {said}")
    if reason is EndReason.REFUSED and detail:
        return wire, detail
    return wire, sentence


def done_result(decision: core.Done, method: msg.Method, state: State) -> dict[str, Any]:
    """The answer to a command that was carried out."""
    if method in NODES_OWN:
        return {"count": decision.count}
    if method is msg.Method.TASK_ENDED:
        return {"ended": decision.count}
    if method is msg.Method.TASK_RENAMED:
        return {"renamed": decision.count}
    if decision.lease is None:
        return {}
    lease = state.leases.get(decision.lease)
    return {"state": lease.phase.value if lease is not None else "ended"}
