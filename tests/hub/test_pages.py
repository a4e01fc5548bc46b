"""Pages show people their own, administrators everything, and who is not logged in nothing.

The service behind a real JupyterHub and its proxy, in front of a real node manager. An
administrator finds each of a class of 54 there, and changes only what is ticked.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import websocket
from support.hub import CLASS, RunningHub, needs_hub, xsrf_of
from support.jupyter import wait_for
from support.node import GIB, NodeClient, forget_quotas
from support.pageroutes import Who, visits

from jupyter_gpushare.link import openapi
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub
PREFIX = "/services/gpushare/"
ADMIN = f"{PREFIX}admin"
FORM = f"{ADMIN}/quota"
#: The service, so that nobody has to wait for what takes half a minute.
QUICK = """
c.JupyterHub.services.append({"name": "gpushare", "command": [
    sys.executable, "-m", "jupyter_gpushare.hub", "--debug", "--GpuShareHub.believed=1",
    "--GpuShareHub.login_check=0.3", "--GpuShareHub.live_limit_per_user=3"]})
"""


@dataclass
class Pages:
    """The service, and by name people's tokens and the browsers in which they have logged in.

    These follow no redirect by themselves.
    """

    hub: RunningHub
    tokens: dict[str, str]
    browsers: dict[str, httpx.Client]

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        return self.ask("GET", path, token)

    def ask(self, verb: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        """``token`` may be somebody's name."""
        token = self.tokens.get(token or "", token)
        headers = {"Authorization": f"token {token}"} if token else {}
        headers |= more.pop("headers", {})
        # With `verify` it would read all certificates first, which takes longer than what it asks.
        return httpx.request(
            *(verb, f"{self.hub.url}{PREFIX}{path}"),
            **{"headers": headers, "timeout": 30, "trust_env": False, "verify": False, **more},
        )

    @contextmanager
    def held(self, who: str, name: str, **wish: Any) -> Iterator[tuple[NodeClient, str]]:
        """Somebody's lease, by a light client of the node manager."""
        with NodeClient(self.hub.socket, self.tokens[who]) as client:
            granted = client.request(name=name, gpus=1, **{"memory": GIB, **wish})
            try:
                yield client, granted["lease"]
            finally:
                # A test may have ended it already.
                with contextlib.suppress(RemoteError):
                    client.call(Method.RELEASE, lease=granted["lease"])

    def leases(self, who: str) -> list[str]:
        found = self.get("api/leases", self.tokens[who]).json()["leases"]
        return [lease["id"] for lease in found if lease["phase"] != "ended"]


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    more = {"more": CLASS + QUICK, "quotas": {"default": {"gpus": 0}}}
    with RunningHub.make(pages=True, **more) as hub, contextlib.ExitStack() as ends:
        people = {name: hub.person(name) for name in ("alice", "bob", "carol")}
        browsers = {name: person.browser() for name, person in people.items()}
        for browser in browsers.values():
            ends.callback(browser.close)
            assert browser.get(PREFIX).status_code == 200
            browser.follow_redirects = False
        yield Pages(hub, {name: person.token for name, person in people.items()}, browsers)


def field(page: httpx.Response, name: str) -> str:
    """A hidden field's value."""
    match = re.search(rf'name="{name}"[^>]* value="([^"]*)"', page.text)
    assert match is not None, f"no field {name}"
    return match[1]


def post(
    browser: httpx.Client, path: str, headers: dict[str, str] | None = None, **fields: str
) -> httpx.Response:
    return browser.post(PREFIX + path, data=fields, headers=headers)


# -- who gets in -----------------------------------------------------------------------------------


def test_health_needs_no_login_and_says_nothing(pages: Pages) -> None:
    answer = pages.get("health")
    assert (answer.status_code, answer.text) == (200, "ok\n")


