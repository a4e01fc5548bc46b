"""What `pip install` puts somewhere works there, and uninstalling leaves nothing.

The light client works where nothing else of ours is, and little of Jupyter.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.jupyter import Home, Kernel
from support.livenode import LiveNode
from support.wheels import (
    ROOT,
    Environment,
    attempt,
    build,
    call_hook,
    files_in_wheel,
    kernel_spec,
    make_environment,
    run,
)

from jupyter_gpushare import __version__
from jupyter_gpushare.cli import systemd
from jupyter_gpushare.server.otherpythons import CLIENT_WHEEL, client_source, lacking

CLIENT = ROOT / "client"
DATA = f"jupyter_gpushare-{__version__}.data/data"
WHERE_IT_MATTERS = {
    f"{DATA}/etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
    *(
        f"{DATA}/share/jupyter_gpushare/systemd/{unit.name}"
        for unit in (ROOT / "etc" / "systemd").iterdir()
    ),
}


LABEXTENSION = "share/jupyter/labextensions/jupyter-gpushare"
#: Patterns of paths under LABEXTENSION.
UI = {
    "install.json",
    "package.json",
    "static/remoteEntry.*.js",
    "static/style.js",
    "static/third-party-licenses.json",
    *(
        f"schemas/jupyter-gpushare/{schema.name}"
        for schema in (ROOT / "labextension" / "schema").glob("*.json")
    ),
}


def lacks(files: set[str], patterns: set[str], below: str) -> set[str]:
    return {p for p in patterns if not any(fnmatchcase(f, f"{below}/{p}") for f in files)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the UI that is in the tree (`make ui`); only without one it is built here."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "build_wheel")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The light client's wheel, without which the other is not whole."""
    return build(CLIENT, tmp_path_factory.mktemp("client"), "build_wheel")


@pytest.fixture(scope="module")
def sdist(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "build_sdist")


def unpack(sdist: Path, to: Path) -> Path:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
    with tarfile.open(sdist) as archive:
        archive.extractall(to / "unpacked", **safely)
    (root,) = (to / "unpacked").iterdir()
    return root


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    return unpack(sdist, tmp_path)


def test_the_wheels_have_everything_once(wheel: Path, client: Path) -> None:
    files, light = files_in_wheel(wheel), files_in_wheel(client)
    assert files >= WHERE_IT_MATTERS
    assert not files & light
    assert lacks(files, UI, f"{DATA}/{LABEXTENSION}") == set()
    assert not any(name.startswith("jupyter_gpushare/labextension") for name in files)
    package = ROOT / "jupyter_gpushare"
    for source in package.rglob("*"):
        if source.suffix in {".py", ".yaml", ".typed"}:
            assert f"jupyter_gpushare/{source.relative_to(package)}" in files | light
    room = package / "pages"
    pages = [*(room / "templates").rglob("*.html"), *(room / "static").iterdir()]
    assert {path.suffix for path in pages} == {".html", ".css", ".js"}
    for page in pages:
        assert f"jupyter_gpushare/{page.relative_to(package)}" in files
    others = {name.partition("/")[0] for name in files} - {
        "jupyter_gpushare",
        f"jupyter_gpushare-{__version__}.data",
        f"jupyter_gpushare-{__version__}.dist-info",
    }
    assert others == set()


def test_the_ui_in_the_wheel_is_one_build(wheel: Path) -> None:
    """Two entries would mean that an older build lies beside the newer one."""
    entries = [name for name in files_in_wheel(wheel) if "/static/remoteEntry." in name]
    assert len(entries) == 1
    with zipfile.ZipFile(wheel) as archive:
        package = json.loads(archive.read(f"{DATA}/{LABEXTENSION}/package.json"))
    load = package["jupyterlab"]["_build"]["load"]
    assert entries == [f"{DATA}/{LABEXTENSION}/{load}"]


def test_an_editable_install_has_the_same_beside_the_package(wheel: Path, tmp_path: Path) -> None:
    editable = build(ROOT, tmp_path, "build_editable", SKIP_JUPYTER_BUILDER="1")
    files = files_in_wheel(editable)
    assert files >= WHERE_IT_MATTERS
    assert lacks(files, UI, f"{DATA}/{LABEXTENSION}") == set()


