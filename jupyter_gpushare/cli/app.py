"""``jupyter gpushare``: the verbs and where they are; a verb is imported when it is used."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, ClassVar

from ..console.verb import COMMAND, Refused, Verb
from ..satellites import VERBS


class GpuShareApp(Verb):
    """Share the GPUs of this machine between many notebooks, just in time."""

    arguments = "VERB"
    subcommands: ClassVar[Any] = {
        "status": ("cli.status.StatusApp", "GPUs, leases and the queue."),
        "leases": ("cli.leases.LeasesApp", "Leases: who holds which GPU."),
        "walls": ("cli.walls.WallsApp", "What the kernel lets people's processes open."),
        "release": ("cli.release.ReleaseApp", "Give a lease back."),
        "quota": ("cli.quota.QuotaApp", "Quotas: list, set, unset (administrators)."),
        "gpu": ("cli.gpu.GpuApp", "GPUs: list, drain, resume (administrators)."),
        "servers": ("cli.servers.ServersApp", "The model servers that you may use."),
        "usage": ("cli.usage.UsageApp", "GPU-hours by environment, held and busy."),
        "run": ("cli.run.RunApp", "Run any command under a lease."),
        "request": ("cli.run.RequestApp", "Open a shell that holds GPUs until you leave it."),
        "plan": ("cli.plan.PlanApp", "Ask the policy what it would decide (JSON lines)."),
        "doctor": ("cli.doctor.DoctorApp", "What is installed, reachable, enabled or wrong."),
        "ledger": ("cli.ledger.LedgerApp", "The ledger: backup, check, vacuum, restore."),
        "node": ("node.app.NodeManagerApp", "Run the node manager."),
        "systemd": ("cli.systemd.SystemdApp", "The node manager as a systemd service."),
        **VERBS,
    }

    def run(self, arguments: list[str]) -> int:
        self.parser().print_help()
        return 2


def find(argv: Sequence[str]) -> tuple[Any, list[str]]:
    """The class of the verb that is meant, and its command line. Raises `Refused`.

    It is a `Verb`, or an application of traitlets, which the node manager is.
    """
    kind: Any = GpuShareApp
    rest = list(argv)
    while rest and issubclass(kind, Verb) and rest[0] in kind.subcommands:
        kind = load(kind, rest.pop(0))
    return kind, rest


def load(kind: type[Verb], verb: str) -> Any:
    """The class of a verb below ``kind``. Raises `Refused` where it is not installed."""
    module, _, name = kind.subcommands[verb][0].rpartition(".")
    place = f"{__package__.rpartition('.')[0]}.{module}"
    try:
        return getattr(import_module(place), name)
    except ModuleNotFoundError as error:
        if not f"{place}.".startswith(f"{error.name}."):
            raise
        raise Refused(
            f"`{COMMAND} {verb}` is not in the light client, jupyter-gpushare-client. Run it where "
            "the Jupyter server is installed, or install jupyter_gpushare here, too."
        ) from error


def tree(
    words: Collection[str],
    kind: type[Verb] = GpuShareApp,
    parser: argparse.ArgumentParser | None = None,
) -> argparse.ArgumentParser:
    """One parser with all verbs that are installed here, for completion in the shell.

    Only those among ``words`` are loaded, for their options.
    """
    parser = kind.parser() if parser is None else parser
    if kind.subcommands:
        subparsers = parser.add_subparsers()
        for verb in kind.below():
            inner = load(kind, verb) if verb in words else None
            if inner is not None and issubclass(inner, Verb):
                found = subparsers.add_parser(verb, parents=[inner.parser()], add_help=False)
                tree(words, inner, found)
            else:
                subparsers.add_parser(verb)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The ``jupyter-gpushare`` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has not all signs shows a question mark for them, and no traceback.
        sys.stdout.reconfigure(errors="replace")
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(tree(os.environ["COMP_LINE"].split()))
    try:
        kind, rest = find(sys.argv[1:] if argv is None else argv)
        if issubclass(kind, Verb):
            code = kind().start(rest)
        else:
            kind.launch_instance(argv=rest)
            code = 0
        sys.stdout.flush()
    except Refused as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        # `| head` has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