@pytest.mark.parametrize("path", ["usage.csv", "nowhere"])
def test_a_browser_that_is_not_logged_in_is_sent_to_log_in(pages: Pages, path: str) -> None:
    answer = pages.ask("GET", path, headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/hub/api/oauth2/authorize?")


#: Forms of administrators' with a reason that cannot be, and what stands beside it.
WRONG = (
    ("admin/drain", {"reason": "x" * 257}, "everybody who waits reads it"),
    ("admin/revoke", {"reason": "  "}, "the owner of the lease reads it"),
)


@pytest.mark.parametrize("who", Who)
def test_every_page_is_for_those_whom_the_node_manager_lets(pages: Pages, who: Who) -> None:
    person = {Who.OTHER: "bob", Who.OWNER: "alice", Who.ADMIN: "carol"}.get(who)
    with pages.held("alice", "alices.ipynb", kernel_id="k") as (client, lease):
        gpu = client.call(Method.STATUS)["gpus"][0]["uuid"]
        xsrf = xsrf_of(pages.browsers[person].get(PREFIX)) if person else "0" * 32
        seen = {}
        for path, wish, said in WRONG if who is Who.ADMIN else ():
            of = {"lease": lease, "gpu": gpu, "_xsrf": xsrf}
            wrong = post(pages.browsers["carol"], path, **of, **wish)
            assert (wrong.status_code, said in wrong.text) == (400, True)
        for visit in visits(lease, gpu):
            fields = {**visit.fields, "_xsrf": xsrf} if visit.verb == "POST" else None
            if person:
                url = PREFIX + visit.path
                answer = pages.browsers[person].request(visit.verb, url, data=fields)
            else:
                html = {"Accept": "text/html,*/*"}
                answer = pages.ask(visit.verb, visit.path, data=fields, headers=html)
                unknown = pages.ask(visit.verb, visit.path, "0" * 32, data=fields, headers=html)
                assert unknown.status_code == 403
            assert answer.status_code == visit.code(who), (visit, answer.text)
            seen[visit.path, visit.verb] = answer.text
            if answer.status_code == 403:
                wants = "Only administrators" if person else "You are not logged in"
                assert wants in answer.text
        shown = "alices.ipynb" in "".join(seen.values())
        assert shown == (who in (Who.OWNER, Who.ADMIN))
        assert ("Administration" in seen["", "GET"]) == (who is Who.ADMIN)
        assert (lease in pages.leases("alice")) == (who in (Who.ANONYMOUS, Who.OTHER))
        out = client.call(Method.STATUS)["gpus"][0]["out_of_service"]
        assert (out and out["reason"]) == ("A fan." if who is Who.ADMIN else None)
    if who is Who.ADMIN:
        put_back = {"_xsrf": xsrf, "gpu": gpu, "action": "resume"}
        assert post(pages.browsers["carol"], "admin/drain", **put_back).status_code == 303
        assert pages.get("api/status", "carol").json()["gpus"][0]["out_of_service"] is None
        with pages.held("alice", "long.ipynb") as (_client, lease):
            revoke = {"_xsrf": xsrf, "lease": lease, "reason": "Maintenance."}
            assert post(pages.browsers["carol"], "admin/revoke", **revoke).status_code == 303
        events = pages.get("api/history?limit=20", "alice").json()["events"]
        assert ("revoked", "Maintenance.") in [(one["reason"], one["detail"]) for one in events]


def test_a_token_without_the_scope_is_told_what_it_needs(pages: Pages) -> None:
    made = pages.hub.api.post("users/alice/tokens", json={"scopes": ["read:users!user=alice"]})
    assert made.status_code == 201, made.text
    token = made.json()["token"]
    for path in ("", "api/status"):
        answer = pages.get(path, token)
        assert answer.status_code == 403
        assert "access:services!service=gpushare" in answer.text


# -- what is shown ---------------------------------------------------------------------------------


def test_pages_have_a_strict_policy_and_nothing_that_breaks_it(pages: Pages) -> None:
    for path in ("", "admin", "admin/quota?environment=alice", "nowhere"):
        page = pages.browsers["carol"].get(PREFIX + path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]*\ssrc=)", page.text)
        assert not re.search(r"\s(style|on[a-z]+)=", page.text)
        assert "<noscript" not in page.text
        # The Hub's own frame.
        assert "/hub/static/css/style.min.css" in page.text
        assert 'href="/hub/home"' in page.text


