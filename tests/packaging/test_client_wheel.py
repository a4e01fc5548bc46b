"""The light client works where nothing else of ours is, and little of Jupyter."""

from __future__ import annotations

import importlib.metadata
import json
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from support.jupyter import Home, Kernel
from support.livenode import LiveNode
from support.wheels import (
    ROOT,
    Environment,
    attempt,
    build,
    files_in_wheel,
    kernel_spec,
    make_environment,
    run,
)

from jupyter_gpushare.server.otherpythons import CLIENT_WHEEL, client_source, lacking

CLIENT = ROOT / "client"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CLIENT, tmp_path_factory.mktemp("wheel"), "build_wheel")


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the light client and nothing else at all; tests leave it as it was."""
    environment = make_environment(tmp_path_factory.mktemp("light") / "venv")
    before = environment.files()
    environment.pip("install", "--quiet", "--no-index", wheel)
    yield environment
    environment.pip("uninstall", "--quiet", "--yes", "jupyter-gpushare-client")
    assert environment.files() == before


def test_it_needs_nothing(wheel: Path) -> None:
    assert wheel.name == CLIENT_WHEEL, "the name that doctor and the server tell"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        told = message_from_bytes(archive.read(name))
    assert told.get_all("Requires-Dist") is None
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_its_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(CLIENT, tmp_path, "build_sdist")
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **safely)
    (root,) = (tmp_path / "unpacked").iterdir()
    assert files_in_wheel(build(root, tmp_path, "build_wheel")) == files_in_wheel(wheel)


def test_an_editable_install_has_the_same_beside_the_package(wheel: Path, tmp_path: Path) -> None:
    editable = build(CLIENT, tmp_path, "build_editable")
    beside = {name for name in files_in_wheel(wheel) if not name.startswith("jupyter_gpushare/")}
    assert files_in_wheel(editable) == {*beside, "_jupyter_gpushare_client.pth"}


def test_every_module_loads_with_the_standard_library_alone(light: Environment) -> None:
    told = light.ask(
        # In a dry run's own process there is the framework that it traces.
        "import importlib, pkgutil, sys, jupyter_gpushare as it\n"
        "for found in pkgutil.walk_packages(it.__path__, 'jupyter_gpushare.'):\n"
        "    last = found.name.rpartition('.')[2]\n"
        "    if last not in ('__main__', 'magics', 'traits') and not last.endswith('trace'):\n"
        "        importlib.import_module(found.name)\n"
        "        print(found.name)\n"
    )
    assert {"jupyter_gpushare.client.api", "jupyter_gpushare.cli.run"} <= set(told.split())


def test_its_commands_work_beside_a_node_manager(light: Environment, tmp_path: Path) -> None:
    script = light.root / "bin" / "jupyter-gpushare"
    with LiveNode(tmp_path) as node:
        told = run(script, "status", **node.environ)
        assert "These GPUs are simulated" in told
        shown = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert run(script, "run", "--", *shown, **node.environ).startswith("GPU-")
        lone = run(script, "request", **{**node.environ, "SHELL": "/usr/bin/env"})
        assert "CUDA_VISIBLE_DEVICES=GPU-" in lone
    refused = attempt(script, "doctor")
    assert refused.returncode == 1
    assert "`jupyter gpushare doctor` is not in the light client" in refused.stderr


def test_a_kernel_of_such_an_environment_gets_a_gpu(wheel: Path, tmp_path: Path) -> None:
    """The server has the whole product; the kernel's environment has ipykernel and torch."""
    light = make_environment(tmp_path / "venv")
    light.link("ipykernel", "torch")
    light.pip("install", "--quiet", "--no-index", wheel)
    with Home.make() as home:
        specs = kernel_spec(light, tmp_path, "light")
        server = home.serve(environ=home.environ(JUPYTER_PATH=str(specs)))
        server.wait_connected()
        answer = server.api.post("api/kernels", json={"name": "light"})
        assert answer.status_code == 201, answer.text
        kernel = Kernel(server, answer.json()["id"])
        said = kernel.run("import sys, os, torch; print(sys.prefix, torch.__version__ != '')")
        assert said.split() == [str(light.root), "True"]
        (lease,) = server.gpushare("leases")["leases"]
        assert (lease["phase"], len(lease["gpus"])) == ("held", 1)
        assert (
            kernel.run("print(get_ipython().find_line_magic('gpushare') is not None)") == "True\n"
        )
        kernel.shutdown()


def test_the_server_says_when_a_kernels_environment_lacks_it(wheel: Path, tmp_path: Path) -> None:
    bare = make_environment(tmp_path / "venv")
    bare.link("ipykernel")
    with Home.make() as home:
        specs = kernel_spec(bare, tmp_path, "bare")
        server = home.serve(environ=home.environ(JUPYTER_PATH=str(specs)))
        answer = server.api.post("api/kernels", json={"name": "bare"})
        assert answer.status_code == 201, answer.text
        mend = f"{bare.python} -m pip install {client_source()}"
        server.wait_logged(f"To mend it: {mend}")
        assert f"kernel bare runs {bare.python}, where the import hook is not active" in (
            server.log.read_text()
        )
        # The panel asks for this, and hears no more of a kernel that was mended.
        (told,) = server.gpushare("kernels")["lacking"]
        assert (told["name"], told["python"], told["fix"]) == ("bare", str(bare.python), mend)
        bare.pip("install", "--quiet", "--no-index", wheel)
        assert server.gpushare("kernels") == {"lacking": [], "elsewhere": []}
        Kernel(server, answer.json()["id"]).shutdown()


def test_the_line_that_mends_it_names_what_this_python_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "a folder" / CLIENT_WHEEL
    wheel.parent.mkdir()
    wheel.touch()
    info = tmp_path / "jupyter_gpushare_client-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: jupyter-gpushare-client\nVersion: 0.1.0\n")
    kept = info / "direct_url.json"
    monkeypatch.setattr(
        "importlib.metadata.distribution", lambda _: importlib.metadata.PathDistribution(info)
    )
    assert client_source() == CLIENT_WHEEL, "pip says nothing of an index"
    kept.write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert client_source() == str(wheel)
    assert lacking("k", "/a b/python")[1] == f"'/a b/python' -m pip install '{wheel}'"
    wheel.unlink()
    assert client_source() == CLIENT_WHEEL, "it is no more"
    kept.write_text(json.dumps({"url": "https://example.org/it.whl", "archive_info": {}}))
    assert client_source() == CLIENT_WHEEL
    vcs = {"vcs": "git", "commit_id": "0a1b2c"}
    kept.write_text(
        json.dumps({"url": "https://host/repo", "vcs_info": vcs, "subdirectory": "client"})
    )
    assert client_source() == "git+https://host/repo@0a1b2c#subdirectory=client"
