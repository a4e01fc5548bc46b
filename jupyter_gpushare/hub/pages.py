"""The pages: one's own, and the administrators'.

All of them work without JavaScript: forms are posted, and the answer is a
redirect with a note. With it, the parts that change are fetched again
(``?part=…``) when the node manager says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import urlencode

from tornado import web

from jupyter_gpushare.link import openapi, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.messages import Method

from . import forms, views
from .api import refusals
from .csvfile import hours, to_csv
from .handlers import Refusal, ServiceHandler, attachment, said_by, write_page
from .words import duration

DAYS: Final = 30
EVENTS: Final = 200
#: The windows of the administrators' table: its name in addresses, seconds, and in words.
WINDOWS: Final = {
    "1h": (3600, "last hour"),
    "1d": (86400, "last 24 hours"),
    "7d": (7 * 86400, "last 7 days"),
    "30d": (30 * 86400, "last 30 days"),
}
_NOTE_COOKIE: Final = "gpushare-note"
_LONGEST_NOTE: Final = 600
_TITLES: Final = {
    400: "That could not be understood",
    403: "You may not do this",
    404: "There is nothing here",
    405: "That cannot be done here",
    503: "The GPUs cannot be shown now",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What one node said: a document, or why not."""

    node: str
    document: Mapping[str, Any] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What a form has done, told on the page after it."""

    text: str
    good: bool = True


class PageHandler(ServiceHandler):
    """A page, or a part of it."""

    @property
    def sends_to_login(self) -> bool:
        return True

    def set_default_headers(self) -> None:
        super().set_default_headers()
        if hasattr(self, "site"):
            self.set_header("Content-Security-Policy", self.site.policy())

    async def prepare(self) -> None:
        # Before the first header could be needed: set_default_headers() runs before initialize().
        self.set_header("Content-Security-Policy", self.site.policy())
        await super().prepare()

    def page(self, template: str, *, admin: bool, **view: Any) -> None:
        """Finish with a page, and with the note of the form before it."""
        write_page(
            self,
            template,
            note=self._take_note(),
            xsrf=self.xsrf_token.decode("ascii"),
            admin=admin,
            many_nodes=len(self.site.pool.nodes) > 1,
            here=self.request.path,
            **view,
        )

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        message = said_by(error) or {
            404: "No page of this service has this address.",
        }.get(status_code, "Something went wrong in the service; its log has the reason.")
        advice = ""
        if isinstance(error, Refusal) and error.problem.reason == "timed_out":
            status_code = 503
        if status_code >= 500:
            advice = "Leases that are held stay held. Try again in a minute."
        write_page(
            self,
            "error.html",
            title=_TITLES.get(status_code, "That did not work"),
            message=message,
            advice=advice,
        )

    # -- notes ---------------------------------------------------------------------------------

    def leave(self, path: str, note: Note, **query: str) -> None:
        """Redirect to a page of ours, which will show ``note``."""
        text = json.dumps([note.text[:_LONGEST_NOTE], note.good])
        value = base64.urlsafe_b64encode(text.encode()).decode()
        self.set_signed_cookie(
            _NOTE_COOKIE,
            value,
            expires_days=None,
            path=self.site.prefix,
            httponly=True,
            samesite="Lax",
        )
        address = self.site.prefix + path
        self.redirect(f"{address}?{urlencode(query)}" if query else address, status=303)

    def _take_note(self) -> Note | None:
        value = self.get_signed_cookie(_NOTE_COOKIE, max_age_days=1)
        if value is None or self.get_argument("part", None) is not None:
            return None
        self.clear_cookie(_NOTE_COOKIE, path=self.site.prefix)
        text, good = json.loads(base64.urlsafe_b64decode(value))
        return Note(text, good)

    # -- asking --------------------------------------------------------------------------------

    async def every_node(self, method: Method, **params: Any) -> list[Answered]:
        """Ask all nodes at once."""
        return list(
            await asyncio.gather(
                *(self._answered(node, method, **params) for node in self.site.pool.nodes)
            )
        )

    async def _answered(self, node: str, method: Method, **params: Any) -> Answered:
        try:
            return Answered(node, await self.ask(node, method, **params))
        except NodeProblem as problem:
            return Answered(node, None, problem.message)

    def typed(self, name: str) -> str:
        """A field of a form that was posted."""
        return self.get_body_argument(name, "")

    def offset(self) -> float:
        """Seconds by which the reader's clock is ahead of UTC's; 0 unless the page says it."""
        most = openapi.LARGEST_OFFSET
        with refusals():
            return wishes.number("utc_offset", self.query("utc_offset"), -most, most) or 0.0


def is_admin(answers: Sequence[Answered]) -> bool:
    """Whether a node manager says so."""
    return any(answer.document is not None and answer.document["admin"] for answer in answers)


# -- one's own -------------------------------------------------------------------------------------


class UserHandler(PageHandler):
    """One's own quota, leases, place in the queue, and use by day."""

    async def get(self) -> None:
        part = self.get_argument("part", "")
        if part == "days":
            self.page("user_days.html", admin=False, **await self._days())
            return
        statuses = await self.every_node(Method.STATUS)
        nodes = [own_view(answer) for answer in statuses]
        admin = is_admin(statuses)
        if part == "live":
            self.page("user_live.html", admin=admin, nodes=nodes)
            return
        if all(answer.document is None for answer in statuses):
            self.set_status(503)
            self.page("user.html", admin=admin, nodes=nodes, days=None, servers=())
            return
        self.page("user.html", admin=admin, nodes=nodes, **await self._days())

    async def _days(self) -> dict[str, Any]:
        offset = self.offset()
        answers = await self.every_node(Method.USAGE_DAILY, days=DAYS, utc_offset=offset)
        told = [answer.document for answer in answers if answer.document is not None]
        names, zone = day_names(told, offset) if told else [], zone_name(offset)
        return {
            "days": views.days_view(told, names, zone) if told else None,
            "servers": views.server_days(told, names, zone),
            "utc_offset": f"{offset:g}",
            "count": DAYS,
        }


