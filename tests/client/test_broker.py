"""A process has one lease, as it asked, and no trouble of ours reaches its user's code.

Dealings with a real node manager, seen from inside the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.node import RunningNode, until
from support.node_fixtures import running_node
from support.scripted_node import LEASE, ScriptedNode, Visitor
from support.scripted_process import grants, process

from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.api import make_ask
from jupyter_gpushare.client.errors import GpuShareError, LeaseLost, NodeUnavailable, QuotaExceeded
from jupyter_gpushare.client.requests import automatic, broker as broker_module, getting
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session import lease as lease_module
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.session import Link
from jupyter_gpushare.client.session.visible import Visible
from jupyter_gpushare.client.words import display
from jupyter_gpushare.client.words.display import TerminalDisplay
from jupyter_gpushare.client.words.grant import Grant, read_grant
from jupyter_gpushare.client.words.settings import Ask, Settings
from jupyter_gpushare.protocol.address import embedded_socket, host_id
from jupyter_gpushare.protocol.messages import Method, Notice, Notification

GIB = 2**30
VISIBLE = "CUDA_VISIBLE_DEVICES"


class World:
    """A node manager, one process's environment, and what its user reads."""

    def __init__(self, socket: Path) -> None:
        self.environ = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(socket)}
        self.said: list[str] = []
        self.brokers: list[Broker] = []

    def broker(self, traits: Callable[[], Settings] = Settings, **environ: str) -> Broker:
        self.environ.update(environ)
        unseen = partial(TerminalDisplay, None)
        made = Broker(self.environ, traits, make_display=unseen, say=self.said.append)
        self.brokers.append(made)
        return made

    def imports(self, **environ: str) -> Broker:
        """One in whose process the framework is imported."""
        made = self.broker(**environ)
        made.automatic.before_framework("frame")
        made.automatic.after_framework("frame", FRAME)
        return made


shared_node = running_node()


@pytest.fixture
def node(shared_node: RunningNode) -> Iterator[RunningNode]:
    yield shared_node
    until(lambda: not held(shared_node) and all_is_free(shared_node), "all GPUs are free again")


@pytest.fixture
def world(node: RunningNode) -> Iterator[World]:
    made = World(node.socket)
    yield made
    for one in made.brokers:
        one.close()


def held(node: RunningNode) -> list[dict[str, Any]]:
    return [lease for lease in node.status()["leases"] if lease["phase"] == "held"]


def all_is_free(node: RunningNode) -> bool:
    """Nothing drains any more, so that the next lease is put where the first one was."""
    return all(gpu["free"] == gpu["memory"] for gpu in node.status()["gpus"])


class Framework:
    """An adapter of another package; it writes down what it is told."""

    name = "Frame"

    def __init__(self, catches_first_use: bool = False) -> None:
        self.catches_first_use = catches_first_use
        self.told: list[tuple[str, Grant | None]] = []
        self.acquire: Callable[[], Grant | None] = lambda: None
        self.expected: Callable[[], int] = lambda: -1

    def before(self, grant: Grant | None) -> None:
        self.told.append(("before", grant))

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        self.told.append(("after", grant))

    def first_use(
        self,
        module: ModuleType,
        acquire: Callable[[], Grant | None],
        expected: Callable[[], int],
    ) -> None:
        self.acquire, self.expected = acquire, expected


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Framework:
    made = Framework()
    monkeypatch.setattr(registry, "find", lambda module: made if module == "frame" else None)
    return made


FRAME = ModuleType("frame")


# -- a lease -----------------------------------------------------------------------------


def test_request_and_release(world: World, node: RunningNode) -> None:
    broker = world.broker()
    grant = broker.request(Ask(2, 4 * GIB, "batch"))
    (lease,) = held(node)
    assert (lease["id"], lease["priority_class"]) == (grant.lease, "batch")
    assert world.environ[VISIBLE] == grant.visible_devices
    assert world.environ["JUPYTER_GPUSHARE_LEASE"] == grant.lease
    assert world.environ["JUPYTER_GPUSHARE_SECRET"]
    assert [gpu.memory for gpu in grant.gpus] == [4 * GIB] * 2
    assert [gpu.capacity for gpu in grant.gpus] == [24 * GIB] * 2
    assert broker.release() == "ended"
    assert held(node) == []
    assert world.environ[VISIBLE] == ""
    assert "JUPYTER_GPUSHARE_LEASE" not in world.environ
    assert "JUPYTER_GPUSHARE_SECRET" not in world.environ
    assert not Visible(dict(world.environ)).hidden_by_user, "a child asks for itself"
    assert broker.release() is None


