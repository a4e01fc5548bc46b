"""The checker of the storm is silent on what is right, and finds each thing that is wrong."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.faults.checker import Property, Rules, check
from support.faults.observed import Log, Saw, Seen, read_log

from jupyter_gpushare.ledger.ledger import Record

RULES = Rules(
    turn_bound=8.0,
    turn_wait=20.0,
    capacity={"GPU-0": 10, "GPU-1": 10},
    heartbeat_timeout=6.0,
    leak_bound=1.0,
    overtakes={"interactive": 2, "batch": 4},
    silence=10.0,
    stop_after=1.0,
    stop_grace=4.0,
    stopped_by=14.0,
    lock_bound=3.0,
    lock_inherit=10.0,
)


@dataclass
class History:
    """A small honest node: it gives what is free, first come, first served, and writes all down."""

    rng: random.Random
    at: float = 100.0
    seen: list[Seen] = field(default_factory=list)
    ledger: list[Record] = field(default_factory=list)
    held: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    waiting: list[tuple[str, str, int]] = field(default_factory=list)
    born: int = 0
    leases: int = 0

    def see(self, who: str, saw: Saw, since: float | None = None, **data: object) -> float:
        self.at += self.rng.uniform(0.001, 0.2)
        self.seen.append(Seen(who, saw, self.at if since is None else since, self.at, dict(data)))
        return self.at

    def record(self, kind: str, environment: str, lease: str, **data: object) -> None:
        self.at += 0.001
        self.ledger.append(Record(kind, self.at, self.at, environment, lease, data))

    def free(self, gpu: str) -> int:
        return 10 - sum(m for _, _, g, m in self.held.values() if g == gpu)

    def ask(self) -> None:
        self.born += 1
        who = f"client-{self.born}"
        self.see(who, Saw.BORN, environment=who, pid=self.born)
        memory = self.rng.randrange(1, 11)
        self.see(who, Saw.ASKED, request="r", gpus=1, memory=memory, **{"class": "interactive"})
        self.waiting.append((who, "r", memory))
        if len(self.waiting) > 1 or not self.fits(memory):
            self.see(who, Saw.QUEUED, request="r", lease=f"of-{who}")
        self.serve()

    def fits(self, memory: int) -> str | None:
        return next((gpu for gpu in RULES.capacity if self.free(gpu) >= memory), None)

    def serve(self) -> None:
        while self.waiting and (gpu := self.fits(self.waiting[0][2])):
            who, _request, memory = self.waiting.pop(0)
            lease = f"of-{who}"
            asked = next(x for x in self.seen if x.who == who and x.saw is Saw.ASKED)
            self.record("LeaseGranted", who, lease, gpus=[{"gpu": gpu, "memory": memory}])
            self.held[lease] = (who, who, gpu, memory)
            self.see(who, Saw.GRANTED, asked.t0, request="r", lease=lease, gpus=[[gpu, memory]])

    def end(self) -> None:
        lease = self.rng.choice(list(self.held))
        who, environment, _gpu, _memory = self.held.pop(lease)
        how = self.rng.random()
        if how < 0.5:
            since = self.see(who, Saw.RELEASING, lease=lease)
            self.record("LeaseEnded", environment, lease, reason="released")
            self.see(who, Saw.RELEASED, since, lease=lease, state="ended")
        else:
            self.see("harness", Saw.KILLED, client=who)
            self.see("harness", Saw.DIED, client=who)
            self.record("LeaseEnded", environment, lease, reason="process_gone")
        self.serve()

    def look(self) -> None:
        for lease, (who, *_) in list(self.held.items()):
            self.see(who, Saw.ALIVE, lease=lease, state="held", request=None)
        for who, request, _ in self.waiting:
            self.see(who, Saw.ALIVE, lease=f"of-{who}", state="queued", request=request)

    def play(self, steps: int) -> History:
        for _ in range(steps):
            do = self.rng.choice([self.ask, self.look, self.end if self.held else self.ask])
            do()
        return self

    def finish(self) -> History:
        while self.held:
            self.end()
        for who, request, _ in self.waiting:
            self.see(who, Saw.GAVE_UP, request=request, why="the end")
        dead = self.at
        self.see("harness", Saw.PROBED, dead, granted=True)
        return self

    def broken(self) -> set[Property]:
        return {finding.broken for finding in check(self.seen, RULES, self.ledger).findings}


HISTORIES = st.builds(
    lambda seed, steps: History(random.Random(seed)).play(steps),
    st.integers(0, 2**32),
    st.integers(1, 60),
)


@given(HISTORIES)
@settings(deadline=None)
def test_it_is_silent_on_honest_histories(history: History) -> None:
    history.finish()
    verdict = check(history.seen, RULES, history.ledger)
    assert not verdict.findings
    assert verdict.looked_at["clients"] == history.born


@given(HISTORIES, st.integers(1, 10))
@settings(deadline=None)
def test_it_finds_memory_promised_twice(history: History, memory: int) -> None:
    history.look()
    history.ask()
    for gpu in RULES.capacity:
        victim = "thief-" + gpu
        history.see(victim, Saw.BORN, environment=victim, pid=0)
        since = history.see(
            victim, Saw.ASKED, request="r", gpus=1, memory=10, **{"class": "interactive"}
        )
        history.record("LeaseGranted", victim, victim, gpus=[{"gpu": gpu, "memory": 10}])
        history.see(victim, Saw.GRANTED, since, request="r", lease=victim, gpus=[[gpu, 10]])
        history.held[victim] = (victim, victim, gpu, 10)
    occupied = len(history.held) > len(RULES.capacity)
    history.look()
    history.waiting.clear()
    history.finish()
    assert (Property.DOUBLE in history.broken()) == occupied


@given(HISTORIES)
@settings(deadline=None)
def test_it_finds_memory_given_away_while_it_is_still_in_use(history: History) -> None:
    """The lease has ended, but the driver still shows the task's memory."""
    history.waiting.clear()
    for lease in list(history.held):
        history.held.pop(lease)
    history.seen.clear()
    history.ledger.clear()
    for who in ("first", "second"):
        history.see(who, Saw.BORN, environment=who, pid=0)
        since = history.see(
            who, Saw.ASKED, request="r", gpus=1, memory=8, **{"class": "interactive"}
        )
        history.record("LeaseGranted", who, who, gpus=[{"gpu": "GPU-0", "memory": 8}])
        history.see(who, Saw.GRANTED, since, request="r", lease=who, gpus=[["GPU-0", 8]])
        history.see("harness", Saw.MEMORY, client=who, gpu="GPU-0", memory=8)
        since = history.see(who, Saw.RELEASING, lease=who)
        history.record("LeaseEnded", who, who, reason="released")
        history.see(who, Saw.RELEASED, since, lease=who, state="ended")
    history.see("harness", Saw.MEMORY_GONE, client="first", gpu="GPU-0")
    assert history.broken() == {Property.DOUBLE}


