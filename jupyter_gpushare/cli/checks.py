"""The checks of ``jupyter gpushare doctor``. Each is one function and changes nothing.

Most trouble with this package is silent: a start-up file that pip did not write, a kernel of
another Python, a socket that nobody answers. The import goes on and the code runs on the CPU. So
each link of the chain from the installation to the first GPU is looked at by itself, in the order
in which a person would look, and what is wrong comes with what to do about it.

A check must not be what hangs or breaks. What may crash or hang (NVML, JupyterLab's own functions,
another Python) runs in a process of its own, with a time limit, and the other checks go on.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import site
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .. import __version__
from .._boot import FRAMEWORKS
from ..console.check import Check, Level, ok, problem, warning
from ..console.node import NodeRefused, NodeSilent, connect
from ..figures import counted
from ..protocol import names, said
from ..protocol.address import (
    AWAY_FOR,
    CLEARED_BY,
    SYSTEM_SOCKET,
    Found,
    embedded_socket,
    find_socket,
    host_id,
    is_administrators,
    jupyter_runtime_dir,
)
from ..protocol.batchjob import came_along, job_of, why_no_gpu
from ..protocol.holding import gpu_number
from ..protocol.messages import FEATURES, Method
from ..server.otherpythons import CLIENT_WHEEL, PATIENCE, has_hook, lacking, python_of

#: The argument for pip: the package is not on PyPI.
WHEEL = f"jupyter_gpushare-{__version__}-py3-none-any.whl"
#: ``SO_PEERPIDFD`` (Linux 6.5): a pidfd of the process at the other end of a socket.
SO_PEERPIDFD = 77

_NVML = """
import json, pynvml
try:
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
    print(json.dumps({"driver": pynvml.nvmlSystemGetDriverVersion(), "gpus": names}))
except pynvml.NVMLError as error:
    print(json.dumps({"error": str(error)}))
"""
# `jupyter labextension list` uses the same function.
_PANEL = """
import json
from jupyter_core.paths import jupyter_path
from jupyterlab.commands import AppOptions, _validate_compatibility, get_app_info
name = "jupyter-gpushare"
info = get_app_info(AppOptions(labextensions_path=jupyter_path("labextensions")))
ours = info["federated_extensions"].get(name) or {"version": None, "dependencies": {}}
wrong = _validate_compatibility(name, ours["dependencies"], info["core_data"])
print(json.dumps({"there": ours["version"], "disabled": [*info["disabled"]],
    "wrong": [[str(part) for part in one] for one in wrong]}))
