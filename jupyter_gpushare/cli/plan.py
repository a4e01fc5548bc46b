"""``jupyter gpushare plan``: what would the policy decide? JSON lines in, JSON lines out.

This file only reads and writes JSON; the decision is that of `policy.books.placement`, in the
functions that the node manager calls. What a line may say is declared below, as types. A line that
makes no sense is answered like the others, with ``bad_request``, and the next one is read.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, ValidationError
from msgspec.json import decode

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

Name = Annotated[str, Meta(min_length=1)]
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Some = Annotated[int, Meta(ge=1, le=LARGEST)]
Share = Annotated[int, Meta(ge=0, le=WHOLE)]


class _Gpu(Struct):
    uuid: Name
    memory: Some
    kind: Name = "GPU"


class _NodeGpu(Struct):
    uuid: Name
    kind: Name
    memory: Some = 1
    left: Share = WHOLE
    batch: Share = 0


class _Node(Struct):
    name: Name
    gpus: list[_NodeGpu]


class _Quota(Struct):
    gpus: Count
    memory: Some | None = None


class _Lease(Struct):
    id: Name
    environment: Name
    gpus: list[Name]
    memory: Some | None = None
    share: Share = 0
    batch: bool = False


class _Expected(Struct):
    kind: Name
    share: Annotated[int, Meta(ge=1, le=WHOLE)]
    memory: Count = 0
    seconds: float | None = None


class _Request(Struct):
    environment: Name = ""
    gpus: Whole = 1
    memory: Whole | None = None
    estimate: Some | None = None
    runs: Annotated[int, Meta(ge=2, le=LARGEST)] | None = None
    expected: list[_Expected] = []
    priority_class: PriorityClass = PriorityClass.INTERACTIVE


class _Plan(Struct):
    request: _Request
    gpus: list[_Gpu] | UnsetType = UNSET
    environments: dict[str, _Quota] = {}
    leases: list[_Lease] = []
    nodes: list[_Node] | UnsetType = UNSET
    max_tasks_per_gpu: Some | None = None
    batch_share_least: Count | None = None


class BadPlan(Exception):
    """The line is not a plan; ``str()`` says what is wrong with it."""


class PlanApp(Verb):
    """Dry run of the policy: reads one JSON object a line from standard input, prints
    one decision a line. Nothing is allocated and no node manager is needed."""

    name = "plan"
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
                # Read away, or what is left of it would be answered as lines of its own.
                while (rest := lines.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                answer = bad(f"a line may have {LONGEST_LINE} bytes at most")
            elif not line.strip():
                continue
            else:
                answer = plan_line(line)
            print(json.dumps(answer), flush=True)
        return 0


def plan_line(line: bytes) -> dict[str, Any]:
    """The answer to one line; never raises for anything that is in it."""
    try:
        return _plan(decode(line, type=_Plan))
    except RecursionError:
        return bad("the line is nested too deeply")
    except ValidationError as error:
        wrong, _, place = str(error).partition(" - at `$")
        return bad(f"{place.strip('.`') or 'the line'}: {wrong}")
    except (DecodeError, UnicodeDecodeError) as error:
        return bad(f"the line is not JSON: {error}")
    except BadPlan as error:
        return bad(str(error))


def bad(message: str) -> dict[str, Any]:
    """The answer to a line that makes no sense."""
    return {"decision": "refuse", "reason": "bad_request", "message": message}


def _plan(plan: _Plan) -> dict[str, Any]:
    request = plan.request
    if plan.nodes is not UNSET:
        return _plan_nodes(plan.nodes, request, _config(plan))
    quotas = {
        name: Quota(quota.gpus, None if quota.memory is None else Bytes(quota.memory))
        for name, quota in plan.environments.items()
    }
    gpus = _gpus(plan)
    _check_leases(plan.leases, gpus, quotas)
    environment, count = request.environment, request.gpus
    if environment not in quotas:
        raise BadPlan(f"request.environment {environment!r} is not among the environments")
    rooms, quota = _rooms(gpus.values(), quotas, plan.leases, environment), quotas[environment]
    asked = None if request.memory is None else Bytes(request.memory)
    estimate, runs = request.estimate, request.runs
    ask, config = _ask(request, (gpu.kind for gpu in gpus.values())), _config(plan)
    if estimate is not None and asked is None:
        needs = config.with_headroom(estimate, runs or 2)
        rooms = [room._replace(expected=needs) for room in rooms]
    wish = Request(count, asked, reserve=None if estimate is None else Reserve.ESTIMATE)
    tasks = most_tasks(config, quota, wish)
    placement = place(rooms, quota, count, asked, tasks, ask)
    if isinstance(placement, NoRoom) and ask is not None and not ask.batch:
        placement = place(reclaimed(tuple(rooms), config), quota, count, asked, tasks, ask)
    if isinstance(placement, Granted):
        return _granted(rooms, placement, ask)
    if isinstance(placement, NoRoom):
        short = shortage(rooms, quota, asked, tasks, ask)
        message = no_room_text(placement, count, short, is_set=plan.max_tasks_per_gpu is not None)
        return {"decision": "wait", "reason": "no_resources", "message": message}
    return {
        "decision": "refuse",
        "reason": placement.reason.value,
        "message": refusal_text(placement),
    }


def _plan_nodes(given: Sequence[_Node], request: _Request, config: PolicyConfig) -> dict[str, Any]:
    """The node for a request first, then the GPU on it (the source document S3's rules)."""
    nodes = [_node_rooms(node) for node in given]
    ask = _ask(request, (room.kind for rooms in nodes for room in rooms))
    if ask is None:
        raise BadPlan("request.expected must name a kind of GPU that a node has")
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
    return {**_granted(nodes[chosen], placement, ask), "node": given[chosen].name}


def _config(plan: _Plan) -> PolicyConfig:
    config = PolicyConfig(max_tasks_per_gpu=plan.max_tasks_per_gpu)
    least = plan.batch_share_least
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
    gpus: Iterable[_Gpu], quotas: Mapping[str, Quota], leases: Sequence[_Lease], environment: str
) -> list[GpuRoom]:
    """Every GPU as ``environment`` sees it; environments share one reservation a GPU each."""
    kinds = {gpu.uuid: gpu.kind for gpu in gpus}
    capacities = {gpu.uuid: gpu.memory for gpu in gpus}
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