@dataclass(frozen=True, slots=True)
class OwnView:
    """What a person sees of one node."""

    name: str
    problem: str
    node_problem: str = ""
    simulated: bool = False
    quotas: Sequence[views.QuotaView] = ()
    leases: Sequence[views.LeaseView] = ()
    queue: views.QueueView | None = None
    gpus: Sequence[views.GpuView] = ()


def own_view(answer: Answered) -> OwnView:
    """What a person sees of a node that has answered, or not."""
    status = answer.document
    if status is None:
        return OwnView(answer.node, answer.problem)
    return OwnView(
        name=answer.node,
        problem="",
        node_problem=status["node"]["problem"] or "",
        simulated=status["node"]["simulated"],
        quotas=views.quota_views(status),
        leases=views.lease_views(status),
        queue=views.queue_view(status),
        gpus=views.gpu_views(status),
    )


def day_names(documents: Sequence[Mapping[str, Any]], offset: float) -> list[str]:
    """``2026-11-21``: the local days of the first document."""
    # Noon is on the same day whichever way a clock was changed meanwhile.
    zone = timezone(timedelta(seconds=offset))
    starts = [day["start"] for day in documents[0]["days"]]
    return [f"{datetime.fromtimestamp(start + 43200, zone):%Y-%m-%d}" for start in starts]


def zone_name(offset: float) -> str:
    """``UTC``, ``UTC+01:00``."""
    return str(timezone(timedelta(seconds=round(offset / 60) * 60))) if offset else "UTC"


class ReleaseHandler(PageHandler):
    """Release a lease of one's own, or leave the queue."""

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            lease = wishes.checked_lease(self.typed("lease"))
        try:
            await self.ask(node, Method.RELEASE, lease=lease)
            waited = self.typed("state") == "queued"
            note = Note("You no longer wait for it." if waited else "The GPU is released.")
        except NodeProblem as problem:
            note = Note(f"Not released: {problem.message}", good=False)
        self.leave("", note)


class KeepHandler(PageHandler):
    """Keep an idle lease of one's own for the usual time, or no longer (``seconds`` is 0)."""

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            lease = wishes.checked_lease(self.typed("lease"))
            seconds = wishes.number("seconds", self.typed("seconds") or None, 0, openapi.MOST_PIN)
        more = {} if seconds is None else {"seconds": seconds}
        try:
            kept = (await self.ask(node, Method.PIN, lease=lease, **more)).get("seconds")
            text = (
                f"The GPU is kept for {duration(kept)}." if kept else "The GPU is kept no longer."
            )
            note = Note(text)
        except NodeProblem as problem:
            note = Note(f"Not kept: {problem.message}", good=False)
        self.leave("", note)


