"""What became of promises is told, counted, and kept over restarts."""

from __future__ import annotations

from pathlib import Path

from support.exporter import samples
from support.node import RunningNode, until

from jupyter_gpushare.node.views.metrics import PREFIX
from jupyter_gpushare.protocol.messages import Method, Notice


def test_verdicts_are_told_counted_and_kept_over_a_restart(tmp_path: Path, port: int) -> None:
    kept = f'{PREFIX}_promises_total{{reason="",verdict="kept"}}'
    # This GPU is not used by turns, so no share of it can be given.
    missed = f'{PREFIX}_promises_total{{reason="no_turns",verdict="missed"}}'
    with RunningNode(tmp_path, arguments=[f"--metrics-port={port}"]) as node:
        with node.client() as one:
            lease = one.request()["lease"]
            one.call(Method.PROMISE, lease=lease, deadline=600)
            one.call(Method.PROGRESS, lease=lease, done=3, total=3, seconds=0.1)
            assert samples(port)[f'{PREFIX}_promises_open{{state="on_time"}}'] == 1
            one.call(Method.PROMISE, lease=lease)
            assert node.status()["leases"][0].get("promise") is None
            until(lambda: samples(port).get(kept) == 1, "it was kept")
            one.call(Method.PROMISE, lease=lease, deadline=0.1)
            told = one.wait_notice(Notice.PROMISE, where=lambda told: told["state"] == "missed")
            assert (told["named"], told["left"] < 0) == (True, True)
            assert node.status()["leases"][0]["promise"]["state"] == "missed"
            one.call(Method.PROMISE, lease=lease)
            until(lambda: samples(port).get(missed) == 1, "it was missed")
        verdicts = node.status()["promises"]
        assert (verdicts["kept"], verdicts["missed"], verdicts["ended"]) == (1, 1, 0)
        assert verdicts["why"] == [{"why": "no_turns", "missed": 1}]
        node.restart()
        assert node.status()["promises"] == verdicts
