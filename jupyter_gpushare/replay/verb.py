"""``jupyter gpushare replay``: how people would fare under each policy, by a trace."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..console.verb import Refused, UsageError, Verb, flag, number, option
from ..policy.words.model import ParkWhen, Reserve
from ..protocol.names import RESERVES
from ..protocol.sizes import parse_size
from ..protocol.tables import table
from ..protocol.times import parse_duration
from .behaviour import TOGETHER, Options, ParkingCost, PolicyName
from .generate import Population, Runs
from .plots import plot_comparison
from .promising import Promising
from .report import HEADINGS, PROMISES, figures, row
from .run import Cluster, Scan, Source, TraceFile, Variant, replay, window_of
from .trace import TraceError, write_trace

PICTURES = (".svg", ".png", ".pdf")


class ReplayApp(Verb):
    """Replay notebook sessions through the node manager's own policy with a virtual
    clock, and compare it with other ways to share GPUs. Nothing is allocated and no node manager
    is needed. Sessions come from a trace (--trace FILE, a CSV file that docs/replay.md describes)
    or are made up (--generate) with the distributions of published ones."""

    name = "replay"
    examples = """
    jupyter gpushare replay --generate --gpus 16 --people 32 --days 7
    jupyter gpushare replay --trace cells.csv --gpus 64 --policies session,park --json
    jupyter gpushare replay --generate --save made-up.csv --people 16
    """

    trace = option("", "A trace to replay: a CSV file.")
    generate = flag("Make sessions up.")
    gpus = option(16, "GPUs in all. Default: 16.", number(1, 100_000))
    node_gpus = option(
        8, "GPUs of one host; a session stays on its host. Default: 8.", number(1, 1024)
    )
    gpu_memory = option(80 * 2**30, "Memory of a GPU. Default: 80GiB.", parse_size)
    policies = option(
        "session,batch,held,park,turns,clairvoyant",
        "What is compared, separated by commas: session, batch, held, park, turns, clairvoyant; "
        "first (come, first served: who computes ends first) and promises (turns with deadlines) "
        "go with --deadlines. Default: the first six.",
    )
    people = option(
        0,
        "With --generate: open sessions. Default: one for each GPU.",
        number(0, 1_000_000),
    )
    days = option(28.0, "With --generate: how many days. Default: 28.", number(0.01, 3650.0))
    mix = option(
        "1:1",
        "With --generate: GPUs of a session and their shares, like 1:0.49,4:0.20,8:0.31. "
        "Default: everybody has one.",
    )
    seed = option(1, "With --generate: another number, other sessions. Default: 1.", int)
    start_up = option(30.0, "batch: start-up of each task. Default: 30s.", parse_duration)
    idle_timeout = option(
        60.0,
        "park, turns: idle for so long, a kernel may be parked. Default: 60s.",
        parse_duration,
    )
    always = flag("Park every kernel past the idle time-out, not only when somebody waits.")
    parking = option(
        0.2, "Seconds to park, or to resume, each GiB. Default: 0.2.", number(0.0, 1e6)
    )
    reserve = option(
        "whole",
        "park: what a session without memory of its own reserves: whole, quota or estimate. "
        "Default: whole.",
        choices=RESERVES,
    )
    estimate_error = option(
        1.0,
        "park, turns: the factor by which estimates of memory are wrong: too small for every other "
        "session, too large for the rest. Default: 1, not wrong.",
        number(1.0, 1000.0),
    )
    deadlines = option(
        0.0,
        "Share of the cells whose people name a deadline: between 1.5 and 6 times what the cell "
        "computes. Default: 0.",
        number(0.0, 1.0),
    )
    batch_sessions = option(
        0.0, "Share of the sessions that are batch. Default: 0.", number(0.0, 1.0)
    )
    time_error = option(
        1.0,
        "promises: the factor by which expected times are wrong at most, in both directions. "
        "Default: 1, not wrong.",
        number(1.0, 100.0),
    )
    load = option(
        0.0,
        "With --generate: sessions of one cell each, of up to 2 hours, that come by chance and ask "
        "for so much of all GPUs' time; none is moved. Default: people who open notebooks.",
        number(0.0, 10.0),
    )
    warm_up: float | None = option(
        None,
        "Replay so long before anything counts. Default: 2 days of more than 4 that are made up, "
        "nothing of a trace.",
        parse_duration,
    )
    until: float | None = option(
        None, "Replay only so long, from the beginning. Default: all.", parse_duration
    )
    workers = option(0, "Processes to replay in. Default: one for each processor.", number(0, 1024))
    plot = option("", "Also draw it: a file .svg, .png or .pdf.")
    save = option("", "With --generate: only write the sessions to this file, as a trace.")

    def run(self, arguments: list[str]) -> int:
        if bool(self.trace) == self.generate:
            raise UsageError("say either --trace FILE or --generate")
        if self.plot and Path(self.plot).suffix.lower() not in PICTURES:
            raise UsageError(f"--plot needs a file that ends in one of {', '.join(PICTURES)}")
        variants = self._variants()
        source = self._source()
        if self.save:
            return self._write(source)
        end = self.until
        if not isinstance(source, TraceFile):
            end = source.seconds if end is None else min(end, source.seconds)
        try:
            scan = Scan.of(source.sessions(), end)
        except TraceError as error:
            raise Refused(f"{self.trace}, {error}", "bad_request") from None
        except OSError as error:
            raise Refused(f"{self.trace}: {error.strerror}", "bad_request") from None
        cluster = Cluster(self.gpus, self.node_gpus, self.gpu_memory)
        window = window_of(scan, self.warm_up, is_made_up=self.generate)
        if scan.end and window.begin == window.end:
            raise UsageError(
                f"--warm-up {self.warm_up:g}: the sessions end after {scan.end:g} s, so nothing "
                "would count"
            )
        workers = self.workers or os.cpu_count() or 1
        workers = min(workers, len(cluster.nodes))
        tallies = replay(source, cluster, window, variants, workers)
        found = [figures(variant, tally) for variant, tally in zip(variants, tallies, strict=True)]
        sessions_per_gpu = scan.open_seconds / scan.end / self.gpus if scan.end else 0.0
        asked_per_gpu = scan.open_gpu_seconds / scan.end / self.gpus if scan.end else 0.0
        if self.plot:
            self._draw(found)
        answer = {
            "gpus": self.gpus,
            "node_gpus": self.node_gpus,
            "sessions": scan.sessions,
            "cells": scan.cells,
            "seconds": scan.end,
            "counted_from": window.begin,
            "counted_until": window.end,
            "open_sessions_per_gpu": sessions_per_gpu,
            "asked_gpus_per_gpu": asked_per_gpu,
            "policies": found,
        }
        told = bool(self.deadlines)
        return self.say(
            answer,
            f"{scan.sessions} sessions with {scan.cells} cells in {scan.end / 86400:.3g} days; on "
            f"average {sessions_per_gpu:.2f} open sessions with {asked_per_gpu:.2f} GPUs for each "
            f"of {self.gpus} GPUs. Assumed: tasks that compute on a GPU at once get "
            f"{100 * TOGETHER:.0f} % of what one gets alone, all together.\n"
            + table(
                (*HEADINGS, *PROMISES) if told else HEADINGS,
                [row(one, deadlines=told) for one in found],
            ),
        )

    def _variants(self) -> list[Variant]:
        if not self.idle_timeout:
            raise UsageError("--idle-timeout must be more than 0: 0 means never")
        options = Options(
            start_up=self.start_up,
            idle_timeout=self.idle_timeout,
            park_when=ParkWhen.ALWAYS if self.always else ParkWhen.CONTENDED,
            cost=ParkingCost(self.parking, self.parking),
            follows=Reserve(self.reserve),
            wrong=self.estimate_error,
            promising=Promising(self.deadlines, self.time_error, self.batch_sessions),
            moves=not self.load,
        )
        names = {name.value: name for name in PolicyName}
        found = []
        for word in dict.fromkeys(self.policies.split(",")):
            if word.strip() not in names:
                raise UsageError(f"--policies: {word!r} is none of {', '.join(names)}")
            found.append(Variant(word.strip(), names[word.strip()], options))
        return found

    def _source(self) -> Source:
        if self.trace:
            return TraceFile(Path(self.trace), self.gpu_memory)
        if self.load:
            return Runs(self.load, self.gpus, self.days, self.seed)
        people = self.people or self.gpus
        return Population(people, self.days, parse_mix(self.mix), seed=self.seed)

    def _write(self, source: Source) -> int:
        if not self.generate:
            raise UsageError("--save goes with --generate")
        try:
            with Path(self.save).open("w", encoding="utf-8", newline="") as file:
                cells = write_trace(source.sessions(), file)
        except OSError as error:
            raise Refused(f"{self.save}: {error.strerror}") from None
        return self.say({"file": self.save, "cells": cells}, f"{self.save}: {cells} cells")

    def _draw(self, found: list[dict[str, Any]]) -> None:
        try:
            plot_comparison(found, Path(self.plot))
        except ImportError:
            raise Refused(
                "--plot needs matplotlib: pip install 'matplotlib>=3.9'", "unavailable"
            ) from None
        except OSError as error:
            raise Refused(f"{self.plot}: {error.strerror}") from None


def parse_mix(text: str) -> tuple[tuple[int, float], ...]:
    """``1:0.5,8:0.5`` as pairs. Raises `UsageError`."""
    pairs = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4}):(\d{1,9}(?:\.\d{1,9})?)\s*", part)
        if match is None or not int(match[1]):
            raise UsageError(f"--mix must be like 1:0.49,4:0.20,8:0.31, not {text!r}")
        pairs.append((int(match[1]), float(match[2])))
    if not sum(share for _count, share in pairs):
        raise UsageError("--mix: the shares must not all be 0")
    return tuple(pairs)
