"""What all pages have in common.

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
from enum import Enum
from typing import Any, Final
from urllib.parse import urlencode

from tornado import web

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.calls import DailyUsageParams
from jupyter_gpushare.protocol.messages import Method

from . import hosts, plots
from .asking import Asking, Refusal, refusals, said_by
from .listing import ROWS, HostListing, host_listing
from .site import write_page
from .viewer import Pool

_AT_ONCE: Final = 8  # hosts that one request of a page asks at the same time
_PLOTTED: Final = 150  # steps in the width of a plot
_NOTE_COOKIE: Final = "gpushare-note"
_LONGEST_NOTE: Final = 600
_LARGEST_NOTE: Final = 2700  # bytes, with what undoes it
NO_HOST: Final = (
    "No host has joined the pool yet. `jupyter gpushare pool token` on this host makes a token, "
    "and `jupyter gpushare pool join TOKEN` on another one joins it."
)
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
class Looked:
    """What a page knows of all hosts, and the answer of the one whose details it shows.

    ``pool`` is what the person has of a whole pool: quotas, and how their groups stand.
    """

    wanted: HostListing
    hosts: Sequence[hosts.Host]
    shown: Answered
    is_admin: bool
    pool: Mapping[str, Any] | None = None

    @property
    def view(self) -> dict[str, Any]:
        """What the templates need of it."""
        return {
            **hosts.view(self.hosts, self.wanted),
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
    """The note on the next page about what a form has done. The fields of ``undo`` undo it."""

    text: str
    done: Done = Done.DONE
    undo: Sequence[tuple[str, str]] = ()


class PageHandler(Asking):
    """A page, or a part of it."""

    #: Whether it is about other people's things.
    is_admins = False

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
        if (waits := super().prepare()) is not None:
            await waits

    def page(self, template: str, *, admin: bool, **view: Any) -> None:
        """Finish with a page, and with the note of the form before it."""
        write_page(
            self,
            template,
            self.site,
            user=self.reader,
            note=self._take_note(),
            xsrf=self.xsrf_token.decode("ascii"),
            admin=admin,
            many_nodes=len(self.site.nodes) > 1,
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
            self.site,
            user=self.reader,
            title=_TITLES.get(status_code, "That did not work"),
            message=message,
            advice=advice,
        )

    # -- notes ---------------------------------------------------------------------------------

    def leave(self, path: str, note: Note, **query: str) -> None:
        """Redirect to one of our pages, which will show ``note``."""
        told = [note.text[:_LONGEST_NOTE], note.done.value, note.undo]
        # A browser keeps no cookie over 4 KiB.
        if len(json.dumps(told, ensure_ascii=False).encode()) > _LARGEST_NOTE:
            # Without what undoes it the note still says what was done.
            told.pop()
        value = base64.urlsafe_b64encode(json.dumps(told, ensure_ascii=False).encode()).decode()
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
        return {"host": node} if len(self.site.nodes) > 1 else {}

    def _take_note(self) -> Note | None:
        value = self.get_signed_cookie(_NOTE_COOKIE, max_age_days=1)
        # A part that is fetched shows no note: it would be gone before the next whole page.
        if value is None or self.get_argument("part", None) is not None:
            return None
        self.clear_cookie(_NOTE_COOKIE, path=self.site.prefix)
        text, done, *undo = json.loads(base64.urlsafe_b64decode(value))
        return Note(text, Done(done), *undo)

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
        if (pool := self.site.hosts) is not None:
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

    async def _look_at_pool(self, pool: Pool, wanted: HostListing) -> Looked:
        """The pool knows all hosts; only the shown one is asked."""
        known = pool.hosts(self.viewer)
        if not known:
            raise Refusal(NodeProblem("unavailable", NO_HOST))
        name = hosts.chosen(known, wanted.chosen)
        shown = await self.answered(name, Method.STATUS)
        admin = self.viewer.admin or is_admin([shown])
        own = {"quotas": pool.quotas(self.viewer), "groups": pool.group_text(self.viewer)}
        return Looked(wanted, known, shown, admin, own)

    async def every_node(self, method: Method, **params: Any) -> list[Answered]:
        """Ask all nodes, some at the same time: each takes a link of the viewer's."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(node: str) -> Answered:
            async with free:
                return await self.answered(node, method, **params)

        return list(await asyncio.gather(*(one(node) for node in self.site.nodes)))

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

    async def plots(self, shown: Answered) -> dict[str, Any]:
        """The plots of a host, over the span that the address names, and the spans that one can
        choose from. There are no plots while the host is away.
        """
        span = self.get_argument("span", "1h")
        if span not in plots.SPANS:
            raise Refusal(wishes.bad_request(f"'span' is one of {', '.join(plots.SPANS)}."))
        seconds, name = plots.SPANS[span]
        names = {key: one[1] for key, one in plots.SPANS.items()}
        view: dict[str, Any] = {"span": span, "span_name": name, "spans": names, "plots": None}
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

    def offset(self) -> float | None:
        """Seconds by which the reader's clock is ahead of UTC's, if the address says it.

        Days are those of the node otherwise, as in its budgets.
        """
        with refusals():
            told = wishes.typed(DailyUsageParams, "utc_offset", self.query("utc_offset"))
            return None if told is None else float(told)


def part_of(part: str, templates: Mapping[str, str]) -> str:
    """The template of a part of a page. Raises :class:`Refusal` for one that is not there."""
    if part not in templates:
        raise Refusal(wishes.bad_request(f"'part' is one of {', '.join(templates)}."))
    return templates[part]


def is_admin(answers: Sequence[Answered]) -> bool:
    """Whether a node manager says that the viewer is an administrator."""
    return any(answer.document is not None and answer.document["admin"] for answer in answers)


class CsvHandler(PageHandler):
    """A file, for people's spreadsheets and for programs with a token."""

    def attach(self, name: str, text: str) -> None:
        """Finish with a CSV file to be saved under ``name``."""
        self.set_header("Content-Type", "text/csv; charset=utf-8; header=present")
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.finish(text)

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


class NothingHandler(PageHandler):
    """Any other address."""

    async def get(self) -> None:
        raise web.HTTPError(404)

    post = get
