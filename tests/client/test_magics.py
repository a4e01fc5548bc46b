"""The magics do what they say in kernels and shells, and wrong use is one sentence.

Real kernels and shells, over a real node manager with simulated GPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel, Shown
from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.node_fixtures import running_node

from jupyter_gpushare.protocol.messages import Method

node = running_node(people=("alice", "bob", "root"))


def new_kernel(home: Path, node: RunningNode, **env: str) -> Kernel:
    """A kernel of alice's."""
    return Kernel(home, node.socket, JUPYTER_GPUSHARE_TOKEN="alice", **env)


@pytest.fixture(scope="module")
def one_kernel(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = tmp_path_factory.mktemp("home")
    with new_kernel(home, node, JPY_SESSION_NAME="/home/a <b>book.ipynb") as running:
        yield running


@pytest.fixture
def kernel(node: RunningNode, one_kernel: Kernel) -> Iterator[Kernel]:
    """The module's kernel, holding nothing before and after each test."""
    until(lambda: all_is_free(node), "nothing drains")
    yield one_kernel
    # What is asked stays asked for a kernel's life; each test begins without.
    one_kernel.ok(
        "%gpushare release\n"
        "from jupyter_gpushare.client import acquire\n"
        "acquire.broker().preferences._asked = type(acquire.broker().preferences._asked)()"
    )
    assert leases(node, "alice") == []


@pytest.fixture
def bob(node: RunningNode) -> Iterator[NodeClient]:
    """Another process, of another person."""
    with Puppet() as puppet:
        with puppet.client(node.socket, token="bob") as client:
            yield client
        puppet.kill9()
        until(lambda: not leases(node, "bob"), "bob's leases have ended")


def leases(node: RunningNode, environment: str = "alice") -> list[dict[str, Any]]:
    """The leases of one person that have not ended."""
    return [
        one
        for one in node.status()["leases"]
        if one["phase"] != "ended" and one["environment"] == environment
    ]


def all_is_free(node: RunningNode) -> bool:
    """Nothing drains any more, which the next lease would share, or wait for."""
    return all(gpu["free"] == gpu["memory"] for gpu in node.status()["gpus"])


def only_lease(node: RunningNode) -> dict[str, Any]:
    (lease,) = leases(node)
    return lease


def failed(shown: Shown) -> dict[str, Any]:
    assert shown.reply is not None
    assert shown.reply["status"] == "error"
    return shown.reply


def test_status_is_rich_in_a_notebook_and_marks_this_kernel(
    node: RunningNode, kernel: Kernel
) -> None:
    assert "No leases" in kernel.ok("%gpushare").plain()
    granted = kernel.ok("%gpushare request --gpus 1 --memory 8GiB")
    assert "This kernel now holds GPU 0 (8 GiB of 24 GiB)" in granted.plain()
    (bundle,) = kernel.ok("%gpushare status").rich()
    lease = only_lease(node)
    assert lease["pid"] == kernel.pid
    assert lease["kind"] == "kernel"
    assert lease["asked"] == {"gpus": 1, "memory": 8 * GIB}
    for text in (bundle["text/plain"], bundle["text/html"]):
        assert lease["id"][:12] in text
        assert "(this one)" in text
        assert "simulated" in text
        assert "8 GiB yours" in text
    assert "<table" in bundle["text/html"]
    assert "a &lt;b&gt;book.ipynb" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"]


def test_release_gives_back_and_says_so(node: RunningNode, kernel: Kernel) -> None:
    kernel.ok("%gpushare request")
    assert only_lease(node)["state"] in ("active", "idle")
    said = kernel.ok("%gpushare release").plain()
    assert said == (
        "Given back: GPU 0 (24 GiB). Cells run without a GPU until "
        "`%gpushare request` or the import of a framework."
    )
    assert leases(node) == []
    assert "holds no GPU" in kernel.ok("%gpushare release").plain()


def test_request_keeps_what_is_held_and_says_so(node: RunningNode, kernel: Kernel) -> None:
    kernel.ok("%gpushare request --gpus 2  # the card that's idle")
    before = only_lease(node)["id"]
    assert "keeps its GPUs for 20 min" in kernel.ok("%gpushare pin 20m").plain()
    assert "GPUs are not kept" in kernel.ok("%gpushare pin off").plain()
    assert "nothing changed" in kernel.ok("%gpushare request --gpus 2").plain()
    assert "already" in kernel.ok("%gpushare request").plain()
    assert only_lease(node)["id"] == before
    kernel.ok("%gpushare request --gpus 1 --class batch")
    until(lambda: before not in [one["id"] for one in leases(node)], "the first one has ended")
    with node.client("root") as client:
        events = client.call(Method.HISTORY, limit=100)["events"]
    told = [event["text"] for event in events if event["lease"] == before]
    assert "ended: released" in told, "it was given back, and not lost"
    assert only_lease(node)["id"] != before
    assert only_lease(node)["priority_class"] == "batch"


def test_quota_and_history_and_help(node: RunningNode, kernel: Kernel) -> None:
    kernel.ok("%gpushare request")
    quota = kernel.ok("%gpushare quota").plain()
    history = kernel.ok("%gpushare history --limit 5")
    assistance = kernel.ok("%gpushare help")
    assert "2 GPUs" in quota
    assert "1 of 2 held now" in quota
    assert "You can get 1 more GPU" in quota
    assert "GPU-hours" in quota
    assert "got 24 GiB of GPU 0" in history.plain()
    assert "<table" in history.rich()[0]["text/html"]
    assert "%%gpushare" in assistance.plain()
    assert "%%gpushare" in assistance.rich()[0]["text/html"]


def test_servers_are_shown_with_code_that_runs_here(node: RunningNode, kernel: Kernel) -> None:
    where = "http://127.0.0.1:8000"
    with Puppet() as puppet:
        keeper = puppet.client(node.socket, token="alice")
        asked = keeper.send(Method.REQUEST, task={"name": "<b>", "kind": "server"}, keeper=True)
        lease = keeper.wait(asked)["lease"]
        keeper.call(Method.SERVING, lease=lease, address=where, model="<b>", token="sk-1")
        (bundle,) = kernel.ok("%gpushare servers").rich()
        assert f'address = "{where}"' in bundle["text/plain"]
        assert "&lt;b&gt;" in bundle["text/html"]
        assert "sk-1" not in str(bundle), "a notebook is kept, and shown to others"
        code = "from jupyter_gpushare.client import server_token\n"
        assert "sk-1" in kernel.ok(f"{code}print(server_token('{where}'))").stream()
        assert "lists them" in str(failed(kernel.run(f"{code}server_token('http://x')")))
        keeper.call(Method.RELEASE, lease=lease)
    assert "There is no server" in kernel.ok("%gpushare servers").plain()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%gpushare staus", "; did you mean status?"),
        ("%gpushare nonsense", "%gpushare help"),
        ("%gpushare request --gpus many", "--gpus 'many' cannot be used"),
        ("%gpushare request --gpus 0", "at least 1"),
        ("%gpushare request --gpus -1", "--gpus"),
        ("%gpushare request --gpus", "--gpus"),
        ("%gpushare request --memory 8", "it has no unit. Did you mean 8GiB?"),
        ("%gpushare request --persistent 1GiB --temporary 2", "Did you mean 2GiB?"),
        ("%gpushare request --class urgent", "interactive or batch"),
        ("%gpushare request 'open quote", "quotation"),
        ("%gpushare request --gup 1", "knows no '--gup'; did you mean --gpus?"),
        ("%gpushare request --gpu=1", "; did you mean --gpus?"),
        ("%gpushare request --xyzzy", "See `%gpushare help`."),
        ("%%gpushare --memroy 8GiB\n1", "; did you mean --memory?"),
        ("%gpushare request --temporary 8GiB", "name both the persistent and the temporary"),
        ("%gpushare release now", "'now'"),
        ("%gpushare history --limit 0", "1 to 1000"),
        ("%gpushare history --limit x", "--limit"),
        ("%%gpushare --deadline soon\n1", "the promise cannot be read"),
        ("%gpushare pin 1h30", "pin 1h30: it is not a time"),
    ],
)
def test_wrong_use_is_one_sentence(kernel: Kernel, line: str, part: str) -> None:
    shown = kernel.run(line)
    failed(shown)
    assert shown.of("error") == []  # a traceback would be there
    said = shown.stream("stderr")
    assert said.startswith("UsageError: ")
    assert said.count("\n") == 1
    assert part in said


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ("--gpus 3", "QuotaExceeded", "You asked for 3 GPUs, but your quota is 2 GPUs"),
        ("--gpus 1 --no-wait", "NotGranted", ""),
    ],
)
def test_a_refusal_is_one_sentence_and_stops_the_notebook(
    node: RunningNode, kernel: Kernel, bob: NodeClient, options: str, error: str, said: str
) -> None:
    bob.request(gpus=2)
    shown = kernel.run(f"%gpushare request {options}")
    assert failed(shown)["ename"] == error
    (line,) = shown.error()["traceback"]
    assert said in line
    assert node.status()["queue"] == []


