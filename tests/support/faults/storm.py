"""A storm: clients come and go on a real node manager while everything that can fail does.

Everything random comes from one seed. What happens when cannot be the same twice (processes run
as the kernel lets them), but which faults come, on whom and how long, can.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_event_loop

from jupyter_gpushare.ledger.ledger import Ledger, LedgerInUse
from jupyter_gpushare.protocol.messages import Method
from support.cuda import Call, CudaWorld
from support.kernel import Kernel
from support.node import GIB, RemoteError, RunningNode, until

from . import hostile
from .checker import Rules, Verdict, check
from .devices import Devices
from .observed import Log, Saw, boot, read_logs
from .shim import Disk, Shim
from .stage import TESTS, Cast, Nodes, Player, stolen_wires
from .walled import WallHelper

PEOPLE = ("alice", "bob", "carol", "dave", "erin", "frank")
TENANTS = ("grace", "heidi", "ivan", "judy", "kim", "lena")  # one living process of each
#: So many processes of each: with three, most moves would be beyond the quota.
MOVERS = ("noah", "mia", "mia", "olga", "noah", "mia")
QUOTA = 2  # GPUs
GPUS = 3
MEMORY = 16 * GIB  # of each GPU
TIMEOUT = 6.0  # seconds without a sign of life
LEAK_BOUND = 3.0  # seconds; a second is promised, the machine may be busy
OVERTAKES = {"interactive": 3, "batch": 6}
CONFIG = f"""
c.NodeManagerApp.measure_interval = 0.2
c.NodeManagerApp.discover_interval = 1.0
c.Policy.max_tasks_per_gpu = 3
c.Policy.heartbeat_interval = 0.5
c.Policy.heartbeat_timeout = {TIMEOUT}
c.Policy.restart_grace = {TIMEOUT}
c.Policy.overtake_interactive = {OVERTAKES["interactive"]}
c.Policy.overtake_batch = {OVERTAKES["batch"]}
c.Policy.idle_timeout = 0.3
c.Policy.over_limit_trim = 0.3
c.Policy.notify_before = 0.0
c.Policy.parked_memory = {40 * GIB}
c.Quotas.default = {{"gpus": {QUOTA}, "memory": "10GiB"}}
c.Quotas.users = {{"dave": {{"gpus": {GPUS}}}, "probe": {{"gpus": {GPUS}}}}}
"""
#: In these rounds the node manager lifts limits on GPUs with room. A client that is told a lower
#: limit has 20 s to obey, because one that was stopped or cut off hears of it late.
LIFTED = """
c.Policy.burst_memory = 0.9
c.Policy.burst_headroom = 0.05
c.Policy.burst_return = 20.0
"""
#: Where tasks share their GPUs by turns.
TURN_BOUND = 8.0
QUANTUM = 0.3
#: Whoever waits for a turn has it by then: 3 tasks on a GPU, one of which never ends its step, and
#: the others have a quantum in each ten times as many; the rest is for a machine that is busy.
TURN_WAIT = 10 * 3 * QUANTUM + TURN_BOUND + 8.0
BY_TURNS = f"""
c.Policy.share_mode = "time"
c.Policy.quantum = {QUANTUM}
c.Policy.owed_most = 0.0
c.Policy.turn_bound = {TURN_BOUND}
c.Policy.turn_patience = 2.0
"""
#: Where tasks without a gate are locked by the driver.
LOCK = 1.0
BY_LOCK = f"c.Policy.turn_lock = {LOCK}\n"
#: Nobody is locked for longer; the rest is for a machine that is busy.
LOCK_BOUND = LOCK + 5.0
#: Where its helper dies or is held up, another one is there by then.
LOCK_INHERIT = 20.0
#: Seconds after the node manager's death in which somebody may still be about to be locked.
LOCK_CROSSES = 1.0
#: Where batch programs are stopped for people: long after they were told they have not answered.
STOP_AFTER, STOP_GRACE = 1.0, 4.0
STOPPED_BY = STOP_GRACE + 10.0
BY_STOPS = f"""
c.Policy.stop_after = {STOP_AFTER}
c.Policy.stop_grace = {STOP_GRACE}
"""
#: Where tasks are moved in mid-cell: to have a turn sooner, so turns are long. Copies take long
#: enough for something to happen meanwhile.
BY_MOVES = """
c.Policy.move_seconds = 0.0001
c.Policy.quantum = 2.0
"""
COPIES = 8 * GIB  # a second
#: How close the clock comes to the edge of a quantum.
EDGE = 0.05
HANG = 1.5  # seconds for which the driver, or the wall helper, hangs at most
AWAY = 4.0  # seconds for which the wall helper is away at most
SILENCE = 10.0  # seconds without an answer that nothing explains
MONTH = 30 * 86400.0
AT_MOST = 60.0  # seconds for which it goes on until enough has happened
BEHIND = 1.0  # seconds' worth of faults that are done one straight after the other
COME_BACK = 60.0  # seconds in which everybody who was parked has its memory again
WITH_MAPS, WITHOUT_MAPS = 13000, 12090  # drivers that can restore on another GPU, or not


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard it storms. ``seconds`` of faults, ``rate`` faults a second, so many clients.

    On a slow machine it goes on until ``enough`` has happened: it gets how often each fault was
    done, and how often each thing was seen.
    """

    seed: int
    seconds: float = 10.0
    rate: float = 8.0
    clients: int = 8
    kernels: int = 0
    hosts: int = 0
    tenants: int = 0
    locked: int = 0
    savers: int = 0
    movers: int = 0
    lifted: bool = False
    by_turns: bool = False
    walled: bool = False
    entry: Sequence[str] = ()
    tenant_plant: str | None = None
    ill_call: Call | None = None
    only: Sequence[str] = ()
    roles: Sequence[str] = ()
    enough: Callable[[Counter[str], Counter[Saw]], bool] = lambda faults, saw: True


