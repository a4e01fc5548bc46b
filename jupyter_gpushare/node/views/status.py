"""The status document: the state as one viewer may see it. Pure.

Two things must hold of it. Nobody learns from it what is not theirs: other people's leases are
there, because everybody may know how full the node is, but without names, paths or ids. And it is
quick for many: a class of panels watches at once, and each change of the state makes a document for
each of them. So what is the same for all is worked out once (:class:`Sheet`), and a viewer's
document is put together from its rows. Lists are bounded, so that one person with ten thousand
leases makes nobody's document long.

Wish and fact never share a field in the state. The one word that a person is shown (*stalled*,
*parking*, *over limit*) is derived here, by :func:`display_state`, and stored nowhere. Sentences
are made in :mod:`jupyter_gpushare.compose`, from the rows.

The shape is documented in docs/protocol.md and is the same on the socket, in the REST API, in
``%gpushare status`` and on the command line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, cast

from ...compose import (
    gpus as of_gpus,
    leases as of_leases,
    node as of_node,
    quotas as of_quotas,
    waiting as of_waiting,
)
from ...policy import core
from ...policy.books.lifts import entitled
from ...policy.books.placement import wanted
from ...policy.books.quotas import QuotaBook, QuotaSource
from ...policy.books.state import Lease, State
from ...policy.measure import stillness, watchdog
from ...policy.measure.observe import owner
from ...policy.recall import lifts
from ...policy.recall.offers import idle_until
from ...policy.recall.outlook import Outlook
from ...policy.recall.stopping import empty_by
from ...policy.say.quotas import environment_row, group_row
from ...policy.say.texts import REBUILDING, budget_when
from ...policy.words.config import PolicyConfig
from ...policy.words.model import (
    Activity,
    Allocation,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    FlagKind,
    GpuReading,
    GpuUuid,
    HolderAction,
    LeaseId,
    LeasePhase,
    OverLimitStage,
    PriorityClass,
    Quota,
)
from ...policy.words.recalls import Recall
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc
from ...protocol.framing import Encoded
from ...protocol.holding import whole_memory
from ...protocol.shapes import optional, private
from . import outlook as outlook_status, sharing
from .encoding import encoded, joined, members
from .hints import Hints, with_hints
from .lately import Lately
from .pauses import Pauses
from .viewer import View, Viewer

#: Gives the outlooks of all waiting requests.
Outlooks = Callable[[], Mapping[LeaseId, Outlook]]


#: The state of a lease as people see it; derived, never stored.
DisplayState = Literal[
    "queued",
    "active",
    "idle",
    "stalled",
    "suspended",
    "draining",
    "parking",
    "parked",
    "resuming",
    "over_limit",
    "ended",
]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about the node itself in a status. ``now`` and ``boot`` are the same instant.

    ``quotas_as_of`` is set while JupyterHub is away: when it last told its groups' quotas.
    ``ledger`` is the path of the ledger, ``hints`` where else people would get a GPU, ``left_out``
    sentences about GPUs that are not shared.
    """

    name: str
    version: str
    simulated: bool
    started: float
    now: float
    boot: float
    problem: str | None = None
    left_out: tuple[str, ...] = ()
    quotas_as_of: float | None = None
    ledger: str | None = None
    hints: Hints = field(default_factory=dict)
    preset: doc.Preset | None = None
    walls: doc.Walls | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a waiting request in the order of service."""

    position: int  # 1 is served next
    ahead: doc.Ahead


def places(state: State) -> dict[LeaseId, Place]:
    """The places of all waiting requests, the first in line first, in one pass over the queue."""
    result: dict[LeaseId, Place] = {}
    ahead = dict.fromkeys(PriorityClass, 0)
    for position, item in enumerate(state.queue.service_order(), start=1):
        interactive, batch = ahead[PriorityClass.INTERACTIVE], ahead[PriorityClass.BATCH]
        result[item.lease] = Place(position, {"interactive": interactive, "batch": batch})
        ahead[item.priority_class] += 1
    return result


def display_state(state: State, lease: Lease) -> DisplayState:
    """Wish, fact and activity folded into the one word that a person is shown."""
    if lease.phase is LeasePhase.QUEUED:
        return "queued"
    if lease.phase is LeasePhase.PARKED:
        return "parked"
    if lease.phase is LeasePhase.HELD and not lease.stalled:
        if lease.is_resuming:
            return "resuming"
        recall = state.memory_recall(lease.id)
        if recall is not None and recall.moving:
            return "parking"
    if lease.phase is LeasePhase.ENDED:
        drains = any(
            state.claims[(lease.id, part.gpu)].phase is ClaimPhase.DRAINING
            for part in lease.allocations
            if (lease.id, part.gpu) in state.claims
        )
        return "draining" if drains else "ended"
    if lease.stalled:
        return "suspended" if lease.suspended else "stalled"
    if any(
        kind is FlagKind.OVER_LIMIT and process in lease.members
        for _gpu, process, kind in state.flags
    ):
        return "over_limit"
    return "active" if lease.activity is Activity.BUSY else "idle"


#: Rows of one list in one status: an administrator's, and anybody else's beside their own.
PAGE_OF_ADMIN: Final = 500
PAGE: Final = 200

#: Who looks and has nothing.
_NOBODY: Final = EnvironmentName("")
#: The fields of a lease that other people are not told. Its id would let them follow its work.
_HIDDEN: Final = dict.fromkeys(private(doc.Lease))
#: What is left out where it is null or empty: of most tasks there is little to tell.
_MAY_LACK: Final = optional(doc.Lease)
_GPU_MAY_LACK: Final = optional(doc.LeaseGpu)
_HEAD_MAY_LACK: Final = optional(doc.StatusHead)
_HIDDEN_MEMBERS: Final = members({name: None for name in _HIDDEN if name not in _MAY_LACK})


def _lean(row: Mapping[str, Any], may_lack: frozenset[str]) -> dict[str, Any]:
    """A row without what is null, or an empty list, and may be left out."""
    return {n: x for n, x in row.items() if n not in may_lack or (x is not None and x != [])}


class _Listing:
    """Leases in an order, of which each viewer sees a page."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._leases = tuple(leases)
        #: Where those of each environment are.
        self.of: dict[EnvironmentName, list[int]] = {}
        for index, lease in enumerate(self._leases):
            self.of.setdefault(lease.environment, []).append(index)
        self._turns: list[int] | None = None

    def page(
        self, own: Iterable[EnvironmentName], viewer: Viewer, page: int
    ) -> tuple[list[Lease], int]:
        """The rows of a page, and how many rows there are after it.

        An administrator turns pages. The first page has all of the administrator's own rows. All
        pages have others' rows, by turns of environments, so that one environment with many rows
        leaves room for the rest. Other viewers have one page: all of their own rows, and the first
        of the others'.
        """
        mine = {index for name in own for index in self.of.get(name, ())}
        if viewer.admin:
            others = [index for index in self._by_turns() if index not in mine]
            end = (page + 1) * PAGE_OF_ADMIN
            rows = mine.union(others[:end]) if page == 0 else others[end - PAGE_OF_ADMIN : end]
            return [self._leases[index] for index in sorted(rows)], max(0, len(others) - end)
        shown = mine.union(range(min(PAGE, len(self._leases))))
        return [self._leases[i] for i in sorted(shown)], len(self._leases) - len(shown)

    def _by_turns(self) -> list[int]:
        """One of each environment, then a second of each, and so on."""
        if self._turns is None:
            turns = sorted(turn for mine in self.of.values() for turn in enumerate(mine))
            self._turns = [index for _turn, index in turns]
        return self._turns


