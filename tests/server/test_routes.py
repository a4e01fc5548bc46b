"""Every route of ours refuses whoever may not ask it.

The routes come from the running application itself, so a handler that somebody adds without
authentication fails here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from support.asking import asking
from tornado.httpclient import HTTPResponse
from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler
from traitlets.config import Config

VERBS = ("get", "post", "put", "delete", "patch")


class NobodyOnGpus(Authorizer):
    """Everything is allowed but gpushare."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return resource != "gpushare"


class ReadersOnly(Authorizer):
    """On gpushare only reading is allowed."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return resource != "gpushare" or action == "read"


@pytest.fixture
def jp_server_config() -> Config:
    return Config(
        {
            "ServerApp": {
                "jpserver_extensions": {"jupyter_gpushare": True},
                "allow_unauthenticated_access": False,
            },
            "GpuShareExtension": {"embed": "never"},
        }
    )


def own_routes(app: Any) -> list[tuple[str, type, str]]:
    """Return (path with example arguments, handler, verb) of every method the app serves for us."""
    found = []
    rules = [*app.web_app.wildcard_router.rules]
    for rule in app.web_app.default_router.rules:
        rules += getattr(rule.target, "rules", [])
    for rule in rules:
        pattern = getattr(getattr(rule.matcher, "regex", None), "pattern", "")
        if "gpushare" not in pattern or "/static/" in pattern:
            continue
        first = re.sub(r"\((\w+)\|[^)]*\)", r"\1", pattern.rstrip("$"))
        path = re.sub(r"\([^)]*\)", "some-id", first).replace("\\", "")
        handler = rule.target
        verbs = [v for v in VERBS if getattr(handler, v) is not getattr(RequestHandler, v)]
        assert verbs, f"{handler} answers nothing"
        found += [(path, handler, verb.upper()) for verb in verbs]
    return found


def is_socket(handler: type) -> bool:
    return issubclass(handler, WebSocketHandler)


def is_page(path: str) -> bool:
    """Pages answer people; what they answer is in `test_server_pages`."""
    return "/gpushare/api/" not in path


def is_turned_away(answer: HTTPResponse, path: str, verb: str) -> bool:
    """Whether nobody was let in; a browser that wants a page may log in."""
    if answer.code == 302:
        return is_page(path) and verb == "GET" and "/login?next=" in answer.headers["Location"]
    return answer.code == 403 and b"Traceback" not in answer.body


async def test_the_routes_are_the_documented_ones(jp_serverapp: Any) -> None:
    from jupyter_gpushare.link import openapi

    served = {
        (re.sub("some-id", "{}", path.removeprefix(jp_serverapp.base_url.rstrip("/"))), verb)
        for path, handler, verb in own_routes(jp_serverapp)
        if not is_socket(handler) and not is_page(path)
    }
    described = {
        (re.sub(r"\{[^}]*\}", "{}", path), verb.upper())
        for path, operations in openapi.document()["paths"].items()
        for verb in operations
        if verb != "parameters"
    }
    assert served - described == {("/gpushare/api/openapi.json", "GET")}
    assert described <= served
    assert any(is_socket(handler) for _, handler, _ in own_routes(jp_serverapp))


@pytest.mark.parametrize("allow", [True, False])
async def test_anonymous_gets_nothing_whatever_the_server_allows(
    allow: bool, jp_configurable_serverapp: Any, jp_server_config: Config
) -> None:
    jp_server_config.ServerApp.allow_unauthenticated_access = allow
    app = jp_configurable_serverapp(config=jp_server_config)
    async with asking(app) as asker:
        for path, handler, verb in own_routes(app):
            answer = await asker.send(path, verb, upgrade=is_socket(handler))
            assert is_turned_away(answer, path, verb), (verb, path, answer.code)


async def test_without_authorization(
    jp_configurable_serverapp: Any, jp_server_config: Config
) -> None:
    app = jp_configurable_serverapp(config=jp_server_config, authorizer_class=NobodyOnGpus)
    async with asking(app) as asker:
        for path, handler, verb in own_routes(app):
            answer = await asker.send(path, verb, upgrade=is_socket(handler), **asker.token)
            assert answer.code == 403, (verb, path, answer.code)
        elsewhere = await asker.send(f"{app.base_url}api/kernels", "GET", **asker.token)
        assert elsewhere.code == 200


async def test_readers_may_only_read(
    jp_configurable_serverapp: Any, jp_server_config: Config
) -> None:
    app = jp_configurable_serverapp(config=jp_server_config, authorizer_class=ReadersOnly)
    async with asking(app) as asker:
        for path, handler, verb in own_routes(app):
            if is_socket(handler):
                continue  # upgraded: tested with a WebSocket client
            answer = await asker.send(path, verb, **asker.token)
            forbidden = verb != "GET" or "/quotas" in path or "gpushare/admin" in path
            assert (answer.code == 403) == forbidden, (verb, path, answer.code)


async def test_a_forged_request_of_a_browser_is_refused(jp_serverapp: Any) -> None:
    async with asking(jp_serverapp) as asker:
        cookie = await asker.cookie()
        xsrf = re.search(r"_xsrf=([^;]+)", cookie["Cookie"])
        assert xsrf is not None
        changing = [(p, v) for p, h, v in own_routes(jp_serverapp) if v not in ("GET",)]
        assert changing
        for path, verb in changing:
            without = await asker.send(path, verb, **cookie)
            assert without.code == 403, (verb, path)
            wrong = await asker.send(path, verb, X_XSRFToken="2|0|forged|0", **cookie)
            assert wrong.code == 403, (verb, path)
            right = await asker.send(path, verb, X_XSRFToken=xsrf[1], **cookie)
            if is_page(path):  # the page says what lacks in its form
                assert right.code in (400, 404, 503), (verb, path, right.body)
                continue
            reached = 400 if path.endswith("/host") else 503  # which the server itself answers
            assert right.code == reached, (verb, path, right.body)


async def test_errors_are_json_with_a_reason(jp_serverapp: Any) -> None:
    async with asking(jp_serverapp) as asker:
        base = f"{jp_serverapp.base_url}gpushare/api"
        for path, verb, code, reason in [
            (f"{base}/status", "PUT", 405, "method_not_allowed"),
            (f"{base}/history?limit=1e1&limit=2", "GET", 400, "bad_request"),
            (f"{base}/usage?since=nan", "GET", 400, "bad_request"),
            (f"{base}/usage?environment=%00", "GET", 400, "bad_request"),
            (f"{base}/usage/daily?days=", "GET", 400, "bad_request"),
            (f"{base}/usage/daily?days=1.5", "GET", 400, "bad_request"),
            (f"{base}/usage/daily?utc_offset=-50401", "GET", 400, "bad_request"),
            (f"{base}/readings?gpu=%20", "GET", 404, "unknown_gpu"),
            (f"{base}/leases/%20", "DELETE", 404, "unknown_lease"),
        ]:
            answer = await asker.send(path, verb, **asker.token)
            assert answer.code == code, (path, answer.body)
            body = json.loads(answer.body)
            assert body["reason"] == reason
            assert body["message"]
            if code == 405:
                assert answer.headers["Allow"] == "GET"