def test_without_a_node_manager_the_magic_says_what_to_do(tmp_path: Path) -> None:
    with Kernel(tmp_path, tmp_path / "nobody.sock", JUPYTER_GPUSHARE_ANSWER_TIMEOUT="1") as kernel:
        shown = kernel.run("%gpushare")
        failed(shown)
        (line,) = shown.error()["traceback"]
        assert "jupyter gpushare doctor" in line
        assert kernel.ok("%gpushare help").rich()


def test_waiting_is_one_display_that_changes_in_place(
    node: RunningNode, kernel: Kernel, bob: NodeClient
) -> None:
    held = bob.request(gpus=2)
    cell = kernel.start("%gpushare request --gpus 1")

    def updates() -> list[dict[str, Any]]:
        kernel.pump()
        return cell.of("update_display_data")

    until(lambda: len(updates()) >= 2, "two updates of the display")
    (queued,) = node.status()["queue"]
    assert queued["gpus"] == 1
    bob.call(Method.RELEASE, lease=held["lease"])
    kernel.finish(cell)
    assert cell.reply is not None
    assert cell.reply["status"] == "ok"
    first, answer = cell.of("display_data")
    display_id = first["transient"]["display_id"]
    changes = cell.of("update_display_data")
    assert {one["transient"]["display_id"] for one in changes} == {display_id}
    assert "number 1 in line" in first["data"]["text/plain"]
    assert "Interrupt the kernel" in first["data"]["text/html"]
    texts = [one["data"]["text/plain"] for one in (first, *changes)]
    assert len(set(texts)) == len(texts)  # the time so far grows
    assert texts[-1].startswith("Granted: GPU 0 (24 GiB). Waited ")
    assert "now holds" in answer["data"]["text/plain"]
    assert cell.stream("stderr") == ""


