"""How many more people can work: the study behind docs/replay.md.

``python benchmarks/replay.py --json FILE --markdown FILE --svg FILE`` (``make replay``). Every
figure comes from made-up sessions with published distributions (jupyter_gpushare/replay/generate.py
names the sources), replayed through the product's own policy. ``--small`` does little of it, to see
that it works; ``--scale`` also replays a million cells on a thousand GPUs.

The JSON file is written whenever one number of people was replayed; a search that is finished
replaces the one that the file had. So a run may be stopped at any time: ``--missing`` goes on, and
makes only the searches that the file does not have. ``--only NAMES`` makes those of some studies or
policies. ``--page`` only writes the page and the picture, from what the JSON file has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from machine import machine, said

from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import ParkWhen, Reserve
from jupyter_gpushare.replay.behaviour import FREE, Options, ParkingCost, PolicyName, TurnCost
from jupyter_gpushare.replay.generate import (
    CELL,
    DAY,
    GAP,
    ONE_GPU,
    PUBLISHED_GPUS,
    Population,
    Runs,
)
from jupyter_gpushare.replay.plots import COLOURS, pyplot, save_figure
from jupyter_gpushare.replay.promising import SLACK, Promising
from jupyter_gpushare.replay.report import figures, share, span
from jupyter_gpushare.replay.run import (
    WARM_UP,
    Cluster,
    Variant,
    following,
    play,
    replay,
    replay_people,
)
from jupyter_gpushare.replay.tally import Window

HERE = Path(__file__).resolve().parent
MARKS = "osD^vPX*"
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


def parks(label: str, **options: Any) -> Variant:
    """Parking, by the product's defaults but for ``options``."""
    return Variant(label, PolicyName.PARK, Options(**options))


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
    turns("estimates wrong by 2x: half of them too small, half too large", wrong=2.0),
)
#: The same count where nobody takes turns and reservations follow what is measured.
FOLLOWING = (
    parks("parking, reserve = quota", follows=Reserve.QUOTA),
    parks("parking, reserve = estimate", follows=Reserve.ESTIMATE),
    parks("parking, reserve = estimate, wrong by 2x", follows=Reserve.ESTIMATE, wrong=2.0),
)
IDEAL = Variant("clairvoyant", PolicyName.CLAIRVOYANT)