@dataclass(slots=True)
class Report:
    """What came of a round."""

    seed: int
    faults: Counter[str]
    verdict: Verdict
    recovered: float | None  # seconds from the last death until all GPUs were granted
    directory: Path
    clients: int = 0
    broken: list[str] = field(default_factory=list)
    was_enough: bool = False  # of what the plan waits for


class Storm:
    """One round. ``run`` does it all; the directory keeps logs, ledger and configuration."""

    def __init__(self, directory: Path, plan: Plan, stub: Path, shim: Path) -> None:
        self.directory = directory
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.faults: Counter[str] = Counter()
        self.harness = Log(directory / "harness.log")
        self.world = CudaWorld(stub, directory / "nvml.state")
        self.gpus = [self.world.add_gpu(memory=MEMORY, reserved=0) for _ in range(GPUS)]
        (directory / "state").mkdir(exist_ok=True)
        self.shim = Shim(shim, directory / "shim", directory / "state")
        self.walls = WallHelper(directory) if plan.walled else None
        walls = f"c.NodeManagerApp.walls = {str(self.walls.place)!r}\n" if self.walls else ""
        node = RunningNode(
            directory,
            simulate="",
            config=_config(plan) + walls,
            arguments=[f"--token-file={_tokens(directory)}"],
            environ=self.shim.environ(self.world.environ()),
            ledger=directory / "state" / "ledger.sqlite",
        )
        self.nodes = Nodes(node, hosts=plan.hosts, entry=plan.entry)
        self.nodes.node.environ["PYTHONPATH"] = f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"
        self.cast = Cast(directory, self.harness, self.world.environ({}))
        self.devices = Devices(
            self.world,
            self.rng,
            self.harness,
            self._after,
            plan.ill_call,
            locks=plan.locked > 0,
        )
        self._has_maps = self.rng.random() < 0.5 or plan.movers > 0
        if plan.movers:
            self.world.set_rate(COPIES)
        self.world.set_version(WITH_MAPS if self._has_maps else WITHOUT_MAPS)
        self.leases = directory / "leases"
        self.leases.write_text("", encoding="ascii")
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._lost_gpus: set[str] = set()
        self._drained: dict[str, float | None] = {}  # since when it is asked back
        self._is_clock_back = False
        self._is_healing = False
        self._memory: set[tuple[str, str]] = set()
        self._granted: set[str] = set()  # all leases that somebody was seen to have
        self._notebooks: list[_Notebook] = []
        self._whom: Player | None = None  # the last victim
        also = (
            (plan.tenants, _OF_TENANTS),
            (plan.hosts, _OF_HOSTS),
            (plan.by_turns, _OF_TURNS),
            (plan.locked, _OF_LOCKS),
            (plan.movers, _OF_MOVES),
            (plan.savers, _OF_STOPS),
            (plan.walled, _OF_WALLS),
        )
        self._menu = dict(_ALWAYS)
        for is_wanted, faults in also:
            self._menu |= faults if is_wanted else {}
        if plan.only:
            self._menu = {name: self._menu[name] for name in plan.only}

    # -- the round -------------------------------------------------------------------------------

    def run(self) -> Report:
        """Storm, heal, kill everybody, look whether all GPUs are free, and check the history."""
        broken: list[str] = []
        recovered = None
        try:
            self.nodes.supervise()
            until(self.nodes.serves, "the node manager serves", 60)
            self._rage()
            self._heal()
            recovered = self._probe()
        except (AssertionError, OSError, RemoteError) as error:
            broken.append(f"{error}\n{self.nodes.node.story()[-3000:]}")
        finally:
            for notebook in self._notebooks:
                notebook.close()
            self.devices.close()
            self.cast.close()
            self.nodes.close()
            if self.walls is not None:
                self.walls.close()
            self.shim.close()
        self.harness.close()
        errors = (self.directory / "clients.err").read_text(encoding="utf-8", errors="replace")
        if errors.strip():
            broken.append(f"a client failed by an error of its own:\n{errors[-3000:]}")
        logs = [*self.cast.logs, self.harness.path]
        seen = read_logs(logs + ([self.walls.log.path] if self.walls else []))
        for line in seen:
            if line.saw is Saw.FAULT and line.who != "harness":
                self.faults[line.data["name"]] += 1
        verdict = check(seen, self.rules, self._read_ledger())
        return Report(
            self.plan.seed,
            self.faults,
            verdict,
            recovered,
            self.directory,
            len(self.cast.logs),
            broken,
            self.plan.enough(self.faults, self.harness.noted + self.cast.saw),
        )

    @property
    def rules(self) -> Rules:
        return Rules(
            capacity=dict.fromkeys(self.gpus, MEMORY),
            heartbeat_timeout=TIMEOUT,
            leak_bound=LEAK_BOUND,
            overtakes=OVERTAKES,
            strangers=hostile.REQUESTS,
            reading=HANG + 1.0,
            silence=SILENCE,
            turn_bound=TURN_BOUND,
            turn_wait=TURN_WAIT,
            by_turns=(GIB, 4 * GIB) if self.plan.by_turns else None,
            quotas=dict.fromkeys((*PEOPLE, *TENANTS, *MOVERS), QUOTA) | {"dave": GPUS},
            stop_after=STOP_AFTER,
            stop_grace=STOP_GRACE,
            stopped_by=STOPPED_BY,
            lock_bound=LOCK_BOUND,
            lock_inherit=LOCK_INHERIT,
        )

    def _rage(self) -> None:
        for _ in range(self.plan.clients):
            self._bear()
        self._bear("hostile")
        self._open_notebooks()
        end = boot() + self.plan.seconds
        next_fault = boot()
        while (now := boot()) < end or (
            now < end + AT_MOST
            and not self.plan.enough(self.faults, self.harness.noted + self.cast.saw)
        ):
            self._keep_going()
            pause = 0.02
            if now >= next_fault:
                names = list(self._menu)
                if now >= end:
                    # On a slow machine the others keep what is still missing from happening.
                    names = [name for name in names if not self.faults[name]] or names
                weights = [self._menu[name][0] for name in names]
                (name,) = self.rng.choices(names, weights)
                self._whom = None
                if all(step(self) for step in self._menu[name][1:]):
                    self._count(name)
                    next_fault += self.rng.expovariate(self.plan.rate)
                    # What a slow machine is behind comes later, but not all at once.
                    next_fault = max(next_fault, now - BEHIND)
                    pause = max(0.0, min(pause, next_fault - boot()))
                # Else there is nobody to whom it could happen: another one takes its place, soon.
            time.sleep(pause)  # the storm's own pace, and no wait for anything

    def _keep_going(self) -> None:
        """What must happen meanwhile: ends of faults, new clients for old, a node manager."""
        while self._later and self._later[0][0] <= boot():
            heapq.heappop(self._later)[2]()
        self.nodes.supervise()
        self.cast.bury()
        held = [lease for player in self._read() for lease in player.leases]
        self.devices.look(self._with_memory)
        self._granted.update(held)
        scratch = self.leases.with_suffix(".new")
        scratch.write_text(" ".join(held), encoding="ascii")
        scratch.replace(self.leases)  # who reads it finds all or nothing
        living = Counter(player.spec["role"] for player in self.cast.players.values())
        if not living["hostile"]:
            self._bear("hostile")
        self._open_notebooks()
        plain = sum(living[role] for role in _ROLES)
        for _ in range(self.plan.clients - plain):
            self._bear()
        plan = self.plan
        whole = (("tenant", plan.tenants), ("locked", plan.locked), ("mover", plan.movers))
        for role, wanted in whole:
            for _ in range(wanted - living[role]):
                self._bear(role)
        slots = {player.spec.get("slot") for player in self.cast.players.values()}
        for slot in range(self.plan.savers):
            if slot not in slots:
                self._bear_with_memory("saver", slot=slot)

    @property
    def _with_memory(self) -> list[Player]:
        """Whoever the driver's books tell of."""
        return [p for p in self._living() if p.spec["role"] in _OWN_MEMORY]

    def _open_notebooks(self) -> None:
        """As many real kernels as planned; another one for one that was killed."""
        for notebook in self._notebooks:
            notebook.join_in()
        running = sum(not notebook.is_over for notebook in self._notebooks)
        for _ in range(self.plan.kernels - running):
            self._notebooks.append(_Notebook(self, len(self._notebooks)))

    def _heal(self) -> None:
        """All is well again; who is stopped goes on. The clients live, and come to rest."""
        self._is_healing = True
        while self._later:
            heapq.heappop(self._later)[2]()
        self.shim.set_disk(Disk.WELL)
        self.shim.set_wall(0.0)
        end = boot() + 60.0
        while not self.nodes.serves():
            assert boot() < end, "not within 60 s: the node manager is well again"
            self.nodes.supervise()
            time.sleep(0.05)
        while self._drained:
            assert boot() < end, "not within 60 s: all GPUs are in service again"
            self._put_back()
        calm = boot() + 1.0
        while boot() < calm:
            self._keep_going()
            time.sleep(0.02)  # between two looks at processes that have no event for it
        # An order whose sender had given up may have been carried out after it was taken back.
        for gpu in self.gpus:
            until(lambda gpu=gpu: self._admin(Method.GPU_RESUME, gpu=gpu), f"{gpu} is in service")
        if self.plan.tenants or self.plan.movers:
            self._call_tenants()
        if self.plan.by_turns:
            self._await_turns()
        if self.plan.locked:
            self._free_everybody()

    def _free_everybody(self) -> None:
        """The node manager dies, and stays away: whoever was locked computes on."""
        self.nodes.wanted = False
        self.nodes.signal(signal.SIGKILL)
        began = boot() + LOCK_CROSSES
        launching = [player for player in self._read() if player.launches]
        self._wait_while(
            began + LOCK_INHERIT, launching, lambda one: one.launches and one.launched < began
        )
        for player in launching:
            if player.pid in self.cast.players and player.launches:
                self.harness.note(Saw.FREED, began, client=player.name)
        self.nodes.wanted = True
        until(self._serves_again, "the node manager serves again", 60)

    def _serves_again(self) -> bool:
        self.nodes.supervise()
        return self.nodes.serves()

    def _await_turns(self) -> None:
        """Everybody who waits for a turn has one; if not, the checker says for how long."""
        waiting = {player.pid: player.passed for player in self._read() if player.waits}
        # The promise counts from the last fault on, so it is over by then.
        self._wait_while(
            boot() + TURN_WAIT + 1.0,
            [self.cast.players[pid] for pid in waiting],
            lambda player: player.passed == waiting[player.pid],
        )

    def _wait_while(
        self, end: float, players: Sequence[Player], is_so: Callable[[Player], bool]
    ) -> None:
        """Wait until it is so of none of these who live, or until ``end``."""
        while boot() < end and any(p.pid in self.cast.players and is_so(p) for p in players):
            self._supervise()
            time.sleep(0.02)  # as above

    def _living(self) -> list[Player]:
        return list(self.cast.players.values())

    def _read(self) -> list[Player]:
        """All who live, with what they have written until now."""
        for player in self.cast.players.values():
            player.read_on()
        return self._living()

    def _call_tenants(self) -> None:
        """All others leave; everybody whose memory may be elsewhere gets it back."""
        for player in self.cast.players.values():
            if player.spec["role"] not in ("tenant", "mover", "sleeper"):
                self.cast.kill(player)
        for notebook in self._notebooks:
            notebook.end()
        # Those who look whether all is as it was.
        roles = ("tenant", "mover")
        called = [p for p in self._living() if p.spec["role"] in roles and p.has_memory]
        # A line from before may be read only after it: what counts is when a line was written.
        began = boot()
        self._wait_while(began + COME_BACK, called, lambda player: player.settled < began)
        for player in called:
            if player.pid in self.cast.players:
                self.harness.note(Saw.CALLED, began, client=player.name)

    def _supervise(self) -> None:
        """Only what goes on while nobody is born."""
        self.nodes.supervise()
        self._read()
        self.devices.look(self._with_memory)
        self.cast.bury()

    def _probe(self) -> float:
        """Kill everybody; how long until one client can have all GPUs, whole."""
        for notebook in self._notebooks:
            notebook.end()
        # Who has the pid of a dead client lives on: it must not be taken for that one.
        others = [p for p in self._living() if p.spec["role"] != "sleeper"]
        for player in others:
            self.cast.kill(player)
        for player in others:
            until(lambda player=player: not player.alive, f"{player.name} is dead")
        dead = boot()
        self.cast.bury()
        lease = None
        with self.nodes.client("probe") as probe:
            call = probe.ask(gpus=GPUS, memory=MEMORY, request_id="probe")
            # No answer, or the answer that the wait was too long, is no grant.
            with contextlib.suppress(AssertionError, RemoteError):
                lease = probe.wait(call, within=LEAK_BOUND + TIMEOUT)["lease"]
            now = self.harness.note(Saw.PROBED, dead, granted=lease is not None)
            if lease is not None:
                probe.call(Method.RELEASE, lease=lease)
        self.nodes.wanted = False
        return now - dead

    def _read_ledger(self) -> list[Any]:
        """All records, by the product's own reader."""
        path = self.nodes.node.ledger
        end = time.monotonic() + 20.0
        while True:
            try:
                ledger = Ledger.open(path, history=1e9, wall=time.time())
                break
            except LedgerInUse:  # a host's node manager dies just after its host
                assert time.monotonic() < end, "not within 20 s: the node manager is dead"
                time.sleep(0.05)
        try:
            return [*reversed(ledger.history(None, 10_000_000))]
        finally:
            ledger.close()

    # -- clients ---------------------------------------------------------------------------------

    def _bear(self, role: str | None = None, **more: Any) -> Player | None:
        roles = list(self.plan.roles or _ROLES)
        # Some roles play only where they are named.
        often = [_ROLES[name]["often"] or bool(self.plan.roles) for name in roles]
        role = role or self.rng.choices(roles, often)[0]
        if role in _OWN_MEMORY:
            return self._bear_with_memory(role)
        environment = self.rng.choice(_WHO.get(role, PEOPLE[:3]))
        spec = {
            "role": role,
            "seed": self.rng.randrange(2**32),
            "socket": str(self.nodes.node.socket),
            "environment": environment,
            "token": environment,
            "leases": str(self.leases),
            **_ROLES.get(role, {}),
            **more,
        }
        return self.cast.bear(spec)

    def _bear_with_memory(self, role: str, **more: Any) -> Player | None:
        own = (*_OWN_MEMORY, "saver")
        living = self.cast.players.values()
        taken = {p.spec["environment"] for p in living if p.spec["role"] in own}
        free = [name for name in TENANTS if name not in taken]
        if role == "mover":
            living_of = Counter(p.spec["environment"] for p in self._with_memory)
            left = Counter(MOVERS) - living_of
            free = [name for name in MOVERS if name in left][:1]
        environment = self.rng.choice(free)
        plant = self.plan.tenant_plant
        driver = self.rng.random() < 0.5 if plant is None else plant != "forget_what_was_moved"
        spec = {
            "role": role,
            "seed": self.rng.randrange(2**32),
            "environment": environment,
            "environ": {
                "JUPYTER_GPUSHARE_SOCKET": str(self.nodes.node.socket),
                "JUPYTER_GPUSHARE_TOKEN": environment,
                "JUPYTER_GPUSHARE_WAIT_TIMEOUT": "5",
                "JUPYTER_GPUSHARE_ANSWER_TIMEOUT": "3",
                "XDG_RUNTIME_DIR": str(self.devices.runtime),
            },
            # The double does not follow blocks to another GPU: there only the driver moves them.
            "movable": role == "tenant" and not driver and not self._has_maps,
            "memory": self.rng.choice((9, 10)) * GIB,
            "deadline": self.rng.choice((0.7, 1.5, 5.0) if plant is None else (0.7,)),
            "idle": [0.6, 3.0],
            "cells": self.rng.randrange(3, 12),
            "plant": plant,
        }
        if role == "locked":
            # Those who keep Python's lock cannot even give a sign of life while they are locked.
            keeps_lock = self.rng.random() < 0.5
            spec |= {"memory": 4 * GIB, "hold": [5.0, 20.0], "keeps_lock": keeps_lock}
        elif role == "mover":
            # Two of a person have room beside each other on a GPU.
            spec |= {"memory": 4 * GIB, "idle": [1.0, 4.0]}
            spec["deadline"] = self.rng.choice((1.5, 5.0))
        elif role == "saver":
            spec |= {
                "class": "batch",
                "hold": [10.0, 30.0],
                "file": str(self.directory / f"saved-{more['slot']}"),
                "says_first": self.rng.random() < 0.5,
                "gates": self.rng.random() < 0.85,
                "save": [0.05, 0.8],
                "fails": 0.1,
                **more,
            }
        return self.cast.bear(spec)

    def _some(self, *, holds: bool = False, stopped: bool = False) -> Player | None:
        found = [
            player
            for player in self.cast.players.values()
            if player.stopped == stopped
            and player.spec["role"] != "sleeper"
            and (player.leases or not holds)
        ]
        self._whom = self.rng.choice(found) if found else None
        return self._whom

    # -- faults ----------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        if self._whom is not None and self._whom.spec["role"] == "notebook":
            name = name.replace("client", "kernel")
        self.faults[name] += 1
        self.harness.note(Saw.FAULT, name=name)

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._later, (boot() + seconds, self._number, do))

    def _send_walls_away(self) -> bool:
        walls = self.walls
        if walls is None or not walls.leave():
            return False
        self._after(self.rng.uniform(0.1, AWAY), walls.come_back)
        return True

    def _hang_walls(self) -> bool:
        walls = self.walls
        if walls is None or not walls.hang():
            return False
        self._after(self.rng.uniform(0.1, HANG), walls.go_on)
        return True

    def _kill_client(self) -> bool:
        player = self._some(holds=self.rng.random() < 0.7)
        if player is not None:
            self.cast.kill(player)
        return player is not None

    def _stop_client(self) -> bool:
        player = self._some(holds=self.rng.random() < 0.7)
        if player is None:
            return False
        self.cast.stop(player)
        long = self.rng.random() < 0.2
        seconds = self.rng.uniform(1.0, 1.3) * TIMEOUT if long else self.rng.uniform(0.05, 2.0)
        self._after(seconds, lambda: self.cast.go_on(player))
        return True

    def _kill_one_of(self, players: list[Player]) -> bool:
        self._whom = self.rng.choice(players) if players else None
        if self._whom is not None:
            self.cast.kill(self._whom)
        return self._whom is not None

    def _never_end_a_step(self) -> bool:
        """One that has its turn computes, and lives, and never comes to a gate again."""
        players = self._read()
        found = [p for p in players if p.turn_since is not None and not p.stopped]
        if not found or any(player.hangs for player in players):
            return False
        player = self.rng.choice(found)
        player.hangs = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(player.pidfd, signal.SIGUSR1)
        return True

    def _jump_at_the_edge(self) -> bool:
        """The wall clock goes far back, or forward again, as somebody's quantum ends."""
        edges = [
            player.turn_since + QUANTUM for player in self._read() if player.turn_since is not None
        ]
        now = boot()
        if not any(abs(now - edge) < EDGE for edge in edges):
            return False
        self._is_clock_back = not self._is_clock_back
        reach = self.rng.choice((60.0, 3600.0, MONTH))
        self.shim.set_wall(-reach if self._is_clock_back else 0.0)
        return True

    def _kill_node(self) -> bool:
        return self.nodes.signal(signal.SIGKILL) is not None

    def _kill_helper(self) -> bool:
        return self.devices.kill_helper()

    def _locks(self) -> bool:
        return bool(self.devices.locked())

    def _moves(self) -> bool:
        return bool(self.devices.moving())

    def _lose_gpu(self) -> bool:
        return self._lose(self.gpus)

    def _stop_node(self) -> bool:
        pid = self.nodes.signal(signal.SIGSTOP)
        if pid is None:
            return False
        pidfd = os.pidfd_open(pid)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

        long = self.rng.random() < 0.1
        self._after(self.rng.uniform(0.05, 1.2) * (TIMEOUT if long else 1.0), go_on)
        return True

    def _cut_wire(self, *, mid_line: bool = False) -> bool:
        line = b'{"jsonrpc":"2.0","id":99999,"method":"release","params":{"lease":"x"}}'
        before = line[: self.rng.randrange(1, len(line))] if mid_line else b""
        player = self._some()
        if player is None:
            return False
        with stolen_wires(player) as wires:
            for wire in wires:
                with contextlib.suppress(OSError):
                    if before:
                        wire.send(before, 0x40)  # MSG_DONTWAIT
                    if not before or self.rng.random() < 0.7:
                        wire.shutdown(2)
            return bool(wires)

    def _disk(self, disk: Disk) -> bool:
        if self.shim.disk is not Disk.WELL:
            return False
        heal = self._make_ill(disk)
        self._after(self.rng.uniform(0.1, 1.5), heal)
        return True

    def _make_ill(self, disk: Disk) -> Callable[[], None]:
        """The disk is ill until the result is called, whenever the harness comes to that."""
        since = boot()
        self.shim.set_disk(disk)

        def heal() -> None:
            self.shim.set_disk(Disk.WELL)
            self.harness.note(Saw.FAULT, since, name="disk", until=boot() + 0.5)

        return heal

    def _kill_after_grant(self, disk: Disk) -> bool:
        """Kill the node manager as soon as somebody has a new lease, which it must not forget.

        With an ill disk nobody should get one: then it is killed after some time.
        """
        if self.shim.disk is not Disk.WELL:
            return False
        longer = 0.0 if disk is Disk.WELL else 0.3
        heal = self._make_ill(disk) if disk is not Disk.WELL else None
        # A grant from before is no new one.
        self._granted.update(name for player in self._read() for name in player.leases)
        before, end = set(self._granted), boot() + 2.5

        def look() -> None:
            if self._granted == before and boot() < end:
                return self._after(0.005, look)
            return self._after(longer, kill)

        def kill() -> None:
            self.nodes.signal(signal.SIGKILL)
            if heal is not None:
                heal()

        look()
        return True

    def _tear(self) -> bool:
        if self.shim.disk is not Disk.WELL or not self.nodes.pids:
            return False
        self.shim.set_disk(Disk.TORN, self.rng.randrange(1, 6))
        self._after(0.5, lambda: self.shim.set_disk(Disk.WELL))
        return True

    def _tear_page(self) -> bool:
        """The node manager dies, and behind the log's end lies half a page that was not synced."""
        log = self.nodes.node.ledger.with_name("ledger.sqlite-wal")
        if self.nodes.hosts or self.nodes.signal(signal.SIGKILL) is None:
            return False
        self.nodes.node.process.wait(60)
        with contextlib.suppress(FileNotFoundError), log.open("ab") as file:
            file.write(self.rng.randbytes(self.rng.randrange(1, 4096)))
        return True

    def _jump(self) -> bool:
        reach = self.rng.choice((2.0, 3600.0, MONTH))
        self.shim.set_wall(self.rng.uniform(-reach, reach))
        return True

    def _lose(self, gpus: Sequence[str]) -> bool:
        """One of these."""
        gpu = self.rng.choice(gpus) if gpus else None
        if gpu is None or gpu in self._lost_gpus or len(self._lost_gpus) > 1:
            return False
        self._lost_gpus.add(gpu)
        self.harness.note(Saw.GPU_LOST, gpu=gpu)
        self.world.lose(gpu)

        def find() -> None:
            self._lost_gpus.discard(gpu)
            self.world.restore(gpu)
            self.harness.note(Saw.GPU_FOUND, gpu=gpu)

        self._after(self.rng.uniform(0.2, 2.0), find)
        return True

    def _drain(self) -> bool:
        """An administrator takes a GPU out of service, and puts it back later."""
        gpu = self.rng.choice(self.gpus)
        if self._drained:
            return False
        since = boot()
        self._drained[gpu] = None  # it may be done though no answer comes
        is_sure = self._admin(Method.GPU_DRAIN, gpu=gpu, reason="the storm")
        self.harness.note(Saw.DRAINED, since, gpu=gpu, sure=is_sure)
        self._after(self.rng.uniform(0.5, 3.0), self._put_back)
        return True

    def _put_back(self) -> None:
        """As often as it takes: the node manager may be away."""
        for gpu in tuple(self._drained):
            since = self._drained[gpu]
            if since is None:  # an order without an answer may be carried out, too
                since = self._drained[gpu] = boot()
            if self._admin(Method.GPU_RESUME, gpu=gpu):
                del self._drained[gpu]
                self.harness.note(Saw.BACK, since, gpu=gpu)
        if self._drained and not self._is_healing:
            self._after(0.3, self._put_back)

    def _admin(self, method: Method, **params: str) -> bool:
        try:
            # Soon: a node manager that is stopped goes on only when this returns.
            with self.nodes.client("root", within=1.0) as admin:
                admin.wait(admin.send(method, **params), within=1.0)
        except (OSError, AssertionError, RemoteError):
            return False
        return True

    def _hang_driver(self) -> bool:
        self.world.set_slow(60_000)
        self._after(self.rng.uniform(0.2, HANG), lambda: self.world.set_slow(0))
        return True

    def _use_memory(self, least: float, most: float) -> bool:
        """A task has memory on its GPU for some time, whatever becomes of its lease meanwhile.

        ``least`` and ``most`` are parts of what it may use.
        """
        player = self._some(holds=True)
        if player is None or player.spec["role"] in ("notebook", *_OWN_MEMORY):
            return False
        lease = self.rng.choice(list(player.leases))
        gpu, memory = self.rng.choice(player.leases[lease])
        if (gpu, player.name) in self._memory or gpu in self._lost_gpus:
            return False
        size = int(memory * self.rng.uniform(least, most))
        self._memory.add((gpu, player.name))
        self.world.add_process(gpu, player.pid, size)
        self.harness.note(Saw.MEMORY, gpu=gpu, client=player.name, memory=size)

        def free() -> None:
            self._memory.discard((gpu, player.name))
            self.harness.note(Saw.MEMORY_GONE, gpu=gpu, client=player.name)
            self.world.remove_process(gpu, player.pid)

        self._after(self.rng.uniform(0.3, 2.0), free)
        return True

    def _revoke(self) -> bool:
        player = self._some(holds=True)
        if player is None:
            return False
        lease = self.rng.choice(list(player.leases))
        try:
            with self.nodes.client("root", within=1.0) as admin:
                # First: its client may hear of it before the call is back.
                self.harness.note(Saw.REVOKED, lease=lease)
                call = admin.send(Method.LEASE_REVOKE, lease=lease, reason="the storm")
                admin.wait(call, within=1.0)
        except (OSError, AssertionError, RemoteError):
            return False
        return True

    def _reuse_pid(self) -> bool:
        """A holder dies while nobody looks, and its pid is somebody else's when they look again."""
        player = self._some(holds=True)
        if player is None or player.spec["role"] == "notebook" or self.nodes.hosts:
            return False
        is_killed = self.rng.random() < 0.5
        if self.nodes.signal(signal.SIGKILL if is_killed else signal.SIGSTOP) is None:
            return False
        pid, name = player.pid, player.name
        self.cast.kill(player)
        until(lambda: not player.alive, "the client is dead")
        self.cast.bury()
        for _ in range(20):
            with contextlib.suppress(FileNotFoundError):
                os.stat(f"/proc/{pid}")  # not reaped yet
                time.sleep(0.005)
                continue
            sleeper = self._bear("sleeper", pid=pid)
            if sleeper is None or sleeper.pid == pid:
                break
            self.cast.kill(sleeper)
        if not is_killed:
            self.nodes.signal(signal.SIGCONT)
        got = sleeper is not None and sleeper.pid == pid
        self.harness.note(Saw.FAULT, name=f"{name}'s pid {pid} used again: {got}")
        return got

    def _signal_host(self, number: signal.Signals) -> bool:
        hosts = [host for host in self.nodes.hosts if host is not None and host.poll() is None]
        if not hosts:
            return False
        host = self.rng.choice(hosts)
        host.send_signal(number)
        if number is signal.SIGSTOP:
            self._after(self.rng.uniform(0.1, 2.0), lambda: host.send_signal(signal.SIGCONT))
        return True


