"""GPUs that an admin took out of service: nothing new is granted there, and tasks leave in time.

On such a GPU no lease is granted, no reservation grows and no limit is lifted. A task that computes
goes on until it ends; if the GPU is to be empty by a time, one that can save its state is asked to
stop before. An idle task is asked to leave nothing behind (:mod:`..recall`), and gets
another GPU if its memory can be moved. The GPU comes back, so a request that needs it waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..books.heldup import places_of
from ..books.state import Lease, State
from ..say import texts
from ..words import commands as cmd, events as ev
from ..words.model import GpuUuid, OutOfService, RefusalReason
from .draft import Decision, Done, Draft, Refuse, decides
from .serving import serve


def take_out(draft: Draft, command: cmd.TakeOut) -> Decision:
    """Take a GPU out of service, or say another reason for it, or until when it is to be empty.

    Of the whole node all are taken out but those that are out for a reason of their own.
    """
    before = draft.state.drained if command.gpu is None else draft.state.out.get(command.gpu)
    until = before.until if before is not None else None
    if command.within is not None:
        until = draft.at + command.within
    if command.gpu is None:
        draft.emit(ev.ServiceChanged(draft.at, None, command.reason, command.by, until=until))
        return Done(count=keep_out(draft, before))
    if command.gpu not in draft.state.gpus:
        return Refuse(RefusalReason.UNKNOWN_GPU, texts.NO_SUCH_GPU)
    if before is not None and (before.reason, before.until) == (command.reason, until):
        return Done()
    draft.emit(ev.ServiceChanged(draft.at, command.gpu, command.reason, command.by, until=until))
    return Done(count=1)


def keep_out(draft: Draft, before: OutOfService | None = None) -> int:
    """Take out those GPUs of a drained node that serve, or are out with it ``before``; how many."""
    drained = draft.state.drained
    if drained is None:
        return 0
    known = draft.state.out
    serve = [uuid for uuid in draft.state.gpus if known.get(uuid) in (None, before)]
    for uuid in sorted(serve, key=lambda uuid: draft.state.gpus[uuid].gpu.order):
        why = (drained.reason, drained.by)
        draft.emit(ev.ServiceChanged(draft.at, uuid, *why, with_node=True, until=drained.until))
    return len(serve)


@decides(cmd.PutBack)
def put_back(draft: Draft, command: cmd.PutBack) -> Decision:
    """Put a GPU back into service, or those that were taken out with the node; serve requests."""
    state = draft.state
    if command.gpu is None:
        if state.drained is None:
            return Done()
        draft.emit(ev.ServiceChanged(draft.at, None, None, command.by))
        back = sorted(uuid for uuid, out in state.out.items() if out == state.drained)
    elif command.gpu not in state.out:
        known = command.gpu in state.gpus
        return Done() if known else Refuse(RefusalReason.UNKNOWN_GPU, texts.NO_SUCH_GPU)
    else:
        back = [command.gpu]
    for uuid in back:
        draft.emit(ev.ServiceChanged(draft.at, uuid, None, command.by))
    serve(draft)
    return Done(count=len(back))


def text(state: State, lease: Lease | None = None) -> str:
    """The GPUs of ``lease``, or of the node, that are out of service, and why; else empty."""
    gpus = state.gpus if lease is None else (part.gpu for part in lease.allocations)
    return _told(state, (uuid for uuid in gpus if uuid in state.out))


def why_lacking(state: State, lease: Lease) -> str:
    """Why a request waits for GPUs that are missing."""
    missing = state.missing_gpus
    places = places_of(state, lease)
    if places is not None:
        return f"{_told(state, places.intersection(missing))} {texts.BOUND_THERE}"
    own = [uuid for uuid in missing if (lease.environment, uuid) in state.reservations]
    if own:
        return f"{_told(state, own)} {texts.OWN_THERE}"
    return f"{_told(state, missing)} {texts.NEEDS_THEM_BACK}"


def _told(state: State, gpus: Iterable[GpuUuid]) -> str:
    told = []
    known = (state.gpus[uuid] for uuid in gpus if uuid in state.gpus)
    for books in sorted(known, key=lambda books: books.gpu.order):
        out = state.out.get(books.gpu.uuid)
        what = "cannot be used" if out is None else "is out of service"
        why = books.problem or "" if out is None else out.reason
        told.append(texts.missing_text(books.gpu.index, what, why))
    more = len(told) - texts.MOST_NAMED
    if more > 0:
        told[texts.MOST_NAMED :] = [f"So {'is' if more == 1 else 'are'} {more} more."]
    return " ".join(told)