class Sheet:
    """The node at one instant, for all who look: what is the same for many is made once.

    ``lately`` tells of requests granted and promises kept; ``connected`` are environments that talk
    to the node manager now. ``outlooks`` is called when one is shown.
    """

    def __init__(
        self,
        state: State,
        facts: NodeFacts,
        config: PolicyConfig,
        readings: Mapping[str, GpuReading],
        lately: Lately,
        connected: Iterable[EnvironmentName] = (),
        outlooks: Outlooks = dict,
        pauses: Pauses | None = None,
        predictions: Callable[[Callable[[str], bool]], list[doc.Predicted]] = lambda is_mine: [],
        serving: Callable[[Lease], doc.Serving | None] = lambda lease: None,
    ) -> None:
        self._state, self._facts, self._config = state, facts, config
        self._readings, self._waits = readings, lately.waits(facts.now)
        self._promises = lately.verdicts(facts.now)
        self._offset = facts.now - facts.boot
        self._largest = max((books.gpu.memory for books in state.gpus.values()), default=0)
        self._connected = frozenset(connected)
        self._outlooks = cache(outlooks)
        self._why = cache(
            lambda name, ahead: core.why_waiting(state, name, ahead, config, facts.boot)
        )
        self._pauses = pauses or Pauses()
        self._predictions = predictions
        self._serving = serving
        self._places = places(state)
        self._measured = measured_by_lease(state, readings)
        # By repr: the kinds of flags have no order of their own.
        self._flags = sorted(state.flags.items(), key=lambda entry: repr(entry[0]))
        self._parked_memory = state.parked_memory()
        ranged = Counter(
            uuid
            for name, uuid in state.claims
            if (lease := state.leases[name]).request.memory_most and lease.is_task
        )
        self._gpus = [
            _gpu(state, uuid, readings, config, ranged[uuid])
            for uuid in sorted(state.gpus, key=lambda uuid: state.gpus[uuid].gpu.order)
        ]
        in_order = sorted(state.leases.values(), key=lambda lease: lease.order)
        listing = self._leases = _Listing(in_order)
        classes = Counter(state.leases[name].request.priority_class for name in self._places)
        self._queue_says = of_waiting.line_says({one.value: classes[one] for one in PriorityClass})
        self._rows: dict[tuple[LeaseId, View], doc.Lease] = {}
        #: What all are told alike of a lease, by whether they know that its GPU-hours are spent,
        #: and what a server does.
        self._columns: dict[tuple[LeaseId, bool, bool], tuple[doc.Fact, ...]] = {}
        #: Of each lease what everybody is told, and what others are not, as JSON.
        self._encoded: dict[LeaseId, tuple[bytes, bytes]] = {}
        self._there: dict[GpuUuid, list[Lease]] = {uuid: [] for uuid in state.gpus}
        #: A viewer's environments, of those that have a lease.
        self.own: Callable[[Viewer], set[EnvironmentName]]
        self.own = cache(lambda viewer: viewer.own(listing.of))
        #: How many tasks of a name each person has on each GPU.
        self._held: defaultdict[tuple[EnvironmentName, GpuUuid], Counter[str]]
        self._held = defaultdict(Counter)
        #: The GPUs on which each environment has something.
        self._has: defaultdict[EnvironmentName, set[GpuUuid]] = defaultdict(set)
        self._job_leases: dict[tuple[EnvironmentName, str], list[Lease]] = {}
        for lease in in_order:
            if display_state(state, lease) == "ended":
                continue
            for part in lease.allocations:
                self._has[lease.environment].add(part.gpu)
                self._there.get(part.gpu, []).append(lease)
                if lease.phase is LeasePhase.HELD:
                    self._held[lease.environment, part.gpu][_task_name(lease)] += 1
            if (job := lease.task.job) is not None:
                self._job_leases.setdefault((lease.environment, job), []).append(lease)
        for environment, uuid in state.reservations:
            self._has[environment].add(uuid)
        #: A GPU by its place, as those see it who have nothing there: administrators, and others.
        self._strange: Callable[[int, bool], tuple[doc.Gpu, Encoded]]
        self._strange = cache(lambda place, admin: self._gpu(place, Viewer(_NOBODY, admin)))
        self._queue = _Listing(state.leases[name] for name in self._places)
        live = (x.environment for x in state.leases.values() if x.phase is not LeasePhase.ENDED)
        self._live = self._connected.union(live)

    def node(self, viewer: Viewer) -> doc.Node:
        """The facts about the node itself."""
        state, facts, config = self._state, self._facts, self._config
        node: doc.Node = {
            "name": facts.name,
            "version": facts.version,
            "simulated": facts.simulated,
            # The first that keeps everybody from a grant; what is only not measured comes last.
            "problem": state.problem or (state.rebuild is not None and REBUILDING) or facts.problem,
            "quotas_as_of": facts.quotas_as_of,
            # Whether a server or a task of the viewer's talks to this node now.
            "connected": bool(viewer.own(self._connected)),
            "ledger": facts.ledger if viewer.admin else None,
            "time": facts.now,
            "started": facts.started,
            "max_tasks_per_gpu": config.max_tasks_per_gpu,
            "heartbeat_timeout": config.heartbeat_timeout,
            "parked_memory": self._parked_memory,
            "parked_memory_limit": config.parked_memory,
            "notify_before": config.notify_before,
            "pin_limit": config.pin_limit,
            "keep_for": config.keep_for,
            "quantum": config.quantum,
            "idle_timeout": config.idle_timeout,
            "reserve": config.reserve.value,
        }
        if facts.preset is not None:
            node["preset"] = facts.preset
        if (walls := facts.walls) is not None:
            mine: doc.Walls = {**walls, "shared": [], "outside": [], "several": []}
            node["walls"] = walls if viewer.admin else mine
        return node

    def head(self, viewer: Viewer, page: int = 0) -> tuple[doc.StatusHead, list[Encoded]]:
        """A status without the rows of leases and of the queue, and its GPUs as JSON."""
        facts = self._facts
        _, leases = self.leases(viewer, page)
        _, queue = self.queue(viewer, page)
        has = set[str]().union(*(self._has[x] for x in {viewer.environment, *self.own(viewer)}))
        shown = [
            self._gpu(place, viewer) if row["uuid"] in has else self._strange(place, viewer.admin)
            for place, row in enumerate(self._gpus)
        ]
        gpus = [gpu for gpu, _encoded in shown]
        head: doc.StatusHead = {
            "node": self.node(viewer),
            "environment": viewer.environment,
            "admin": viewer.admin,
            "quota": self._quota(viewer.environment, gpus),
            "servers": self._servers(viewer, gpus),
            "gpus": gpus,
            "left_out": list(facts.left_out),
            "predictions": self._predictions(viewer.is_mine),
            "more": {"leases": leases, "queue": queue},
            "waits": self._waits,
            "promises": self._promises,
        }
        head["says"] = [*of_node.says(head), self._queue_says]
        head["jobs"] = self._jobs(viewer)
        return cast(doc.StatusHead, _lean(head, _HEAD_MAY_LACK)), [row for _gpu, row in shown]

    def _jobs(self, viewer: Viewer) -> list[doc.Job]:
        """The jobs of which the viewer may know."""
        jobs: list[doc.Job] = []
        for (environment, job), leases in self._job_leases.items():
            if (view := viewer.view(leases[0])) is not View.OTHER:
                rows = [self._seen(lease, view) for lease in leases]
                kind = leases[0].task.job_kind
                jobs.append(
                    {
                        "job": job,
                        "environment": environment,
                        "mine": view is View.OWN,
                        "kind": kind,
                        "leases": [lease.id for lease in leases],
                        "says": of_leases.job_says(job, kind, rows),
                    }
                )
        return jobs

    def leases(self, viewer: Viewer, page: int = 0) -> tuple[list[Lease], int]:
        """Leases in the order in which they were asked for: a page, and how many come after it."""
        return self._leases.page(self.own(viewer), viewer, page)

    def queue(self, viewer: Viewer, page: int = 0) -> tuple[list[Lease], int]:
        """Those who wait, in the order of service: a page, and how many come after it."""
        return self._queue.page(self.own(viewer), viewer, page)

    def lease_row(self, lease: Lease, view: View) -> Encoded:
        """The row of a lease for viewers with this ``view`` of it, as JSON of a `Lease`."""
        row = self._seen(lease, view)
        if lease.id not in self._encoded:
            self._encoded[lease.id] = _encoded_parts(self._seen(lease, View.ADMIN))
        public, hidden = self._encoded[lease.id]
        near = self._near(lease, view)
        key = lease.id, near.spent, row.get("serving") is not None
        if key not in self._columns:
            self._columns[key] = tuple(of_leases.columns(row, near.spent))
        says = of_leases.says(row, near, self._facts.now, self._columns[key])
        return joined(
            public,
            _HIDDEN_MEMBERS if view is View.OTHER else hidden,
            members({"mine": row["mine"], "says": says}),
        )

    def _seen(self, lease: Lease, view: View) -> doc.Lease:
        """What viewers with this ``view`` may know, before anything is said of it."""
        key = lease.id, view
        row = self._rows.get(key)
        if row is not None:
            return row
        if view is View.ADMIN:
            row = self._row(lease)
        elif view is View.OWN:
            row = {**self._seen(lease, View.ADMIN), "mine": True}
        else:
            row = cast(doc.Lease, {**self._seen(lease, View.ADMIN), **_HIDDEN})
        self._rows[key] = row
        return row

    def _near(self, lease: Lease, view: View) -> of_leases.Near:
        """What there is to know around a task."""
        recall, turns = self._state.memory_recall(lease.id), self._state.turns
        computing: list[Lease] = []
        behind = 0
        if lease.id in turns:
            there = {one.id: one for part in lease.allocations for one in self._there[part.gpu]}
            beside = {name: turns[name].phase for name in there if name in turns}
            beside.pop(lease.id, None)
            computing = [there[name] for name, at in beside.items() if at is TurnPhase.HOLDS]
            behind = sum(at is TurnPhase.WAITS for at in beside.values())
        return of_leases.Near(
            sharers=() if view is View.OTHER else self._sharers(lease),
            computing=tuple(
                of_gpus.whose(self._seen(one, self._view_beside(lease, one, view)))
                for one in computing
            ),
            behind=behind,
            quantum=self._config.quantum,
            spent=view is not View.OTHER
            and self._state.budget(lease.environment).level is BudgetLevel.SPENT,
            because="" if recall is None else recall.why.reason.because,
        )

    def _sharers(self, lease: Lease) -> tuple[str, ...]:
        """The same person's other tasks on its GPUs, by name."""
        own = _task_name(lease)
        held = [self._held[lease.environment, part.gpu] for part in lease.allocations]
        shares = {name for on in held for name, tasks in on.items() if name != own or tasks > 1}
        return tuple(sorted(shares))

    @staticmethod
    def _view_beside(lease: Lease, other: Lease, view: View) -> View:
        """What somebody with a ``view`` of ``lease`` may know of another lease on its GPU."""
        if view is View.OWN:
            return View.OWN if other.environment == lease.environment else View.OTHER
        return view

    def _row(self, lease: Lease) -> doc.Lease:
        state, offset, config = self._state, self._offset, self._config
        place, recall = self._places.get(lease.id), state.memory_recall(lease.id)
        return {
            "id": lease.id,
            "environment": lease.environment,
            "mine": False,
            "state": display_state(state, lease),
            "phase": lease.phase.value,
            "activity": lease.activity.value,
            "name": lease.task.name,
            "kind": lease.task.kind.value,
            "kernel_id": lease.task.kernel_id,
            "path": lease.task.path,
            "pid": lease.task.process.pid,
            "job": lease.task.job,
            "job_kind": lease.task.job_kind,
            "memory_most": lease.request.memory_most,
            "gpus": self._gpus_of(lease),
            "asked": {
                "gpus": lease.request.gpus,
                "memory": outlook_status.asked_memory(state, lease, self._largest, config),
            },
            "priority_class": lease.request.priority_class.value,
            "requested": lease.requested_at + offset,
            "granted": None if lease.granted_at is None else lease.granted_at + offset,
            "since": lease.changed_at + offset,
            "age": max(0.0, self._facts.boot - (lease.granted_at or lease.requested_at)),
            "position": None if place is None else place.position,
            "reason": lease.end_reason.value if lease.end_reason else None,
            "kept": None if recall is None else recall.said,
            "inherited": None if lease.inherited_at is None else lease.inherited_at + offset,
            "serving": self._serving(lease),
            "says": [],
            "live_limits": lease.live_limits,
            "reserve": sharing.reserve_of(state, lease),
            "over_limit": self._over_limit(lease),
            "stall": self._stall(lease),
            **_parking(lease, recall, offset, config),
            "may_be_taken_at": _may_be_taken(state, lease, offset, config),
            **sharing.of_lease(
                state,
                lease,
                self._facts.boot,
                offset,
                config,
                self._pauses.cells,
                self._pauses.away(lease.id),
            ),
            "pauses": self._pauses.document(lease.id, self._facts.boot),
            "progress": sharing.progress_of(state, lease),
            "compute": sharing.compute_of(state, lease),
            "promise": sharing.promise_of(state, lease, offset),
        }

    def queue_row(self, lease: Lease, viewer: Viewer) -> doc.Waiting:
        """The row of a waiting request.

        It is the same for all viewers with :attr:`View.OTHER` of it.
        """
        state, config = self._state, self._config
        view = viewer.view(lease)
        place, known = self._places[lease.id], view is not View.OTHER
        why = self._why(lease.id, place.position - 1) if known else None
        outlook = self._outlooks().get(lease.id) if known else None
        hints = self._facts.hints.get(lease.environment, ()) if known else ()
        row: doc.Waiting = {
            "position": place.position,
            "lease": lease.id if known else None,
            "mine": view is View.OWN,
            "environment": lease.environment if known else None,
            "priority_class": lease.request.priority_class.value,
            "gpus": lease.request.gpus,
            "memory": outlook_status.asked_memory(state, lease, self._largest, config),
            "waiting": max(0.0, self._facts.boot - lease.requested_at),
            "ahead": place.ahead,
            "reason": why.reason.value if why else None,
            "message": with_hints(why.message, hints) if why else None,
            "budget": budget_of(state, lease, config) if why else None,
            "outlook": outlook_status.outlook_document(state, outlook, viewer) if known else None,
            "hints": list(hints),
        }
        row["says"] = of_waiting.says(row, self._facts.now)
        return row

    # -- inside -------------------------------------------------------------------------

    def _quota(self, environment: EnvironmentName, gpus: list[doc.Gpu]) -> doc.HeldQuota:
        """An environment's quota, and what is said of it."""
        quota = quota_document(self._state, environment, self._config)
        most = self._config.max_tasks_per_gpu
        held = {part["uuid"] for part in quota["remaining"]["memory"]}
        free = (
            gpu["free"] >= min(quota["memory"] or gpu["memory"], whole_memory(gpu))
            for gpu in gpus
            if gpu["uuid"] not in held and (most is None or gpu["tasks"] < most)
        )
        # While somebody waits, what is free is theirs.
        now = 0 if self._places else sum(free)
        own = [
            entitled(self._state, (environment, GpuUuid(gpu["uuid"]))) if gpu["uuid"] in held else 0
            for gpu in gpus
        ]
        quota["says"] = of_quotas.says(quota, gpus, own, now)
        return quota

    def _servers(self, viewer: Viewer, gpus: list[doc.Gpu]) -> list[doc.ServerQuota]:
        """Quotas of the viewer's named servers, where each has its own, that run or hold something.

        ``mine`` are bytes reserved for it by GPU, in the order of ``gpus``.
        """
        if not viewer.all_servers:
            return []
        return [
            {
                "environment": name,
                **self._quota(name, gpus),
                "mine": [_reserved(self._state, name, GpuUuid(row["uuid"])) for row in self._gpus],
            }
            for name in sorted(viewer.own(self._live) - {viewer.environment})
        ]

    def _gpu(self, place: int, viewer: Viewer) -> tuple[doc.Gpu, Encoded]:
        """A GPU as ``viewer`` may see it, and the same as JSON."""
        row, own = self._gpus[place], self.own(viewer)
        uuid = GpuUuid(row["uuid"])
        there = self._there[uuid]
        gpu: doc.Gpu = {
            **row,
            "mine": _reserved(self._state, viewer.environment, uuid),
            "out_of_service": out_of_service(self._state, uuid, viewer, self._offset),
            "squatters": [
                {
                    "pid": process.pid if viewer.admin else None,
                    "memory": flag.memory,
                    "kind": kind.value,
                }
                for (gpu, process, kind), flag in self._flags
                if gpu == uuid
            ],
            "says": [],
        }
        view = View.ADMIN if viewer.admin else View.OTHER
        mine = [self._seen(lease, View.OWN) for lease in there if lease.environment in own]
        others = [self._seen(lease, view) for lease in there if lease.environment not in own]
        most = self._config.max_tasks_per_gpu
        gpu["says"] = of_gpus.says(gpu, mine + others, most, self._facts.now)
        return gpu, encoded(gpu)

    def _gpus_of(self, lease: Lease) -> list[doc.LeaseGpu]:
        """The GPUs of a lease that are still there, in the node's order."""
        gpus = self._state.gpus
        here = [part for part in lease.allocations if part.gpu in gpus]
        here.sort(key=lambda part: gpus[part.gpu].gpu.order)
        return [self._gpu_of(lease, part) for part in here]

    def _gpu_of(self, lease: Lease, part: Allocation) -> doc.LeaseGpu:
        state = self._state
        claim = state.claims.get((lease.id, part.gpu))
        memory, limit = part.memory, lifts.limit(state, lease, part)
        if lease.outlived:
            memory = limit = Bytes(_reserved(state, lease.environment, part.gpu))
        return {
            "uuid": part.gpu,
            "index": state.gpus[part.gpu].gpu.index,
            "instance": state.gpus[part.gpu].gpu.instance,
            "memory": memory,
            "limit": limit,
            "measured": self._measured.get((lease.id, part.gpu)),
            "there_since": claim.since + self._offset if claim else None,
            "peak": (lease.peaks.on(part.gpu) or None) if lease.request.follows else None,
            **sharing.of_claim(state, lease, part.gpu),
        }

    def _stall(self, lease: Lease) -> doc.Stall | None:
        """The next step against a stalled task; ``at`` is set while the time for it runs."""
        stall = lease.stall
        step = None if stall is None else stillness.following(lease, stall, self._config)
        if step is None or lease.suspended:
            return None
        at = None if step.at is None else step.at + self._offset
        return {"next": step.action.value, "after": step.after, "at": at}

    def _over_limit(self, lease: Lease) -> doc.OverLimit | None:
        """The last step against a task over its limit, and when the next one is due."""
        offset, config = self._offset, self._config
        for (gpu, _process, kind), flag in self._flags:
            if kind is not FlagKind.OVER_LIMIT or flag.lease != lease.id or flag.stage is None:
                continue
            coming = watchdog.following(flag.stage)
            if coming is OverLimitStage.LAST and config.audit_action is HolderAction.WAIT:
                coming = None
            held = self._state.reservations.get((lease.environment, gpu))
            return {
                "gpu": gpu,
                "used": flag.memory,
                "limit": held.memory if held else 0,
                "since": flag.since + offset,
                "stage": flag.stage.value,
                "next": coming.value if coming else None,
                "next_at": flag.since + watchdog.due(config, coming) + offset if coming else None,
            }
        return None


