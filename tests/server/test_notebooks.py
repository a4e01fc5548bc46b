"""A notebook's wishes reach its kernel when they are needed, and its lease says where it is.

One that is saved while a cell waits for a GPU says nothing of the wait.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.jupyter import Home, Kernel, Server, wait_for

from jupyter_gpushare.protocol.notebook import WAITING
from jupyter_gpushare.server.saved import without_waits

GIB = 2**30
ASK = "import jupyter_gpushare.client as c; g = c.request(); print(len(g.gpus), g.gpus[0].memory)"
IMPORT = "import os, torch; print(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')))"


def write(path: Path, wishes: Any) -> None:
    metadata = {} if wishes is None else {"gpushare": wishes}
    path.parent.mkdir(exist_ok=True)
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(metadata=metadata)))


def open_as_lab_does(server: Server, path: str) -> Kernel:
    """JupyterLab 4.6: a session with a made-up path and the file's name, renamed afterwards."""
    made_up = {"path": str(uuid.uuid4()), "name": Path(path).name, "type": "notebook"}
    answer = server.api.post("api/sessions", json={**made_up, "kernel": {"name": "python3"}})
    assert answer.status_code == 201, answer.text
    session = answer.json()
    rename(server, session["id"], path)
    return Kernel(server, session["kernel"]["id"])


def rename(server: Server, session: str, path: str) -> None:
    body = {"path": path, "name": Path(path).name, "type": "notebook"}
    answer = server.api.patch(f"api/sessions/{session}", json=body)
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Home, Server]]:
    """A person's server for all tests here: what each starts there it ends."""
    with Home.make() as home:
        server = home.serve()
        server.wait_connected()
        yield home, server


@pytest.fixture
def home(shared: tuple[Home, Server]) -> Home:
    return shared[0]


@pytest.fixture
def server(shared: tuple[Home, Server]) -> Iterator[Server]:
    _, server = shared
    yield server
    for session in server.api.get("api/sessions").json():
        server.api.delete(f"api/sessions/{session['id']}")
    for kernel in server.api.get("api/kernels").json():
        server.api.delete(f"api/kernels/{kernel['id']}")
    wait_for(lambda: not server.gpushare("status")["leases"], what="the leases' end")


def lease(server: Server) -> dict[str, Any]:
    (found,) = server.gpushare("status")["leases"]
    return dict(found)


def test_a_renamed_notebook_has_its_new_name_at_once(home: Home, server: Server) -> None:
    write(home.work / "old.ipynb", None)
    kernel = open_as_lab_does(server, "old.ipynb")
    kernel.run(ASK)
    old = lease(server)
    assert old["name"] == "old.ipynb"
    (session,) = server.api.get("api/sessions").json()
    body = {"path": "new.ipynb", "source": "old.ipynb"}
    assert server.api.patch("api/contents/old.ipynb", json=body).status_code == 200
    rename(server, session["id"], "new.ipynb")
    same = lease(server)
    assert (same["id"], same["name"]) == (old["id"], "new.ipynb")
    assert same["path"] == old["path"].replace("old.ipynb", "new.ipynb")
    events = server.gpushare("history")["events"]
    assert "is called new.ipynb now" in [one["text"] for one in events]


def test_the_first_import_gets_what_the_notebook_asks(home: Home, server: Server) -> None:
    path = home.work / "sub" / "train.ipynb"
    write(path, {"gpus": 2, "memory": "8GiB", "class": "batch"})
    kernel = open_as_lab_does(server, "sub/train.ipynb")
    assert kernel.run(IMPORT) == "2\n"
    held = lease(server)
    assert [gpu["memory"] for gpu in held["gpus"]] == [8 * GIB, 8 * GIB]
    assert held["priority_class"] == "batch"
    # And it is shown under its own name, in its own folder.
    assert (held["name"], held["path"]) == ("train.ipynb", str(path))


