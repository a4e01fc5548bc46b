"""Servers and kernels start on the host that has the GPUs, and who waits is told of it.

Nothing pretended but the GPUs: a Hub with its pool, two hosts that joined.
The pool itself ranks the hosts. A server starts where it says, and outlives the Hub and a cut
cable; a kernel of a server on one host starts on the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from support.hub import Person
from support.jupyter import Kernel, wait_for
from support.node import NodeClient
from support.poolhub import NODE, PoolHub, why_no_pool

ASK = "from jupyter_gpushare.client import api\napi.request(gpus=1)\n"
TELL = (
    "from jupyter_gpushare.client.acquire import broker\n"
    "print(broker().status()['node']['name'], broker().lease is not None)"
)
WHY = why_no_pool()
pytestmark = [
    pytest.mark.skipif(bool(WHY), reason=WHY),
    # `test_pool` tells of a Hub with a pool each time.
    pytest.mark.story(
        *("jupyter_gpushare/pool/", "jupyter_gpushare/starts/", "jupyter_gpushare/link/"),
        *("jupyter_gpushare/starts/spawner", "jupyter_gpushare/pool/hub"),
        *("jupyter_gpushare/starts/placing", "tests/hub/", "tests/support/pool"),
    ),
]


@pytest.fixture(scope="module")
def scene() -> Iterator[PoolHub]:
    with PoolHub.make() as made:
        yield made


def test_a_server_starts_where_the_gpus_are_that_its_person_wishes_for(scene: PoolHub) -> None:
    alice, bob = scene.hub.person("alice"), scene.hub.person("bob")
    assert scene.started(alice, gpus=1, gpu_memory="30GiB") == "b"
    assert scene.started(bob, gpus=1, gpu_kind="Simulated GPU (24 GiB)") == "a"


def test_everybody_may_ask_where(scene: PoolHub) -> None:
    bob = scene.hub.person("bob")
    ask = scene.hub.client(f"{scene.hub.url}/services/gpushare/api/", bob.token)
    ranked = ask.get("where", params={"memory": 30 * 2**30}).json()["hosts"]
    assert [(one["host"], one["fits_now"]) for one in ranked] == [("b", True), ("a", False)]
    assert not ranked[1]["possible"]
    assert ask.get("where", params={"gpus": "some"}).status_code == 400
    assert ask.get("where", params={"memory": "-1"}).status_code == 400


def test_a_kernel_of_a_server_starts_on_the_other_host(scene: PoolHub) -> None:
    bob = scene.hub.person("bob")
    _starts_on_a(scene, bob)
    answer = bob.api.post("api/kernels", json={"name": "gpushare-pool"})
    assert answer.status_code == 201, f"{answer.text}\n{scene.log('bob')}"
    kernel = Kernel(bob, answer.json()["id"])  # type: ignore[arg-type]
    assert scene.on(kernel) == "b", scene.log("bob")
    # It gets a GPU there, of bob's quota over all hosts.
    assert kernel.run(ASK + TELL).strip().splitlines()[-1] == "b True"
    bob.api.delete(f"api/kernels/{kernel.id}")


def test_who_waits_is_told_which_host_is_free_and_starts_there(scene: PoolHub) -> None:
    """What the panel's button "Start on b" does, without the browser."""
    bob, carol = scene.hub.person("bob"), scene.hub.person("carol")
    _starts_on_a(scene, bob)
    with NodeClient(scene.hosts["a"].outside(NODE), carol.token) as others:
        others.request(gpus=1)
        notebook = {"path": "work.ipynb", "name": "work.ipynb", "type": "notebook"}
        answer = bob.api.post("api/sessions", json={**notebook, "kernel": {"name": "python3"}})
        assert answer.status_code == 201, answer.text
        first = Kernel(bob, answer.json()["kernel"]["id"])  # type: ignore[arg-type]
        cell, _ = first.begin(f"x = 1\n{ASK}")
        with contextlib.closing(cell):
            lease, hint = wait_for(lambda: _hinted(bob), 60, "a hint")
            assert hint["host"] == "b"
            assert hint["text"] == (
                "Host b has a free GPU now (Simulated GPU (40 GiB)): start your kernel there."
            )
            asks = next(one for one in bob.status()["leases"] if one["id"] == lease)
            assert asks["kernel_id"] == first.id
            moved = bob.api.post(
                f"gpushare/api/kernels/{asks['kernel_id']}/host", json={"host": hint["host"]}
            )
        assert moved.status_code == 200, f"{moved.text}\n{scene.log('bob')}"
        second = Kernel(bob, moved.json()["kernel"])  # type: ignore[arg-type]
        assert scene.on(second) == "b", scene.log("bob")
        assert second.run(ASK + TELL).strip().splitlines()[-1] == "b True"
        assert second.run("print('x' in globals())") == "False\n"
        session = bob.api.get(f"api/sessions/{answer.json()['id']}").json()
        assert (session["path"], session["kernel"]["id"]) == ("work.ipynb", second.id)
        (told,) = bob.api.get("gpushare/api/kernels").json()["elsewhere"]
        assert (told["kernel"], told["host"]) == (second.id, "b")
        # Nobody waits on a any more: the kernel that did has ended.
        wait_for(lambda: not bob.status()["queue"], 60, "bob waits nowhere")
    bob.api.delete(f"api/kernels/{second.id}")


