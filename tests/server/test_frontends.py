"""Whatever application or program runs notebooks, it finds the node manager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from support.jupyter import Home

NOTEBOOK = """
import os, json
from jupyter_gpushare.client import lease
with lease(gpus=1) as grant:
    print(json.dumps([grant.gpus[0].uuid, os.environ["CUDA_VISIBLE_DEVICES"]]))
"""


@pytest.mark.parametrize(
    ("app", "page", "runner"),  # the bare server has all other tests
    [("jupyterlab", "lab", "nbclient"), ("notebook", "tree", "papermill")],
)
def test_every_application_serves_gpushare_also_to_what_runs_notebooks_without_it(
    home: Home, app: str, page: str, runner: str
) -> None:
    server = home.serve(app=app)
    gpus = [gpu["uuid"] for gpu in server.wait_connected()["gpus"]]
    assert len(gpus) == 2
    assert server.api.get(page).status_code == 200, server.tail()
    kernel = server.start_kernel()
    said = kernel.run("import os; print(os.environ['JUPYTER_GPUSHARE_SOCKET'])").strip()
    assert said == str(home.socket)
    path, out = home.work / "batch.ipynb", home.work / "out.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(NOTEBOOK)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    path.write_text(nbformat.writes(notebook))
    arguments = {
        "nbclient": ["-m", "jupyter", "execute", str(path), f"--output={out}"],
        "papermill": ["-m", "papermill", str(path), str(out)],
    }[runner]
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=home.environ(),
        cwd=home.work,
        timeout=90,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    done = nbformat.read(out, as_version=4)
    mine, visible = json.loads(done.cells[-1].outputs[0].text)
    assert mine == visible
    assert mine in gpus
    kinds = {event["kind"] for event in server.gpushare("history")["events"]}
    assert {"LeaseGranted", "LeaseEnded"} <= kinds


def test_a_server_from_the_installed_package_has_us(tmp_path: Path) -> None:
    """No ``--jpserver_extensions``: the file in ``etc/jupyter`` enables it."""
    given = Path(__file__).parents[2] / "etc" / "jupyter"
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "server", "extension", "list"],
        env={**os.environ, "JUPYTER_CONFIG_PATH": str(given), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = listed.stdout + listed.stderr
    lines = [line for line in said.splitlines() if "jupyter_gpushare" in line]
    assert any("enabled" in line for line in lines), said
    assert any("OK" in line for line in lines), said
