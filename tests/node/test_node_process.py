"""The node manager ends when told to, and trouble of the host's or a lost ledger costs no work."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.jupyter import wait_for
from support.node import GIB, Puppet, RemoteError, RunningNode, needs_root, open_directory, until
from support.nvml import NvmlWorld

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.node.app import place_of_socket
from jupyter_gpushare.node.host.systemd import InheritedSocketWrong
from jupyter_gpushare.protocol.address import SYSTEM_SOCKET
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_hangs_for_ever_does_not_keep_it_from_ending(
    tmp_path: Path, nvml_world: NvmlWorld, sign: signal.Signals
) -> None:
    nvml_world.add_gpu(memory=24 * GIB)
    config = "c.NodeManagerApp.measure_interval = 0.05\n"
    node = RunningNode(tmp_path, simulate="", config=config, environ=nvml_world.environ())
    with node:
        with node.client() as client:
            lease = client.request()["lease"]
        nvml_world.set_slow(3_600_000)
        before = node.status()["node"]["time"]
        until(lambda: node.status()["node"]["time"] > before + 0.5, "some measurements were due")
        node.process.send_signal(sign)
        assert node.wait_dead() == 0
        assert not node.socket.exists()
        nvml_world.set_slow(0)
        node.start()
        assert [x["id"] for x in node.status()["leases"]] == [lease]


OTHER = 12_345  # another OS user


class WithABug(RunningNode):
    """A node manager that runs ``bug``, some lines of Python, before it begins."""

    bug = ""

    def command(self) -> list[str]:
        python, _dash_m, _module, *arguments = super().command()
        main = "from jupyter_gpushare.node.app import main; main()"
        return [python, "-c", f"{self.bug}\n{main}", *arguments]


def test_a_crash_of_ours_ends_the_process_instead_of_leaving_everybody_hanging(
    tmp_path: Path,
) -> None:
    node = WithABug(tmp_path)
    node.bug = "from jupyter_gpushare.policy import core; core.step = lambda *_: 1 / 0"
    said = node.refuses()
    assert "crashed" in said
    assert "ZeroDivisionError" in said


@needs_root
def test_who_cannot_be_told_is_hung_up_on_and_the_others_are_told() -> None:
    """A client that would wait for ever for an answer comes back instead."""
    bug = """
from jupyter_gpushare.node.wire import translate
real = translate.lease_result
def broken(state, lease, key):
    if lease.task.name == "bad":
        raise ZeroDivisionError("a bug")
    return real(state, lease, key)