@dataclass(frozen=True)
class Study:
    """One population and what is tried on it; people are tried in steps of ``step``.

    ``group`` is another name by which ``--only`` finds it.
    """

    name: str
    title: str
    population: Population
    cluster: Cluster
    variants: Sequence[Variant]
    step: int
    low: int
    high: int
    group: str = ""


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
            Cluster(8),
            (TURNS, STILL, PARK,
             *((SENSITIVE[0], FOLLOWING[1]) if small else (*SENSITIVE, *FOLLOWING))),
            1, 8, most,
        ),
        *(
            Study(
                f"memory{size}",
                f"GPUs of {size} GB",
                Population(0, days, ONE_GPU),
                Cluster(8, gpu_memory=size * 10**9), (TURNS,), 1, 8, most, "sensitive",
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


@dataclass
class Search:
    """One policy of a study, and what is known of it: figures by number of people."""

    study: Study
    variant: Variant
    points: list[dict[str, Any]]

    def following(self) -> int | None:
        """With how many people it goes on; ``None``: it is finished."""
        study, high = self.study, self.study.high
        if self.variant.policy is PolicyName.TURNS:  # an overloaded host takes turns without end
            most = OVERLOAD * study.cluster.gpus / study.step / mean_gpus(study.population)
            high = min(high, int(most))
        works = {point["people"] // study.step: point["works_out"] for point in self.points}
        count = following(works, study.low, high)
        return None if count is None else study.step * count


def mean_gpus(population: Population) -> float:
    """GPUs that a session asks for, on average."""
    total = sum(share for _count, share in population.gpus)
    return sum(count * share for count, share in population.gpus) / total


def look(study: Study, variant: Variant, people: int) -> dict[str, Any]:
    """The figures of one policy with so many people."""
    tally = replay_people(variant, study.population, study.cluster, people)
    return {
        **figures(variant, tally),
        "people": people,
        "people_per_gpu": people / study.cluster.gpus,
        "asked_gpus_per_gpu": people * mean_gpus(study.population) / study.cluster.gpus,
        "gpus_computing_per_person": tally.asked / people / (tally.capacity / tally.gpus),
    }


def read(path: Path) -> dict[str, Any]:
    """The figures that there are."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write(path: Path, results: dict[str, Any]) -> None:
    """All figures at once: whoever stops this finds the old ones or the new ones."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    draft.replace(path)


def part_of(results: dict[str, Any], study: Study) -> dict[str, Any]:
    """What the figures say of a study, empty where they are of another one of that name."""
    head = {
        "title": study.title,
        "gpus": study.cluster.gpus,
        "node_gpus": study.cluster.node_gpus,
        "days": study.population.days,
        "seed": study.population.seed,
    }
    known = results.get(study.name, {})
    if any(known.get(name) != value for name, value in head.items()):
        known = {}
    return {"policies": {}, "unfinished": {}, **known, **head}


def keep(path: Path, found: Search, where: dict[str, Any]) -> None:
    """Put into the file what is known of a search. Policies are those that are searched out."""
    results = read(path)
    part = results[found.study.name] = part_of(results, found.study)
    label = found.variant.label
    part["unfinished"].pop(label, None)
    done = found.following() is None
    points = sorted(found.points, key=lambda point: point["people"])
    part["policies" if done else "unfinished"][label] = points
    if done:
        results["machine"] = where
    write(path, results)


def chosen(studied: Sequence[Study], options: argparse.Namespace) -> list[Search]:
    """The searches to make: all, those of ``--only``, without those that ``--missing`` finds."""
    unknown = set(options.only) - {study.name for study in studied}
    unknown -= {variant.label for study in studied for variant in study.variants}
    unknown -= {study.group for study in studied}
    if unknown:
        raise SystemExit(f"--only: no study or policy is named {', '.join(sorted(unknown))}")
    results = read(options.json)
    found = []
    for study in studied:
        part = part_of(results, study)
        for variant in study.variants:
            names = {study.name, study.group, variant.label}
            if options.only and not names & set(options.only):
                continue
            if options.missing and variant.label in part["policies"]:
                continue
            points = part["unfinished"].get(variant.label, []) if options.missing else []
            found.append(Search(study, variant, points))
    return found


def end_with_parent() -> None:
    """A worker would compute on for hours after the process that was killed."""

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def run(searches: Sequence[Search], path: Path, workers: int) -> None:
    """Make the searches, one in each worker, and keep each number of people as it is known."""
    where = machine()
    waiting = list(reversed(searches))
    active: dict[Future[dict[str, Any]], Search] = {}
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=end_with_parent) as pool:

        def go_on(one: Search) -> None:
            people = one.following()
            if people is not None:
                active[pool.submit(look, one.study, one.variant, people)] = one

        while waiting or active:
            while waiting and len(active) < workers:
                go_on(waiting.pop())
            for future in wait(active, return_when=FIRST_COMPLETED).done:
                one = active.pop(future)
                point = {**future.result(), "commit": where["commit"]}
                one.points.append(point)
                keep(path, one, where)
                print(
                    f"{one.study.name}: {one.variant.label}: {point['people']} people: "
                    f"{'works out' if point['works_out'] else why(point)}",
                    file=sys.stderr,
                    flush=True,
                )
                go_on(one)


def scale(workers: int, small: bool) -> dict[str, Any]:
    """A million cells on a thousand GPUs, with the policy that does the most."""
    people, days = (200, 6.0) if small else (2000, 90.0)
    population = Population(people, days)
    cluster = Cluster(people // 2)
    window = Window(WARM_UP, days * DAY)
    began = time.perf_counter()
    (tally,) = replay(population, cluster, window, [PARK], workers)
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


# -- promises ---------------------------------------------------------------------------------

#: What GPUs' time is asked for, and of hosts of one GPU each how many and for how long.
LOAD = 0.8
HOSTS = 6
PROMISE_DAYS = 1.0
#: Expected times are wrong by so much; with other sessions each.
ERRORS = (1.0, 1.5, 2.0)
SEEDS = (1, 2, 3)
PROMISE_POLICIES = {
    PolicyName.FIRST: "first come, first served",
    PolicyName.TURNS: "turns: least attained service",
    PolicyName.PROMISES: "turns with promises",
}


def promise_study(name: PolicyName, error: float, seed: int, small: bool) -> dict[str, Any]:
    """One policy with deadlines for 30 % of the cells that people wait for; 30 % are batch."""
    days, hosts = (0.3, 2) if small else (PROMISE_DAYS, HOSTS)
    population = Runs(LOAD, hosts, days, seed)
    options = Options(promising=Promising(0.3, error, 0.3), moves=False)
    variant = Variant(PROMISE_POLICIES[name], name, options)
    window = Window(0.1 * days * DAY, days * DAY)
    tally = play(population, Cluster(hosts, 1), window, variant.behaviour)
    return {**figures(variant, tally), "error": error, "seed": seed, "gpus": hosts, "days": days}


def promises(workers: int, small: bool) -> list[dict[str, Any]]:
    """All of them; only promises depend on what is expected."""
    jobs = [
        (name, error, seed, small)
        for seed in (SEEDS[:1] if small else SEEDS)
        for name in PROMISE_POLICIES
        for error in (ERRORS if name is PolicyName.PROMISES else ERRORS[:1])
    ]
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=end_with_parent) as pool:
        found = list(pool.map(promise_study, *zip(*jobs, strict=True)))
    where = machine()
    return [{**one, "commit": where["commit"]} for one in found]


def kept_by_clairvoyant(seed: int, small: bool) -> dict[str, int]:
    """How many of the feasible deadlines can be met together: the earliest first, on all GPUs as
    one pool, with all times known, where all other cells wait."""
    days, hosts = (0.3, 2) if small else (PROMISE_DAYS, HOSTS)
    promising, most = Promising(0.3, batch=0.3), PolicyConfig().promise_share / 100
    cells = []  # when it was sent, until when it is to end, how long it computes
    for session in Runs(LOAD, hosts, days, seed).sessions():
        deadline = promising.deadline(session, 0)
        if deadline is not None:
            at = session.submits[0]
            cells.append((at, at + deadline, session.seconds[0]))
    coming, now, kept, count = sorted(cells), 0.0, 0, 0
    alive: list[list[float]] = []
    while coming or alive:
        now = now if alive else max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, until, seconds = coming.pop(0)
            alive.append([until, seconds, at, seconds])
        computing = sorted(alive)[:hosts]
        lasts = min([one[1] for one in computing] + [cell[0] - now for cell in coming[:1]])
        now += lasts
        for one in computing:
            one[1] -= lasts
            if one[1] <= 1e-9:
                alive.remove(one)
                until, _left, at, seconds = one
                is_counted = 0.1 * days * DAY <= at < until < days * DAY
                if is_counted and seconds <= most * (until - at):
                    count += 1
                    kept += now <= until + 1e-3
    return {"deadlines": count, "in_time": kept}


def promise_table(found: Sequence[dict[str, Any]]) -> str:
    """What became of deadlines, summed over the seeds."""
    if not found:
        return NOT_MEASURED
    rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for one in found:
        rows.setdefault((one["label"], one["error"]), []).append(one)
    lines = [
        "| policy | feasible deadlines in time | promises made | of these kept | refused | "
        "batch GPU-hours | utilisation |",
        "|---|---|---|---|---|---|---|",
    ]
    for (label, error), some in sorted(rows.items(), key=lambda row: list(rows).index(row[0])):
        total = {key: sum(one[key] for one in some) for key in _SUMMED}
        wrong = "" if label != PROMISE_POLICIES[PolicyName.PROMISES] else f", {_wrong(error)}"
        made = total["promises_made"]
        told = ["-"] * 3
        if made:
            kept = share(total["promises_kept"], made)
            told = [str(made), f"**{kept} %**", str(total["promises_declined"])]
        cells = [
            f"{label}{wrong}",
            f"{share(total['deadlines_in_time'], total['deadlines'])} % of {total['deadlines']}",
            *told,
            f"{total['gpu_hours_batch']:.1f}",
            f"{100 * total['gpu_hours_busy'] / total['gpu_hours_capacity']:.0f} %",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def clairvoyant_text(found: Sequence[dict[str, int]]) -> str:
    """How many deadlines are feasible together."""
    if not found:
        return NOT_MEASURED
    count, kept = (sum(one[key] for one in found) for key in ("deadlines", "in_time"))
    return (
        f"A clairvoyant meets {kept} of these {count} ({share(kept, count)} %): the earliest "
        "deadline first, on all GPUs as one pool, while all other cells wait."
    )


def promise_aim(found: Sequence[dict[str, Any]]) -> str:
    """Whether the aim is met, and what batch sessions lose by it."""
    if not found:
        return NOT_MEASURED
    told = [one for one in found if one["policy"] == PolicyName.PROMISES.value]
    worst = min(
        sum(one["promises_kept"] for one in some) / sum(one["promises_made"] for one in some)
        for error in ERRORS
        if (some := [one for one in told if one["error"] == error])
    )
    batch = {
        policy: sum(
            one["gpu_hours_batch"]
            for one in found
            if one["policy"] == policy.value and one["error"] == 1.0
        )
        for policy in PROMISE_POLICIES
    }
    lost = 1 - batch[PolicyName.PROMISES] / batch[PolicyName.TURNS]
    commits = ", ".join(sorted({one.get("commit", "not recorded") for one in found}))
    return (
        f"The aim is that at least 99 % of the promises that are made are kept: "
        f"{'met' if worst >= 0.99 else 'not met'}, with {100 * worst:.1f} % at the least. Batch "
        f"sessions compute {100 * lost:.1f} % less by it than by turns alone. (Commit {commits}.)"
    )


_SUMMED = (
    "deadlines", "deadlines_in_time", "promises_made", "promises_kept", "promises_declined",
    "gpu_hours_batch", "gpu_hours_busy", "gpu_hours_capacity",
)  # fmt: skip


def _wrong(error: float) -> str:
    return "times known" if error == 1.0 else f"times wrong by up to {error:g}x"


# -- the page ---------------------------------------------------------------------------------


def points_of(results: dict[str, Any], name: str, variant: Variant) -> list[dict[str, Any]]:
    """The figures of a study's policy; empty: its search was not finished."""
    found: list[dict[str, Any]] = results.get(name, {}).get("policies", {}).get(variant.label, [])
    return found


def best(points: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The most people that works out, if all fewer do."""
    good = None
    for point in points:
        if not point["works_out"]:
            break
        good = point
    return good


def bound(results: dict[str, Any], name: str) -> str:
    """People per GPU for whom no schedule can serve 95 % of the GPU time."""
    last = [points[-1] for points in results.get(name, {}).get("policies", {}).values()]
    if not last:
        return "(not measured)"
    each = max(last, key=lambda point: point["people"])["gpus_computing_per_person"]
    return f"{1 / (0.95 * each):.2f}"


def main_table(results: dict[str, Any], name: str) -> str:
    """People per GPU by policy."""
    if not any(points_of(results, name, variant) for variant in ORDER):
        return NOT_MEASURED
    base = best(points_of(results, name, SESSION))
    ideal = best(points_of(results, name, IDEAL))
    lines = [
        "| policy | open sessions per GPU | x bound for the session | of clairvoyant | "
        "utilisation there | GPU-hours bound / busy | fails at | because | by p95 delay alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in ORDER:
        points = points_of(results, name, variant)
        if not points:
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


def delay_table(results: dict[str, Any], name: str, people: int) -> str:
    """All policies with as many people."""
    lines = [
        "| policy | GPU-hours bound | busy | utilisation | delay p50 | p95 | p99 | prompt | "
        "parked, mean | peak of a host |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in ORDER:
        for point in points_of(results, name, variant):
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


def above(minutes: float) -> tuple[float, float]:
    """Which share of cells computes for longer, and which share of all time that is."""
    every = [CELL.at((number + 0.5) / 200_000) for number in range(200_000)]
    longer = [one for one in every if one > minutes]
    return len(longer) / len(every), sum(longer) / sum(every)


def plot_sweep(sweep: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """For each policy: people per GPU against prompt cells and against GPU time served (shares).

    Raises :class:`ImportError`.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharex=True)
    titles = ("cells delayed by 5 s or less", "GPU time served of GPU time asked")
    for number, (label, points) in enumerate(sweep.items()):
        for axis, column in zip(axes, (1, 2), strict=True):
            axis.plot(
                [point[0] for point in points],
                [100 * point[column] for point in points],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKS[number % len(MARKS)],
                markersize=4,
                linewidth=1.2,
                linestyle="-" if number < len(COLOURS) else "--",
                label=label,
            )
    for axis, title in zip(axes, titles, strict=True):
        axis.axhline(95, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("open sessions per GPU")
        axis.set_ylabel("%")
        axis.set_ylim(0, 102)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, loc="lower left")
    save_figure(figure, path)


def page(results: dict[str, Any]) -> str:
    """The docs page: the frame with the figures put in."""
    shapes = {study.name: part_of({}, study) for study in studies(small=False)}
    one, mixed = (results.get(name, shapes[name]) for name in ("one", "mixed"))
    text = (HERE / "replay_page.md").read_text("utf-8")
    facts: dict[str, str] = {
        "one": main_table(results, "one"),
        "one_bound": bound(results, "one"),
        "one_gpus": str(one["gpus"]),
        "days": f"{one['days']:g}",
        "at_two": delay_table(results, "one", 2 * one["gpus"]),
        "mixed": main_table(results, "mixed"),
        "mixed_bound": bound(results, "mixed"),
        "mixed_gpus": str(mixed["gpus"]),
        "sensitive": sensitive_table(results),
        "busy_share": f"{100 * CELL.mean / (CELL.mean + GAP.mean):.0f}",
        "long_count": f"{100 * above(480)[0]:.1f}",
        "long_time": f"{100 * above(480)[1]:.0f}",
        "short_count": f"{100 * (1 - above(60)[0]):.0f}",
        "short_time": f"{100 * (1 - above(60)[1]):.0f}",
        "scale": scale_text(results.get("scale")),
        "promises": promise_table(results.get("promises", {}).get("runs", [])),
        "clairvoyant": clairvoyant_text(results.get("promises", {}).get("clairvoyant", [])),
        "promise_aim": promise_aim(results.get("promises", {}).get("runs", [])),
        "slack": " and ".join(f"{one:g}" for one in SLACK),
        "load": f"{100 * LOAD:.0f}",
        "promise_days": f"{PROMISE_DAYS:g}",
        "promise_hosts": str(HOSTS),
        "aims": aims(results),
        "machine": made(results),
    }
    for name, value in facts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def made(results: dict[str, Any]) -> str:
    """Where the last search was made, and by which commits all of them."""
    if "machine" not in results:
        return "not recorded"
    commits = {
        point.get("commit", "not recorded")
        for part in results.values()
        for points in part.get("policies", {}).values()
        for point in points
    }
    more = f"; commits of all searches: {', '.join(sorted(commits))}" if len(commits) > 1 else ""
    return said(results["machine"]) + more


def people(results: dict[str, Any], name: str, variant: Variant) -> float | None:
    """Open sessions per GPU for which it works out, 0 where it never does; ``None``: unknown."""
    points = points_of(results, name, variant)
    good = best(points)
    if good is None:
        return 0.0 if points else None
    return float(good["people_per_gpu"])


def ratio(one: float | None, other: float | None) -> float | None:
    """``one`` of ``other``, where both are known."""
    return one / other if one is not None and other else None


def aims(results: dict[str, Any]) -> str:
    """Whether what was aimed at is reached, by the figures."""
    found, free = people(results, "one", TURNS), people(results, "one", TURNS_FREE)
    middle, mixed = people(results, "one", TURNS_MID), people(results, "mixed", TURNS)
    rows = [
        ("3.25 or more, seed 1", found, 3.25),
        ("3.25 or more, seed 2", people(results, "seed2", TURNS), 3.25),
        ("3.25 or more, seed 3", people(results, "seed3", TURNS), 3.25),
        ("3.5 or more, seed 1", found, 3.5),
        (f"0.97 of moving for free: {TURNS.label}", ratio(found, free), 0.97),
        (f"0.97 of moving for free: {TURNS_MID.label}", ratio(middle, free), 0.97),
        ("3.75 or more in hosts of 16", people(results, "wide", TURNS), 3.75),
        ("2.5 x session binding, with 1, 4 or 8 GPUs",
         ratio(mixed, people(results, "mixed", SESSION)), 2.5),
    ]  # fmt: skip
    if all(value is None for _aim, value, _least in rows):
        return NOT_MEASURED
    lines = ["| turns and moves: the aim | found | |", "|---|---|---|"]
    for aim, value, least in rows:
        if value is None:
            lines.append(f"| {aim} | - | not measured |")
        else:
            lines.append(f"| {aim} | {value:.2f} | {'met' if value >= least else 'not met'} |")
    return "\n".join(lines)


def sensitive_table(results: dict[str, Any]) -> str:
    """What the figure depends on."""
    rows = [("nothing else", "sensitive", TURNS), ("nobody moved in a cell", "sensitive", STILL)]
    rows += [(variant.label, "sensitive", variant) for variant in SENSITIVE]
    rows += [(f"GPUs of {size} GB instead of 80 GiB", f"memory{size}", TURNS) for size in (40, 140)]
    rows += [(variant.label, "sensitive", variant) for variant in (PARK, *FOLLOWING)]
    if not any(points_of(results, name, variant) for _label, name, variant in rows):
        return NOT_MEASURED
    lines = [
        "| 0.2 s/GiB, but | open sessions per GPU | out-of-memory errors | fails at | because |",
        "|---|---|---|---|---|",
    ]
    for label, name, variant in rows:
        points = points_of(results, name, variant)
        found = people(results, name, variant)
        bad = next((point for point in points if not point["works_out"]), None)
        tail = ("-", "-") if bad is None else (f"{bad['people_per_gpu']:.2f}", why(bad))
        each = "not measured" if found is None else f"**{found:.2f}**"
        lines.append("| " + " | ".join([label, each, errors(points), *tail]) + " |")
    return "\n".join(lines)


def errors(points: Sequence[dict[str, Any]]) -> str:
    """Out-of-memory errors with the most people that works out, or else with the fewest."""
    point = best(points) or next(iter(points), {})
    if "out_of_memory" not in point:
        return "-"
    return f"{point['out_of_memory']} in {point['cells']} cells"


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


def curves(results: dict[str, Any]) -> dict[str, list[tuple[float, float, float]]]:
    """What the picture shows."""
    return {
        variant.label: [
            (point["people_per_gpu"], point["cells_prompt"] / point["cells"], point["served"])
            for point in points
        ]
        for variant in ORDER
        if variant not in (NO_START, ALWAYS, PARK_FAST, TURNS_MID)
        and (points := points_of(results, "one", variant))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--scale", action="store_true", help="also the million cells")
    parser.add_argument("--only-scale", action="store_true", help="add them to the JSON file")
    parser.add_argument("--promises", action="store_true", help="also deadlines and promises")
    parser.add_argument("--only-promises", action="store_true", help="add them to the JSON file")
    parser.add_argument("--only", nargs="+", default=[], help="only these studies or policies")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--missing", action="store_true", help="only what the JSON file lacks")
    options = parser.parse_args()
    workers = os.cpu_count() or 1
    if not (options.page or options.only_scale or options.only_promises):
        run(chosen(studies(options.small), options), options.json, workers)
    if options.scale or options.only_scale:
        found = scale(workers, options.small)
        write(options.json, {**read(options.json), "scale": found})
    if options.promises or options.only_promises:
        seeds = SEEDS[:1] if options.small else SEEDS
        told = {
            "runs": promises(workers, options.small),
            "clairvoyant": [kept_by_clairvoyant(seed, options.small) for seed in seeds],
        }
        write(options.json, {**read(options.json), "promises": told})
    results = read(options.json)
    if options.markdown:
        options.markdown.write_text(page(results), "utf-8")
    if options.svg and curves(results):
        plot_sweep(curves(results), options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