@pytest.mark.parametrize("is_told_first", [True, False])
@pytest.mark.parametrize("is_lowered", [True, False])
def test_a_lifted_limit_counts_from_when_it_is_told_until_the_client_obeys(
    is_told_first: bool, is_lowered: bool
) -> None:
    history = History(random.Random(1))
    for who in ("alice", "bob"):
        history.see(who, Saw.BORN, environment=who, pid=0)

    def granted(who: str, memory: int) -> None:
        wish = {"request": "r", "gpus": 1, "memory": memory, "class": "interactive"}
        since = history.see(who, Saw.ASKED, **wish)
        gpus = [{"gpu": "GPU-0", "memory": memory}]
        history.record("LeaseGranted", who, who, gpus=gpus)
        history.see(who, Saw.GRANTED, since, request="r", lease=who, gpus=[["GPU-0", memory]])

    def limited(memory: int) -> None:
        if is_told_first:
            gpus = [{"gpu": "GPU-0", "memory": memory}]
            history.record("LimitTold", "alice", "alice", gpus=gpus)
        history.see("alice", Saw.LIMITED, lease="alice", gpus=[["GPU-0", memory]])

    granted("alice", 4)
    limited(9)
    history.see("alice", Saw.ALIVE, lease="alice", state="held", request=None)
    if is_lowered:
        limited(4)
    granted("bob", 4)
    for who in ("alice", "bob"):
        history.see(who, Saw.ALIVE, lease=who, state="held", request=None)
        since = history.see(who, Saw.RELEASING, lease=who)
        history.record("LeaseEnded", who, who, reason="released")
        history.see(who, Saw.RELEASED, since, lease=who, state="ended")
    expected = set() if is_lowered else {Property.DOUBLE}
    assert history.broken() == expected | (set() if is_told_first else {Property.LEDGER})


