"""Pages show people their own, administrators everything, and who is not logged in nothing.

The service behind a real JupyterHub and its proxy, in front of a real node manager.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest
import websocket
from jsonschema import Draft202012Validator
from support.hub import RunningHub, needs_hub
from support.jupyter import wait_for
from support.node import GIB, NodeClient
from support.pageroutes import Who, visits

from jupyter_gpushare.link import openapi
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub
PREFIX = "/services/gpushare/"
#: The service, so that nobody has to wait for what takes half a minute.
QUICK = """
c.JupyterHub.services.append({"name": "gpushare", "command": [
    sys.executable, "-m", "jupyter_gpushare.hub", "--debug", "--GpuShareHub.believed=1",
    "--GpuShareHub.login_check=0.3", "--GpuShareHub.live_limit_per_user=3"]})
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with RunningHub.make(pages=True, more=QUICK, quotas={"default": {"gpus": 0}}) as running:
        wait_for(lambda: _is_healthy(running), 30, "the service")
        yield running


@pytest.fixture(scope="module")
def tokens(hub: RunningHub) -> dict[str, str]:
    return {name: hub.person(name).token for name in ("alice", "bob", "carol")}


@pytest.fixture(scope="module")
def browsers(hub: RunningHub) -> Iterator[dict[str, httpx.Client]]:
    """Browsers in which people have logged in; they follow no redirect by themselves."""
    found = {name: hub.person(name).browser() for name in ("alice", "bob", "carol")}
    for browser in found.values():
        assert browser.get(PREFIX).status_code == 200
        browser.follow_redirects = False
    yield found
    for browser in found.values():
        browser.close()


def get(hub: RunningHub, path: str, token: str | None = None) -> httpx.Response:
    return ask(hub, "GET", path, token)


def ask(
    hub: RunningHub, verb: str, path: str, token: str | None = None, **more: Any
) -> httpx.Response:
    headers = {"Authorization": f"token {token}"} if token else {}
    headers |= more.pop("headers", {})
    # With `verify` it would read all certificates first, which takes longer than what it asks.
    return httpx.request(
        *(verb, f"{hub.url}{PREFIX}{path}"),
        **{"headers": headers, "timeout": 30, "trust_env": False, "verify": False, **more},
    )


@contextmanager
def held(hub: RunningHub, token: str, name: str, **wish: Any) -> Iterator[tuple[NodeClient, str]]:
    """A lease of ``token``'s owner, by a light client of the node manager."""
    with NodeClient(hub.socket, token) as client:
        granted = client.request(name=name, gpus=1, **wish)
        try:
            yield client, granted["lease"]
        finally:
            # A test may have ended it already.
            with contextlib.suppress(RemoteError):
                client.call(Method.RELEASE, lease=granted["lease"])


def leases(hub: RunningHub, token: str) -> list[str]:
    found = get(hub, "api/leases", token).json()["leases"]
    return [lease["id"] for lease in found if lease["phase"] != "ended"]


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


def test_health_needs_no_login_and_says_nothing(hub: RunningHub) -> None:
    answer = get(hub, "health")
    assert (answer.status_code, answer.text) == (200, "ok\n")


