"""``jupyter gpushare advise``: would turns serve the people of this node better than parking?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol.sizes import format_size, parse_size
from .node import NodeRefused, NodeSilent, connect, whole_status
from .table import table
from .verb import Refused, UsageError, Verb, number, option

if TYPE_CHECKING:
    from ..replay.run import Cluster, Variant
    from ..replay.tally import Tally

#: Open sessions per GPU that are tried: from one on.
MOST: int = 4


class AdviseApp(Verb):
    """Compare parking and turns for this node."""

    name = "advise"
    description = """Replay notebook sessions on this node's GPUs, through the node manager's own
    policy, with share_mode space and with share_mode time, and say which of them serves more
    people. The GPUs are the node manager's, or those that --gpus and --gpu-memory name. Sessions
    are made up with published distributions, or come from a trace of yours (docs/replay.md).
    Nothing is allocated or changed. Costs of moving memory are assumed, not measured here."""
    examples = """
    jupyter gpushare advise
    jupyter gpushare advise --gpus 8 --gpu-memory 80GiB --days 12
    jupyter gpushare advise --trace cells.csv
    """

    gpus = option(0, "GPUs of the node. Default: ask the node manager.", number(0, 1024))
    gpu_memory = option(0, "Memory of a GPU. Default: as the node manager says.", parse_size)
    trace = option("", "A trace of this node's sessions: a CSV file.")
    days = option(
        12.0,
        "Days of made-up sessions; the first 2 do not count. Default: 12.",
        number(0.01, 3650.0),
    )
    parking = option(0.2, "Seconds to move each GiB out, or in. Assumed: 0.2.", number(0.0, 1e6))
    hand_over = option(0.2, "Seconds that a turn takes. Assumed: 0.2.", number(0.0, 1e6))

    def run(self, arguments: list[str]) -> int:
        from ..replay.run import Cluster
        from ..replay.trace import TraceError

        count, memory = self._node()
        cluster = Cluster(count, count, memory)
        try:
            found = [self._look(variant, cluster) for variant in self._variants()]
        except TraceError as error:
            raise Refused(f"{self.trace}, {error}", "bad_request") from None
        except OSError as error:
            raise Refused(f"{self.trace}: {error.strerror}", "bad_request") from None
        now, turns, moves = found
        better = turns["value"] > now["value"]
        moved = moves["value"] > max(now["value"], turns["value"])
        if self.json:
            self.print_json(
                {
                    "gpus": count,
                    "gpu_memory": memory,
                    "share_mode": "time" if better else "space",
                    "move_seconds": self.parking if moved else 0.0,
                    "compared": found,
                }
            )
            return 0
        print(f"{count} GPUs of {format_size(memory)}; moving memory takes {self.parking:g} s/GiB")
        print(f"out and as much in, a turn {self.hand_over:g} s (assumed, not measured here).\n")
        headings = ("SHARE_MODE", self._measure(), "OUT OF MEMORY", "")
        lines = [(x["label"], x["shown"], x["out_of_memory"], x["why"]) for x in found]
        print(table(headings, lines))
        if better:
            print("\nTurns serve more people here: set share_mode to time (c.Policy.share_mode).")
        else:
            print("\nTurns serve no more people here: leave share_mode as it is, space.")
        if moved:
            print(f"With moves it is {moves['shown']}: set share_mode to time, and move_seconds to")
            print(
                f"{self.parking:g} (c.Policy.move_seconds), if the driver can move processes here"
            )
            print("(`jupyter gpushare doctor`).")
        else:
            print(f"With moves it is {moves['shown']}: leave move_seconds as it is, 0.")
        return 0

    def _node(self) -> tuple[int, int]:
        """The GPUs, and bytes of each. Raises `Refused`, `UsageError`."""
        if self.gpus and self.gpu_memory:
            return self.gpus, self.gpu_memory
        try:
            with connect() as node:
                gpus = whole_status(node)["gpus"]
        except (NodeSilent, NodeRefused) as error:
            raise UsageError(f"{error} Or name --gpus and --gpu-memory.") from None
        if not gpus:
            raise UsageError("this node has no GPU: name --gpus and --gpu-memory")
        return (
            self.gpus or len(gpus),
            self.gpu_memory or min(gpu["memory"] for gpu in gpus),
        )

    def _variants(self) -> tuple[Variant, ...]:
        from ..policy.words.config import PolicyConfig
        from ..replay.behaviour import Options, ParkingCost, PolicyName, TurnCost
        from ..replay.run import Variant

        options: dict[str, Any] = {
            "idle_timeout": PolicyConfig().idle_timeout,
            "cost": ParkingCost(self.parking, self.parking),
            "turns": TurnCost(hand_over=self.hand_over),
        }
        return (
            Variant("space", PolicyName.PARK, Options(**options)),
            Variant("time", PolicyName.TURNS, Options(**options, moves=False)),
            Variant("time, with moves", PolicyName.TURNS, Options(**options)),
        )

    def _measure(self) -> str:
        return "CELLS WITHIN 5 S, GPU TIME SERVED" if self.trace else "OPEN SESSIONS PER GPU"

    def _look(self, variant: Variant, cluster: Cluster) -> dict[str, Any]:
        """How a policy does; the greater ``value``, the better."""
        from ..replay.generate import Population
        from ..replay.run import search, works_out

        if self.trace:
            tally = self._of_trace(variant, cluster)
            prompt = tally.prompt / tally.cells if tally.cells else 1.0
            shown = f"{100 * prompt:.0f} %, {100 * tally.served:.0f} %"
            return _row(variant, min(prompt, tally.served), shown, "", tally.out_of_memory)
        step = max(1, cluster.gpus // 8)
        low, high = -(-cluster.gpus // step), MOST * cluster.gpus // step
        tried = search(variant, Population(0, self.days), cluster, step, low, high)
        fails = min((people for people, t in tried.items() if not works_out(t)), default=None)
        good = max((p for p in tried if fails is None or p < fails), default=0)
        why = "" if fails is None else f"fails at {fails / cluster.gpus:.2f}"
        errors = tried[good or min(tried)].out_of_memory
        return _row(variant, good / cluster.gpus, f"{good / cluster.gpus:.2f}", why, errors)

    def _of_trace(self, variant: Variant, cluster: Cluster) -> Tally:
        from ..replay.run import Crew, Scan, Source, window_of

        source = Source(trace=Path(self.trace))
        window = window_of(Scan.of(source.sessions(cluster.gpu_memory)), None, is_made_up=False)
        with Crew() as crew:
            return crew.replay(source, cluster, window, [variant])[0]


def _row(variant: Variant, value: float, shown: str, why: str, errors: int) -> dict[str, Any]:
    return {
        "label": variant.label,
        "value": value,
        "shown": shown,
        "why": why,
        "out_of_memory": errors,
    }
