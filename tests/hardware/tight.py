"""Two people on one real GPU where it gets tight: memory runs out, or neither loop has steps.

Each function is a section of ``run.py``.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from hardware.bench import Bench, Nvml, Wrong
from hardware.product import MODEL, READ, House, house, request, timed

CONFIG = "c.NodeManagerApp.debug_checks = True\nc.Policy.max_tasks_per_gpu = 4\n"

# -- out of memory ------------------------------------------------------------------------------

#: Takes memory from the framework until there is none; what it had is in the error's traceback.
FILL = """
def fill():
    blocks = []
    while True:
        blocks.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
fill()
"""
#: The same past the framework, and so past its lease, until the driver has no more.
TAKE = """
import time
from cuda.bindings import driver
def must(answer):
    if int(answer[0]):
        raise RuntimeError(answer[0].name)
    return answer[1] if len(answer) == 2 else None
must(driver.cuInit(0))
must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(0))))
taken = []
def take(size):
    while True:
        taken.append(must(driver.cuMemAlloc(size)))
def give():
    while taken:
        must(driver.cuMemFree(taken.pop()))
"""
#: Something new of the neighbour's, and that it can compute.
NEW = (
    "y = torch.ones({size}, dtype=torch.uint8, device='cuda')\n"
    "assert int(y[-1]) == 1\ndel y\ntorch.cuda.empty_cache()\nprint(step())"
)
NEW_IN_REHEARSAL = "must(driver.cuMemFree(must(driver.cuMemAlloc({size}))))"


def out_of_memory_in_a_cell(bench: Bench) -> None:
    """What its notebook and its neighbour see, and that the GPU is usable after."""
    unit, nvml = bench.orders.unit, Nvml()
    with house(bench, CONFIG) as place, ExitStack() as stack:
        alice, bob = (stack.enter_context(place.kernel(who)) for who in ("alice", "bob"))
        total = place.status()["gpus"][0]["memory"]
        request(alice, total // 2)
        request(bob, total // 4)
        if bench.orders.rehearse:
            from support.driverstage import FILL as THEIRS, READ as LOOK

            theirs = THEIRS.replace("1 * 2**30", f"8 * {unit}")
            new, read = NEW_IN_REHEARSAL.format(size=4 * unit), LOOK
        else:
            theirs, read, new = MODEL.format(gib=8), READ, NEW.format(size=4 * unit)
        for kernel in (alice, bob):
            timed(kernel, theirs)
        before = [timed(kernel, read)[1] for kernel in (alice, bob)]
        if not bench.orders.rehearse:
            _beyond_the_lease(bench, alice, bob, new)
        timed(alice, TAKE)
        bench.note("the_driver_has_no_more", _failed(alice, f"take({unit})"))
        bench.note("it_has_then", nvml.of(alice.pid))
        seen = bob.run(new)
        bench.note("the_neighbours_new_memory_then", _shown(seen))
        bench.note("status_then", place.said_by("status"))
        timed(alice, "give()")
        bench.note("the_neighbours_new_memory_after", timed(bob, new)[0])
        bench.note("its_own_new_memory_after", timed(alice, new)[0])
        if (after := [timed(kernel, read)[1] for kernel in (alice, bob)]) != before:
            raise Wrong(f"{after} afterwards, {before} before")
        _usable(bench, place, theirs, read)


def _beyond_the_lease(bench: Bench, alice: Any, bob: Any, new: str) -> None:
    """What torch is told to keep to; only the framework's own limit is met."""
    busy = bob.start("for _ in range(50):\n    step()\nprint('went on')")
    bench.note("beyond_the_lease", _failed(alice, FILL))
    bob.finish(busy)
    if "went on" not in busy.stream():
        raise Wrong(f"its neighbour's cell has failed: {_shown(busy)}")
    shown = alice.run(new)
    bench.note("the_next_cell", _shown(shown))
    if shown.reply["status"] != "ok":
        raise Wrong(f"the next cell has failed, too: {_shown(shown)}")


def _usable(bench: Bench, place: House, theirs: str, read: str) -> None:
    """Somebody who comes afterwards computes there, too."""
    with place.kernel("root") as late:
        request(late, 10 * bench.orders.unit)
        seconds, _ = timed(late, theirs)
        bench.note("a_newcomer", {"seconds": seconds, "read": timed(late, read)[1][:200]})


def _failed(kernel: Any, code: str) -> dict[str, str]:
    """What a cell that runs out of memory shows."""
    shown = kernel.run(code)
    if shown.reply["status"] == "ok":
        raise Wrong(f"memory never ran out: {code}")
    return _shown(shown)


def _shown(shown: Any) -> dict[str, str]:
    reply = shown.reply
    return {
        "status": reply["status"],
        "error": reply.get("ename", ""),
        "value": str(reply.get("evalue", ""))[:2000],
        "said": (shown.stream() + shown.stream("stderr") + shown.plain())[-2000:],
    }


