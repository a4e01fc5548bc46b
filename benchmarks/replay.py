"""How many more people can work: the study behind docs/replay.md.

``python benchmarks/replay.py --json FILE --markdown FILE --svg FILE`` (``make replay``). Every
figure comes from made-up sessions with published distributions (jupyter_gpushare/replay/generate.py
names the sources), replayed through the product's own policy. ``--small`` does little of it, to see
that it works; ``--scale`` also replays a million cells on a thousand GPUs. ``--page`` only writes
the page and the picture anew from the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from machine import machine, said

from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import ParkWhen
from jupyter_gpushare.replay.behaviour import FREE, Options, ParkingCost, PolicyName, TurnCost
from jupyter_gpushare.replay.generate import CELL, DAY, GAP, ONE_GPU, PUBLISHED_GPUS, Population
from jupyter_gpushare.replay.plots import plot_sweep
from jupyter_gpushare.replay.report import figures, span
from jupyter_gpushare.replay.run import WARM_UP, Cluster, Crew, Source, Variant, search
from jupyter_gpushare.replay.tally import Window

HERE = Path(__file__).resolve().parent
PINNED = ParkingCost(0.02, 0.02)
#: Soon enough for a GPU that costs nothing to give back.
AT_ONCE = 1.0
#: For a JSON file that is older than a study.
NOT_MEASURED = "Not measured when this page was made."
#: GPUs that sessions ask for, for each there is, beyond which turns are not tried.
OVERLOAD = 3.9
#: The product's own idle time-out where somebody waits for the memory.
IDLE = PolicyConfig().idle_timeout

SESSION = Variant("bound for the session", PolicyName.SESSION)
BATCH = Variant("batch, 30 s start-up", PolicyName.BATCH)
NO_START = Variant("batch, no start-up", PolicyName.BATCH, Options(start_up=0.0))
HELD = Variant("just in time, held", PolicyName.HELD)
PARK = Variant("parking, 0.2 s/GiB", PolicyName.PARK)
ALWAYS = Variant("parking always, 0.2 s/GiB", PolicyName.PARK, Options(park_when=ParkWhen.ALWAYS))
PARK_FAST = Variant("parking, 0.02 s/GiB", PolicyName.PARK, Options(cost=PINNED))
PARK_FREE = Variant("parking, free", PolicyName.PARK, Options(cost=FREE, idle_timeout=AT_ONCE))


def turns(label: str, **options: Any) -> Variant:
    """Residents that take turns, by the product's defaults but for ``options``."""
    return Variant(label, PolicyName.TURNS, Options(**{"idle_timeout": IDLE, **options}))


TURNS = turns("turns and moves, 0.2 s/GiB")
TURNS_MID = turns("turns and moves, 0.05 s/GiB", cost=ParkingCost(0.05, 0.05))
TURNS_FREE = turns("turns and moves, free", cost=FREE)
STILL = turns("turns, nobody moved in a cell", moves=False)
#: What the figure depends on, each alone. All with 0.2 s/GiB.
SENSITIVE = (
    turns("residents of 1.5 times the size", resident=1.5),
    turns("residents of twice the size", resident=2.0),
    turns("half as much again reserved for a step's temporary memory", reserve=1.5),
    turns("estimates twice too large", reserve=2.0),
    turns("a turn takes 2 s", turns=TurnCost(hand_over=2.0)),
    turns("half of the sessions can be stopped within a cell", gated=0.5),
    turns("half of the sessions can be moved", movable=0.5),
)
IDEAL = Variant("clairvoyant", PolicyName.CLAIRVOYANT)


@dataclass(frozen=True)
class Study:
    """One population and what is tried on it; people are tried in steps of ``step``."""

    name: str
    title: str
    population: Population
    cluster: Cluster
    variants: Sequence[Variant]
    step: int
    low: int
    high: int


