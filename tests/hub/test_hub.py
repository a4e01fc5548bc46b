"""Each of many people on one host has their group's quota, and touches nobody's lease.

Without the Hub those who are known go on.

A real JupyterHub, its real proxy, servers, kernels and node manager. Where root runs it, alice's
servers are another OS user's; bob's run as the Hub's own, who may do more, in namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.hub import OS_USERS, Person, RunningHub, needs_hub, why_not, xsrf_of
from support.jupyter import Kernel, wait_for
from support.node import GIB, NodeClient

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method

#: A kernel and its lease.
Held = tuple[Kernel, dict[str, Any]]
#: Light clients of these tests give no signs of life.
QUICK = ["--Hub.believed=1", "--Hub.refresh=1", "--Policy.heartbeat_timeout=600"]
pytestmark = needs_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    apart = not why_not(apart=True)
    with RunningHub.make(apart=apart, external=True, node_arguments=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def people(hub: RunningHub) -> dict[str, Person]:
    """Everybody; alice and bob have a server each."""
    made = {name: hub.person(name) for name in OS_USERS}
    with ThreadPoolExecutor() as both:
        list(both.map(Person.start_server, (made["alice"], made["bob"])))
    return made


@pytest.fixture
def alice(people: dict[str, Person], held: Held) -> Person:
    """She has what is ``held``."""
    people["alice"].status()
    return people["alice"]


@pytest.fixture
def bob(people: dict[str, Person]) -> Iterator[Person]:
    person = people["bob"]
    person.status()
    yield person
    for kernel in person.api.get("api/kernels").json():
        person.api.delete(f"api/kernels/{kernel['id']}")
    wait_for(lambda: not mine(person), what=f"{person.name}'s leases to end")


@pytest.fixture
def carol(hub: RunningHub, people: dict[str, Person]) -> Iterator[NodeClient]:
    """The administrator; as a server of hers would ask."""
    with NodeClient(hub.socket, people["carol"].token) as client:
        yield client


def mine(person: Person) -> list[dict[str, Any]]:
    """Their own leases."""
    leases = person.status()["leases"]
    return [lease for lease in leases if lease.get("environment") == person.name]


@pytest.fixture(scope="module")
def held(people: dict[str, Person]) -> Held:
    """A kernel of alice's that imported torch, and its lease; no test ends it."""
    kernel = people["alice"].start_kernel()
    gpus = kernel.run("import torch, os; print(os.environ['CUDA_VISIBLE_DEVICES'])").strip()
    assert gpus.startswith("GPU-")
    (lease,) = mine(people["alice"])
    return kernel, lease


def test_a_server_has_the_pages_for_its_owner(
    hub: RunningHub, alice: Person, bob: Person, carol: NodeClient
) -> None:
    """A server of the Hub's has XSRF tokens of its own kind."""
    kernel = bob.start_kernel()
    kernel.run("%gpushare request")
    (lease,) = mine(bob)
    with closing(bob.browser()) as browser, closing(alice.browser()) as other:
        address = f"{bob.url}gpushare/"
        assert other.get(address).status_code == 403
        page = browser.get(address)
        assert page.status_code == 200
        assert lease["id"] in page.text
        assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
        assert browser.get(f"{address}admin").status_code == 403
        form = {"lease": lease["id"]}
        assert browser.post(f"{address}release", data=form).status_code == 403
        assert mine(bob)
        done = browser.post(f"{address}release", data={**form, "_xsrf": xsrf_of(page)})
        assert "The GPU is released." in done.text
    assert not mine(bob)


