"""The storm's harness claims only what is certain, however late it comes to look or to act."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.faults.devices import Devices, _Look
from support.faults.observed import Log, Saw, Seen, boot, read_log
from support.faults.pretend import PretendParker
from support.faults.shim import Disk
from support.faults.stage import Player
from support.faults.storm import Storm

from jupyter_gpushare.client.adapters.parkers.base import Parker


class Bare(Storm):
    """A storm without processes: tests call its parts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rng = random.Random(0)
        self.harness = Log(directory / "harness.log")
        self.cast: Any = SimpleNamespace(players={}, bury=lambda: None)
        self.nodes: Any = SimpleNamespace(supervise=lambda: None)
        self.devices: Any = SimpleNamespace(look=lambda tenants: None)
        self.gpus = ["GPU-0"]
        self.disks: list[Disk] = []
        self.shim: Any = SimpleNamespace(disk=Disk.WELL, set_disk=self.disks.append)
        self.answers: list[bool] = []
        self._later = []
        self._number = 0
        self._notebooks = []
        self._drained = {}
        self._is_healing = False

    def _admin(self, method: Any, **params: str) -> bool:
        return self.answers.pop(0)

    def act(self) -> None:
        """Do what is to be done later, now."""
        later, self._later = self._later, []
        for _, _, do in later:
            do()

    @property
    def noted(self) -> list[Seen]:
        return read_log(self.harness.path)


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Bare]:
    storm = Bare(tmp_path)
    yield storm
    storm.harness.close()


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[tuple[Player, Log]]:
    log = Log(tmp_path / "tenant.log")
    pidfd = os.pidfd_open(os.getpid())
    yield Player("tenant", os.getpid(), {"role": "tenant"}, log.path, pidfd), log
    os.close(pidfd)
    log.close()


def test_who_is_called_has_settled_only_by_what_it_writes_afterwards(
    storm: Bare, tenant: tuple[Player, Log]
) -> None:
    """Found by a soak: a line of 6 ms before, which was read later, ended the wait."""
    player, log = tenant
    storm.cast.players[player.pid] = player
    log.note(Saw.FILLED)
    player.read_on()
    log.note(Saw.WHOLE)  # nobody has read it
    looks = 0

    def supervise() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            log.note(Saw.WHOLE)

    storm.nodes.supervise = supervise
    storm._call_tenants()
    (called,) = [line for line in storm.noted if line.saw is Saw.CALLED]
    assert called.t0 <= read_log(log.path)[-1].t1 <= called.t1


def test_memory_is_certain_only_until_the_look_that_found_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tenant: tuple[Player, Log]
) -> None:
    player, _ = tenant
    harness = Log(tmp_path / "harness.log")
    found = Devices.__new__(Devices)
    found._looks, found._stuck, found._harness = {}, set(), harness
    # Each look: its end, and its begin. In the second it found what the first had found.
    looks = iter([(1.0, 0.9), (3.0, 2.0), (5.0, 4.0)])

    def read(_: Player) -> _Look:
        end, begin = next(looks)
        return _Look((1, 1 if end < 5.0 else 2), 0, False, {"GPU-0": 8}, end, begin)

    monkeypatch.setattr(found, "_read", read)
    for _ in range(3):
        found.look([player])
    harness.close()
    (resident,) = read_log(harness.path)
    assert (resident.data["begin"], resident.data["end"]) == (1.0, 2.0)


def test_a_disk_is_ill_until_the_harness_has_made_it_well(
    storm: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm._disk(Disk.FULL)
    assert storm.disks == [Disk.FULL]
    late = boot() + 100.0  # the harness was away for long
    monkeypatch.setattr("support.faults.storm.boot", lambda: late)
    storm.act()
    assert storm.disks == [Disk.FULL, Disk.WELL]
    (line,) = storm.noted
    assert line.t0 < late < line.data["until"]


def test_a_gpu_may_be_back_since_the_first_order_that_had_no_answer(storm: Bare) -> None:
    storm.answers = [True, False, True]
    storm._drain()
    storm.act()
    second = boot()
    storm.act()
    drained, back = storm.noted
    assert (drained.saw, drained.data["sure"]) == (Saw.DRAINED, True)
    assert back.saw is Saw.BACK
    assert drained.t1 <= back.t0 < second <= back.t1


def test_an_order_that_had_no_answer_is_written_down_as_not_certain(storm: Bare) -> None:
    storm.answers = [False]
    storm._drain()
    (drained,) = storm.noted
    assert (drained.saw, drained.data["sure"]) == (Saw.DRAINED, False)


@pytest.mark.parametrize("name", ["trim", "drop_cache", "bytes_to_park", "park", "resume"])
def test_the_pretend_framework_is_called_as_a_real_one_is(name: str) -> None:
    wanted, ours = (inspect.signature(getattr(one, name)) for one in (Parker, PretendParker))
    assert list(ours.parameters) == list(wanted.parameters)