@pytest.mark.parametrize("why", [None, "uses more", "two use more", "another person"])
def test_it_finds_who_is_asked_for_a_cache_without_cause(why: str | None) -> None:
    history = History(random.Random(1))
    environments = {"alice": "a", "bob": "b" if why == "another person" else "a"}
    for who, environment in environments.items():
        history.see(who, Saw.BORN, environment=environment, pid=0)
        wish = {"request": "r", "gpus": 1, "memory": 4, "class": "interactive"}
        since = history.see(who, Saw.ASKED, **wish)
        history.record("LeaseGranted", environment, who, gpus=[{"gpu": "GPU-0", "memory": 4}])
        history.see(who, Saw.GRANTED, since, request="r", lease=who, gpus=[["GPU-0", 4]])
    used = {
        None: {"alice": 4},
        "uses more": {"alice": 5},
        "two use more": {"alice": 3, "bob": 2},
        "another person": {"alice": 3, "bob": 5},
    }[why]
    for who, memory in used.items():
        history.see("harness", Saw.MEMORY, client=who, gpu="GPU-0", memory=memory)
    history.see("alice", Saw.EMPTIED, lease="alice")
    for who in used:
        history.see("harness", Saw.MEMORY_GONE, client=who, gpu="GPU-0")
    for who, environment in environments.items():
        since = history.see(who, Saw.RELEASING, lease=who)
        history.record("LeaseEnded", environment, who, reason="released")
        history.see(who, Saw.RELEASED, since, lease=who, state="ended")
    is_excused = why in ("uses more", "two use more")
    assert history.broken() == (set() if is_excused else {Property.CACHE})


@pytest.mark.parametrize("why", [None, "one after the other", "stopped", "revoked"])
def test_it_finds_two_that_compute_at_once(why: str | None) -> None:
    history = History(random.Random(1))
    for who in ("alice", "bob"):
        history.see(who, Saw.BORN, environment=who, pid=0)
    if why == "stopped":  # it may have lost its turn, and not have heard of it
        history.see("harness", Saw.STOPPED, client="bob")
        history.see("harness", Saw.WENT_ON, client="bob")
    if why == "revoked":
        history.see("harness", Saw.REVOKED, lease="bob")
    begins = history.see("alice", Saw.ALIVE, lease="alice", state="held", request=None)
    ends = history.see("bob", Saw.STEP, begins, lease="bob", gpus=["GPU-0"])
    since = ends if why == "one after the other" else begins
    history.see("alice", Saw.STEP, since, lease="alice", gpus=["GPU-0"])
    assert history.broken() == (set() if why else {Property.TURN})


@pytest.mark.parametrize(
    "why",
    [None, "short", "node manager killed", "stopped", "killed", "lost", "client killed at a gate"],
)
def test_it_finds_who_waits_for_a_turn_for_too_long(why: str | None) -> None:
    history = History(random.Random(1))
    history.see("alice", Saw.BORN, environment="alice", pid=0)
    history.see("alice", Saw.WAITS, lease="alice")
    if why != "short":
        history.at += RULES.turn_wait
    if why == "stopped":  # another one, which may have had the turn
        history.see("harness", Saw.STOPPED, client="bob")
        history.see("harness", Saw.WENT_ON, client="bob")
    elif why in ("node manager killed", "client killed at a gate"):
        history.see("harness", Saw.FAULT, name=why)
    match why:
        case "killed":  # it waited until then
            history.see("harness", Saw.KILLED, client="alice")
        case "lost":
            history.see("harness", Saw.REVOKED, lease="alice")
            history.see("alice", Saw.LOST, lease="alice", message="revoked")
        case _:
            history.see("alice", Saw.PASSED, lease="alice")
    is_explained = why in ("short", "node manager killed", "stopped")
    assert history.broken() == (set() if is_explained else {Property.WAITS})


def test_tasks_of_one_environment_share_their_reservation() -> None:
    history = History(random.Random(0))
    for who in ("one", "two"):
        history.see(who, Saw.BORN, environment="alice", pid=0)
        history.see(who, Saw.GRANTED, request="r", lease=who, gpus=[["GPU-0", 10]])
        history.record("LeaseGranted", "alice", who, gpus=[{"gpu": "GPU-0", "memory": 10}])
        history.ledger[-1] = dataclasses.replace(history.ledger[-1], at=0.0)
    for who in ("one", "two"):
        history.see(who, Saw.ALIVE, lease=who, state="held", request=None)
        history.see("harness", Saw.KILLED, client=who)
        history.record("LeaseEnded", "alice", who, reason="process_gone")
    assert history.broken() == set()


