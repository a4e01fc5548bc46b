"""What `pip install` puts somewhere works there, and uninstalling leaves nothing."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
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

DATA = f"jupyter_gpushare-{__version__}.data/data"
WHERE_IT_MATTERS = {
    f"{DATA}/etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
    f"{DATA}/share/jupyter_gpushare/systemd/jupyter-gpushare.service",
    f"{DATA}/share/jupyter_gpushare/systemd/jupyter-gpushare.socket",
    f"{DATA}/share/jupyter_gpushare/systemd/jupyter-gpushare.sysusers.conf",
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
    return build(ROOT / "client", tmp_path_factory.mktemp("client"), "build_wheel")


@pytest.fixture(scope="module")
def sdist(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "build_sdist")


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **safely)
    (root,) = (tmp_path / "unpacked").iterdir()
    return root


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
    assert set(units) == {
        "systemd/system/jupyter-gpushare.service",
        "systemd/system/jupyter-gpushare.socket",
        "sysusers.d/jupyter-gpushare.conf",
    }
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
