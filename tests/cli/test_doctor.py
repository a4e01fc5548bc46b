"""``jupyter gpushare doctor`` finds each thing that can be wrong, and says what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.cuda import CudaWorld
from support.disk import fill, remount, tiny_disk
from support.livenode import CLI, LiveNode
from support.nvml import GIB, NvmlWorld
from support.scripted_node import ScriptedNode, Visitor

import jupyter_gpushare
from jupyter_gpushare.cli import checks
from jupyter_gpushare.cli.doctor import as_text, examine
from jupyter_gpushare.cli.jobchecks import batch_job
from jupyter_gpushare.console.check import Check, Level
from jupyter_gpushare.protocol.address import SYSTEM_SOCKET, Found
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.server.otherpythons import client_source

Report = dict[str, list[dict[str, Any]]]
Quick = Callable[..., tuple[int, Report]]

BUILT_PANEL = Path(jupyter_gpushare.__file__).parent / "labextension" / "package.json"


def doctor(
    folder: Path, environ: Mapping[str, str] | None = None, clean: LiveNode | None = None
) -> tuple[int, Report]:
    """The exit code, and the checks by name, of a whole doctor in a process of its own."""
    done = subprocess.run(
        [*CLI, "doctor", "--json"],
        env={**(clean or LiveNode(folder)).environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=folder,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return judged(done)


def judged(done: subprocess.CompletedProcess[str]) -> tuple[int, Report]:
    """Every document keeps what is promised of it."""
    document = json.loads(done.stdout)
    found: Report = {}
    for check in document["checks"]:
        assert set(check) == {"name", "level", "text", "fix"}
        assert check["text"]
        assert check["fix"] or check["level"] != "problem"
        found.setdefault(check["name"], []).append(check)
    levels = [check["level"] for check in document["checks"]]
    assert document["problems"] == levels.count("problem")
    assert document["warnings"] == levels.count("warning")
    assert done.returncode == (1 if document["problems"] else 0)
    return done.returncode, found


@pytest.fixture
def quick(without_slow_checks: None, tmp_path: Path) -> Quick:
    """As `doctor` in the test's folder, in this process, and without the slow checks."""

    def look(
        environ: Mapping[str, str] | None = None, clean: LiveNode | None = None
    ) -> tuple[int, Report]:
        return judged((clean or LiveNode(tmp_path)).here("doctor", "--json", environ=environ))

    return look


def only(report: Report, name: str) -> dict[str, Any]:
    (check,) = report[name]
    return check


# -- all is well -----------------------------------------------------------------------------


def test_a_sound_installation(node: LiveNode, tmp_path: Path) -> None:
    before = set(node.directory.rglob("*"))
    code, report = doctor(tmp_path, clean=node)
    assert code == 0, report
    expected = {
        *("package", "platform", "switch", "start-up file", "import hook"),
        *("import hook in a new Python", "server extension", "IPython extension"),
        *("node manager", "versions", "identity", "quota", "NVIDIA driver", "process watch"),
        *("peer identity", "ledger", "panel", "settings", "CUDA_VISIBLE_DEVICES", "frameworks"),
    }
    assert expected | {"model caches"} <= set(report)
    assert all(only(report, name)["level"] == "ok" for name in expected), report
    assert jupyter_gpushare.__version__ in only(report, "package")["text"]
    assert "2 simulated GPUs" in only(report, "node manager")["text"]
    assert "administrator" in only(report, "identity")["text"]
    assert "made for JupyterLab" in only(report, "panel")["text"]
    # It changes nothing.
    created = set(node.directory.rglob("*")) - before
    assert {path.name for path in created} <= {"data"}  # Jupyter's own, when it is asked for it


def test_a_fix_stands_under_its_problem() -> None:
    text = as_text(Check("ledger", Level.PROBLEM, "It is full. " * 20, "Free some space."))
    lines = text.split("\n")
    assert lines[0].startswith("problem  ledger: It is full.")
    assert lines[-1] == "         fix: Free some space."
    assert max(map(len, lines)) <= 100