def studies(small: bool) -> list[Study]:
    """All of them."""
    days = 1.0 if small else 12.0
    hosts = 1 if small else 4
    most = 10 if small else 40
    one = Cluster(8 * hosts)
    return [
        Study(
            "one",
            "One GPU for each session",
            Population(0, days, ONE_GPU),
            one,
            # The longest first: two at a time.
            (TURNS_FREE, TURNS_MID, TURNS, STILL, PARK, PARK_FAST, PARK_FREE, ALWAYS, BATCH,
             NO_START, HELD, SESSION, IDEAL),
            hosts, 8, most,
        ),
        *(
            Study(
                f"seed{seed}",
                f"Other sessions: seed {seed}",
                Population(0, days, ONE_GPU, seed=seed),
                one, (TURNS,), hosts, 8, most,
            )
            for seed in (2, 3)
        ),
        Study(
            "wide",
            "Hosts of 16",
            Population(0, days, ONE_GPU),
            Cluster(8 * hosts, 16), (TURNS,), hosts, 8 if small else 24, most,
        ),
        # One host: what it shows is what changes, and there are many.
        Study(
            "sensitive",
            "What the figure depends on",
            Population(0, days, ONE_GPU),
            Cluster(8), (TURNS, STILL, *(SENSITIVE[:1] if small else SENSITIVE)), 1, 8, most,
        ),
        *(
            Study(
                f"memory{size}",
                f"GPUs of {size} GB",
                Population(0, days, ONE_GPU),
                Cluster(8, gpu_memory=size * 10**9), (TURNS,), 1, 8, most,
            )
            for size in (() if small else (40, 140))
        ),
        Study(
            "mixed",
            "1, 4 or 8 GPUs for each session, as published",
            Population(0, days, PUBLISHED_GPUS),
            Cluster(8 * 2 * hosts),
            (TURNS, PARK_FREE, HELD, SESSION, IDEAL),
            max(1, hosts // 2), 1, 2 * most,
        ),
    ]  # fmt: skip


def look(study: Study, variant: Variant) -> list[dict[str, Any]]:
    """Search with one policy; the figures of every number of people that was tried."""
    high = study.high
    if variant.policy is PolicyName.TURNS:  # an overloaded host takes turns without end
        high = min(
            high, int(OVERLOAD * study.cluster.gpus / study.step / study.population.mean_gpus)
        )
    found = search(variant, study.population, study.cluster, study.step, study.low, high)
    points = []
    for people, tally in sorted(found.items()):
        mean = tally.asked / people / (tally.capacity / tally.gpus)
        figure = figures(variant, tally)
        points.append(
            {
                **figure,
                "people": people,
                "people_per_gpu": people / study.cluster.gpus,
                "asked_gpus_per_gpu": people * study.population.mean_gpus / study.cluster.gpus,
                "gpus_computing_per_person": mean,
            }
        )
    return points


def run(studied: Sequence[Study], workers: int) -> dict[str, Any]:
    """Everything, a policy at a time in each worker."""
    results: dict[str, Any] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(look, study, variant): (study, variant)
            for study in studied
            for variant in study.variants
        }
        for future in as_completed(waiting):
            study, variant = waiting[future]
            part = results.setdefault(
                study.name,
                {
                    "title": study.title,
                    "gpus": study.cluster.gpus,
                    "node_gpus": study.cluster.node_gpus,
                    "days": study.population.days,
                    "seed": study.population.seed,
                    "policies": {},
                },
            )
            part["policies"][variant.label] = future.result()
            print(f"{study.name}: {variant.label}", file=sys.stderr, flush=True)
    return results