def test_everybody_has_the_quota_of_their_group(
    hub: RunningHub, alice: Person, bob: Person, carol: NodeClient, held: Held
) -> None:
    for student in (alice, bob):
        quota = student.status()["quota"]
        assert (quota["gpus"], quota["memory"], quota["source"]) == (1, 8 * GIB, "group")
    statuses = [alice.status(), bob.status(), carol.call(Method.STATUS)]
    assert statuses[-1]["quota"]["gpus"] == 2
    assert [status["admin"] for status in statuses] == [False, False, True]
    assert {status["environment"] for status in statuses} == {"alice", "bob", "carol"}
    kernel, lease = held
    assert lease["gpus"][0]["memory"] == 8 * GIB
    # A different task of hers shares her one GPU; two are beyond her quota.
    said = kernel.run(
        "import subprocess\n"
        "asking = ['jupyter', 'gpushare', 'run', '--gpus', '2', 'true']\n"
        "print(subprocess.run(asking, capture_output=True, text=True).stderr)"
    )
    assert "quota" in said


# -- nobody reaches past their own -------------------------------------------------------------


def test_what_a_notebook_changes_in_its_environment_makes_it_nobody_else(
    hub: RunningHub, alice: Person, bob: Person
) -> None:
    kernel = bob.start_kernel()
    who = (
        "import subprocess, sys, os\n"
        "def told(**changes):\n"
        "    run = subprocess.run([sys.executable, '-m', 'jupyter_gpushare.cli', 'status',"
        " '--json'], env={**os.environ, **changes}, capture_output=True, text=True)\n"
        "    import json\n"
        "    try:\n"
        "        return json.loads(run.stdout).get('environment') or run.stdout + run.stderr\n"
        "    except ValueError:\n"
        "        return run.stdout + run.stderr\n"
    )
    kernel.run(who)
    for changes in (
        "",
        "JUPYTERHUB_USER='alice', USER='alice', LOGNAME='alice', HOME='/tmp'",
        "JUPYTERHUB_SERVICE_PREFIX='/user/alice/', JUPYTERHUB_SERVER_NAME='gpu'",
    ):
        assert kernel.run(f"print(told({changes}))").strip() == "bob", changes
    for changes in (
        "JUPYTERHUB_API_TOKEN='0' * 32",
        "JUPYTER_GPUSHARE_IDENTITY=''",
        "JUPYTER_GPUSHARE_TOKEN='alice'",
    ):
        said = kernel.run(f"print(told({changes}))")
        assert "alice" not in said.replace("'alice'", "")
        assert "token" in said, changes


def test_without_the_hub_those_who_are_known_go_on(
    hub: RunningHub, people: dict[str, Person], held: Held
) -> None:
    """The last one: it ends alice's server."""
    alice, carol = people["alice"], people["carol"]
    bob = hub.person("bob")  # with a token that was never shown
    kernel, lease = held
    kernel.run("x = 1")
    assert hub.knows(alice.token) == "alice"
    before = hub.leases(carol.token)
    assert before == {lease["id"]: "alice"}

    hub.kill()
    # Her notebook does not notice, and a new task of hers gets a GPU: she is known.
    assert kernel.run("print(x + 1)").strip() == "2"
    asked = kernel.run(
        "import subprocess\n"
        "run = ['jupyter', 'gpushare', 'run', 'echo', '7']\n"
        "print(subprocess.run(run, capture_output=True, text=True))"
    )
    assert "returncode=0" in asked
    assert "stdout='7" in asked
    # Who was never seen is nobody while nobody can be asked, and hears why.
    with pytest.raises(RemoteError, match="JupyterHub cannot be asked"):
        NodeClient(hub.socket, bob.token)
    assert hub.leases(carol.token) == before
    # A node manager that starts meanwhile knows her too, and carol as anybody.
    hub.node.terminate()
    hub.node.wait()
    hub.start_node()
    assert hub.knows(alice.token) == "alice"
    assert hub.knows(bob.token) is None
    assert set(hub.leases(carol.token).values()) == {None}
    assert kernel.run("print(x + 1)").strip() == "2"

    hub.start()
    wait_for(lambda: hub.knows(bob.token) == "bob", 30, "bob to be known")
    assert hub.leases(carol.token) == before
    assert kernel.run("print(x + 2)").strip() == "3"
    alice.stop_server()
    wait_for(lambda: not hub.leases(carol.token), what="all leases to end with the server")
