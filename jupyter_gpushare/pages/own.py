"""The pages of each user: what they have, and what they may do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jupyter_gpushare.figures import format_duration
from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.calls import DailyUsageParams, PinParams
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.periods import day_names, zone_name

from . import hosts, views
from .asking import Refusal, refusals
from .csvfile import hours, to_csv
from .page import Answered, CsvHandler, Done, Note, PageHandler, part_of

DAYS: Final = 30
_PARTS: Final = {"hosts": "hosts.html", "live": "user_live.html"}


class UserHandler(PageHandler):
    """One's own quota, leases, place in the queue, and use by day."""

    async def get(self) -> None:
        part = self.get_argument("part", "")
        if part == "days":
            self.page("user_days.html", admin=False, **await self._days())
            return
        looked = await self.look()
        if part == "plots":
            view = {**looked.view, **await self.plots(looked.shown)}
            self.page("gpu_plots.html", admin=False, **view)
            return
        admin = looked.is_admin
        view = {
            **looked.view,
            "node": own_view(looked.shown, looked.hosts, in_pool=looked.pool is not None),
        }
        if part:
            self.page(part_of(part, _PARTS), admin=admin, **view)
            return
        view |= await self.plots(looked.shown)
        if all(host.state is hosts.HostState.AWAY for host in looked.hosts):
            self.set_status(503)
            self.page("user.html", admin=admin, **view, days=None, servers=())
            return
        self.page("user.html", admin=admin, **view, **await self._days())

    async def _days(self) -> dict[str, Any]:
        answers = await self.every_node(Method.USAGE_DAILY, days=DAYS)
        told = [answer.document for answer in answers if answer.document is not None]
        offset = offset_of(told[0] if told else {})
        names, zone = (
            day_names((day["start"] for day in told[0]["days"]), offset) if told else [],
            zone_name(offset),
        )
        return {
            "days": views.days_view(told, names, zone) if told else None,
            "servers": views.server_days(told, names, zone),
            "count": DAYS,
            "missing": hosts.missing_text(
                [answer.node for answer in answers if answer.document is None]
            ),
        }


def own_view(
    answer: Answered, known: Sequence[hosts.Host], *, in_pool: bool = False
) -> dict[str, Any]:
    """A person's view of a node, or the ``problem`` for which it could not be asked.

    ``nothing`` says how to get a GPU of it, if not by code here. It ``is_own`` if a server or task
    of theirs runs there. With ``in_pool``, quotas are the pool's, and the node's say only what was
    lent there.
    """
    status = answer.document
    if status is None:
        return {"name": answer.node, "problem": answer.problem}
    return {
        "name": answer.node,
        "is_own": answer.node in hosts.own_hosts(known),
        "nothing": hosts.nothing_text(answer.node, known),
        "quotas": () if in_pool else list(views.quotas(status)),
        "leases": views.leases(status),
        **views.node_parts(status),
    }


def offset_of(document: Mapping[str, Any], asked: float | None = None) -> float:
    """Seconds by which the clocks of a document's days are ahead of UTC's."""
    return float(document.get("utc_offset", asked or 0.0))


class LeaseFormHandler(PageHandler):
    """Release or keep a lease of one's own, or leave the queue."""

    async def post(self, what: str) -> None:
        act = self._keep if what == "keep" else self._release
        with refusals():
            node = self.node_named(self.typed("node") or None)
            name = wishes.LEASE.read(self.typed("lease"))
        try:
            # Looked up first: of a lease that ended meanwhile the answer would be an error, and it
            # is none.
            status = await self.whole_status(node)
            lease = next((one for one in status["leases"] if one["id"] == name), None)
            if lease is None or lease["phase"] == "ended":
                text = "There was nothing to do: you have no such lease any more."
                note = Note(text, Done.NOTHING)
            else:
                note = await act(node, lease)
        except NodeProblem as problem:
            note = Note(f"Nothing was changed: {problem.message}", Done.FAILED)
        self.leave("", note, **self.at(node))

    async def _release(self, node: str, lease: Mapping[str, Any]) -> Note:
        waited = self.typed("state") == "queued"
        # The form was made while it waited: who wanted to leave the queue did not mean to give a
        # GPU back.
        if waited and lease["phase"] != "queued":
            text = "Not cancelled: the GPU was granted meanwhile. Release it if you do not need it."
            return Note(text, Done.NOTHING)
        await self.ask(node, Method.RELEASE, lease=lease["id"])
        return Note("You no longer wait for it." if waited else "The GPU is released.")

    async def _keep(self, node: str, lease: Mapping[str, Any]) -> Note:
        """Keep it for the usual time, or no longer (``seconds`` is 0)."""
        with refusals():
            seconds = wishes.typed(PinParams, "seconds", self.typed("seconds") or None)
        more = {} if seconds is None else {"seconds": seconds}
        if seconds == 0 and not lease["pinned_until"]:
            return Note("There was nothing to do: the GPU was not kept.", Done.NOTHING)
        kept = (await self.ask(node, Method.PIN, lease=lease["id"], **more)).get("seconds")
        time = f"for {format_duration(kept)}" if kept else "no longer"
        return Note(f"The GPU is kept {time}.")


class UsageCsvHandler(CsvHandler):
    """One's own GPU-hours by day."""

    async def get(self) -> None:
        offset = self.offset()
        with refusals():
            days = wishes.typed(DailyUsageParams, "days", self.query("days")) or DAYS
        rows: list[list[str | int | float]] = []
        for answer in await self.every_node(Method.USAGE_DAILY, days=days, utc_offset=offset):
            if answer.document is None:
                # A file that lacks a host without saying so would be added up as if it were all.
                raise Refusal(NodeProblem("unavailable", f"{answer.node}: {answer.problem}"))
            document = answer.document
            names = day_names(
                (day["start"] for day in document["days"]), offset_of(document, offset)
            )
            for own in (document, *document.get("servers", ())):
                for name, day in zip(names, own["days"], strict=True):
                    rows.append(
                        [
                            *(name, answer.node, own["environment"]),
                            *(hours(day["held"]), hours(day["busy"]), day["leases"]),
                            *(hours(day["charged"]), hours(day["resident_gib_seconds"])),
                        ]
                    )
        header = (
            *("day", "node", "environment", "held_gpu_hours", "busy_gpu_hours", "leases"),
            *("charged_gpu_hours", "resident_gib_hours"),
        )
        self.attach("gpu-hours.csv", to_csv(header, rows))
