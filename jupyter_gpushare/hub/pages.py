"""What all pages have in common, and the pages of each user.

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
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from tornado import web

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.calls import DailyUsageParams, PinParams
from jupyter_gpushare.protocol.messages import Method

from . import hosts, plots, views
from .api import refusals
from .csvfile import hours, to_csv
from .handlers import Refusal, ServiceHandler, attachment, said_by, write_page
from .links import Viewer
from .listing import ROWS, HostListing, host_listing
from .words import duration

if TYPE_CHECKING:
    from .pooling import HubPool

DAYS: Final = 30
_AT_ONCE: Final = 8  # hosts that one request of a page asks at the same time
_PLOTTED: Final = 150  # steps in the width of a plot
_NOTE_COOKIE: Final = "gpushare-note"
_LONGEST_NOTE: Final = 600
NO_HOST: Final = (
    "No host has joined the pool yet. `jupyter gpushare pool token` on this host makes a token, "
    "and `jupyter gpushare pool join TOKEN` on another one joins it."
)
_PARTS: Final = {"hosts": "hosts.html", "live": "user_live.html"}
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


@dataclass(frozen=True, slots=True)
class OwnPool:
    """What a person has of the whole pool: their quotas, and how their groups stand."""

    quotas: Sequence[views.QuotaView]
    groups: str

    @classmethod
    def of(cls, pool: HubPool, viewer: Viewer) -> OwnPool:
        return cls(pool.quotas(viewer), pool.group_text(viewer))


@dataclass(frozen=True, slots=True)
class Looked:
    """What a page knows of all hosts, and the answer of the one whose details it shows."""

    wanted: HostListing
    hosts: Sequence[hosts.Host]
    shown: Answered
    is_admin: bool
    pool: OwnPool | None = None

    @property
    def view(self) -> dict[str, Any]:
        """What the templates need of it."""
        return {
            "hosts": hosts.hosts_view(self.hosts, self.wanted, self.shown.node),
            "wanted_hosts": self.wanted,
            "where": hosts.where_text(self.hosts),
            "host_sorts": {name: words for name, (words, _key) in hosts.SORTS.items()},
            "host_states": {"": "all", **{one.value: hosts.STATES[one] for one in hosts.HostState}},
            "row_counts": {count: f"{count} a page" for count in ROWS},
            "shown": self.shown.node,
            "pool": self.pool,
        }


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

    def at(self, node: str) -> dict[str, str]:
        """The argument of an address that shows ``node``, where there are several."""
        return {"host": node} if len(self.site.pool.nodes) > 1 else {}

    def _take_note(self) -> Note | None:
        value = self.get_signed_cookie(_NOTE_COOKIE, max_age_days=1)
        if value is None or self.get_argument("part", None) is not None:
            return None
        self.clear_cookie(_NOTE_COOKIE, path=self.site.prefix)
        text, done = json.loads(base64.urlsafe_b64decode(value))
        return Note(text, Done(done))

    # -- asking --------------------------------------------------------------------------------

    async def look(self) -> Looked:
        """Ask what the page needs to know of the hosts. Raises :class:`Refusal`."""
        with refusals():
            wanted = host_listing(
                lambda name: self.get_argument(name, ""),
                [state.value for state in hosts.HostState],
                list(hosts.SORTS),
            )
            if wanted.chosen:
                self.node_named(wanted.chosen)
        pool = self.site.hosts
        if pool is not None:
            return await self._look_at_pool(pool, wanted)
        answers = await self.every_node(Method.STATUS)
        known = [
            hosts.away(answer.node, answer.problem)
            if answer.document is None
            else hosts.of_status(answer.node, answer.document)
            for answer in answers
        ]
        name = hosts.chosen(known, wanted.chosen)
        shown = next(answer for answer in answers if answer.node == name)
        return Looked(wanted, known, shown, is_admin(answers))

    async def _look_at_pool(self, pool: HubPool, wanted: HostListing) -> Looked:
        """The pool knows all hosts; only the shown one is asked."""
        known = pool.hosts(self.viewer)
        if not known:
            raise Refusal(NodeProblem("unavailable", NO_HOST))
        name = hosts.chosen(known, wanted.chosen)
        shown = await self.answered(name, Method.STATUS)
        admin = self.viewer.admin or is_admin([shown])
        return Looked(wanted, known, shown, admin, pool=OwnPool.of(pool, self.viewer))

    async def every_node(self, method: Method, **params: Any) -> list[Answered]:
        """Ask all nodes, some at the same time: each takes a link of the viewer's."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(node: str) -> Answered:
            async with free:
                return await self.answered(node, method, **params)

        return list(await asyncio.gather(*(one(node) for node in self.site.pool.nodes)))

    async def answered(self, node: str, method: Method, **params: Any) -> Answered:
        """Ask one node; the answer says why there is none.

        A host that the pool cannot reach is not waited for.
        """
        problem = "" if self.site.hosts is None else self.site.hosts.problem(node)
        if problem:
            return Answered(node, None, problem)
        return await self.told(node, self.ask(node, method, **params))

    async def told(self, node: str, asked: Awaitable[dict[str, Any]]) -> Answered:
        """What a question to ``node`` gives."""
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

    async def plots(self, shown: Answered) -> dict[str, Any]:
        """The plots of a host, over the span that the address names; none while it is away."""
        view = self._spans()
        seconds = plots.SPANS[view["span"]][0]
        view["plots"] = None
        if shown.document is not None:
            told = await self.answered(
                shown.node, Method.READINGS, since=seconds, step=seconds / _PLOTTED
            )
            if told.document is not None:
                view["plots"] = plots.plots(shown.document, told.document, seconds)
        return view

    def typed(self, name: str) -> str:
        """A field of a form that was posted."""
        return self.get_body_argument(name, "")

    def offset(self) -> float:
        """Seconds by which the reader's clock is ahead of UTC's; 0 unless the page says it."""
        with refusals():
            told = wishes.typed(DailyUsageParams, "utc_offset", self.query("utc_offset"))
            return float(told or 0.0)