def _encoded_parts(row: doc.Lease) -> tuple[bytes, bytes]:
    """What everybody is told of a lease, and what others are not, without what is said of it."""
    gpus = [_lean(gpu, _GPU_MAY_LACK) for gpu in row["gpus"]]
    lean = {**_lean(row, _MAY_LACK), "gpus": gpus}
    del lean["mine"]
    hidden = {name: lean.pop(name) for name in _HIDDEN if name in lean}
    return members(lean), members(hidden)


def _task_name(lease: Lease) -> str:
    """The name by which a person knows a lease's task."""
    task = lease.task
    return of_leases.task_name(task.job, task.path, task.name, task.kind.value)


def _reserved(state: State, environment: EnvironmentName, gpu: GpuUuid) -> int:
    own = state.reservations.get((environment, gpu))
    return own.memory if own else 0


def quota_document(
    state: State, environment: EnvironmentName, config: PolicyConfig
) -> doc.HeldQuota:
    """An environment's quota in force, where it comes from, and what is held and left of it.

    ``budget`` is ``None`` where GPU-hours are not limited. ``idle_timeout`` is the quota's own,
    seconds, 0 for never; ``None`` leaves it to the node. ``burst_memory`` is the node's where
    the quota has none: up to 1 a share of a GPU, else bytes; 0: limits are not lifted.
    """
    quota, source = state.quotas.resolve(environment)
    own = [
        (books.gpu, wanted(quota, None, books.whole), reserved)
        for uuid, books in state.gpus.items()
        if (reserved := state.reservations.get((environment, uuid)))
    ]
    held: list[doc.RemainingMemory] = [
        {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "bytes": max(0, most + reserved.lifted - (reserved.full or reserved.memory)),
            "instance": gpu.instance,
        }
        for gpu, most, reserved in sorted(own, key=lambda one: one[0].order)
    ]
    document: doc.HeldQuota = {
        "gpus": quota.gpus,
        "memory": quota.memory,
        "weight": quota.weight,
        "source": source.value,
        "from_groups": list(state.quotas.giving(environment))
        if source is QuotaSource.GROUP
        else [],
        "used_gpus": len(held),
        "remaining": {
            "gpus": max(0, quota.gpus - len(held)),
            "memory": held,
        },
        "idle_timeout": quota.idle_timeout,
        "burst_memory": lifts.burst_memory(state, config, environment),
        "reserve": quota.reserve and quota.reserve.value,
        "budget": _budget(state, environment, quota, config),
    }
    if source is QuotaSource.POOL:
        pool = document["pool"] = _of_pool(state.quotas, environment)
        # Programs take this for what they may ask for. A person of whom the pool has said nothing
        # yet may ask for one.
        document["gpus"] = 1 if pool["whole"] is None else pool["whole"]
    return document