def _holder(history: History) -> tuple[str, str]:
    if not history.held:
        history.waiting.clear()
        history.ask()
    lease = history.rng.choice(list(history.held))
    return history.held[lease][0], lease


@given(HISTORIES, st.sampled_from([None, "stopped", "revoked"]))
@settings(deadline=None)
def test_it_finds_a_lost_lease_and_knows_what_excuses(history: History, excuse: str | None) -> None:
    who, lease = _holder(history)
    if excuse == "stopped":
        history.see("harness", Saw.STOPPED, client=who)
        history.at += RULES.heartbeat_timeout
        history.see("harness", Saw.WENT_ON, client=who)
    elif excuse == "revoked":
        history.see("harness", Saw.REVOKED, lease=lease)
    history.record("LeaseEnded", who, lease, reason="heartbeat_lost")
    history.held.pop(lease)
    history.see(who, Saw.LOST, lease=lease, message="lost")
    history.finish()
    assert history.broken() == (set() if excuse else {Property.LOST})


@given(HISTORIES, st.booleans())
@settings(deadline=None)
def test_it_finds_a_leak(history: History, is_late: bool) -> None:
    history.finish()
    history.see("harness", Saw.PROBED, history.at - (2.0 if is_late else 0.0), granted=is_late)
    assert history.broken() == {Property.LEAKED}


@given(HISTORIES)
@settings(deadline=None)
def test_it_finds_who_is_passed_over_too_often(history: History) -> None:
    history.waiting.clear()
    history.see("poor", Saw.BORN, environment="poor", pid=0)
    history.see("poor", Saw.ASKED, request="r", gpus=2, memory=10, **{"class": "interactive"})
    history.see("poor", Saw.QUEUED, request="r", lease="poor")
    count = 3 * (history.born + 40)
    for number in range(count):
        who = "rich"
        if number == 0:
            history.see(who, Saw.BORN, environment=who, pid=0)
        since = history.see(
            who, Saw.ASKED, request=f"{number}", gpus=1, memory=1, **{"class": "interactive"}
        )
        history.see(who, Saw.REFUSED, since, request="none", why="")
        history.see(who, Saw.ASKED, request=f"{number}", gpus=1, memory=1, **{"class": "batch"})
        history.see(who, Saw.GRANTED, since, request=f"{number}", lease=f"l{number}", gpus=[])
    history.see("poor", Saw.ALIVE, lease="poor", state="queued", request="r")
    assert Property.ORDER in history.broken()


@pytest.mark.parametrize("same", [True, False])
def test_it_finds_that_equals_are_not_served_as_they_came(same: bool) -> None:
    history = History(random.Random(0))
    for who, memory in (("first", 4), ("second", 4 if same else 2)):
        history.see(who, Saw.BORN, environment="alice", pid=0)
        history.see(who, Saw.ASKED, request=who, gpus=1, memory=memory, **{"class": "batch"})
        history.see(who, Saw.QUEUED, request=who, lease=who)
    history.record("LeaseGranted", "alice", "second", gpus=[])
    history.record("LeaseEnded", "alice", "second", reason="released")
    history.see("second", Saw.GRANTED, 0.0, request="second", lease="second", gpus=[])
    history.see("first", Saw.ALIVE, lease="first", state="queued", request="first")
    assert history.broken() == ({Property.ORDER} if same else set())


DAMAGES = ["grant dropped", "end dropped", "another GPU", "less memory", "another environment"]