def test_later_is_remembered_for_the_next_request(node: RunningNode, kernel: Kernel) -> None:
    kernel.ok("%gpushare request --gpus 2 --later")
    assert leases(node) == []
    kernel.ok("from jupyter_gpushare.client import request; request()")
    assert len(only_lease(node)["gpus"]) == 2


# -- ``%%gpushare`` -----------------------------------------------------------------------------


def test_a_cell_holds_a_lease(node: RunningNode, kernel: Kernel) -> None:
    shown = kernel.ok(
        "%%gpushare --gpus 2 --memory 4GiB\n"
        "import os\n"
        "from jupyter_gpushare.client import status\n"
        "during = [one for one in status()['leases'] if one['state'] != 'ended']\n"
        "len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))"
    )
    assert shown.of("execute_result")[0]["data"]["text/plain"] == "2"
    assert "The cell holds GPU 0 and GPU 1 (4 GiB of 24 GiB each)" in shown.stream()
    during = kernel.ok("print(len(during), during[0]['asked'])").stream().strip()
    assert during == str(f"1 {{'gpus': 2, 'memory': {4 * GIB}}}")
    assert leases(node) == []


def test_a_cell_gives_back_after_an_error_and_shows_only_the_users(
    node: RunningNode, kernel: Kernel
) -> None:
    shown = kernel.run("%%gpushare\nimport os\nos.environ['LEASE_SEEN'] = 'x'\n1 / 0")
    assert failed(shown)["ename"] == "ZeroDivisionError"
    trace = "\n".join(shown.error()["traceback"])
    assert "1 / 0" in trace.replace("\x1b[30;43m", "").replace("\x1b[39;49m", "")
    assert "broker" not in trace
    assert leases(node) == []


