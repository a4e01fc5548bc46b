"""A sweep of the paper's size with a simulated clock: 10 hosts, 8 GPUs each, 10,000 models.

``python benchmarks/sweeps.py [--models N] [--every SECONDS] [--stops SHARE]``: what `jobs.core`
decides when each model takes 5 to 10 hours, hosts are asked every ``--every`` seconds, and people
take cards back now and then. Prints JSON: the time for all models beside the ideal one, which is
all computing divided among all cards.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from typing import Any

from jupyter_gpushare.jobs import core
from jupyter_gpushare.jobs.core import Card, End, Phase, Row

HOUR = 3600.0


def replay(hosts: int, cards: int, models: int, every: float, stops: float, seed: int) -> Any:
    """``stops``: of so many attempts one is stopped for a person, half-way, and begins again."""
    chance = random.Random(seed)
    lasts = [chance.uniform(5 * HOUR, 10 * HOUR) for _ in range(models)]
    names = {f"h{h}": [Card(f"h{h}", f"g{c}") for c in range(cards)] for h in range(hosts)}
    state, now, rounds, lost = core.begin([(Phase.QUEUED, 0)] * models, seed=seed), 0.0, 0, 0.0
    ends: list[tuple[float, int, int, End]] = []
    busy: set[Card] = set()
    began = time.perf_counter()
    while not state.is_over:
        if core.wants_round(state):
            rounds += 1
            state = core.registered(state, names)
            for host, all_cards in names.items():
                rows = [Row(card, 1) for card in all_cards if card not in busy]
                state = core.answered(state, host, rows)
        while True:
            state, sent = core.drawn(state)
            if sent is None:
                break
            busy.update(sent.cards)
            stopped = chance.random() < stops
            took = lasts[sent.number] * (0.5 if stopped else 1.0)
            lost += took if stopped else 0.0
            end = End.PREEMPTED if stopped else End.DONE
            heapq.heappush(ends, (now + took, sent.number, sent.attempt, end))
        assert ends, "models are left, and nothing runs"
        # The next round after the next end: in between nothing can change.
        now = ends[0][0]
        if state.queue:
            now = every * -(-now // every)
        while ends and ends[0][0] <= now:
            _, number, attempt, end = heapq.heappop(ends)
            busy.difference_update(state.models[number].cards)
            state, _ = core.ended(state, number, attempt, end)
    assert all(model.phase is Phase.DONE for model in state.models)
    ideal = sum(lasts) / (hosts * cards)
    return {
        "hosts": hosts,
        "cards": hosts * cards,
        "models": models,
        "every": every,
        "stops": stops,
        "days": round(now / 24 / HOUR, 2),
        "ideal_days": round(ideal / 24 / HOUR, 2),
        "over_ideal": round(now / ideal - 1, 4),
        "of_it_begun_anew": round(lost / hosts / cards / ideal, 4),
        "rounds": rounds,
        "attempts": sum(model.attempt for model in state.models),
        "replay_seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--stops", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(replay(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
