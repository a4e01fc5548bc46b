"""How many people can work on several hosts, by how each session's host is chosen.

``python benchmarks/pool_hosts.py --json FILE --markdown FILE`` (``make bench-hosts``). Made-up
sessions (docs/replay.md) are replayed on hosts of eight GPUs. When a session opens, its host is
chosen: in turn; or by the pool's own ranking (jupyter_gpushare/pool/where.py), from the report that
each host would send at that moment. Beside them stands one host that has all the GPUs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from machine import machine, said

from jupyter_gpushare.node.views.report import report
from jupyter_gpushare.policy.words.model import Bytes, EnvironmentName
from jupyter_gpushare.pool.state import Host
from jupyter_gpushare.pool.where import rank
from jupyter_gpushare.pool.words.hosts import Wish, read_report
from jupyter_gpushare.replay.behaviour import Options, PolicyName
from jupyter_gpushare.replay.generate import ONE_GPU, Population
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.run import (
    WARM_UP,
    Cluster,
    Source,
    Variant,
    following,
    works_out,
)
from jupyter_gpushare.replay.tally import Tally, Window
from jupyter_gpushare.replay.trace import Session

HERE = Path(__file__).resolve().parent
GPUS, EACH = 32, 8
TURNS = Variant("turns and moves", PolicyName.TURNS, Options(idle_timeout=1800.0))
#: People are tried in eighths of the GPUs.
STEP, LOW, HIGH = GPUS // 8, 8, 33
AIM = 0.9

Nodes = Mapping[int, VirtualNode]
Choose = Callable[[Nodes, Session], int]


def in_turn() -> Choose:
    """Round robin."""
    number = count()
    return lambda nodes, session: next(number) % len(nodes)


def by_ranking() -> Choose:
    """The first host of the pool's ranking. A server is there from a session's start to its end."""
    servers: list[tuple[float, int, str]] = []

    def choose(nodes: Nodes, session: Session) -> int:
        servers[:] = [one for one in servers if one[0] > session.start]
        hosts = [
            host(number, node, [name for _end, there, name in servers if there == number])
            for number, node in nodes.items()
        ]
        wish = Wish(session.environment, session.gpus, min(session.resident, nodes[0].memory))
        best = int(rank(hosts, wish)[0].host)
        servers.append((session.end, best, session.environment))
        return best

    return choose


def host(number: int, node: VirtualNode, servers: Sequence[str]) -> Host:
    """The host as the pool sees it at this moment."""
    talking = [EnvironmentName(name) for name in servers]
    config = node.behaviour.config
    told = report(node.state, config, str(number), "replay", node.at, {}, talking)
    return Host(str(number), connected=True, report=read_report({**told}))


@dataclass(frozen=True)
class Placing:
    """One line of the table."""

    label: str
    hosts: int
    choose: Callable[[], Choose]


PLACINGS = (
    Placing("one host with all GPUs", 1, in_turn),
    Placing("round robin", GPUS // EACH, in_turn),
    Placing("the pool's ranking", GPUS // EACH, by_ranking),
)


def play(placing: Placing, people: int, days: float, seed: int) -> Tally:
    """What is counted with so many people."""
    population = Population(people, days, ONE_GPU, seed=seed)
    window = Window(min(WARM_UP, population.seconds / 2), population.seconds)
    behaviour = TURNS.behaviour
    assert behaviour is not None
    size = GPUS // placing.hosts
    memory = Bytes(Cluster(GPUS).gpu_memory)
    nodes = {n: VirtualNode(size, behaviour, window, memory) for n in range(placing.hosts)}
    choose = placing.choose()
    for session in Source(population).sessions():
        if session.start < window.end:
            for node in nodes.values():
                node.run_until(session.start)
            nodes[choose(nodes, session)].add(session)
    total = Tally()
    for node in nodes.values():
        total.merge(node.finish())
    return total


def search(job: tuple[Placing, float, int]) -> dict[str, Any]:
    """The most people per GPU for whom it works out, and what was tried on the way."""
    placing, days, seed = job
    works: dict[int, bool] = {}
    points = []
    while (steps := following(works, LOW, HIGH)) is not None:
        tally = play(placing, STEP * steps, days, seed)
        works[steps] = works_out(tally)
        points.append(
            {
                "people_per_gpu": STEP * steps / GPUS,
                "works_out": works[steps],
                "p95": tally.delay.at(0.95),
                "served": tally.served,
            }
        )
    bad = min((steps for steps, well in works.items() if not well), default=HIGH + 1)
    good = max((steps for steps, well in works.items() if well and steps < bad), default=0)
    return {
        "placing": placing.label,
        "seed": seed,
        "people_per_gpu": STEP * good / GPUS,
        "points": points,
    }


def page(found: dict[str, Any]) -> str:
    """The page."""
    rows = found["searches"]
    seeds = sorted({row["seed"] for row in rows})
    most = {(row["placing"], row["seed"]): row["people_per_gpu"] for row in rows}
    lines = [
        "| placed | " + " | ".join(f"seed {seed}" for seed in seeds) + " | of one host |",
        "|---" * (len(seeds) + 2) + "|",
    ]
    one = sum(most[PLACINGS[0].label, seed] for seed in seeds)
    for placing in PLACINGS:
        own = [most[placing.label, seed] for seed in seeds]
        told = " | ".join(f"**{value:.2f}**" for value in own)
        lines.append(f"| {placing.label} | {told} | {sum(own) / one:.0%} |")
    ranked = sum(most[PLACINGS[-1].label, seed] for seed in seeds) / one
    text = (HERE / "pool_hosts_page.md").read_text(encoding="utf-8")
    return text.format(
        made=said(found["machine"]),
        gpus=GPUS,
        hosts=GPUS // EACH,
        each=EACH,
        table="\n".join(lines),
        aim="met" if ranked >= AIM else "not met",
        reached=f"{ranked:.0%}",
    )


def main() -> None:
    """Measure, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--days", type=float, default=12.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    jobs = [(placing, chosen.days, seed) for seed in chosen.seeds for placing in PLACINGS]
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("fork")) as crew:
        searches = list(crew.map(search, jobs))
    found = {"machine": machine(), "days": chosen.days, "searches": searches}
    chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if chosen.markdown is not None:
        chosen.markdown.write_text(page(found), encoding="utf-8")
    for row in searches:
        print(f"{row['placing']}, seed {row['seed']}: {row['people_per_gpu']:.2f} people per GPU")


if __name__ == "__main__":
    main()