def _of_pool(book: QuotaBook, environment: EnvironmentName) -> doc.PoolQuota:
    """What the pool lends somebody here, and how much of it there is in the whole pool."""
    loan = book.loan(environment)
    return {
        "pool": book.pool or "",
        "whole": None if loan is None else loan.whole,
        "lent": 0 if loan is None else loan.quota.gpus,
        "borrowed": 0 if loan is None else loan.borrowed,
        "reclaimed": loan is not None and loan.reclaim,
        "valid": book.is_lent(environment),
        "why": None if loan is None else loan.why or None,
    }


def environment_quota(
    state: State, environment: EnvironmentName, config: PolicyConfig, *, seen: bool
) -> doc.ListedQuota:
    """A row of an administrator's list."""
    row = environment_row(state.quotas, environment)
    held = quota_document(state, environment, config)
    return cast("doc.ListedQuota", {**row, **held, "seen": seen})


def group_quota(state: State, group: str | None, config: PolicyConfig) -> doc.GroupQuota:
    """The quota of a group, or the default one (``group`` is ``None``), and who set it."""
    row = group_row(state.quotas, group)
    hours, per, burst = row["gpu_hours"], row["per"], row["burst_memory"]
    row["when"] = None if hours is None else budget_when(config.budget_window, per)
    row["burst_memory"] = config.burst_memory if burst is None else burst
    return cast("doc.GroupQuota", row)