def test_people_see_their_own_and_of_others_no_name(pages: Pages) -> None:
    with (
        pages.held("alice", "alices.ipynb", memory=4 * GIB),
        pages.held("bob", "bobs-secret.ipynb", memory=5 * GIB) as (_client, bobs),
    ):
        page = pages.browsers["alice"].get(PREFIX)
        assert page.status_code == 200
        assert "alices.ipynb" in page.text
        assert "1 of 1" in page.text
        assert "5 GiB reserved by others" in page.text
        for secret in ("bobs-secret", bobs):
            assert secret not in page.text
        assert "Administration" not in page.text
        part = pages.browsers["alice"].get(f"{PREFIX}?part=live")
        assert "alices.ipynb" in part.text
        assert "<html" not in part.text.lower()

        def plots(span: str) -> str:
            return pages.browsers["alice"].get(f"{PREFIX}?part=plots&span={span}").text

        def is_measured() -> bool:
            return all(text in plots("5m") for text in ("mine 4 GiB", "others&#39; 5 GiB"))

        wait_for(is_measured, 30, "a measurement")
        for span in ("5m", "1h", "24h"):
            shown = plots(span)
            assert 'data-part="mine" d="M' in shown
            assert not any(secret in shown for secret in ("bob", "alices.ipynb", "<html"))
        assert pages.browsers["alice"].get(f"{PREFIX}?part=plots&span=9y").status_code == 400
        everything = pages.browsers["carol"].get(f"{PREFIX}admin")
        for name in ("alices.ipynb", "bobs-secret.ipynb", "Administration", "got a GPU"):
            assert name in everything.text


def test_programs_fetch_the_csv_with_a_narrow_token(pages: Pages) -> None:
    def made(name: str, scope: str) -> str:
        answer = pages.hub.api.post(f"users/{name}/tokens", json={"scopes": [scope]})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    service = "access:services!service=gpushare"
    files = ("usage.csv?days=2", "admin/usage.csv?window=30d")
    with pages.held("alice", "csv.ipynb"):
        for path in files:
            answer = pages.get(path, made("carol", service))
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"].startswith("text/csv")
            assert answer.headers["content-disposition"].startswith("attachment;")
            assert "held_gpu_hours,busy_gpu_hours,leases,charged_gpu_hours," in answer.text
        assert any(",alice," in line for line in answer.text.splitlines())
    assert pages.get(files[0], made("bob", service)).status_code == 200
    for token, path, said in (
        (made("bob", service), files[1], "Only administrators"),
        *((made("carol", "read:users!user=carol"), path, service) for path in files),
        *(("0" * 32, path, "You are not logged in") for path in files),
        *((None, path, "You are not logged in") for path in files),
    ):
        answer = pages.get(path, token)
        assert answer.status_code == 403, "not the page of a login, which would be saved as a file"
        assert answer.headers["content-type"].startswith("text/plain")
        assert said in answer.text
        assert "alice" not in answer.text
        assert len(answer.text.splitlines()) == 1


# -- forms -----------------------------------------------------------------------------------------


def test_release_by_the_form_and_by_nothing_else(pages: Pages) -> None:
    alice, bob = pages.browsers["alice"], pages.browsers["bob"]
    with pages.held("alice", "form.ipynb") as (_client, lease):
        page = alice.get(PREFIX)
        xsrf, node = field(page, "_xsrf"), field(page, "node")
        assert field(page, "lease") == lease
        wanted = {"node": node, "lease": lease}
        elsewhere = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        for headers, more in (
            ({}, {}),
            ({}, {"_xsrf": "x"}),
            ({}, {"_xsrf": xsrf_of(bob.get(PREFIX))}),
            ({**elsewhere, "Sec-Fetch-Mode": "navigate"}, {}),
            ({**elsewhere, "Sec-Fetch-Mode": "no-cors"}, {}),
            ({"Sec-Fetch-Mode": "websocket"}, {}),
        ):
            refused = post(alice, "release", headers, **wanted, **more)
            assert refused.status_code == 403, (headers, more)
        # GETs change nothing.
        assert alice.get(f"{PREFIX}release", params={**wanted, "_xsrf": xsrf}).status_code == 405
        # Another's lease does not exist for bob.
        answer = post(bob, "release", **wanted, _xsrf=xsrf_of(bob.get(PREFIX)))
        assert answer.status_code == 303
        assert "you have no such lease" in bob.get(PREFIX).text
        assert pages.leases("alice") == [lease]
        done = post(alice, "release", **wanted, _xsrf=xsrf)
        assert (done.status_code, done.headers["location"]) == (303, PREFIX)
        assert "The GPU is released." in alice.get(PREFIX).text
        assert "The GPU is released." not in alice.get(PREFIX).text
        assert pages.leases("alice") == []