class CsvHandler(PageHandler):
    """A file, for people's spreadsheets and for programs with a token."""

    @property
    def sends_to_login(self) -> bool:
        # To a program the page of a login would be a file like any other.
        return "text/html" in self.request.headers.get("Accept", "")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if self.sends_to_login:
            super().write_error(status_code, **kwargs)
            return
        said = said_by(kwargs.get("exc_info", (None, None, None))[1])
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish((said or "Something went wrong in the service; its log has the reason.") + "\n")


class UsageCsvHandler(CsvHandler):
    """One's own GPU-hours by day."""

    async def get(self) -> None:
        offset = self.offset()
        with refusals():
            days = wishes.count("days", self.query("days"), 1, openapi.MOST_DAYS) or DAYS
        rows: list[list[str | int | float]] = []
        for answer in await self.every_node(Method.USAGE_DAILY, days=days, utc_offset=offset):
            if answer.document is None:
                raise Refusal(NodeProblem("unavailable", f"{answer.node}: {answer.problem}"))
            document = answer.document
            names = day_names([document], offset)
            for own in (document, *document.get("servers", ())):
                for name, day in zip(names, own["days"], strict=True):
                    figures = [hours(day["held"]), hours(day["busy"]), day["leases"]]
                    rows.append([name, answer.node, own["environment"], *figures])
        header = ("day", "node", "environment", "held_gpu_hours", "busy_gpu_hours", "leases")
        attachment(self, "gpu-hours.csv", to_csv(header, rows))


# -- administrators --------------------------------------------------------------------------------


class AdminPage(PageHandler):
    """For those whom a node manager calls administrators."""

    async def statuses(self) -> list[Answered]:
        """All nodes' answers. Raises :class:`Refusal` for others than administrators."""
        answers = await self.every_node(Method.STATUS)
        if not is_admin(answers):
            reached = [answer for answer in answers if answer.document is not None]
            if not reached:
                raise Refusal(NodeProblem("unavailable", answers[0].problem))
            message = (
                "Only administrators see everybody's GPUs. The node manager decides who is one: "
                "administrators of this JupyterHub, and the groups that are configured for it."
            )
            raise Refusal(NodeProblem("not_allowed", message))
        return answers

    async def admin_status(self, node: str) -> Mapping[str, Any]:
        """The status of one node. Raises :class:`Refusal` for others than its administrators."""
        with refusals():
            status = await self.ask(node, Method.STATUS)
        if not status["admin"]:
            raise Refusal(NodeProblem("not_allowed", "Only administrators may do this."))
        return status


class AdminHandler(AdminPage):
    """Every node, environment, lease, waiting request and event."""

    async def get(self) -> None:
        window = self.get_argument("window", "1d")
        if window not in WINDOWS:
            raise Refusal(wishes.bad_request(f"'window' is one of {', '.join(WINDOWS)}."))
        wanted = views.EventFilter(
            *(self.get_argument(name, "") for name in ("environment", "kind", "text"))
        )
        answers = await self.statuses()
        find = self.get_argument("find", "")
        nodes = await asyncio.gather(*(self._node(answer, window, find) for answer in answers))
        part = self.get_argument("part", "")
        view: dict[str, Any] = {"nodes": nodes, "window": window, "windows": WINDOWS, "find": find}
        if part == "live":
            self.page("admin_live.html", admin=True, **view)
            return
        view |= await self._events(answers, wanted)
        self.page("admin_events.html" if part == "events" else "admin.html", admin=True, **view)

    async def _node(self, answer: Answered, window: str, find: str) -> AdminView:
        status = answer.document
        if status is None:
            return AdminView(answer.node, answer.problem)
        if not status["admin"]:
            return AdminView(answer.node, "You are not an administrator of this node.")
        try:
            quotas, usage = await asyncio.gather(
                self.ask(answer.node, Method.QUOTA_LIST),
                self.ask(answer.node, Method.USAGE, since=WINDOWS[window][0]),
            )
        except NodeProblem as problem:
            return AdminView(answer.node, problem.message)
        node = status["node"]
        return AdminView(
            name=answer.node,
            problem="",
            node_problem=node["problem"] or "",
            simulated=node["simulated"],
            facts=", ".join(
                part
                for part in (
                    f"version {node['version']}",
                    f"runs for {duration(node['time'] - node['started'])}",
                    views.host_memory_text(node),
                )
                if part
            ),
            gpus=views.gpu_views(status),
            environments=views.environment_views(quotas, usage, status, find),
            leases=views.lease_views(status, everybody=True, find=find),
            queue=views.queue_view(status),
        )

    async def _events(
        self, answers: Sequence[Answered], wanted: views.EventFilter
    ) -> dict[str, Any]:
        names = [answer.node for answer in answers if answer.document and answer.document["admin"]]
        told = await asyncio.gather(
            *(
                self._answered(
                    name, Method.HISTORY, limit=EVENTS, environment=wanted.environment or None
                )
                for name in names
            )
        )
        every = [
            (answer.node, event)
            for answer in told
            if answer.document is not None
            for event in answer.document["events"]
        ]
        gpus = {
            gpu["uuid"]: f"GPU {gpu['index']}"
            for answer in answers
            if answer.document is not None
            for gpu in answer.document["gpus"]
        }
        kinds = sorted({event["kind"] for _node, event in every} | {wanted.kind} - {""})
        return {
            "events": views.event_views(every, wanted, gpus),
            "events_of": len(every),
            "kinds": kinds,
            "wanted": wanted,
            "events_problem": "; ".join(answer.problem for answer in told if answer.problem),
        }


