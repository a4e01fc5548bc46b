"""A command under ``jupyter gpushare run`` has its GPUs, and behaves as it does without us.

Real commands, real signals, a real node manager.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.livenode import CLI, LiveNode, let_go, started, until
from support.node import NodeClient, token_file

from jupyter_gpushare.protocol.messages import Method

GIB = 2**30
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def leases(node: LiveNode) -> list[dict[str, Any]]:
    return list(node.json("leases")["leases"])


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[LiveNode]:
    """One GPU, quick heartbeats, three people known by tokens; for tests that wait or kill it.

    On a busy machine a process may stand still for seconds, so the time-out is long.
    """
    people = token_file(tmp_path, "alice", "bob", "carol", admin="alice")
    quick = ("--Policy.heartbeat_interval=0.2", "--Policy.heartbeat_timeout=600")
    with LiveNode(tmp_path, "1x24GiB", people, *quick) as node:
        node.environ.update(person("alice"))
        yield node


def person(name: str) -> dict[str, str]:
    return {"JUPYTER_GPUSHARE_TOKEN": name}


def waits(node: LiveNode, who: str) -> subprocess.Popen[str]:
    """A run that lasts until its input ends, and waits."""
    process = node.begin(environ=person(who))
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "Waiting for GPUs" in line, line
    return process


# -- what the command sees -------------------------------------------------------------------


def test_the_command_gets_its_gpus_and_its_lease(node: LiveNode) -> None:
    done = node.cli("run", "--gpus", "2", "--", sys.executable, "-S", "-c", SHOW)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    seen = json.loads(done.stdout)
    uuids = [gpu["uuid"] for gpu in node.json("status")["gpus"]]
    assert seen["CUDA_VISIBLE_DEVICES"].split(",") == uuids
    assert seen["JUPYTER_GPUSHARE_SOCKET"] == str(node.socket)
    assert len(seen["JUPYTER_GPUSHARE_LEASE"]) == 32
    assert seen["JUPYTER_GPUSHARE_SECRET"]
    by = "--visible-devices=indices"
    done = node.cli("run", "--gpus", "2", by, "--", sys.executable, "-S", "-c", SHOW)
    seen = json.loads(done.stdout)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")


def granted(node: LiveNode, *options: str, **how: Any) -> dict[str, Any]:
    """The lease of a run with these options."""
    process = node.hold(*options, **how)
    (lease,) = leases(node)
    let_go(process)
    assert process.returncode == 0
    return lease


def test_options_go_before_variables(node: LiveNode) -> None:
    variables = {"JUPYTER_GPUSHARE_GPUS": "2", "JUPYTER_GPUSHARE_MEMORY": "4GiB"}
    lease = granted(node, environ=variables)
    assert [gpu["memory"] for gpu in lease["gpus"]] == [4 * GIB, 4 * GIB]
    told = ("--gpus=1", "--memory", "8GiB", "--class", "batch")
    lease = granted(node, *told, environ=variables)
    assert [gpu["memory"] for gpu in lease["gpus"]] == [8 * GIB]
    assert lease["priority_class"] == "batch"
    assert lease["kind"] == "process"
    assert lease["name"] == "sh"
    by_variable = {"JUPYTER_GPUSHARE_GPUS": "quota"}
    for lease in (granted(node, "--gpus", "quota"), granted(node, environ=by_variable)):
        assert len(lease["gpus"]) == 2, "the quota is all of the node"
    for variable in ("GPUS", "MEMORY", "CLASS", "WAIT_TIMEOUT"):
        name = f"JUPYTER_GPUSHARE_{variable}"
        done = node.here("run", "true", environ={name: "plenty"})  # so none is started
        assert done.returncode == 2
        assert name in done.stderr


def test_the_command_starts_with_ordinary_signals(node: LiveNode) -> None:
    done = node.cli("run", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    masks = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert int(masks["SigBlk"], 16) == 0
    assert not int(masks["SigIgn"], 16) & 1 << (signal.SIGPIPE - 1)


def test_the_commands_options_are_its_own(node: LiveNode) -> None:
    for separator in ((), ("--",)):
        done = node.cli("run", *separator, "echo", "--help", "--", "-x", "--gpus", "9")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "--help -- -x --gpus 9\n"


# -- how it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_code_is_the_commands(node: LiveNode, script: str, code: int) -> None:
    assert node.cli("run", "sh", "-c", script).returncode == code


def test_the_command_of_a_job_has_nothing_of_the_notebook_that_submitted_it(
    node: LiveNode,
) -> None:
    """What `sbatch` handed on must not look as if this job had set it."""
    came = {"JUPYTER_GPUSHARE_SET_IN": "|/none", "JUPYTER_GPUSHARE_KERNEL_ID": "theirs"}
    done = subprocess.run(
        [*CLI, "run", "env"],
        env={**node.environ, **came, "PBS_JOBID": "8.pbs"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "theirs" not in done.stdout
    assert "JUPYTER_GPUSHARE_SET_IN=PBS_JOBID=8.pbs|" in done.stdout


def test_it_waits_for_a_command_though_a_thousand_files_are_open(node: LiveNode) -> None:
    """A launcher may leave its own open; `select` takes no descriptor over 1023."""
    launcher = (
        "import os, sys\n"
        "for number in range(3, 1024):\n"
        "    os.dup2(0, number)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", launcher, *CLI[1:], "run", "sh", "-c", "exit 7"],
        env=node.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_a_command_that_cannot_start_takes_no_lease(node: LiveNode, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    done = node.cli("run", "no-such-command-anywhere")
    assert (done.returncode, "was not found" in done.stderr) == (127, True)
    done = node.cli("run", str(script))
    assert (done.returncode, "is not executable" in done.stderr) == (126, True)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    done = node.cli("run", str(script))
    assert done.returncode == 126
    assert "Traceback" not in done.stderr


#: Each signal writes into this pipe, so a read misses none. `signal.pause` would miss one that
#: comes just before it.
_WAKES = """
wakes, woken = os.pipe()
os.set_blocking(woken, False)
signal.set_wakeup_fd(woken)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR2"])
def test_signals_reach_the_command(node: LiveNode, name: str) -> None:
    script = (
        "import os, signal, sys\n"
        f"{_WAKES}"
        f"signal.signal(signal.{name}, lambda *_: (print('{name}'), sys.exit(5)))\n"
        "print('up', flush=True)\n"
        "while True: os.read(wakes, 1)\n"
    )
    process = node.spawn("run", "--", sys.executable, "-S", "-c", script)
    started(process)
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (f"{name}\n", "", 5)