#: What can happen: how often beside the others, and its steps, each if the one before was done.
_Do = Callable[[Storm], object]
_Menu = dict[str, tuple[float, *tuple[_Do, ...]]]


def _kill_who(is_one: Callable[[Player], bool]) -> _Do:
    """Kill a client of whom it is so, by what it has written until now."""
    return lambda storm: storm._kill_one_of([p for p in storm._read() if is_one(p)])


def _kill_named(names: Callable[[Devices], set[str]]) -> _Do:
    return lambda storm: storm._kill_one_of(
        [p for p in storm._living() if p.name in names(storm.devices)]
    )


def _any_of(is_one: Callable[[Player], bool]) -> _Do:
    return lambda storm: any(map(is_one, storm._read()))


_ALWAYS: _Menu = {
    "client killed": (2.0, Storm._kill_client),
    "client stopped": (1.5, Storm._stop_client),
    "node manager killed": (0.5, Storm._kill_node),
    "node manager stopped": (0.4, Storm._stop_node),
    "node manager ended": (0.1, lambda storm: storm.nodes.signal(signal.SIGTERM)),
    "wire cut": (4.0, Storm._cut_wire),
    "wire cut in mid-line": (3.0, lambda storm: storm._cut_wire(mid_line=True)),
    "disk full": (0.3, lambda storm: storm._disk(Disk.FULL)),
    "disk read-only": (0.3, lambda storm: storm._disk(Disk.READ_ONLY)),
    "disk I/O error": (0.3, lambda storm: storm._disk(Disk.IO_ERROR)),
    "write torn by death": (0.3, Storm._tear),
    "page torn after death": (0.2, Storm._tear_page),
    "clock jump": (2.0, Storm._jump),
    "GPU lost": (0.4, Storm._lose_gpu),
    "driver hangs": (0.2, Storm._hang_driver),
    "memory kept after the lease": (2.0, lambda storm: storm._use_memory(0.3, 1.0)),
    "more memory than the lease": (1.0, lambda storm: storm._use_memory(1.3, 2.0)),
    "lease revoked": (0.5, Storm._revoke),
    "GPU out of service": (1.0, Storm._drain),
    "pid used again": (0.2, Storm._reuse_pid),
    "node manager killed after a grant": (0.2, lambda storm: storm._kill_after_grant(Disk.WELL)),
    "node manager killed with a full disk": (
        0.2,
        lambda storm: storm._kill_after_grant(storm.rng.choice((Disk.FULL, Disk.IO_ERROR))),
    ),
}
_OF_TENANTS: _Menu = {
    "helper killed": (3.0, Storm._kill_helper),
    "helper stopped": (2.0, lambda storm: storm.devices.stop_helper()),
    "checkpoint call hangs": (3.0, lambda storm: storm.devices.hang()),
    "checkpoint call fails": (1.5, lambda storm: storm.devices.fail()),
    "driver gives a process up": (0.1, lambda storm: storm.devices.give_up()),
    # To which somebody who is checkpointed wants to come back.
    "GPU lost while parked": (1.5, lambda storm: storm._lose(storm.devices.parked_gpus())),
}
_OF_HOSTS: _Menu = {
    "server killed": (2.0, lambda storm: storm._signal_host(signal.SIGKILL)),
    "server stopped": (1.0, lambda storm: storm._signal_host(signal.SIGSTOP)),
}
_OF_WALLS: _Menu = {
    "wall helper started again": (1.0, lambda storm: storm.walls is not None and storm.walls.cut()),
    "wall helper away": (0.5, Storm._send_walls_away),
    "wall helper hangs": (0.3, Storm._hang_walls),
}
#: That tasks which take turns can have by themselves. In a hand-over one was asked for its turn,
#: and has not given it back.
_OF_TURNS: _Menu = {
    "client killed at a gate": (1.0, _kill_who(lambda player: player.waits)),
    "client killed in a hand-over": (1.0, _kill_who(lambda player: player.yields)),
    "node manager killed in a hand-over": (0.3, _any_of(lambda p: p.yields), Storm._kill_node),
    "step without end": (0.3, Storm._never_end_a_step),
    "clock jump at the edge of a quantum": (1.0, Storm._jump_at_the_edge),
}
_OF_LOCKS: _Menu = {
    "client killed while it is locked": (1.0, _kill_named(Devices.locked)),
    "helper killed while a lock is out": (1.0, Storm._locks, Storm._kill_helper),
    "node manager killed while a lock is out": (0.4, Storm._locks, Storm._kill_node),
    "both killed while a lock is out": (0.4, Storm._locks, Storm._kill_helper, Storm._kill_node),
    "lock or unlock hangs": (0.5, Storm._locks, lambda storm: storm.devices.hang()),
    "lock or unlock fails": (0.5, Storm._locks, lambda storm: storm.devices.fail()),
    "helper stopped while a lock is out": (
        0.5,
        Storm._locks,
        lambda storm: storm.devices.stop_helper(),
    ),
}
_OF_MOVES: _Menu = {
    "client killed in mid-move": (1.0, _kill_named(Devices.moving)),
    "node manager killed in mid-move": (0.4, Storm._moves, Storm._kill_node),
    "helper killed in mid-move": (0.7, Storm._moves, Storm._kill_helper),
    "restore fails in a move": (1.5, Storm._moves, lambda storm: storm.devices.fail_restore()),
    "GPU lost during a move": (0.7, Storm._moves, Storm._lose_gpu),
}
_OF_STOPS: _Menu = {
    "client killed while it saves": (1.5, _kill_who(lambda player: player.saves)),
    "client killed before it saves": (0.5, _kill_who(lambda player: player.told)),
    "node manager killed before a stop": (
        1.0,
        _any_of(lambda player: player.told or player.saves),
        Storm._kill_node,
    ),
}
OF_TURNS, OF_LOCKS, OF_MOVES, OF_STOPS = map(tuple, (_OF_TURNS, _OF_LOCKS, _OF_MOVES, _OF_STOPS))