@pytest.mark.parametrize("path", ["usage.csv", "nowhere"])
def test_a_browser_that_is_not_logged_in_is_sent_to_log_in(hub: RunningHub, path: str) -> None:
    answer = ask(hub, "GET", path, headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/hub/api/oauth2/authorize?")


@pytest.mark.parametrize("who", Who)
def test_every_page_is_for_those_whom_the_node_manager_lets(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client], who: Who
) -> None:
    person = {Who.OTHER: "bob", Who.OWNER: "alice", Who.ADMIN: "carol"}.get(who)
    with held(hub, tokens["alice"], "alices.ipynb", memory=GIB, kernel_id="k") as (client, lease):
        gpu = client.call(Method.STATUS)["gpus"][0]["uuid"]
        xsrf = field_of(browsers[person]) if person else "0" * 32
        pages = {}
        for visit in visits(lease, gpu):
            fields = {**visit.fields, "_xsrf": xsrf} if visit.verb == "POST" else None
            if person:
                url = PREFIX + visit.path
                answer = browsers[person].request(visit.verb, url, data=fields)
            else:
                html = {"Accept": "text/html,*/*"}
                answer = ask(hub, visit.verb, visit.path, data=fields, headers=html)
                unknown = ask(hub, visit.verb, visit.path, "0" * 32, data=fields, headers=html)
                assert unknown.status_code == 403
            assert answer.status_code == visit.code(who), (visit, answer.text)
            pages[visit.path, visit.verb] = answer.text
            if answer.status_code == 403:
                wants = "Only administrators" if person else "You are not logged in"
                assert wants in answer.text
        shown = "alices.ipynb" in "".join(pages.values())
        assert shown == (who in (Who.OWNER, Who.ADMIN))
        assert ("Administration" in pages["", "GET"]) == (who is Who.ADMIN)
        assert (lease in leases(hub, tokens["alice"])) == (who in (Who.ANONYMOUS, Who.OTHER))
    if who is Who.ADMIN:
        put_back = {"_xsrf": xsrf, "gpu": gpu, "action": "resume"}
        assert post(browsers["carol"], "admin/drain", **put_back).status_code == 303


def field_of(browser: httpx.Client) -> str:
    """The XSRF token of somebody's login, as every page of theirs has it."""
    match = re.search(r'data-xsrf="([^"]+)"', browser.get(PREFIX).text)
    assert match is not None
    return match[1]


def test_a_token_without_the_scope_is_told_what_it_needs(hub: RunningHub) -> None:
    made = hub.api.post("users/alice/tokens", json={"scopes": ["read:users!user=alice"]})
    assert made.status_code == 201, made.text
    token = made.json()["token"]
    for path in ("", "api/status"):
        answer = get(hub, path, token)
        assert answer.status_code == 403
        assert "access:services!service=gpushare" in answer.text


# -- what is shown ---------------------------------------------------------------------------------


def test_pages_have_a_strict_policy_and_nothing_that_breaks_it(
    hub: RunningHub, browsers: dict[str, httpx.Client]
) -> None:
    for path in ("", "admin", "admin/quota?environment=alice", "nowhere"):
        page = browsers["carol"].get(PREFIX + path)
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