def test_a_cell_uses_the_lease_that_the_kernel_holds(node: RunningNode, kernel: Kernel) -> None:
    kernel.ok("%gpushare request --gpus 2")
    before = only_lease(node)["id"]
    shown = kernel.ok("%%gpushare --gpus 1\n40 + 2")
    assert "which this kernel holds and keeps" in shown.stream()
    assert shown.plain() == "42"
    assert only_lease(node)["id"] == before


def test_a_cell_does_not_run_when_the_kernels_lease_is_too_small(
    node: RunningNode, kernel: Kernel
) -> None:
    kernel.ok("%gpushare request --gpus 1 --memory 8GiB\nran = False")
    for line in ("%%gpushare --gpus 2", "%%gpushare --memory 9GiB"):
        shown = kernel.run(f"{line}\nran = True")
        failed(shown)
        assert "%gpushare release" in shown.stream("stderr")
    assert kernel.ok("ran").plain() == "False"


def test_a_promise_lasts_as_long_as_the_cell(node: RunningNode, kernel: Kernel) -> None:
    shown = kernel.ok(
        "%%gpushare --deadline 10m --min-steps-per-second 0.5\n"
        "from jupyter_gpushare import steps\n"
        "for _ in steps(range(3)): pass\n"
        "%gpushare\n"
        "from jupyter_gpushare.client import status\n"
        "(during,) = [one for one in status()['leases'] if one['promise']]"
    )
    assert "Promised: ready by " in shown.stream()
    assert " and at least 0.5 steps a second" in shown.stream()
    assert "and at least 0.5 steps a second." in shown.plain()
    assert "Step 2 of 3." in shown.plain(), "what was told after the second one"
    told = "during['promise']['named'], during['promise']['rate'], during['progress']['total']"
    assert kernel.ok(told).plain() == "(True, 0.5, 3)"
    until(lambda: node.status()["promises"]["kept"] == 1, "it was kept")
    assert node.status()["promises"]["missed"] == 0


def test_a_cell_that_is_no_python_asks_for_nothing(
    node: RunningNode, kernel: Kernel, bob: NodeClient
) -> None:
    bob.request(gpus=2)  # it would wait
    assert failed(kernel.run("%%gpushare\ndef f(:\n"))["ename"] == "SyntaxError"


def test_any_cell_runs_as_without_it(kernel: Kernel) -> None:
    kernel.ok("%%gpushare\ndef double(x):\n    return 2 * x\n%precision 3\n")
    assert kernel.ok("double(21)").plain() == "42"
    kernel.ok("%%gpushare\n# nothing\n")
    assert kernel.ok("%%gpushare\n41 + 1;").of("execute_result") == []


@pytest.mark.parametrize("jedi", [True, False])
def test_tab_offers_what_fits_and_nothing_else(kernel: Kernel, jedi: bool) -> None:
    kernel.ok(f"%config IPCompleter.use_jedi = {jedi}")
    assert kernel.complete("%gpushare re") == ["request", "release", "resume"]
    assert kernel.complete("%gpushare ")[:4] == ["status", "quota", "request", "release"]
    assert kernel.complete("%gpushare request --g") == ["--gpus"]
    options = ["--gpus", "--memory", "--class", "--persistent", "--temporary", "--turn-offset"]
    options += ["--reserve", "--no-wait", "--later"]
    for typed in ("", "-", "--"):
        assert kernel.complete(f"%gpushare request {typed}") == options
    of_cells = ["--deadline", "--min-steps-per-second", "--dry-run"]
    assert kernel.complete("%%gpushare --") == [*options[:7], *of_cells]
    kernel.ok("my_model = my_batch = None")
    assert kernel.complete("%gpushare predict my_") == ["my_batch", "my_model"]
    assert kernel.complete("%gpushare predict my_model, my_b") == ["my_batch"]
    assert kernel.complete("%gpushare predict a, b --it") == ["--iterations"]
    assert kernel.complete("%gpushare predict a, b --optimizer ad") == ["adam", "adamw"]
    assert kernel.complete("%%gpushare --deadline ") == ["10m", "30m", "1h"]
    assert kernel.complete("%gpushare request --memory ") == ["4GiB", "8GiB", "16GiB", "24GiB"]
    assert kernel.complete("%gpushare request --nothing-so") == ["--nothing-so"]
    assert kernel.complete("%gpushare status ") == [""], "and no names of Python's"
    assert kernel.complete("%gpush") == ["%gpushare", "%%gpushare"]
    assert kernel.complete("%%gpushare --gpus 1\nimpo") == ["import"]
    assert kernel.complete("%gpushare request --class b") == ["batch"]
    assert kernel.complete("%gpushare request --reserve e") == ["estimate"]
    assert "--gpus" not in kernel.complete("%gpushare request --gpus 1 --")
    assert "8GiB" in kernel.complete("%gpushare request --memory ")
    assert kernel.complete("x = 1\n%gpushare hi") == ["history"]
    assert "--class" in kernel.complete("%%gpushare --cl")


