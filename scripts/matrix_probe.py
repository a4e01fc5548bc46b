"""Use an installed jupyter_gpushare, for ``scripts/matrix.py``; run by the environment's Python.

``matrix_probe.py server`` (or ``kernel``, ``hub``) prints in its last line what it found, or what
was wrong. Servers, kernels, node manager and Hub are real; the GPUs are simulated.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.hub import RunningHub, free_ports, why_not
from support.jupyter import Home, Kernel, Server, wait_for

#: As scripts/matrix.py says.
CANNOT = 77
#: Seconds for what compiles torch's modules on its way, on a machine with other work.
LONG = 600.0
WORK = (
    "import torch, os; print(torch.__version__, os.environ['CUDA_VISIBLE_DEVICES'],"
    " torch.ones(2, 2).matmul(torch.ones(2, 2)).sum().item())"
)


class Cannot(Exception):
    """This machine lacks something."""


@contextmanager
def serving() -> Iterator[Server]:
    """A server with the extensions that the environment's own files enable."""
    with Home.make() as home:
        yield home.serve(enabled_by_hand=False, port=free_ports(1)[0])


def server() -> str:
    """The server extension is enabled, hosts a node manager and answers."""
    with serving() as running:
        status = running.wait_connected(120)
        gpus = len(status["gpus"])
        assert gpus == 2, status
        with running.anonymous() as stranger:
            answer = stranger.get("gpushare/api/status")
            assert answer.status_code in (401, 403), answer.text
        assert running.api.get("lab").status_code == 200
    return f"It answers, with {gpus} GPUs."


def kernel() -> str:
    """A notebook's kernel imports torch, gets a GPU, and gives it back at its end."""
    with serving() as running:
        running.wait_connected(120)
        notebook = running.start_kernel("train.ipynb")
        found = computed(notebook)
        (lease,) = running.gpushare("status")["leases"]
        assert lease["name"] == "train.ipynb", lease
        notebook.shutdown()
        wait_for(lambda: not running.gpushare("status")["leases"], what="the lease to end")
    return found


def hub() -> str:
    """A user's quota page answers; a notebook on their server gets a GPU."""
    why = why_not()
    if why is not None:
        raise Cannot(why)
    with RunningHub.make(pages=True) as running:
        alice = running.person("alice")
        alice.start_server()
        quota = alice.status()["quota"]
        assert (quota["gpus"], quota["source"]) == (1, "group"), quota
        found = computed(alice.start_kernel())
        browser = alice.browser()
        page = browser.get("/services/gpushare/")
        assert page.status_code == 200, page.text
        assert "1 of 1" in page.text, page.text
        assert "8 GiB" in page.text, page.text
        browser.close()
    return f"{found} The quota's page answers."


def computed(notebook: Kernel) -> str:
    """What a kernel says that imports torch and computes with it."""
    version, gpu, result = notebook.run(WORK, within=LONG).split()
    assert gpu.startswith("GPU-"), gpu
    assert result == "8.0", result
    return f"torch {version} computed in a kernel that got a GPU."


PROBES: dict[str, Callable[[], str]] = {"server": server, "kernel": kernel, "hub": hub}


def main(name: str) -> int:
    """Return the exit status."""
    try:
        print(PROBES[name](), flush=True)
    except Cannot as reason:
        print(reason, flush=True)
        return CANNOT
    except Exception as error:  # noqa: BLE001 - told to the one who reads the table
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        print(f"{type(error).__name__}: {first}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
