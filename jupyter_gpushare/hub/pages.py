"""The pages of each user, and the administrators' pages.

All of them work without JavaScript: forms are posted, and the answer is a
redirect with a note. With it, the parts that change are fetched again
(``?part=…``) when the node manager says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final
from urllib.parse import urlencode

from tornado import web

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.calls import DailyUsageParams, PinParams
from jupyter_gpushare.protocol.messages import Method

from . import forms, plots, views
from .api import refusals
from .csvfile import hours, to_csv
from .handlers import Refusal, ServiceHandler, attachment, said_by, write_page
from .listing import ONLY, ROWS, SORTS, WINDOWS, Listing, Page, listing, page_of
from .words import duration

DAYS: Final = 30
EVENTS: Final = 200
_PLOTTED: Final = 150  # steps in the width of a plot
_MOST_LEASES: Final = 100  # rows of everybody's leases
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
    """One node's answer: a document, or the reason why there is none."""

    node: str
    document: Mapping[str, Any] | None
    problem: str = ""


class Done(Enum):
    """The result of a form; the value says how the next page shows it."""

    DONE = "success"
    NOTHING = "info"
    FAILED = "danger"


@dataclass(frozen=True, slots=True)
class Note:
    """The note on the next page about what a form has done."""

    text: str
    done: Done = Done.DONE


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
        """Redirect to one of our pages, which will show ``note``."""
        text = json.dumps([note.text[:_LONGEST_NOTE], note.done.value])
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
        text, done = json.loads(base64.urlsafe_b64decode(value))
        return Note(text, Done(done))

    # -- asking --------------------------------------------------------------------------------

    async def every_node(self, method: Method, **params: Any) -> list[Answered]:
        """Ask all nodes at once."""
        return list(
            await asyncio.gather(
                *(self._answered(node, method, **params) for node in self.site.pool.nodes)
            )
        )

    async def _answered(self, node: str, method: Method, **params: Any) -> Answered:
        return await self._told(node, self.ask(node, method, **params))

    async def _told(self, node: str, asked: Awaitable[dict[str, Any]]) -> Answered:
        try:
            return Answered(node, await asked)
        except NodeProblem as problem:
            return Answered(node, None, problem.message)

    def _spans(self) -> dict[str, Any]:
        """The spans of time that one can choose from, and the chosen one."""
        span = self.get_argument("span", "1h")
        if span not in plots.SPANS:
            raise Refusal(wishes.bad_request(f"'span' is one of {', '.join(plots.SPANS)}."))
        names = {key: one[1] for key, one in plots.SPANS.items()}
        return {"span": span, "span_name": names[span], "spans": names}

    async def plots(self, statuses: Sequence[Answered]) -> dict[str, Any]:
        """The plots of the nodes that answer, over the span that the address names."""
        view = self._spans()
        seconds = plots.SPANS[view["span"]][0]
        told = await self.every_node(Method.READINGS, since=seconds, step=seconds / _PLOTTED)
        return {
            **view,
            "nodes_plots": [
                (status.node, plots.plots(status.document, readings.document, seconds))
                for status, readings in zip(statuses, told, strict=True)
                if status.document is not None and readings.document is not None
            ],
        }

    def typed(self, name: str) -> str:
        """A field of a form that was posted."""
        return self.get_body_argument(name, "")

    def offset(self) -> float:
        """Seconds by which the reader's clock is ahead of UTC's; 0 unless the page says it."""
        with refusals():
            told = wishes.typed(DailyUsageParams, "utc_offset", self.query("utc_offset"))
            return float(told or 0.0)


def is_admin(answers: Sequence[Answered]) -> bool:
    """Whether a node manager says that the viewer is an administrator."""
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
        if part == "plots":
            self.page("gpu_plots.html", admin=False, **await self.plots(statuses))
            return
        nodes = [own_view(answer) for answer in statuses]
        admin = is_admin(statuses)
        view: dict[str, Any] = {"nodes": nodes, "where": where_text(nodes)}
        if part == "live":
            self.page("user_live.html", admin=admin, **view)
            return
        if all(answer.document is None for answer in statuses):
            self.set_status(503)
            view |= {"days": None, "servers": (), **self._spans(), "nodes_plots": ()}
            self.page("user.html", admin=admin, **view)
            return
        view |= await self.plots(statuses)
        self.page("user.html", admin=admin, **view, **await self._days())

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
            "missing": [answer.node for answer in answers if answer.document is None],
        }