@dataclass(frozen=True, slots=True)
class AdminView:
    """What an administrator sees of one node."""

    name: str
    problem: str
    node_problem: str = ""
    simulated: bool = False
    facts: str = ""
    gpus: Sequence[views.GpuView] = ()
    environments: Sequence[views.EnvironmentView] = ()
    leases: Sequence[views.LeaseView] = ()
    queue: views.QueueView | None = None


class QuotaFormHandler(AdminPage):
    """Edit the quota of one environment, or give it the configured one again."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            name = self.query("environment")
        await self.admin_status(node)
        with refusals():
            quotas = await self.ask(node, Method.QUOTA_LIST)
        listed = {row["environment"]: row for row in quotas["quotas"]}
        quota = listed.get(name or "", {**quotas["default"], "source": "default"})
        self._form(node, forms.filled(name or "", quota), quota["source"], new=name is None)

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
        await self.admin_status(node)
        if self.typed("action") == "unset":
            await self._unset(node)
            return
        names = ("environment", "gpus", "memory", "unit", "weight", "hours")
        fields = {name: self.get_body_argument(name, None) for name in names}
        typed = {name: text for name, text in fields.items() if text is not None}
        form, wish = forms.read_quota(typed)
        source, new = self.typed("source"), self.typed("new") == "yes"
        if form.mistakes:
            self.set_status(400)
            self._form(node, form, source, new=new)
            return
        try:
            now = await self.ask(node, Method.QUOTA_SET, **wish)
        except NodeProblem as problem:
            self.set_status(wishes.HTTP_STATUS.get(problem.reason, 502))
            self._form(node, form, source, new=new, refusal=problem.message)
            return
        text = forms.wish_text({**now, **wish})
        self.leave("admin", Note(f"The quota of {form.environment} is now {text}."))

    async def _unset(self, node: str) -> None:
        with refusals():
            name = wishes.checked_name(self.typed("environment"))
        try:
            await self.ask(node, Method.QUOTA_UNSET, environment=name)
            note = Note(f"{name} has the configured quota again.")
        except NodeProblem as problem:
            note = Note(f"Not changed: {problem.message}", good=False)
        self.leave("admin", note)

    def _form(
        self, node: str, form: forms.QuotaForm, source: str, *, new: bool, refusal: str = ""
    ) -> None:
        self.page(
            "quota.html",
            admin=True,
            node=node,
            form=form,
            units=forms.UNITS,
            overridden=source == "override",
            source=source,
            new=new,
            refusal=refusal,
        )


class RevokeFormHandler(AdminPage):
    """Take a lease away, with a reason that its owner reads."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            lease = wishes.checked_lease(self.query("lease") or "")
        await self._form(node, lease, "", "")

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            lease = wishes.checked_lease(self.typed("lease"))
        await self.admin_status(node)
        typed = self.typed("reason").strip()
        try:
            reason = wishes.checked_reason(typed)
        except NodeProblem:
            self.set_status(400)
            mistake = f"1 to {openapi.LONGEST_REASON} characters: the owner of the lease reads it."
            await self._form(node, lease, typed, mistake)
            return
        try:
            await self.ask(node, Method.LEASE_REVOKE, lease=lease, reason=reason)
            note = Note("The lease is revoked; its owner is told why.")
        except NodeProblem as problem:
            note = Note(f"Not revoked: {problem.message}", good=False)
        self.leave("admin", note)

    async def _form(self, node: str, lease: str, reason: str, mistake: str) -> None:
        status = await self.admin_status(node)
        every = views.lease_views(status, everybody=True)
        found = next((view for view in every if view.lease == lease), None)
        if found is None:
            message = "There is no such lease any more: it has ended."
            raise Refusal(NodeProblem("unknown_lease", message))
        self.page("revoke.html", admin=True, node=node, lease=found, reason=reason, mistake=mistake)