def _budget(
    state: State, environment: EnvironmentName, quota: Quota, config: PolicyConfig
) -> doc.Budget | None:
    if quota.gpu_hours is None:
        return None
    budget = state.budget(environment)
    return {
        "hours": quota.gpu_hours,
        "spent": budget.spent,
        "window": config.budget_window,
        "per": quota.per,
        "when": budget_when(config.budget_window, quota.per),
        "level": budget.level.value,
    }


def budget_of(state: State, lease: Lease, config: PolicyConfig) -> doc.Budget | None:
    """The budget that a waiting request waits for, if it waits for one."""
    quota, _source = state.quotas.resolve(lease.environment)
    spent = state.budget(lease.environment).level is BudgetLevel.SPENT
    return _budget(state, lease.environment, quota, config) if spent else None


def granted_gpus(state: State, lease: Lease) -> list[doc.GrantedGpu]:
    """The GPUs of a lease as ``request`` answers them. Sizes in bytes.

    ``shared_with`` are the same environment's other tasks that share the memory there.
    """
    is_only_one = state.accounts[lease.environment].leases == 1
    others = [
        other
        for other in (() if is_only_one else state.leases.values())
        if other.environment == lease.environment
        and other.phase is LeasePhase.HELD
        and other.task != lease.task  # nor what it held until now
    ]
    return [
        {
            "uuid": part.gpu,
            "index": state.gpus[part.gpu].gpu.index,
            "instance": state.gpus[part.gpu].gpu.instance,
            "name": state.gpus[part.gpu].gpu.name,
            "memory": part.memory,
            "limit": lifts.limit(state, lease, part),
            "capacity": state.gpus[part.gpu].gpu.memory,
            "shared_with": [
                other.task.name
                for other in others
                if any(own.gpu == part.gpu for own in other.allocations)
            ],
        }
        for part in lease.allocations
    ]


