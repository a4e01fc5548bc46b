"""A small physical world for the policy: processes that live, hold GPU memory and die.

The world knows the truth; the policy only learns it through commands. So a
test can compare what the policy promised with what was really there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.books.heldup import lacks_gpus, lacks_loan, quota_of
from jupyter_gpushare.policy.books.lifts import entitled, unlifted
from jupyter_gpushare.policy.books.placement import GpuRoom, Granted, NoRoom, place
from jupyter_gpushare.policy.books.state import (
    ClaimKey,
    Lease,
    Limit,
    State,
)
from jupyter_gpushare.policy.measure.stillness import watched
from jupyter_gpushare.policy.recall import growing, lifts, offers, patience, plan
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    ClaimPhase,
    EnvironmentName,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Movable,
    PriorityClass,
    ProcessId,
    ProcessReading,
    Quota,
    RefusalReason,
    Request,
    Rung,
    Task,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.promises import ShareWhy
from jupyter_gpushare.policy.words.recalls import MEMORY, Give, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import ShareMode, TurnPhase
from support.examples import is_searching
from support.policy_walls import Walled

E = TypeVar("E", bound=ev.Event)

GIB = 1024**3
BOOT = "boot-1"


def gpu(index: int, gib: int = 24) -> Gpu:
    return Gpu(f"GPU-{index}", index, "Pretend GPU", gib * GIB, simulated=True)


def process(pid: int) -> ProcessId:
    return ProcessId(BOOT, pid, pid * 10)


def task(pid: int, kernel_id: str | None = None) -> Task:
    return Task(process(pid), f"task-{pid}", TaskKind.KERNEL, kernel_id)


def is_asked_back(event: ev.Event, phase: RecallPhase = RecallPhase.TOLD) -> bool:
    """Whether a task is asked for its memory, or its people are warned of it."""
    return isinstance(event, ev.RecallMoved) and event.give in MEMORY and event.phase is phase


def is_asked(state: State, name: str) -> bool:
    """Whether a task was asked for its memory and has not answered."""
    recall = state.memory_recall(name)
    return recall is not None and recall.phase is RecallPhase.TOLD


def kept(state: State, name: str) -> str | None:
    """What a task said that kept its memory."""
    recall = state.memory_recall(name)
    return recall and recall.said


def why_refused(decision: core.Decision) -> RefusalReason:
    assert isinstance(decision, core.Refuse), decision
    return decision.reason


def why_waits(decision: core.Decision) -> str:
    assert isinstance(decision, core.Wait), decision
    return decision.message


def limits_of(state: State) -> dict[ClaimKey, Limit]:
    """The limits of all that are lifted."""
    found = {key: state.lift(*key) for key in state.claims}
    return {key: limit for key, limit in found.items() if limit}


def durable(state: State) -> dict[str, Any]:
    """All that no restart of the node manager may forget, part by part."""
    leases = state.leases.items()
    held = {name for name, lease in leases if lease.phase is LeasePhase.HELD}
    waiting = state.queue.waiting.values()
    return {
        "tasks": {n: (x.environment, x.task, x.order, x.inherited_at) for n, x in leases},
        "places": {n: (x.phase, x.allocations, x.parked) for n, x in leases},
        "members": {n: (x.members, x.workers - {x.task.process}) for n, x in leases},
        "requests": {n: _rounded(x.request) for n, x in leases},
        "peaks": {
            n: [x.peaks.on(part.gpu) for part in x.allocations]  # of one GPU, it is taken for all
            for n, x in leases
            if n in held and x.request.follows and x.peaks.known_by
        },
        "reservations": {k: replace(x, short=0) for k, x in state.reservations.items()},
        "limits": {k: x.memory for k, x in limits_of(state).items() if k[0] in held},
        "returns": {
            k: x.began for k, x in limits_of(state).items() if k[0] in held and x.began is not None
        },
        "line": {item.lease: (item.priority_class, item.order) for item in waiting},
        "bounds": {
            item.lease: item.urgent_at if item.left is None else state.queue.grants + item.left
            for item in waiting
        },
        "grants": state.queue.grants,
        "shares": {uuid: (books.shares, books.problem) for uuid, books in state.gpus.items()},
        "turns": {n: x.gpus for n, x in state.turns.items() if x.phase is TurnPhase.HOLDS},
        "locks": {n: x.lock for n, x in state.turns.items() if x.phase is TurnPhase.HOLDS},
        "takers": state.takers,
        "given": state.given,
        "promises": {
            n: (x.promise, x.named, x.since, x.total, x.state, x.why)
            for n, x in state.promises.items()
        },
        "service": (state.out, state.drained),
        "rebuild": (state.rebuild, state.spared),
        "pace": state.pace,
        "pool": state.quotas.pool,
        "loans": {who: (one.loan, one.until) for who, one in state.quotas.lent.items()},
        "quotas": (state.quotas.overrides, state.quotas.groups_of),
    }


#: The ledger has no word of moved turns, of what was measured as a loan came, and of limits that
#: follow measurements; the next snapshot has.
NOT_RECORDED = {"turns", "locks", "loans", "limits", "returns", "peaks", "bounds"}


def _rounded(request: Request) -> Request:
    lasts = None if request.lasts is None else round(request.lasts, 3)
    return replace(request, lasts=lasts)


def replayed(state: State) -> State:
    """The state that a ledger's snapshot gives again, which knows all that it must."""
    again = State()
    for event in core.summarise(state):
        assert event.DURABLE, "a snapshot must survive the ledger"
        again = core.evolve(again, event)
    core.check(again)
    known, before = durable(again), durable(state)
    # Where what a dead task left is reserved beside a new one, a restart takes the new one's limit
    # for one that comes back: it is asked for it sooner, and nobody gets less.
    known["returns"] = {key: known["returns"].get(key) for key in before["returns"]}
    for what, part in before.items():
        assert known[what] == part, f"a restart forgets {what}"
    return again