def test_a_typed_interrupt_reaches_the_command_once(node: LiveNode) -> None:
    """The terminal sends Ctrl-C to both; passing ours on would make it two."""
    script = (
        "import os, signal, sys\n"
        f"{_WAKES}"
        "got = []\n"
        "def typed(*_):\n"
        "    got.append(1)\n"
        "    os.write(1, b'typed %d\\n' % len(got))\n"
        "def asked(*_):\n"
        "    os.write(1, b'got %d\\n' % len(got))\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGINT, typed)\n"
        "signal.signal(signal.SIGUSR1, asked)\n"
        "print('up', flush=True)\n"
        "while True: os.read(wakes, 1)\n"
    )
    with in_a_terminal(node, "run", "--", sys.executable, "-S", "-c", script) as (pid, screen):
        terminal = screen.terminal
        screen.until("up")
        # `run` stands still while the command gets its own: two at once would look like one.
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        os.write(terminal, b"\x03")
        screen.until("typed 1")
        os.kill(pid, signal.SIGUSR1)  # passed on after the other, if that were passed on
        os.kill(pid, signal.SIGCONT)
        screen.until("got 1")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_request_opens_a_shell_that_holds_the_gpu_until_it_is_left(node: LiveNode) -> None:
    """Ctrl-C in it ends neither the shell nor the lease; programs that it starts see the GPU."""
    shell = {"SHELL": "/bin/sh", "PS1": "ready> ", "HOME": str(node.directory)}
    with in_a_terminal(node, "request", "--name", "at work", **shell) as (pid, screen):
        terminal = screen.terminal
        screen.until("Leave this shell to give it back.", 60.0)
        screen.until("ready> ", 60.0)
        screen.text = ""
        os.write(terminal, b"\x03")
        screen.until("ready> ")
        os.write(terminal, b"sh -c 'echo sees=$CUDA_VISIBLE_DEVICES=end'\n")
        screen.until("sees=GPU-", 60.0)
        (lease,) = leases(node)
        assert (lease["name"], lease["phase"]) == ("at work", "held")
        os.write(terminal, b"exit 7\n")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
    until(lambda: leases(node) == [], "it is given back")


class Screen:
    """What has appeared on a pseudo-terminal."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.text = ""

    def until(self, wanted: str, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while wanted not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} did not appear: {self.text!r}"
            if select.select([self.terminal], [], [], left)[0]:
                self.text += os.read(self.terminal, 4096).decode()


@contextlib.contextmanager
def in_a_terminal(node: LiveNode, *arguments: str, **environ: str) -> Iterator[tuple[int, Screen]]:
    """The command on a pseudo-terminal: its process id and what appears. The test waits for it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(CLI[0], [*CLI, *arguments], {**node.environ, **environ})
    try:
        yield pid, Screen(terminal)
    except BaseException:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(terminal)


# -- waiting ---------------------------------------------------------------------------------


