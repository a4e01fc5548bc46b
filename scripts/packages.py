"""Install Python packages into this environment: by uv where it can, else by pip.

``python scripts/packages.py [--torch] REQUIREMENT …`` with the arguments of ``pip install``. uv
fetches and unpacks side by side and needs a tenth of pip's time. It does not read pip's
configuration, so what that says of indexes, folders, constraints and certificates is handed on.
Where uv cannot be had, or an index wants what it does not know, pip does the work.

With ``--torch`` the requirements are of PyTorch. Its CPU build is a tenth of the size, and on a
machine without a GPU the right one. It has an index of its own, which not every network reaches: it
is asked once, without retries, and where it does not answer the ordinary index has to do.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

TORCH_CPU = "https://download.pytorch.org/whl/cpu"
#: Seconds: as long as an index may take to say that it is there.
ANSWERS_WITHIN = 10


def pips_settings() -> dict[str, list[str]]:
    """What pip's files and variables say, by option; the nearest word of each counts."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found: dict[str, list[str]] = {}
    for line in told.stdout.splitlines():  # global first, then :env:
        name, _, value = line.partition("=")
        words = value.strip("'\"").replace("\\n", " ").split()
        found[name.rpartition(".")[2].lower()] = words
    return found


def is_there(place: str) -> bool:
    """Whether an index or a folder could be one: a folder that does not exist is none."""
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path)).exists()
    return True


def for_uv(settings: Mapping[str, list[str]]) -> list[str]:
    """pip's settings as options of ``uv pip install``."""
    # pip takes the best of all indexes, not what the first one has.
    options = ["--system-certs", "--index-strategy=unsafe-best-match"]
    for name, option in (
        ("index-url", "--default-index"),
        ("extra-index-url", "--index"),
        ("find-links", "--find-links"),
        ("constraint", "--constraint"),
    ):
        for place in settings.get(name, ()):
            if is_there(place):
                options += [option, place]
    return options


def answers(url: str) -> bool:
    """Whether an index is reached."""
    try:
        with urllib.request.urlopen(f"{url}/", timeout=ANSWERS_WITHIN):
            return True
    except (OSError, ValueError):
        return False


def has_uv() -> bool:
    """Whether uv is here, after an attempt to get it."""
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists() and not run_pip(["--only-binary=uv", "uv>=0.9"]):
        print("Going on without uv: pip installs the rest, which takes longer.", flush=True)
    return uv.exists()


def run_pip(words: list[str]) -> bool:
    """``pip install``, and whether it worked. What it warns of matters only where it did not.

    It warns five times of an index that does not answer, and goes on with the others.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *words], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, end="", file=sys.stderr, flush=True)
    elif count := done.stderr.count("WARNING:"):
        print(f"pip warned {count} times, of an index that did not answer, say, and went on.")
    return done.returncode == 0


def install(wanted: list[str], *, torchs_index: bool = False) -> int:
    """Install; the exit status of whoever did it, or failed to."""
    if has_uv():
        uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet"]
        uv += ["--python", sys.executable, *for_uv(pips_settings())]
        uv += ["--torch-backend=cpu"] if torchs_index else []
        if subprocess.run([*uv, *wanted], check=False).returncode == 0:
            return 0
        print("uv could not install that; now pip tries.", file=sys.stderr, flush=True)
    # Only PyTorch itself: what it needs is newer elsewhere.
    torch = ["--no-deps", f"--extra-index-url={TORCH_CPU}"] if torchs_index else []
    return 0 if run_pip(["--no-compile", *torch, *wanted]) else 1


def main() -> int:
    """Return the exit status."""
    wanted = sys.argv[1:]
    if "--torch" in wanted:
        wanted.remove("--torch")
        if not Path("/dev/nvidiactl").exists() and answers(TORCH_CPU):
            install(wanted, torchs_index=True)
    return install(wanted)


if __name__ == "__main__":
    sys.exit(main())
