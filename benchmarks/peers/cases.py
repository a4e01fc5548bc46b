"""Three cases that decide whether people can trust the books, on both sides.

1. A second user's status call must not free the first user's notebook's GPU.
2. A process that asked through the SDK must not be taken for a squatter.
3. A notebook kernel must be seen by the memory rule.

Each is done as the tool's own documentation says it is used, and beside each failure stands the way
in which the same tool does well.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crew import crew, say, until
from stage import HERE, GenvHost, genv_host, modules_of, our_host, people, somebody_else
from support.kernel import Kernel
from support.nvml import GIB, NvmlWorld

Data = dict[str, Any]
#: MiB of memory that the kernel uses, and what it was given.
USED, GIVEN = 10 * 1024, "4g"

#: Seconds in which whoever would be ended is: that nothing happens has no event to wait for.
_NOTHING_MORE = 1.0


@contextlib.contextmanager
def genv_kernel(host: GenvHost, memory: str = GIVEN) -> Iterator[dict[str, Any]]:
    """A kernel of jupyterlab-genv with one GPU; its pid and id."""
    with tempfile.TemporaryDirectory() as home:
        environ = {
            **host.environ,
            "HOME": home,
            "JUPYTER_DATA_DIR": f"{home}/data",
            "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
            "IPYTHONDIR": f"{home}/ipython",
        }
        process = subprocess.Popen(
            [host.python, str(HERE / "workers" / "genv_kernel.py"), memory],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("PEERS_DEBUG") else subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the kernel of jupyterlab-genv did not start")
        try:
            yield {**json.loads(line), "environ": environ}
        finally:
            process.communicate(timeout=30)


def another_users_status(peers: str) -> Data:
    """Case 1."""
    say("case 1: somebody else asks for the status …")
    found: Data = {}
    with (
        somebody_else() as other,
        genv_host(peers) as host,
        genv_kernel(host) as kernel,
    ):
        found["as_another_os_user"] = other.user is not None
        modules = modules_of(peers)
        theirs = other.run(host.environ, modules, "jupyter", "--runtime-dir")
        held = kernel["kernel"] in host.attached()[0]
        own = host.run("envs", **_jupyter(kernel["environ"]))
        mine = kernel["kernel"] in host.attached()[0]
        done = other.run(host.environ, modules, "genv.cli", "envs")
        other.run(host.environ, modules, "genv.cli", "devices")
        found |= {
            "second_users_jupyter_works": theirs.stdout.strip() == str(other.home / "runtime"),
            "genv_held_before": held,
            "genv_held_after_own_status": mine and own.returncode == 0,
            "genv_status_worked": done.returncode == 0,
            "genv_held_after": kernel["kernel"] in host.attached()[0],
            "genv_kernel_lives": _lives(kernel["pid"]),
        }
    with somebody_else() as other, our_host(people=2) as ours:
        home = Path(ours.folder, "home")
        home.mkdir()
        with Kernel(home, ours.node.socket, JUPYTER_GPUSHARE_TOKEN="person-0") as k:
            k.ok("%gpushare request --gpus 1")
            before = _leases(ours.verb(0, "leases", "--json").stdout)
            modules = f"{HERE.parents[1]}:{modules_of(sys.executable)}"
            done = other.run(ours.environ(1), modules, "jupyter_gpushare.cli", "status")
            after = _leases(ours.verb(0, "leases", "--json").stdout)
        found |= {
            "gpushare_held_before": len(before) == 1,
            "gpushare_status_worked": done.returncode == 0,
            "gpushare_held_after": before == after,
        }
    return found


def _jupyter(environ: dict[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}


def _leases(text: str) -> list[str]:
    return [row["id"] for row in json.loads(text)["leases"] if row["mine"]]


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def sdk_process(peers: str, library: Path) -> Data:
    """Case 2. Beside it: a real squatter, and for genv a process from an activated shell."""
    say("case 2: who asked through the SDK …")
    found: Data = {}
    squatter = ["sleep", "600"]
    activate = 'eval "$(genv shell --init)"; genv activate --gpus 1 --no-prompt >/dev/null; '
    with (
        genv_host(peers) as host,
        crew(peers, "genv_worker.py", [1, 600], [host.environ]) as asked,
        subprocess.Popen(squatter) as stranger,
        subprocess.Popen(
            ["bash", "-c", activate + "sleep 600 & echo $!; wait"],
            env=host.environ,
            stdout=subprocess.PIPE,
            text=True,
        ) as shell,
    ):
        asked[0].go()
        until(lambda: asked[0].said("got"), "the SDK has a GPU")
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        sdk_gpu = int(asked[0].told[0]["gpu"])
        host.uses(sdk_gpu, asked[0].process.pid, 1024)
        host.uses(1 - sdk_gpu if sdk_gpu < 2 else 0, child, 1024)
        host.uses(7, stranger.pid, 1024)
        done = host.run("enforce", "--interval", "0", "--non-env-processes")
        time.sleep(_NOTHING_MORE)
        found |= {
            "genv_enforce_worked": done.returncode == 0,
            "genv_sdk_process_lives": asked[0].process.poll() is None,
            "genv_shell_process_lives": _lives(child),
            "genv_squatter_lives": stranger.poll() is None,
        }
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)
        shell.kill()
        stranger.kill()
    world = NvmlWorld(library, library / "case-2")
    uuids = [world.add_gpu() for _ in range(2)]
    config = (
        "c.Policy.audit_action = 'kill'\nc.Policy.audit_grace = 0.3\n"
        "c.NodeManagerApp.measure_interval = 0.1\n"
    )
    with (
        our_host(people=1, world=world, config=config) as ours,
        crew(sys.executable, "gpushare_worker.py", [1, 600], people(ours, 1)) as asked,
        subprocess.Popen(squatter) as stranger,
    ):
        asked[0].go()
        until(lambda: asked[0].said("got"), "our client has a GPU")
        gpu = asked[0].told[0]["gpu"]
        world.add_process(gpu, asked[0].process.pid, GIB)
        world.add_process(next(each for each in uuids if each != gpu), stranger.pid, GIB)
        until(lambda: stranger.poll() is not None, "the squatter is gone")
        time.sleep(_NOTHING_MORE)
        found |= {
            "gpushare_sdk_process_lives": asked[0].process.poll() is None,
            "gpushare_squatter_lives": stranger.poll() is None,
        }
    return found


def kernel_memory(peers: str, library: Path) -> Data:
    """Case 3. Beside it, for genv: a process with the same excess from an activated shell."""
    say("case 3: a kernel that uses more than it was given …")
    found: Data = {"given": GIVEN, "used_mib": USED}
    activate = (
        'eval "$(genv shell --init)"; genv activate --gpus 1 --gpu-memory '
        f"{GIVEN} --no-prompt >/dev/null; "
    )
    with (
        genv_host(peers) as host,
        genv_kernel(host) as kernel,
        subprocess.Popen(
            ["bash", "-c", activate + "sleep 600 & echo $!; wait"],
            env={**host.environ, **_jupyter(kernel["environ"])},
            stdout=subprocess.PIPE,
            text=True,
        ) as shell,
    ):
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        attached = host.attached()
        gpu = next(index for index, eids in attached.items() if kernel["kernel"] in eids)
        shells = next(
            index for index, eids in attached.items() if any(e != kernel["kernel"] for e in eids)
        )
        host.uses(gpu, kernel["pid"], USED)
        host.uses(shells, child, USED)
        done = host.run("enforce", "--interval", "0", **_jupyter(kernel["environ"]))
        time.sleep(_NOTHING_MORE)
        found |= {
            "genv_enforce_worked": done.returncode == 0,
            "genv_kernel_seen": not _lives(kernel["pid"]) or kernel["kernel"] in done.stdout,
            "genv_shell_process_seen": not _lives(child),
        }
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)
        shell.kill()
    world = NvmlWorld(library, library / "case-3")
    uuid = world.add_gpu()
    with our_host(
        people=1, world=world, config="c.NodeManagerApp.measure_interval = 0.1\n", exclusive=False
    ) as ours:
        home = Path(ours.folder, "home")
        home.mkdir()
        with Kernel(home, ours.node.socket, JUPYTER_GPUSHARE_TOKEN="person-0") as k:
            k.ok("%gpushare request --gpus 1 --memory 4GiB")
            world.add_process(uuid, k.pid, USED * 2**20)

            def state() -> str:
                rows = json.loads(ours.verb(0, "leases", "--json").stdout)["leases"]
                return str(rows[0]["state"])

            until(lambda: state() == "over_limit", "the kernel is over its limit")
            found["gpushare_kernel_seen"] = state() == "over_limit"
    return found