# -- REST ------------------------------------------------------------------------------------------


def test_rest_is_described_and_asks_the_node(pages: Pages) -> None:
    """All operations, which the Jupyter server has, too, are in tests/server/test_document.py."""
    document = openapi.document(PREFIX, openapi.HUB)
    assert pages.get("api/openapi.json", "alice").json() == document
    described = document["components"]["schemas"]["Nodes"]["properties"]["nodes"]["items"]
    (node,) = pages.get("api/nodes", "carol").json()["nodes"]
    assert set(node) == set(described["properties"])
    path = f"api/quotas/dave%2Fone?node={node['name']}"
    told = pages.ask("PUT", path, "carol", json={"gpus": 1, "memory": "8GiB", "weight": 2}).json()
    assert (told["environment"], told["memory"]) == ("dave/one", 8 * GIB)
    assert pages.ask("DELETE", path, "carol").status_code == 200


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        *(("GET", f"api/{name}", None) for name in ("status", "nodes", "openapi.json", "nope")),
        ("DELETE", "api/leases/x", None),
        ("POST", "api/leases/x/revoke", {"reason": "x"}),
        ("PUT", "api/quotas/alice", {"gpus": 8}),
    ],
)
def test_rest_without_a_good_token_is_refused_in_json(
    pages: Pages, verb: str, path: str, body: Any
) -> None:
    for token in (None, "f" * 32):
        answer = pages.ask(verb, path, token, json=body)
        assert answer.status_code == 403
        assert answer.json()["reason"] == "not_allowed"
        assert answer.json()["message"]


def test_a_cookie_alone_does_nothing_by_rest(pages: Pages) -> None:
    carol = pages.browsers["carol"]
    path = f"{PREFIX}api/quotas/erin"
    assert carol.put(path, json={"gpus": 8}).status_code == 403
    done = carol.put(path, json={"gpus": 8}, headers={"X-XSRFToken": xsrf_of(carol.get(PREFIX))})
    assert done.status_code == 200, done.text


# -- live ------------------------------------------------------------------------------------------


def listen(pages: Pages, who: str = "", **headers: str) -> Any:
    headers |= {"Authorization": f"token {pages.tokens.get(who, who)}"} if who else {}
    return websocket.create_connection(
        f"{pages.hub.url}{PREFIX}live".replace("http", "ws", 1),
        header=headers,
        timeout=60,
        suppress_origin="Origin" in headers or "no-origin" in headers,
    )


def refused(pages: Pages, who: str = "", **headers: str) -> int:
    with pytest.raises(websocket.WebSocketBadStatusException) as error:
        listen(pages, who, **headers)
    return error.value.status_code


def test_live_lets_in_whom_the_pages_let_in(pages: Pages) -> None:
    cookies = "; ".join(f"{c.name}={c.value}" for c in pages.browsers["alice"].cookies.jar)
    assert refused(pages) == 403
    assert refused(pages, "0" * 32) == 403
    assert refused(pages, Cookie=cookies, Origin="http://evil.example") == 403
    no_origin = {"Cookie": cookies, "no-origin": "1"}
    assert refused(pages, **no_origin) == 403
    assert refused(pages, "bob", Origin="http://evil.example") == 403
    with contextlib.closing(listen(pages, Cookie=cookies, Origin=pages.hub.url)) as socket:
        assert json.loads(socket.recv()) == {"type": "changed"}
        with pages.held("bob", "change.ipynb"):
            assert json.loads(socket.recv()) == {"type": "changed"}


def test_live_is_bounded(pages: Pages) -> None:
    with contextlib.ExitStack() as stack:
        three = (stack.enter_context(contextlib.closing(listen(pages, "bob"))) for _ in range(3))
        assert all([socket.recv() for socket in three])
        assert refused(pages, "bob") == 429
        listen(pages, "carol").close()

    def opens() -> bool:
        with contextlib.suppress(websocket.WebSocketBadStatusException):
            listen(pages, "bob").close()
            return True
        return False

    wait_for(opens, what="a free place")