@given(HISTORIES, st.sampled_from([*DAMAGES, "granted later", "ended early"]))
@settings(deadline=None)
def test_it_finds_a_ledger_that_is_not_what_happened(history: History, damage: str) -> None:
    _who, lease = _holder(history)
    history.look()
    history.finish()
    index = {record.kind: n for n, record in enumerate(history.ledger) if record.lease == lease}
    grant, end = history.ledger[index["LeaseGranted"]], history.ledger[index["LeaseEnded"]]
    (part,) = grant.data["gpus"]
    other = {"GPU-0": "GPU-1", "GPU-1": "GPU-0"}[part["gpu"]]
    changed: dict[str, tuple[Record, Record | None]] = {
        "grant dropped": (grant, None),
        "end dropped": (end, None),
        "another GPU": (
            grant,
            dataclasses.replace(grant, data={"gpus": [{**part, "gpu": other}]}),
        ),
        "less memory": (
            grant,
            dataclasses.replace(grant, data={"gpus": [{**part, "memory": 0}]}),
        ),
        "another environment": (grant, dataclasses.replace(grant, environment="mallory")),
        "granted later": (grant, dataclasses.replace(grant, at=end.at - 0.0001)),
        "ended early": (end, dataclasses.replace(end, at=grant.at + 0.0001)),
    }
    old, new = changed[damage]
    history.ledger = [
        new if record is old else record
        for record in history.ledger
        if record is not old or new is not None
    ]
    assert history.broken() == {Property.LEDGER}


def test_a_log_survives_a_torn_last_line(tmp_path) -> None:
    log = Log(tmp_path / "someone.log")
    log.note(Saw.BORN, environment="alice", pid=1)
    log.note(Saw.ASKED, request="r", gpus=1)
    log.close()
    with log.path.open("ab") as file:
        file.write(b'{"saw": "gran')
    first, second = read_log(log.path)
    assert (first.who, first.saw, second.saw) == ("someone", Saw.BORN, Saw.ASKED)
    assert first.t1 <= second.t1


@pytest.mark.parametrize("is_killed", [True, False])
def test_memory_of_the_dead_is_gone_whenever_the_harness_says_so(is_killed: bool) -> None:
    """Found by a soak: a client ended by itself, and what it was said to have stayed."""
    history = History(random.Random(0))
    for who in ("first", "second"):
        history.see(who, Saw.BORN, environment=who, pid=0)
        since = history.see(
            who, Saw.ASKED, request="r", gpus=1, memory=8, **{"class": "interactive"}
        )
        history.record("LeaseGranted", who, who, gpus=[{"gpu": "GPU-0", "memory": 8}])
        history.see(who, Saw.GRANTED, since, request="r", lease=who, gpus=[["GPU-0", 8]])
        history.see("harness", Saw.MEMORY, client=who, gpu="GPU-0", memory=8)
        if is_killed:
            history.see("harness", Saw.KILLED, client=who)
        else:
            since = history.see(who, Saw.RELEASING, lease=who)
            history.see(who, Saw.RELEASED, since, lease=who, state="parked")
        history.see("harness", Saw.DIED, client=who)
        history.record("LeaseEnded", who, who, reason="process_gone")
    for who in ("first", "second"):
        history.see("harness", Saw.MEMORY_GONE, client=who, gpu="GPU-0")
    assert history.broken() == set()


def test_who_is_killed_twice_holds_nothing_after_the_first_time() -> None:
    """Found by a soak: the second kill came when the node manager had freed its GPU."""
    history = History(random.Random(0))
    history.waiting.clear()
    who, lease = _holder(history)
    history.see("harness", Saw.KILLED, client=who)
    history.held.pop(lease)
    history.record("LeaseEnded", who, lease, reason="process_gone")
    history.see("harness", Saw.KILLED, client=who)
    history.see("harness", Saw.DIED, client=who)
    assert history.broken() == set()


def _tenant(history: History, who: str) -> None:
    """A client with memory on its GPU, about to idle."""
    history.see(who, Saw.BORN, environment=who, pid=0)
    since = history.see(who, Saw.ASKED, request="r", notebook=True)
    history.record("LeaseGranted", who, who, gpus=[{"gpu": "GPU-0", "memory": 8}])
    history.see(who, Saw.GRANTED, since, request="r", lease=who, gpus=[["GPU-0", 8]])
    history.see(who, Saw.FILLED, memory=8)
    history.see(who, Saw.PARKING, lease=who)


def _parked(history: History, who: str) -> None:
    history.record("LeaseParked", who, who)
    history.see(who, Saw.PARKED, lease=who, rung="driver", memory=8)