def test_people_see_their_own_and_of_others_no_name(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    with (
        held(hub, tokens["alice"], "alices.ipynb", memory=4 * GIB),
        held(hub, tokens["bob"], "bobs-secret.ipynb", memory=5 * GIB) as (_client, bobs),
    ):
        page = browsers["alice"].get(PREFIX)
        assert page.status_code == 200
        assert "alices.ipynb" in page.text
        assert "1 of 1" in page.text
        assert "5 GiB reserved by others" in page.text
        for secret in ("bobs-secret", bobs):
            assert secret not in page.text
        assert "Administration" not in page.text
        part = browsers["alice"].get(f"{PREFIX}?part=live")
        assert "alices.ipynb" in part.text
        assert "<html" not in part.text.lower()

        def plots(span: str) -> str:
            return browsers["alice"].get(f"{PREFIX}?part=plots&span={span}").text

        def is_measured() -> bool:
            return all(text in plots("5m") for text in ("mine 4 GiB", "others&#39; 5 GiB"))

        wait_for(is_measured, 30, "a measurement")
        for span in ("5m", "1h", "24h"):
            shown = plots(span)
            assert 'data-part="mine" d="M' in shown
            assert not any(secret in shown for secret in ("bob", "alices.ipynb", "<html"))
        assert browsers["alice"].get(f"{PREFIX}?part=plots&span=9y").status_code == 400
        everything = browsers["carol"].get(f"{PREFIX}admin")
        for name in ("alices.ipynb", "bobs-secret.ipynb", "Administration", "got a GPU"):
            assert name in everything.text


def test_programs_fetch_the_csv_with_a_narrow_token(
    hub: RunningHub, tokens: dict[str, str]
) -> None:
    def made(name: str, scope: str) -> str:
        answer = hub.api.post(f"users/{name}/tokens", json={"scopes": [scope]})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    service = "access:services!service=gpushare"
    files = ("usage.csv?days=2", "admin/usage.csv?window=30d")
    with held(hub, tokens["alice"], "csv.ipynb", memory=GIB):
        for path in files:
            answer = get(hub, path, made("carol", service))
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"].startswith("text/csv")
            assert answer.headers["content-disposition"].startswith("attachment;")
            assert "held_gpu_hours,busy_gpu_hours,leases,charged_gpu_hours," in answer.text
        assert any(",alice," in line for line in answer.text.splitlines())
    assert get(hub, files[0], made("bob", service)).status_code == 200
    for token, path, said in (
        (made("bob", service), files[1], "Only administrators"),
        *((made("carol", "read:users!user=carol"), path, service) for path in files),
        *(("0" * 32, path, "You are not logged in") for path in files),
        *((None, path, "You are not logged in") for path in files),
    ):
        answer = get(hub, path, token)
        assert answer.status_code == 403, "not the page of a login, which would be saved as a file"
        assert answer.headers["content-type"].startswith("text/plain")
        assert said in answer.text
        assert "alice" not in answer.text
        assert len(answer.text.splitlines()) == 1


# -- forms -----------------------------------------------------------------------------------------


def test_release_by_the_form_and_by_nothing_else(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    alice, bob = browsers["alice"], browsers["bob"]
    with held(hub, tokens["alice"], "form.ipynb", memory=GIB) as (_client, lease):
        page = alice.get(PREFIX)
        xsrf, node = field(page, "_xsrf"), field(page, "node")
        assert field(page, "lease") == lease
        wanted = {"node": node, "lease": lease}
        elsewhere = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        for headers, more in (
            ({}, {}),
            ({}, {"_xsrf": "x"}),
            ({}, {"_xsrf": field_of(bob)}),
            ({**elsewhere, "Sec-Fetch-Mode": "navigate"}, {}),
            ({**elsewhere, "Sec-Fetch-Mode": "no-cors"}, {}),
            ({"Sec-Fetch-Mode": "websocket"}, {}),
        ):
            refused = post(alice, "release", headers, **wanted, **more)
            assert refused.status_code == 403, (headers, more)
        # GETs change nothing.
        assert alice.get(f"{PREFIX}release", params={**wanted, "_xsrf": xsrf}).status_code == 405
        # Another's lease does not exist for bob.
        answer = post(bob, "release", **wanted, _xsrf=field_of(bob))
        assert answer.status_code == 303
        assert "you have no such lease" in bob.get(PREFIX).text
        assert leases(hub, tokens["alice"]) == [lease]
        done = post(alice, "release", **wanted, _xsrf=xsrf)
        assert (done.status_code, done.headers["location"]) == (303, PREFIX)
        assert "The GPU is released." in alice.get(PREFIX).text
        assert "The GPU is released." not in alice.get(PREFIX).text
        assert leases(hub, tokens["alice"]) == []


def test_a_gpu_is_kept_by_the_form_and_let_go(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    alice = browsers["alice"]
    with held(hub, tokens["alice"], "lunch.ipynb", memory=GIB, kernel_id="k") as (_client, lease):
        page = alice.get(PREFIX)
        wanted = {"node": field(page, "node"), "lease": lease}
        xsrf = field(page, "_xsrf")
        assert post(alice, "keep", **wanted, _xsrf=xsrf).status_code == 303
        kept = alice.get(PREFIX).text
        assert "The GPU is kept for 1" in kept  # 15 min, or nearly
        assert "Keep no longer" in kept
        assert post(alice, "keep", **wanted, _xsrf=xsrf, seconds="0").status_code == 303
        let_go = alice.get(PREFIX).text
        assert "The GPU is kept no longer." in let_go
        assert "Keep no longer" not in let_go
        nonsense = post(alice, "keep", **wanted, _xsrf=xsrf, seconds="soon")
        assert nonsense.status_code == 400


def test_a_lease_is_revoked_with_a_reason(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    carol = browsers["carol"]
    with held(hub, tokens["alice"], "long.ipynb", memory=GIB) as (_client, lease):
        page = carol.get(f"{PREFIX}admin/revoke?lease={lease}")
        assert "alice loses GPU" in page.text
        wish = {name: field(page, name) for name in ("_xsrf", "node", "lease")}
        empty = post(carol, "admin/revoke", **wish, reason="  ")
        assert empty.status_code == 400
        assert "the owner of the lease reads it" in empty.text
        assert leases(hub, tokens["alice"]) == [lease]
        assert post(carol, "admin/revoke", **wish, reason="Maintenance.").status_code == 303
        assert "The lease is revoked" in carol.get(f"{PREFIX}admin").text
        assert leases(hub, tokens["alice"]) == []
    events = get(hub, "api/history?limit=20", tokens["alice"]).json()["events"]
    (ended,) = [event for event in events if event["lease"] == lease and event["reason"]]
    assert (ended["reason"], ended["detail"]) == ("revoked", "Maintenance.")
    assert carol.get(f"{PREFIX}admin/revoke?lease={lease}").status_code == 404


def test_a_gpu_is_taken_out_of_service_and_put_back(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    carol = browsers["carol"]
    gpu = get(hub, "api/status", tokens["bob"]).json()["gpus"][-1]
    address = f"admin/drain?gpu={gpu['uuid']}"
    page = carol.get(PREFIX + address)
    wish = {name: field(page, name) for name in ("_xsrf", "node", "gpu")}
    wrong = post(carol, "admin/drain", **wish, action="drain", reason="x" * 257)
    assert wrong.status_code == 400
    assert "everybody who waits reads it" in wrong.text
    reason = "its <b>fan</b> is replaced"
    assert post(carol, "admin/drain", **wish, action="drain", reason=reason).status_code == 303
    told = carol.get(f"{PREFIX}admin").text
    assert "The GPU is out of service" in told
    assert "Out of service (carol): its &lt;b&gt;fan&lt;/b&gt; is replaced. It is empty." in told
    assert "Put back into service" in carol.get(PREFIX + address).text
    assert post(carol, "admin/drain", **wish, action="resume").status_code == 303
    assert "back in service" in carol.get(f"{PREFIX}admin").text


# -- REST ------------------------------------------------------------------------------------------

DOCUMENT = openapi.document(PREFIX, openapi.HUB)


def hold(name: str, document: object) -> None:
    """Fail unless ``document`` is what the component ``name`` describes."""
    schemas = DOCUMENT["components"]["schemas"]
    schema = {"components": {"schemas": schemas}, "$ref": f"#/components/schemas/{name}"}
    errors = sorted(Draft202012Validator(schema).iter_errors(document), key=str)
    assert not errors, f"{name}: " + "; ".join(f"{e.json_path}: {e.message}" for e in errors)


def test_rest_answers_are_described(hub: RunningHub, tokens: dict[str, str]) -> None:
    """All operations, which the Jupyter server has, too, are in tests/server/test_document.py."""
    assert get(hub, "api/openapi.json", tokens["alice"]).json() == DOCUMENT

    def call(verb: str, path: str, kind: str, body: Any = None) -> Any:
        answer = ask(hub, verb, f"api/{path}", tokens["carol"], json=body)
        assert answer.status_code == 200, (path, answer.text)
        hold(kind, answer.json())
        return answer.json()

    (node,) = call("GET", "nodes", "Nodes")["nodes"]
    call("GET", f"status?node={node['name']}", "Status")
    wish = {"gpus": 1, "memory": "8GiB", "weight": 2}
    told = call("PUT", "quotas/dave%2Fone", "Quota", wish)
    assert (told["memory"], told["source"]) == (8 * GIB, "override")
    call("DELETE", "quotas/dave%2Fone", "Quota")
    with held(hub, tokens["alice"], "rest.ipynb", memory=GIB) as (_client, lease):
        call("POST", f"leases/{lease}/revoke", "LeaseState", {"reason": "A test."})


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
    hub: RunningHub, verb: str, path: str, body: Any
) -> None:
    for token in (None, "f" * 32):
        answer = ask(hub, verb, path, token, json=body)
        assert answer.status_code == 403
        assert answer.json()["reason"] == "not_allowed"
        hold("Error", answer.json())


def test_a_cookie_alone_does_nothing_by_rest(
    hub: RunningHub, browsers: dict[str, httpx.Client]
) -> None:
    carol = browsers["carol"]
    path = f"{PREFIX}api/quotas/erin"
    assert carol.put(path, json={"gpus": 8}).status_code == 403
    done = carol.put(path, json={"gpus": 8}, headers={"X-XSRFToken": field_of(carol)})
    assert done.status_code == 200, done.text


# -- live ------------------------------------------------------------------------------------------


def listen(hub: RunningHub, **headers: str) -> Any:
    return websocket.create_connection(
        f"{hub.url}{PREFIX}live".replace("http", "ws", 1),
        header=headers,
        timeout=60,
        suppress_origin="Origin" in headers or "no-origin" in headers,
    )


def refused(hub: RunningHub, **headers: str) -> int:
    with pytest.raises(websocket.WebSocketBadStatusException) as error:
        listen(hub, **headers)
    return error.value.status_code


def test_live_says_that_something_has_changed(hub: RunningHub, tokens: dict[str, str]) -> None:
    socket = listen(hub, Authorization=f"token {tokens['alice']}")
    try:
        assert json.loads(socket.recv()) == {"type": "changed"}
        with held(hub, tokens["bob"], "change.ipynb", memory=GIB):
            assert json.loads(socket.recv()) == {"type": "changed"}
    finally:
        socket.close()


def test_live_lets_in_whom_the_pages_let_in(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    cookies = "; ".join(f"{c.name}={c.value}" for c in browsers["alice"].cookies.jar)
    assert refused(hub) == 403
    assert refused(hub, Authorization=f"token {'0' * 32}") == 403
    assert refused(hub, Cookie=cookies, Origin="http://evil.example") == 403
    no_origin = {"Cookie": cookies, "no-origin": "1"}
    assert refused(hub, **no_origin) == 403
    assert refused(hub, Authorization=f"token {tokens['bob']}", Origin="http://evil.example") == 403
    socket = listen(hub, Cookie=cookies, Origin=hub.url)
    socket.close()


def test_live_is_bounded(hub: RunningHub, tokens: dict[str, str]) -> None:
    header = {"Authorization": f"token {tokens['bob']}"}
    sockets = [listen(hub, **header) for _ in range(3)]
    try:
        assert all(socket.recv() for socket in sockets)
        assert refused(hub, **header) == 429
        other = listen(hub, Authorization=f"token {tokens['carol']}")
        other.close()
    finally:
        for socket in sockets:
            socket.close()
    wait_for(lambda: _opens(hub, header), what="a free place")


def _opens(hub: RunningHub, header: dict[str, str]) -> bool:
    try:
        listen(hub, **header).close()
    except websocket.WebSocketBadStatusException:
        return False
    return True


def test_live_ends_with_the_login(hub: RunningHub) -> None:
    person = hub.person("alice")
    socket = listen(hub, Authorization=f"token {person.token}")
    try:
        assert socket.recv()
        assert hub.api.delete(f"users/alice/tokens/{person.token_id}").status_code == 204
        while True:
            opcode, data = socket.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                break
        assert int.from_bytes(data[:2], "big") == 1008
    finally:
        socket.shutdown()  # close() does nothing once the other side has closed
    wait_for(lambda: get(hub, "api/status", person.token).status_code == 403, what="403")


def test_logging_out_ends_the_pages(hub: RunningHub) -> None:
    with contextlib.closing(hub.person("bob").browser()) as browser:
        assert browser.get(PREFIX).status_code == 200
        browser.follow_redirects = False
        browser.get("/hub/logout")
        wait_for(lambda: browser.get(PREFIX).status_code == 302, what="a redirect to the login")


# -- when something is away ------------------------------------------------------------------------


def test_a_node_manager_that_is_away_is_explained_and_found_again(
    hub: RunningHub, tokens: dict[str, str], browsers: dict[str, httpx.Client]
) -> None:
    hub.node_process().kill()
    page = browsers["alice"].get(PREFIX)
    assert page.status_code in (200, 503)  # the Hub may have started it again already
    if page.status_code == 503:
        assert "cannot be asked" in page.text
        assert "Leases that are held stay held" in page.text
    wait_for(lambda: get(hub, "api/status", tokens["alice"]).status_code == 200, 60, "the node")
    assert browsers["alice"].get(PREFIX).status_code == 200


def test_a_login_outlives_the_service(hub: RunningHub, browsers: dict[str, httpx.Client]) -> None:
    assert hub.process is not None
    (service,) = [
        child
        for child in psutil.Process(hub.process.pid).children(recursive=True)
        if "jupyter_gpushare.hub" in child.cmdline()
    ]
    service.kill()
    wait_for(lambda: _is_healthy(hub), 90, "the service")  # the Hub looks now and then
    assert browsers["alice"].get(PREFIX).status_code == 200


def test_a_hub_that_does_not_answer_is_explained(hub: RunningHub, tokens: dict[str, str]) -> None:
    assert hub.process is not None
    hub.process.send_signal(signal.SIGSTOP)
    try:
        asked = {"api/status": "application/json", "": "text/html"}
        with ThreadPoolExecutor() as both:  # each takes as long as the Hub may take to answer
            answers = both.map(lambda path: _told_away(hub, path, tokens["carol"]), asked)
        for answer, kind in zip(answers, asked.values(), strict=True):
            assert "JupyterHub does not answer" in answer.text
            assert answer.headers["content-type"].startswith(kind)
            assert "127.0.0.1" not in answer.text
    finally:
        hub.process.send_signal(signal.SIGCONT)
    wait_for(lambda: get(hub, "api/status", tokens["carol"]).status_code == 200, what="the Hub")


def _told_away(hub: RunningHub, path: str, token: str) -> httpx.Response:
    return wait_for(lambda: _away(hub, path, token), 30, "503")


def _away(hub: RunningHub, path: str, token: str) -> httpx.Response | None:
    answer = get(hub, path, token)
    return answer if answer.status_code == 503 else None


def _is_healthy(hub: RunningHub) -> bool:
    try:
        return get(hub, "health").status_code == 200
    except httpx.HTTPError:
        return False  # the proxy starts anew too


def test_pages_come_back_with_a_hub_that_was_killed(
    hub: RunningHub, tokens: dict[str, str]
) -> None:
    hub.kill()
    hub.start()
    wait_for(lambda: _is_healthy(hub), 30, "the service")
    wait_for(lambda: get(hub, "api/status", tokens["bob"]).status_code == 200, 30, "the node")


def test_the_log_has_no_secrets_and_no_surprises(hub: RunningHub, tokens: dict[str, str]) -> None:
    """Last: of all that was done here."""
    log = (hub.home / "hub.log").read_text(errors="replace")
    for token in tokens.values():
        assert token not in log
    assert not re.search(r"[?&](code|state|token)=(?!\[secret\])\w{6}", log)
    assert "GpuShareHub" in log
    # What a handler of ours did not expect.
    assert not re.search(r"(GET|POST|PUT|DELETE) \S+ failed", log)