class DrainFormHandler(AdminPage):
    """Take a GPU out of service, with a reason that everybody who waits reads; or put it back."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            gpu = wishes.checked_gpu(self.query("gpu") or "")
        await self._form(node, gpu, "", "")

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            gpu = wishes.checked_gpu(self.typed("gpu"))
        await self.admin_status(node)
        try:
            if self.typed("action") == "resume":
                await self.ask(node, Method.GPU_RESUME, gpu=gpu)
                self.leave("admin", Note("The GPU is back in service."))
                return
            typed = self.typed("reason").strip()
            try:
                reason = wishes.checked_drain_reason(typed)
            except NodeProblem:
                self.set_status(400)
                most = openapi.LONGEST_DRAIN_REASON
                mistake = f"1 to {most} characters: everybody who waits reads it."
                await self._form(node, gpu, typed, mistake)
                return
            await self.ask(node, Method.GPU_DRAIN, gpu=gpu, reason=reason)
            note = Note("The GPU is out of service; who waits reads why.")
        except NodeProblem as problem:
            note = Note(f"Nothing is changed: {problem.message}", good=False)
        self.leave("admin", note)

    async def _form(self, node: str, gpu: str, reason: str, mistake: str) -> None:
        status = await self.admin_status(node)
        found = next((view for view in views.gpu_views(status) if view.key == gpu), None)
        if found is None:
            raise Refusal(NodeProblem("unknown_gpu", "There is no such GPU in this node any more."))
        self.page("drain.html", admin=True, node=node, gpu=found, reason=reason, mistake=mistake)


class AdminCsvHandler(CsvHandler, AdminPage):
    """GPU-hours by environment over a window."""

    async def get(self) -> None:
        window = self.get_argument("window", "1d")
        if window not in WINDOWS:
            raise Refusal(wishes.bad_request(f"'window' is one of {', '.join(WINDOWS)}."))
        rows: list[list[str | int | float]] = []
        for answer in await self.statuses():
            with refusals():
                usage = await self.ask(answer.node, Method.USAGE, since=WINDOWS[window][0])
            since, until = (
                datetime.fromtimestamp(usage[name], UTC).isoformat(timespec="seconds")
                for name in ("since", "until")
            )
            for row in usage["rows"]:
                figures = [hours(row[f"gpu_seconds_{kind}"]) for kind in ("held", "busy")]
                name = row["environment"]
                rows.append([answer.node, name, since, until, *figures, row["leases"]])
        header = ("node", "environment", "since", "until", "held_gpu_hours", "busy_gpu_hours")
        attachment(self, f"gpu-hours-{window}.csv", to_csv((*header, "leases"), rows))


class NothingHandler(PageHandler):
    """Any other address."""

    async def get(self) -> None:
        raise web.HTTPError(404)

    post = get


ROUTES: tuple[tuple[str, type[PageHandler]], ...] = (
    (r"", UserHandler),
    (r"release", ReleaseHandler),
    (r"keep", KeepHandler),
    (r"usage\.csv", UsageCsvHandler),
    (r"admin", AdminHandler),
    (r"admin/quota", QuotaFormHandler),
    (r"admin/revoke", RevokeFormHandler),
    (r"admin/drain", DrainFormHandler),
    (r"admin/usage\.csv", AdminCsvHandler),
)