def test_live_ends_with_the_login(pages: Pages) -> None:
    person = pages.hub.person("alice")
    socket = listen(pages, person.token)
    try:
        assert socket.recv()
        assert pages.hub.api.delete(f"users/alice/tokens/{person.token_id}").status_code == 204
        while True:
            opcode, data = socket.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                break
        assert int.from_bytes(data[:2], "big") == 1008
    finally:
        socket.shutdown()  # close() does nothing once the other side has closed
    wait_for(lambda: pages.get("api/status", person.token).status_code == 403, what="403")


def test_logging_out_ends_the_pages(pages: Pages) -> None:
    with contextlib.closing(pages.hub.person("bob").browser()) as browser:
        assert browser.get(PREFIX).status_code == 200
        browser.follow_redirects = False
        browser.get("/hub/logout")
        wait_for(lambda: browser.get(PREFIX).status_code == 302, what="a redirect to the login")


# -- a class of 54 ---------------------------------------------------------------------------------


@pytest.fixture
def root(pages: Pages) -> Iterator[NodeClient]:
    """The administrator's; what she changed of quotas before and with this is as configured."""
    with NodeClient(pages.hub.socket, pages.tokens["carol"]) as client:
        forget_quotas(client)
        yield client
        forget_quotas(client)


@pytest.fixture
def carol(pages: Pages) -> Iterator[httpx.Client]:
    """Her browser, which follows redirects."""
    with contextlib.closing(pages.hub.person("carol").browser()) as browser:
        yield browser


def users(page: httpx.Response) -> list[str]:
    """Whom the table shows, in its order."""
    assert page.status_code == 200, page.text
    return re.findall(r'name="environment" value="([^"]+)" id="tick', page.text)


def following(page: httpx.Response) -> str:
    """Where *Next* leads."""
    found = re.search(r'rel="next" href="([^"]+)"', page.text)
    return html.unescape(found[1])