def plain_config(**parts: Any) -> PolicyConfig:
    """The defaults, but nobody is asked for an idle GPU; where a story asks, without a warning."""
    return PolicyConfig(**{"idle_timeout": 0.0, "notify_before": 0.0, **parts})


@dataclass
class World:
    """Runs commands through the policy, checks the state after each, keeps the history."""

    config: PolicyConfig = field(default_factory=plain_config)
    state: State = field(default_factory=State)
    #: The last state that was looked at: the same one need not be looked at again.
    checked: State | None = None
    #: What the ledger's records give so far, without a snapshot; ``None`` where a test has put
    #: another state in the place of the last one.
    recorded: State | None = field(default_factory=State)
    #: How many there were, and the kinds of events. A restart is tried from the first states, after
    #: the first event of a kind, and later from some.
    states: int = 0
    kinds: set[type[ev.Event]] = field(default_factory=set)
    at: float = 100.0
    history: list[ev.Event] = field(default_factory=list)
    memory: dict[tuple[int, GpuUuid], int] = field(default_factory=dict)
    #: Share of the time in which a process's kernels run there, and when that was last measured.
    work: dict[tuple[int, GpuUuid], float] = field(default_factory=dict)
    worked: dict[int, float] = field(default_factory=dict)
    #: Processes of the host itself, which draw a screen, for instance.
    system: set[int] = field(default_factory=set)
    #: What is seen of stalled tasks' processes; others cannot be looked at.
    vitals: dict[int, Vitals] = field(default_factory=dict)
    entitled: dict[tuple[int, GpuUuid], int] = field(default_factory=dict)
    #: GPU-hours that each environment really held in the window, as the shell would measure.
    spent: dict[str, float] = field(default_factory=dict)
    #: Since when each lease is idle, and when it was last asked for its GPUs.
    idle_since: dict[LeaseId, float] = field(default_factory=dict)
    asked: dict[LeaseId, float] = field(default_factory=dict)
    #: When each program was last asked to stop because its GPU is to be empty.
    told_to_leave: dict[LeaseId, float] = field(default_factory=dict)
    #: How many more grants may pass each waiting request, counted here.
    may_pass: dict[LeaseId, int] = field(default_factory=dict)
    #: Since which measurement a request waits only because somebody's limit is lifted, and
    #: the longest time between two measurements from then on.
    blocked: dict[LeaseId, tuple[float, float]] = field(default_factory=dict)
    looked_at: float = 0.0
    serial: int = 0
    #: Which commands are decided twice, to see that it is deterministic: each costs a decision.
    chance: Random = field(default_factory=lambda: Random(0))
    twice: float = field(default_factory=lambda: 1.0 if is_searching() else 0.1)
    #: Around each environment; some of its steps are tried twice, as after a crash.
    walled: Walled = field(init=False)

    def __post_init__(self) -> None:
        self.walled = Walled(self.config, {})

    def start(self, gpus: Iterable[Gpu], default: Quota, **users: Quota) -> World:
        self.run(cmd.Start(self.at, BOOT, tuple(gpus)))
        named = tuple((name, quota) for name, quota in users.items())
        self.run(cmd.ConfigureQuotas(self.at, default, users=named))
        return self

    def run(self, command: cmd.Command) -> core.Decision:
        before = self.state
        if before is not self.checked and self.checked is not None:
            self.recorded = None
        result = core.step(before, command, self.config)
        after = before
        for event in result.events:
            if event.DURABLE and self.recorded is not None:
                self.recorded = core.evolve(self.recorded, event)
            self.before_event(after, event)
            if is_asked_back(event):
                self.idle_long_enough(after, event)
            if isinstance(event, ev.RecallMoved) and event.give is Give.STOP:
                self.leaves_in_time(after, event)
            if isinstance(event, ev.LeaseInherited):
                self.told_to_leave.pop(event.lease, None)
            if isinstance(event, ev.ClaimMoved) and event.phase is ClaimPhase.GONE:
                holder = (after.leases[event.lease].task.process.pid, event.gpu)
                if holder not in self.memory:
                    self.entitled.pop(holder, None)
            if isinstance(event, ev.ResumeQueued):
                self.may_pass[event.lease] = self.bound(after, event, event.priority_class)
            if isinstance(event, ev.ActivityChanged | ev.Rested):
                self.idle_since.pop(event.lease, None)
                if event.activity is Activity.IDLE:
                    self.idle_since[event.lease] = event.at
            if isinstance(event, ev.LeaseGranted | ev.LeaseEnded | ev.LeaseInherited):
                self.idle_since.pop(event.lease, None)
            if isinstance(event, ev.LeaseQueued):
                kind = event.request.priority_class
                self.may_pass[event.lease] = self.bound(after, event, kind)
            if isinstance(event, ev.LeaseGranted):
                self.fair_to_the_urgent(after, event)
                self.within_budget(after, event)
            earlier, after = after, core.evolve(after, event)
            if isinstance(event, ev.LeaseGranted):
                assert after.problem is None, "granting was stopped"
                self.within_capacity(earlier, after, event)
                self.covers_what_was_named(after, event)
                self.really_free(earlier, after, event)
            if isinstance(event, ev.ReservationResized):
                self.lifts_nobody_elses(earlier, after, event)
            if isinstance(event, ev.LimitMoved) and event.live is None:
                self.reserved_before_it_is_told(after, event)
            if isinstance(event, ev.ReservationFollowed):
                self.follows_fairly(earlier, after, event)
        if before.rebuild is None and self.config.place_by_share:
            self.within_compute(result)
        assert after == result.state, "events and state disagree"
        if isinstance(command, cmd.Tick):
            self.asks_all_that_must_leave(after)
        if self.chance.random() < self.twice:
            assert core.step(before, command, self.config) == result, "not deterministic"
        if result.state is not self.checked:  # most commands change nothing
            core.check(result.state)
            self.states += 1
            news = {type(event) for event in result.events} - self.kinds
            self.kinds |= news
            if news or self.states < 50 or self.chance.random() < 0.01:
                replayed(result.state)
                if self.recorded is not None:
                    self.reads_its_records(self.recorded, result.state)
            for name in result.state.queue.waiting:
                lease = result.state.leases[name]
                told = lacks_gpus(result.state, lease)
                assert told == self.lacks(result.state, lease), f"{name} lacks GPUs, or does not"
            self.walled = self.walled.moves(before, result.state, dies=self.chance.random() < 0.1)
        self.state = self.checked = result.state
        self.history.extend(result.events)
        return result.decision

    def caller(self, name: str) -> tuple[LeaseId, EnvironmentName, ProcessId]:
        """Whose task speaks for a lease, as its calls say it."""
        lease = self.state.leases[name]
        return lease.id, lease.environment, lease.task.process

    def says(
        self, name: str, kind: Callable[..., cmd.Command], *more: Any, **parts: Any
    ) -> core.Decision:
        """The lease's own task says this of it."""
        return self.run(kind(self.at, *self.caller(name), *more, **parts))

    def set_quota(self, who: EnvironmentName, quota: Quota) -> core.Decision:
        return self.run(cmd.SetQuota(self.at, who, quota, "root"))

    def of(self, kind: type[E]) -> list[E]:
        """All that happened of a kind."""
        return [event for event in self.history if isinstance(event, kind)]

    # -- short words for what stories do and see ------------------------------------------

    def phase(self, lease: str) -> str:
        found = self.state.leases.get(lease)
        return "forgotten" if found is None else found.phase.value

    def idle(self, lease: str) -> None:
        """The lease's cell has ended."""
        self.says(lease, cmd.SetActivity, Activity.IDLE)

    def park(self, lease: str) -> core.Decision:
        return self.says(lease, cmd.Park)

    def plan(self, lease: str, memory: int) -> core.Decision:
        return self.says(lease, cmd.PlanParking, memory)

    def gives(
        self, lease: str, rung: Rung, memory: int = 0, movable: Movable = Movable.SAME
    ) -> core.Decision:
        """The task gives its GPUs back by this rung."""
        return self.says(lease, cmd.Park, rung, memory, movable, 1.0)

    def resume(self, lease: str, *, wait: bool = True) -> core.Decision:
        return self.says(lease, cmd.Resume, wait)

    def restored(self, lease: str) -> core.Decision:
        return self.says(lease, cmd.Restored, 1.0)

    def pin(self, lease: str, seconds: float | None = None) -> core.Decision:
        return self.run(cmd.Pin(self.at, *self.caller(lease)[:2], seconds))

    def drain(
        self, index: int = 0, reason: str = "fan replaced", within: float | None = None
    ) -> core.Decision:
        return self.run(cmd.TakeOut(self.at, gpu(index).uuid, reason, "root", within))

    def put_back(self, index: int = 0) -> core.Decision:
        return self.run(cmd.PutBack(self.at, gpu(index).uuid, "root"))

    def look(self, seconds: float = 2.0) -> None:
        self.at += seconds
        self.observe()

    def answers(self, lease: str, *, live: bool = True) -> None:
        """The client says that its frameworks have the limit that it was told last."""
        self.at += 0.1
        uuid = gpu(0).uuid
        gpus = (Allocation(uuid, limits_of(self.state)[(lease, uuid)].memory),) if live else ()
        self.says(lease, cmd.ConfirmLimit, gpus, live)

    def asked_back(self, phase: RecallPhase = RecallPhase.TOLD) -> list[str]:
        """The leases that were asked for their GPUs so far, or their people warned, in order."""
        return [event.lease for event in self.history if is_asked_back(event, phase)]

    def stays(self) -> list[tuple[str, int]]:
        """The leases asked so far, with the bytes that may stay on their first GPU."""
        return [(one.lease, one.keep[0].memory) for one in self.history if is_asked_back(one)]

    def may_use(self, lease: str = "L1") -> float:
        """GiB that a task was last told that it may use."""
        found = self.state.leases[lease]
        return lifts.limit(self.state, found, found.allocations[0]) / GIB

    def books(self, who: str = "alice") -> tuple[float, float]:
        """GiB that an environment is entitled to, and that are reserved for it."""
        key = (who, gpu(0).uuid)
        return entitled(self.state, key) / GIB, self.state.reservations[key].memory / GIB

    def named(self, who: str = "alice") -> tuple[int, int]:
        """GiB that an environment has reserved on GPU 0, and that its tasks there named."""
        held = self.state.reservations[(who, gpu(0).uuid)]
        return held.memory // GIB, held.named // GIB

    def why(self, lease: str, ahead: int = 0, at: float | None = None) -> str:
        """What is said of why a request waits."""
        return core.why_waiting(self.state, lease, ahead, self.config, at).message

    def restarted(self) -> State:
        """The state that a node manager has which was killed and started again."""
        start = cmd.Start(self.at, BOOT, (gpu(0),))
        return core.step(replayed(self.state), start, self.config).state

    def reads_its_records(self, recorded: State, state: State) -> None:
        """A node manager may be killed before it has made a snapshot."""
        core.check(recorded)
        before = durable(state)
        for what, part in durable(recorded).items():
            if what not in NOT_RECORDED:
                assert part == before[what], f"the ledger's records forget {what}"

    def before_event(self, before: State, event: ev.Event) -> None:
        """For worlds that know more: what must hold when ``event`` happens."""

    def had_back_by_turns(self, before: State) -> bool:
        """Whether leases are presented on GPUs with turns: the arrangement follows the grant."""
        return before.rebuild is not None and self.config.share_mode is ShareMode.TIME

    def within_capacity(self, before: State, after: State, event: ev.LeaseGranted) -> None:
        """Promise 1: a grant that takes memory leaves reserved + unleased <= capacity."""
        for part in event.gpus:
            assert part.gpu not in before.out, "a GPU that is out of service was granted"
            grew = after.gpus[part.gpu].reserved > before.gpus[part.gpu].reserved
            if grew and not self.had_back_by_turns(before):
                assert after.gpus[part.gpu].free >= 0, "memory was promised twice"

    def covers_what_was_named(self, after: State, event: ev.LeaseGranted) -> None:
        """Who names its memory has it to itself: the reservation covers what all named."""
        asked = after.leases[event.lease].request.memory
        if asked is None or after.rebuild is not None:  # parked ones are presented so, too
            return
        for part in event.gpus:
            named = sum(
                other.request.memory or 0
                for other in after.leases.values()
                if other.environment == event.environment
                and other.is_task
                and (other.id, part.gpu) in after.claims
            )
            held = after.reservations[(event.environment, part.gpu)]
            assert named <= (held.full or held.memory), "tasks named more than is reserved"
            assert part.memory <= asked, "a task may use more than it named"
            quota = after.quotas.resolve(event.environment)[0].memory
            moved = event.parked is not None and event.parked.at_work  # as who was not moved
            assert quota is None or named <= quota or moved, "tasks named more than the quota"

    def within_compute(self, result: core.Step) -> None:
        """A request that is placed by its share gets a GPU with so much left beside busy tasks.

        One that goes there by turns has what is left, or one hundredth.
        """
        state = result.state
        sets = (event for event in result.events if isinstance(event, ev.ShareSet))
        left = {event.lease for event in sets if event.why is ShareWhy.LEFT}
        for event in result.events:
            lease = state.leases.get(event.lease) if isinstance(event, ev.LeaseGranted) else None
            if lease is None or lease.phase is not LeasePhase.HELD or lease.id not in state.given:
                continue
            for part in lease.allocations:
                others = sum(
                    share
                    for name, share in state.given.items()
                    if (name, part.gpu) in state.claims
                    and (other := state.leases[name]).environment != lease.environment
                    and other.phase is LeasePhase.HELD
                    and other.activity is Activity.BUSY
                )
                own, in_turns = state.given[lease.id], self.config.share_mode is ShareMode.TIME
                assert others + own <= 100 or (own == 1 and in_turns), "a share was given twice"
                assert in_turns or lease.id not in left, "it has less than it was placed for"

    def really_free(self, before: State, after: State, event: ev.LeaseGranted) -> None:
        """Promise 1 against the truth: what an earlier holder still has is given to nobody.

        Memory beyond what it was entitled to is the audit's to find first.
        """
        for part in event.gpus:
            left = 0
            for (pid, gpu), size in self.memory.items():
                owners = after.by_handle.get(process(pid), ())
                owned = any((owner, gpu) in after.claims for owner in owners)
                if gpu == part.gpu and not owned:
                    left += min(size, self.entitled.get((pid, gpu), 0))
            books = after.gpus[part.gpu]
            grew = books.reserved > before.gpus[part.gpu].reserved
            grew &= not self.had_back_by_turns(before)
            taken = books.reserved + books.shared + left
            capacity = after.gpus[part.gpu].gpu.memory
            assert not grew or taken <= capacity, "memory that is still in use was given away"
            pid = after.leases[event.lease].task.process.pid
            self.entitled[(pid, part.gpu)] = part.memory

    def lifts_nobody_elses(self, before: State, after: State, event: ev.ReservationResized) -> None:
        """A lifted limit is a reservation like any other, and only while nobody waits.

        What tasks named stays reserved when it shrinks, until they have ended: what outlives them
        keeps what it uses.
        """
        held = after.reservations[(event.environment, event.gpu)]
        has_tasks = any(
            gpu == event.gpu
            and after.leases[name].environment == event.environment
            and after.leases[name].phase is not LeasePhase.ENDED
            for name, gpu in after.claims
        )
        is_less = held.full is None and held.memory < held.named
        assert not (has_tasks and is_less), "less is left than was named"
        grew = after.gpus[event.gpu].reserved - before.gpus[event.gpu].reserved
        if grew <= 0:
            return
        assert event.gpu not in after.out, "a limit was lifted on a GPU that is out of service"
        gpu = after.gpus[event.gpu]
        headroom = self.config.burst_headroom * gpu.gpu.memory  # a share, in these worlds
        here = (after.leases[name] for name, uuid in after.claims if uuid == event.gpu)
        mine = [lease for lease in here if lease.environment == event.environment]
        if any(lease.request.memory_most for lease in mine):
            headroom = 0  # it asked for all that is there
        assert gpu.free >= headroom, f"the head-room was given away: {gpu.free} of {headroom}"
        assert not [i for i in after.queue.waiting.values() if i.left is None], "somebody waits"
        left = sum(
            min(size, self.entitled.get((pid, where), 0))
            for (pid, where), size in self.memory.items()
            if where == event.gpu and not self.owned(after, pid, where)
        )
        assert gpu.reserved + left <= gpu.gpu.memory, "memory that is still in use was given away"

    def follows_fairly(self, before: State, after: State, event: ev.ReservationFollowed) -> None:
        """An entitlement leaves room above what is used, and grows into free memory only.

        No limit is below what a task is entitled to, and nothing is taken from anybody.
        """
        key = (event.environment, event.gpu)
        held, gpu = before.reservations[key], after.gpus[event.gpu]
        if held.full is not None:
            assert after.gpus == before.gpus, "what it has without turns is promised to nobody yet"
            assert event.memory == event.reserved > held.full, "it only grows"
            return
        assert event.reserved >= held.memory, "it was taken before anybody was told"
        grew = event.reserved > held.memory
        assert not grew or gpu.free >= 0, "it grew into memory that is not free"
        assert not grew or event.gpu not in after.out, "it grew on a GPU out of service"
        quota = after.quotas.resolve(event.environment)[0].memory
        most = gpu.gpu.memory if quota is None else min(quota, gpu.gpu.memory)
        was = held.memory - held.lifted
        assert event.memory <= max(most, held.named, was), "it is more than the quota gives"
        mine = [
            lease
            for name, where in after.claims
            if where == event.gpu and (lease := after.leases[name]).environment == key[0]
        ]
        if event.memory < was:
            need = 0.0
            for lease in mine:
                used = self.memory.get((lease.task.process.pid, event.gpu), 0)
                room = max(self.config.reserve_headroom * used, self.config.reserve_headroom_least)
                need += lease.request.named or used + room
            assert event.memory >= min(most, need), "less than what is used and head-room"
            for lease in mine:
                assert lease.phase is LeasePhase.HELD, "what ends or is parked is not known"
                assert lease.request.named or lease.live_limits, "its limit cannot be lowered"

    @staticmethod
    def owned(state: State, pid: int, uuid: GpuUuid) -> bool:
        return any((n, uuid) in state.claims for n in state.by_handle.get(process(pid), ()))

    def reserved_before_it_is_told(self, after: State, event: ev.LimitMoved) -> None:
        lease = after.leases[event.lease]
        for part in event.gpus:
            held = after.reservations[(event.environment, part.gpu)]
            assert part.memory <= held.memory, "it may use more than is reserved"
            holder = (lease.task.process.pid, part.gpu)
            self.entitled[holder] = max(self.entitled.get(holder, 0), part.memory)

    def nobody_waits_for_a_lift(self) -> None:
        """Who waits only because others are lifted waits for a bounded time.

        What the node manager does about it it does when it measures, so the bound counts from
        one measurement to another, and two of them are needed on the way. While nothing is granted
        nobody would have more of it.
        """
        state, config = self.state, self.config
        urgent = state.queue.first_urgent()
        line = [i.lease for i in state.queue.service_order() if i.left is None]
        line = line if state.problem is None else []
        gap, self.looked_at = self.at - self.looked_at, self.at
        waits: dict[LeaseId, tuple[float, float]] = {}
        for name in line[:1] if urgent else line[: plan.HELPED]:
            lease = state.leases[name]
            if not isinstance(room.try_place(state, lease, config), Granted) and isinstance(
                room.try_place(unlifted(state), lease, config), Granted
            ):
                since, widest = self.blocked.get(name, (self.at, 0.0))
                waits[name] = (since, max(widest, gap) if name in self.blocked else 0.0)
        self.blocked = waits
        for name, (since, widest) in waits.items():
            bound = config.burst_return + patience.answer(Give.LIFT, config) + 2 * widest
            assert self.at - since <= bound, f"{name} waits for memory that others have on top"

    def idle_long_enough(self, before: State, event: ev.RecallMoved) -> None:
        """Only who does nothing is asked, and only after the time-out, each time."""
        lease = before.leases[event.lease]
        out = event.why is Why.OUT_OF_SERVICE
        if out:
            assert any(part.gpu in before.out for part in lease.allocations), "its GPUs serve"
            assert all(p.memory == 0 for p in event.keep if p.gpu in before.out), "all of it"
        is_kept = lease.request.keeper
        assert is_kept or len(lease.members) == 1, "others have joined it, and nobody keeps it"
        assert is_kept or lease.task.kind is TaskKind.KERNEL or event.why.at_work, "a program"
        if event.why in (Why.RECLAIMED, Why.RECLAIMED_AT_WORK):
            self.borrowed(before, lease)
            at_work = event.why is Why.RECLAIMED_AT_WORK
            assert at_work or lease.id in self.idle_since or lease.has_residue, "it computes"
            assert not at_work or before.is_gated(lease.id), "it has no gate"
            return
        if lease.has_residue:
            waits = any(i.left is None for i in before.queue.waiting.values())
            assert waits or out, "nobody waits"
            return  # it did nothing since it parked, and what it left is wanted
        if event.why in (Why.MOVED, Why.SERVED):
            assert self.config.moving is not None, "a busy task was asked for its GPUs"
            assert before.is_gated(lease.id), "it cannot be stopped within its cell"
            return
        since = self.idle_since.get(event.lease)
        assert since is not None, "a busy task was asked for its GPUs"
        if out:
            is_spent = self.is_spent(before, lease.environment)
            soon = min(offers.QUIET, self.config.spent_idle_timeout if is_spent else math.inf)
            assert event.at - since >= soon, "it was asked too soon"
            self.asked[event.lease] = event.at
            return
        if event.why is Why.OVER_LIMIT:
            assert any(flag.lease == event.lease for flag in before.flags.values())
            worked = self.last_worked(lease)
            assert worked is None or event.at - worked >= offers.QUIET, "its GPU was at work"
            last = self.asked.get(event.lease, -patience.AGAIN)
            # Nobody is asked at the instant at which it becomes idle: that was another idleness.
            assert event.at - last >= patience.AGAIN or last <= since, "asked too often"
            self.asked[event.lease] = event.at
            return
        quota = before.quotas.resolve(lease.environment)[0]
        seconds = quota.idle_timeout
        if seconds is None:
            seconds = self.config.idle_timeout
        if self.is_spent(before, lease.environment):
            seconds = min(seconds or math.inf, self.config.spent_idle_timeout)
        if event.why is Why.GROWS:
            self.somebody_grows(before, lease)
            seconds = min(seconds, self.config.min_idle or growing.AFTER)
        assert seconds, "it may be idle for ever"
        if lease.task.kind is TaskKind.SERVER:
            seconds = min(seconds, offers.RESTED)
        since = max(since, self.asked.get(event.lease, since))
        worked = self.last_worked(lease)
        assert worked is None or event.at - worked >= seconds, "its GPU was at work without a cell"
        assert event.at - since >= seconds, "it was asked too soon"
        self.asked[event.lease] = event.at
        if event.why is Why.CONTENDED:
            waits = any(i.left is None for i in before.queue.waiting.values())
            if self.config.moving is not None:  # for a task that would come
                waits |= any(turn.phase is TurnPhase.WAITS for turn in before.turns.values())
            assert waits, "nobody waits"

    @staticmethod
    def empty_by(state: State, lease: Lease) -> float:
        """When the first of its GPUs is to be empty, by itself or with its node."""
        gone = [state.out[part.gpu] for part in lease.allocations if part.gpu in state.out]
        if gone and state.drained is not None:
            gone.append(state.drained)
        return min((out.until for out in gone if out.until is not None), default=math.inf)

    def leaves_in_time(self, before: State, event: ev.RecallMoved) -> None:
        """A program whose GPU is to be empty is asked once there is just time enough to save."""
        if event.why is not Why.OUT_OF_SERVICE or event.phase is not RecallPhase.TOLD:
            return
        last = self.empty_by(before, before.leases[event.lease]) - self.config.stop_grace
        assert event.at >= last, "it is asked to stop too soon"
        told = self.told_to_leave.get(event.lease, -math.inf)
        assert told < last or event.at >= told + patience.AGAIN, "it has heard"
        self.told_to_leave[event.lease] = event.at

    def asks_all_that_must_leave(self, state: State) -> None:
        """No program that can save its state loses it because nobody asked."""
        for name, lease in state.leases.items() if state.out else ():
            last = self.empty_by(state, lease) - self.config.stop_grace
            can = lease.request.stops and lease.phase is LeasePhase.HELD and not lease.stalled
            can &= lease.request.priority_class is PriorityClass.BATCH and not lease.is_resuming
            memory, stop = state.memory_recall(name), state.recall(name, Give.STOP)
            if not can or (memory is not None and memory.moving) or self.at < last:
                continue
            told = self.told_to_leave.get(name, -math.inf) >= last
            assert told or (stop is not None and stop.is_out), f"{name} loses what it did not save"

    def last_worked(self, lease: Lease) -> float | None:
        """When a process of a lease was last measured at work."""
        pids = [one.pid for one in lease.members if one.pid in self.worked]
        return max((self.worked[pid] for pid in pids), default=None)

    @staticmethod
    def borrowed(before: State, lease: Lease) -> None:
        """The pool asked its environment for what it has beyond its loan."""
        loan = before.quotas.lent[lease.environment].loan
        held = [gpu for who, gpu in before.reservations if who == lease.environment]
        assert loan.reclaim, "nobody asks for it"
        assert len(held) > loan.quota.gpus, "it is within its loan"

    def somebody_grows(self, before: State, lease: Lease) -> None:
        """A task that computes beside it was measured to use nearly all that it may."""
        short = (key for key, held in before.reservations.items() if held.short)
        for environment, uuid in short:
            for name, where in before.claims:
                other = before.leases[name]
                used = self.memory.get((other.task.process.pid, uuid), 0)
                if (
                    where == uuid
                    and other.environment == environment
                    and other.activity is Activity.BUSY
                    and any(part.gpu == uuid for part in lease.allocations)
                    and (used or other.peaks.sizes)
                ):
                    return
        raise AssertionError("nobody needs more than is left")

    def within_budget(self, before: State, event: ev.LeaseGranted) -> None:
        """Nobody whose GPU-hours are spent is granted more."""
        hours = before.quotas.resolve(event.environment)[0].gpu_hours
        spent = self.spent.get(event.environment, 0.0)
        assert hours is None or spent < hours, f"{spent} of {hours} GPU-hours, and granted more"

    def lacks(self, before: State, lease: Lease) -> bool:
        """Whether it would not fit, if nobody else were there, for want of GPUs that are missing.

        By the allocation rule itself, over GPUs that hold nothing but its environment's own.
        """

        def emptied(rooms: tuple[GpuRoom, ...], works: bool) -> tuple[GpuRoom, ...]:
            return tuple(
                room._replace(
                    free=room.memory - (room.reservation or 0),
                    tasks=0,
                    named=0,
                    usable=works or room.usable,
                )
                for room in rooms
            )

        if not before.out and all(books.problem is None for books in before.gpus.values()):
            return False  # with all GPUs it has all there is
        quota = quota_of(before, lease)
        rooms = tuple(room.rooms_without(before, lease.environment, ()))
        # What is not named is as much as there is.
        asked = (quota, lease.request.gpus, lease.request.memory or 1, 1)
        placed = []
        for works in (False, True):
            seen = emptied(rooms, works)
            for some in room.suited(before, lease, seen):
                found = place(some, *asked)
                if isinstance(found, Granted):
                    break
            placed.append(found)
        return isinstance(placed[0], NoRoom) and isinstance(placed[1], Granted)

    def spends(self, who: str, hours: float) -> None:
        """So many GPU-hours of theirs are in the window."""
        self.spent[who] = hours
        self.measure_budgets()

    def measure_budgets(self) -> None:
        """The shell reads the ledger."""
        spent = tuple((who, held) for who, held in sorted(self.spent.items()))
        self.run(cmd.MeasureBudgets(self.at, spent))

    def is_spent(self, before: State, who: EnvironmentName) -> bool:
        hours = before.quotas.resolve(who)[0].gpu_hours
        return hours is not None and self.spent.get(who, 0.0) >= hours

    def bound(self, before: State, event: ev.OfLease, kind: PriorityClass) -> int:
        """How many grants may pass a new request: as many as an earlier one of its person's."""
        waiting = before.queue.waiting
        lane = (kind, event.environment)
        earlier = [
            self.may_pass[item.lease]
            for item in waiting.values()
            if (item.priority_class, item.environment) == lane and item.left is None
        ]
        return max([len(waiting) + self.config.overtakes(kind), *earlier])

    def fair_to_the_urgent(self, before: State, event: ev.LeaseGranted) -> None:
        """The stated bound: nobody passes a request that has been passed often enough.

        Grants that pass it while its environment has no GPU-hours left do not count, nor
        those while what it gave back itself is not free, or its process is stopped.
        """
        waiting = before.queue.waiting
        assert not before.leases[event.lease].suspended, "it could not use what it gets"
        mine = (waiting[event.lease].urgent_at, waiting[event.lease].order)
        for item in waiting.values():
            lease = before.leases[item.lease]
            own = [key for key in before.claims if key[0] == lease.id]
            if self.is_spent(before, item.environment) or own or self.lacks(before, lease):
                continue
            if lease.suspended:
                continue
            if lacks_loan(before, lease):  # tests/policy/test_loans.py says what that is
                continue
            if item.urgent_at <= before.queue.grants:
                assert mine <= (item.urgent_at, item.order), "an urgent request was passed"
            if self.may_pass[item.lease] <= 0:
                assert self.may_pass[event.lease] <= 0, "an urgent request was passed"
            self.may_pass[item.lease] -= 1

    def request(
        self,
        who: str,
        pid: int,
        request: Request | None = None,
        *,
        wait: bool = True,
        kernel_id: str | None = None,
        of_quota: bool = False,
    ) -> core.Decision:
        self.serial += 1
        return self.run(
            cmd.RequestLease(
                self.at,
                f"L{self.serial}",
                who,
                task(pid, kernel_id),
                request or Request(),
                wait,
                of_quota,
            )
        )

    def release(
        self, lease: str, who: str, *, admin: bool = False, seen: bool = False
    ) -> core.Decision:
        """``seen``: the GPUs are measured afterwards."""
        decision = self.run(cmd.Release(self.at, lease, who, admin))
        if seen:
            self.observe()
        return decision

    def die(self, pid: int, *, seen: bool = False) -> None:
        """The process dies: its memory goes first, then the policy is told."""
        self.memory = {key: size for key, size in self.memory.items() if key[0] != pid}
        self.run(cmd.ProcessGone(self.at, process(pid)))
        if seen:
            self.observe()

    def uses(self, pid: int, size: int, *, index: int = 0) -> None:
        """A process is measured with so many bytes on a GPU; 0: it is not there any more."""
        self.memory[(pid, gpu(index).uuid)] = size
        if not size:
            del self.memory[(pid, gpu(index).uuid)]
        self.observe()

    def readings(self) -> tuple[GpuReading, ...]:
        result = []
        for uuid, books in self.state.gpus.items():
            here = {pid: size for (pid, where), size in self.memory.items() if where == uuid}
            result.append(
                GpuReading(
                    uuid,
                    None,
                    sum(here.values()),
                    tuple(
                        ProcessReading(
                            (process(pid),),
                            size,
                            self.work.get((pid, uuid)),
                            pid in self.system,
                        )
                        for pid, size in here.items()
                    ),
                )
            )
            assert books.gpu.uuid == uuid
        return tuple(result)

    def observe(self) -> None:
        for (pid, uuid), share in self.work.items():
            leases = self.state.by_handle.get(process(pid), ())
            holds = any((lease, uuid) in self.state.claims for lease in leases)
            if holds and (pid, uuid) in self.memory and share >= self.config.busy_utilisation:
                self.worked[pid] = self.at
        tasks = {name: self.state.leases[name] for name in self.state.stalled}
        tasks |= {lease.id: lease for lease in watched(self.state)}
        vitals = tuple(
            (name, self.vitals.get(lease.task.process.pid)) for name, lease in tasks.items()
        )
        self.run(cmd.Observe(self.at, self.readings(), None, vitals))
        self.nobody_waits_for_a_lift()

    def measured(self) -> State:
        """The state as it would be if somebody measured now; the world itself goes on."""
        # Again: a grant or a lift that the first makes possible can turn excess into reservation.
        state = self.state
        for _ in range(64):  # a lift goes in steps
            before = state
            state = core.step(state, cmd.Observe(self.at, self.readings()), self.config).state
            if state is not before:
                core.check(state)
            if state.gpus == before.gpus:
                break
        return state

    def tick(self, seconds: float) -> None:
        self.at += seconds
        self.run(cmd.Tick(self.at, self.at))

    def gpus_of(self, lease: str) -> list[int]:
        held = self.state.leases[lease]
        return [self.state.gpus[part.gpu].gpu.index for part in held.allocations]
