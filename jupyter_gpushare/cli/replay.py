"""``jupyter gpushare replay``: how people would fare under each policy, by a trace."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from traitlets import Bool, CaselessStrEnum, Float, Int, Unicode

from .table import table
from .verb import JSON_FLAG, Duration, Refused, Size, UsageError, Verb

if TYPE_CHECKING:
    from ..replay.run import Scan, Source, Variant

PICTURES = (".svg", ".png", ".pdf")


class ReplayApp(Verb):
    """Replay a trace through the policy."""

    name = "jupyter-gpushare-replay"
    description = """Replay notebook sessions through the node manager's own policy with a virtual
    clock, and compare it with other ways to share GPUs. Nothing is allocated and no node manager
    is needed. Sessions come from a trace (--trace FILE, a CSV file that docs/replay.md describes)
    or are made up (--generate) with the distributions of published ones."""
    flags: ClassVar[Any] = {
        **Verb.flags,
        **JSON_FLAG,
        "generate": ({"ReplayApp": {"generate": True}}, "Make sessions up."),
        "always": (
            {"ReplayApp": {"park_when": "always"}},
            "Park every kernel past the idle time-out, not only when somebody waits.",
        ),
    }
    aliases: ClassVar[Any] = {
        **Verb.aliases,
        "trace": "ReplayApp.trace",
        "gpus": "ReplayApp.gpus",
        "node-gpus": "ReplayApp.node_gpus",
        "gpu-memory": "ReplayApp.gpu_memory",
        "policies": "ReplayApp.policies",
        "people": "ReplayApp.people",
        "days": "ReplayApp.days",
        "mix": "ReplayApp.mix",
        "seed": "ReplayApp.seed",
        "start-up": "ReplayApp.start_up",
        "idle-timeout": "ReplayApp.idle_timeout",
        "parking": "ReplayApp.parking",
        "workers": "ReplayApp.workers",
        "plot": "ReplayApp.plot",
        "save": "ReplayApp.save",
    }
    examples = """
    jupyter gpushare replay --generate --gpus 16 --people 32 --days 7
    jupyter gpushare replay --trace cells.csv --gpus 64 --policies session,park --json
    jupyter gpushare replay --generate --save made-up.csv --people 16
    """

    trace = Unicode("", help="A trace to replay: a CSV file.").tag(config=True)
    generate = Bool(False, help="Make sessions up.").tag(config=True)
    gpus = Int(16, min=1, max=100_000, help="GPUs in all. Default: 16.").tag(config=True)
    node_gpus = Int(
        8, min=1, max=1024, help="GPUs of one host; a session stays on its host. Default: 8."
    ).tag(config=True)
    gpu_memory = Size("80GiB", help="Memory of a GPU. Default: 80GiB.").tag(config=True)
    policies = Unicode(
        "session,batch,held,park,preempt,clairvoyant",
        help="What is compared, separated by commas: session, batch, held, park, preempt, "
        "clairvoyant. Default: all.",
    ).tag(config=True)
    people = Int(
        0, min=0, max=1_000_000, help="With --generate: open sessions. Default: one for each GPU."
    ).tag(config=True)
    days = Float(
        28.0, min=0.01, max=3650.0, help="With --generate: how many days. Default: 28."
    ).tag(config=True)
    mix = Unicode(
        "1:1",
        help="With --generate: GPUs of a session and their shares, like 1:0.49,4:0.20,8:0.31. "
        "Default: everybody has one.",
    ).tag(config=True)
    seed = Int(1, help="With --generate: another number, other sessions. Default: 1.").tag(
        config=True
    )
    start_up = Duration(default_value=30.0, help="batch: start-up of each task. Default: 30s.").tag(
        config=True
    )
    idle_timeout = Duration(
        default_value=60.0, help="park: idle for so long, a kernel may be parked. Default: 60s."
    ).tag(config=True)
    park_when = CaselessStrEnum(
        ("contended", "always"), "contended", help="park: only if somebody waits, or always."
    ).tag(config=True)
    parking = Float(
        0.2, min=0.0, max=1e6, help="Seconds to park, or to resume, each GiB. Default: 0.2."
    ).tag(config=True)
    workers = Int(
        0, min=0, max=1024, help="Processes to replay in. Default: one for each processor."
    ).tag(config=True)
    plot = Unicode("", help="Also draw it: a file .svg, .png or .pdf.").tag(config=True)
    save = Unicode(
        "", help="With --generate: only write the sessions to this file, as a trace."
    ).tag(config=True)

    def run(self, arguments: list[str]) -> int:
        self.no_arguments(arguments)
        if bool(self.trace) == self.generate:
            raise UsageError("say either --trace FILE or --generate")
        if self.plot and Path(self.plot).suffix.lower() not in PICTURES:
            raise UsageError(f"--plot needs a file that ends in one of {', '.join(PICTURES)}")
        if math.isnan(self.days) or math.isnan(self.parking):  # no bound refuses it
            raise UsageError("--days and --parking must be numbers, not nan")
        variants = self._variants()
        source = self._source()
        if self.save:
            return self._write(source)
        from ..replay.report import HEADINGS, figures, rows
        from ..replay.run import WARM_UP, Cluster, Crew, window_of
        from ..replay.trace import TraceError

        try:
            scan = self._scan(source, self.gpu_memory)
        except TraceError as error:
            raise Refused(f"{self.trace}, {error}", "bad_request") from None
        except OSError as error:
            raise Refused(f"{self.trace}: {error.strerror}", "bad_request") from None
        cluster = Cluster(self.gpus, self.node_gpus, self.gpu_memory)
        enough = self.generate and scan.end > 2 * WARM_UP
        window = window_of(scan, WARM_UP if enough else 0.0)
        workers = self.workers or os.cpu_count() or 1
        with Crew(min(workers, len(cluster.nodes))) as crew:
            tallies = crew.replay(source, cluster, window, variants)
        found = [figures(variant, tally) for variant, tally in zip(variants, tallies, strict=True)]
        sessions_per_gpu = scan.open_seconds / scan.end / self.gpus if scan.end else 0.0
        asked_per_gpu = scan.open_gpu_seconds / scan.end / self.gpus if scan.end else 0.0
        if self.plot:
            self._draw(found)
        if self.json:
            self.print_json(
                {
                    "gpus": self.gpus,
                    "node_gpus": self.node_gpus,
                    "sessions": scan.sessions,
                    "cells": scan.cells,
                    "seconds": scan.end,
                    "counted_from": window.begin,
                    "open_sessions_per_gpu": sessions_per_gpu,
                    "asked_gpus_per_gpu": asked_per_gpu,
                    "policies": found,
                }
            )
            return 0
        print(
            f"{scan.sessions} sessions with {scan.cells} cells in {scan.end / 86400:.3g} days; on "
            f"average {sessions_per_gpu:.2f} open sessions with {asked_per_gpu:.2f} GPUs for each "
            f"of {self.gpus} GPUs."
        )
        print(table(HEADINGS, rows(found)))
        return 0

    def _variants(self) -> list[Variant]:
        from ..policy.words.model import ParkWhen
        from ..replay.behaviour import Options, ParkingCost, PolicyName
        from ..replay.run import Variant

        if not self.idle_timeout:
            raise UsageError("--idle-timeout must be more than 0: 0 means never")
        options = Options(
            start_up=self.start_up,
            idle_timeout=self.idle_timeout,
            park_when=ParkWhen(self.park_when),
            cost=ParkingCost(self.parking, self.parking),
        )
        names = {name.value: name for name in PolicyName}
        found = []
        for word in dict.fromkeys(self.policies.split(",")):
            if word.strip() not in names:
                raise UsageError(f"--policies: {word!r} is none of {', '.join(names)}")
            found.append(Variant(word.strip(), names[word.strip()], replace(options)))
        return found

    def _source(self) -> Source:
        from ..replay.generate import Population
        from ..replay.run import Source

        if self.trace:
            return Source(trace=Path(self.trace))
        people = self.people or self.gpus
        mix = parse_mix(self.mix)
        return Source(Population(people, self.days, mix, seed=self.seed))

    def _scan(self, source: Source, gpu_memory: int) -> Scan:
        from ..replay.run import Scan

        until = source.population.seconds if source.population else None
        return Scan.of(source.sessions(gpu_memory), until)

    def _write(self, source: Source) -> int:
        from ..replay.trace import write_trace

        if not self.generate:
            raise UsageError("--save goes with --generate")
        try:
            with Path(self.save).open("w", encoding="utf-8", newline="") as file:
                cells = write_trace(source.sessions(), file)
        except OSError as error:
            raise Refused(f"{self.save}: {error.strerror}") from None
        if self.json:
            self.print_json({"file": self.save, "cells": cells})
        else:
            print(f"{self.save}: {cells} cells")
        return 0

    def _draw(self, found: list[dict[str, Any]]) -> None:
        from ..replay.plots import plot_comparison

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
