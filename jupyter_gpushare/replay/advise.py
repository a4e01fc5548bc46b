"""``jupyter gpushare advise``: would turns serve the people of this node better than parking?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..console.node import NodeRefused, NodeSilent, connect, whole_status
from ..console.verb import Refused, UsageError, Verb, number, option
from ..figures import format_duration, format_size
from ..policy.words.config import PolicyConfig
from ..policy.words.model import Bytes, Quota, Reserve
from ..protocol.messages import Method
from ..protocol.sizes import parse_size
from ..protocol.tables import table
from .behaviour import Options, ParkingCost, PolicyName, TurnCost
from .generate import Population
from .run import Cluster, Scan, TraceFile, Variant, play, search, window_of, works_out
from .trace import TraceError

#: Open sessions per GPU that are tried: from one on.
MOST: int = 4


def _parking(options: Options) -> str:
    cost = options.cost
    return f"moving memory takes {cost.park:g} s/GiB out and {cost.resume:g} s/GiB in"


def _gates(options: Options) -> str:
    turns = options.turns
    return (
        f"a turn takes {turns.hand_over:g} s; whoever is asked for one stops within "
        f"{turns.step:g} s, and {_of_all(options.gated)} can be stopped within a cell"
    )


def _quota(options: Options) -> str:
    if options.quota is None:
        return "everybody may have all GPUs, whole"
    memory = options.quota.memory
    each = "whole" if memory is None else f"{format_size(memory)} on each"
    return f"everybody's quota is {options.quota.gpus} GPUs, {each}"


def _of_all(share: float) -> str:
    return "each session" if share == 1.0 else f"{100 * share:g} % of the sessions"


#: What the comparison takes as given, a sentence for each field of :class:`Options`; ``None``: it
#: says nothing of what is compared here. A new field must be said, too.
TOLD: Final[Mapping[str, Callable[[Options], str] | None]] = {
    "start_up": None,
    "idle_timeout": lambda o: (
        "idle tasks are never asked for their GPUs"
        if not o.idle_timeout
        else f"a task that was idle for {format_duration(o.idle_timeout)} may be parked"
    ),
    "park_when": lambda o: (
        "it is parked only where somebody waits"
        if o.park_when is o.park_when.CONTENDED
        else "it is parked whether or not somebody waits"
    ),
    "cost": _parking,
    "reserve": lambda o: (
        f"by turns a session reserves {o.reserve:g} times what it keeps; without turns what it "
        f"asks for, or else as reserve = {o.follows.value} says"
    ),
    "turns": _gates,
    "moves": None,  # both are compared
    "gated": None,  # with the turns
    "movable": lambda o: f"with moves, {_of_all(o.movable)} can be moved",
    "resident": lambda o: f"sessions keep {o.resident:g} times what is said of them",
    "follows": None,  # with what is reserved
    "wrong": lambda o: (
        "what a session keeps is known"
        if o.wrong == 1.0
        else f"estimates are wrong by {o.wrong:g} times"
    ),
    "promising": lambda o: "nobody names a deadline, and nobody is batch",
    "together": lambda o: (
        f"tasks that compute on a GPU at once get {100 * o.together:.0f} % of what one gets alone, "
        "all together"
    ),
    "quota": _quota,
    "max_tasks": lambda o: (
        f"at most {o.max_tasks} tasks on a GPU without turns"
        if o.max_tasks is not None
        else "as many tasks on a GPU as the default allows"
    ),
}


@dataclass(frozen=True, slots=True)
class Node:
    """What is compared: a node's GPUs, bytes of each, its settings, and its present share_mode."""

    gpus: int
    memory: int
    options: Mapping[str, Any]
    share_mode: str = "space"