translate.lease_result = broken
"""
    with open_directory() as place:
        config = "c.Policy.max_tasks_per_gpu = 1\n"
        node = WithABug(place, simulate="1x24GiB", config=config, shared=True)
        node.bug = bug
        with (
            node,
            node.client() as good,
            Puppet(OTHER) as puppet,
            puppet.client(node.socket) as bad,
            puppet.client(node.socket) as same,
        ):
            first = good.request(name="good")["lease"]
            waiting = bad.ask(name="bad", wait=True)
            bad.wait_notice(Notice.QUEUED)
            good.call(Method.RELEASE, lease=first)
            with pytest.raises(ConnectionError):
                bad.wait(waiting)
            assert [x["phase"] for x in good.call(Method.STATUS)["leases"]] == ["held"]
            with pytest.raises(ConnectionError):
                same.request(name="bad")
            assert node.process.poll() is None


def test_a_holder_that_could_not_be_watched_at_first_is_found_dead_later(tmp_path: Path) -> None:
    """The node manager runs out of descriptors in the moment of a grant."""
    with (
        RunningNode(tmp_path, simulate="1x24GiB") as node,
        Puppet() as puppet,
        puppet.client(node.socket) as client,
    ):
        usual = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        taken = 1 + max(int(fd.name) for fd in Path(f"/proc/{node.pid}/fd").iterdir())
        gaps = taken - len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
        with contextlib.ExitStack() as stack:
            for _ in range(gaps):
                stack.enter_context(node.client())
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (taken, usual[1]))
            lease = client.request()["lease"]
            assert client.call(Method.HEARTBEAT, lease=lease)["state"] == "held"
            assert "Too many open files" in node.story()
            puppet.kill9()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, usual)
        over = "the dead holder's lease is over"
        until(lambda: "held" not in [one["phase"] for one in node.status()["leases"]], over)


def test_it_can_be_ended_while_the_driver_keeps_it_from_starting(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    nvml_world.add_gpu(memory=24 * GIB)
    nvml_world.set_slow(3_600_000)
    node = RunningNode(tmp_path, simulate="", environ=nvml_world.environ())
    process = node.launch()
    until(node.ledger.exists, "it got as far as the ledger")
    # It listens to signals before it asks the driver for anything.
    until(lambda: _catches(process.pid, signal.SIGTERM), "it listens to SIGTERM")
    process.terminate()
    assert node.wait_dead() == 0
    node.close()


def _catches(pid: int, sign: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (sign - 1) & 1)


# -- dying at any instant --------------------------------------------------------------


PEOPLE = ("alice", "bob", "root")


class Story:
    """Three people's calls, each retried until it is answered, and what they were told.

    The model is only this: what somebody was told must still be so after the crash. Each time that
    the node manager is started it is to die at the ``point`` that it comes to as the next one of
    ``counts``.
    """

    def __init__(
        self, node: RunningNode, puppets: dict[str, Puppet], point: str, counts: Iterable[int]
    ) -> None:
        self.node, self.puppets = node, puppets
        self.point, self.counts = point, iter(counts)
        self.held: dict[str, dict[str, object]] = {}
        self.quota: dict[str, int] = {}
        self.deaths = 0

    def retry(self, who: str, method: Method, **params: Any) -> Any:
        """As a client does: connect again and say the same until an answer comes."""
        while True:
            try:
                with self.puppets[who].client(self.node.socket, who) as client:
                    return client.call(method, **params)
            except OSError:
                self.node.wait_dead()
                self.deaths += 1
                self.start()

    def start(self) -> None:
        """Start the node manager, again where it dies before it serves."""
        for count in self.counts:
            with contextlib.suppress(AssertionError):
                self.node.start(DIES_AT=f"{self.point}:{count}")
                return
            assert self.node.wait_dead() == -signal.SIGKILL
            self.deaths += 1
        self.node.start()

    def ask(self, who: str, name: str) -> None:
        task = {"name": name, "kind": "process"}
        grant = self.retry(who, Method.REQUEST, task=task, request_id=name, gpus=1)
        again = self.retry(who, Method.REQUEST, task=task, request_id=name, gpus=1)
        assert again == grant, "a retry got another lease"
        self.held[name] = {**grant, "who": who}

    def give_back(self, name: str) -> None:
        lease = self.held.pop(name)
        try:
            self.retry(str(lease["who"]), Method.RELEASE, lease=lease["lease"])
        except RemoteError as error:
            # It was written before the crash, and only the answer was lost.
            assert error.reason is Reason.UNKNOWN_LEASE  # noqa: PT017
            assert self.deaths

    def set_quota(self, who: str, gpus: int) -> None:
        answer = self.retry("root", Method.QUOTA_SET, environment=who, gpus=gpus)
        assert answer["gpus"] == gpus
        self.quota[who] = gpus

    def check(self) -> None:
        document = self.retry("root", Method.STATUS)
        held = {x["id"]: x for x in document["leases"] if x["phase"] == "held"}
        assert set(held) == {lease["lease"] for lease in self.held.values()}
        for lease in self.held.values():
            shown = held[lease["lease"]]
            assert shown["environment"] == lease["who"]
            uuids = [[gpu["uuid"] for gpu in row["gpus"]] for row in (shown, lease)]
            assert uuids[0] == uuids[1]
        # Leases of one environment may share its GPUs; here nobody else's may come in.
        owners = {(gpu["uuid"], x["environment"]) for x in held.values() for gpu in x["gpus"]}
        assert len(owners) == len(dict(owners)), "a GPU was promised to two"
        for who, gpus in self.quota.items():
            listed = self.retry("root", Method.QUOTA_LIST)["quotas"]
            assert {q["environment"]: q["gpus"] for q in listed}[who] == gpus
        events = self.retry("root", Method.HISTORY, limit=1000)["events"]
        granted = [event["lease"] for event in events if event["kind"] == "LeaseGranted"]
        assert len(granted) == len(set(granted)), "a grant was written twice"


#: Later each time, from before it serves; and at each second instant or so of what it is asked.
SOONER_OR_LATER = {"later": range(1, 10), "second": [4] * 8}


@pytest.mark.parametrize("counts", SOONER_OR_LATER)
@pytest.mark.parametrize("point", ["before-append", "after-append", "before-reply"])
def test_what_was_told_is_so_after_every_crash(tmp_path: Path, point: str, counts: str) -> None:
    node = RunningNode(
        tmp_path,
        simulate="3x24GiB",
        config="c.Policy.max_tasks_per_gpu = 1\nc.NodeManagerApp.debug_checks = True\n",
        people=PEOPLE,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(node.close)
        puppets = {name: stack.enter_context(Puppet()) for name in PEOPLE}
        story = Story(node, puppets, point, SOONER_OR_LATER[counts])
        node.start()  # whoever finds the very first ledger half written waits for lost leases
        node.terminate()
        story.start()
        story.ask("alice", "one")
        story.set_quota("bob", 2)
        story.ask("bob", "two")
        story.ask("alice", "three")
        story.check()
        story.give_back("one")
        story.ask("bob", "four")
        story.set_quota("bob", 3)
        story.give_back("two")
        story.ask("alice", "five")
        story.check()
        assert story.deaths >= 3
        node.restart()
        story.check()


def test_a_socket_for_everybody_is_not_in_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else may look, it is of no use to others."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert place_of_socket("", None, shared=True) == SYSTEM_SOCKET
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert place_of_socket("", None, shared=False) != SYSTEM_SOCKET
    with pytest.raises(ValueError, match="other users find the socket: --socket=PATH"):
        place_of_socket("", None, shared=True)
    assert place_of_socket("/srv/course/node.sock", None, shared=True) == "/srv/course/node.sock"


def test_two_places_to_listen_are_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(str(tmp_path / "s"))
        for configured in ("", str(tmp_path / "s")):
            assert place_of_socket(configured, inherited, shared=True) == str(tmp_path / "s")
        with pytest.raises(InheritedSocketWrong, match=r"told to listen on /else.* Take --socket"):
            place_of_socket("/else/where.sock", inherited, shared=False)


STARTER = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(600)  # until the test kills it
"""


