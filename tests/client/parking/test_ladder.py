"""An idle process gives what was asked by the cheapest rung, and nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.parked import Driver, Tensors

from jupyter_gpushare.client.adapters.parkers.base import ParkFailed
from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.client.memory.bystanders import Bystanders
from jupyter_gpushare.client.memory.ladder import CONTEXT, SPARE, Framework, Ladder
from jupyter_gpushare.client.memory.oneatatime import one_at_a_time
from jupyter_gpushare.client.memory.rungs import (
    Bounds,
    CannotGive,
    Movable,
    NotBroughtBack,
    ProcessLost,
    Rung,
)
from jupyter_gpushare.client.words.recalls import Need
from jupyter_gpushare.protocol.checkpoint import Result
from jupyter_gpushare.protocol.hostmemory import Room

GIB = 2**30


def ladder(
    *tensors: Tensors | None,
    driver: Driver | None = None,
    usable: bool = False,
    said: list[str] | None = None,
    present: Bystanders = Bystanders(),  # noqa: B008 - frozen
    room: Callable[[], Room | None] = lambda: None,
) -> Ladder:
    frameworks = [Framework(f"f{n}", one) for n, one in enumerate(tensors)]
    say = [].append if said is None else said.append
    return Ladder(
        lambda: frameworks,
        driver or Driver(usable),  # type: ignore[arg-type]
        say,
        bystanders=lambda: present,
        room=room,
    )


def need(used: int | None, may_stay: int) -> list[Need]:
    return [Need("GPU-1", may_stay, used)]


def no_plan(_memory: int) -> None:
    return


def test_asked_again_after_emptying_caches_it_climbs() -> None:
    """The node manager needs what that left: to empty them again is no answer."""
    one = Tensors(live=2 * GIB)
    up = ladder(one, usable=True)
    given = up.give(need(0, GIB), no_plan, after=Rung.TRIM)
    assert (given.rung, given.memory) == (Rung.STORAGE, 2 * GIB)
    nothing = ladder(Tensors(live=0), usable=True)
    assert nothing.give(need(0, 0), no_plan, after=Rung.TRIM).rung is Rung.DRIVER
    with pytest.raises(CannotGive, match=r"would not free enough.*too old"):
        ladder(Tensors(live=0)).give(need(0, 0), no_plan, after=Rung.TRIM)


def test_tensors_move_when_the_context_may_stay() -> None:
    one = Tensors(live=6 * GIB, cache=GIB)
    up = ladder(one, usable=True)
    planned: list[int] = []
    given = up.give(need(8 * GIB, GIB), planned.append)
    assert (given.rung, given.memory) == (Rung.STORAGE, 6 * GIB)
    assert planned == [6 * GIB], "host memory is asked for first"
    assert up.holds
    assert up.memory == 6 * GIB
    up.bring_back({})
    assert one.log == ["trim", "park", "resume"]
    assert not up.holds
    assert up.memory == 0


def test_where_nothing_may_stay_the_driver_takes_all() -> None:
    driver = Driver(usable=True, migration=True)
    up = ladder(Tensors(live=6 * GIB), driver=driver)
    given = up.give(need(7 * GIB, 0), no_plan)
    assert (given.rung, given.memory, given.movable) == (Rung.DRIVER, 7 * GIB, Movable.KIND)
    up.bring_back({"GPU-1": "GPU-2"})
    assert driver.log == ["park", "resume {'GPU-1': 'GPU-2'}"]


def test_what_tensors_left_behind_is_taken_when_it_is_wanted_too() -> None:
    one, driver = Tensors(live=6 * GIB), Driver(usable=True, migration=True)
    up = ladder(one, driver=driver)
    up.give(need(7 * GIB, 2 * GIB), no_plan)
    planned: list[int] = []
    given = up.give(need(GIB, 0), planned.append)
    assert (given.rung, given.memory) == (Rung.DRIVER, 7 * GIB)
    assert planned == [7 * GIB], "both copies count"
    assert given.movable is Movable.SAME
    up.bring_back({})
    assert one.log[-1] == "resume", "the driver first, the tensors then"
    assert driver.log[-1] == "resume {}"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((Tensors(4 * GIB), None), "f1 cannot be moved"),
        ((Tensors(4 * GIB, refuses="A CUDA graph is in use."),), "CUDA graph"),
        ((), "not known"),
    ],
)
def test_who_cannot_says_all_the_reasons(tensors: tuple[Tensors | None, ...], words: str) -> None:
    up = ladder(*tensors)
    with pytest.raises(CannotGive, match=words) as caught:
        up.give(need(5 * GIB, CONTEXT), no_plan)
    assert "too old" in str(caught.value)
    assert not up.holds


def test_one_framework_that_refuses_brings_back_the_other() -> None:
    first, second = Tensors(4 * GIB), Tensors(GIB, refuses="Not now.")
    up = ladder(first, second)
    with pytest.raises(CannotGive, match="Not now"):
        up.give(need(5 * GIB, CONTEXT), no_plan)
    assert first.log == ["trim", "park", "resume"]
    assert not up.holds


def test_what_broke_off_half_way_comes_back_before_the_next_cell() -> None:
    """A parking that fails and cannot be undone: the tensors are in host memory."""

    class BreaksOff(Tensors):
        def park(self) -> int:
            super().park()
            raise ParkFailed("Parking was broken off.")

    one = BreaksOff(live=GIB, is_full=True)
    up = ladder(one)
    with pytest.raises(CannotGive, match="broken off"):
        up.give(need(2 * GIB, GIB), no_plan)
    assert up.holds
    one.is_full = False
    up.bring_back({})
    assert not up.holds
    assert not one.is_parked


def test_without_host_memory_nothing_moves() -> None:
    one, driver = Tensors(4 * GIB), Driver(usable=True)
    up = ladder(one, driver=driver)

    def refuse(_memory: int) -> None:
        raise GpuShareError("There is no host memory for it.")

    with pytest.raises(CannotGive, match="no host memory"):
        up.give(need(5 * GIB, 0), refuse)
    assert one.log == ["trim"]
    assert driver.log == []


@pytest.mark.parametrize(
    ("result", "holds"), [(Result.REFUSED, False), (Result.INTACT, False), (Result.STUCK, True)]
)
def test_a_checkpoint_that_fails_is_set_going_again_by_the_next_cell(
    result: Result, holds: bool
) -> None:
    driver = Driver(usable=True, parks=result)
    up = ladder(None, driver=driver)
    with pytest.raises(CannotGive):
        up.give(need(5 * GIB, 0), no_plan)
    assert up.holds is holds
    up.bring_back({})
    assert not up.holds


def test_what_does_not_come_back_stays_and_is_tried_again() -> None:
    driver = Driver(usable=True, resumes=Result.INTACT)
    up = ladder(None, driver=driver)
    up.give(need(5 * GIB, 0), no_plan)
    with pytest.raises(NotBroughtBack, match="kept in host memory"):
        up.bring_back({})
    assert up.holds
    driver.resumes = Result.DEAD
    with pytest.raises(ProcessLost, match="restart the kernel"):
        up.bring_back({})
    one = Tensors(GIB, is_full=True)
    up = ladder(one)
    up.give(need(2 * GIB, CONTEXT), no_plan)
    with pytest.raises(NotBroughtBack, match="full"):
        up.bring_back({})
    one.is_full = False
    up.bring_back({})
    assert not up.holds


def test_what_makes_a_checkpoint_dangerous_is_looked_at_first() -> None:
    driver = Driver(usable=True)
    up = ladder(None, driver=driver)
    up._objection = lambda gpus, _seen: f"NCCL runs on {gpus[0]}."
    with pytest.raises(CannotGive, match="NCCL runs on GPU-1"):
        up.give(need(5 * GIB, 0), no_plan)
    assert driver.log == []
    rung, why = up.ability(["GPU-1"])
    assert rung is Rung.NONE
    assert "NCCL" in why


def test_nothing_measured_is_taken_for_a_context() -> None:
    up = ladder(Tensors(GIB))
    assert up.give(need(None, CONTEXT), no_plan).rung is Rung.STORAGE
    up = ladder(Tensors(GIB), usable=True)
    assert up.give(need(None, CONTEXT - 1), no_plan).rung is Rung.DRIVER


def test_what_does_not_fit_into_the_container_is_not_moved() -> None:
    """It would be killed there, and lose what parking promised to keep."""
    left = 4 * GIB + SPARE - 1
    one, driver = Tensors(4 * GIB), Driver(usable=True)
    up = ladder(one, driver=driver, room=lambda: Room(left, "the limit /box/memory.max"))
    planned: list[int] = []
    words = r"Parking 4 GiB needs 4.25 GiB .* the limit /box/memory.max leaves 4.25 GiB"
    with pytest.raises(CannotGive, match=words):
        up.give(need(5 * GIB, GIB), planned.append)
    assert (one.log, driver.log, planned) == (["trim"], [], [])
    assert up.lacking == 4 * GIB
    rung, why = up.ability(["GPU-1"])
    assert rung is Rung.TRIM
    assert "/box/memory.max" in why
    with pytest.raises(CannotGive, match="Parking 5 GiB"):
        up.give(need(5 * GIB, 0), no_plan)
    assert driver.log == []
    left += GIB + 1
    assert up.ability(["GPU-1"]) == (Rung.DRIVER, "")
    assert up.give(need(5 * GIB, GIB), no_plan).rung is Rung.STORAGE
    assert up.lacking == 0


def test_what_tensors_took_of_the_room_is_not_counted_again() -> None:
    rooms = iter([6 * GIB, 2 * GIB])
    up = ladder(Tensors(5 * GIB), usable=True, room=lambda: Room(next(rooms), "it"))
    up.give(need(6 * GIB, GIB), no_plan)
    assert up.give(need(GIB, 0), no_plan).memory == 6 * GIB, "the context is what moves now"


def test_a_process_without_room_for_a_context_says_so_at_once() -> None:
    up = ladder(None, usable=True, room=lambda: Room(GIB, "the host's memory"))
    rung, why = up.ability(["GPU-1"])
    assert rung is Rung.NONE
    assert why.startswith("Parking 1 GiB needs 1.25 GiB of host memory, and the host's memory")


def test_kernels_of_one_user_park_one_after_the_other(tmp_path: Path) -> None:
    """Each looks how much room there is, and two may look at the same."""
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with (
        one_at_a_time(environ),
        pytest.raises(CannotGive, match="Another of your kernels"),
        one_at_a_time(environ, within=0.1),
    ):
        raise AssertionError("two at once")
    with one_at_a_time(environ):
        pass


def test_it_says_what_it_could_do() -> None:
    gpus = ["GPU-1"]
    assert ladder(Tensors(1), usable=True).ability(gpus) == (Rung.DRIVER, "")
    assert ladder(Tensors(1)).ability(gpus) == (Rung.STORAGE, "The driver is too old.")
    assert ladder(Tensors(1), None).ability(gpus)[0] is Rung.TRIM
    assert ladder(None).ability(gpus)[0] is Rung.NONE


@settings(deadline=None)
@given(
    used=st.integers(1, 100),
    stay=st.integers(0, 100),
    live=st.integers(0, 100),
    cache=st.integers(0, 100),
    usable=st.booleans(),
)
def test_it_takes_the_lowest_rung_that_frees_enough(
    used: int, stay: int, live: int, cache: int, usable: bool
) -> None:
    live, cache = min(live, used), min(cache, used - min(live, used))
    up = ladder(Tensors(live, cache), usable=usable)
    try:
        rung = up.give(need(used, stay), no_plan).rung
    except CannotGive:
        rung = Rung.NONE
    if used - cache <= stay:
        assert rung is Rung.TRIM
    elif used - cache - live <= stay:
        assert rung is Rung.STORAGE
    else:
        assert rung is (Rung.DRIVER if usable else Rung.NONE)


def test_a_thread_of_the_users_leaves_only_the_driver() -> None:
    """It would meet tensors without memory; in a checkpointed process it waits."""
    one, driver = Tensors(live=4 * GIB), Driver(usable=True)
    up = ladder(one, driver=driver, present=Bystanders(threads=("serves",)))
    assert up.give(need(5 * GIB, GIB), no_plan).rung is Rung.DRIVER
    assert one.log == ["trim"]
    up = ladder(one, present=Bystanders(threads=("serves",)))
    with pytest.raises(CannotGive, match=r"in the thread `serves`.*too old"):
        up.give(need(5 * GIB, GIB), no_plan)


def test_a_task_in_an_event_loop_leaves_only_the_cache() -> None:
    one, driver = Tensors(live=GIB, cache=4 * GIB), Driver(usable=True)
    up = ladder(one, driver=driver, present=Bystanders(tasks=("beat",)))
    assert up.give(need(5 * GIB, 2 * GIB), no_plan).rung is Rung.TRIM
    with pytest.raises(CannotGive, match="task `beat` has not ended"):
        up.give(need(2 * GIB, GIB), no_plan)
    assert driver.log == []
    assert not up.holds


def test_what_came_back_damaged_is_said_once_and_not_tried_again() -> None:
    said: list[str] = []
    one = Tensors(live=4 * GIB, is_damaged=True)
    up = ladder(one, said=said)
    up.give(need(5 * GIB, GIB), no_plan)
    up.bring_back({})
    assert said == ["Do not trust this kernel's variables."]
    assert not up.holds
    assert up.memory == 0


def test_at_a_gate_that_ends_no_step_only_the_driver_moves_memory() -> None:
    one, driver = Tensors(live=6 * GIB), Driver(usable=True)
    up = ladder(one, driver=driver)
    given = up.give(need(8 * GIB, 2 * GIB), no_plan, bounds=Bounds(tensors=False))
    assert (given.rung, one.is_parked) == (Rung.DRIVER, False)
    with pytest.raises(CannotGive, match=r"only at the end of a step.*too old"):
        ladder(one).give(need(8 * GIB, 2 * GIB), no_plan, bounds=Bounds(tensors=False))


def test_to_other_gpus_it_goes_only_as_a_whole_and_where_the_driver_can() -> None:
    one = Tensors(live=6 * GIB, cache=GIB)
    elsewhere = Bounds(elsewhere=True)
    up = ladder(one, driver=Driver(usable=True, migration=True))
    given = up.give(need(8 * GIB, 8 * GIB), no_plan, bounds=elsewhere)
    assert (given.rung, given.movable) == (Rung.DRIVER, Movable.KIND)
    driver = Driver(usable=True)
    with pytest.raises(CannotGive, match=r"same GPUs only.*same GPUs only"):
        ladder(one, driver=driver).give(need(8 * GIB, 0), no_plan, bounds=elsewhere)
    assert not driver.log