# -- the installation ------------------------------------------------------------------------


def test_elsewhere_than_on_linux_it_says_that_it_is_inert() -> None:
    found = list(examine({}, Path("/nowhere/ledger"), "darwin"))
    assert [check.name for check in found] == ["package", "platform"]
    assert found[1].level is Level.WARNING
    assert "inert" in found[1].text


def test_the_off_switch_is_noticed(tmp_path: Path) -> None:
    code, report = doctor(tmp_path, {"JUPYTER_GPUSHARE": "off", "JUPYTER_GPUSHARE_SOCKET": ""})
    assert code == 0
    for name in ("switch", "import hook", "import hook in a new Python"):
        assert only(report, name)["level"] == "warning"
        assert "unset JUPYTER_GPUSHARE" in only(report, name)["fix"]


def test_a_python_without_start_up_files_is_noticed(tmp_path: Path) -> None:
    path = os.pathsep.join(
        [str(Path(jupyter_gpushare.__file__).parents[1]), sysconfig.get_paths()["purelib"]]
    )
    code = "from jupyter_gpushare.cli import checks as it; print(it.hook_here(False))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**LiveNode(tmp_path).environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PROBLEM" in done.stdout
    assert "-S" in done.stdout


def test_a_disabled_server_extension_is_noticed(quick: Quick, tmp_path: Path) -> None:
    config = tmp_path / "first"  # before the environment's own directory
    config.mkdir()
    setting = {"ServerApp": {"jpserver_extensions": {"jupyter_gpushare": False}}}
    (config / "jupyter_server_config.json").write_text(json.dumps(setting))
    code, report = quick({"JUPYTER_CONFIG_PATH": str(config)})
    assert code == 1
    assert "disabled" in only(report, "server extension")["text"]
    assert only(report, "server extension")["fix"].startswith("jupyter server extension enable")


