"""Kernels that run another Python than this one: the import hook must be installed there, too.

`jupyter gpushare doctor` looks at all kernelspecs, and so does the server for JupyterLab's panel.
The server's log tells it when such a kernel starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from jupyter_gpushare._version import __version__

if TYPE_CHECKING:
    from jupyter_gpushare.protocol.documents import KernelWithoutHook

#: What pip installs into the environment of a kernel: the packages are not on PyPI.
CLIENT_WHEEL: Final = f"jupyter_gpushare_client-{__version__}-py3-none-any.whl"
#: The provisioner of kernels without the hook.
KEPT: Final = "gpushare"
#: Seconds that another Python may take to answer.
PATIENCE: Final = 30.0

_HOOK = (
    "import sys;print(any(type(f).__module__ == 'jupyter_gpushare._boot' for f in sys.meta_path))"
)


def other_python(argv: Sequence[str], metadata: Any = None) -> str | None:
    """The path of the Python that a kernelspec's ``argv`` starts; ``None`` if it is this one.

    A kernel of another language, one whose program is not there, or one that needs no hook, as the
    ``metadata`` say (`jupyter gpushare kernelspec wrap`), gives ``None``, too.
    """
    with contextlib.suppress(KeyError, TypeError):  # anybody may write there
        if metadata["kernel_provisioner"]["provisioner_name"] == KEPT:
            return None
    command = argv[0] if argv else ""
    if command in ("python", "python3", f"python3.{sys.version_info.minor}"):
        return None  # Jupyter starts the Python that it runs in itself
    python = shutil.which(command)
    if python is None or not os.path.basename(python).startswith("python"):
        return None
    # Not the resolved path: a virtual environment's python is a link to another one.
    place = os.path.abspath(python)
    return None if place == os.path.abspath(sys.executable) else place


def python_of(spec: Mapping[str, Any]) -> str | None:
    """The same of a kernelspec as the manager of kernelspecs tells it."""
    return other_python(spec.get("argv") or [], spec.get("metadata"))


def has_hook(python: str, patience: float = PATIENCE) -> bool | None:
    """Whether a fresh ``python`` has the import hook; ``None`` when it cannot be asked.

    It may take ``patience`` seconds to answer.
    """
    try:
        done = subprocess.run(
            [python, "-c", _HOOK], capture_output=True, text=True, timeout=patience, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() == "True" if done.returncode == 0 else None


def client_source() -> str:
    """What another Python's pip installs the light client from.

    That is the commit, file or folder that this one has it from, where pip kept that and a file is
    still there; else the wheel's name.
    """
    try:
        told = metadata.distribution("jupyter-gpushare-client").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return CLIENT_WHEEL
    source = json.loads(told) if told else {}
    if commit := source.get("vcs_info"):
        at = f"{source['url']}@{commit['commit_id']}"
        return f"{commit['vcs']}+{at}#subdirectory={source.get('subdirectory', '')}"
    url = urlsplit(source.get("url", ""))
    if url.scheme != "file":
        return CLIENT_WHEEL
    path = url2pathname(url.path)
    return path if os.path.exists(path) else CLIENT_WHEEL


def lacking(kernel: str, python: str) -> tuple[str, str]:
    """The sentence on a kernel whose Python has no hook, and the line that mends it."""
    return (
        f"kernel {kernel} runs {python}, where the import hook is not active: its code sees no "
        "GPUs of ours.",
        shlex.join([python, "-m", "pip", "install", client_source()]),
    )


class OtherPythons:
    """Asks the Pythons of kernels whether they have the hook; one that has it is asked once."""

    def __init__(self) -> None:
        self._with_hook: set[str] = set()
        self._asking = asyncio.Semaphore(2)

    async def lacks(self, python: str, patience: float = PATIENCE) -> bool:
        """Whether ``python`` is there and has no hook."""
        async with self._asking:
            if python in self._with_hook:
                return False
            has = await asyncio.to_thread(has_hook, python, patience)
        if has:
            self._with_hook.add(python)
        return has is False

    async def kernels(self, specs: Mapping[str, Mapping[str, Any]]) -> list[KernelWithoutHook]:
        """Those of a kernelspec manager's ``specs`` that lack the hook, by name."""
        pythons = {
            name: python
            for name, spec in sorted(specs.items())
            if (python := python_of(spec["spec"])) is not None
        }
        asked = list(dict.fromkeys(pythons.values()))
        answers = await asyncio.gather(*(self.lacks(python) for python in asked))
        lack = {python for python, lacks in zip(asked, answers, strict=True) if lacks}
        return [
            {
                "name": name,
                "title": str(specs[name]["spec"].get("display_name") or name),
                "python": python,
                "fix": lacking(name, python)[1],
            }
            for name, python in pythons.items()
            if python in lack
        ]
