"""Each model of a sweep has one result, though workers and kernels die and GPUs are taken.

A node manager with simulated GPUs, and a process for each model.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel, Shown
from support.livenode import in_process
from support.node import WITHIN, RunningNode, until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.jobs.best import Best
from jupyter_gpushare.jobs.core import Phase
from jupyter_gpushare.jobs.records import SweepError
from jupyter_gpushare.jobs.sweeps import Sweep, sweep
from jupyter_gpushare.jobs.worker import Code, plain
from jupyter_gpushare.protocol.messages import Method


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    with RunningNode(tmp_path, simulate="3x24GiB", config="c.Policy.stop_after = 0.2") as running:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(running.socket))
        yield running


def held(go: Path, *, reports: bool = False) -> Callable[[int], int]:
    """A model that computes until the file is there; without reports it comes to no gate."""
    place = str(go)

    def train(x: int) -> int:
        import os
        import time

        from jupyter_gpushare import sweep

        while not os.path.exists(place):
            time.sleep(0.01)  # it computes
            if reports:
                sweep.report(x=x)
        return x

    return train


def begin(train: Callable[..., Any], count: int, **more: Any) -> Sweep:
    candidates = [{"x": x} for x in range(count)]
    return sweep(train, candidates, memory="8GiB", every=0.1, **more)


def test_each_model_has_one_result_though_a_worker_is_killed(
    node: RunningNode, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    def train(x: int) -> dict[str, Any]:
        with open(f"{folder}/{x}", "a") as tried:
            tried.write("tried ")
            lives = tried.tell() > 6
        if x == 5 and not lives:
            os.kill(os.getpid(), signal.SIGKILL)
        sweep.report(loss=2.0)
        if x == 3:
            raise ValueError("no such depth")
        print("hello")
        return {"loss": float(x * x), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}

    running = begin(train, 8, name="squares")
    assert running.wait(WITHIN), running
    models = running.models()
    assert [model.phase for model in models] == [
        Phase.FAILED if model.number == 3 else Phase.DONE for model in models
    ]
    assert [m.result["loss"] for m in models if m.result] == [0, 1, 4, 16, 25, 36, 49]
    assert {m.number for m in models if m.attempt > 1} == {5}
    assert "ValueError: no such depth" in models[3].error
    assert "in train" in models[3].error
    assert "worker.py" not in models[3].error
    assert (tmp_path / "3").read_text() == "tried ", "a fault of its own is not tried again"
    assert models[0].output == "hello\n"
    assert models[0].gpus == (models[0].result["gpu"],)
    uuids = {gpu["uuid"] for gpu in node.status()["gpus"]}
    assert {m.gpus[0] for m in models} <= uuids
    assert {m.row["gpus"] for m in models} <= {"GPU 0", "GPU 1", "GPU 2"}
    with pytest.raises(SweepError, match="already"):
        begin(train, 1, name="squares")
    again = sweep.load("squares")
    assert again.wait(WITHIN)
    assert again.models() == models, "nothing is run twice"


@pytest.mark.story
def test_models_wait_until_the_pool_has_lent_their_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_GPUSHARE_TOKEN", "bob")
    quotas = {"users": {"bob": {"gpus": 2}}}
    folder = str(tmp_path)

    def train(x: int) -> int:
        open(f"{folder}/begun-{x}", "w").close()
        if x < 2:
            until(lambda: os.path.exists(f"{folder}/begun-{1 - x}"), "both compute", WITHIN)
        return x

    with (
        RunningPool(tmp_path / "pool", quotas) as pool,
        PoolHost(tmp_path / "a", pool, "a", "3x24GiB") as host,
    ):
        pool.sees("a")
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(host.socket))
        running = begin(train, 4)
        assert running.wait(WITHIN), running
        assert running.status().counts[Phase.DONE] == 4, running.models()


def test_others_look_at_a_sweep_while_it_runs_and_failed_models_are_tried_again(
    node: RunningNode, tmp_path: Path
) -> None:
    goes, mended = str(tmp_path / "goes"), str(tmp_path / "mended")

    def train(x: int) -> dict[str, float]:
        import os
        import time

        if x == 1 and not os.path.exists(mended):
            raise ValueError("the disk is full")
        while x == 2 and not os.path.exists(goes):
            time.sleep(0.02)
        return {"accuracy": float("nan") if x == 0 else x / 10}

    running = begin(train, 3, name="seen")
    seen = sweep.look("seen")  # as in another kernel: it has no lock
    until(lambda: seen.status().counts[Phase.FAILED] == 1, "one has failed", WITHIN)
    until(lambda: seen.models()[2].phase is Phase.RUNNING, "one runs", WITHIN)
    assert not seen.status().is_over
    open(goes, "w").close()
    assert running.wait(WITHIN)
    assert "Best: model 2, with the most accuracy: 0.2." in str(seen)
    assert seen.best("accuracy", most=False) == Best(2, "accuracy", 0.2, False), "NaN is no number"
    assert seen.status().is_over
    open(mended, "w").close()
    again = sweep.load("seen", retry=True)
    assert again.wait(WITHIN)
    assert [model.phase for model in again.models()] == [Phase.DONE] * 3
    assert again.models()[1].attempt == 2
    assert again.models()[2].attempt == 1, "what has a result is not run twice"


@pytest.mark.story
def test_a_sweep_whose_kernel_died_goes_on(node: RunningNode, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    tried.mkdir()
    code = f"""
        import jupyter_gpushare, sys
        def train(x):
            import os, time
            with open({str(tried)!r} + f"/{{x}}", "a") as file:
                file.write(".")
            while x > 2 and not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.01)
            return x
        jupyter_gpushare.sweep(train, range(6), memory="8GiB", every=0.1, name="died").wait()
    """
    kernel = subprocess.Popen([sys.executable, "-c", inspect.cleandoc(code)])
    until(lambda: len(list(tried.iterdir())) == 6, "three are done, three run")
    with pytest.raises(SweepError, match="runs already"):
        sweep.load("died")
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    (tmp_path / "go").touch()
    running = sweep.load("died")
    assert running.wait(WITHIN), running
    assert [model.result for model in running.models()] == list(range(6))
    assert {file.name: len(file.read_text()) for file in tried.iterdir()} == {
        **dict.fromkeys("012", 1),
        **dict.fromkeys("345", 2),
    }
    until(lambda: not node.status()["leases"], "the workers of the dead kernel have ended, too")


def test_a_notebook_wins_a_card_back_and_the_model_runs_again(
    node: RunningNode, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    running = begin(held(go), 3, name="polite")
    until(lambda: len(node.status()["leases"]) == 3, "all cards are taken")
    with node.client() as notebook:
        # No model ends by itself.
        lease = notebook.request(memory=24 * 2**30, priority_class="interactive")
        assert lease["gpus"]
        until(lambda: running.status().counts[Phase.QUEUED] == 1, "one model waits")
        assert _ends(node) == ["released"], "it gave its card back, and was not lost"
        running.stop()
        assert _ends(node) == ["released"] * 3
    go.touch()
    running = sweep.load("polite")
    assert running.wait(WITHIN), running
    assert [model.result for model in running.models()] == [0, 1, 2]


@pytest.mark.story
def test_a_lease_that_ends_stops_the_sweep(node: RunningNode, tmp_path: Path) -> None:
    """Where a person ends it another model would take the card at once."""
    go = tmp_path / "go"
    running = begin(held(go, reports=True), 5, name="stopped")
    until(lambda: len(node.status()["leases"]) == 3, "three run")
    leases = node.status()["leases"]
    assert {(lease["job"], lease["job_kind"]) for lease in leases} == {("stopped", "sweep")}
    with node.client() as person:
        person.call(Method.RELEASE, lease=leases[0]["id"])
    assert running.wait(WITHIN), running
    assert "The lease was released. sweep.load('stopped') goes on." in str(running)
    assert not [model.error for model in running.models() if model.error]
    counts = running.status().counts
    assert (counts[Phase.QUEUED], counts[Phase.RUNNING], counts[Phase.DONE]) == (5, 0, 0)
    go.touch()
    again = sweep.load("stopped")
    assert again.wait(WITHIN), again
    assert [model.result for model in again.models()] == list(range(5))


def _ends(node: RunningNode) -> list[str]:
    with node.client() as client:
        events = client.call(Method.HISTORY, limit=1000)["events"]
    return [event["reason"] for event in events if event["kind"] == "LeaseEnded"]


def test_what_cannot_be_sent_to_a_worker() -> None:
    lock = threading.Lock()
    with pytest.raises(SweepError, match="cannot be sent"):
        sweep(lambda: lock, [{}])


@pytest.mark.story
def test_a_notebook_sees_it_live(node: RunningNode, tmp_path: Path) -> None:
    data = {"JUPYTER_DATA_DIR": str(tmp_path / "data")}
    with Kernel(tmp_path, node.socket, **data) as kernel:
        kernel.ok(
            "from jupyter_gpushare import sweep\n"
            "def train(lr, depth):\n"
            "    for step in range(3):\n"
            "        sweep.report(loss=lr * depth / (step + 1), step=step)\n"
            "    if depth == 4: raise ValueError('<too deep>')\n"
            "    return {'loss': lr * depth}\n"
        )
        shown = kernel.ok(
            "running = sweep(train, [{'lr': 0.5, 'depth': d} for d in (2, 3, 4)], memory='8GiB',"
            " every=0.1, name='seen')"
        )
        first = shown.rich()[0]["text/plain"].splitlines()[0]
        assert first.startswith("Sweep seen: ")
        assert sum(map(int, re.findall(r"\d+", first))) == 3, "where the models are by then"
        # An update belongs to the cell that runs by then.
        waits = kernel.ok("running.wait(50)")
        assert "True" in waits.plain()
        until(lambda: "2 done, 1 failed" in _last(kernel, shown, waits), "the last update")
        html = _last(kernel, shown, waits)
        for words in ("<svg", "<title>model 0: 0.333333</title>", "ValueError: &lt;too deep&gt;"):
            assert words in html
        assert "<too deep>" not in html
        assert "localeCompare" in html, "a click on a head sorts"
        assert "ValueError" in kernel.ok("running.models()[2].error").plain()
        kernel.ok("rows = running.results()")
        assert "1.5" in kernel.ok("rows").plain()


def _last(kernel: Kernel, *cells: Shown) -> str:
    kernel.pump()
    found = [data for shown in cells for data in shown.rich() if "text/html" in data]
    return str(found[-1]["text/html"])


@pytest.mark.story
def test_in_a_terminal(node: RunningNode, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def train(lr, depth):\n    return {'loss': lr * depth}\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return in_process("sweep", *words)

    over = ["--over", "lr=1e-2,0.5", "--over", "depth=2,4"]
    done = run(str(file), *over, "--memory=8GiB", "--name=typed", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["loss"] for row in json.loads(done.stdout)["models"]] == [0.02, 0.04, 1.0, 2.0]
    file.unlink()
    again = run("--resume", "typed")
    assert again.returncode == 0
    assert "Best: model 0, with the least loss: 0.02." in again.stdout
    shown = run("--show", "typed", "--most", "loss", "--json")
    assert json.loads(shown.stdout)["best"] == 3
    assert "with the least" not in run("--show", "typed", "--most", "loss").stdout
    wrong = {
        (str(file), *over): "No such file",
        ("x.py",): "over what?",
        tuple(over): "which file?",
        ("x.py", "--over", "lr"): "say a name and values",
        ("--show", "other"): "There is no sweep 'other'",
        ("x.py", "--retry"): "--resume NAME --retry",
        ("--show", "typed", "--most", "los"): "no result has a number los; did you mean loss?",
        ("--delete", "typed", "--resume", "typed"): "say one thing at a time",
    }
    for words, said in wrong.items():
        assert said in run(*words).stderr
    file.write_text("def tarin(): ...")
    assert "defines no function train" in run(str(file), *over).stderr


def test_a_model_may_be_a_function_of_a_file_with_its_own_imports(
    node: RunningNode, tmp_path: Path
) -> None:
    (tmp_path / "nearby.py").write_text("WIDTH = 7\n")
    text = "import nearby\ndef fit(x): return x + nearby.WIDTH\n"
    running = sweep(Code(str(tmp_path / "f.py"), text, "fit"), [1, 2], memory="8GiB", every=0.1)
    assert running.wait(WITHIN)
    assert [model.result for model in running.models()] == [8, 9]


def test_results_are_plain() -> None:
    numpy = pytest.importorskip("numpy")
    assert plain({"loss": numpy.float32(0.5), "sizes": (1, numpy.int64(2))}) == {
        "loss": 0.5,
        "sizes": [1, 2],
    }
    with pytest.raises(TypeError, match="save what is larger to a file"):
        plain(object())


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SweepError, match="pip install ray"):
        sweep(abs, [1], engine="ray", name="wide")


@pytest.mark.story
def test_ctrl_c_in_a_terminal_stops_it_and_says_how_it_goes_on(
    node: RunningNode, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        f"import os, time\ndef train(x):\n    open({str(tmp_path)!r} + f'/go-{{x}}', 'a')\n"
        f"    while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
    )
    line = [sys.executable, "-m", "jupyter_gpushare.cli", "sweep"]
    typed = subprocess.Popen(
        [*line, str(file), "--over=x=1,2", "--name=cut"], stderr=subprocess.PIPE, text=True
    )
    until(lambda: len(list(tmp_path.glob("go-*"))) == 2, "both run")
    typed.send_signal(signal.SIGINT)
    assert "Go on: jupyter gpushare sweep --resume cut" in typed.communicate(timeout=WITHIN)[1]
    assert typed.returncode == 130
    (tmp_path / "go").touch()
    subprocess.run([*line, "--resume=cut"], check=True, capture_output=True, timeout=WITHIN)