"""


# -- what is installed -----------------------------------------------------------------------


def package() -> Check:
    """The package itself, and which Python it is in."""
    place = Path(__file__).parent.parent
    version = sys.version.split()[0]
    return ok("package", f"jupyter_gpushare {__version__} in {place} (Python {version})")


def startup_file() -> Check:
    """The file that calls the import hook whenever this Python starts."""
    name = "jupyter_gpushare.start" if sys.version_info >= (3, 15) else "jupyter_gpushare.pth"
    folders = dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path])
    found = [Path(folder, name) for folder in folders if folder and Path(folder, name).is_file()]
    if not found:
        return problem(
            "start-up file",
            f"{name} is in none of this Python's site-packages: `import torch` does not ask for"
            " GPUs here.",
            f"pip install --force-reinstall --no-deps {CLIENT_WHEEL}",
        )
    return ok("start-up file", str(found[0]))


def hook_here(off: bool) -> Check:
    """Whether the hook is active in this process."""
    active = any(type(f).__module__ == "jupyter_gpushare._boot" for f in sys.meta_path)
    return _hook("import hook", "this Python", active, off)


def hook_in_child(off: bool) -> Check:
    """Whether a Python started from here has the hook, as a kernel or a script would."""
    answer = has_hook(sys.executable)
    if answer is None:
        return problem(
            "import hook in a new Python",
            f"{sys.executable} could not be started for the check.",
            "Start it by hand and look at what it says.",
        )
    return _hook("import hook in a new Python", "a freshly started Python", answer, off)


def _hook(name: str, where: str, active: bool, off: bool) -> Check:
    if off:
        state = "active although it is switched off" if active else "switched off"
        return warning(name, f"{state} in {where}", f"unset {names.SWITCH}")
    if active:
        return ok(name, f"active in {where}")
    return problem(
        name,
        f"not active in {where}: frameworks are imported without asking for GPUs.",
        "Reinstall jupyter_gpushare in this environment, and do not start Python with -S.",
    )


def kernels(off: bool) -> Iterator[Check]:
    """Kernels that run another Python than this one: the hook must be installed there too."""
    if off:
        return
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError:
        return
    seen = set()
    for name, spec in sorted(KernelSpecManager().get_all_specs().items()):
        python = python_of(spec["spec"])
        if python is None or python in seen:
            continue
        seen.add(python)
        if has_hook(python):
            yield ok("kernels", f"kernel {name}: the import hook is active in {python}")
        else:
            yield warning("kernels", *lacking(name, python))


def server_extension() -> Check:
    """Whether Jupyter Server loads the extension."""
    from jupyter_core.paths import jupyter_config_path
    from jupyter_server.extension.config import ExtensionConfigManager

    manager = ExtensionConfigManager(read_config_path=jupyter_config_path())
    enabled = manager.get_jpserver_extensions().get("jupyter_gpushare")  # type: ignore[no-untyped-call]
    fix = "jupyter server extension enable jupyter_gpushare"
    if enabled is None:
        text = "Jupyter Server does not list the extension (no jpserver_extensions entry)."
        return problem("server extension", text, fix)
    if not enabled:
        return problem("server extension", "The extension is disabled in Jupyter Server.", fix)
    return ok("server extension", "enabled in Jupyter Server")


def panel() -> Check:
    """Whether the JupyterLab that is installed here takes our panel."""
    name = "panel"
    try:
        lab = importlib.metadata.version("jupyterlab")
    except importlib.metadata.PackageNotFoundError:
        return ok(name, "JupyterLab is not installed in this Python")
    try:
        seen = told_by(["-P", "-c", _PANEL])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return warning(name, f"JupyterLab {lab} does not say whether it accepts the panel.")
    if not seen["there"]:
        return problem(
            name,
            f"JupyterLab {lab} finds no panel in its labextensions.",
            f"pip install --force-reinstall --no-deps {WHEEL}",
        )
    if "jupyter-gpushare" in seen["disabled"]:
        fix = "jupyter labextension enable jupyter-gpushare"
        return warning(name, f"The panel is disabled in JupyterLab {lab}.", fix)
    if seen["wrong"]:
        told = "; ".join(f"{what} {wants}, here {has}" for what, has, wants in seen["wrong"])
        return problem(
            name,
            f"JupyterLab {lab} is not one that the panel {seen['there']} is made for: it wants"
            f" {told}.",
            "Install versions of jupyter_gpushare and jupyterlab that go together.",
        )
    return ok(name, f"{seen['there']}, made for JupyterLab {lab} too")


def told_by(arguments: list[str]) -> dict[str, Any]:
    """What a new Python prints as JSON. Raises `OSError`, `ValueError`, `TimeoutExpired`."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return dict(json.loads(done.stdout))


def ipython_extension() -> Check:
    """Whether IPython kernels load the magics."""
    from IPython.core.application import ENV_CONFIG_DIRS, SYSTEM_CONFIG_DIRS
    from IPython.paths import get_ipython_dir

    profile = os.path.join(get_ipython_dir(), "profile_default")
    for folder in (profile, *ENV_CONFIG_DIRS, *SYSTEM_CONFIG_DIRS):
        for name in ("ipython_kernel_config", "ipython_config"):
            file = Path(folder, name + ".json")
            if _loads_extension(file):
                return ok("IPython extension", f"enabled by {file}")
            script = file.with_suffix(".py")
            if script.is_file() and "jupyter_gpushare" in script.read_text("utf-8", "replace"):
                return ok("IPython extension", f"named in {script}")
    return problem(
        "IPython extension",
        "No IPython configuration loads it: kernels have no %gpushare.",
        f"pip install --force-reinstall --no-deps {CLIENT_WHEEL}, or add"
        ' c.InteractiveShellApp.extra_extensions = ["jupyter_gpushare"] to'
        f" {profile}/ipython_kernel_config.py",
    )


def _loads_extension(file: Path) -> bool:
    try:
        config = json.loads(file.read_text("utf-8"))
        lists = [
            section.get(trait, [])
            for section in config.values()
            if isinstance(section, dict)
            for trait in ("extensions", "extra_extensions")
        ]
    except (OSError, ValueError, AttributeError):
        return False
    return any("jupyter_gpushare" in names_ for names_ in lists if isinstance(names_, list))


