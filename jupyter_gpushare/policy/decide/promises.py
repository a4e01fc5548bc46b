"""Decides promises: which can be made, how they stand, and what their tasks are given for them."""

from __future__ import annotations

from ..books.state import Lease
from ..words import commands as cmd
from ..words import events as ev
from .draft import Decision, Done, Draft
from .own import of_task


@of_task(cmd.MakePromise)
def _make_promise(draft: Draft, command: cmd.MakePromise, lease: Lease) -> Decision:
    return Done(lease.id)


@of_task(cmd.ReportProgress)
def _report_progress(draft: Draft, command: cmd.ReportProgress, lease: Lease) -> Decision:
    draft.emit(ev.ProgressSeen(draft.at, lease.id, command.done, command.total, command.seconds))
    return Done(lease.id)