def test_what_is_saved_when_it_is_needed_counts(home: Home, server: Server) -> None:
    path = home.work / "train.ipynb"
    write(path, {"gpus": 2})
    kernel = open_as_lab_does(server, "train.ipynb")
    assert kernel.run("print(1)") == "1\n"
    write(path, {"memory": "4GiB"})
    assert kernel.run(ASK) == f"1 {4 * GIB}\n"
    write(path, {"memory": "6GiB"})
    assert kernel.run("c.release(); " + ASK) == f"1 {6 * GIB}\n"
    write(path, None)
    assert kernel.run("c.release(); " + ASK) == f"1 {24 * GIB}\n"
    # Renamed and restarted it is the same notebook.
    path.rename(home.work / "renamed.ipynb")
    write(home.work / "renamed.ipynb", {"memory": "5GiB"})
    (session,) = server.api.get("api/sessions").json()
    rename(server, session["id"], "renamed.ipynb")
    kernel.run("c.release()")
    # It would share what drains of the larger one.
    wait_for(lambda: not server.gpushare("status")["leases"], what="the larger one's end")
    assert kernel.run(ASK) == f"1 {5 * GIB}\n"
    assert lease(server)["name"] == "renamed.ipynb"
    kernel.restart()
    assert kernel.run(ASK) == f"1 {5 * GIB}\n"


NONSENSE: list[tuple[Any, list[str]]] = [
    ({"gpus": "many"}, ["gpushare.gpus='many'", "not a number of GPUs", "Using the default"]),
    ({"memory": "8XB"}, ["gpushare.memory='8XB'", "8GiB", "Using the default"]),
    ({"gpus": [2]}, ["gpushare.gpus='[2]'", "Using the default"]),
    ({"class": True}, ["gpushare.class='True'", "interactive or batch"]),
    ({"gpu": 2}, ["'gpu'", "not known", '"gpus": 2']),
    ("2 GPUs", ["'2 GPUs'", "not understood", '"gpus": 2']),
    ({"gpus": "x" * 20_000}, ["(too long)", "not understood"]),
]


def test_nonsense_is_said_in_the_cell(home: Home, server: Server) -> None:
    write(home.work / "train.ipynb", None)
    kernel = open_as_lab_does(server, "train.ipynb")
    for wishes, words in NONSENSE:
        write(home.work / "train.ipynb", wishes)
        heard = "import contextlib, sys\nwith contextlib.redirect_stderr(sys.stdout): "
        said = kernel.run(f"{heard}{ASK}; c.release()")
        for word in words:
            assert word in said, said
        assert said.endswith(f"1 {24 * GIB}\n")


def test_a_console_takes_the_notebooks_wishes_and_alone_has_none(
    home: Home, server: Server
) -> None:
    write(home.work / "train.ipynb", {"memory": "4GiB"})
    console = {"path": f"train.ipynb-{uuid.uuid4()}", "name": "Console 1", "type": "console"}
    alone = server.api.post("api/sessions", json={**console, "kernel": {"name": "python3"}}).json()
    assert Kernel(server, alone["kernel"]["id"]).run(ASK + "; c.release()") == f"1 {24 * GIB}\n"
    kernel = open_as_lab_does(server, "train.ipynb")
    answer = server.api.post("api/sessions", json={**console, "kernel": {"id": kernel.id}})
    assert answer.status_code == 201, answer.text
    assert kernel.run(ASK) == f"1 {4 * GIB}\n"


def test_a_front_end_that_is_slow_to_name_the_notebook_is_waited_for(
    home: Home, server: Server
) -> None:
    write(home.work / "train.ipynb", {"memory": "4GiB"})
    body = {"path": str(uuid.uuid4()), "name": "train.ipynb", "type": "notebook"}
    session = server.api.post("api/sessions", json={**body, "kernel": {"name": "python3"}}).json()
    path = door(server)
    asked = ask(path, session["kernel"]["id"])
    rename(server, session["id"], "train.ipynb")
    assert json.loads(asked.makefile().readline())["gpushare"] == {"memory": "4GiB"}
    asked.close()


def door(server: Server) -> Path:
    """Where this server's kernels ask."""
    kernel = server.start_kernel()
    said = kernel.run("import os; print(os.environ['JUPYTER_GPUSHARE_NOTEBOOK_SOCKET'])")
    kernel.shutdown()
    return Path(said.strip())


def ask(path: Path, kernel_id: str) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(10)
    wire.connect(str(path))
    wire.sendall(json.dumps({"kernel_id": kernel_id}).encode() + b"\n")
    return wire


def test_the_door_is_private_and_survives_nonsense(server: Server) -> None:
    path = door(server)
    mode = path.parent.stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_uid) == (0o700, os.getuid())
    for nonsense in (b"\n", b"[]\n", b'{"kernel_id": 1}\n', b"x" * 100_000, b"\xff\n", b"{" * 300):
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(10)
            wire.connect(str(path))
            try:
                wire.sendall(nonsense)
                assert wire.recv(10) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass
    with ask(path, "no such kernel") as wire:
        assert json.loads(wire.makefile().readline()) == {"path": "", "gpushare": None}


