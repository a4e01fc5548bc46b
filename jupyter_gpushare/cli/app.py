"""``jupyter gpushare``: the verbs and where they are; a verb is imported when it is used."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from ..node.settings.commandline import did_you_mean
from .verb import UsageError, Verb


class GpuShareApp(Verb):
    """Share the GPUs of this machine between many notebooks, just in time."""

    name = "jupyter-gpushare"
    arguments = "VERB"
    description = """Share the GPUs of this machine between many notebooks, just in time."""
    subcommands: ClassVar[Any] = {
        verb: (f"jupyter_gpushare.{place}", text)
        for verb, place, text in (
            ("status", "cli.status.StatusApp", "GPUs, leases and the queue."),
            ("leases", "cli.leases.LeasesApp", "Leases: who holds which GPU."),
            ("release", "cli.release.ReleaseApp", "Give a lease back."),
            ("quota", "cli.quota.QuotaApp", "Quotas: list, set, unset (administrators)."),
            ("gpu", "cli.gpu.GpuApp", "GPUs: list, drain, resume (administrators)."),
            ("usage", "cli.usage.UsageApp", "GPU-hours by environment, held and busy."),
            ("run", "cli.run.RunApp", "Run any command under a lease."),
            ("plan", "cli.plan.PlanApp", "Ask the policy what it would decide (JSON lines)."),
            ("replay", "cli.replay.ReplayApp", "Replay a trace of sessions through the policy."),
            ("doctor", "cli.doctor.DoctorApp", "What is installed, reachable, enabled or wrong."),
            ("ledger", "cli.ledger.LedgerApp", "The ledger: backup, check, vacuum, restore."),
            ("node", "node.app.NodeManagerApp", "Run the node manager."),
            ("systemd", "cli.systemd.SystemdApp", "The node manager as a systemd service."),
        )
    }

    def run(self, arguments: list[str]) -> int:
        if arguments:
            hint = did_you_mean(arguments[0], self.subcommands)
            raise UsageError(f"there is no verb {arguments[0]!r}{hint}")
        self.print_help()
        return 2


def main(argv: list[str] | None = None, **kwargs: Any) -> None:
    """The ``jupyter-gpushare`` command."""
    try:
        GpuShareApp.launch_instance(argv=argv, **kwargs)
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. Nothing more may be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