def test_the_parts_of_its_memory_are_named_and_reserved_as_a_sum(
    world: World, node: RunningNode
) -> None:
    broker = world.broker()
    ask = Ask(persistent=4 * GIB, temporary=8 * GIB)
    first = broker.request(ask)
    assert [gpu.memory for gpu in first.gpus] == [12 * GIB + GIB // 2], "with CUDA's own"
    (lease,) = held(node)
    (part,) = lease["gpus"]
    assert (part["persistent"], part["temporary"]) == (4 * GIB, 8 * GIB), "known from the grant on"
    assert broker.request(ask) is first
    assert broker.request(Ask(1)) is first, "what holds no other wish is content"
    second = broker.request(Ask(persistent=GIB, temporary=GIB))
    assert second.lease != first.lease
    with pytest.raises(ValueError, match="both the persistent and the temporary"):
        make_ask(persistent="1GiB")


def test_all_of_the_quota_is_still_that_after_it_was_parked(
    world: World, node: RunningNode
) -> None:
    broker = world.broker(JUPYTER_GPUSHARE_VISIBLE_DEVICES="indices")
    first = broker.request(Ask("quota"))
    assert world.environ[VISIBLE] == "0,1", "named by number, as was asked"
    assert world.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    broker.park()
    broker.resume()
    assert broker.request(Ask("quota")).lease == first.lease
    broker.release()
    until(lambda: all_is_free(node), "the memory is free again")


def test_gpus_cannot_be_exchanged_once_cuda_runs(
    world: World, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = world.broker()
    first = broker.request(Ask(1))
    for module in (broker_module, getting, lease_module):
        monkeypatch.setattr(module, "cuda_started", lambda: True)
    with pytest.raises(GpuShareError, match="Restart the kernel"):
        broker.request(Ask(2))
    assert broker.grant is first
    assert world.said == []
    broker.release()
    until(lambda: all_is_free(node), "the memory is free again")
    broker.request(Ask(1))
    assert world.said == [], "the same GPU again: CUDA in this process can go on"
    broker.release()
    broker.request(Ask(2))
    assert len(world.said) == 1
    assert "CUDA was started in this process before" in world.said[0]


def test_a_refusal_changes_nothing(world: World, node: RunningNode) -> None:
    broker = world.broker()
    with pytest.raises(QuotaExceeded) as caught:
        broker.request(Ask(5))
    assert caught.value.details["asked_gpus"] == 5
    assert caught.value._render_traceback_() == [f"QuotaExceeded: {caught.value}"]
    assert VISIBLE not in world.environ
    assert broker.state is OwnState.FREE
    first = broker.request(Ask(1))
    for ask in (Ask(3), Ask(2, 99 * GIB)):
        with pytest.raises(QuotaExceeded):
            broker.request(ask)
    assert broker.grant is first
    assert [lease["id"] for lease in held(node)] == [first.lease]


def test_what_a_newer_node_manager_tells_people_is_said() -> None:
    said: list[str] = []
    broker = Broker({}, say=said.append)
    broker._noticed(Notification(None, "tidings", {"message": "A fan is broken."}))
    broker._noticed(Notification(None, "tidings", {"message": "It is bob's.", "lease": "another"}))
    assert said == ["A fan is broken."]


def test_a_lease_that_ends_before_its_grant_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is told right behind the grant, and heard before anybody knows whose it is."""

    def script(visitor: Visitor) -> None:
        grants(visitor)
        visitor.notify(Notice.REVOKED, {"lease": LEASE, "reason": "revoked", "message": "Enough."})
        visitor.notify(Notice.BUDGET, {"level": "warned", "message": "Nearly spent."})
        visitor.grant(visitor.expect(Method.REQUEST), "another")
        visitor.live()

    def slowly(result: Mapping[str, Any]) -> Grant:
        until(lambda: here.said, "the lease's end was heard, too")
        return read_grant(result)

    monkeypatch.setattr(getting, "read_grant", slowly)
    with process(script) as here:
        with pytest.raises(LeaseLost, match="as soon as it was granted"):
            here.broker.request(Ask())
        assert here.broker.grant is None
        assert here.environ[VISIBLE] == ""
        assert "JUPYTER_GPUSHARE_LEASE" not in here.environ
        assert here.broker.request(Ask()).lease == "another"


def test_idle_before_the_grant_is_idle_after_it(world: World, node: RunningNode) -> None:
    broker = world.broker()
    broker.set_activity(False)
    broker.request(Ask())
    until(lambda: held(node)[0]["activity"] == "idle", "the lease shows as idle")
    broker.set_activity(True)
    until(lambda: held(node)[0]["activity"] == "busy", "the lease shows as busy")


def test_a_forked_child_does_not_wait_for_its_parents_turn(world: World, node: RunningNode) -> None:
    broker = world.broker()
    broker.request(Ask())
    broker.turns._unreachable = 0.5
    broker.turns.recalled({})
    session = broker.line.session
    assert session is not None
    child = os.fork()
    if not child:
        said = 1
        try:
            broker.abandon_in_child(is_member=False)
            broker.turns.gate()
            said = len(world.said) if session.link is Link.CLOSED else 2
        finally:
            os._exit(said)
    said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert said != 2, "the parent's line is not the child's"
    assert said == 0, "nothing was waited for"


def test_revoked(world: World, node: RunningNode, framework: Framework) -> None:
    broker = world.broker()
    grant = broker.request(Ask())
    with node.client() as admin:
        admin.call(Method.LEASE_REVOKE, lease=grant.lease, reason="the card burns")
    until(lambda: world.said, "the user is told")
    assert "the card burns. Starting it again asks for a new one" in world.said[0]
    assert broker.grant is None
    assert broker.state is OwnState.LOST
    assert "the card burns" in str(broker.own.lost)
    assert broker.release() is None, "nothing is left to give back"
    assert "JUPYTER_GPUSHARE_LEASE" not in world.environ
    assert world.environ[VISIBLE] == ""
    broker.automatic.before_framework("frame")
    assert broker.state is OwnState.HELD
    assert broker.own.lost is None


# -- settings ----------------------------------------------------------------------------


def test_settings_are_read_when_they_are_needed(world: World, node: RunningNode) -> None:
    traits = [Settings(Ask(1, 2 * GIB))]
    broker = world.broker(lambda: traits[0], JUPYTER_GPUSHARE_GPUS="lots")
    assert broker.preferences.ask() == Ask(1, 2 * GIB)
    assert len(world.said) == 1
    assert broker.preferences.ask() == Ask(1, 2 * GIB)
    assert len(world.said) == 1, "a complaint is made once"
    world.environ["JUPYTER_GPUSHARE_GPUS"] = "2"
    traits[0] = Settings(Ask(1, 3 * GIB))
    assert broker.preferences.ask() == Ask(2, 3 * GIB)
    broker.preferences.set_ask(Ask(memory=GIB))
    assert broker.preferences.ask() == Ask(2, GIB), "what it asks by itself"
    grant = broker.request(broker.preferences.repeated(Ask()))
    assert [gpu.memory for gpu in grant.gpus] == [GIB, GIB]


# -- around a framework ------------------------------------------------------------------


def test_at_import(
    world: World, node: RunningNode, framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(display, "note", shown.append)
    broker = world.imports(**{VISIBLE: "1"})
    assert [one.partition(" (")[0] for one in shown] == ["GPU 0"], "it says which GPU"
    assert framework.told == [("before", broker.grant), ("after", broker.grant)]
    assert broker.grant is not None
    assert world.environ[VISIBLE] == broker.grant.visible_devices
    (said,) = world.said
    assert "CUDA_VISIBLE_DEVICES was '1'" in said
    before = broker.grant
    broker.automatic.before_framework("frame")
    assert broker.grant is before, "a second framework has the same lease"
    assert len(held(node)) == 1
    broker.close()
    world.imports(JUPYTER_GPUSHARE_SHOW_GRANT="no")
    assert len(shown) == 1, "nor where a person does not wish to hear it"


def test_steps_are_gated_from_the_import_on(
    world: World,
    node: RunningNode,
    framework: Framework,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched: list[str] = []
    forwards = SimpleNamespace(
        watch=lambda: watched.append("watch"), cell_begins=lambda: watched.append("cell")
    )
    monkeypatch.setattr(
        "jupyter_gpushare.client.adapters.parkers.forwards.ForwardGate", lambda *_, **__: forwards
    )
    meter = SimpleNamespace(gate=None, on_step=None, hindrance=lambda: None)
    framework.meter = meter  # type: ignore[attr-defined]
    broker = world.broker()
    broker.turns.gate = lambda: watched.append("gate")  # type: ignore[method-assign]
    broker.automatic.before_framework("frame")
    broker.automatic.after_framework("frame", FRAME)
    assert meter.on_step == broker.turns.report
    broker.cells.before_cell()
    assert watched == ["watch", "cell"], "modules' calls, too"
    broker.stopping.step_ended = lambda: watched.append("may stop")  # type: ignore[method-assign]
    meter.gate()
    assert watched[-2:] == ["may stop", "gate"]


def test_at_first_use(world: World, node: RunningNode, framework: Framework) -> None:
    framework.catches_first_use = True
    broker = world.broker(JUPYTER_GPUSHARE_ACQUIRE="first-use", JUPYTER_GPUSHARE_GPUS="2")
    broker.automatic.before_framework("frame")
    assert world.environ[VISIBLE] == ""
    broker.automatic.after_framework("frame", FRAME)
    assert framework.told == [("before", None)]
    assert held(node) == []
    assert framework.expected() == 2
    grant = framework.acquire()
    assert grant is not None
    assert world.environ[VISIBLE] == grant.visible_devices
    assert framework.told[-1] == ("after", grant)
    assert framework.expected() == 2
    framework.cuda_started = lambda module: False  # type: ignore[attr-defined]
    broker.release()
    broker.cells.before_use(lambda frameworks: pytest.fail("nobody needs to look"))
    assert held(node) == [], "it is not asked for at each cell"


def test_first_use_beyond_the_quota(world: World, framework: Framework) -> None:
    framework.catches_first_use = True
    world.imports(JUPYTER_GPUSHARE_ACQUIRE="first-use", JUPYTER_GPUSHARE_GPUS="3")
    assert framework.expected() == 0
    assert framework.acquire() is None
    assert "quota" in world.said[0]
    assert framework.acquire() is None
    assert len(world.said) == 1


def test_first_use_where_nobody_answers(tmp_path: Path, framework: Framework) -> None:
    framework.catches_first_use = True
    world = World(tmp_path / "no.sock")
    world.imports(JUPYTER_GPUSHARE_ACQUIRE="first-use", JUPYTER_GPUSHARE_ANSWER_TIMEOUT="0.1")
    assert framework.expected() == 0
    assert framework.acquire() is None
    assert world.environ[VISIBLE] == ""


def test_an_error_of_our_own_does_not_reach_the_import(
    world: World, framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(environ: Mapping[str, str]) -> dict[str, Any]:
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr(getting, "describe_task", broken)
    broker = world.broker()
    broker.automatic.before_framework("frame")
    assert framework.told == [("before", None)]
    assert world.environ[VISIBLE] == "", "without a lease no GPU is taken"
    assert "ZeroDivisionError: oh no" in world.said[0]


@pytest.mark.parametrize("says", [{"JUPYTER_GPUSHARE_GPUS": "0"}, {VISIBLE: ""}])
def test_no_gpus_on_purpose(
    world: World, node: RunningNode, framework: Framework, says: dict[str, str]
) -> None:
    broker = world.imports(**says)
    broker.cells.before_use(lambda frameworks: pytest.fail("nobody needs to look"))
    assert world.environ[VISIBLE] == ""
    assert held(node) == []
    assert world.said == []


def test_use_after_a_release_where_cuda_runs_on(
    world: World, node: RunningNode, framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework.cuda_started = lambda module: True  # type: ignore[attr-defined]
    broker = world.imports()
    for module in (automatic, broker_module, getting, lease_module):
        monkeypatch.setattr(module, "cuda_started", lambda: True)
    broker.release()
    broker.cells.before_use(lambda frameworks: None)
    assert world.said == []
    for _ in range(2):
        broker.cells.before_use(lambda frameworks: frameworks[0])
    assert held(node) == []
    assert broker.cells.barred is None, "the cell runs"
    (said,) = world.said
    assert "This cell uses frame without a lease" in said
    assert "`%gpushare request`" in said
    until(lambda: all_is_free(node), "the memory is free again")
    broker.request(Ask())
    broker.release()
    broker.cells.before_use(lambda frameworks: frameworks[0])
    assert len(world.said) == 2, "once a lease"


def test_after_a_release_the_first_use_asks(
    world: World, node: RunningNode, framework: Framework
) -> None:
    framework.catches_first_use = True
    framework.cuda_started = lambda module: False  # type: ignore[attr-defined]
    broker = world.imports()
    assert framework.expected() == -1, "it has its lease from the import on"
    broker.release()
    assert framework.expected() == 1
    grant = framework.acquire()
    assert grant is broker.grant
    assert [lease["id"] for lease in held(node)] == [broker.lease]


def test_trying_again_after_a_fallback(
    world: World, node: RunningNode, framework: Framework
) -> None:
    broker = world.imports(JUPYTER_GPUSHARE_GPUS="3")
    assert framework.told == [("before", None), ("after", None)]
    assert broker.getting.ensure("import another") is None
    assert len(world.said) == 1, "a second framework is no second warning"
    grant = broker.request(Ask(1))
    assert framework.told[-1] == ("after", grant)
    assert world.environ[VISIBLE] == grant.visible_devices


def test_a_broken_adapter_of_another_package(
    world: World, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(module: str) -> None:
        raise ImportError("no such thing")

    monkeypatch.setattr(registry, "find", find)
    world.imports()
    assert "no such thing" in world.said[0]


# -- nobody there ------------------------------------------------------------------------


def test_inert_without_a_socket(tmp_path: Path, framework: Framework) -> None:
    environ = {"JUPYTER_RUNTIME_DIR": os.fspath(tmp_path)}
    broker = Broker(environ)
    broker.automatic.before_framework("frame")
    broker.automatic.after_framework("frame", FRAME)
    assert framework.told == []
    assert environ == {"JUPYTER_RUNTIME_DIR": os.fspath(tmp_path)}
    with pytest.raises(NodeUnavailable, match="No GPU node manager is set up"):
        broker.request(Ask())


def test_a_socket_left_behind(framework: Framework) -> None:
    with ScriptedNode() as scripted:
        scripted.stop()
        runtime = scripted.socket.parent
        os.rename(scripted.socket, embedded_socket(str(runtime), host_id({})))
        environ = {
            "JUPYTER_RUNTIME_DIR": os.fspath(runtime),
            "JUPYTER_GPUSHARE_ANSWER_TIMEOUT": "0.1",
        }
        said: list[str] = []
        broker = Broker(environ, say=said.append)
        broker.automatic.before_framework("frame")
        assert VISIBLE not in environ
        assert not broker.line.configured
        with pytest.raises(NodeUnavailable):
            broker.request(Ask())
        assert said == []


def test_a_child_goes_on_with_its_parents_gpus(tmp_path: Path, framework: Framework) -> None:
    world = World(tmp_path / "no.sock")
    world.environ |= {VISIBLE: "GPU-1", "JUPYTER_GPUSHARE_LEASE": "l"}
    world.imports(JUPYTER_GPUSHARE_SECRET="s", JUPYTER_GPUSHARE_ANSWER_TIMEOUT="0.1")
    assert (world.environ[VISIBLE], world.said) == ("GPU-1", [])


# -- nonsense ----------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "lease": "l",
    "gpus": [{"uuid": "GPU-1", "index": 0, "name": "A card", "memory": 1, "capacity": 2}],
}
JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none())


@given(
    st.dictionaries(st.sampled_from(["lease", "gpus"]), JUNK)
    | st.fixed_dictionaries(
        {
            "lease": st.text(),
            "gpus": st.lists(
                JUNK
                | st.dictionaries(
                    st.sampled_from(["uuid", "index", "name", "memory", "capacity"]), JUNK
                )
            ),
        }
    )
)
def test_a_grant_that_makes_no_sense(result: dict[str, Any]) -> None:
    try:
        grant = read_grant(result)
    except NodeUnavailable:
        return
    assert grant.lease
    for gpu in grant.gpus:
        assert gpu.memory > 0
        assert "," not in gpu.uuid


@pytest.mark.parametrize("uuid", ["GPU-1,GPU-2", "", "a\0b", "a b", "GPU-1\n", None, 7])
def test_a_uuid_that_is_none(uuid: Any) -> None:
    assert read_grant(GOOD).visible_devices == "GPU-1"
    with pytest.raises(NodeUnavailable):
        read_grant({**GOOD, "gpus": [{**GOOD["gpus"][0], "uuid": uuid}]})