# -- turns by the driver's lock -------------------------------------------------------------------

#: A loop without steps, until a time. It notes its rounds each second, its longest pauses, and
#: results that are not what the first one was.
LOOP = """
def loop(until):
    rounds, wrong, first, marks, pauses = 0, 0, None, [], []
    mark = last = time.time()
    while last < until:
        value = work()
        first = value if first is None else first
        wrong += value != first
        rounds += 1
        now = time.time()
        if now - last > 0.5:
            pauses.append([last, now - last])
        if now - mark >= 1.0:
            marks.append([now, rounds])
            mark = now
        last = now
    print(json.dumps({"rounds": rounds, "wrong": wrong, "marks": marks, "pauses": pauses}))
"""
WORK = """
import json, time, torch
torch.manual_seed(2)
x = torch.randn(8192, 8192, device="cuda")
def work():
    for _ in range(5):
        y = x @ x
    return float(y.sum())
work()
"""
WORK_IN_REHEARSAL = """
import json, time
def work():
    ctypes.CDLL("libcuda.so.1").cuda_stub_work(20)
    return read()
"""
#: Seconds of a lock at most, and for which both loops run: until they are known to have no steps
#: they compute at once; then they take turns for a minute.
LOCK, TOGETHER, TURNS = 5.0, 15.0, 60.0
#: What is aimed at: per cent of one loop alone, and seconds.
THROUGHPUT_AIM, WAIT_AIM = 90.0, LOCK + 2.0


def turns_by_lock(bench: Bench) -> None:
    """Two loops without steps, locked by turns for a minute. This decides over `turn_lock`."""
    config = (
        f"{CONFIG}c.Policy.share_mode = 'time'\nc.Policy.quantum = {LOCK}\n"
        f"c.Policy.turn_lock = {LOCK}\nc.Policy.idle_timeout = 600.0\n"
        "c.NodeManagerApp.measure_interval = 0.2\n"
    )
    unit = bench.orders.unit
    turns = TURNS / 3 if bench.orders.rehearse else TURNS
    with house(bench, config) as place, ExitStack() as stack:
        alice, bob = (stack.enter_context(place.kernel(who)) for who in ("alice", "bob"))
        for kernel in (alice, bob):
            request(kernel, 30 * unit)
            if bench.orders.rehearse:
                from support.driverstage import FILL as THEIRS

                timed(kernel, THEIRS.replace("1 * 2**30", f"8 * {unit}"))
            timed(kernel, (WORK_IN_REHEARSAL if bench.orders.rehearse else WORK) + LOOP)
        alone = json.loads(timed(alice, "loop(time.time() + 5)")[1])["rounds"] / 5
        bench.note("alone_rounds_a_second", alone)
        seconds = TOGETHER + turns
        cells = [one.start(f"loop(time.time() + {seconds})") for one in (alice, bob)]
        place.until(
            lambda: alice.pump() or bob.pump() or '"what": "locked"' in json.dumps(place.status()),
            "one of them is locked",
        )
        bench.note("status_with_a_lock", place.said_by("status"))
        for kernel, cell in zip((alice, bob), cells, strict=True):
            kernel.finish(cell)
        bench.note("status_at_the_end", place.said_by("status"))
        bench.note("said", [cell.stream("stderr") + cell.plain() for cell in cells])
        found = []
        for cell in cells:
            if cell.reply["status"] != "ok":
                raise Wrong(f"a loop has failed: {_shown(cell)}")
            found.append(json.loads(cell.stream()))
        bench.note("loops", found)
        _judge(bench, found, alone, turns)


def _judge(bench: Bench, found: list[dict[str, Any]], alone: float, turns: float) -> None:
    end = min(one["marks"][-1][0] for one in found)
    begin = end - turns + 5.0
    rates = [_rate(one["marks"], begin, end) for one in found]
    pauses = [[long for at, long in one["pauses"] if at >= begin] for one in found]
    longest = max((long for each in pauses for long in each), default=0.0)
    bench.note("rounds_a_second", rates)
    bench.note("pauses", pauses)
    if wrong := sum(one["wrong"] for one in found):
        raise Wrong(f"{wrong} results differ from the first one")
    # Where a lock takes more than a second, as the pretended driver's may, the next one comes only
    # after a minute.
    if not all(pauses) and not bench.orders.rehearse:
        raise Wrong(f"one of them was never locked: {pauses}")
    percent = 100 * sum(rates) / alone
    bench.aim("two loops by turns do together, in % of one alone", percent, least=THROUGHPUT_AIM)
    bench.aim("the longest wait of a loop, seconds", longest, most=WAIT_AIM)


def _rate(marks: list[list[float]], begin: float, end: float) -> float:
    """Rounds a second between two times."""

    def until(at: float) -> float:
        return max((rounds for when, rounds in marks if when <= at), default=0.0)

    return (until(end) - until(begin)) / (end - begin)
