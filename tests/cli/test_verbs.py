"""Each verb does for a person what its help says, or says in words what is wrong.

Against a real node manager; some as a person runs them, the others in this process.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import argcomplete
import pytest
from support.livenode import CLI, LiveNode, in_process, let_go, started, until
from support.scripted_node import ScriptedNode, Visitor

from jupyter_gpushare import __version__
from jupyter_gpushare.cli.app import GpuShareApp, find, load, tree
from jupyter_gpushare.cli.release import whole_name
from jupyter_gpushare.console.node import Node
from jupyter_gpushare.console.verb import Refused, Verb
from jupyter_gpushare.protocol.messages import Method, Notice

GIB = 2**30


def verbs(kind: Any = GpuShareApp, *above: str) -> Iterator[str]:
    for name in kind.below() if issubclass(kind, Verb) else ():
        yield " ".join((*above, name))
        yield from verbs(load(kind, name), *above, name)


# -- usage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [*verbs()])
def test_help_explains_the_verb(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = find(verb.split())[0]
    is_ours = issubclass(kind, Verb)  # or an application of traitlets
    if not is_ours or verb == "pool where":
        command = [*CLI, *verb.split(), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        done = in_process(*verb.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\w{4}", done.stdout)
    if is_ours:
        assert f"usage: jupyter gpushare {verb}" in done.stdout
        about = " ".join((inspect.getdoc(kind) or "").split())
        assert about != inspect.getdoc(Verb)
        assert about in " ".join(done.stdout.split())
        assert not hasattr(kind, "description"), "its docstring says what it does"
        assert "`jupyter-gpushare" not in done.stdout, "there is no such command to type"
        assert "Exit codes:" in done.stdout
        assert "--json" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["", "quota", "gpu", "ledger", "pool", "pool quota", "pool group"])
def test_help_lists_the_verbs_below(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    app, _ = find(verb.split())
    app.parser().print_help()
    told = capsys.readouterr().out
    assert f"`{app.command()} VERB --help` explains a verb." in told
    assert all(f"  {below} " in told for below in app.below())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("rel", ["release "]), ("quota un", ["quota unset "]), ("run --no", ["run --no-wait "])],
)
def test_the_shell_is_offered_verbs_and_options(typed: str, offered: list[str]) -> None:
    completer = argcomplete.CompletionFinder(tree(typed.split()))
    assert [completer.rl_complete(typed, at) for at in range(len(offered) + 1)] == [*offered, None]


def test_the_shell_completes_by_the_script() -> None:
    """As bash asks by argcomplete: the line in the environment, the answer on descriptor 8."""
    script = Path(sys.executable).with_name("jupyter-gpushare")
    line = f"{script} quota un"
    environ = {**os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        ["sh", "-c", '"$0" 8>&1 >/dev/null', script],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split("\n") == ["unset "]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", ""),
        ("stauts", "no verb 'stauts'; did you mean status?"),
        ("frobnicate", "no verb 'frobnicate'; say status, leases,"),
        ("status --jsn", "there is no option --jsn; did you mean --json?"),
        ("status --gpus=3", "there is no option --gpus"),
        ("status extra", "takes no argument 'extra'"),
        ("release", "release which lease"),
        ("quota set alice --gpus 2 --idle-timeot=9", "did you mean --idle-timeout?"),
        ("quota remove alice", "list, set or unset"),
        ("usage --since", "--since: expected one argument"),
        ("quota set alice", "--gpus"),
        ("quota set --gpus 1", "say whose quota"),
        ("quota set alice --group students --gpus 1", "say whose quota"),
        ("quota unset --default alice", "say whose quota"),
        ("quota unset alice --only memry", "did you mean memory?"),
        ("quota set alice --gpus 1 --gpu-hours 2 --no-budget", "not both"),
        ("run --memory 8 -- true", "Did you mean 8GiB?"),
        ("quota set alice --gpus 1 --weight 0", "it must be a number from 1e-06 to 1e+06"),
        ("quota set alice --gpus 1 --idle-timeout soon", "Or write default"),
        ("pool group set physics", "say how many GPUs are its own: --nominal 8"),
        ("pool group set physics --nominal -3", "--nominal=-3 cannot be used: it must be a whole"),
        ("pool group set physics --nominal 1 --borrowing -1", "--borrowing=-1 cannot be used"),
        ("pool group set --nominal 1", "say which group: jupyter gpushare pool group set GROUP"),
        ("pool group unset a b", "say which group: jupyter gpushare pool group unset GROUP"),
        ("pool lend alice --for 3h --gpus 0", "a whole number from 1 to 4096"),
        ("sweep --resume s --least loss --most loss", "say --least or --most, not both"),
        ("ledger backup", "ledger backup FILE"),
        ("ledger restore", "which backup"),
        ("usage --since yesterday", "1.5h, 1h30m, 7d"),
        ("run", "run what?"),
        ("run --gpus 0 -- true", "gpus"),
        ("serve --no-token --host 0.0.0.0 -- true", "it can be for this host only"),
        ("run --class royal -- true", "--class=royal cannot be used: say interactive or batch"),
        ("run --gups 1 -- true", "no option --gups; did you mean --gpus?"),
        ("run --gpu 1 train.py", "no option --gpu; did you mean --gpus?"),
    ],
)
def test_a_wrong_command_line_exits_with_two_and_says_why(arguments: str, said: str) -> None:
    done = in_process(*arguments.split())
    assert done.returncode == 2
    assert said in done.stderr


def test_the_script_is_installed_for_jupyter_and_exits_as_the_verb_does() -> None:
    """``jupyter gpushare`` finds ``jupyter-gpushare`` beside the Python."""
    script = Path(sys.executable).with_name("jupyter-gpushare")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__
    done = subprocess.run([script, "stauts"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean status?" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_node_manager_listens_where_clients_look(tmp_path: Path) -> None:
    """Without --socket it takes their environment variable; --socket goes before it."""
    node = LiveNode(tmp_path)  # not started: only its environment is used
    other = tmp_path / "other.sock"
    command = [*CLI, "node", "--simulate", "1x24GiB", "--ledger", str(node.ledger)]
    for options, place in (([], node.socket), (["--socket", str(other)], other)):
        with subprocess.Popen(
            [*command, *options], env=node.environ, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"ready {place}\n"
                if not options:
                    assert node.cli("status").returncode == 0
            finally:
                process.terminate()


@pytest.mark.parametrize("verb", ["status", "leases", "release x", "quota", "quota list", "usage"])
def test_without_a_node_manager_every_verb_says_so(verb: str, tmp_path: Path) -> None:
    node = LiveNode(tmp_path)  # never started
    done = node.here(*verb.split())
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert str(node.socket) in done.stderr
    done = node.here(*verb.split(), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["reason"] == "unavailable"
    done = node.here(*verb.split(), environ={"JUPYTER_GPUSHARE_SOCKET": ""})
    assert done.returncode == 1
    assert "No node manager is set up here" in done.stderr


# -- reading ---------------------------------------------------------------------------------


def test_status_shows_gpus_leases_and_queue(node: LiveNode) -> None:
    holder = node.hold("--name", "first \x1b[31mred")
    try:
        document = node.json("status")
        assert sorted(gpu["tasks"] for gpu in document["gpus"]) == [0, 1]
        text = node.cli("status").stdout
        assert "(simulated)" in text
        assert "administrator" in text
        assert "\x1b" not in text
        (row,) = node.json("leases", "--mine")["leases"]
        assert row["id"][:12] in node.cli("leases").stdout
    finally:
        let_go(holder)
    until(lambda: "No leases." in node.here("leases").stdout, "all is given back")


def test_a_terminal_that_is_not_utf_8_shows_a_question_mark_for_what_it_has_not(
    node: LiveNode,
) -> None:
    node.here("quota", "set", "jürgen", "--gpus=1")
    try:
        for verb in (("status",), ("quota", "list")):
            told = node.cli(*verb, environ={"PYTHONIOENCODING": "ascii"})
            assert told.returncode == 0, told.stderr
            assert told.stdout.isascii()
        assert "j?rgen" in told.stdout
    finally:
        node.here("quota", "unset", "jürgen")


def test_usage_counts_what_was_held(node: LiveNode) -> None:
    let_go(node.hold("--gpus", "2"))
    answer = node.json("usage", "--since", "1h")
    (row,) = answer["rows"]
    assert row["leases"] >= 1
    assert row["gpu_seconds_held"] > 0
    assert answer["until"] - answer["since"] == pytest.approx(3600, abs=1)
    told = node.cli("usage").stdout
    assert f"{row['environment']}  " in told
    assert "GPU-HOURS HELD" in told
    days = node.json("usage", "--by", "day", "--since", "2d")["days"]
    assert len(days) == 2
    assert days[-1]["charged"] == days[-1]["held"] > 0, "nobody takes turns here"
    by_day = node.here("usage", "--by", "day").stdout
    assert by_day.count("\n20") == 7
    assert "CHARGED" in by_day
    assert "nobody held a GPU" in node.here("usage", "--environment", "nobody-here").stdout


def test_servers_are_listed_with_python_that_asks_them(node: LiveNode) -> None:
    assert "There is no server" in node.here("servers").stdout
    with node.client() as keeper:
        task = {"name": "demo", "kind": "server"}
        lease = keeper.wait(keeper.send(Method.REQUEST, task=task, keeper=True))["lease"]
        says = {"address": "http://[::1]:8000", "model": "tiny"}
        keeper.call(Method.SERVING, lease=lease, **says, token="sk-1")
        told = node.here("servers").stdout
        assert 'address = "http://[::1]:8000"' in told
        assert "sk-1" not in told
        (row,) = node.json("servers")["servers"]
        assert row["token"] == "sk-1"
        keeper.call(Method.RELEASE, lease=lease)


# -- changing --------------------------------------------------------------------------------


def test_release_takes_the_beginning_of_a_name(node: LiveNode) -> None:
    holder = node.hold()
    (lease,) = node.json("leases")["leases"]
    try:
        done = node.cli("release", lease["id"][:8])
        assert done.returncode == 0
        assert done.stdout == f"{lease['id'][:12]}: ended\n"
        until(lambda: node.json("leases") == {"leases": []}, "the lease is gone")
        done = node.here("release", lease["id"], "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["error"]["reason"] == "unknown_lease"
    finally:
        let_go(holder)


def test_others_leases_which_have_no_name_for_us_are_passed_over() -> None:
    rows: list[Any] = [{"id": None}, {"id": "abc-1"}]
    assert whole_name("ab", rows) == "abc-1"
    assert whole_name("x", rows) == "x"
    with pytest.raises(Refused, match="2 leases begin with 'a': type more of it"):
        whole_name("a", [*rows, {"id": "aa-2"}])


def test_a_job_is_one_line_and_its_name_releases_all_of_it(node: LiveNode) -> None:
    program = (
        "from jupyter_gpushare.client import api; api.request(memory='1GiB..3GiB'); "
        "print('up', flush=True); input()"
    )
    environ = {**node.environ, "JUPYTER_GPUSHARE_JOB": "digits"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    held = [
        subprocess.Popen([sys.executable, "-c", program], env=environ, text=True, **pipes)
        for _ in range(2)
    ]
    try:
        for worker in held:
            started(worker)
        lines = [line for line in node.here("leases").stdout.splitlines() if "digits" in line]
        assert len(lines) == 1
        assert "digits, 2 workers" in lines[0]
        assert "may use 1 GiB each" in lines[0]
        done = node.here("release", "digits", "--json")
        assert len(json.loads(done.stdout)["leases"]) == 2
    finally:
        let_go(*held)


def test_quotas_are_set_listed_and_unset(node: LiveNode) -> None:
    """What is left out stays as it is; a null has a word."""

    def line(*words: str) -> str:
        lines = node.here("quota", *(words or ("list",))).stdout.splitlines()
        return next((one for one in lines if one.startswith("alice")), "")

    done = node.cli("quota", "set", "alice", "--gpus", "1", "--memory", "8GiB", "--weight", "2")
    assert done.returncode == 0, done.stderr
    assert "8 GiB" in done.stdout
    quotas = {row["environment"]: row for row in node.json("quota", "list")["quotas"]}
    assert [quotas["alice"][part] for part in ("gpus", "memory", "weight")] == [1, 8 * GIB, 2.0]
    assert node.here("quota").stdout == node.here("quota", "list").stdout
    assert node.json("quota") == node.json("quota", "list")
    for option, words in (("--gpu-hours=20", "  0 of 20"), ("--gpus=2", "  0 of 20")):
        assert words in line("set", "alice", option)
    assert "no budget" in line("set", "alice", "--no-budget")
    assert "SHARE" not in node.here("quota", "list").stdout, "of nobody"
    assert "10 min" in line("set", "alice", "--idle-timeout=10m", "--share=20")
    assert "20 % of a GPU" in line()
    quota = node.json("quota", "set", "alice", "--memory=none", "--idle-timeout=default")
    assert (quota["gpus"], quota["memory"], quota["idle_timeout"]) == (2, None, None)
    own = node.json("quota", "unset", "alice", "--only", "gpu-hours", "--only=share")["own"]
    assert own == ["gpus", "memory", "weight", "idle_timeout"]
    wrong = node.here("quota", "unset", "alice", "--only", "hours")
    assert (wrong.returncode, "gpu-hours or" in wrong.stderr) == (2, True)
    smallest = min(gpu["memory"] for gpu in node.json("status")["gpus"])
    assert node.json("quota", "set", "alice", "--memory=0.5")["memory"] == smallest // 2
    assert node.cli("quota", "unset", "alice").returncode == 0
    assert line() == ""


def test_a_notice_before_the_answer_is_no_answer() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        call = visitor.expect(Method.STATUS)
        visitor.notify(Notice.CHANGED, {"status": {}})
        visitor.answer(call, {"leases": []})
        visitor.live()

    with ScriptedNode(script) as node, Node(str(node.socket), None) as line:
        assert line.call(Method.STATUS) == {"leases": []}
