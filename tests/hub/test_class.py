"""An administrator finds each of a class of 54 on the page, and changes only what is ticked.

A real Hub, its groups, browsers without scripts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest
from support.hub import CLASS, RunningHub, needs_hub
from support.jupyter import wait_for
from support.node import GIB, NodeClient

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub
ADMIN = "/services/gpushare/admin"
FORM = f"{ADMIN}/quota"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with RunningHub.make(pages=True, more=CLASS, quotas={"default": {"gpus": 0}}) as running:
        yield running


@pytest.fixture(scope="module")
def carol(hub: RunningHub) -> Iterator[httpx.Client]:
    with closing(hub.person("carol").browser()) as browser:
        assert browser.get(ADMIN).status_code == 200
        yield browser


@pytest.fixture(scope="module")
def root(hub: RunningHub) -> Iterator[NodeClient]:
    with NodeClient(hub.socket, hub.person("carol").token) as client:
        yield client


@pytest.fixture(autouse=True)
def as_configured(root: NodeClient) -> Iterator[None]:
    yield
    for lease in root.call(Method.STATUS)["leases"]:
        with suppress(RemoteError):  # it ended by itself
            root.call(Method.LEASE_REVOKE, lease=lease["id"], reason="the test is over")
    wait_for(lambda: not root.call(Method.STATUS)["leases"], what="all GPUs to be free")
    quotas = root.call(Method.QUOTA_LIST)
    for row in quotas["quotas"]:
        if row["source"] == "override":
            root.call(Method.QUOTA_UNSET, environment=row["environment"])
    for row in quotas["groups"]:
        root.call(Method.QUOTA_UNSET, group=row["group"])
    root.call(Method.QUOTA_UNSET, default=True)


def users(page: httpx.Response) -> list[str]:
    """Whom the table shows, in its order."""
    assert page.status_code == 200, page.text
    return re.findall(r'name="environment" value="([^"]+)" id="tick', page.text)


def following(page: httpx.Response) -> str:
    """Where *Next* leads."""
    found = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert found is not None
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
    page = carol.get(f"{FORM}?node={node_name(carol)}&{three}")
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
    page = carol.get(f"{FORM}?node={node_name(carol)}&{many}")
    done = save(carol, page, gpu_hours="5", per="", change=["gpu_hours"])
    assert note(done) == ("success", "The quota of 51 users is now GPU-hours: 5.")
    now = row(root, "s51")
    assert (now["budget"]["when"], now["own"]) == ("this month", ["gpu_hours"])
    root.call(Method.QUOTA_SET, group="class", memory=6 * GIB)
    assert row(root, "s51")["memory"] == 6 * GIB, "the rest goes on following the group"
    one = carol.get(f"{FORM}?node={node_name(carol)}&environment=s51").text
    assert "the others follow the group class." in one
    assert one.count(">own</span>") == 1
    root.call(Method.QUOTA_UNSET, group="class")
    back = carol.get(f"{FORM}?node={node_name(carol)}&{many}")
    assert note(save(carol, back, action="unset"))[0] == "success"
    assert users(carol.get(f"{ADMIN}?only=set")) == ["alice"]
    assert row(root, "s51")["budget"]["when"] == "this month"


def node_name(carol: httpx.Client) -> str:
    found = re.search(r'name="node" value="([^"]+)"', carol.get(ADMIN).text)
    assert found is not None
    return found[1]


def test_a_groups_and_the_default_quota_on_the_page(carol: httpx.Client, root: NodeClient) -> None:
    page = carol.get(ADMIN)
    groups = page.text[page.text.index('id="groups"') : page.text.index('id="users"')]
    for name in ("Everybody else", "class", "students", "staff", "51 members", "20 this month"):
        assert name in groups
    form = carol.get(f"{FORM}?node={node_name(carol)}&of=group&group=class")
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
    again = carol.get(f"{FORM}?node={node_name(carol)}&of=group&group=class")
    assert "Back to the configured quota" in again.text
    assert note(save(carol, again, action="unset"))[1] == (
        "The quota of group class is the configured one again."
    )
    assert row(root, "s09")["budget"]["hours"] == 20.0
    default = carol.get(f"{FORM}?node={node_name(carol)}&of=default")
    assert note(save(carol, default, gpus="1"))[1].startswith("The default quota is now GPUs: 1")
    new = carol.get(f"{FORM}?node={node_name(carol)}&of=group")
    added = save(carol, new, group="guests", gpus="2")
    assert note(added)[1].startswith("The quota of group guests is now GPUs: 2")
    assert "guests" in {one["group"] for one in root.call(Method.QUOTA_LIST)["groups"]}


def test_what_was_not_changed_is_not_said_to_be(carol: httpx.Client, root: NodeClient) -> None:
    form = carol.get(f"{FORM}?node={node_name(carol)}&environment=s05")
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


def test_a_lease_that_has_ended_is_not_released_again(hub: RunningHub) -> None:
    bob = hub.person("bob")
    with NodeClient(hub.socket, bob.token) as client, closing(bob.browser()) as browser:
        lease = client.request()["lease"]
        page = browser.get("/services/gpushare/")
        node = re.search(r'name="node" value="([^"]+)"', page.text)
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert node is not None
        assert xsrf is not None
        wish = {"node": node[1], "lease": lease, "state": "active", "_xsrf": xsrf[1]}
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