def frameworks() -> Iterator[Check]:
    """The installed frameworks, without an import of them."""
    modules = importlib.metadata.packages_distributions()
    found = []
    for module in sorted(FRAMEWORKS):
        for distribution in sorted(set(modules.get(module, ()))):
            found.append(f"{distribution} {importlib.metadata.version(distribution)}")
    yield ok("frameworks", ", ".join(found) or "none is installed in this Python")


# -- the node manager ------------------------------------------------------------------------


def node_manager(environ: Mapping[str, str]) -> Generator[Check, None, dict[str, Any] | None]:
    """The socket, who answers there, and who it thinks we are; what that says of itself."""
    found = find_socket(environ)
    start = "jupyter gpushare node (for all users: as a system service), or open JupyterLab"
    if found is None:
        why = why_no_gpu(environ)
        text = "No node manager is set up here; imports stay inert."
        if job_of(environ):
            place = embedded_socket(jupyter_runtime_dir(environ), host_id(environ))
            text = f"No node manager runs in this job (none listens at {place}). {text}"
        yield warning("node manager", text if why is None else why, None if why else start)
        return None
    said_by = f" (from {names.SOCKET})" if found.configured else ""
    try:
        with connect(environ) as answers:
            hello, status = answers.hello, answers.call(Method.STATUS)
    except NodeRefused as error:
        yield problem(
            "node manager",
            f"The node manager at {found.path}{said_by} refuses: {error}",
            "Upgrade the older side to the same version of jupyter_gpushare."
            if error.reason == "unsupported_protocol"
            else "Ask the administrator of this node.",
        )
        return None
    except NodeSilent as error:
        yield problem(
            "node manager",
            f"Nothing usable answers at {found.path}{said_by}: {error}",
            f"Start it: {start}.{_or_clear(found)}",
        )
        return None
    node, now, quota = status["node"], status["node"]["time"], status["quota"]
    kind = "simulated GPU" if node["simulated"] else "GPU"
    text = f"{node['name']} at {found.path}{said_by}: {counted(len(status['gpus']), kind)}"
    yield ok("node manager", text)
    if node["version"] == __version__:
        yield ok("versions", f"node manager and this package are both {__version__}")
    else:
        yield warning(
            "versions",
            f"The node manager is {node['version']}, this package {__version__}; they speak"
            f" protocol {hello.get('protocol')}.{_lacks(hello)}",
            "Restart whichever is older after upgrading it.",
        )
    yield ok("identity", said.first(status, "you", now))
    told = (said.first(quota, about, now) for about in ("quota", "source", "held"))
    advice = [*_told(quota, _OF_QUOTA, now)]
    yield from advice or [ok("quota", "{} ({}); {} held".format(*told))]
    yield ok("preset", said.first(status, "preset", now) or _NO_PRESET)
    yield from _told(status, _OF_NODE, now)
    if "walls" not in node:
        yield ok("walls", "none: a program without a lease can open any GPU (docs/how-to/walls.md)")
    for gpu in status["gpus"]:
        yield from _told(gpu, _OF_GPU, now, f"GPU {gpu_number(gpu)}: ")
    return dict(node)


#: What is reported of what the node manager says: the name of the line, and what to do about it.
_OF_NODE: Final = {
    "problem": ("node health", "See the node manager's log."),
    "quotas_as_of": ("quotas", "See whether the Hub runs, and the node manager's log."),
    "left_out": ("GPU", "jupyter gpushare status shows when it is shared again."),
    "walls": ("walls", None),
}
_OF_QUOTA: Final = {"advice": ("quota", None)}
_OF_GPU: Final = {
    "problem": ("GPU", "Of a lost GPU the system log says more; it may need a reset."),
    "squatter": ("GPU", "jupyter gpushare status shows whose it is."),
}
_LEVELS: Final = {"good": Level.OK, "bad": Level.PROBLEM}


def _told(
    row: said.Document, names: Mapping[str, tuple[str, str | None]], now: float, of: str = ""
) -> Iterator[Check]:
    """What the node manager says of a part of its status, ``of`` which it is."""
    for fact in said.about(row, *names):
        (name, fix), level = names[fact["about"]], _LEVELS.get(fact["tone"], Level.WARNING)
        yield Check(name, level, f"{of}{said.text_of(fact, now)}", fact.get("hint") or fix)


