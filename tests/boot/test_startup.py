"""Start-up is two-staged, and a kernel never loads the server's world because of us."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from jupyter_gpushare import _boot

ROOT = Path(__file__).parents[2]

SERVER_WORLD = ("tornado", "jupyter_server", "jupyter_core", "sqlite3", "pynvml", "psutil")
OURS_AT_START = ["jupyter_gpushare", "jupyter_gpushare._boot", "jupyter_gpushare._version"]


def run(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_the_first_stage_loads_three_modules() -> None:
    """Beside what Python itself loads (-S: without any start-up file)."""
    code = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
before = set(sys.modules)
import jupyter_gpushare._boot
jupyter_gpushare._boot.install()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    assert json.loads(run(code, "-S").stdout) == OURS_AT_START


def test_the_start_up_file_runs_in_every_python() -> None:
    code = """
import json, sys
ours = sorted(name for name in sys.modules if "gpushare" in name)
print(json.dumps([type(sys.meta_path[0]).__module__, ours]))
"""
    for options in ([], ["-I"]):
        finder, ours = json.loads(run(code, *options).stdout)
        assert finder == "jupyter_gpushare._boot"
        assert ours == OURS_AT_START


def test_the_second_stage_stays_out_of_the_servers_world(tmp_path: Path) -> None:
    """With no node manager to be found, importing a framework costs the client and no more."""
    (tmp_path / "caffe.py").write_text("")
    code = f"""
import json, sys
sys.path.insert(0, {str(tmp_path)!r})
import caffe
print(json.dumps(sorted(sys.modules)))
"""
    done = run(code, HOME=str(tmp_path), JUPYTER_RUNTIME_DIR=str(tmp_path))
    loaded = json.loads(done.stdout)
    assert "jupyter_gpushare.client.acquire" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in SERVER_WORLD]
    assert done.stderr == ""


def lines(name: str) -> list[str]:
    text = (ROOT / "etc" / "startup" / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_both_kinds_of_start_up_file_call_the_same() -> None:
    """Python 3.15 and later read the ``.start`` file, and then not the ``.pth`` beside it."""
    (entry,) = lines("jupyter_gpushare.start")
    assert pkgutil.resolve_name(entry) is _boot.install
    (statement,) = lines("jupyter_gpushare.pth")
    assert statement == "import jupyter_gpushare._boot; jupyter_gpushare._boot.install()"
