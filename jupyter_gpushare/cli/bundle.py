"""``jupyter gpushare doctor --bundle FILE``: one redacted file for people who help.

Each part is gathered by itself; in place of a part that fails stands the reason. The verb changes
nothing, sends nothing, and reads only what the caller may read.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..console.verb import Refused
from ..protocol import names
from ..protocol.messages import Method
from . import redact
from .redact import Redactor

PACKAGES: Final = (
    *("jupyter_server", "jupyterlab", "notebook", "jupyterhub", "jupyter_client", "ipykernel"),
    *("ipython", "tornado", "traitlets", "jupyter_events", "prometheus_client", "psutil"),
    *("nvidia-ml-py", "cuda-bindings", "torch", "tensorflow", "jax", "cupy"),
)
CONFIGS: Final = (
    "jupyter_gpushare_node_config",
    "jupyter_gpushare_config",
    "jupyter_gpushare_hub_config",
    "ipython_config",
    "ipython_kernel_config",
)
HISTORY: Final = 200
LOG_LINES: Final = 2000
LOG_BYTES: Final = 1024 * 1024
METRICS_BYTES: Final = 4 * 1024 * 1024
#: Seconds that the journal, or the metrics, may take.
PATIENCE: Final = 10.0
#: Values of secret variables that are shorter are words like "true".
SHORTEST_SECRET: Final = 8

README = """\
What `jupyter gpushare doctor --bundle` found here. Look through it before you send it.

versions.json     this package, Python, the system, the packages it works with
doctor.txt        what `jupyter gpushare doctor` says
environment.json  the variables that it reads
settings.json     the configuration files, read and not run
status.json       the node, its GPUs, leases and queue, as the caller may see them
history.json      the last events, as the caller may see them
log.txt           the end of the node manager's log, where the caller may read it
metrics.txt       its Prometheus metrics, where there are any

A text that was removed is replaced by a mark such as <1f0c9a>: tokens, secrets, lease and
kernel ids, names of people other than the caller, of their groups, of homes, of users within
addresses, of notebooks and of jobs. The same text has the same mark everywhere in this file.
"""


def write_bundle(path: Path, parts: Mapping[str, str]) -> None:
    """Write what was gathered so that only its owner can read it.

    Raises :class:`Refused` if the file cannot be written or already exists.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"gpushare/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Refused(f"{path} is there already; name another file, or remove it.") from None
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.") from error
    with open(descriptor, "wb") as file:
        file.write(buffer.getvalue())


def gather(
    checks: Iterable[str], environ: Mapping[str, str], logs: tuple[str, ...], metrics_url: str
) -> dict[str, str]:
    """Every part's name and text, redacted. ``checks``: what the doctor says; ``logs``: files."""
    redactor = Redactor(_secrets(environ))
    found = dict(_config_files())
    for settings in found.values():
        secret = [value for _, trait, value in settings if redact.is_secret_name(trait)]
        redactor.learn(value for value in secret if isinstance(value, str))
    status, history = _ask(environ)
    me: str | None = None
    if "error" not in status:
        me = status["environment"]
        known = set[str]()
        status = redact.own_status(status, known.add)
        history = redact.own_history(history, me, known.add)
        redactor.learn(known - {me})
    told = {name: redact.settings(settings, redactor) for name, settings in found.items()}
    metrics_url = metrics_url or _metrics_url(found.values())
    return {
        "README.txt": README,
        "versions.json": _json(versions()),
        "doctor.txt": redactor.text("\n".join(checks) + "\n"),
        "environment.json": _json(
            {
                name: redactor.value(name, value)
                for name, value in sorted(environ.items())
                if name.startswith(names.SWITCH) or name == "CUDA_VISIBLE_DEVICES"
            }
        ),
        "settings.json": _json({redactor.text(name): value for name, value in told.items()}),
        "status.json": _json(redactor.value("", status)),
        "history.json": _json(redactor.value("", history)),
        "log.txt": redactor.log("\n".join(_logs(logs)) + "\n", me),
        "metrics.txt": redactor.log(_metrics(metrics_url), me),
    }