def test_a_server_that_hangs_delays_an_import_by_seconds_at_most(
    home: Home, server: Server
) -> None:
    write(home.work / "train.ipynb", {"memory": "4GiB"})
    kernel = server.start_kernel("train.ipynb")  # its path is known at the start
    # Nobody could run a cell while the server stands still: the kernel itself stops it.
    pause = "import os, signal, time; begun = time.monotonic()"
    code = (
        f"{pause}; os.kill({server.process.pid}, signal.SIGSTOP)\n"
        f"try:\n    {ASK}\n"
        f"finally:\n    os.kill({server.process.pid}, signal.SIGCONT)\n"
        "print(time.monotonic() - begun)"
    )
    try:
        granted, took = kernel.run(code).splitlines()
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert granted == f"1 {4 * GIB}"
    assert 1.5 < float(took) < 20


def test_without_a_server_to_ask_the_wishes_of_the_start_count(home: Home, server: Server) -> None:
    write(home.work / "train.ipynb", {"memory": "4GiB"})
    kernel = server.start_kernel("train.ipynb")
    path = door(server)
    gone = f"import os; os.environ['JUPYTER_GPUSHARE_NOTEBOOK_SOCKET'] = '{path.parent}/gone'; "
    assert kernel.run(gone + ASK) == f"1 {4 * GIB}\n"


# -- where the notebook or script is ---------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False], ids=["as JupyterLab asks", "without a name"])
def test_the_path_of_a_kernels_lease(home: Home, server: Server, named: bool) -> None:
    """With a name or without, the server tells the kernel where the file is."""
    path = "sub folder/n\u00f6te.ipynb"
    write(home.work / path, None)
    kernel = server.start_kernel(path, **({} if named else {"name": None}))
    kernel.run(ASK)
    found = lease(server)
    assert found["path"] == str(home.work / path)
    assert found["name"] == "n\u00f6te.ipynb"
    # The session of the kernel says where that is under the root.
    (session,) = server.api.get("api/sessions").json()
    assert (session["kernel"]["id"], session["path"]) == (found["kernel_id"], path)


def test_a_kernel_without_a_notebook_has_no_path_and_a_script_has_its_own(
    home: Home, server: Server
) -> None:
    script = home.work / "train.py"
    script.write_text(f"{ASK}\nimport json; print(json.dumps(c.status()['leases'][-1]))\n")
    kernel = server.start_kernel()
    # Started as a person would in a terminal: by its name, in its folder.
    run = f"[{sys.executable!r}, 'train.py'], cwd={str(home.work)!r}, capture_output=True"
    printed = kernel.run(f"import subprocess; print(subprocess.run({run}).stdout.decode())")
    told = json.loads(printed.splitlines()[1])
    assert (told["kind"], told["path"], told["name"]) == ("process", str(script), "train.py")
    kernel.run(ASK)
    (own,) = (one for one in server.gpushare("status")["leases"] if one["kind"] == "kernel")
    assert (own["path"], own["kernel_id"]) == (None, kernel.id)


# -- what is saved ---------------------------------------------------------------------------------


def notebook() -> Any:
    """With a cell that has printed something and waits."""
    printed = nbformat.v4.new_output("stream", text="up")
    waits = nbformat.v4.new_output("display_data", {"text/plain": "Waiting"}, metadata=WAITING)
    cells = [nbformat.v4.new_code_cell(outputs=[printed, waits]), nbformat.v4.new_raw_cell("x")]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    extensions = {"jpserver_extensions": {"jupyter_gpushare": True}}
    return {"ServerApp": extensions, "GpuShareExtension": {"embed": "never"}}


async def test_what_a_server_saves_has_no_waits(jp_fetch: Any) -> None:
    place, body = ("api", "contents", "a.ipynb"), {"type": "notebook", "format": "json"}
    saved = await jp_fetch(*place, method="PUT", body=json.dumps({**body, "content": notebook()}))
    assert saved.code == 201
    content = json.loads((await jp_fetch(*place)).body)["content"]
    (kept,) = content["cells"][0]["outputs"]
    assert kept["text"] == "up"


def test_what_is_no_notebook_is_left_alone() -> None:
    for model in ({"type": "file", "content": "x"}, {"type": "notebook", "content": None}, {}):
        before = dict(model)
        without_waits(model, path="x")
        assert model == before