def fields(page: httpx.Response) -> list[tuple[str, str]]:
    """What a browser would post of the form, had nobody touched it."""
    form = page.text[page.text.index('<form method="post"') :].partition("</form>")[0]
    found = re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', form)
    boxes = re.findall(r'<input[^>]*type="checkbox" name="(\w+)" value="(\w+)"', form)
    for select in re.finditer(r'<select[^>]* name="(\w+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r"<option(?: value=\"([^\"]*)\")?[^>]*selected>([^<]*)<", select[2])
        if chosen is not None:
            found.append((select[1], chosen[2] if chosen[1] is None else chosen[1]))
    plain = [(name, html.unescape(value)) for name, value in found if (name, value) not in boxes]
    return [*plain, ("action", "set")]


def save(carol: httpx.Client, page: httpx.Response, **typed: Any) -> httpx.Response:
    """Post the form of ``page`` with some fields typed anew; a list is several values."""
    data: dict[str, Any] = {}
    for name, value in fields(page):
        if name not in typed:
            data.setdefault(name, []).append(value)
    return carol.post(FORM, data={**data, **typed})


def note(page: httpx.Response) -> tuple[str, str]:
    """How a page tells what was done, and its words."""
    found = re.search(r'<div class="alert alert-(\w+)" role="\w+">(.*?)</div>', page.text, re.S)
    assert found is not None, page.text
    return found[1], html.unescape(found[2].partition("<form")[0].strip())


def row(root: NodeClient, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = root.call(Method.QUOTA_LIST)["quotas"]
    return next(one for one in rows if one["environment"] == name)


def test_all_54_are_there_before_they_ever_came(carol: httpx.Client, root: NodeClient) -> None:
    first = carol.get(ADMIN)
    assert users(first) == ["alice", "bob", "carol", *(f"s{n:02}" for n in range(1, 23))]
    assert "1\u201325 of 54" in first.text
    second = carol.get(following(first))
    third = carol.get(following(second))
    assert len({*users(first), *users(second), *users(third)}) == 54
    assert 'rel="next"' not in third.text
    assert users(carol.get(f"{ADMIN}?page=99")) == users(third)
    nobody = carol.get(f"{ADMIN}?only=never&group=class&rows=100")
    assert len(users(nobody)) == 51
    assert "was never here" in nobody.text
    assert "group class" in nobody.text, "set by which"
    assert row(root, "s07")["memory"] == 4 * GIB
    assert users(carol.get(f"{ADMIN}?find=S1&rows=100")) == [f"s{n}" for n in range(10, 20)]
    assert users(carol.get(f"{ADMIN}?find=nobody")) == []


def test_several_are_edited_at_once_and_only_what_is_ticked(
    carol: httpx.Client, root: NodeClient
) -> None:
    three = "environment=s01&environment=s02&environment=alice"
    page = carol.get(f"{FORM}?{three}")
    assert "The quota of s01, s02, alice" in page.text
    nothing = save(carol, page, gpus="3")
    assert nothing.status_code == 400
    assert "Tick what is to be changed." in nothing.text
    wrong = save(carol, page, gpus="many", change=["gpus"])
    assert (wrong.status_code, wrong.text.count("invalid-feedback")) == (400, 1)
    assert 'value="many"' in wrong.text
    done = save(
        carol,
        page,
        gpus="2",
        idle_timeout="10",
        memory="nonsense",
        change=["gpus", "idle_timeout"],
    )
    assert note(done) == (
        "success",
        "The quota of s01, s02, alice is now GPUs: 2, idle time-out: 10 min.",
    )
    for name, memory in (("s01", 4), ("s02", 4), ("alice", 8)):
        now = row(root, name)
        assert (now["gpus"], now["idle_timeout"]) == (2, 600.0)
        assert now["memory"] == memory * GIB, "as each of them had it"
    assert row(root, "s03")["gpus"] == 1
    assert users(carol.get(f"{ADMIN}?only=set")) == ["alice", "s01", "s02"]
    many = "&".join(f"environment=s{n:02}" for n in range(1, 52))
    page = carol.get(f"{FORM}?{many}")
    done = save(carol, page, gpu_hours="5", per="", change=["gpu_hours"])
    assert note(done) == ("success", "The quota of 51 users is now GPU-hours: 5.")
    now = row(root, "s51")
    assert (now["budget"]["when"], now["own"]) == ("this month", ["gpu_hours"])
    root.call(Method.QUOTA_SET, group="class", memory=6 * GIB)
    assert row(root, "s51")["memory"] == 6 * GIB, "the rest goes on following the group"
    one = carol.get(f"{FORM}?environment=s51").text
    assert "the others follow the group class." in one
    assert one.count(">own</span>") == 1
    root.call(Method.QUOTA_UNSET, group="class")
    back = carol.get(f"{FORM}?{many}")
    assert note(save(carol, back, action="unset"))[0] == "success"
    assert users(carol.get(f"{ADMIN}?only=set")) == ["alice"]
    assert row(root, "s51")["budget"]["when"] == "this month"


def test_a_groups_and_the_default_quota_on_the_page(carol: httpx.Client, root: NodeClient) -> None:
    page = carol.get(ADMIN)
    groups = page.text[page.text.index('id="groups"') : page.text.index('id="users"')]
    for name in ("Everybody else", "class", "students", "staff", "51 members", "20 this month"):
        assert name in groups
    form = carol.get(f"{FORM}?of=group&group=class")
    fields = {"gpu_hours": "60", "per": "term", "first": "2026-10-01", "burst_memory": "0.9"}
    term = save(carol, form, **fields)
    assert note(term) == (
        "success",
        "The quota of group class is now GPUs: 1, memory on each GPU: 4 GiB, weight: 1, GPU-hours: "
        "60 since 2026-10-01, limits lifted up to: 0.9 of a GPU.",
    )
    now = row(root, "s09")
    assert (now["budget"]["hours"], now["budget"]["per"]) == (60.0, "2026-10-01")
    assert (now["burst_memory"], now["source"], now["from_groups"]) == (0.9, "group", ["class"])
    again = carol.get(f"{FORM}?of=group&group=class")
    assert "Back to the configured quota" in again.text
    assert note(save(carol, again, action="unset"))[1] == (
        "The quota of group class is the configured one again."
    )
    assert row(root, "s09")["budget"]["hours"] == 20.0
    default = carol.get(f"{FORM}?of=default")
    assert note(save(carol, default, gpus="1"))[1].startswith("The default quota is now GPUs: 1")
    new = carol.get(f"{FORM}?of=group")
    added = save(carol, new, group="guests", gpus="2")
    assert note(added)[1].startswith("The quota of group guests is now GPUs: 2")
    assert "guests" in {one["group"] for one in root.call(Method.QUOTA_LIST)["groups"]}


def test_what_was_not_changed_is_not_said_to_be(carol: httpx.Client, root: NodeClient) -> None:
    form = carol.get(f"{FORM}?environment=s05")
    assert note(save(carol, form)) == (
        "info",
        "Nothing was changed: the quota of s05 has these values already.",
    )
    assert row(root, "s05")["source"] == "group", "nor is it an administrator's now"
    done = save(carol, form, weight="2")
    assert note(done)[0] == "success"
    assert row(root, "s05")["budget"]["per"] == "month", "what was not typed anew stays"
    undone = save(carol, done, action="unset")
    assert ">Undo</button>" in done.text
    assert note(undone)[1] == "The quota of s05 is the configured one again."
    assert row(root, "s05")["source"] == "group"
    redone = save(carol, undone)
    assert row(root, "s05")["own"] == ["weight"], note(redone)
    for _ in range(2):
        last = note(save(carol, form, action="unset"))
    assert last == ("info", "Nothing was changed: the quota of s05 has these values already.")


def test_a_lease_that_has_ended_is_not_released_again(pages: Pages) -> None:
    bob = pages.hub.person("bob")
    with (
        NodeClient(pages.hub.socket, bob.token) as client,
        contextlib.closing(bob.browser()) as browser,
    ):
        lease = client.request()["lease"]
        page = browser.get("/services/gpushare/")
        wish = {name: field(page, name) for name in ("node", "_xsrf")}
        wish |= {"lease": lease, "state": "active"}
        for expected in (
            ("success", "The GPU is released."),
            ("info", "There was nothing to do: you have no such lease any more."),
        ):
            assert note(browser.post("/services/gpushare/release", data=wish)) == expected
        kept = client.request(kernel_id="k")["lease"]
        for seconds, expected in (
            ("0", ("info", "There was nothing to do: the GPU was not kept.")),
            ("", ("success", "The GPU is kept for 15 min.")),
            ("0", ("success", "The GPU is kept no longer.")),
        ):
            keep = {**wish, "lease": kept, "seconds": seconds}
            assert note(browser.post("/services/gpushare/keep", data=keep)) == expected
        nonsense = {**wish, "lease": kept, "seconds": "soon"}
        assert browser.post("/services/gpushare/keep", data=nonsense).status_code == 400
        waiting = browser.post(
            "/services/gpushare/release", data={**wish, "lease": kept, "state": "queued"}
        )
        assert note(waiting)[0] == "info"
        assert "granted meanwhile" in note(waiting)[1]
        client.call(Method.RELEASE, lease=kept)


# -- when something is away ------------------------------------------------------------------------


def test_a_hub_that_does_not_answer_is_explained(pages: Pages) -> None:
    pages.hub.process.send_signal(signal.SIGSTOP)
    try:
        asked = {"api/status": "application/json", "": "text/html"}

        def away(path: str) -> httpx.Response:
            def is_away() -> httpx.Response | None:
                return answer if (answer := pages.get(path, "carol")).status_code == 503 else None

            return wait_for(is_away, 30, "503")

        with ThreadPoolExecutor() as both:  # each takes as long as the Hub may take to answer
            answers = both.map(away, asked)
        for answer, kind in zip(answers, asked.values(), strict=True):
            assert "JupyterHub does not answer" in answer.text
            assert answer.headers["content-type"].startswith(kind)
            assert "127.0.0.1" not in answer.text
    finally:
        pages.hub.process.send_signal(signal.SIGCONT)
    wait_for(lambda: pages.get("api/status", "carol").status_code == 200, what="the Hub")


def test_the_log_has_no_secrets_and_no_surprises(pages: Pages) -> None:
    """Last: of all that was done here."""
    log = (pages.hub.home / "hub.log").read_text(errors="replace")
    for token in pages.tokens.values():
        assert token not in log
    assert not re.search(r"[?&](code|state|token)=(?!\[secret\])\w{6}", log)
    assert "GpuShareHub" in log
    # What a handler of ours did not expect.
    assert not re.search(r"(GET|POST|PUT|DELETE) \S+ failed", log)