def measured_by_lease(
    state: State, readings: Mapping[str, GpuReading]
) -> dict[tuple[LeaseId, GpuUuid], int | None]:
    """Bytes each lease uses on each GPU; ``None`` where the driver does not tell."""
    result: dict[tuple[LeaseId, GpuUuid], int | None] = {}
    for reading in readings.values():
        for process in reading.processes:
            lease = owner(state, process, reading.uuid)
            if lease is None:
                continue
            key = (lease, reading.uuid)
            before = result.get(key, 0)
            known = process.memory is not None and before is not None
            result[key] = (before or 0) + (process.memory or 0) if known else None
    return result


def _gpu(
    state: State,
    uuid: GpuUuid,
    readings: Mapping[str, GpuReading],
    config: PolicyConfig,
    ranged: int,
) -> doc.GpuOfAll:
    books = state.gpus[uuid]
    reading = readings.get(uuid)
    return {
        "uuid": uuid,
        "index": books.gpu.index,
        "instance": books.gpu.instance,
        "name": books.gpu.name,
        "memory": books.gpu.memory,
        "reserved": books.reserved,
        "unleased": books.unleased,
        "system": books.system,
        "free": max(0, books.free) if books.problem is None and uuid not in state.out else 0,
        "used": reading.used if reading else None,
        "lifted": books.lifted,
        "utilisation": reading.utilisation if reading else None,
        "tasks": books.tasks,
        "ranged": ranged,
        "health": "ok" if books.problem is None else "lost",
        "problem": books.problem,
        **sharing.of_gpu(state, uuid, config),
    }