# -- what a type cannot say ------------------------------------------------------------------


def _node_rooms(node: _Node) -> tuple[GpuRoom, ...]:
    rooms = [
        GpuRoom(
            uuid=GpuUuid(gpu.uuid),
            index=index,
            memory=Bytes(gpu.memory),
            free=gpu.memory,
            tasks=0,
            kind=gpu.kind,
            left=gpu.left,
            batch=(gpu.batch,) if gpu.batch else (),
        )
        for index, gpu in enumerate(node.gpus)
    ]
    if len({room.uuid for room in rooms}) != len(rooms):
        raise BadPlan(f"the node {node.name!r} has a UUID twice")
    return tuple(rooms)


def _ask(request: _Request, kinds: Iterable[str]) -> ByShare | None:
    """What is predicted of a request, or ``None`` if nothing is for any of these kinds."""
    known = set(kinds)
    expected = tuple(
        Expected(one.kind, one.share, one.memory, one.seconds)
        for one in request.expected
        if one.kind in known
    )
    batch = request.priority_class is PriorityClass.BATCH
    return ByShare(expected, batch) if expected else None


def _gpus(plan: _Plan) -> dict[str, _Gpu]:
    if plan.gpus is UNSET:
        raise BadPlan("gpus is missing: name the GPUs, or nodes with GPUs")
    gpus: dict[str, _Gpu] = {}
    for gpu in plan.gpus:
        if gpu.uuid in gpus:
            raise BadPlan(f"gpus: {gpu.uuid!r} is there twice")
        gpus[gpu.uuid] = gpu
    return gpus


def _check_leases(
    leases: Sequence[_Lease], gpus: Mapping[str, _Gpu], quotas: Mapping[str, Quota]
) -> None:
    seen = set[str]()
    for lease in leases:
        where = f"the lease {lease.id!r}"
        if lease.id in seen:
            raise BadPlan(f"{where} is there twice")
        seen.add(lease.id)
        if lease.environment not in quotas:
            raise BadPlan(f"{where}: {lease.environment!r} is not among the environments")
        if unknown := [uuid for uuid in lease.gpus if uuid not in gpus]:
            raise BadPlan(f"{where}: there is no GPU {unknown[0]!r}")
        if len(set(lease.gpus)) != len(lease.gpus):
            raise BadPlan(f"{where} has a GPU twice")