def _config(plan: Plan) -> str:
    also = (
        (LIFTED, plan.lifted),
        (BY_TURNS, plan.by_turns),
        (BY_LOCK, plan.locked > 0),
        (BY_STOPS, plan.savers > 0),
        (BY_MOVES, plan.movers > 0),
    )
    return CONFIG + "".join(text for text, is_wanted in also if is_wanted)


#: Those who have memory on their GPUs by themselves.
_OWN_MEMORY = ("tenant", "locked", "mover")
#: Whose clients they are, where not just anybody's. Who has kernels only can be asked to park.
_WHO = {"hostile": ("mallory",), "wide": ("dave",), "kernel": ("erin", "frank")}


def _role(
    often: float,
    memory: list[int | None],
    patience: list[float],
    hold: list[float],
    lives: int,
    **more: Any,
) -> dict[str, Any]:
    """How a client behaves; ``lives``: requests until it ends by itself."""
    told = {"often": often, "memory": memory, "patience": patience, "hold": hold, "lives": lives}
    return {"kind": "process", "class": "interactive", "gpus": 1, **told, **more}


_ROLES: dict[str, dict[str, Any]] = {
    "short": _role(4, [None, 4 * GIB, 8 * GIB], [0.3, 4.0], [0.0, 0.6], 20),
    "long": _role(2, [8 * GIB], [2.0, 8.0], [1.0, 6.0], 5, **{"class": "batch"}),
    "stay": _role(2, [4 * GIB], [2.0, 8.0], [6.0, 15.0], 3),
    "stepper": _role(0, [10 * GIB], [2.0, 8.0], [8.0, 20.0], 5, steps=True),
    "trainer": _role(0, [10 * GIB], [2.0, 8.0], [90.0, 120.0], 5, steps=True),
    "kernel": _role(4, [None], [0.5, 4.0], [1.0, 5.0], 9, kind="kernel"),
    "pair": _role(1, [10 * GIB], [1.0, 6.0], [0.1, 1.0], 9, gpus=2),
    "rush": _role(3, [4 * GIB], [1.0, 3.0], [0.0, 0.2], 99),
    "wide": _role(0.5, [MEMORY], [4.0, 15.0], [0.1, 0.5], 9, gpus=GPUS, **{"class": "batch"}),
}


