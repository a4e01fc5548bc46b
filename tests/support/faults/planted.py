"""A node manager with a bug: ``python -m support.faults.planted NAME ARGUMENT…``.

For the test of the storm: each of these must be found by the checker, from outside. Some are in
the client (``planted_clients.py``), some in how servers elect a host (:data:`IN_HOSTS`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jupyter_gpushare.daemon import clock
from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.node import app, manager
from jupyter_gpushare.node.host import processes, walls
from jupyter_gpushare.node.wire import transport
from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.books.queue import Queue
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.decide.draft import ANSWERS, Draft
from jupyter_gpushare.policy.measure import observe, watchdog
from jupyter_gpushare.policy.recall import lifts, stopping
from jupyter_gpushare.policy.turns import order
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import ClaimPhase, EndReason, LeasePhase
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why

from . import host
from .planted_clients import IN_CLIENTS


def promise_what_is_taken() -> None:
    """Reservations are not counted."""
    original = room.rooms_without

    def rooms(state, environment, without):
        for seen in original(state, environment, without):
            yield seen._replace(free=seen.memory)

    room.rooms_without = rooms


def lift_what_is_not_reserved() -> None:
    """A task is told a higher limit, and nothing is reserved for it."""
    lifts.growth = lambda state, event: iter(())


def give_two_the_turn() -> None:
    """Whether somebody has the turn on a GPU is not looked at when it is given."""

    def give(state, config, shared, at):
        line = order._line(state, config, shared, at, order._waiting(state))
        return order._given(line[0], order.gpus_of(shared, line[0]), at) if line else None

    order._give = give


def hand_over_when_asked() -> None:
    """Whoever is asked for the turn is taken to have given it back."""
    original = order.holders

    def holders(state, shared):
        found = original(state, shared)
        return {gpu: name for gpu, name in found.items() if not state.recall(name, Give.TURN)}

    order.holders = holders


def leave_the_turn_to_who_has_it() -> None:
    """Whoever comes to no gate, or is not heard of, keeps the turn."""
    original = order._take_away

    def take_away(*arguments):
        event = original(*arguments)
        return event if isinstance(event, ev.RecallMoved) else None

    order._take_away = take_away


def wait_for_the_dead() -> None:
    """Where a task died that took turns, nobody is given one: its answer is waited for."""
    give, gone = order._give, ANSWERS[cmd.ProcessGone]
    dead: set[str] = set()

    def process_gone(draft, command):
        for name in draft.state.by_handle.get(command.process, ()):
            if name in draft.state.turns:
                dead.update(part.gpu for part in draft.state.leases[name].allocations)
        return gone(draft, command)

    def given(*arguments):
        event = give(*arguments)
        return None if event is None or dead & set(event.gpus) else event

    ANSWERS[cmd.ProcessGone], order._give = process_gone, given


def measure_quanta_by_the_wall() -> None:
    """When a turn is asked back goes by wall time, which somebody may set."""
    original, wall = order.yields_at, clock.Clock().wall
    ahead = wall() - clock.Clock().boot()

    def yields_at(*arguments):
        return original(*arguments) + ahead - (wall() - clock.Clock().boot())

    order.yields_at = yields_at


def ask_everybody_for_caches() -> None:
    """Whether a task is over its limit is not looked at before it is asked for its cache."""

    def step(state, over, at, config):
        for lease in state.leases.values():
            held = lease.phase is LeasePhase.HELD
            if held and state.recall(lease.id, Give.CACHE) is None:
                told = RecallPhase.TOLD
                yield ev.RecallMoved(at, lease.id, Give.CACHE, told, Why.OVER_LIMIT)

    watchdog.step = step


def place_out_of_service() -> None:
    """Whether a GPU is in service is not looked at when something is placed."""
    original = room.rooms_without

    def rooms(state, environment, without):
        return original(dataclasses.replace(state, out=Map()), environment, without)

    room.rooms_without = rooms


def believe_who_releases() -> None:
    """A lease that ended needs no draining: its memory must be gone."""
    original = Draft.end

    def end(draft, lease, *arguments, **more):
        original(draft, lease, *arguments, **more)
        for name, gpu in tuple(draft.state.draining):
            if name == lease.id:
                draft.emit(ev.ClaimMoved(draft.at, name, gpu, ClaimPhase.GONE))

    Draft.end = end


def start_afresh() -> None:
    """What was granted before a restart is not read."""
    Ledger.load = lambda ledger: ([], [])


def trust_pids() -> None:
    """A process is its pid, whoever has it now."""
    original = processes._read_stat
    started: dict[int, int] = {}

    def read_stat(pid):
        stat = original(pid)
        return stat and dataclasses.replace(stat, start_time=started.setdefault(pid, 1))

    processes._read_stat = read_stat


def believe_the_wall_clock() -> None:
    """Deadlines by wall time, which somebody may set."""
    clock.Clock.boot = lambda self: time.time()


def let_anybody_release() -> None:
    """Whose lease it is is not looked at."""
    original = ANSWERS[cmd.Release]

    def release(draft, command):
        return original(draft, dataclasses.replace(command, admin=True))

    ANSWERS[cmd.Release] = release


def let_everybody_pass() -> None:
    """Nobody is ever urgent."""
    Queue.first_urgent = lambda queue: None


def serve_the_last_first() -> None:
    """The queue is a stack."""
    original = Queue.fair_order
    Queue.fair_order = lambda queue: iter([*original(queue)][::-1])


def write_another_size() -> None:
    """What is recorded is not what was granted."""
    original = manager.to_record

    def to_record(event, wall):
        record = original(event, wall)
        if record.kind != "LeaseGranted":
            return record
        gpus = [{**part, "memory": part["memory"] // 2} for part in record.data["gpus"]]
        return dataclasses.replace(record, data={**record.data, "gpus": gpus})

    manager.to_record = to_record


# -- the disk ------------------------------------------------------------------------------------


def ignore_the_disk() -> None:
    """What the ledger refused is granted all the same."""
    original = manager.Manager._append

    async def append(self, events, *more):
        await original(self, events, *more)

    manager.Manager._append = append


def answer_before_it_is_written() -> None:
    """Grants are answered at once, and written somewhat later."""
    original = manager.Manager._append

    async def append(self, events, *more):
        write = lambda: asyncio.ensure_future(original(self, events, *more))  # noqa: E731
        asyncio.get_running_loop().call_later(0.3, write)

    manager.Manager._append = append


def start_anew_at_a_torn_page() -> None:
    """Behind the end of the ledger's log lies something: it is taken for broken altogether."""
    original = Ledger.open.__func__

    def open_ledger(cls, path, **more):
        log = Path(f"{path}-wal")
        if log.exists() and (log.stat().st_size - 32) % (4096 + 24):
            log.unlink()
            Path(path).unlink()
        return original(cls, path, **more)

    Ledger.open = classmethod(open_ledger)


