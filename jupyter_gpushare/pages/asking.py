"""What a page needs of the server that serves it, and how refusals reach the reader."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final

from tornado import web

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.protocol import pages
from jupyter_gpushare.protocol.messages import Method

from .site import Site
from .viewer import Viewer

#: The calls that a pool answers for all its hosts.
QUOTAS: Final = frozenset({Method.QUOTA_LIST, Method.QUOTA_SET, Method.QUOTA_UNSET})


class Refusal(web.HTTPError):
    """An error with its reason for programs and its sentence for people."""

    def __init__(self, problem: NodeProblem) -> None:
        super().__init__(wishes.HTTP_STATUS.get(problem.reason, 502))
        self.problem = problem


@contextmanager
def refusals() -> Iterator[None]:
    """Map refusals, the node manager's and our own, to HTTP errors."""
    try:
        yield
    except NodeProblem as problem:
        raise Refusal(problem) from problem


def said_by(error: BaseException | None) -> str:
    """An error's sentence, empty where it has none."""
    if isinstance(error, Refusal):
        return error.problem.message
    if isinstance(error, web.HTTPError) and error.log_message:
        return error.log_message % error.args if error.args else error.log_message
    return ""


#: The reasons and sentences of errors that have none of their own.
_REASONS: Final = {
    400: "bad_request",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    502: "bad_gateway",
    503: "unavailable",
}
_SENTENCES: Final = {
    403: "You are not logged in to this server, or may not do this here.",
    404: "There is nothing at this address.",
    405: "This address does not know that method.",
}
_OURS: Final = "Something went wrong here; the log of the server that answers has the reason."
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")


def error_document(status: int, error: BaseException | None) -> dict[str, Any]:
    """An error for programs: ``{"reason", "message", …numbers}``; no traceback, no HTML."""
    if isinstance(error, Refusal):
        problem = error.problem
        return {**problem.numbers, "reason": problem.reason, "message": problem.message}
    message = said_by(error) or _SENTENCES.get(status, _OURS)
    return {"reason": _REASONS.get(status, "internal"), "message": message}


class JsonAnswers(web.RequestHandler):
    """Answers and errors as JSON that must not be cached."""

    def answer(self, document: object) -> None:
        """Finish with ``document``."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(document, allow_nan=False))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the error's document, and which methods there are."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if status_code == 405:
            usual, own = web.RequestHandler, type(self)
            known = [
                v for v in _METHODS if getattr(own, v.lower()) is not getattr(usual, v.lower())
            ]
            self.set_header("Allow", ", ".join(known))
        self.answer(error_document(status_code, error))


class Asking(web.RequestHandler, ABC):
    """Asks node managers in the viewer's name.

    A server's own handler gives ``site``, :attr:`viewer` and :meth:`link`, and lets nobody in
    before it knows who that is.
    """

    site: Site

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.clear_header("Server")

    @property
    @abstractmethod
    def viewer(self) -> Viewer:
        """Who asks."""

    @property
    def reader(self) -> dict[str, str] | None:
        """The login that the page around ours shows, if it shows one."""
        return None

    @abstractmethod
    def link(self, node: str) -> AbstractAsyncContextManager[NodeLink]:
        """The viewer's own link to a node. Raises :class:`NodeProblem`."""

    async def ask(self, node: str, method: Method, **params: Any) -> dict[str, Any]:
        """Ask a node manager in the viewer's name; ``None`` parameters are left out.

        In a pool, quotas are the pool's, whatever host is named.
        """
        if self.site.hosts is not None and method in QUOTAS:
            return await self.site.hosts.ask(method, self.viewer, **params)
        async with self.link(node) as link:
            return await link.call(method, **params)

    async def whole_status(self, node: str) -> dict[str, Any]:
        """The status document of a node with all its pages."""
        for _ in range(2):  # once more, if a lease may have been missed
            found = [await self.ask(node, Method.STATUS)]
            while pages.has_more(found[-1]):
                found.append(await self.ask(node, Method.STATUS, page=len(found)))
            if not pages.is_short(found):
                break
        return pages.joined(found)

    def node_named(self, name: str | None) -> str:
        """A node by name, the only one without a name. Raises :class:`NodeProblem`."""
        nodes = self.site.nodes
        if name is None:
            if len(nodes) != 1:
                raise wishes.bad_request(f"Say which node: 'node' is one of {', '.join(nodes)}.")
            return next(iter(nodes))
        if name not in nodes:
            raise NodeProblem("not_found", f"There is no node {name[:64]!r}.")
        return name

    def query(self, name: str) -> str | None:
        """A query's argument, as it was sent. Raises :class:`NodeProblem`."""
        return wishes.one_value(self.request.query_arguments, name)
