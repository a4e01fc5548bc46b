"""Random histories of a small physical world: the rules and what must always hold."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import uses
from jupyter_gpushare.policy.books.room import comes_back
from jupyter_gpushare.policy.books.state import Claim, Lease, State
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Estimate,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Movable,
    PriorityClass,
    Quota,
    Request,
    Reserve,
    Rung,
)
from support.policy_walls import Walled, WallsFall
from support.policy_world import (
    BOOT,
    GIB,
    World,
    gpu,
    is_asked,
    limits_of,
    plain_config,
    process,
    replayed,
)

PEOPLE = ("alice", "bob", "carol")
CONFIG = plain_config(
    max_tasks_per_gpu=2,
    overtake_interactive=2,
    overtake_batch=4,
    backfill_depth=4,
    max_waiting_per_environment=5,
    measure_granularity=1,
    idle_timeout=10.0,
    spent_idle_timeout=5.0,
    pin_limit=30.0,
    residue_margin=GIB // 16,
    parked_memory=24 * GIB,
    parked_memory_per_environment=16 * GIB,
    burst_return=10.0,
)


class Histories(WallsFall, RuleBasedStateMachine):
    """People come, ask, use memory, squat, hang and die; the manager restarts."""

    @initialize(
        gpus=st.lists(st.integers(4, 24), min_size=1, max_size=4),
        burst=st.sampled_from([0.0, 0.9]),
        spare=st.sampled_from([0, 4 * GIB]),
    )
    def begin(self, gpus: list[int], burst: float, spare: int) -> None:
        config = dataclasses.replace(CONFIG, burst_memory=burst)
        self.world = World(config).start(
            [gpu(index, size) for index, size in enumerate(gpus)],
            Quota(1, 4 * GIB),
            alice=Quota(2, None, weight=2.0),
            bob=Quota(2, 8 * GIB, gpu_hours=2.0, idle_timeout=0.0),
        )
        tight = dataclasses.replace(config, driver_tolerance=0, over_limit_tolerance=spare)
        self.world.walled = Walled(tight, self.world.walled.stands)
        self.next_pid = 1
        self.alive: dict[int, str] = {}
        self.seen: State | None = None

    def _leases(self, phase: LeasePhase) -> list[LeaseId]:
        return sorted(n for n, x in self.world.state.leases.items() if x.phase is phase)

    @rule(
        who=st.sampled_from(PEOPLE),
        gpus=st.integers(1, 3),
        gib=st.none() | st.integers(1, 9),
        batch=st.booleans(),
        wait=st.booleans(),
    )
    def ask(self, who: str, gpus: int, gib: int | None, batch: bool, wait: bool) -> None:
        kind = PriorityClass.BATCH if batch else PriorityClass.INTERACTIVE
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        memory = None if gib is None else gib * GIB
        request = Request(gpus, memory, kind, request_id=f"r{pid}")
        first = self.world.request(who, pid, request, wait=wait, kernel_id=f"k{pid % 3}")
        self.alive[pid] = who
        if isinstance(first, core.Grant | core.Wait):
            again = self.world.request(who, pid, request, wait=wait, kernel_id=f"k{pid % 3}")
            assert isinstance(again, core.Grant | core.Wait)
            assert again.lease == first.lease, "a retry must not get a second lease"

    @rule(who=st.sampled_from(PEOPLE), gib=st.none() | st.integers(1, 9), ends=st.booleans())
    def keep_a_tree(self, who: str, gib: int | None, ends: bool) -> None:
        """A keeper asks, and two processes join what it got; perhaps it ends, and they go on."""
        pid, self.next_pid = self.next_pid, self.next_pid + 3
        memory = None if gib is None else gib * GIB
        asked = self.world.request(who, pid, Request(1, memory, keeper=True))
        self.alive[pid] = who
        for child in (pid + 1, pid + 2) if isinstance(asked, core.Grant | core.Wait) else ():
            self.alive[child] = who
            self.world.run(cmd.Attach(self.world.at, asked.lease, who, process(child)))
        if ends:
            self._ends(pid)

    @precondition(lambda self: self.world.state.leases)
    @rule(data=st.data(), orphans=st.booleans(), stops=st.booleans())
    def succeed(self, data: st.DataObject, orphans: bool, stops: bool) -> None:
        """Another process would keep a lease: it does where the one that asked has ended.

        Then it is the one to say whether it can save its state and stop.
        """
        leases = self.world.state.leases
        left = sorted(name for name, lease in leases.items() if lease.inherited_at is not None)
        name = data.draw(st.sampled_from(left if orphans and left else sorted(leases)))
        lease, pid, self.next_pid = leases[name], self.next_pid, self.next_pid + 1
        whose = (name, lease.environment, process(pid))
        told = self.world.run(cmd.Attach(self.world.at, *whose, keeper=True))
        after = self.world.state.leases[name]
        if lease.inherited_at is None or lease.phase is LeasePhase.ENDED:
            assert isinstance(told, core.Refuse)
            assert after == lease, "nobody takes it from one that lives"
        else:
            self.alive[pid] = lease.environment
            assert (after.phase, after.task.process.pid) == (lease.phase, pid)
            assert after.yields
            self.world.says(name, cmd.OfferStop, stops)
            assert self.world.state.leases[name].request.stops is stops

    @rule(who=st.sampled_from(PEOPLE), kernels=st.integers(1, 3))
    def ask_plainly(self, who: str, kernels: int) -> None:
        """What most people do: one GPU, as the quota has it, and wait."""
        for _ in range(kernels):
            pid, self.next_pid = self.next_pid, self.next_pid + 1
            self.alive[pid] = who
            self.world.request(who, pid)

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(seconds=st.sampled_from([4.0, 11.0]), data=st.data())
    def think(self, seconds: float, data: st.DataObject) -> None:
        """Cells end, people read, others ask; who is asked back answers, or not yet."""
        for name in self._leases(LeasePhase.HELD):
            self.world.says(name, cmd.SetActivity, Activity.IDLE)
        self.time_passes(seconds, "nobody")
        self.ask_plainly(data.draw(st.sampled_from(PEOPLE)), 1)
        if data.draw(st.booleans()):
            for name in self._leases(LeasePhase.HELD):
                if is_asked(self.world.state, name):
                    self.world.says(name, cmd.Park)

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(data=st.data(), gib=st.integers(1, 30))
    def use_memory(self, data: st.DataObject, gib: int) -> None:
        """A task allocates, perhaps more than it may; the device itself can run out."""
        lease = self.world.state.leases[data.draw(st.sampled_from(self._leases(LeasePhase.HELD)))]
        if lease.task.process not in lease.members:
            return
        part = data.draw(st.sampled_from(lease.allocations))
        books = self.world.state.gpus[part.gpu]
        used = sum(s for (_p, g), s in self.world.memory.items() if g == part.gpu)
        size = min(gib * GIB, books.gpu.memory - used)
        if size > 0:  # of a tree that is kept, its youngest process does
            user = max(lease.members) if lease.request.keeper else lease.task.process
            self.world.memory[(user.pid, part.gpu)] = size

    @precondition(lambda self: self.world.memory)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.03, 0.1, 0.9]))
    def compute(self, data: st.DataObject, share: float) -> None:
        """A thread computes, whatever the cells do; or keeps the GPU warm, or stops."""
        holder = data.draw(st.sampled_from(sorted(self.world.memory)))
        self.world.work[holder] = share
        self.world.observe()

    @precondition(lambda self: limits_of(self.world.state))
    @rule(how=st.sampled_from(["obeys", "lies", "cannot"]), every=st.booleans())
    def told_a_limit(self, how: str, every: bool) -> None:
        """Clients answer: they have the limit, they only say so, or their frameworks cannot."""
        world = self.world
        for (name, uuid), lift in sorted(limits_of(world.state).items()):
            lease = world.state.leases[name]
            if lift.agreed is not None or lease.phase is not LeasePhase.HELD:
                continue
            self._answers(lease, Allocation(uuid, lift.memory), how)
            if not every:
                break

    @precondition(lambda self: any(c.limit and not c.limit.agreed for c in self._claims()))
    @rule(how=st.sampled_from(["obeys", "lies", "cannot"]))
    def told_what_it_was_granted(self, how: str) -> None:
        """Others have ended, and clients answer that they keep to what they named."""
        world = self.world
        for (name, uuid), claim in sorted(world.state.claims.items()):
            lease = world.state.leases[name]
            part = next((part for part in lease.allocations if part.gpu == uuid), None)
            limit = claim.limit
            if limit is None or limit.agreed or lease.phase is not LeasePhase.HELD:
                continue
            if limit.memory == part.memory:
                self._answers(lease, part, how)

    def _answers(self, lease: Lease, part: Allocation, how: str) -> None:
        holder, cannot = (lease.task.process.pid, part.gpu), how == "cannot"
        if how == "obeys" and holder in self.world.memory:
            self.world.memory[holder] = min(self.world.memory[holder], part.memory)
        gpus = () if cannot else (part,)
        self.world.says(lease.id, cmd.ConfirmLimit, gpus, not cannot)

    def _claims(self) -> tuple[Claim, ...]:
        return tuple(self.world.state.claims.values())

    @rule(seconds=st.sampled_from([2.0, 11.0, 31.0]))
    def look_again(self, seconds: float) -> None:
        """Time passes with signs of life, and the GPUs are measured."""
        self.time_passes(seconds, "nobody")
        self.world.observe()

    @precondition(lambda self: limits_of(self.world.state) and self.world.state.queue.waiting)
    @rule(seconds=st.sampled_from([2.0, 5.0]))
    def keep_looking(self, seconds: float) -> None:
        """The GPUs are measured again and again while somebody waits, as they really are."""
        for _ in range(10):
            self.look_again(seconds)

    @precondition(lambda self: self._leases(LeasePhase.PARKED))
    @rule(data=st.data(), gib=st.integers(1, 8))
    def cheat(self, data: st.DataObject, gib: int) -> None:
        """A parked task uses a GPU all the same."""
        name = data.draw(st.sampled_from(self._leases(LeasePhase.PARKED)))
        uuid = data.draw(st.sampled_from(sorted(self.world.state.gpus)))
        self._takes(self.world.state.leases[name].task.process.pid, uuid, gib)

    def _takes(self, pid: int, uuid: GpuUuid, gib: int) -> bool:
        """A process has so much of a GPU, if the others there leave it."""
        others = sum(s for (p, g), s in self.world.memory.items() if g == uuid and p != pid)
        fits = others + gib * GIB <= self.world.state.gpus[uuid].gpu.memory
        if fits:
            self.world.memory[(pid, uuid)] = gib * GIB
        return fits

    @rule(data=st.data(), gib=st.integers(1, 8), system=st.booleans())
    def squat(self, data: st.DataObject, gib: int, system: bool) -> None:
        """A process uses a GPU without a lease: the host's own, or anybody's."""
        uuid = data.draw(st.sampled_from(sorted(self.world.state.gpus)))
        if self._takes(pid := self.next_pid, uuid, gib):
            self.next_pid += 1
            self.alive[pid] = "nobody"
            self.world.system.update({pid} if system else ())
            self.world.observe()

    @rule()
    def observe(self) -> None:
        self.world.observe()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._ends(data.draw(st.sampled_from(sorted(self.alive))))

    def _ends(self, pid: int) -> None:
        del self.alive[pid]
        before = self.world.state
        self.world.die(pid)
        for name in before.by_handle.get(process(pid), ()):
            lease = before.leases[name]
            goes_on = lease.phase is LeasePhase.HELD
            goes_on |= lease.phase is LeasePhase.PARKED and lease.request.keeper
            if goes_on and len(lease.members) > 1:
                after = self.world.state.leases[name]
                assert after.phase is lease.phase, "what others go on with has ended"

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(data=st.data(), activity=st.sampled_from(Activity))
    def act(self, data: st.DataObject, activity: Activity) -> None:
        name = data.draw(st.sampled_from(self._leases(LeasePhase.HELD)))
        self.world.says(name, cmd.SetActivity, activity)

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(data=st.data(), keep=st.booleans())
    def answer(self, data: st.DataObject, keep: bool) -> None:
        """A task parks, asked or not, perhaps with memory that nobody measured yet; or keeps."""
        name = data.draw(st.sampled_from(self._leases(LeasePhase.HELD)))
        self.world.says(name, *((cmd.Keep, "CUDA runs") if keep else (cmd.Park,)))

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(data=st.data(), can=st.booleans(), heirs=st.booleans())
    def offer_stop(self, data: st.DataObject, can: bool, heirs: bool) -> None:
        """A task can save its state and stop, or not any more; perhaps an heir of a lease."""
        held = self._leases(LeasePhase.HELD)
        left = [name for name in held if self.world.state.leases[name].inherited_at is not None]
        name = data.draw(st.sampled_from(left if heirs and left else held))
        if isinstance(self.world.says(name, cmd.OfferStop, can), core.Done):
            assert self.world.state.leases[name].request.stops is can

    @precondition(lambda self: self.world.state.idle)
    @rule(
        data=st.data(),
        rung=st.sampled_from(Rung),
        movable=st.sampled_from(Movable),
        left=st.integers(0, 6),
        seen=st.booleans(),
    )
    def climb(
        self, data: st.DataObject, rung: Rung, movable: Movable, left: int, seen: bool
    ) -> None:
        """An idle task parks by some rung; what it says of it and what it does may differ."""
        name = data.draw(st.sampled_from(sorted(self.world.state.idle)))
        lease = self.world.state.leases[name]
        pids = {one.pid for one in lease.members} if lease.request.keeper else set()
        pids.add(lease.task.process.pid)
        mine = [key for key in self.world.memory if key[0] in pids]
        moved = sum(self.world.memory[key] for key in mine)
        if isinstance(self.world.says(name, cmd.PlanParking, moved), core.Refuse):
            return
        for key in mine:
            self.world.memory[key] = min(self.world.memory[key], left * GIB)
            if not self.world.memory[key]:
                del self.world.memory[key]
        self.world.says(name, cmd.Park, rung, moved, movable, 1.0)
        if seen:
            self.world.observe()

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(data=st.data(), seconds=st.sampled_from([None, 0.0, 5.0, 1e9]), back=st.booleans())
    def pin_or_come_back(self, data: st.DataObject, seconds: float | None, back: bool) -> None:
        lease = self.world.state.leases[data.draw(st.sampled_from(self._leases(LeasePhase.HELD)))]
        if back:
            self.world.says(lease.id, cmd.Restored, 1.0)
        else:
            self.world.run(cmd.Pin(self.world.at, lease.id, lease.environment, seconds))

    @precondition(lambda self: self._leases(LeasePhase.PARKED))
    @rule(measured=st.booleans())
    def next_cells(self, measured: bool) -> None:
        """Everybody who is parked computes again."""
        if measured:
            self.world.observe()
        for name in self._leases(LeasePhase.PARKED):
            self.world.says(name, cmd.Resume)

    @precondition(lambda self: self._leases(LeasePhase.PARKED))
    @rule(data=st.data(), wait=st.booleans(), cancel=st.booleans(), whose=st.sampled_from(PEOPLE))
    def come_back(self, data: st.DataObject, wait: bool, cancel: bool, whose: str) -> None:
        name = data.draw(st.sampled_from(self._leases(LeasePhase.PARKED)))
        lease = self.world.state.leases[name]
        who = whose if data.draw(st.booleans()) else lease.environment
        caller = (name, who, lease.task.process)
        command = (
            cmd.Park(self.world.at, *caller) if cancel else cmd.Resume(self.world.at, *caller, wait)
        )
        decision = self.world.run(command)
        after = self.world.state.leases.get(name)
        if who != lease.environment:
            assert isinstance(decision, core.Refuse)
            assert after == lease, "nobody acts for another"
        elif cancel:
            assert after is not None
            assert name not in self.world.state.queue.waiting
        if isinstance(decision, core.Refuse):
            assert after.phase is LeasePhase.PARKED

    @precondition(lambda self: self.world.state.leases)
    @rule(data=st.data(), who=st.sampled_from(PEOPLE), admin=st.booleans())
    def release(self, data: st.DataObject, who: str, admin: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.state.leases)))
        lease = self.world.state.leases[name]
        decision = self.world.release(name, who, admin=admin)
        allowed = admin or lease.environment == who
        if not allowed or lease.phase is LeasePhase.ENDED:
            assert isinstance(decision, core.Refuse)
            assert self.world.state.leases.get(name) == lease, "nobody acts for another"
        else:
            assert isinstance(decision, core.Done)

    @rule(who=st.sampled_from(PEOPLE), kernel=st.integers(0, 2))
    def end_kernel(self, who: str, kernel: int) -> None:
        self.world.run(cmd.EndKernel(self.world.at, who, f"k{kernel}"))

    @precondition(lambda self: self.world.state.leases)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.state.leases)))
        lease = self.world.state.leases[name]
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.alive[pid] = lease.environment
        self.world.run(cmd.Attach(self.world.at, name, lease.environment, process(pid)))

    @rule(
        seconds=st.sampled_from([0.5, 6.0, 16.0, 70.0]),
        silent=st.sampled_from(["nobody", "everybody", "the odd ones"]),
        stopped=st.booleans(),
    )
    def time_passes(self, seconds: float, silent: str, stopped: bool = False) -> None:
        """A silent task sends no heartbeat. Slurm may have ``stopped`` its process."""
        self.world.at += seconds
        still = set[LeaseId]()
        for name, lease in sorted(self.world.state.leases.items()):
            quiet = silent == "everybody" or (silent != "nobody" and lease.order % 2)
            if not quiet and lease.task.process in lease.members:
                self.world.says(name, cmd.Heartbeat)
            elif stopped:
                still.add(name)
        self.world.run(cmd.Tick(self.world.at, self.world.at, frozenset(still)))

    @precondition(lambda self: self.world.state.queue.waiting)
    @rule(silent=st.sampled_from(["everybody", "the odd ones"]))
    def restart_while_some_are_stopped(self, silent: str) -> None:
        self.time_passes(70.0, silent, stopped=True)
        self.restart()

    @rule(
        data=st.data(),
        out=st.booleans(),
        new=st.booleans(),
        within=st.sampled_from([None, 0.0, 40.0, 90.0]),
    )
    def drain(self, data: st.DataObject, out: bool, new: bool, within: float | None) -> None:
        """An admin takes a GPU out of service, says another reason or time, or puts it back."""
        gpus = sorted(self.world.state.gpus) + sorted(self.world.state.out)
        uuid = data.draw(st.sampled_from(gpus))
        if out:
            reason = f"fan {self.next_pid if new else 1}"
            self.world.run(cmd.TakeOut(self.world.at, uuid, reason, "root", within))
            assert self.world.state.out[uuid].reason == reason
        else:
            self.world.run(cmd.PutBack(self.world.at, uuid, "root"))
            assert uuid not in self.world.state.out

    @rule(data=st.data(), works=st.booleans())
    def break_down(self, data: st.DataObject, works: bool) -> None:
        """A GPU stops working, or works again when all are measured."""
        uuid = data.draw(st.sampled_from(sorted(self.world.state.gpus)))
        if works:
            self.world.observe()
        else:
            self.world.run(cmd.Observe(self.world.at, (GpuReading(uuid, "Xid 79", None),)))

    @rule(who=st.sampled_from(PEOPLE), hours=st.sampled_from([0.0, 1.0, 1.7, 2.0, 3.0]))
    def window_rolls(self, who: str, hours: float) -> None:
        self.world.spends(who, hours)

    @rule(
        who=st.sampled_from(PEOPLE),
        gpus=st.integers(0, 3),
        gib=st.none() | st.integers(1, 9),
        hours=st.none() | st.sampled_from([0.0, 1.0, 2.0]),
        burst=st.sampled_from([None, None, 0.0, 0.5]),
    )
    def set_quota(
        self, who: str, gpus: int, gib: int | None, hours: float | None, burst: float | None
    ) -> None:
        memory = None if gib is None else gib * GIB
        quota = Quota(gpus, memory, gpu_hours=hours, burst_memory=burst)
        self.world.set_quota(who, quota)

    @rule(who=st.sampled_from(PEOPLE))
    def unset_quota(self, who: str) -> None:
        self.world.run(cmd.UnsetQuota(self.world.at, who, "root"))

    @rule()
    def restart(self) -> None:
        """Kill and start again: from the ledger's snapshot, the same leases and queue order."""
        before = self.world.state
        state = dataclasses.replace(replayed(before), quotas=before.quotas)
        # Weights are the configuration's: both are told it, as a node manager is when it starts.
        quotas = before.quotas
        told_quotas = ev.QuotasConfigured(
            self.world.at, quotas.default, tuple(quotas.groups.items()), tuple(quotas.users.items())
        )
        expected = core.evolve(before, told_quotas).queue
        order = [item.lease for item in expected.service_order()]
        self.world.state = seen = core.evolve(state, told_quotas)
        # That a process is stopped no ledger knows; the node manager looks when it starts.
        stopped = frozenset(n for n in before.queue.waiting if before.leases[n].suspended)
        for name in stopped:
            seen = core.evolve(seen, ev.HeartbeatLost(self.world.at, name, stopped=True))
        assert seen.queue.held_up == expected.held_up
        again = seen.queue.service_order()
        assert [item.lease for item in again] == order
        left = {item.lease: item.left for item in before.queue.waiting.values()}
        assert {item.lease: item.left for item in again} == left
        self.world.asked.clear()  # an ask that may have gone astray may be made again
        self.world.told_to_leave.clear()
        gpus = tuple(books.gpu for books in before.gpus.values())
        self.world.run(cmd.Start(self.world.at, BOOT, gpus, stopped=stopped))
        for name in stopped & set(self.world.state.leases):
            lease = self.world.state.leases[name]
            assert lease.phase is not LeasePhase.HELD, "it cannot use what it was granted"
            assert lease.suspended or name not in self.world.state.queue.waiting
        if self.falls:
            self.walls_fall(self.falls)
        self.world.measure_budgets()
        self.world.observe()

    @invariant()
    def uses_are_found_by_what_changed(self) -> None:
        """Whose use is another is touched, and of those it is found as of all."""
        before, state = self.seen or self.world.state, self.world.state
        touched, now = uses.touched(before, state), uses.memory(state)
        was = uses.memory(before)
        for name in was.keys() | now.keys():
            rested = [uses.rests(one, name) for one in (before, state)]
            if was.get(name) != now.get(name) or len(set(rested)) > 1:
                assert name in touched
        found = {name: size for name, size in now.items() if name in touched}
        assert uses.memory(state, touched) == found
        self.seen = state

    @invariant()
    def once_measured_the_books_match_the_world(self) -> None:
        measured = self.world.measured()
        self.no_leak(measured)
        self.books_match(measured)

    def no_leak(self, measured: State) -> None:
        """Promise 3: nothing is held by a task of which no process lives."""
        for lease in self.world.state.leases.values():
            if lease.task.process.pid not in self.alive:
                assert lease.phase is LeasePhase.ENDED
        for lease in measured.leases.values():
            assert any(member.pid in self.alive for member in lease.members)

    def books_match(self, state: State) -> None:
        """Promised + really used by anyone else is what the books say."""
        for uuid, books in state.gpus.items():
            used: dict[str, int] = {}
            strangers = 0
            for (pid, where), size in self.world.memory.items():
                if where != uuid:
                    continue
                owners = [n for n in state.by_handle.get(process(pid), ())]
                owners = [n for n in owners if (n, uuid) in state.claims]
                if owners:
                    who = state.leases[owners[0]].environment
                    used[who] = used.get(who, 0) + size
                else:
                    strangers += size
            # What is on its way back is there for everybody else already.
            for name, where in state.claims:
                lease = state.leases[name]
                if where == uuid and lease.is_resuming:
                    there = sum(
                        self.world.memory.get((member.pid, uuid), 0) for member in lease.members
                    )
                    missing = max(0, comes_back(lease) - there)
                    used[lease.environment] = used.get(lease.environment, 0) + missing
            excess = sum(
                max(0, size - state.reservations[(who, uuid)].memory) for who, size in used.items()
            )
            assert books.unleased == strangers + excess
            system = (self.world.memory.get((pid, uuid), 0) for pid in self.world.system)
            assert books.system == sum(system)
            blamed = {one.pid for gpu, one, _kind in state.flags if gpu == uuid}
            assert not blamed & self.world.system, "a screen was blamed"