def editors(environ: Mapping[str, str]) -> Check:
    """Whether kernels that VS Code or PyCharm start find a node manager that is there for them.

    An editor starts no Jupyter server that would host one. A warning only where we were started in
    an editor's terminal.
    """
    name, level = "editors", ok if _EDITORS.isdisjoint(environ) else warning
    found = find_socket(environ)
    if found is None:
        what = "find no node manager, as they start no Jupyter server that would host one"
    elif found.configured:
        what = f"find {found.path} only if the editor has {names.SOCKET}, too"
    elif not is_administrators(found, environ):
        what = f"have {found.path} only as long as the Jupyter server that hosts it"
    else:
        return ok(name, f"kernels that VS Code or PyCharm start find {found.path}, as all do")
    return level(name, f"Kernels that VS Code or PyCharm start {what}. docs/how-to/editors.md")


#: What editors set in their terminals.
_EDITORS: Final = frozenset({"VSCODE_IPC_HOOK_CLI", "VSCODE_PID", "PYCHARM_HOSTED"})


def _or_clear(found: Found) -> str:
    if found.configured:
        return f" Or unset {names.SOCKET}."
    if found.path != SYSTEM_SOCKET:
        return ""
    return (
        f" Where the one for all users was removed for good: {CLEARED_BY} (Jupyter servers, which"
        f" then host their own, wait {AWAY_FOR / 60:.0f} minutes for one that was just stopped)."
    )


_NO_PRESET: Final = (
    "none: each setting has its own default, or what the configuration says. "
    "c.NodeManagerApp.preset chooses a dozen of them for a class, a lab or your own machine."
)


def _lacks(hello: Mapping[str, Any]) -> str:
    lacks = [name for name in FEATURES if name not in hello["features"]]
    return f" It does not know {', '.join(lacks)}." if lacks else ""


def ask_nvml() -> dict[str, Any] | Check:
    """Ask NVML in another process, because a sick driver can hang its caller."""
    try:
        return told_by(["-c", _NVML])
    except subprocess.TimeoutExpired:
        return problem(
            "NVIDIA driver",
            f"NVML did not answer within {PATIENCE:.0f} s.",
            "Look at the system log; the driver or a GPU hangs.",
        )
    except (OSError, ValueError):
        return problem(
            "NVIDIA driver",
            "The NVML check itself failed.",
            "pip install --force-reinstall nvidia-ml-py",
        )


def nvml(node: Mapping[str, Any] | None, answer: dict[str, Any] | Check) -> Check:
    """The NVIDIA driver. ``answer``: what :func:`ask_nvml` gave."""
    if isinstance(answer, Check):
        return answer
    if "error" not in answer:
        gpus = ", ".join(answer["gpus"]) or "no GPU"
        return ok("NVIDIA driver", f"{answer['driver']}: {gpus}")
    if node is not None and node["simulated"]:
        return ok("NVIDIA driver", f"none ({answer['error']}); the GPUs are simulated")
    if node is not None:
        return warning(
            "NVIDIA driver",
            f"not visible from here ({answer['error']}), though the node manager has GPUs.",
            "Is this a container without GPU devices? Frameworks will not find the GPUs.",
        )
    return warning(
        "NVIDIA driver",
        f"none ({answer['error']}).",
        "To try things out: jupyter gpushare node --simulate 2x24GiB",
    )


def driver_checkpoints(
    environ: Mapping[str, str], answer: dict[str, Any] | Check
) -> Iterator[Check]:
    """Whether an idle kernel that uses CUDA can be parked whole, with any framework."""
    name = "driver checkpoints"
    if isinstance(answer, Check) or "error" in answer:
        yield ok(name, "not looked at: there is no NVIDIA driver here that answers")
        return
    from ..client.memory.driver import helper_environ
    from ..protocol.checkpoint import Ability, Cause, decode_answer
    from ..protocol.errors import ProtocolError

    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "jupyter_gpushare.node.checkpoint", "--probe"],
            capture_output=True,
            timeout=2 * PATIENCE,
            env=helper_environ(environ),
            check=False,
        )
        ability = decode_answer(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ProtocolError) as error:
        yield problem(name, f"The check itself failed: {error}", "Look at the system log.")
        return
    assert isinstance(ability, Ability)
    said = f"driver {answer['driver']}"
    if not ability.usable:
        fixes = {
            Cause.NO_BINDINGS: "pip install 'cuda-bindings>=12.8'",
            Cause.OLD_DRIVER: "Ask the administrator for driver 570 or newer.",
            Cause.NOT_PERMITTED: "Allow ptrace between a user's own processes.",
            Cause.NOT_SUPPORTED: "Share whole GPUs instead, where idle kernels shall be parked.",
        }
        yield warning(
            name,
            f"not possible ({said}): {ability.why} Idle kernels are parked by other means where"
            " their framework allows it.",
            fixes.get(ability.cause) if ability.cause else None,
        )
        return
    bindings = f"cuda-bindings {ability.bindings}"
    yield ok(name, f"possible ({said}, {bindings}); {ability.migration_why}")
    for caution in ability.cautions:
        yield warning(name, caution)