class _Notebook:
    """A real kernel, started and used in a thread of the harness."""

    def __init__(self, storm: Storm, number: int) -> None:
        self._storm = storm
        self._rng = random.Random(storm.rng.randrange(2**32))
        self._log = storm.directory / f"notebook-{number}.log"
        self._log.touch()
        self._home = storm.directory / f"home-{number}"
        self._home.mkdir()
        self._ends = threading.Event()
        self.pid: int | None = None
        self.player: Player | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def join_in(self) -> None:
        """Let the harness know the kernel's process, on the harness's own thread."""
        if self.player is None and self.pid is not None:
            spec = {"role": "notebook", "environment": "carol"}
            self.player = self._storm.cast.adopt(self._log.stem, self.pid, spec, self._log)

    def _live(self) -> None:
        try:
            self._use_kernel()
        finally:
            ensure_event_loop().close()  # the one that jupyter_client made for this thread

    def _use_kernel(self) -> None:
        kernel = Kernel(
            self._home,
            self._storm.nodes.node.socket,
            PYTHONPATH=self._storm.nodes.node.environ["PYTHONPATH"],
            JUPYTER_GPUSHARE_TOKEN="carol",
            JUPYTER_GPUSHARE_WAIT_TIMEOUT="3",
            JUPYTER_GPUSHARE_ANSWER_TIMEOUT="3",
        )
        with contextlib.suppress(AssertionError, OSError, RuntimeError), kernel:
            self.pid = kernel.pid
            self._run(kernel, "from support.faults.actor import cell")
            spec = {"environment": "carol", "log": str(self._log), "role": "notebook"}
            spec["seed"] = str(self._rng.randrange(2**32))
            while not self._ends.is_set() and self._runs():
                self._run(kernel, f"cell({spec!r}, {self._rng.uniform(0.3, 1.5)})")
                self._ends.wait(self._rng.uniform(0.1, 2.0))

    def _runs(self) -> bool:
        return self.player is None or self.player.alive

    def _run(self, kernel: Kernel, code: str) -> None:
        shown = kernel.start(code)
        while not shown.done and not self._ends.is_set() and self._runs():
            kernel.pump()

    def end(self) -> None:
        """No cell any more."""
        self._ends.set()

    def close(self) -> None:
        """The kernel has ended when this returns."""
        self.end()
        self._thread.join(90)


def _tokens(directory: Path) -> Path:
    path = directory / "tokens.json"
    path.touch(0o600)
    names = (*PEOPLE, *TENANTS, *dict.fromkeys(MOVERS), "mallory", "probe")
    entries: list[dict[str, Any]] = [{"token": name, "environment": name} for name in names]
    entries.append({"token": "root", "environment": "root", "admin": True})
    path.write_text(json.dumps({"tokens": entries}), encoding="utf-8")
    return path