@pytest.mark.parametrize("overlaps", [True, False])
def test_it_finds_what_was_granted_over_memory_that_was_still_there(overlaps: bool) -> None:
    history = History(random.Random(0))
    _tenant(history, "first")
    filled = history.at
    gone = history.at
    if not overlaps:
        history.see("harness", Saw.FAULT, name="nothing")
        gone = history.at
    _parked(history, "first")
    _tenant(history, "second")
    if overlaps:
        gone = history.at + 1.0
    history.see(
        "harness",
        Saw.RESIDENT,
        client="first",
        gpu="GPU-0",
        memory=8,
        begin=filled,
        end=gone,
    )
    history.see("second", Saw.GRANTED, request="cell", lease="second", gpus=[["GPU-0", 8]])
    history.see("second", Saw.ALIVE, lease="second", state="held", request=None)
    history.see("second", Saw.PARKING, lease="second")
    _parked(history, "second")
    assert history.broken() == ({Property.DOUBLE} if overlaps else set())


@pytest.mark.parametrize("saw", [Saw.WHOLE, Saw.DAMAGED, Saw.BARRED, Saw.GIVEN_UP])
@pytest.mark.parametrize("cause", [None, "GPU", "another GPU", "driver"])
def test_memory_comes_back_or_is_told_as_lost_with_a_cause(saw: Saw, cause: str | None) -> None:
    history = History(random.Random(0))
    _tenant(history, "who")
    _parked(history, "who")
    if cause == "driver":
        history.see("harness", Saw.DRIVER_GIVES_UP)
    elif cause is not None:
        history.see("harness", Saw.GPU_LOST, gpu="GPU-0" if cause == "GPU" else "GPU-1")
    called = history.at
    history.see("who", saw, why="")
    history.see("harness", Saw.CALLED, called, client="who")
    told = saw is Saw.GIVEN_UP and cause in ("GPU", "driver")
    assert history.broken() == (set() if told or saw is Saw.WHOLE else {Property.MEMORY})


def test_memory_must_have_room_to_come_back_to() -> None:
    history = History(random.Random(0))
    _tenant(history, "who")
    _parked(history, "who")
    history.see("harness", Saw.STUCK, client="who")
    assert history.broken() == {Property.MEMORY}