def versions() -> dict[str, Any]:
    """The installed versions, without an import of the packages."""
    found = {name: [*importlib.metadata.distributions(name=name)] for name in PACKAGES}
    return {
        "jupyter_gpushare": __version__,
        "python": sys.version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: of[0].version for name, of in found.items() if of},
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"


# -- what is secret ------------------------------------------------------------------------------


def _secrets(environ: Mapping[str, str]) -> Iterable[str]:
    for name, value in environ.items():
        if redact.is_secret_name(name.lower()) and len(value) >= SHORTEST_SECRET:
            yield value
    from ..client.words.settings import read_token

    if token := read_token(environ):
        yield token


# -- the parts -----------------------------------------------------------------------------------


def _config_files() -> Iterable[tuple[str, list[tuple[str, str, Any]]]]:
    from jupyter_core.paths import jupyter_config_path

    for folder in jupyter_config_path():
        for name in CONFIGS:
            for path in (Path(folder, f"{name}.py"), Path(folder, f"{name}.json")):
                try:
                    source = path.read_text("utf-8", "replace")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    yield str(path), [("", "", f"cannot be read: {error.strerror}")]
                    continue
                read = redact.python_settings if path.suffix == ".py" else _json_settings
                yield str(path), list(read(source))


def _json_settings(source: str) -> Iterable[tuple[str, str, Any]]:
    try:
        document = json.loads(source)
    except ValueError as error:
        yield "", "", f"cannot be read: {type(error).__name__}"
        return
    for section, traits in document.items() if isinstance(document, dict) else ():
        if section in redact.SECTIONS and isinstance(traits, dict):
            for trait, value in traits.items():
                yield section, trait, value


def _ask(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    from ..console.node import connect

    try:
        with connect(environ) as node:
            return node.call(Method.STATUS), node.call(Method.HISTORY, limit=HISTORY)
    except Refused as refused:
        return {"error": str(refused)}, {"error": str(refused)}


def _logs(files: Iterable[str]) -> Iterable[str]:
    for file in files:
        yield f"== {file}"
        yield _or_why(partial(_tail, Path(file)))
    journal = shutil.which("journalctl")
    if journal is not None:
        yield "== journalctl --unit=jupyter-gpushare.service"
        yield _or_why(lambda: _journal(journal))
    elif not files:
        yield "There is no journal here, and no --log was named."


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LOG_BYTES))
        text = file.read(LOG_BYTES).decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-LOG_LINES:])


def _journal(program: str) -> str:
    command = [program, "--unit=jupyter-gpushare.service", f"--lines={LOG_LINES}", "--no-pager"]
    done = subprocess.run(
        [*command, "--quiet", "--output=cat"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout[-LOG_BYTES:] or done.stderr[-LOG_BYTES:] or "(nothing)"


def _metrics_url(found: Iterable[Iterable[tuple[str, str, Any]]]) -> str:
    traits = {
        trait: value
        for settings in found
        for section, trait, value in settings
        if section == "NodeManagerApp"
    }
    port = traits.get("metrics_port")
    if not isinstance(port, int) or not port:
        return ""
    return f"http://{traits.get('metrics_address', '127.0.0.1')}:{port}/metrics"


def _metrics(url: str) -> str:
    if not url:
        return "No metrics_port is configured here, and no --metrics was named.\n"
    if not url.startswith(("http://", "https://")):
        return "--metrics must be an http or https address.\n"
    # No proxy: the node manager is on this host, or next to it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read() -> str:
        with opener.open(url, timeout=PATIENCE) as answer:
            return str(answer.read(METRICS_BYTES).decode("utf-8", "replace"))

    return _or_why(read)


def _or_why(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, ValueError, subprocess.SubprocessError, urllib.error.URLError) as error:
        return f"cannot be read: {type(error).__name__}: {error}\n"
