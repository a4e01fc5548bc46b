"""`jupyter gpushare kernelspec wrap`: in a server its kernel is as one with our import hook."""

from __future__ import annotations

import json
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from support.cuda import has_ended
from support.jupyter import Home, Kernel, Server, wait_for
from support.livenode import in_process


def environ(home: Home) -> dict[str, str]:
    """Where the person's kernels are found before those of the tests' environment."""
    return home.environ(JUPYTER_PREFER_ENV_PATH="0")


def verb(home: Home, *words: str) -> str:
    done = in_process("kernelspec", *words, environ=environ(home))
    assert done.returncode == 0, done.stderr
    return done.stdout


def row_of(server: Server, kernel: Kernel) -> dict[str, Any] | None:
    rows = server.gpushare("status")["leases"]
    found = [row for row in rows if row["kernel_id"] == kernel.id and row["state"] != "ended"]
    return found[0] if found else None


def test_its_lease_is_its_notebooks_and_ends_with_it_and_with_its_server() -> None:
    with Home.make() as home:
        assert str(home.path) in verb(home, "wrap", "python3", "--memory", "8GiB")
        server = home.serve(environ=environ(home))
        server.wait_connected()
        assert server.gpushare("kernels")["lacking"] == []
        (home.work / "a.ipynb").write_text(
            '{"cells":[],"metadata":{},"nbformat":4,"nbformat_minor":5}'
        )
        kernel = server.start_kernel("a.ipynb")
        seen = kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        row = wait_for(lambda: row_of(server, kernel), what="its lease")
        assert (row["kind"], row["name"]) == ("kernel", "a.ipynb")
        assert [gpu["uuid"] for gpu in row["gpus"]] == seen.split()
        assert row["gpus"][0]["memory"] == 8 * 2**30
        wait_for(lambda: (row_of(server, kernel) or {}).get("state") == "idle", what="it is idle")
        before = kernel.pid()
        kernel.restart()
        wait_for(lambda: has_ended(before) and kernel.answers(), what="it runs anew")
        kernel.shutdown()
        wait_for(lambda: row_of(server, kernel) is None, what="its lease has ended")
        pid = server.start_kernel().pid()
        server.kill()
        wait_for(lambda: has_ended(pid), what="it ends with its server")


def test_unwrap_brings_back_what_was() -> None:
    with Home.make() as home:
        verb(home, "wrap", "python3")
        verb(home, "wrap", "python3", "--as", "large", "--gpus", "2")
        place = home.path / "data" / "kernels"
        spec = KernelSpecManager(kernel_dirs=[str(place)]).get_kernel_spec("large")
        assert spec.metadata["kernel_provisioner"]["config"] == {"gpus": "2", "lease": "start"}
        assert spec.display_name.endswith("shared GPU")
        for name in ("large", "python3"):
            verb(home, "unwrap", name)
        assert not any(place.iterdir())
        (own := place / "own").mkdir()
        plain = {"argv": ["R", "{connection_file}"], "display_name": "R", "language": "R"}
        (own / "kernel.json").write_text(json.dumps(plain))
        before = KernelSpecManager(kernel_dirs=[str(place)]).get_kernel_spec("own").to_dict()
        verb(home, "wrap", "own")  # there is no better place
        verb(home, "wrap", "own", "--memory", "8GiB")
        verb(home, "unwrap", "own")
        after = KernelSpecManager(kernel_dirs=[str(place)]).get_kernel_spec("own").to_dict()
        assert after == before
        done = in_process("kernelspec", "unwrap", "python3", environ=environ(home))
        assert (done.returncode, "was not made by" in done.stderr) == (1, True)
