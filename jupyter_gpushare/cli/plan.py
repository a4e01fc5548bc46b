"""``jupyter gpushare plan``: what would the policy decide? JSON lines in, JSON lines out.

This file only reads and writes JSON; the decision is that of `policy.books.placement`, in the
functions that the node manager calls. A line that makes no sense is
answered like the others, with ``bad_request``, and the next one is read.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..console.verb import Verb
from ..policy.books.placement import (
    ByShare,
    GpuRoom,
    Granted,
    NoRoom,
    choose_node,
    place,
    shortage,
)
from ..policy.books.room import most_tasks, reclaimed
from ..policy.say.texts import no_room_text, refusal_text
from ..policy.words.config import PolicyConfig
from ..policy.words.model import (
    Bytes,
    GpuUuid,
    PriorityClass,
    Quota,
    Request,
    Reserve,
)
from ..policy.words.promises import WHOLE, Expected

#: Integers beyond this are no GPU's memory and no count.
LARGEST = 2**63 - 1
#: Bytes of one line; a longer one is answered with ``bad_request``.
LONGEST_LINE = 16 * 2**20


class BadPlan(Exception):
    """The line is not a plan; ``str()`` says what is wrong with it."""


class PlanApp(Verb):
    """Dry run: one JSON object a line on stdin, one decision a line on stdout."""

    name = "plan"
    description = """Dry run of the policy: reads one JSON object a line from standard input, prints
    one decision a line. Nothing is allocated and no node manager is needed."""
    examples = """
    A line that goes in:

      {"gpus": [{"uuid": "GPU-a", "memory": 25769803776}], "max_tasks_per_gpu": 4,
       "environments": {"alice": {"gpus": 2, "memory": 8589934592}},
       "leases": [{"id": "L1", "environment": "alice", "gpus": ["GPU-a"]}],
       "request": {"environment": "alice", "gpus": 1}}

    and the lines that come out:

      {"decision": "grant", "gpus": ["GPU-a"]}
      {"decision": "wait", "reason": "no_resources", "message": "..."}
      {"decision": "refuse", "reason": "over_quota", "message": "..."}

    With "estimate": BYTES and "runs": N (2 if left out) in a request that names no memory, it is
    placed as one whose N earlier runs needed so much on each GPU: it wants that and head-room, more
    the fewer runs there were, but no more than its quota gives.

    With "expected" in a request it is placed by the share of a GPU's compute that it is predicted
    to use on each kind of GPU, and is given that share. GPUs then have a "kind", and leases may
    have a "share" and "batch": true. Of several nodes, each with its GPUs and what is "left" of
    them (and what "batch" tasks have there), one is chosen first:

      {"nodes": [{"name": "A", "gpus": [{"uuid": "a1", "kind": "A1", "left": 90}]},
                 {"name": "B", "gpus": [{"uuid": "b1", "kind": "A2", "left": 20, "batch": 40}]}],
       "request": {"expected": [{"kind": "A1", "share": 40}, {"kind": "A2", "share": 50}]}}

      {"decision": "grant", "node": "A", "gpus": ["a1"], "share": 40}

    A line that is not understood gives "refuse" with "bad_request" (and the exit code is still 0:
    it is an answer).
    """

    def run(self, arguments: list[str]) -> int:
        lines = sys.stdin.buffer
        while line := lines.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                while (rest := lines.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                answer = bad(f"a line may have {LONGEST_LINE} bytes at most")
            elif not line.strip():
                continue
            else:
                answer = plan_line(line)
            print(json.dumps(answer), flush=True)
        return 0


@dataclass(frozen=True, slots=True)
class _Lease:
    environment: str
    gpus: tuple[str, ...]
    memory: int | None
    share: int
    batch: bool


def plan_line(line: bytes) -> dict[str, Any]:
    """The answer to one line; never raises for anything that is in it."""
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        return bad("the line is nested too deeply")
    except ValueError as error:
        return bad(f"the line is not JSON: {error}")
    try:
        return _plan(value)
    except BadPlan as error:
        return bad(str(error))


def bad(message: str) -> dict[str, Any]:
    """The answer to a line that makes no sense."""
    return {"decision": "refuse", "reason": "bad_request", "message": message}


def _plan(value: object) -> dict[str, Any]:
    plan = _object(value, "the line")
    if "nodes" in plan:
        return _plan_nodes(plan)
    capacities, kinds = _gpus(plan)
    quotas = {
        name: _quota(quota, f"environments.{name}")
        for name, quota in _object(plan.get("environments", {}), "environments").items()
    }
    leases = _leases(plan, capacities, quotas)
    most = _optional_integer(plan.get("max_tasks_per_gpu"), "max_tasks_per_gpu", least=1)
    request = _object(plan.get("request"), "request")
    environment = _text(request.get("environment"), "request.environment")
    if environment not in quotas:
        raise BadPlan(f"request.environment {environment!r} is not among the environments")
    count = _integer(request.get("gpus", 1), "request.gpus")
    memory = _optional_integer(request.get("memory"), "request.memory")

    rooms, quota = _rooms(capacities, kinds, quotas, leases, environment), quotas[environment]
    asked = None if memory is None else Bytes(memory)
    estimate = _optional_integer(request.get("estimate"), "request.estimate", least=1)
    runs = _optional_integer(request.get("runs"), "request.runs", least=2)
    ask, config = _ask(request, kinds.values()), _config(plan, most)
    if estimate is not None and asked is None:
        needs = config.with_headroom(estimate, runs or 2)
        rooms = [replace(room, expected=needs) for room in rooms]
    wish = Request(count, asked, reserve=None if estimate is None else Reserve.ESTIMATE)
    tasks = most_tasks(config, quota, wish)
    placement = place(rooms, quota, count, asked, tasks, ask)
    if isinstance(placement, NoRoom) and ask is not None and not ask.batch:
        placement = place(reclaimed(tuple(rooms), config), quota, count, asked, tasks, ask)
    if isinstance(placement, Granted):
        return _granted(rooms, placement, ask)
    if isinstance(placement, NoRoom):
        short = shortage(rooms, quota, asked, tasks, ask)
        message = no_room_text(placement, count, short, is_set=most is not None)
        return {"decision": "wait", "reason": "no_resources", "message": message}
    return {
        "decision": "refuse",
        "reason": placement.reason.value,
        "message": refusal_text(placement),
    }


def _plan_nodes(plan: Mapping[str, object]) -> dict[str, Any]:
    """The node for a request first, then the GPU on it (the source document S3's rules)."""
    request = _object(plan.get("request"), "request")
    names, nodes = _nodes(plan)
    ask = _ask(request, (room.kind for rooms in nodes for room in rooms))
    if ask is None:
        raise BadPlan("request.expected must name a kind of GPU that a node has")
    config = _config(plan, None)
    seen, chosen = nodes, choose_node(nodes, ask)
    if chosen is None and not ask.batch:
        seen = [reclaimed(rooms, config) for rooms in nodes]
        chosen = choose_node(seen, ask)
    if chosen is None:
        message = "No GPU of any node has the share left. The request waits until one has."
        return {"decision": "wait", "reason": "no_resources", "message": message}
    placement = place(seen[chosen], Quota(len(seen[chosen])), 1, None, math.inf, ask)
    if not isinstance(placement, Granted):  # the GPU that fits is the one that was looked for
        raise BadPlan("the GPU's memory is too small for the request")
    return {**_granted(nodes[chosen], placement, ask), "node": names[chosen]}


def _config(plan: Mapping[str, object], most: int | None) -> PolicyConfig:
    least = _optional_integer(plan.get("batch_share_least"), "batch_share_least", least=0)
    config = PolicyConfig(max_tasks_per_gpu=most)
    return config if least is None else replace(config, batch_share_least=least)


def _granted(rooms: Sequence[GpuRoom], placement: Granted, ask: ByShare | None) -> dict[str, Any]:
    """The answer; with a prediction the share that is given, and what batch tasks give for it."""
    answer: dict[str, Any] = {
        "decision": "grant",
        "gpus": [chosen.gpu for chosen in placement.allocations],
    }
    by_uuid = {room.uuid: room for room in rooms}
    reclaim = {}
    for uuid in answer["gpus"] if ask is not None else ():
        need = None if ask is None else ask.on(by_uuid[uuid].kind)
        if need is not None:
            answer["share"] = max(need.share, answer.get("share", 0))
            reclaim[uuid] = need.share - by_uuid[uuid].left
    lacking = {uuid: share for uuid, share in reclaim.items() if share > 0}
    return {**answer, "reclaim": lacking} if lacking else answer


def _rooms(
    capacities: Mapping[str, int],
    kinds: Mapping[str, str],
    quotas: Mapping[str, Quota],
    leases: list[_Lease],
    environment: str,
) -> list[GpuRoom]:
    """Every GPU as ``environment`` sees it; environments share one reservation a GPU each."""
    tasks = dict.fromkeys(capacities, 0)
    reserved: dict[str, dict[str, int]] = {uuid: {} for uuid in capacities}
    named = Counter[tuple[str, str]]()
    taken, batch = Counter[str](), defaultdict[str, list[int]](list)
    for lease in leases:
        if lease.environment != environment:
            taken.update(dict.fromkeys(lease.gpus, lease.share))
            for uuid in lease.gpus if lease.batch else ():
                batch[uuid].append(lease.share)
        quota = quotas[lease.environment].memory
        for uuid in lease.gpus:
            asked = lease.memory if lease.memory is not None else quota
            size = capacities[uuid] if asked is None else min(asked, capacities[uuid])
            owners = reserved[uuid]
            named[uuid, lease.environment] += lease.memory or 0
            owners[lease.environment] = max(
                size, owners.get(lease.environment, 0), named[uuid, lease.environment]
            )
            tasks[uuid] += 1
    return [
        GpuRoom(
            uuid=GpuUuid(uuid),
            index=index,
            memory=Bytes(capacity),
            free=capacity - sum(reserved[uuid].values()),
            tasks=tasks[uuid],
            reservation=(
                Bytes(reserved[uuid][environment]) if environment in reserved[uuid] else None
            ),
            named=named[uuid, environment],
            kind=kinds[uuid],
            left=max(0, WHOLE - taken[uuid]),
            batch=tuple(batch[uuid]),
        )
        for index, (uuid, capacity) in enumerate(capacities.items())
    ]


# -- reading the line ------------------------------------------------------------------------


def _nodes(plan: Mapping[str, object]) -> tuple[list[str], list[tuple[GpuRoom, ...]]]:
    names, nodes = [], []
    for number, item in enumerate(_list(plan.get("nodes"), "nodes")):
        where = f"nodes[{number}]"
        node = _object(item, where)
        names.append(_text(node.get("name"), f"{where}.name"))
        rooms = []
        for index, part in enumerate(_list(node.get("gpus"), f"{where}.gpus")):
            here = f"{where}.gpus[{index}]"
            gpu = _object(part, here)
            memory = _integer(gpu.get("memory", 1), f"{here}.memory", least=1)
            batch = _share(gpu.get("batch", 0), f"{here}.batch")
            uuid, kind = _text(gpu.get("uuid"), f"{here}.uuid"), _text(gpu.get("kind"), here)
            left = _share(gpu.get("left", WHOLE), f"{here}.left")
            room = GpuRoom(GpuUuid(uuid), index, Bytes(memory), memory, 0, kind=kind, left=left)
            rooms.append(replace(room, batch=(batch,) if batch else ()))
        if len({room.uuid for room in rooms}) != len(rooms):
            raise BadPlan(f"{where}.gpus has a UUID twice")
        nodes.append(tuple(rooms))
    return names, nodes


def _ask(request: Mapping[str, object], kinds: Iterable[str]) -> ByShare | None:
    """What is predicted of a request, or ``None`` if nothing is for any of these kinds."""
    expected, known = [], set(kinds)
    for number, item in enumerate(_list(request.get("expected", []), "request.expected")):
        where = f"request.expected[{number}]"
        one = _object(item, where)
        kind = _text(one.get("kind"), f"{where}.kind")
        share = _share(one.get("share"), f"{where}.share", least=1)
        memory = _integer(one.get("memory", 0), f"{where}.memory", least=0)
        seconds = one.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | None):
            raise BadPlan(f"{where}.seconds must be a number{_but(seconds)}")
        if kind in known:
            time = None if seconds is None else float(seconds)
            expected.append(Expected(kind, share, memory, time))
    word = request.get("priority_class", PriorityClass.INTERACTIVE.value)
    if word not in {one.value for one in PriorityClass}:
        raise BadPlan("request.priority_class must be interactive or batch")
    batch = word == PriorityClass.BATCH.value
    return ByShare(tuple(expected), batch) if expected else None


