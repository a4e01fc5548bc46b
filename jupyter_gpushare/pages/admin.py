"""The administrators' pages: everybody's GPUs of a host, and the forms that act on one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.holding import gpu_number
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod

from . import views
from .asking import Refusal, refusals
from .csvfile import hours, to_csv
from .listing import EVENT_FILTERS, ONLY, SORTS, WINDOWS, Listing, listing, page_of
from .page import (
    Answered,
    CsvHandler,
    Done,
    Looked,
    Note,
    PageHandler,
    is_admin,
    part_of,
)
from .shown import iso

EVENTS: Final = 200
_MOST_LEASES: Final = 100  # rows of everybody's leases
ONLY_ADMINS: Final = "Only administrators may do this."
_PARTS: Final = {
    "hosts": "hosts.html",
    "live": "admin_live.html",
    "events": "admin_events.html",
}


class AdminPage(PageHandler):
    """For those whom a node manager calls administrators."""

    is_admins = True

    async def look(self) -> Looked:
        """What the page needs. Raises :class:`Refusal` for others than administrators."""
        looked = await super().look()
        if not looked.is_admin:
            self.refuse([looked.shown])
        return looked

    def refuse(self, answers: Sequence[Answered]) -> NoReturn:
        """Say why there is no page: nobody says that the viewer is an administrator."""
        # Nobody answers, so nobody has said that the viewer is none: it may help to try again.
        if all(answer.document is None for answer in answers):
            raise Refusal(NodeProblem("unavailable", answers[0].problem))
        message = (
            "Only administrators see everybody's GPUs. The node manager decides who is one: "
            "administrators of a JupyterHub, and the users and groups that are configured for it."
        )
        raise Refusal(NodeProblem("not_allowed", message))

    async def check_admin(self, node: str) -> None:
        """Raises :class:`Refusal` for others than administrators: of the node, or of the pool.

        The pool's quotas and hosts can be changed also while a host is away.
        """
        if self.site.hosts is None:
            await self.admin_status(node)
        elif not self.viewer.admin:
            raise Refusal(NodeProblem("not_allowed", ONLY_ADMINS))

    def reason(self, rule: wishes.Form, reader: str) -> tuple[str, str]:
        """The reason that was typed, and the mistake in it; empty if there is none."""
        typed = self.typed("reason").strip()
        try:
            return rule.read(typed), ""
        except NodeProblem:
            self.set_status(400)
            return typed, f"1 to {rule.most} characters: {reader} reads it."

    async def admin_status(self, node: str, *, whole: bool = False) -> Mapping[str, Any]:
        """The status of one node, ``whole`` with all its pages.

        Raises :class:`Refusal` for others than its administrators.
        """
        with refusals():
            asked = self.whole_status(node) if whole else self.ask(node, Method.STATUS)
            status = await asked
        if not status["admin"]:
            raise Refusal(NodeProblem("not_allowed", ONLY_ADMINS))
        return status


class AdminHandler(AdminPage):
    """Every node, environment, lease, waiting request and event."""

    async def get(self) -> None:
        with refusals():
            wanted = listing(lambda name: self.get_argument(name, ""))
        looked = await self.look()
        part = self.get_argument("part", "")
        view: dict[str, Any] = {**looked.view, "wanted": wanted}
        if part in ("", "hosts"):
            view["pool_groups"] = None if self.site.hosts is None else self.site.hosts.groups()
        if part in ("", "live"):
            node = await self._node(looked.shown, wanted)
            groups = sorted(node.get("known_groups", ()))
            view |= {
                "node": node,
                "windows": {name: words for name, (_seconds, words) in WINDOWS.items()},
                "only": {name: words for name, (words, _fits) in ONLY.items()},
                "sorts": {name: words for name, (words, _key) in SORTS.items()},
                "groups": {"": "all groups", **dict(zip(groups, groups, strict=True))},
            }
        if part in ("", "events"):
            sought = {name: self.get_argument(name, "") for name in EVENT_FILTERS}
            view |= await self._events(looked.shown, sought)
        self.page(part_of(part, _PARTS) if part else "admin.html", admin=True, **view)

    async def _node(self, answer: Answered, wanted: Listing) -> dict[str, Any]:
        """An administrator's view of one node, or the ``problem`` for which there is none."""
        name = answer.node
        if answer.document is not None and answer.document["admin"]:
            # The table of hosts needs no more than the first page of each status.
            answer = await self.told(name, self.whole_status(name))
        status = answer.document
        if status is None:
            return {"name": name, "problem": answer.problem}
        if not status["admin"]:
            return {"name": name, "problem": "You are not an administrator of this node."}
        try:
            quotas, usage = await asyncio.gather(
                self.ask(name, Method.QUOTA_LIST),
                self.ask(name, Method.USAGE, since=WINDOWS[wanted.window][0]),
            )
        except NodeProblem as problem:
            return {"name": name, "problem": problem.message}
        members = views.members(quotas, usage, status)
        of = {one.name: one.quota.get("groups") or () for one in members}
        groups = [quotas["default"], *quotas["groups"]]
        found = page_of(members, wanted)
        leases = views.leases(
            status, everybody=True, takes=lambda name: wanted.takes(name, of.get(name, ()))
        )
        return {
            "name": name,
            "groups": groups,
            "known_groups": {group["group"] for group in quotas["groups"]}.union(*of.values()),
            "page": found,
            "environments": [views.environment_view(one) for one in found.shown],
            "leases": leases[:_MOST_LEASES],
            "more_leases": max(0, len(leases) - _MOST_LEASES),
            **views.node_parts(status),
        }

    async def _events(self, shown: Answered, wanted: Mapping[str, str]) -> dict[str, Any]:
        """The events of the host whose details the page shows."""
        status = shown.document
        told = Answered(shown.node, None)
        if status is not None and status["admin"]:
            told = await self.answered(
                shown.node, Method.HISTORY, limit=EVENTS, environment=wanted["environment"] or None
            )
        every = told.document["events"] if told.document is not None else []
        gpus = {gpu["uuid"]: f"GPU {gpu_number(gpu)}" for gpu in status["gpus"]} if status else {}
        kinds = {event["what"] for event in every} | ({wanted["kind"]} - {""})
        return {
            "events": views.events_shown(every, wanted, gpus),
            "events_of": len(every),
            "kinds": sorted(kinds, key=str.casefold),
            "sought": wanted,
            "events_problem": told.problem,
            "deeds": await self._deeds(),
        }

    async def _deeds(self) -> Sequence[Mapping[str, Any]]:
        """What people did to the pool; a pool that cannot read its ledger says so in its log."""
        if self.site.hosts is None:
            return ()
        try:
            return await self.site.hosts.deeds(self.viewer)
        except NodeProblem:
            return ()