def test_a_kernel_of_another_python_is_noticed(quick: Quick, tmp_path: Path) -> None:
    """A virtual environment without us, registered as a kernel: the commonest trap."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    spec = tmp_path / "data" / "kernels" / "bare"
    spec.mkdir(parents=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    argv = [bare, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    told: dict[str, Any] = {"argv": argv, "display_name": "Bare", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(told))
    _, report = quick()
    (check,) = [row for row in report["kernels"] if "kernel bare" in row["text"]]
    assert check["level"] == "warning"
    assert check["fix"] == f"{bare} -m pip install {client_source()}"
    kept = {"kernel_provisioner": {"provisioner_name": "gpushare"}}
    (spec / "kernel.json").write_text(json.dumps({**told, "metadata": kept}))
    _, report = quick()
    assert not any("kernel bare" in row["text"] for row in report.get("kernels", ()))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"InteractiveShellApp": 5}', "\xff"])
def test_a_missing_or_broken_ipython_configuration_is_no_traceback(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core import application

    monkeypatch.setattr(application, "ENV_CONFIG_DIRS", [str(tmp_path)])
    monkeypatch.setattr(application, "SYSTEM_CONFIG_DIRS", [])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    if content is not None:
        (tmp_path / "ipython_kernel_config.json").write_text(content, encoding="latin-1")
    check = checks.ipython_extension()
    assert check.level is Level.PROBLEM
    assert "extra_extensions" in (check.fix or "")


# -- the node manager ------------------------------------------------------------------------


def test_no_node_manager_is_a_warning(quick: Quick) -> None:
    code, report = quick({"JUPYTER_GPUSHARE_SOCKET": ""})
    assert code == 0
    assert only(report, "node manager")["level"] == "warning"
    assert "jupyter gpushare node" in only(report, "node manager")["fix"]
    assert "--simulate" in only(report, "NVIDIA driver")["fix"]


@pytest.mark.parametrize(
    ("found", "level", "said"),
    [
        (None, "warning", "find no node manager, as they start no Jupyter server"),
        (Found("/told/s", configured=True), "warning", "only if the editor has JUPYTER_GPUSHARE_S"),
        (Found("/run/me/gpushare-node-0.sock", False), "warning", "only as long as the Jupyter se"),
        (Found(SYSTEM_SOCKET, configured=False), "ok", f"find {SYSTEM_SOCKET}, as all do"),
    ],
)
def test_whether_an_editors_kernels_find_one(
    found: Found | None, level: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpushare.cli.checks.find_socket", lambda environ: found)
    environ = {"JUPYTER_RUNTIME_DIR": "/run/me"}
    check = checks.editors({**environ, "VSCODE_PID": "4711"})
    assert (check.level.value, said in check.text) == (level, True), check
    assert checks.editors(environ).level is Level.OK, "nobody asked in an editor"


@pytest.mark.parametrize(
    ("is_stale", "said"), [(False, "there is no socket"), (True, "nobody listens")]
)
def test_a_configured_node_manager_that_is_not_there_is_a_problem(
    quick: Quick, tmp_path: Path, is_stale: bool, said: str
) -> None:
    if is_stale:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(tmp_path / "node.sock"))
    code, report = quick()
    assert code == 1
    check = only(report, "node manager")
    assert "JUPYTER_GPUSHARE_SOCKET" in check["text"]
    assert said in check["text"]


def tells(status: dict[str, Any]) -> ScriptedNode:
    """A node manager with this status."""

    def script(visitor: Visitor) -> None:
        visitor.welcome()
        visitor.answer(visitor.read(), status)

    return ScriptedNode(script)


def at(node: ScriptedNode) -> dict[str, str]:
    return {"JUPYTER_GPUSHARE_SOCKET": str(node.socket)}


NONSENSE = (b"SSH-2.0-OpenSSH\n", b"\xff\xfe\n", b"[]\n", b"x" * 70_000)


@pytest.mark.parametrize("said", [*NONSENSE, "This node manager speaks protocol 2."])
def test_something_else_at_the_socket(quick: Quick, said: bytes | str) -> None:
    def script(visitor: Visitor) -> None:
        hello = visitor.read()
        if isinstance(said, bytes):
            visitor.send(said if said.endswith(b"\n") else said * 300)
        else:
            visitor.refuse(hello, Reason.UNSUPPORTED_PROTOCOL, said)

    with ScriptedNode(script) as node:
        code, report = quick(at(node))
    check = only(report, "node manager")
    assert code == 1
    assert ("no node manager" if isinstance(said, bytes) else said) in check["text"]
    assert isinstance(said, bytes) or "Upgrade" in check["fix"]


def test_what_a_node_manager_reports_is_passed_on(quick: Quick, node: LiveNode) -> None:
    status = node.json("status")
    status["node"]["version"] = "9.9"
    status["says"].append("problem:bad The ledger's disk is full.")
    status["gpus"][0]["says"].append("problem:bad It has fallen off the bus.")
    status["gpus"][1]["says"].append("squatter:warn A process uses {bytes 5} without a lease.")
    status["quota"]["says"].append("advice:warn Your quota has no GPU.")

    with tells(status) as told:
        code, report = quick(at(told))
    assert code == 1
    assert "9.9" in only(report, "versions")["text"]
    assert only(report, "versions")["level"] == "warning"
    assert only(report, "quota")["level"] == "warning"
    assert "disk is full" in only(report, "node health")["text"]
    lost, squatted = report["GPU"]
    assert lost["text"] == "GPU 0: It has fallen off the bus."
    assert squatted["text"] == "GPU 1: A process uses 5 B without a lease."
    assert (lost["level"], squatted["level"]) == ("problem", "warning")


def test_gpus_that_are_left_out_are_told_and_no_quota_is_blamed(
    quick: Quick, node: LiveNode
) -> None:
    status = node.json("status")
    status["gpus"] = []
    status["says"].append("left_out:warn GPU 0 is left out: it is lost.")
    status["quota"]["says"].append("advice This node has no GPU to share now.")

    with tells(status) as told:
        _code, report = quick(at(told))
    assert only(report, "GPU")["text"] == "GPU 0 is left out: it is lost."
    quota = only(report, "quota")
    assert (quota["level"], quota["text"]) == ("warning", "This node has no GPU to share now.")


# -- the machine -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "persistence", "text"),
    [
        (13000, True, "possible (driver 580.0.stub, cuda-bindings"),
        (13000, False, "nvidia-smi -pm 1"),
        (12040, True, "The driver is of CUDA 12.4"),
    ],
)
def test_whether_the_driver_can_checkpoint(
    quick: Quick,
    cuda_world: CudaWorld,
    tmp_path: Path,
    version: int,
    persistence: bool,
    text: str,
) -> None:
    gpu = cuda_world.add_gpu(memory=24 * GIB)
    cuda_world.set_version(version)
    cuda_world.set_persistence(gpu, persistence)
    _, report = quick(cuda_world.environ(LiveNode(tmp_path).environ))
    assert any(text in check["text"] for check in report["driver checkpoints"])
    expected = "ok" if persistence and version == 13000 else "warning"
    assert report["driver checkpoints"][-1]["level"] == expected


def test_the_driver_and_its_gpus_are_named(
    quick: Quick, nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    nvml_world.add_gpu(memory=24 * GIB)
    base = {**LiveNode(tmp_path).environ, "JUPYTER_GPUSHARE_SOCKET": ""}
    _, report = quick(nvml_world.environ(base))
    check = only(report, "NVIDIA driver")
    assert check["level"] == "ok"
    assert "no GPU" not in check["text"]


def test_the_ledger_is_that_of_the_node_manager_that_answers(
    quick: Quick, node: LiveNode, tmp_path: Path
) -> None:
    """Not the place where one of the caller's own would have it."""
    assert str(node.ledger) in only(quick(clean=node)[1], "ledger")["text"]
    status = node.json("status")
    assert status["node"]["ledger"] == str(node.ledger)
    with tiny_disk(tmp_path / "disk", 2 << 20) as disk:
        status["node"]["ledger"] = str(tmp_path / "disk" / "ledger.sqlite")
        fill(disk)
        with tells(status) as told:
            _, report = quick(at(told))
        assert "full" in only(report, "ledger")["text"]
    # One that was damaged lies beside it, though all seems well by now.
    node.ledger.with_name("ledger.sqlite.corrupt-20231114T221320Z").touch()
    found = checks.ledger_in_use({"ledger": str(node.ledger)})
    assert found.level is Level.WARNING
    assert "ledger.sqlite.corrupt-20231114T221320Z" in found.text
    assert checks.ledger_place(node.ledger).level is Level.WARNING
    node.ledger.with_name("ledger.sqlite.corrupt-20231114T221320Z").unlink()
    # Who is no administrator is not told where it is.
    assert checks.ledger_in_use({"ledger": None}).level is Level.OK