def test_it_ends_with_the_one_who_started_it_however_that_ends() -> None:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        socket = str(Path(folder, "s"))
        node = [sys.executable, "-m", "jupyter_gpushare.cli", "node", "--exit-with-parent"]
        node += [f"--socket={socket}", f"--ledger={folder}/l.sqlite", "--simulate=1x8GiB"]
        with subprocess.Popen(
            [sys.executable, "-c", STARTER, *node], stdout=subprocess.PIPE, text=True
        ) as starter:
            ready, path, pid = starter.stdout.readline().split()
            assert (ready, path) == ("ready", socket)
            child = psutil.Process(int(pid))
            os.kill(starter.pid, signal.SIGKILL)
        wait_for(lambda: not child.is_running(), what="the node manager's end")
        # It went as it should: nobody finds a dead socket.
        assert not Path(socket).exists()


# -- a ledger that is lost -------------------------------------------------------------------------

WITH_CAROL = ("alice", "bob", "carol", "root")
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.heartbeat_interval = 0.2\n"
)
#: Longer than a test, and no longer than a few looks.
LONG = CONFIG + "c.Policy.restart_grace = 120.0\nc.Policy.heartbeat_timeout = 60.0\n"
SHORT = CONFIG + "c.Policy.restart_grace = 1.0\nc.Policy.heartbeat_timeout = 1.0\n"
KILLS = 'c.Policy.audit_action = "kill"\nc.Policy.audit_grace = 0.2\n'


def node_with(directory: Path, config: str = LONG, **more: Any) -> RunningNode:
    return RunningNode(directory, config=config, people=WITH_CAROL, **more)


def damage(node: RunningNode) -> None:
    """Stop it, spoil its ledger, start it again."""
    node.terminate()
    node.ledger.write_bytes(b"this was a ledger " * 1000)
    node.start()