class AdviseApp(Verb):
    """Replay notebook sessions on this node's GPUs, through the node manager's own
    policy, with share_mode space and with share_mode time, and say which of them serves more
    people. The GPUs are the node manager's, or those that --gpus and --gpu-memory name. Sessions
    are made up with published distributions, or come from a trace: `jupyter gpushare usage --trace`
    writes one of what this node's people did. Quotas, time-outs and limits are the node manager's.
    All that is assumed is printed. Nothing is allocated or changed."""

    name = "advise"
    examples = """
    jupyter gpushare advise
    jupyter gpushare advise --gpus 8 --gpu-memory 80GiB --days 12
    jupyter gpushare usage --since 30d --trace cells.csv
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
        node = self._node()
        count, memory = node.gpus, node.memory
        cluster = Cluster(count, count, memory)
        variants = self._variants(node)
        assumed = [say(variants[0].options) for say in TOLD.values() if say is not None]
        try:
            found = [self._look(variant, cluster) for variant in variants]
        except TraceError as error:
            raise Refused(f"{self.trace}, {error}", "bad_request") from None
        except OSError as error:
            raise Refused(f"{self.trace}: {error.strerror}", "bad_request") from None
        now, turns, moves = found
        better = turns["value"] > now["value"]
        moved = moves["value"] > max(now["value"], turns["value"])
        answer = {
            "gpus": count,
            "gpu_memory": memory,
            "share_mode": "time" if better else "space",
            "move_seconds": self.parking if moved else 0.0,
            "compared": found,
            "assumed": assumed,
        }
        measure = "OPEN SESSIONS PER GPU"
        whose = f"{self.days:g} days of made-up sessions of one GPU each (docs/replay.md)"
        if self.trace:
            measure = "CELLS WITHIN 5 S, GPU TIME SERVED"
            whose = f"sessions as in {self.trace}"
        headings = ("SHARE_MODE", measure, "OUT OF MEMORY", "")
        lines = [(x["label"], x["shown"], x["out_of_memory"], x["why"]) for x in found]
        wins, more = ("time", "more") if better else ("space", "no more")
        way = f"set share_mode to {wins} (c.Policy.share_mode)"
        if node.share_mode == wins:
            way = f"leave share_mode as it is, {wins}"
        move = "leave move_seconds as it is, 0."
        if moved:
            move = (
                f"set share_mode to time, and move_seconds to\n{self.parking:g} "
                "(c.Policy.move_seconds), if the driver can move processes here\n"
                "(`jupyter gpushare doctor`)."
            )
        told = [
            f"{count} GPUs of {format_size(memory)}, {whose}.",
            "The node manager's settings, and what is assumed, not measured here:",
            *(f"- {sentence}" for sentence in assumed),
            f"\n{table(headings, lines)}",
            f"\nTurns serve {more} people here: {way}.",
            f"With moves it is {moves['shown']}: {move}",
        ]
        return self.say(answer, "\n".join(told))

    def _node(self) -> Node:
        """What is asked of the node manager, or named. Raises `Refused`, `UsageError`."""
        try:
            with connect() as node:
                status = whole_status(node)
                quota: Mapping[str, Any] = status["quota"]
                if status["admin"]:
                    quota = node.call(Method.QUOTA_LIST)["default"]
        except (NodeSilent, NodeRefused) as error:
            if self.gpus and self.gpu_memory:
                return Node(self.gpus, self.gpu_memory, {})
            raise UsageError(f"{error} Or name --gpus and --gpu-memory.") from None
        gpus = status["gpus"]
        if not gpus and not (self.gpus and self.gpu_memory):
            raise UsageError("this node has no GPU: name --gpus and --gpu-memory")
        return Node(
            self.gpus or len(gpus),
            self.gpu_memory or min(gpu["memory"] for gpu in gpus),
            _settings(status["node"], quota),
            "time" if gpus and all(gpu["share_mode"] == "time" for gpu in gpus) else "space",
        )

    def _variants(self, node: Node) -> tuple[Variant, ...]:
        options = Options(
            **{"idle_timeout": PolicyConfig().idle_timeout, **node.options},
            cost=ParkingCost(self.parking, self.parking),
            turns=TurnCost(hand_over=self.hand_over),
        )
        return (
            Variant("space", PolicyName.PARK, options),
            Variant("time", PolicyName.TURNS, replace(options, moves=False)),
            Variant("time, with moves", PolicyName.TURNS, options),
        )

    def _look(self, variant: Variant, cluster: Cluster) -> dict[str, Any]:
        """How a policy does; the greater ``value``, the better."""
        if self.trace:
            trace = TraceFile(Path(self.trace), cluster.gpu_memory)
            window = window_of(Scan.of(trace.sessions()), None, is_made_up=False)
            tally = play(trace, cluster, window, variant.behaviour)
            prompt = tally.prompt / tally.cells if tally.cells else 1.0
            shown = f"{100 * prompt:.0f} %, {100 * tally.served:.0f} %"
            return {
                "label": variant.label,
                "value": min(prompt, tally.served),
                "shown": shown,
                "why": "",
                "out_of_memory": tally.out_of_memory,
            }
        step = max(1, cluster.gpus // 8)
        low, high = -(-cluster.gpus // step), MOST * cluster.gpus // step
        tried = search(variant, Population(0, self.days), cluster, step, low, high)
        fails = min((people for people, t in tried.items() if not works_out(t)), default=None)
        good = max((p for p in tried if fails is None or p < fails), default=0)
        why = "" if fails is None else f"fails at {fails / cluster.gpus:.2f}"
        errors = tried[good or min(tried)].out_of_memory
        return {
            "label": variant.label,
            "value": good / cluster.gpus,
            "shown": f"{good / cluster.gpus:.2f}",
            "why": why,
            "out_of_memory": errors,
        }


def _settings(node: Mapping[str, Any], quota: Mapping[str, Any]) -> dict[str, Any]:
    """The node manager's settings, as the options of a replay."""
    memory, idle = quota.get("memory"), quota.get("idle_timeout")
    if idle is None:
        idle = node.get("idle_timeout")
    reserve = quota.get("reserve") or node.get("reserve") or Reserve.WHOLE.value
    return {
        "quota": Quota(quota["gpus"], None if memory is None else Bytes(memory)),
        "follows": Reserve(reserve),
        "max_tasks": node["max_tasks_per_gpu"],
        **({} if idle is None else {"idle_timeout": idle}),
    }