class Following(Histories):
    """The same where reservations follow the measurement, and people ask for ranges of memory."""

    @initialize(
        gpus=st.lists(st.integers(4, 24), min_size=1, max_size=3),
        burst=st.sampled_from([0.0, 0.9]),
        spare=st.sampled_from([0, 4 * GIB]),
        reserve=st.sampled_from([Reserve.QUOTA, Reserve.ESTIMATE]),
    )
    def begin(self, gpus: list[int], burst: float, spare: int, reserve: Reserve) -> None:
        Histories.begin(self, gpus, burst, spare)
        config = dataclasses.replace(
            self.world.config, reserve=reserve, reserve_headroom_least=GIB // 2
        )
        self.world.config = config

    @rule(
        asks=st.lists(
            st.tuples(
                st.sampled_from(PEOPLE),
                st.none() | st.integers(1, 9),
                st.sampled_from([None, None, None, 2, 5]),
                st.sampled_from([None, None, *Reserve]),
                st.sampled_from([True, True, None, False]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def ask_for_known_code(
        self, asks: list[tuple[str, int | None, int | None, Reserve | None, bool | None]]
    ) -> None:
        """Code that was measured before, or not, by people who name their memory, or do not."""
        for who, gib, named, reserve, live in asks:
            pid, self.next_pid = self.next_pid, self.next_pid + 1
            self.alive[pid] = who
            estimate = None if gib is None else Estimate(gib * GIB, 3)
            memory = None if named is None else named * GIB
            request = Request(1, memory, reserve=reserve, live=live, estimate=estimate)
            self.world.request(who, pid, request)

    @rule(
        who=st.sampled_from(PEOPLE),
        gpus=st.integers(1, 2),
        least=st.integers(1, 6),
        more=st.integers(0, 20),
    )
    def ask_for_a_range(self, who: str, gpus: int, least: int, more: int) -> None:
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.alive[pid] = who
        most = (least + more) * GIB
        self.world.request(who, pid, Request(gpus, least * GIB, memory_most=most))

    @precondition(lambda self: self._leases(LeasePhase.HELD))
    @rule(sizes=st.lists(st.integers(1, 9), min_size=4, max_size=4), fixed=st.integers(0, 20))
    def run_cells(self, sizes: list[int], fixed: int) -> None:
        """Within their limits, as frameworks keep them; then the cells end and are measured."""
        held = [self.world.state.leases[name] for name in self._leases(LeasePhase.HELD)]
        held = [lease for lease in held if lease.task.process in lease.members]
        for number, lease in enumerate(held):
            self.world.says(lease.id, cmd.ConfirmLimit, (), number != fixed)
        for lease, gib in zip(held, sizes, strict=False):
            lease, mine = self.world.state.leases[lease.id], lease.task.process.pid
            for part in lease.allocations[:1]:
                limit = lifts.limit(self.world.state, lease, part)
                here = self.world.memory.items()
                used = sum(size for (pid, gpu), size in here if gpu == part.gpu and pid != mine)
                free = self.world.state.gpus[part.gpu].gpu.memory - used
                if min(gib * GIB, limit, free) > 0:
                    self.world.memory[(mine, part.gpu)] = min(gib * GIB, limit, free)
        self.look_again(2.0)
        for lease in held:
            if lease.id in self.world.state.leases:
                self.world.says(lease.id, cmd.SetActivity, Activity.IDLE)
        self.look_again(2.0)


class Crowd(RuleBasedStateMachine):
    """Two GPUs and many who want one or both: who waits how long."""

    @initialize(limit=st.integers(0, 3))
    def begin(self, limit: int) -> None:
        config = plain_config(
            max_tasks_per_gpu=1,
            overtake_interactive=limit,
            overtake_batch=2 * limit,
            max_waiting_per_environment=8,
        )
        self.world = World(config).start([gpu(0), gpu(1)], Quota(2, None, gpu_hours=10.0))
        self.next_pid = 1

    @rule(who=st.sampled_from("abcdef"), both=st.booleans(), batch=st.booleans())
    def ask(self, who: str, both: bool, batch: bool) -> None:
        kind = PriorityClass.BATCH if batch else PriorityClass.INTERACTIVE
        self.world.request(who, self.next_pid, Request(2 if both else 1, None, kind))
        self.next_pid += 1

    @rule(who=st.sampled_from("abcdef"), spent=st.booleans())
    def budget(self, who: str, spent: bool) -> None:
        self.world.spends(who, 10.0 if spent else 0.0)

    @rule(seconds=st.floats(0.1, 100), first=st.booleans())
    def finish(self, seconds: float, first: bool) -> None:
        held = [n for n, x in self.world.state.leases.items() if x.phase is LeasePhase.HELD]
        if held:
            name = min(held) if first else max(held)
            self.world.at += seconds
            self.world.release(name, self.world.state.leases[name].environment, seen=True)