class RevokeFormHandler(AdminPage):
    """Take a lease away, with a reason that its owner reads."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            lease = wishes.LEASE.read(self.query("lease"))
        await self._form(node, lease, "", "")

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            lease = wishes.LEASE.read(self.typed("lease"))
        await self.admin_status(node)
        reason, mistake = self.reason(wishes.WHY_REVOKED, "the owner of the lease")
        if mistake:
            await self._form(node, lease, reason, mistake)
            return
        try:
            await self.ask(node, Method.LEASE_REVOKE, lease=lease, reason=reason)
            note = Note("The lease is revoked; its owner is told why.")
        except NodeProblem as problem:
            ended = problem.reason == "unknown_lease"
            note = Note(f"Not revoked: {problem.message}", Done.NOTHING if ended else Done.FAILED)
        self.leave("admin", note, **self.at(node))

    async def _form(self, node: str, lease: str, reason: str, mistake: str) -> None:
        every = views.leases(await self.admin_status(node, whole=True), everybody=True)
        found = next((one for one in every if one.key == lease), None)
        if found is None:
            message = "There is no such lease any more: it has ended."
            raise Refusal(NodeProblem("unknown_lease", message))
        self.page("revoke.html", admin=True, node=node, lease=found, reason=reason, mistake=mistake)


class DrainFormHandler(AdminPage):
    """Take a GPU or a whole host out of service, with a reason that people read; or put it back."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            gpu = self.query("gpu")
            gpu = None if gpu is None else wishes.GPU.read(gpu)
        await self._form(node, gpu, "", "")

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            gpu = wishes.GPU.read(self.typed("gpu")) if self.typed("gpu") else None
        if gpu is None:
            await self.check_admin(node)
        else:
            await self.admin_status(node)
        reason = None
        if self.typed("action") != "resume":
            reason, mistake = self.reason(wishes.WHY_DRAINED, "everybody who waits")
            if mistake:
                await self._form(node, gpu, reason, mistake)
                return
        try:
            changed = await self._change(node, gpu, reason)
            what = "The GPU is" if gpu else f"All GPUs of {node} are"
            if reason is None:
                said = "back in service" if changed else "in service already"
            else:
                more = "; the queue says why" if changed else " already, for that reason"
                said = f"out of service{more}"
            note = Note(f"{what} {said}.", Done.DONE if changed else Done.NOTHING)
        except NodeProblem as problem:
            note = Note(f"Nothing is changed: {problem.message}", Done.FAILED)
        self.leave("admin", note, **self.at(node))

    async def _change(self, node: str, gpu: str | None, reason: str | None) -> bool:
        """Take it out of service for ``reason``, or put it back without one; whether it changed."""
        pool = self.site.hosts
        if gpu is None and pool is not None:
            asked = PoolMethod.RESUME if reason is None else PoolMethod.DRAIN
            await pool.ask(asked, self.viewer, host=node, reason=reason)
            return True
        if gpu is None:
            method = Method.NODE_RESUME if reason is None else Method.NODE_DRAIN
            return bool((await self.ask(node, method, reason=reason))["count"])
        method = Method.GPU_RESUME if reason is None else Method.GPU_DRAIN
        return bool((await self.ask(node, method, gpu=gpu, reason=reason))["changed"])

    async def _form(self, node: str, gpu: str | None, reason: str, mistake: str) -> None:
        drained, every = "", list[views.Gpu]()
        if gpu is None and self.site.hosts is not None:
            await self.check_admin(node)
            known = {host.name: host for host in self.site.hosts.hosts(self.viewer)}
            drained = known[node].drained
        else:
            every = views.node_parts(await self.admin_status(node))["gpus"]
        found = [one for one in every if gpu in (None, one.of["uuid"])]
        if gpu is not None and not found:
            raise Refusal(NodeProblem("unknown_gpu", "There is no such GPU in this node any more."))
        self.page(
            "drain.html",
            admin=True,
            node=node,
            gpu=gpu,
            gpus=found,
            what=found[0].title if gpu else node,
            drained=drained,
            is_out=bool(drained)
            or (bool(found) and all(one.of["out_of_service"] for one in found)),
            reason=reason,
            mistake=mistake,
        )