def pidfd() -> Check:
    """Without pidfds a process cannot be watched."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return problem(
            "process watch",
            f"The kernel gives no pidfd ({error.strerror}): the end of a task is seen late.",
            "Linux 5.3 or newer is needed; a container's seccomp profile may forbid it.",
        )
    return ok("process watch", "pidfd_open works")


def peer_pidfd() -> Check:
    """Newer kernels name the peer of a socket beyond doubt; older ones need a second look."""
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        try:
            os.close(left.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return ok("peer identity", "SO_PEERCRED (no SO_PEERPIDFD before Linux 6.5)")
    return ok("peer identity", "SO_PEERPIDFD works")


def ledger_in_use(node: Mapping[str, Any]) -> Check:
    """The ledger of the node manager that answers, which may be another user's."""
    told = node.get("ledger")
    if not told:
        return ok("ledger", "the node manager's that answers, which tells administrators where")
    ledger = Path(told)
    try:
        disk = os.statvfs(ledger.parent)
    except OSError as error:
        return ok("ledger", f"{ledger}, the node manager's (from here: {error.strerror})")
    if disk.f_bavail * disk.f_frsize < 2**20:
        return problem("ledger", f"The disk of {ledger.parent} is full.", "Free some space.")
    return _set_aside(ledger) or ok("ledger", f"{ledger}, the node manager's")


def _set_aside(ledger: Path) -> Check | None:
    """Whether a damaged ledger lies beside this one, as far as we may look."""
    found = sorted(ledger.parent.glob(f"{ledger.name}.corrupt-*"))
    if not found:
        return None
    return warning(
        "ledger",
        f"{ledger} is new: the previous one was damaged and was moved aside as {found[0].name}."
        " Quotas set by command and the earlier history are not in the new one.",
        "Check the disk, set those quotas again, and move that file away.",
    )


def ledger_place(ledger: Path) -> Check:
    """Whether a node manager of ours could write its ledger; none answers now."""
    folder = ledger.parent
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    fix = f"Make {folder} writable, or set another ledger path in jupyter_gpushare_config.py."
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        return problem("ledger", f"{folder} is on a read-only disk.", fix)
    target = ledger if os.path.exists(ledger) else folder  # False also where we may not look
    if not os.access(target, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        return problem("ledger", f"{target} cannot be written by you.", fix)
    if disk.f_bavail * disk.f_frsize < 2**20:
        return problem("ledger", f"The disk of {folder} is full.", "Free some space.")
    return _set_aside(ledger) or ok("ledger", f"{ledger} can be written")


# -- the environment -------------------------------------------------------------------------


def settings(environ: Mapping[str, str]) -> Iterator[Check]:
    """The variables that say what a task asks for must make sense."""
    from ..client.words.settings import read_settings

    wrong = read_settings(environ).complaints
    for complaint in wrong:
        yield problem("settings", complaint, "Correct it, or take it away.")
    if not wrong:
        yield ok("settings", "the JUPYTER_GPUSHARE_ variables make sense")


def cuda_visible_devices(environ: Mapping[str, str]) -> Check:
    """A value from elsewhere binds GPUs that no lease knows of."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ok("CUDA_VISIBLE_DEVICES", "not set: a lease sets it")
    if environ.get(names.LEASE) and not came_along(environ):
        return ok("CUDA_VISIBLE_DEVICES", f"set by lease {environ[names.LEASE]}")
    if job_of(environ):
        return ok("CUDA_VISIBLE_DEVICES", f"set to {value!r} by the batch system")
    return warning(
        "CUDA_VISIBLE_DEVICES",
        f"is set to {value!r} outside of a lease; a lease will replace it.",
        "Do not set it in shell profiles or kernel specs.",
    )