def _starts_on_a(scene: PoolHub, person: Person) -> None:
    """Start their server on host a, with a kernel that starts on any host."""
    scene.any_host_kernel(person.name, "--memory=30GiB")
    _ends(scene, person)
    assert scene.started(person, gpus=1, gpu_kind="Simulated GPU (24 GiB)") == "a"


def _ends(scene: PoolHub, person: Person) -> None:
    """Stop their server, if they have one."""
    if _server(scene, person):
        person.stop_server()
        wait_for(lambda: not _server(scene, person), 60, "it ends")


def _hinted(person: Person) -> tuple[str, dict[str, str]] | None:
    mine = (entry for entry in person.status()["queue"] if entry["mine"] and entry["hints"])
    return next(((entry["lease"], entry["hints"][0]) for entry in mine), None)


def test_a_host_out_of_service_is_named_with_the_reason(scene: PoolHub) -> None:
    carol = scene.hub.person("carol")
    scene.verb("drain", "b", "--reason=a new driver")
    answer = scene.hub.api.post("users/carol/server", json={"gpu_memory": "30GiB"})
    assert answer.status_code == 500
    said = answer.json()["message"]
    assert "No host of the pool has what you wish for (1 GPU, 30 GiB, any kind)" in said
    assert "it is out of service: a new driver" in said
    scene.verb("resume", "b")
    assert scene.started(carol, gpu_memory="30GiB") == "b"


# -- by ssh, on b ----------------------------------------------------------------------------------


@pytest.fixture
def on_b(scene: PoolHub) -> Iterator[tuple[Person, int]]:
    """Somebody's server on host b, and its process."""
    alice = scene.hub.person("alice")
    _ends(scene, alice)
    others = _servers(scene)
    answer = scene.hub.api.post("users/alice/server", json={"gpu_memory": "30GiB"})
    assert answer.status_code in (201, 202), f"{answer.text}\n{scene.hub.tail()}"
    alice.start_server()
    (pid,) = _servers(scene) - others
    yield alice, pid
    _ends(scene, alice)
    wait_for(lambda: pid not in _servers(scene), 60, f"it ends on b; log:\n{scene.hub.tail()}")


def test_a_server_outlives_the_hub(scene: PoolHub, on_b: tuple[Person, int]) -> None:
    alice, pid = on_b
    # Through the proxy: its kernel is there, and so are the GPUs it sees.
    kernel = alice.start_kernel()
    assert scene.on(kernel) == "b"
    assert len(alice.status()["gpus"]) == 3
    # Nobody on the host can read its token off a command line.
    told = [line for one in scene.hosts["b"].processes() if (line := _command_line(one))]
    assert [line for line in told if "jupyter" in line]
    token = psutil.Process(pid).environ()["JUPYTERHUB_API_TOKEN"]
    assert not [line for line in told if token in line]
    scene.hub.kill()
    scene.hub.start()
    wait_for(lambda: _server(scene, alice).get("ready"), 60, "the Hub knows it again")
    assert pid in _servers(scene)
    assert kernel.run("print(6 * 7)").strip() == "42"
    wait_for(lambda: scene.connected == {"a", "b"}, 60, "and the pool its hosts")


def test_a_cut_host_keeps_its_server_and_one_that_died_is_noticed(
    scene: PoolHub, on_b: tuple[Person, int]
) -> None:
    alice, pid = on_b
    scene.hosts["b"].cut()
    try:
        wait_for(lambda: "server of alice: b cannot be reached" in scene.hub.tail(200), 60, "asked")
        assert _server(scene, alice)["ready"]
    finally:
        scene.hosts["b"].join()
    assert pid in _servers(scene)
    psutil.Process(pid).kill()
    wait_for(lambda: not _server(scene, alice), 60, "the Hub sees that it is gone")
    # The pool reaches b, and prefers it; the Hub cannot, and takes the next one. The last test.
    for one in scene.hosts["b"].processes():
        if "/sshd_config" in _command_line(one):
            psutil.Process(one).kill()
    carol = scene.hub.person("carol")
    with NodeClient(scene.hosts["a"].outside(NODE), carol.token) as others:
        others.request(gpus=1)
        wait_for(
            lambda: scene.verb("where", "alice")["hosts"][0]["host"] == "b", 60, "b is the first"
        )
        assert scene.started(alice, gpu_memory="20GiB") == "a"


def _server(scene: PoolHub, person: Person) -> dict[str, Any]:
    told = scene.hub.api.get(f"users/{person.name}").json().get("servers", {})
    return dict(told.get("", {}))


def _servers(scene: PoolHub) -> set[int]:
    """The processes of people's servers on b."""
    found = scene.hosts["b"].processes()
    return {pid for pid in found if "-m jupyterhub.singleuser" in _command_line(pid)}


def _command_line(pid: int) -> str:
    """As the process list shows it; some may end while we look."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