def shown(granted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a task presents of the lease that it was granted."""
    return {name: granted[name] for name in ("lease", "secret", "voucher")} | changes


def altered(voucher: str, change: str, to: str) -> str:
    mac, _, text = voucher.partition(".")
    body = base64.urlsafe_b64decode(text).decode()
    assert change in body
    return f"{mac}.{base64.urlsafe_b64encode(body.replace(change, to).encode()).decode()}"


def test_work_goes_on_and_only_who_has_no_lease_is_killed(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    first, second = (nvml_world.add_gpu(memory=24 * GIB, reserved=0) for _ in range(2))
    environ = nvml_world.environ()
    with (
        node_with(tmp_path, LONG + KILLS, simulate="", environ=environ) as node,
        Puppet() as a,
        Puppet() as another,
        Puppet() as thief,
    ):
        granted = a.client(node.socket, "alice").request()
        (gpu,) = granted["gpus"]
        nvml_world.add_process(gpu["uuid"], a.pid, 20 * GIB)
        free = second if gpu["uuid"] == first else first
        damage(node)
        nvml_world.add_process(free, thief.pid, 2 * GIB)

        # Nobody is killed, nothing is granted, and an administrator reads why.
        assert "was set aside as" in node.story()
        since = until(lambda: squatters(node) == {a.pid, thief.pid} and now(node), "both are seen")
        until(lambda: now(node) - since > 1.0, "the audit has looked often")
        assert (a.process.poll(), thief.process.poll()) == (None, None)
        assert "The ledger is new" in node.status()["node"]["problem"]
        bob = another.client(node.socket, "bob")
        bob.ask()
        queued = bob.wait_notice(Notice.QUEUED)
        assert "ledger" in queued["message"]
        bob.call(Method.RELEASE, lease=queued["lease"])

        # Not who has another's voucher, nor another process of the same person, nor a forger.
        alice, voucher = a.client(node.socket, "alice"), granted["voucher"]
        for stranger in (bob, another.client(node.socket, "alice")):
            assert "no such lease" in stranger.refused(Method.ATTACH, **shown(granted)).message
        for wrong in (
            {"voucher": altered(voucher, "alice", "alicf")},
            {"voucher": altered(voucher, gpu["uuid"], free)},
            *({"voucher": None}, {"voucher": "x"}, {"secret": "0" * 64}),
        ):
            refused = alice.refused(Method.ATTACH, **shown(granted, **wrong))
            assert refused.reason is Reason.UNKNOWN_LEASE
        again = alice.call(Method.ATTACH, **shown(granted))
        for part in ("lease", "secret", "gpus"):
            assert again[part] == granted[part]
        (back,) = [one for one in node.status()["leases"] if one["id"] == granted["lease"]]
        assert (back["environment"], back["phase"], back["name"]) == ("alice", "held", "test")

        # Only now the time for it passes quickly.
        node.terminate()
        node.config.write_text(SHORT + KILLS)
        node.start()
        assert thief.process.wait(60) == -signal.SIGKILL
        nvml_world.remove_process(free, thief.pid)
        until(lambda: unleased(node, free) == 0, "what it had is free")
        assert another.client(node.socket, "bob").request()["gpus"][0]["uuid"] == free
        assert a.process.poll() is None
        assert (unleased(node, gpu["uuid"]), squatters(node)) == (0, set())


def squatters(node: RunningNode) -> set[int]:
    gpus = node.status()["gpus"]
    return {one["pid"] for gpu in gpus for one in gpu["squatters"] if one["kind"] == "squatter"}


def unleased(node: RunningNode, uuid: str) -> int:
    return sum(gpu["unleased"] for gpu in node.status()["gpus"] if gpu["uuid"] == uuid)


def now(node: RunningNode) -> float:
    return float(node.status()["node"]["time"])


def test_the_client_has_its_lease_back_by_itself(tmp_path: Path) -> None:
    with node_with(tmp_path, simulate="1x24GiB") as node:
        lost = threading.Event()
        session = Session(str(node.socket), lambda: "alice", 5.0, on_lost=lambda *_: lost.set())
        session.open()
        try:
            task = {"name": "train.py", "kind": "process"}
            granted = session.request(
                {"request_id": "r", "task": task}, lambda notice: None, lambda: None, 10.0
            )
            damage(node)

            (back,) = until(lambda: node.status()["leases"], "the lease is back")
            assert (back["id"], back["phase"]) == (granted["lease"], "held")
            assert not lost.is_set()
            assert session.call(Method.HEARTBEAT, lease=granted["lease"])["state"] == "held"
        finally:
            session.close()