def _share(value: object, where: str, least: int = 0) -> int:
    share = _integer(value, where, least)
    if share > WHOLE:
        raise BadPlan(f"{where} must be at most {WHOLE}, not {share}")
    return share


def _gpus(plan: Mapping[str, object]) -> tuple[dict[str, int], dict[str, str]]:
    capacities: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for number, item in enumerate(_list(plan.get("gpus"), "gpus")):
        gpu = _object(item, f"gpus[{number}]")
        uuid = _text(gpu.get("uuid"), f"gpus[{number}].uuid")
        if uuid in capacities:
            raise BadPlan(f"gpus[{number}].uuid {uuid!r} is there twice")
        capacities[uuid] = _integer(gpu.get("memory"), f"gpus[{number}].memory", least=1)
        kinds[uuid] = _text(gpu.get("kind", "GPU"), f"gpus[{number}].kind")
    return capacities, kinds


def _leases(
    plan: Mapping[str, object], capacities: Mapping[str, int], quotas: Mapping[str, Quota]
) -> list[_Lease]:
    leases: dict[str, _Lease] = {}
    for number, item in enumerate(_list(plan.get("leases", []), "leases")):
        where = f"leases[{number}]"
        lease = _object(item, where)
        name = _text(lease.get("id"), f"{where}.id")
        if name in leases:
            raise BadPlan(f"{where}.id {name!r} is there twice")
        environment = _text(lease.get("environment"), f"{where}.environment")
        if environment not in quotas:
            raise BadPlan(f"{where}.environment {environment!r} is not among the environments")
        held = [_text(gpu, f"{where}.gpus") for gpu in _list(lease.get("gpus"), f"{where}.gpus")]
        for uuid in held:
            if uuid not in capacities:
                raise BadPlan(f"{where}.gpus: there is no GPU {uuid!r}")
        if len(set(held)) != len(held):
            raise BadPlan(f"{where}.gpus has a GPU twice")
        memory = _optional_integer(lease.get("memory"), f"{where}.memory", least=1)
        share = _share(lease.get("share", 0), f"{where}.share")
        batch = lease.get("batch", False)
        if not isinstance(batch, bool):
            raise BadPlan(f"{where}.batch must be true or false")
        leases[name] = _Lease(environment, tuple(held), memory, share, batch)
    return list(leases.values())


def _quota(value: object, where: str) -> Quota:
    quota = _object(value, where)
    memory = _optional_integer(quota.get("memory"), f"{where}.memory", least=1)
    return Quota(
        gpus=_integer(quota.get("gpus"), f"{where}.gpus", least=0),
        memory=None if memory is None else Bytes(memory),
    )


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise BadPlan(f"{where} must be a JSON object{_but(value)}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise BadPlan(f"{where} must be a list{_but(value)}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadPlan(f"{where} must be a string that is not empty{_but(value)}")
    return value


def _integer(value: object, where: str, least: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
        raise BadPlan(f"{where} must be a whole number{_but(value)}")
    if least is not None and value < least:
        raise BadPlan(f"{where} must be at least {least}, not {value}")
    return value


def _optional_integer(value: object, where: str, least: int | None = None) -> int | None:
    return None if value is None else _integer(value, where, least)


def _but(value: object) -> str:
    """The kind of the value, in JSON's words."""
    if value is None:
        return "; it is missing or null"
    words = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    kind = words.get(type(value), "a list" if isinstance(value, list) else "an object")
    return f", not {kind}" if not isinstance(value, (int, float)) else f", not {value!r:.40}"


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")