# -- signs of life, and connections --------------------------------------------------------------


def lose_patience() -> None:
    """A lease ends long before the time that was promised."""
    original = manager.Manager.__init__

    def init(self, *, config, **more):
        original(self, config=dataclasses.replace(config, heartbeat_timeout=1.2), **more)

    manager.Manager.__init__ = init


def _end_all(draft, leases) -> None:
    for lease in leases:
        if lease.phase is LeasePhase.HELD:
            draft.end(lease, EndReason.HEARTBEAT_LOST, "planted")


def take_own_sleep_for_silence() -> None:
    """Nobody was heard while the node manager itself was stopped."""
    original = ANSWERS[cmd.Heartbeat]
    heard: list[float] = []

    def heartbeat(draft, command):
        if heard and draft.at - heard.pop() > 0.8:
            _end_all(draft, list(draft.state.leases.values()))
        heard.append(draft.at)
        return original(draft, command)

    ANSWERS[cmd.Heartbeat] = heartbeat


def _end_of(handler, process) -> None:
    """End the leases of a process."""
    state = handler._manager.state
    for name in state.by_handle.get(process, ()):
        lease = state.leases[name]
        at = handler._clock.boot()
        handler._manager.ask(cmd.Release(at, name, lease.environment), owner=lease.environment)