def part_of(part: str, templates: Mapping[str, str]) -> str:
    """The template of a part of a page. Raises :class:`Refusal` for one that is not there."""
    if part not in templates:
        raise Refusal(wishes.bad_request(f"'part' is one of {', '.join(templates)}."))
    return templates[part]


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
        offset = self.offset()
        answers = await self.every_node(Method.USAGE_DAILY, days=DAYS, utc_offset=offset)
        told = [answer.document for answer in answers if answer.document is not None]
        names, zone = day_names(told, offset) if told else [], zone_name(offset)
        return {
            "days": views.days_view(told, names, zone) if told else None,
            "servers": views.server_days(told, names, zone),
            "utc_offset": f"{offset:g}",
            "count": DAYS,
            "missing": hosts.missing_text(
                [answer.node for answer in answers if answer.document is None]
            ),
        }


@dataclass(frozen=True, slots=True)
class OwnView:
    """A person's view of one node. ``nothing`` says how to get a GPU of it, if not by code here.

    ``is_own``: a server or task of theirs runs there.
    """

    name: str
    problem: str
    node_problem: str = ""
    simulated: bool = False
    is_own: bool = False
    nothing: str = ""
    quotas: Sequence[views.QuotaView] = ()
    leases: Sequence[views.LeaseView] = ()
    queue: views.QueueView | None = None
    gpus: Sequence[views.GpuView] = ()


def own_view(answer: Answered, known: Sequence[hosts.Host], *, in_pool: bool = False) -> OwnView:
    """A person's view of a node, whether or not the node has answered.

    ``in_pool``: quotas are the pool's, and the node's say only what was lent there.
    """
    status = answer.document
    if status is None:
        return OwnView(answer.node, answer.problem)
    return OwnView(
        name=answer.node,
        problem="",
        node_problem=status["node"]["problem"] or "",
        simulated=status["node"]["simulated"],
        is_own=answer.node in hosts.own_hosts(known),
        nothing=hosts.nothing_text(answer.node, known),
        quotas=() if in_pool else views.quota_views(status),
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
        self.leave("", note, **self.at(node))

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


class NothingHandler(PageHandler):
    """Any other address."""

    async def get(self) -> None:
        raise web.HTTPError(404)

    post = get


ROUTES: tuple[tuple[str, type[PageHandler]], ...] = (
    (r"", UserHandler),
    (r"(release|keep)", LeaseFormHandler),
    (r"usage\.csv", UsageCsvHandler),
)