def out_of_service(
    state: State, uuid: GpuUuid, viewer: Viewer, offset: float
) -> doc.OutOfService | None:
    """Why a GPU is out of service, and how many leases are still there. ``None`` if it serves.

    ``offset``: seconds from boot time to Unix time.
    """
    out, until = state.out.get(uuid), empty_by(state, [uuid])
    if out is None:
        return None
    return {
        "reason": out.reason,
        "by": out.by if viewer.admin else None,
        "leases": sum(gpu == uuid for _lease, gpu in state.claims),
        "until": None if until is None else until + offset,
    }


def _may_be_taken(state: State, lease: Lease, offset: float, config: PolicyConfig) -> float | None:
    """From when an idle lease's GPUs may be asked back (Unix seconds), if they ever may."""
    if lease.phase is not LeasePhase.HELD or lease.id not in state.idle:
        return None
    at = idle_until(state, lease, config)
    return None if at is None else at + offset


def _parking(
    lease: Lease, recall: Recall | None, offset: float, config: PolicyConfig
) -> doc.LeaseParking:
    """The part of a row about giving a lease's GPUs back, and about what it gave back."""
    parked = lease.parked
    warning: doc.Warning | None = None
    if recall is not None and recall.warned_at is not None:
        at = recall.warned_at + config.notify_before + offset
        warning = {"reason": recall.why.reason.warned, "at": at}
    ability: doc.Ability | None = None
    if lease.ability is not None:
        ability = {"rung": lease.ability[0].value, "why": lease.ability[1]}
    return {
        "rung": None if parked is None else parked.rung.value,
        "parked_memory": None if parked is None else parked.memory,
        "warning": warning,
        "pinned_until": None if lease.pins.until is None else lease.pins.until + offset,
        "ability": ability,
    }
