"""``jupyter gpushare doctor``: what is installed, reachable, enabled, and what is wrong."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..console.check import Check, Level, ok, warning
from ..console.verb import Verb, flag, option, options
from ..daemon.membership import POOL_DIRECTORY
from ..figures import counted
from ..protocol import names
from . import checks, modelcaches
from .jobchecks import batch_job
from .poolchecks import membership


class DoctorApp(Verb):
    """Look at everything that has to work together: the package, the import hook, the
    Jupyter and IPython extensions, the node manager, the driver, the ledger. With --hub at what
    JupyterHub's configuration sets for it instead (it is run for that, as JupyterHub does). Each
    line is ok, a warning, or a problem with its fix. Nothing is changed. Exits with 1 when there
    is a problem. With --bundle=FILE all this, the settings, the status, the last events, the end of
    the log and the metrics are written into one file for the people who help you, without tokens,
    secrets and
    other people's names; then it exits with 0 when the file is written."""

    name = "doctor"
    examples = """
    jupyter gpushare doctor
    jupyter gpushare doctor --hub
    jupyter gpushare doctor --hub-config=/srv/jupyterhub/jupyterhub_config.py
    jupyter gpushare doctor --bundle=gpushare.tar.gz
    """

    hub = flag("Check JupyterHub's side instead of this installation.")
    hub_config = option(
        "", "JupyterHub's configuration file; it implies --hub. Default: the usual places."
    )
    bundle = option("", "Write what others need to help you into this file.")
    log_files = options(
        "With --bundle: take the end of this log too (may be given again).", name="log"
    )
    metrics_url = option(
        "",
        "With --bundle: where the metrics are, if not where the configuration says.",
        name="metrics",
    )

    def run(self, arguments: list[str]) -> int:
        if self.bundle:
            return self._write_bundle()
        checks = []
        for check in self._examine():
            checks.append(check)
            if not self.json:
                print(as_text(check), flush=True)
        problems = sum(check.level is Level.PROBLEM for check in checks)
        warnings = sum(check.level is Level.WARNING for check in checks)
        if self.json:
            rows = [{**dataclasses.asdict(check), "level": check.level.value} for check in checks]
            self.print_json({"checks": rows, "problems": problems, "warnings": warnings})
        else:
            print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}.")
        return 1 if problems else 0

    def _write_bundle(self) -> int:
        from .bundle import gather, write_bundle

        path = Path(self.bundle)
        lines = [as_text(check) for check in self._examine()]
        parts = gather(lines, os.environ, self.log_files, self.metrics_url)
        write_bundle(path, parts)
        return self.say(
            {"bundle": str(path), "parts": list(parts)},
            f"{path}: {', '.join(parts)}. Look through it before you send it.",
        )

    def _examine(self) -> Iterator[Check]:
        if self.hub or self.hub_config:
            from .hubchecks import examine_hub

            return examine_hub(self.hub_config or None)
        return examine(os.environ, self._ledger(), sys.platform)

    def _ledger(self) -> Path:
        """Where the node manager that a Jupyter server of this user hosts keeps its ledger."""
        from jupyter_core.application import JupyterApp
        from jupyter_core.paths import jupyter_data_dir

        # As the Jupyter server reads it.
        server = JupyterApp(config_file_name="jupyter_gpushare_config")
        server.load_config_file()
        if configured := server.config.get("GpuShareExtension", {}).get("ledger"):
            return Path(str(configured))
        from ..ledger.place import look, mounts
        from ..protocol.address import host_id

        return look(Path(jupyter_data_dir()), host_id(os.environ), mounts())


def examine(environ: Mapping[str, str], ledger: Path, platform: str) -> Iterator[Check]:
    """All checks, in the order in which a person would look."""
    yield checks.package()
    if platform != "linux":
        yield warning(
            "platform",
            f"This is {platform}. jupyter_gpushare works on Linux only; here it is installed but"
            " inert: imports go on as if it were not there.",
        )
        return
    yield ok("platform", f"Linux {os.uname().release}")
    off = environ.get(names.SWITCH, "").lower() == "off"
    if off:
        yield warning(
            "switch",
            f"{names.SWITCH}=off: imports do not ask for GPUs in this environment.",
            f"unset {names.SWITCH}",
        )
    else:
        yield ok("switch", f"{names.SWITCH} is not off")
    yield checks.startup_file()
    yield checks.hook_here(off)
    yield checks.hook_in_child(off)
    yield from checks.kernels(off)
    yield checks.server_extension()
    yield checks.panel()
    yield checks.ipython_extension()
    yield from batch_job(environ)
    node = yield from checks.node_manager(environ)
    yield checks.editors(environ)
    answer = checks.ask_nvml()
    yield checks.nvml(node, answer)
    yield from checks.driver_checkpoints(environ, answer)
    yield checks.pidfd()
    yield checks.peer_pidfd()
    yield checks.ledger_place(ledger) if node is None else checks.ledger_in_use(node)
    used = ledger if node is None else Path(node["ledger"] or ledger)
    # What a host of a pool has of it lies beside the ledger.
    yield from membership(used.parent / POOL_DIRECTORY)
    yield from checks.settings(environ)
    yield checks.cuda_visible_devices(environ)
    yield from checks.frameworks()
    yield modelcaches.model_caches()


def as_text(check: Check) -> str:
    """One check for a terminal: the level in words, the fix below."""
    lines = textwrap.wrap(
        f"{check.level.value:8} {check.name}: {check.text}",
        width=100,
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if check.fix is not None:
        lines += textwrap.wrap(
            f"fix: {check.fix}",
            width=100,
            initial_indent=" " * 9,
            subsequent_indent=" " * 14,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
