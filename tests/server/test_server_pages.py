"""The pages of the Jupyter server show and do what the node manager lets its user see and do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.asking import Asker, asking
from support.node import GIB, RunningNode
from support.pageroutes import Who, visits
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect
from traitlets.config import Config

from jupyter_gpushare.pages.live import CHANGED
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method

#: Whose server it is, by who looks; who is not logged in looks at alice's.
SERVERS = {Who.ANONYMOUS: "alice", Who.OTHER: "bob", Who.OWNER: "alice", Who.ADMIN: "root"}
Serve = Callable[..., AbstractAsyncContextManager[Asker]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, people=("alice", "bob", "root")) as running:
        yield running


@pytest.fixture
def serve(
    node: RunningNode, jp_configurable_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> Serve:
    """The server of a person whom the node manager knows, connected to it."""

    @asynccontextmanager
    async def serve(person: str, **settings: Any) -> AsyncIterator[Asker]:
        monkeypatch.setenv(names.TOKEN, person)
        own = {"socket": str(node.socket), "embed": "never"}
        server = {"jpserver_extensions": {"jupyter_gpushare": True}, **settings}
        app = jp_configurable_serverapp(
            config=Config({"ServerApp": server, "GpuShareExtension": own})
        )
        (extension,) = app.extension_manager.extension_apps["jupyter_gpushare"]
        link, changed = extension.link, asyncio.Event()
        link.subscribe(changed.set)
        link.start()
        async with asking(app) as asker, asyncio.timeout(60):
            while not link.state.connected:
                await changed.wait()
                changed.clear()
            yield asker
        await link.close()

    return serve


@pytest.mark.parametrize("who", Who)
async def test_every_page_is_for_those_whom_the_node_manager_lets(
    who: Who, serve: Serve, node: RunningNode
) -> None:
    with node.client("alice") as alice:
        lease = alice.request(name="alices.ipynb", kernel_id="k", memory=GIB)["lease"]
        gpu = alice.call(Method.STATUS)["gpus"][0]["uuid"]
        async with serve(SERVERS[who]) as asker:
            cookie = {} if who is Who.ANONYMOUS else await asker.cookie()
            xsrf = re.search("_xsrf=([^;]+)", cookie.get("Cookie", ""))
            pages = {}
            for visit in visits(lease, gpu):
                sent = {**visit.fields, "_xsrf": xsrf[1] if xsrf else ""}
                form = sent if visit.verb == "POST" else None
                address = f"{asker.app.base_url}gpushare/{visit.path}"
                answer = await asker.send(address, visit.verb, form=form, **cookie)
                assert answer.code == visit.code(who), (visit, answer.code, answer.body)
                pages[visit.path, visit.verb] = answer.body.decode()
        shown = "alices.ipynb" in "".join(pages.values())
        assert shown == (who in (Who.OWNER, Who.ADMIN))
        assert ("Administration" in pages["", "GET"]) == (who is Who.ADMIN)
        ended = not [one for one in alice.call(Method.STATUS)["leases"] if one["phase"] == "held"]
        assert ended == (who in (Who.OWNER, Who.ADMIN))


async def test_a_forged_form_changes_nothing(serve: Serve, node: RunningNode) -> None:
    with node.client("alice") as alice:
        lease = alice.request(name="alices.ipynb", kernel_id="k", memory=GIB)["lease"]
        gpu = alice.call(Method.STATUS)["gpus"][0]["uuid"]
        async with serve("root") as asker:
            cookie = await asker.cookie()
            forms = [visit for visit in visits(lease, gpu) if visit.verb == "POST"]
            assert len(forms) == 5
            for visit in forms:
                for forged in ({}, {"_xsrf": "2|0|forged|0"}):
                    address = f"{asker.app.base_url}gpushare/{visit.path}"
                    sent = {**visit.fields, **forged}
                    answer = await asker.send(address, "POST", form=sent, **cookie)
                    assert answer.code == 403, visit
        status = alice.call(Method.STATUS)
        assert [one["phase"] for one in status["leases"]] == ["held"]
        assert not any(one.get("out_of_service") for one in status["gpus"])


@pytest.mark.parametrize(
    ("headers", "framed_by"),
    [
        ({}, "'self'"),
        ({"Content-Security-Policy": "frame-ancestors 'self' https://portal.example"}, None),
    ],
    ids=["by JupyterLab", "JupyterLab by a portal"],
)
async def test_only_who_may_frame_jupyterlab_frames_a_page(
    headers: dict[str, str], framed_by: str | None, serve: Serve
) -> None:
    framed_by = framed_by or "'self' https://portal.example"
    async with serve("root", tornado_settings={"headers": headers}) as asker:
        for path, code in (("", 200), ("admin", 200), ("admin?window=2y", 400)):
            answer = await asker.send(f"{asker.app.base_url}gpushare/{path}", "GET", **asker.token)
            assert answer.code == code
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert policy.endswith(f"; frame-ancestors {framed_by}")
            page = answer.body.decode()
            assert not re.search(r"<script(?![^>]*\ssrc=)|\s(style|on[a-z]+)=", page)
            for address in re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', page):
                assert (await asker.send(address, "GET")).code == 200, address


async def test_an_open_page_is_told_of_a_change(serve: Serve, node: RunningNode) -> None:
    async with serve("alice") as asker:
        address = f"{asker.root}{asker.app.base_url}gpushare/live".replace("http", "ws")
        live = await websocket_connect(HTTPRequest(address, headers=asker.token))
        try:
            assert await live.read_message() == CHANGED  # the page may be older
            with node.client("bob") as bob:
                bob.request(memory=GIB)
                assert await live.read_message() == CHANGED
        finally:
            live.close()