SHELL = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(json.loads(sys.argv[1])))
shell.extension_manager.load_extension("jupyter_gpushare")
def run(code):
    assert shell.run_cell(code).success, code
def settings():
    from jupyter_gpushare.client.acquire import broker
    return broker().preferences.settings
"""


def in_shell(code: str, home: Path, node: RunningNode, **traits: Any) -> tuple[str, str]:
    """Run in a real shell without a kernel: what it printed, and its stderr."""
    words = [
        "-W",
        "error::DeprecationWarning",
        "-c",
        SHELL + code,
        json.dumps({"GpuShare": traits}),
    ]
    done = subprocess.run(
        [sys.executable, *words],
        env=dict(new_kernel(home, node).environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


IN_TERMINAL = """
heavy = {'session.session', 'words.render', 'broker', 'words.display', 'words.settings'}
print(sorted(n for n in heavy if f'jupyter_gpushare.client.{n}' in sys.modules))
print([n for n in ('tornado', 'jupyter_server', 'sqlite3x', 'pynvml') if n in sys.modules])
run('%unload_ext jupyter_gpushare')
print('gpushare' in str(shell.magics_manager.magics))
print([c for e in shell.events.callbacks.values() for c in e if 'gpushare' in repr(c)])
print('gpushare' in str(shell.Completer.matchers), 'GpuShare' in str(shell.configurables))
run('%load_ext jupyter_gpushare')
run('%reload_ext jupyter_gpushare')
for words in ('request --memory 6GiB', 'status', 'release'):
    run(f'%gpushare {words}')
"""


def test_in_a_terminal_it_is_plain_text_cheap_to_load_and_unloads_whole(
    tmp_path: Path, node: RunningNode
) -> None:
    until(lambda: all_is_free(node), "nothing drains")
    out, err = in_shell(IN_TERMINAL, tmp_path, node)
    assert out.split("\n")[:5] == ["[]", "[]", "False", "[]", "False False"]
    assert "This kernel now holds GPU 0 (6 GiB of 24 GiB)" in out
    assert "GPU  NAME" in out
    assert "<" not in out
    assert err == ""


TRAITS = """
s = settings()
print(s.ask.gpus, s.ask.memory, s.wait_timeout, s.fallback.value, s.acquire.value)
run('%config GpuShare.acquire = "first-use"')
print(settings().acquire.value)
os.environ['JUPYTER_GPUSHARE_GPUS'] = '1'
print(settings().ask.gpus)
run('%gpushare help')
run('%unload_ext jupyter_gpushare')
print(settings().wait_timeout)
"""


def test_traits_are_the_weakest_settings_and_said_where_they_make_no_sense(
    tmp_path: Path, node: RunningNode
) -> None:
    traits = {"gpus": 2, "memory": "5GiB", "wait_timeout": "2m", "fallback": "hope"}
    out, err = in_shell(TRAITS, tmp_path, node, **traits)
    lines = out.split("\n")
    assert lines[:3] == [f"2 {5 * GIB} 120.0 cpu import", "first-use", "1"]
    assert lines[-2] == "0.0", "it is unloaded"
    assert "GpuShare.fallback = 'hope' cannot be used" in err
    assert "Traceback" not in err


def test_the_off_switch(tmp_path: Path, node: RunningNode) -> None:
    with new_kernel(tmp_path, node, JUPYTER_GPUSHARE="off") as kernel:
        shown = kernel.run("%gpushare status")
        failed(shown)
        assert "switched off" in shown.stream("stderr")