class AdminCsvHandler(CsvHandler, AdminPage):
    """GPU-hours by environment over a window."""

    async def get(self) -> None:
        window = self.get_argument("window", "1d")
        if window not in WINDOWS:
            raise Refusal(wishes.bad_request(f"'window' is one of {', '.join(WINDOWS)}."))
        rows: list[list[str | int | float]] = []
        answers = await self.every_node(Method.STATUS)
        if not is_admin(answers):
            self.refuse(answers)
        for answer in answers:
            with refusals():
                usage = await self.ask(answer.node, Method.USAGE, since=WINDOWS[window][0])
            since, until = (iso(usage[name]) for name in ("since", "until"))
            for row in usage["rows"]:
                rows.append(
                    [
                        *(answer.node, row["environment"], since, until),
                        *(hours(row["gpu_seconds_held"]), hours(row["gpu_seconds_busy"])),
                        *(row["leases"], hours(row["gpu_seconds_charged"])),
                        hours(row["resident_gib_seconds"]),
                    ]
                )
        header = (
            *("node", "environment", "since", "until", "held_gpu_hours", "busy_gpu_hours"),
            *("leases", "charged_gpu_hours", "resident_gib_hours"),
        )
        self.attach(f"gpu-hours-{window}.csv", to_csv(header, rows))