def replayed(studied: Sequence[Study], workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """All studies, or those named with ``--only`` beside what the JSON file has."""
    if not options.only:
        return {"machine": machine(), **run(studied, workers)}
    results: dict[str, Any] = json.loads(options.json.read_text("utf-8"))
    chosen = []
    for study in studied:
        whole = study.name in options.only
        variants = [v for v in study.variants if whole or v.label in options.only]
        if variants:
            chosen.append(replace(study, variants=variants))
    for name, part in run(chosen, workers).items():
        known = results.setdefault(name, {"policies": {}})["policies"]
        results[name] = {**part, "policies": {**known, **part["policies"]}}
    return {**results, "machine": machine()}


def scale(workers: int, small: bool) -> dict[str, Any]:
    """A million cells on a thousand GPUs, with the policy that does the most."""
    people, days = (200, 6.0) if small else (2000, 90.0)
    population = Population(people, days)
    cluster = Cluster(people // 2)
    window = Window(WARM_UP, days * DAY)
    began = time.perf_counter()
    with Crew(workers) as crew:
        (tally,) = crew.replay(Source(population), cluster, window, [PARK])
    lasted = time.perf_counter() - began
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "gpus": cluster.gpus,
        "cells": tally.cells,
        "sessions": tally.sessions,
        "commands": tally.commands,
        "seconds": lasted,
        "processor_seconds": children.ru_utime + children.ru_stime,
        "workers": workers,
        "most_memory_of_a_worker": children.ru_maxrss * 1024,
        "figures": figures(PARK, tally),
    }


# -- the page ---------------------------------------------------------------------------------


def best(points: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The most people that works out, if all fewer do."""
    good = None
    for point in points:
        if not point["works_out"]:
            break
        good = point
    return good


def bound(part: dict[str, Any]) -> float:
    """People per GPU for whom no schedule can serve 95 % of the GPU time."""
    last = [points[-1] for points in part["policies"].values()]
    each = max(last, key=lambda point: point["people"])["gpus_computing_per_person"]
    return float(1 / (0.95 * each))


def main_table(part: dict[str, Any], order: Sequence[Variant]) -> str:
    """People per GPU by policy."""
    base = best(part["policies"][SESSION.label])
    ideal = best(part["policies"][IDEAL.label])
    lines = [
        "| policy | open sessions per GPU | x bound for the session | of clairvoyant | "
        "utilisation there | GPU-hours bound / busy | fails at | because | by p95 delay alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in order:
        points = part["policies"].get(variant.label)
        if points is None:
            continue
        good = best(points)
        bad = next((point for point in points if not point["works_out"]), None)
        cells = ["-"] * 5
        if good is not None:
            ratio = good["people_per_gpu"]
            cells = [
                f"**{ratio:.2f}**" if good is not points[-1] or bad else f"**≥ {ratio:.2f}**",
                "-" if base is None else f"{ratio / base['people_per_gpu']:.2f}",
                "-" if ideal is None else f"{100 * ratio / ideal['people_per_gpu']:.0f} %",
                f"{100 * good['utilisation']:.0f} %",
                f"{good['gpu_hours_bound']:.0f} / {good['gpu_hours_busy']:.0f}",
            ]
        tail = ["-", "-"]
        if bad is not None:
            again = [
                p["people_per_gpu"]
                for p in points
                if p["works_out"] and p["people"] > bad["people"]
            ]
            tail = [f"{bad['people_per_gpu']:.2f}", why(bad)]
            if again:
                tail[0] += f" (works out again at {max(again):.2f})"
        lines.append("| " + " | ".join([variant.label, *cells, *tail, alone(points)]) + " |")
    return "\n".join(lines)


def alone(points: Sequence[dict[str, Any]]) -> str:
    """People per GPU up to whom the delay alone is well, of those that were tried."""
    good = "-"
    for point in points:
        if point["cells_prompt"] < 0.95 * point["cells"]:
            return good
        good = f"{point['people_per_gpu']:.2f}"
    return f"≥ {good}"


def why(point: dict[str, Any]) -> str:
    """Which of the two conditions fails."""
    prompt = point["cells_prompt"] / point["cells"]
    reasons = []
    if prompt < 0.95:
        p95 = span(point["delay"]["p95"])
        reasons.append(f"{100 * prompt:.0f} % of cells prompt, p95 {p95}")
    if point["served"] < 0.95:
        reasons.append(f"{100 * point['served']:.0f} % of the GPU time served")
    return ", ".join(reasons) or "a request was refused"


def delay_table(part: dict[str, Any], people: int, order: Sequence[Variant]) -> str:
    """All policies with as many people."""
    lines = [
        "| policy | GPU-hours bound | busy | utilisation | delay p50 | p95 | p99 | prompt | "
        "parked, mean | peak of a host |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in order:
        for point in part["policies"].get(variant.label, ()):
            if point["people"] == people:
                delay = point["delay"]
                lines.append(
                    f"| {variant.label} | {point['gpu_hours_bound']:.0f} | "
                    f"{point['gpu_hours_busy']:.0f} | {100 * point['utilisation']:.0f} % | "
                    f"{span(delay['p50'])} | {span(delay['p95'])} | {span(delay['p99'])} | "
                    f"{100 * point['cells_prompt'] / point['cells']:.1f} % | "
                    f"{point['parked_bytes_mean'] / 2**30:.0f} GiB | "
                    f"{point['parked_bytes_peak_node'] / 2**30:.0f} GiB |"
                )
    return "\n".join(lines)


ORDER = (SESSION, BATCH, NO_START, HELD, ALWAYS, PARK, PARK_FAST, PARK_FREE, STILL, TURNS,
         TURNS_MID, TURNS_FREE, IDEAL)  # fmt: skip


def page(results: dict[str, Any]) -> str:
    """The docs page: the frame with the figures put in."""
    one, mixed = results["one"], results["mixed"]
    text = (HERE / "replay_page.md").read_text("utf-8")
    facts: dict[str, str] = {
        "one": main_table(one, ORDER),
        "one_bound": f"{bound(one):.2f}",
        "one_gpus": str(one["gpus"]),
        "days": f"{one['days']:g}",
        "at_two": delay_table(one, 2 * one["gpus"], ORDER),
        "mixed": main_table(mixed, ORDER),
        "mixed_bound": f"{bound(mixed):.2f}",
        "mixed_gpus": str(mixed["gpus"]),
        "sensitive": sensitive_table(results),
        "busy_share": f"{100 * CELL.mean / (CELL.mean + GAP.mean):.0f}",
        "long_count": f"{100 * CELL.above(480)[0]:.1f}",
        "long_time": f"{100 * CELL.above(480)[1]:.0f}",
        "short_count": f"{100 * (1 - CELL.above(60)[0]):.0f}",
        "short_time": f"{100 * (1 - CELL.above(60)[1]):.0f}",
        "scale": scale_text(results.get("scale")),
        "aims": aims(results),
        "machine": said(results["machine"]) if "machine" in results else "not recorded",
    }
    for name, value in facts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def people(part: dict[str, Any], variant: Variant) -> float:
    """Open sessions per GPU for which it works out; 0 where it never does."""
    good = best(part["policies"][variant.label])
    return 0.0 if good is None else float(good["people_per_gpu"])


def aims(results: dict[str, Any]) -> str:
    """Whether what was aimed at is reached, by the figures."""
    if not {"seed2", "seed3", "wide"} <= results.keys():
        return NOT_MEASURED
    one, mixed = results["one"], results["mixed"]
    found, free = people(one, TURNS), people(one, TURNS_FREE)
    base = people(mixed, SESSION)
    rows = [
        (f"{people(part, TURNS):.2f}", people(part, TURNS) >= 3.25, f"3.25 or more, {name}")
        for name, part in (
            ("seed 1", one), ("seed 2", results["seed2"]), ("seed 3", results["seed3"]),
        )
    ]  # fmt: skip
    rows.append((f"{found:.2f}", found >= 3.5, "3.5 or more, seed 1"))
    for variant in (TURNS, TURNS_MID):
        share = people(one, variant) / free if free else 0.0
        text = f"within 3 % of moving for free: {variant.label}"
        rows.append((f"{100 * share:.0f} %", share >= 0.97, text))
    wide = people(results["wide"], TURNS)
    rows.append((f"{wide:.2f}", wide >= 3.75, "3.75 or more in hosts of 16"))
    times = people(mixed, TURNS) / base if base else 0.0
    rows.append((f"{times:.2f} x", times >= 2.5, "2.5 x session binding, with 1, 4 or 8 GPUs"))
    lines = [f"| {aim} | {value} | {'met' if met else 'not met'} |" for value, met, aim in rows]
    return "\n".join(["| turns and moves: the aim | found | |", "|---|---|---|", *lines])


def sensitive_table(results: dict[str, Any]) -> str:
    """What the figure depends on."""
    if "sensitive" not in results:
        return NOT_MEASURED
    rows = [("nothing else", results["sensitive"], TURNS)]
    rows += [("nobody moved in a cell", results["sensitive"], STILL)]
    rows += [
        (variant.label, results["sensitive"], variant)
        for variant in SENSITIVE
        if variant.label in results["sensitive"]["policies"]
    ]
    rows += [
        (f"GPUs of {size} GB instead of 80 GiB", results[f"memory{size}"], TURNS)
        for size in (40, 140)
        if f"memory{size}" in results
    ]
    lines = ["| 0.2 s/GiB, but | open sessions per GPU | fails at | because |", "|---|---|---|---|"]
    for label, part, variant in rows:
        points = part["policies"][variant.label]
        bad = next((point for point in points if not point["works_out"]), None)
        tail = ("-", "-") if bad is None else (f"{bad['people_per_gpu']:.2f}", why(bad))
        lines.append("| " + " | ".join([label, f"**{people(part, variant):.2f}**", *tail]) + " |")
    return "\n".join(lines)


def scale_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured in this run; `make replay ARGS=--scale` does a million cells."
    return (
        f"{found['cells']:,} cells of {found['sessions']:,} sessions on {found['gpus']:,} GPUs "
        f"({found['commands']:,} commands to the policy) took {found['seconds'] / 60:.1f} minutes "
        f"with {found['workers']} processes on a machine that others used, too "
        f"({found['processor_seconds'] / 60:.1f} minutes of processor time); the largest process "
        f"had {found['most_memory_of_a_worker'] / 2**20:.0f} MiB."
    )


def curves(part: dict[str, Any]) -> dict[str, list[tuple[float, float, float]]]:
    """What the picture shows."""
    return {
        variant.label: [
            (point["people_per_gpu"], point["cells_prompt"] / point["cells"], point["served"])
            for point in part["policies"][variant.label]
        ]
        for variant in ORDER
        if variant.label in part["policies"]
        and variant not in (NO_START, ALWAYS, PARK_FAST, TURNS_MID)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--scale", action="store_true", help="also the million cells")
    parser.add_argument("--only-scale", action="store_true", help="add them to the JSON file")
    parser.add_argument("--only", nargs="+", default=[], help="only these studies or policies")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    workers = os.cpu_count() or 1
    if options.page or options.only_scale:
        results = json.loads(options.json.read_text("utf-8"))
    else:
        results = replayed(studies(options.small), workers, options)
    if options.scale or options.only_scale:
        results["scale"] = scale(workers, options.small)
    if not options.page:
        options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    if options.markdown:
        options.markdown.write_text(page(results), "utf-8")
    if options.svg:
        plot_sweep(curves(results["one"]), options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