def test_the_sdist_has_the_ui_and_how_to_build_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert lacks(files, UI - {"install.json"}, "jupyter_gpushare/labextension") == set()
    assert files >= {
        "hatch_build.py",
        "labextension/install.json",
        "labextension/package.json",
        "labextension/src/index.ts",
        "labextension/yarn.lock",
    }
    made = re.compile(r"labextension/(node_modules|lib|ui-tests|coverage|\.yarn)/")
    assert not [name for name in files if made.match(name)]


def test_the_sdist_makes_the_same_wheel_without_node(
    wheel: Path, unpacked: Path, tmp_path: Path
) -> None:
    again = build(unpacked, tmp_path, "build_wheel", PATH=str(tmp_path))
    assert files_in_wheel(again) == files_in_wheel(wheel)


def _without_ui(root: Path) -> None:
    shutil.rmtree(root / "jupyter_gpushare" / "labextension")


def _with_half_its_ui(root: Path) -> None:
    """A schema that was added after the last build would be missing."""
    (root / "labextension" / "schema").mkdir(exist_ok=True)
    (root / "labextension" / "schema" / "new.json").write_text("{}")


def _built_for_development(root: Path) -> None:
    (root / "jupyter_gpushare" / "labextension" / "build_log.json").write_text("{}")


def _of_another_version(root: Path) -> None:
    built = root / "jupyter_gpushare" / "labextension" / "package.json"
    built.write_text(json.dumps(json.loads(built.read_text()) | {"version": "0.0.9"}))


NO_UI = "jupyter_gpushare/labextension/static/remoteEntry.*.js"