def punish_nonsense() -> None:
    """Who sends a line that makes no sense loses its lease."""
    original = transport.Connection._refuse

    def refuse(self, call_id, reason, message, *more):
        original(self, call_id, reason, message, *more)
        if call_id is None:
            _end_of(self._home.handler, self.process)

    transport.Connection._refuse = refuse


def wait_for_readers() -> None:
    """Each message waits until its client has room for it."""
    original = transport.Connection._send

    def send(self, message):
        if self._wire is not None and not self._wire.is_closing():
            select.select([], [self._wire.get_extra_info("socket").fileno()], [])
        original(self, message)

    transport.Connection._send = send


def forget_request_ids() -> None:
    """A request that is sent again is another one."""
    State.asked = lambda state, process, request_id: None


# -- GPUs and what is on them --------------------------------------------------------------------


def end_with_the_gpu() -> None:
    """A lease ends when its GPU is lost, though it may be found again."""
    original = ANSWERS[cmd.Observe]

    def look(draft, command):
        lost = {reading.uuid for reading in command.readings if reading.problem is not None}
        leases = list(draft.state.leases.values())
        _end_all(draft, [x for x in leases if lost & {part.gpu for part in x.allocations}])
        return original(draft, command)

    ANSWERS[cmd.Observe] = look


def believe_who_parks() -> None:
    """A task says that it is parked, and its memory must be gone. (So it says, in its client.)

    Others are protected twice: what is still there counts as used without a lease.
    """
    observe._unleased = lambda *arguments: iter(())
    original = ANSWERS[cmd.Park]

    def park(draft, command):
        done = original(draft, command)
        for name, gpu in tuple(draft.state.draining):
            if name == command.lease:
                draft.emit(ev.ClaimMoved(draft.at, name, gpu, ClaimPhase.GONE))
        return done

    ANSWERS[cmd.Park] = park


def move_beside_the_quota() -> None:
    """Whether an environment has as many GPUs as it may is not looked at for who had GPUs."""
    suited, place = room.suited, room.place
    has_had = [False]

    def suited_for(state, lease, rooms):
        has_had[0] = lease.granted_at is not None
        return suited(state, lease, rooms)

    def place_any(rooms, quota, *more):
        some = dataclasses.replace(quota, gpus=99) if has_had[0] else quota
        return place(rooms, some, *more)

    room.suited, room.place = suited_for, place_any


def stop_anybody() -> None:
    """Whether a batch program said how it is stopped is not looked at."""
    original = stopping.due

    def due(state, config, lease):
        request = dataclasses.replace(lease.request, stops=True)
        return original(state, config, dataclasses.replace(lease, request=request))

    stopping.due = due


def host_with_a_ledger_of_its_own() -> None:
    """Each server's node manager has a ledger of its own, so that a new host knows nothing."""
    sys.argv = [
        f"{word}.{os.getpid()}" if word.startswith("--ledger=") else word for word in sys.argv
    ]


def widen_walls_late() -> None:
    """Walls follow when everybody was told."""
    narrow = walls.Walls.narrow

    async def late(self, state):
        await asyncio.sleep(0.1)
        await narrow(self, state)

    async def nothing(self, before, after):
        pass

    walls.Walls.widen, walls.Walls.narrow = nothing, late


#: All of the above, and what is planted in clients only.
PLANTED: dict[str, Callable[[], None]] = dict.fromkeys(IN_CLIENTS, lambda: None) | {
    name: plant
    for name, plant in [*vars().items()]
    if getattr(plant, "__module__", None) == __name__ and name[0] != "_"
}
IN_HOSTS = frozenset({"host_with_a_ledger_of_its_own"})


if __name__ == "__main__":
    name = sys.argv.pop(1)
    PLANTED[name]()
    if name in IN_HOSTS:
        host.main()
    else:
        app.main()