@dataclass(frozen=True, slots=True)
class OwnView:
    """A person's view of one node."""

    name: str
    problem: str
    node_problem: str = ""
    simulated: bool = False
    connected: bool = False
    quotas: Sequence[views.QuotaView] = ()
    leases: Sequence[views.LeaseView] = ()
    queue: views.QueueView | None = None
    gpus: Sequence[views.GpuView] = ()


def own_view(answer: Answered) -> OwnView:
    """A person's view of a node, whether or not the node has answered."""
    status = answer.document
    if status is None:
        return OwnView(answer.node, answer.problem)
    return OwnView(
        name=answer.node,
        problem="",
        node_problem=status["node"]["problem"] or "",
        simulated=status["node"]["simulated"],
        connected=status["node"].get("connected", False),
        quotas=views.quota_views(status),
        leases=views.lease_views(status),
        queue=views.queue_view(status),
        gpus=views.gpu_views(status),
    )


def where_text(nodes: Sequence[OwnView]) -> str:
    """Of several nodes, on which the viewer's notebooks get GPUs; empty of one."""
    if len(nodes) < 2:
        return ""
    rule = "Each node has its own GPUs, quota and queue, and a notebook gets GPUs of its own node."
    own = [node.name for node in nodes if node.connected]
    if own:
        return f"{rule} Servers or programs of yours run on {' and '.join(own)}."
    return (
        f"{rule} No server of yours talks to one of these nodes now, so this page does not know "
        "which will be yours."
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


class LeaseFormHandler(PageHandler):
    """Release or keep a lease of one's own, or leave the queue."""

    async def post(self, what: str) -> None:
        act = self._keep if what == "keep" else self._release
        with refusals():
            node = self.node_named(self.typed("node") or None)
            name = wishes.checked_lease(self.typed("lease"))
        try:
            status = await self.whole_status(node)
            lease = next((one for one in status["leases"] if one["id"] == name), None)
            if lease is None or lease["phase"] == "ended":
                text = "There was nothing to do: you have no such lease any more."
                note = Note(text, Done.NOTHING)
            else:
                note = await act(node, lease)
        except NodeProblem as problem:
            note = Note(f"Nothing was changed: {problem.message}", Done.FAILED)
        self.leave("", note)

    async def _release(self, node: str, lease: Mapping[str, Any]) -> Note:
        waited = self.typed("state") == "queued"
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
        text = f"The GPU is kept for {duration(kept)}." if kept else "The GPU is kept no longer."
        return Note(text)


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
            days = wishes.typed(DailyUsageParams, "days", self.query("days")) or DAYS
        rows: list[list[str | int | float]] = []
        for answer in await self.every_node(Method.USAGE_DAILY, days=days, utc_offset=offset):
            if answer.document is None:
                raise Refusal(NodeProblem("unavailable", f"{answer.node}: {answer.problem}"))
            document = answer.document
            names = day_names([document], offset)
            for own in (document, *document.get("servers", ())):
                for name, day in zip(names, own["days"], strict=True):
                    figures = [hours(day["held"]), hours(day["busy"]), day["leases"]]
                    more = (day.get("charged", day["held"]), day.get("resident_gib_seconds", 0.0))
                    figures += [hours(seconds) for seconds in more]
                    rows.append([name, answer.node, own["environment"], *figures])
        header = (
            *("day", "node", "environment", "held_gpu_hours", "busy_gpu_hours", "leases"),
            *("charged_gpu_hours", "resident_gib_hours"),
        )
        attachment(self, "gpu-hours.csv", to_csv(header, rows))


# -- administrators --------------------------------------------------------------------------------


class AdminPage(PageHandler):
    """For those whom a node manager calls administrators."""

    async def statuses(self) -> list[Answered]:
        """All nodes' answers. Raises :class:`Refusal` for others than administrators."""
        nodes = self.site.pool.nodes
        answers = list(
            await asyncio.gather(*(self._told(node, self.whole_status(node)) for node in nodes))
        )
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

    async def admin_status(self, node: str, *, whole: bool = False) -> Mapping[str, Any]:
        """The status of one node, ``whole`` with all its pages.

        Raises :class:`Refusal` for others than its administrators.
        """
        with refusals():
            asked = self.whole_status(node) if whole else self.ask(node, Method.STATUS)
            status = await asked
        if not status["admin"]:
            raise Refusal(NodeProblem("not_allowed", "Only administrators may do this."))
        return status


class AdminHandler(AdminPage):
    """Every node, environment, lease, waiting request and event."""

    async def get(self) -> None:
        with refusals():
            wanted = listing(lambda name: self.get_argument(name, ""))
        answers = await self.statuses()
        nodes = await asyncio.gather(*(self._node(answer, wanted) for answer in answers))
        groups = sorted({group for node in nodes for group in node.known_groups})
        part = self.get_argument("part", "")
        view: dict[str, Any] = {
            "nodes": nodes,
            "wanted": wanted,
            "windows": {name: words for name, (_seconds, words) in WINDOWS.items()},
            "only": {name: words for name, (words, _fits) in ONLY.items()},
            "sorts": {name: words for name, (words, _key) in SORTS.items()},
            "row_counts": {count: f"{count} a page" for count in ROWS},
            "groups": {"": "all groups", **dict(zip(groups, groups, strict=True))},
        }
        if part == "live":
            self.page("admin_live.html", admin=True, **view)
            return
        view |= await self._events(answers, views.EventFilter(**wanted.events))
        self.page("admin_events.html" if part == "events" else "admin.html", admin=True, **view)

    async def _node(self, answer: Answered, wanted: Listing) -> AdminView:
        status = answer.document
        if status is None:
            return AdminView(answer.node, answer.problem)
        if not status["admin"]:
            return AdminView(answer.node, "You are not an administrator of this node.")
        try:
            quotas, usage = await asyncio.gather(
                self.ask(answer.node, Method.QUOTA_LIST),
                self.ask(answer.node, Method.USAGE, since=WINDOWS[wanted.window][0]),
            )
        except NodeProblem as problem:
            return AdminView(answer.node, problem.message)
        node = status["node"]
        members = views.members(quotas, usage, status)
        of = {one.name: one.quota.get("groups") or () for one in members}
        groups = views.group_views(quotas)
        found = page_of(members, wanted)
        leases = views.lease_views(
            status, everybody=True, takes=lambda name: wanted.takes(name, of.get(name, ()))
        )
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
            groups=groups,
            known_groups=frozenset({group.group for group in groups} - {""}).union(*of.values()),
            page=found,
            environments=[views.environment_view(one) for one in found.members],
            leases=leases[:_MOST_LEASES],
            more_leases=max(0, len(leases) - _MOST_LEASES),
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
        kinds = {event["kind"]: event.get("what") or event["kind"] for _node, event in every}
        if wanted.kind:
            kinds.setdefault(wanted.kind, wanted.kind)
        return {
            "events": views.event_views(every, wanted, gpus),
            "events_of": len(every),
            "kinds": sorted(kinds.items(), key=lambda kind: kind[1].casefold()),
            "sought": wanted,
            "events_problem": "; ".join(answer.problem for answer in told if answer.problem),
        }


@dataclass(frozen=True, slots=True)
class AdminView:
    """An administrator's view of one node."""

    name: str
    problem: str
    node_problem: str = ""
    simulated: bool = False
    facts: str = ""
    gpus: Sequence[views.GpuView] = ()
    groups: Sequence[views.GroupView] = ()
    known_groups: frozenset[str] = frozenset()
    page: Page | None = None
    environments: Sequence[views.EnvironmentView] = ()
    leases: Sequence[views.LeaseView] = ()
    more_leases: int = 0
    queue: views.QueueView | None = None


class Kind(Enum):
    """The kind of quotas that a form is about; the value is in addresses."""

    USERS = "users"
    GROUP = "group"
    DEFAULT = "default"

    @property
    def names(self) -> str:
        """The argument of addresses, forms and calls that names who it is."""
        return "group" if self is Kind.GROUP else "environment"


@dataclass(frozen=True, slots=True)
class Whose:
    """The quotas of users or of a group (without a name: a new one), or the default quota."""

    kind: Kind
    names: tuple[str, ...] = ()
    is_new: bool = False

    def params(self) -> list[dict[str, Any]]:
        """The parameters of the calls, one for each."""
        if self.kind is Kind.DEFAULT:
            return [{"default": True}]
        return [{self.kind.names: name} for name in self.names]

    def text(self) -> str:
        """As the subject of a sentence."""
        if self.kind is Kind.DEFAULT:
            return "The default quota"
        if len(self.names) > 3:
            return f"The quota of {len(self.names)} users"
        of = "group " if self.kind is Kind.GROUP else ""
        return f"The quota of {of}{', '.join(self.names)}"

    def unchanged(self) -> str:
        """The note that a form has done nothing."""
        subject = self.text()
        return f"Nothing was changed: {subject[:1].lower()}{subject[1:]} has these values already."


class QuotaFormHandler(AdminPage):
    """Edit the quota of users, of a group or of everybody else, or take that back."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            kind = self._kind(self.query("of"))
            names = tuple(self.get_query_arguments(kind.names))
            names = names if kind is not Kind.DEFAULT else ()
        await self.admin_status(node)
        whose = Whose(kind, names, is_new=kind is not Kind.DEFAULT and not names)
        rows = await self._rows(node, whose)
        self._form(node, whose, rows, forms.filled(rows[0]) if len(names) < 2 else forms.MANY)

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            kind = self._kind(self.typed("of") or None)
        await self.admin_status(node)
        typed = [] if kind is Kind.DEFAULT else self.get_body_arguments(kind.names)
        names, wrong = forms.checked_names(typed)
        if not names and kind is not Kind.DEFAULT:
            raise Refusal(wishes.bad_request("Nobody is named."))
        whose = Whose(kind, tuple(names), is_new=self.typed("new") == "yes")
        rows = await self._rows(node, whose)
        if self.typed("action") == "unset" and not wrong:
            await self._unset(node, whose, rows)
            return
        many = len(names) > 1
        fields = {name: self.get_body_argument(name, None) for name in forms.INPUTS}
        form, wish = forms.read_quota(
            {name: text for name, text in fields.items() if text is not None},
            self.get_body_arguments("change") if many else None,
            None if many or whose.is_new else forms.filled(rows[0]),
        )
        if wrong:
            form = form.marked(kind.names, wrong)
        if form.mistakes:
            self.set_status(400)
            self._form(node, whose, rows, form)
            return
        if not wish:
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING))
            return
        told = await self._tell(node, Method.QUOTA_SET, whose, **wish)
        if not told.answers:
            self.set_status(wishes.HTTP_STATUS.get(told.reason, 502))
            self._form(node, whose, rows, form, refusal=told.problem)
            return
        # One user's note tells the whole quota; several users' what they now have in common.
        said = forms.wish_text(wish if many else forms.as_wish(told.answers[0]))
        warnings = dict.fromkeys(w for one in told.answers for w in one.get("warnings") or ())
        text = f"{whose.text()} is now {said}.{self._here(node)}"
        self._done(text, [*warnings], told)

    async def _unset(self, node: str, whose: Whose, rows: Sequence[Mapping[str, Any]]) -> None:
        if all(row.get("source") != "override" for row in rows):
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING))
            return
        told = await self._tell(node, Method.QUOTA_UNSET, whose)
        self._done(f"{whose.text()} is the configured one again.{self._here(node)}", [], told)

    def _done(self, text: str, more: Sequence[str], told: Told) -> None:
        """Tell what was changed, and for how many users it failed."""
        if told.problem and not told.answers:
            self.leave("admin", Note(f"Nothing was changed: {told.problem}", Done.FAILED))
        elif told.problem:
            text = f"Changed for {len(told.answers)}, not for {told.failed}: {told.problem}"
            self.leave("admin", Note(text, Done.FAILED))
        else:
            self.leave("admin", Note(" ".join([text, *more])))

    def _here(self, node: str) -> str:
        """A sentence for a site with several nodes: each has quotas of its own."""
        return f" This holds on {node} only." if len(self.site.pool.nodes) > 1 else ""

    async def _tell(self, node: str, method: Method, whose: Whose, **wish: Any) -> Told:
        """Make the call for each, one after the other: a burst of calls would have to wait."""
        answers, failed, problem = [], 0, NodeProblem("unavailable", "")
        for one in whose.params():
            try:
                async with self.link(node) as link:
                    answers.append(await link.call(method, **one, **wish))
            except NodeProblem as error:
                failed, problem = failed + 1, error
        return Told(answers, failed, problem.message, problem.reason)

    async def _rows(self, node: str, whose: Whose) -> list[Mapping[str, Any]]:
        """The present quota of each; the default quota for an unknown name."""
        with refusals():
            quotas = await self.ask(node, Method.QUOTA_LIST)
        default = {**quotas["default"], "own_burst_memory": None}
        if whose.kind is Kind.DEFAULT:
            return [quotas["default"]]
        if whose.kind is Kind.GROUP:
            known = {row["group"]: row for row in quotas.get("groups", ())}
        else:
            known = {row["environment"]: row for row in quotas["quotas"]}
        none = {**default, "source": "default"}
        return [known.get(name, none) for name in whose.names] or [none]

    @staticmethod
    def _kind(text: str | None) -> Kind:
        try:
            return Kind(text or "users")
        except ValueError:
            known = ", ".join(kind.value for kind in Kind)
            raise wishes.bad_request(f"'of' is one of {known}.") from None

    def _form(
        self,
        node: str,
        whose: Whose,
        rows: Sequence[Mapping[str, Any]],
        form: forms.QuotaForm,
        *,
        refusal: str = "",
    ) -> None:
        others = [name for name in self.site.pool.nodes if name != node]
        self.page(
            "quota.html",
            admin=True,
            node=node,
            others=others,
            whose=whose,
            title=f"Add {'a group' if whose.kind is Kind.GROUP else 'a user'}"
            if whose.is_new
            else whose.text(),
            many=len(whose.names) > 1,
            form=form,
            parts=forms.PARTS,
            overridden=any(row.get("source") == "override" for row in rows),
            refusal=refusal,
        )


@dataclass(frozen=True, slots=True)
class Told:
    """The results of one call for each of several: the answers, how many failed, and why."""

    answers: list[dict[str, Any]]
    failed: int
    problem: str
    reason: str


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
            mistake = f"1 to {wishes.LONGEST_REASON} characters: the owner of the lease reads it."
            await self._form(node, lease, typed, mistake)
            return
        try:
            await self.ask(node, Method.LEASE_REVOKE, lease=lease, reason=reason)
            note = Note("The lease is revoked; its owner is told why.")
        except NodeProblem as problem:
            ended = problem.reason == "unknown_lease"
            note = Note(f"Not revoked: {problem.message}", Done.NOTHING if ended else Done.FAILED)
        self.leave("admin", note)

    async def _form(self, node: str, lease: str, reason: str, mistake: str) -> None:
        status = await self.admin_status(node, whole=True)
        every = views.lease_views(status, everybody=True)
        found = next((view for view in every if view.lease == lease), None)
        if found is None:
            message = "There is no such lease any more: it has ended."
            raise Refusal(NodeProblem("unknown_lease", message))
        self.page("revoke.html", admin=True, node=node, lease=found, reason=reason, mistake=mistake)


class DrainFormHandler(AdminPage):
    """Take a GPU out of service, with a reason for waiting people; or put it back."""

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
        resumes, wish = self.typed("action") == "resume", {"gpu": gpu}
        if not resumes:
            typed = self.typed("reason").strip()
            try:
                wish["reason"] = wishes.checked_drain_reason(typed)
            except NodeProblem:
                self.set_status(400)
                most = wishes.LONGEST_DRAIN_REASON
                mistake = f"1 to {most} characters: everybody who waits reads it."
                await self._form(node, gpu, typed, mistake)
                return
        try:
            told = await self.ask(node, Method.GPU_RESUME if resumes else Method.GPU_DRAIN, **wish)
            if resumes:
                said = "back in service" if told["changed"] else "in service already"
            else:
                more = "; the queue says why" if told["changed"] else " already, for that reason"
                said = f"out of service{more}"
            note = Note(f"The GPU is {said}.", Done.DONE if told["changed"] else Done.NOTHING)
        except NodeProblem as problem:
            note = Note(f"Nothing is changed: {problem.message}", Done.FAILED)
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
                held, busy = row["gpu_seconds_held"], row["gpu_seconds_busy"]
                charged, resident = (
                    row.get("gpu_seconds_charged", held),
                    row.get("resident_gib_seconds", 0.0),
                )
                figures = [hours(seconds) for seconds in (held, busy)]
                more = [hours(seconds) for seconds in (charged, resident)]
                name = row["environment"]
                rows.append([answer.node, name, since, until, *figures, row["leases"], *more])
        header = ("node", "environment", "since", "until", "held_gpu_hours", "busy_gpu_hours")
        more_header = ("charged_gpu_hours", "resident_gib_hours")
        attachment(self, f"gpu-hours-{window}.csv", to_csv((*header, "leases", *more_header), rows))


class NothingHandler(PageHandler):
    """Any other address."""

    async def get(self) -> None:
        raise web.HTTPError(404)

    post = get


ROUTES: tuple[tuple[str, type[PageHandler]], ...] = (
    (r"", UserHandler),
    (r"(release|keep)", LeaseFormHandler),
    (r"usage\.csv", UsageCsvHandler),
    (r"admin", AdminHandler),
    (r"admin/quota", QuotaFormHandler),
    (r"admin/revoke", RevokeFormHandler),
    (r"admin/drain", DrainFormHandler),
    (r"admin/usage\.csv", AdminCsvHandler),
)