@pytest.mark.parametrize(
    ("spoil", "hook", "said"),
    [
        (_without_ui, "build_wheel", NO_UI),
        (_without_ui, "build_sdist", NO_UI),
        (_without_ui, "build_editable", NO_UI),
        (_with_half_its_ui, "build_wheel", "schemas/jupyter-gpushare/new.json"),
        (_built_for_development, "build_wheel", "built for development"),
        (_built_for_development, "build_editable", None),
        (_of_another_version, "build_wheel", "labextension/package.json': '0.0.9'"),
    ],
)
def test_nothing_is_built_with_a_ui_that_is_not_whole(
    unpacked: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    hook: str,
    said: str | None,
) -> None:
    spoil(unpacked)
    done = attempt(*call_hook(hook, tmp_path), cwd=unpacked, SKIP_JUPYTER_BUILDER="1")
    assert (done.returncode == 0) is (said is None), done.stderr
    made = [*tmp_path.glob("*.whl"), *tmp_path.glob("*.tar.gz")]
    assert bool(made) is (said is None)
    assert (said or "") in done.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """It sees the packages of the tests' own environment, but not its start-up files."""
    environment = make_environment(tmp_path_factory.mktemp("bare") / "venv")
    (environment.site / "zz_outside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.fixture(scope="module")
def installed(bare: Environment, wheel: Path, client: Path) -> Iterator[Environment]:
    """One for all tests: each leaves it as it was, else the last look at its files fails."""
    before = bare.files()
    bare.pip("install", "--quiet", "--no-deps", "--no-index", wheel, client)
    yield bare
    bare.pip("uninstall", "--quiet", "--yes", "jupyter_gpushare", "jupyter-gpushare-client")
    assert bare.files() == before
    assert bare.ask("import sys; print(type(sys.meta_path[0]).__name__)").strip() != "Finder"


def test_the_hook_runs_and_goes_with_the_package(installed: Environment) -> None:
    told = installed.ask(
        "import sys, jupyter_gpushare as it;"
        "print(type(sys.meta_path[0]).__module__, it.__file__, it.__version__)"
    )
    module, file, version = told.split()
    assert module == "jupyter_gpushare._boot"
    assert Path(file).is_relative_to(installed.root)
    assert version == __version__


def test_the_units_are_found_where_pip_put_them(installed: Environment) -> None:
    told = installed.ask(
        "import json, jupyter_gpushare.cli.systemd as it;"
        "print(json.dumps(it.units(it.shipped(), '/opt/other/bin/python')))"
    )
    units = json.loads(told)
    service = units["systemd/system/jupyter-gpushare.service"]
    assert "ExecStart=/opt/other/bin/python -I -m" in service
    assert set(units) == set(systemd.units(systemd.shipped(), "/opt/other/bin/python"))
    assert (installed.root / "share" / "jupyter_gpushare" / "systemd").is_dir()


def test_ipython_in_a_terminal_has_the_magics(installed: Environment, tmp_path: Path) -> None:
    told = run(
        *(installed.python, "-m", "IPython", "--no-banner", "--colors=NoColor"),
        *("-c", "get_ipython().run_line_magic('gpushare', 'help')"),
        HOME=str(tmp_path),
        IPYTHONDIR=str(tmp_path / "ipython"),
    )
    assert told.startswith("%gpushare status")


def test_a_kernel_loads_our_extension_and_the_users_own(
    installed: Environment, tmp_path: Path
) -> None:
    """A user's ``extensions`` list replaces others' lists; ours must survive it."""
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(
        "get_config().InteractiveShellApp.extensions = ['users_own']\n"
    )
    (installed.site / "users_own.py").write_text("def load_ipython_extension(ipython): ...\n")
    code = """
import json, sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
try:
    client.wait_for_ready(timeout=60)
    answer = client.execute_interactive(
        "import json; loaded = json.dumps(sorted(get_ipython().extension_manager.loaded))",
        user_expressions={"loaded": "loaded"}, timeout=60, output_hook=print,
    )
    print(eval(answer["content"]["user_expressions"]["loaded"]["data"]["text/plain"]))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""
    told = installed.ask(
        code,
        HOME=str(tmp_path),
        IPYTHONDIR=str(tmp_path / "ipython"),
        JUPYTER_RUNTIME_DIR=str(tmp_path),
        JUPYTER_PATH=str(kernel_spec(installed, tmp_path)),
    )
    (installed.site / "users_own.py").unlink()
    assert {"jupyter_gpushare", "users_own"} <= set(json.loads(told.splitlines()[-1]))


# -- the light client ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def light(client: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the light client and nothing else at all; tests leave it as it was."""
    environment = make_environment(tmp_path_factory.mktemp("light") / "venv")
    before = environment.files()
    environment.pip("install", "--quiet", "--no-index", client)
    yield environment
    environment.pip("uninstall", "--quiet", "--yes", "jupyter-gpushare-client")
    assert environment.files() == before


def test_the_light_client_needs_nothing(client: Path) -> None:
    assert client.name == CLIENT_WHEEL, "the name that doctor and the server tell"
    with zipfile.ZipFile(client) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        told = message_from_bytes(archive.read(name))
    assert told.get_all("Requires-Dist") is None
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_clients_sdist_makes_the_same_wheel(client: Path, tmp_path: Path) -> None:
    sdist = build(CLIENT, tmp_path, "build_sdist")
    root = unpack(sdist, tmp_path)
    assert files_in_wheel(build(root, tmp_path, "build_wheel")) == files_in_wheel(client)


def test_an_editable_client_has_the_same_beside_the_package(client: Path, tmp_path: Path) -> None:
    editable = build(CLIENT, tmp_path, "build_editable")
    beside = {name for name in files_in_wheel(client) if not name.startswith("jupyter_gpushare/")}
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
        told = run(script, "status", **node.environ, PBS_JOBID="8.pbs")
        assert "These GPUs are simulated" in told
        assert "PBS_JOBID=8.pbs; GPUs: none that are known here; nobody says until when." in told
        shown = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert run(script, "run", "--", *shown, **node.environ).startswith("GPU-")
        lone = run(script, "request", **{**node.environ, "SHELL": "/usr/bin/env"})
        assert "CUDA_VISIBLE_DEVICES=GPU-" in lone
    refused = attempt(script, "doctor")
    assert refused.returncode == 1
    assert "`jupyter gpushare doctor` is not in the light client" in refused.stderr


def test_a_kernel_of_such_an_environment_gets_a_gpu(client: Path, tmp_path: Path) -> None:
    """The server has the whole product; the kernel's environment has ipykernel and torch."""
    light = make_environment(tmp_path / "venv")
    light.link("ipykernel", "torch")
    light.pip("install", "--quiet", "--no-index", client)
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


def test_the_server_says_when_a_kernels_environment_lacks_it(client: Path, tmp_path: Path) -> None:
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
        bare.pip("install", "--quiet", "--no-index", client)
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