def test_the_panel_is_compared_with_the_jupyterlab_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panel that is installed is made for it: see the sound installation."""
    there = tmp_path / "share" / "labextensions" / "jupyter-gpushare"
    there.mkdir(parents=True)
    wanted = {"dependencies": {"@jupyterlab/application": "^3.0.0"}}
    package = json.loads(BUILT_PANEL.read_text())
    (there / "package.json").write_text(json.dumps({**package, **wanted}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    monkeypatch.setattr(checks, "PATIENCE", 60.0)  # seconds, for a busy machine
    check = checks.panel()
    assert check.level is Level.PROBLEM
    assert "it wants @jupyterlab/application ^3" in check.text


def test_a_ledger_that_cannot_be_written(quick: Quick, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    ledger = tmp_path / "disk" / "deeper" / "ledger.sqlite"
    (config / "jupyter_gpushare_config.py").write_text(
        f"c.GpuShareExtension.ledger = {str(ledger)!r}\n"
    )
    with tiny_disk(tmp_path / "disk", 2 << 20) as disk:
        environ = {"JUPYTER_GPUSHARE_SOCKET": ""}
        assert only(quick(environ)[1], "ledger")["level"] == "ok"
        fill(disk)
        code, report = quick(environ)
        assert (code, "full" in only(report, "ledger")["text"]) == (1, True)
        remount(disk, "ro")
        code, report = quick(environ)
        assert (code, "read-only" in only(report, "ledger")["text"]) == (1, True)
        remount(disk, "rw")


def test_settings_that_make_no_sense() -> None:
    (check,) = checks.settings({"JUPYTER_GPUSHARE_GPUS": "two", "JUPYTER_GPUSHARE_CLASS": "batch"})
    assert check.level is Level.PROBLEM
    assert "JUPYTER_GPUSHARE_GPUS='two'" in check.text
    sound = {"JUPYTER_GPUSHARE_GPUS": "quota", "JUPYTER_GPUSHARE_MEMORY": "8GiB"}
    assert [check.level for check in checks.settings(sound)] == [Level.OK]


def test_gpus_bound_by_something_else_are_noticed() -> None:
    assert checks.cuda_visible_devices({}).level is Level.OK
    leased = {"CUDA_VISIBLE_DEVICES": "GPU-1", "JUPYTER_GPUSHARE_LEASE": "L1"}
    assert checks.cuda_visible_devices(leased).level is Level.OK
    assert checks.cuda_visible_devices({"CUDA_VISIBLE_DEVICES": "0"}).level is Level.WARNING
    in_job = {"CUDA_VISIBLE_DEVICES": "0", "PBS_JOBID": "7"}
    assert checks.cuda_visible_devices(in_job).level is Level.OK
    submitted = {**leased, **in_job, "JUPYTER_GPUSHARE_SET_IN": "|"}  # in a notebook
    assert "batch system" in checks.cuda_visible_devices(submitted).text


def job(**more: str) -> list[Check]:
    """What is said in a job of Slurm that ends in a while; ``tests/slurm`` has a real one."""
    given = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "SLURMD_NODENAME": "n1"}
    ends = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(time.time()) + 7200)}
    return [*batch_job({**given, **ends, **more})]


def test_a_job_says_which_it_is_and_until_when() -> None:
    (check,) = job(SLURM_ARRAY_JOB_ID="6", SLURM_ARRAY_TASK_ID="3", SLURM_STEP_ID="1")
    assert check.level is Level.OK
    said = "Slurm job 7 (task 3 of array 6) step 1 on n1; GPUs: 0,1; until 20"
    assert check.text.startswith(said)
    assert not [*batch_job({"CUDA_VISIBLE_DEVICES": "0"})]
    (other,) = batch_job({"PBS_JOBID": "8.pbs"})
    assert other.text.endswith("none that are known here; nobody says until when")
    for nonsense in ("9" * 18, "9" * 400, "soon"):
        (check,) = job(SLURM_JOB_END_TIME=nonsense)
        assert check.text.endswith("nobody says until when")
    (late,) = job(SLURM_JOB_END_TIME="9" * 11)
    assert "until 5138" in late.text


def test_what_is_wrong_with_a_job_is_noticed(tmp_path: Path) -> None:
    (soon,) = job(SLURM_JOB_END_TIME=str(int(time.time()) + 100))
    assert soon.level is Level.WARNING
    assert "Save your work" in (soon.fix or "")
    for given, value in (("2", "0,1,2"), ("1", "0,1")):
        _, more = job(SLURM_GPUS_ON_NODE=given, CUDA_VISIBLE_DEVICES=value)
        assert more.level is Level.PROBLEM
        assert f"more GPUs than the {given} that Slurm gave" in more.text
        assert not more.text.endswith("."), "the status puts one after each"
    assert len(job(SLURM_GPUS_ON_NODE="0", CUDA_VISIBLE_DEVICES="")) == 1
    theirs = f"{tmp_path}/gpushare-node-12345678.sock"
    _, socket_ = job(JUPYTER_RUNTIME_DIR=str(tmp_path), JUPYTER_GPUSHARE_SOCKET=theirs)
    assert "is of another job or host" in socket_.text