@pytest.mark.parametrize("second", ["one", "two"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_request_is_one_lease_however_often_it_is_sent(second: str, stopped: bool) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.see("who", Saw.ASKED, request="r", gpus=1, memory=1, **{"class": "batch"})
    history.see("who", Saw.QUEUED, request="r", lease="one")
    if stopped:
        history.see("harness", Saw.STOPPED, client="who")
        history.at += RULES.heartbeat_timeout
        history.see("harness", Saw.WENT_ON, client="who")
    history.see("who", Saw.QUEUED, request="r", lease=second)
    found = second == "two" and not stopped
    assert history.broken() == ({Property.AGAIN} if found else set())


@pytest.mark.parametrize("reason", ["refused", "heartbeat_lost"])
def test_a_request_that_was_refused_while_nothing_reached_it_may_ask_anew(reason: str) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.see("who", Saw.ASKED, request="r", gpus=1, memory=1, **{"class": "batch"})
    history.see("who", Saw.QUEUED, request="r", lease="one")
    history.record("LeaseEnded", "who", "one", reason=reason)
    history.see("who", Saw.QUEUED, request="r", lease="two")
    assert history.broken() == (set() if reason == "refused" else {Property.AGAIN})


@pytest.mark.parametrize("why", [None, "node manager killed", "client killed", "stopped"])
def test_who_asks_is_answered_unless_something_is_in_the_way(why: str | None) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    if why == "stopped":
        history.see("harness", Saw.STOPPED, client="who")
    elif why is not None:
        history.see("harness", Saw.FAULT, name=why)
    for _ in range(5):
        since = history.at
        history.at += 3.0
        history.see("who", Saw.GAVE_UP, since, lease="l", why="NodeUnavailable")
    if why == "stopped":
        history.see("harness", Saw.WENT_ON, client="who")
    found = why in (None, "client killed")
    assert history.broken() == ({Property.SILENT} if found else set())


@pytest.mark.parametrize("sure", [True, False])
def test_a_gpu_is_out_of_service_where_the_order_was_answered(sure: bool) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.see("harness", Saw.DRAINED, gpu="GPU-0", sure=sure)
    since = history.see("who", Saw.ASKED, request="r", gpus=1, memory=8, **{"class": "batch"})
    history.record("LeaseGranted", "who", "l", gpus=[{"gpu": "GPU-0", "memory": 8}])
    history.see("who", Saw.GRANTED, since, request="r", lease="l", gpus=[["GPU-0", 8]])
    history.see("harness", Saw.BACK, gpu="GPU-0")
    since = history.see("who", Saw.RELEASING, lease="l")
    history.record("LeaseEnded", "who", "l", reason="released")
    history.see("who", Saw.RELEASED, since, lease="l", state="ended")
    assert history.broken() == ({Property.DRAINED} if sure else set())


def _locked(history: History, how: str, begin: float, end: float) -> None:
    if how == "books":
        history.see("harness", Saw.LOCKED, client="who", begin=begin, end=end)
    else:
        history.at = end
        history.see("who", Saw.STEPPED, begin)


@given(st.integers(0, 2**32), st.sampled_from(["books", "step"]), st.floats(0.0, 30.0))
@settings(deadline=None)
def test_nobody_is_locked_for_longer_than_promised(seed: int, how: str, seconds: float) -> None:
    history = History(random.Random(seed))
    history.see("who", Saw.BORN, environment="who", pid=0)
    _locked(history, how, 200.0, 200.0 + seconds)
    # A step may have waited, too, between the lock's end and when it is written down.
    assume(how == "books" or not RULES.lock_bound - 0.5 < seconds <= RULES.lock_bound)
    found = seconds > RULES.lock_bound
    assert history.broken() == ({Property.LOCKED} if found else set())


@pytest.mark.parametrize("how", ["books", "step"])
@pytest.mark.parametrize(
    ("ill", "seconds", "found"),
    [
        ((201.0, 202.0), 9.0, False),  # within what it may take until another one is there
        ((201.0, 202.0), 14.0, False),
        ((201.0, 202.0), 16.0, True),
        ((150.0, 170.0), 4.0, True),  # long before
        ((215.0, 216.0), 5.0, True),  # afterwards
    ],
)
def test_a_helper_that_was_held_up_explains_a_lock_for_some_time(
    how: str, ill: tuple[float, float], seconds: float, found: bool
) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.seen.append(Seen("harness", Saw.HELPER, *ill))
    _locked(history, how, 200.0, 200.0 + seconds)
    assert history.broken() == ({Property.LOCKED} if found else set())


@pytest.mark.parametrize("how", ["books", "step"])
def test_who_was_stopped_may_be_locked_for_long(how: str) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.see("harness", Saw.STOPPED, client="who")
    begin = history.at
    history.see("harness", Saw.FAULT, name="nothing")
    history.at += 20.0
    history.see("harness", Saw.WENT_ON, client="who")
    _locked(history, how, begin + 0.001, history.at)
    assert history.broken() == set()


@pytest.mark.parametrize("steps", ["before", "across", "after"])
def test_when_the_node_manager_is_gone_nobody_is_locked(steps: str) -> None:
    history = History(random.Random(0))
    history.see("who", Saw.BORN, environment="who", pid=0)
    history.see("who", Saw.STEPPED)
    if steps == "before":
        gone = history.see("harness", Saw.FAULT, name="node manager killed")
    else:
        since = history.see("harness", Saw.FAULT, name="nothing")
        gone = history.see("harness", Saw.FAULT, name="node manager killed")
        # What was launched before may have been done before anybody was locked.
        history.see("who", Saw.STEPPED, None if steps == "after" else since)
    history.see("harness", Saw.FREED, gone, client="who")
    assert history.broken() == (set() if steps == "after" else {Property.LOCKED})


@dataclass
class Program:
    """An honest batch program that is stopped and goes on, life after life."""

    history: History
    count: int = 0  # steps that it has made
    saved: int = 0
    lives: int = 0

    @property
    def who(self) -> str:
        return f"saver-{self.lives}"

    def begin(self) -> None:
        self.lives += 1
        self.count = self.saved
        self.history.see(self.who, Saw.BORN, environment="bob", pid=self.lives)
        self.history.see(self.who, Saw.LOADED, slot=0, count=self.count)
        self.history.see(self.who, Saw.ASKED, request="tenant", notebook=True)
        self.history.see(self.who, Saw.SAYS)

    def compute(self) -> None:
        self.history.at += 1.0
        for _ in range(self.history.rng.randrange(5)):
            self.count += 1
            self.history.see(self.who, Saw.COUNTED, slot=0, count=self.count)

    def told(self, seconds: float = 4.0) -> None:
        self.history.see(self.who, Saw.TOLD, lease="l", seconds=seconds)

    def save(self, begun: int | None = None) -> None:
        data = {"slot": 0, "count": self.count, "begun": self.count if begun is None else begun}
        self.history.see(self.who, Saw.SAVING, **data)
        self.history.see(self.who, Saw.SAVED, **data)
        self.saved = self.count

    def live(self) -> None:
        """It ends by itself, is stopped, goes on for a while, or is killed at any of these."""
        self.begin()
        self.compute()
        how = self.history.rng.random()
        if how < 0.6:
            self.told()
            if how < 0.2:
                self.history.see(self.who, Saw.KEEPS, lease="l", why="no gate")
                self.compute()
            elif how < 0.5:
                self.save()
            else:  # the file was there before it was killed, or was not
                data = {"slot": 0, "count": self.count, "begun": self.count}
                self.history.see(self.who, Saw.SAVING, **data)
                self.saved = self.history.rng.choice((self.saved, self.count))
        self.history.see("harness", Saw.KILLED, client=self.who)
        self.history.see("harness", Saw.DIED, client=self.who)


PROGRAMS = st.builds(
    lambda seed, lives: [p := Program(History(random.Random(seed))), *(p.live() for _ in lives)][0],
    st.integers(0, 2**32),
    st.lists(st.none(), min_size=1, max_size=6),
)


@given(PROGRAMS)
@settings(deadline=None)
def test_it_is_silent_where_programs_are_stopped_and_go_on(program: Program) -> None:
    assert program.history.broken() == set()


@given(PROGRAMS, st.integers(1, 9), st.booleans())
@settings(deadline=None)
def test_it_finds_what_was_saved_and_is_not_there(program: Program, steps: int, up: bool) -> None:
    program.begin()
    program.compute()
    program.told()
    program.count += steps
    program.save()
    program.saved += steps if up else -steps
    program.begin()
    assert program.history.broken() == {Property.STOP}


@pytest.mark.parametrize(
    "damage",
    ["said nothing", "at once", "no time", "in mid-step", "untold", "no answer", "stopped", "none"],
)
def test_only_who_said_how_is_stopped_and_has_its_time(damage: str) -> None:
    history = History(random.Random(0))
    program = Program(history)
    program.begin()
    if damage != "at once":
        program.compute()
    if damage == "said nothing":
        history.seen = [line for line in history.seen if line.saw is not Saw.SAYS]
    if damage == "at once":
        history.at = history.seen[-2].t0 + 0.1
    if damage != "untold":
        program.told(1.0 if damage == "no time" else 4.0)
    if damage == "stopped":
        history.see("harness", Saw.STOPPED, client=program.who)
    if damage in ("no answer", "stopped"):
        history.at += 15.0
    if damage == "stopped":
        history.see("harness", Saw.WENT_ON, client=program.who)
    if damage == "no answer":
        history.see("harness", Saw.FAULT, name="nothing")
    else:
        program.save(program.count + 1 if damage == "in mid-step" else None)
    found = set() if damage in ("none", "stopped") else {Property.STOP}
    assert history.broken() == found


@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_it_finds_who_moves_beyond_a_quota(seed: int, quota: int, is_first_over: bool) -> None:
    """Three GPUs one after the other, or at once: only at once they are too many."""
    history = History(random.Random(seed))
    rules = dataclasses.replace(
        RULES, quotas={"who": quota}, capacity=dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), 10)
    )
    history.see("who", Saw.BORN, environment="who", pid=0)
    for gpu in rules.capacity:
        since = history.see("who", Saw.ASKED, request=gpu, notebook=True)
        history.record("LeaseGranted", "who", gpu, gpus=[{"gpu": gpu, "memory": 4}])
        history.see("who", Saw.GRANTED, since, request=gpu, lease=gpu, gpus=[[gpu, 4]])
        if is_first_over:
            history.see("who", Saw.PARKING, lease=gpu)
            history.record("LeaseParked", "who", gpu)
            history.see("who", Saw.PARKED, lease=gpu, rung="driver", memory=4)
        else:
            for had in rules.capacity:
                history.see("who", Saw.ALIVE, lease=had, state="held", request=None)
    for gpu in rules.capacity:
        history.record("LeaseEnded", "who", gpu, reason="released")
        history.see("who", Saw.LET_GO, lease=gpu)
    found = {finding.broken for finding in check(history.seen, rules).findings}
    assert found == ({Property.QUOTA} if quota < 3 and not is_first_over else set())
