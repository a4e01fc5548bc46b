"""What `pip install` puts where, that it works there, and that uninstalling leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyter_gpushare import __version__

ROOT = Path(__file__).parents[2]
DATA = f"jupyter_gpushare-{__version__}.data/data"
WHERE_IT_MATTERS = {
    "jupyter_gpushare.pth",
    "jupyter_gpushare.start",
    f"{DATA}/etc/ipython/ipython_kernel_config.json",
    f"{DATA}/etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: Path, hook: str) -> Path:
    """Call a hook of the build backend, as pip does, and nothing from the network."""
    code = f"import hatchling.build, sys; print(hatchling.build.{hook}(sys.argv[1]))"
    return target / run(sys.executable, "-c", code, target, cwd=source).splitlines()[-1]


def files_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "build_wheel")


def test_the_wheel_has_everything(wheel: Path) -> None:
    files = files_in_wheel(wheel)
    assert files >= WHERE_IT_MATTERS
    package = ROOT / "jupyter_gpushare"
    for source in package.rglob("*"):
        if source.suffix in {".py", ".yaml", ".typed"}:
            assert f"jupyter_gpushare/{source.relative_to(package)}" in files
    others = {name.partition("/")[0] for name in files} - {
        "jupyter_gpushare",
        "jupyter_gpushare.pth",
        "jupyter_gpushare.start",
        f"jupyter_gpushare-{__version__}.data",
        f"jupyter_gpushare-{__version__}.dist-info",
    }
    assert others == set()


def test_an_editable_install_has_the_same_beside_the_package(tmp_path: Path) -> None:
    assert files_in_wheel(build(ROOT, tmp_path, "build_editable")) >= WHERE_IT_MATTERS


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, tmp_path, "build_sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert files_in_wheel(build(unpacked, tmp_path, "build_wheel")) == files_in_wheel(wheel)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees this one's packages, but not its start-up files."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        return self.root / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"

    def files(self) -> set[Path]:
        return {path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file()}

    def pip(self, *arguments: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, *arguments)

    def ask(self, code: str, **environment: str) -> str:
        return run(self.python, "-c", code, cwd=self.root, **environment)


@pytest.fixture
def bare(tmp_path: Path) -> Environment:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    environment = Environment(tmp_path / "venv")
    (environment.site / "zz_outside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.fixture
def installed(bare: Environment, wheel: Path) -> Iterator[Environment]:
    before = bare.files()
    bare.pip("install", "--quiet", "--no-deps", "--no-index", wheel)
    yield bare
    bare.pip("uninstall", "--quiet", "--yes", "jupyter_gpushare")
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


def test_the_server_extension_is_enabled(installed: Environment, tmp_path: Path) -> None:
    told = installed.ask(
        "from jupyter_server.extension.config import ExtensionConfigManager as Manager\n"
        "from jupyter_server.extension.manager import ExtensionPackage\n"
        "from jupyter_core.paths import jupyter_config_path\n"
        "import json\n"
        "enabled = Manager(read_config_path=jupyter_config_path()).get_jpserver_extensions()\n"
        "points = ExtensionPackage(name='jupyter_gpushare', enabled=True).extension_points\n"
        "print(json.dumps([enabled['jupyter_gpushare'], list(points)]))",
        JUPYTER_CONFIG_DIR=str(tmp_path),
    )
    assert json.loads(told.splitlines()[-1]) == [True, ["jupyter_gpushare"]]


def test_the_command_line(installed: Environment) -> None:
    script = installed.root / "bin" / "jupyter-gpushare"
    assert "gpushare" in run(script, "--help", cwd=installed.root).lower()
    assert __version__ in run(script, "--version", cwd=installed.root)


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


def kernel_spec(environment: Environment, tmp_path: Path) -> Path:
    """A kernel that runs in this environment."""
    spec = tmp_path / "share" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [str(environment.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Python", "language": "python"})
    )
    return spec.parents[1]