def test_who_waits_leaves_by_a_signal_and_by_his_time_limit_or_does_not_wait(
    own_node: LiveNode,
) -> None:
    alice = own_node.hold(environ=person("alice"))
    bob = waits(own_node, "bob")
    bob.send_signal(signal.SIGINT)
    _, err = bob.communicate(timeout=60)
    assert bob.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err
    until(lambda: own_node.json("status")["queue"] == [], "he has left the queue")
    # It fails, too, where the command does not end within a minute.
    for option, said in (
        ("--timeout=0.5s", "No GPU became free within"),
        ("--no-wait", "not to wait"),
    ):
        done = own_node.cli("run", option, "true", environ=person("bob"))
        assert (done.returncode, said in done.stderr) == (1, True)
        until(lambda: own_node.json("status")["queue"] == [], "he has left the queue")
    let_go(alice)


def test_a_command_is_promised_its_deadline_or_not_started(own_node: LiveNode) -> None:
    process = own_node.hold("--deadline", "10m", environ=person("alice"))
    (lease,) = leases(own_node)
    assert lease["priority_class"] == "interactive", "somebody waits for it"
    assert (lease["promise"]["state"], lease["promise"]["named"]) == ("on_time", True)
    _out, said = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert "Promised: ready by " in said
    until(lambda: own_node.json("status")["promises"]["kept"] == 1, "it was kept")
    none = own_node.here("quota", "set", "alice", "--share", "0")
    assert none.returncode == 0, none.stderr
    done = own_node.cli("run", "--min-steps-per-second", "2", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert "0 % can be promised: the quota" in done.stderr
    until(lambda: leases(own_node) == [], "its lease has ended")
    wrong = own_node.here("run", "--deadline", "soon", "--", "echo", "it ran")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_one_who_waits_and_can_never_have_it_any_more_is_told_once(own_node: LiveNode) -> None:
    holds = own_node.hold(environ=person("alice"))
    process = waits(own_node, "bob")
    assert own_node.here("quota", "set", "bob", "--gpus", "0").returncode == 0
    _, said = process.communicate(timeout=60)
    let_go(holds)
    assert process.returncode == 1
    assert said.count("quota is 0") == 1, "it lost no lease"
    assert "lease has ended" not in said
    done = own_node.cli("run", "true", environ={"JUPYTER_GPUSHARE_TOKEN": "stolen"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


# -- while it runs ---------------------------------------------------------------------------


def killed(node: LiveNode) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A run that is killed, and its lease, with which its command goes on."""
    alice = node.hold(environ=person("alice"))
    with NodeClient(node.socket, "alice") as looks:

        def has_joined() -> bool:
            events = looks.call(Method.HISTORY)["events"]
            return any(event["what"] == "process joined" for event in events)

        until(has_joined, "the command has joined")
    alice.kill()
    until(lambda: leases(node)[0]["pid"] != alice.pid, "the command is the task")
    return alice, leases(node)[0]


def test_the_command_of_a_killed_run_keeps_the_lease(own_node: LiveNode) -> None:
    alice, lease = killed(own_node)
    assert (lease["phase"], lease["kind"]) == ("held", "process")
    let_go(alice)  # the command ends
    until(lambda: leases(own_node) == [], "its GPU is given back at once", within=60)


def test_the_command_of_a_killed_run_ends_when_its_lease_is_revoked(own_node: LiveNode) -> None:
    alice, lease = killed(own_node)
    assert own_node.here("release", lease["id"], "--revoke", "maintenance").returncode == 0
    assert alice.stdout is not None
    assert alice.stdout.read() == "", "the command, which had it open, has ended"
    alice.communicate(timeout=60)


def test_waiting_survives_a_restart_of_the_node_manager(own_node: LiveNode) -> None:
    alice = own_node.hold(environ=person("alice"))
    bob = waits(own_node, "bob")
    own_node.kill9()
    own_node.start()
    until(lambda: len(own_node.json("status")["queue"]) == 1, "bob waits again, once")
    let_go(alice)
    started(bob)
    (lease,) = leases(own_node)
    assert lease["environment"] == "bob"
    let_go(bob)
    assert bob.returncode == 0


def test_a_revoked_lease_ends_the_command_and_says_why(own_node: LiveNode) -> None:
    bob = own_node.hold(environ=person("bob"))
    (lease,) = leases(own_node)
    refused = own_node.here("release", lease["id"], "--revoke", "mine!", environ=person("carol"))
    assert refused.returncode == 1
    assert own_node.here("release", lease["id"], "--revoke", "maintenance").returncode == 0
    assert bob.wait(60) == 128 + signal.SIGTERM  # its input is open: the command has no other end
    assert "maintenance" in bob.communicate()[1]
    until(lambda: leases(own_node) == [], "the lease is gone")
