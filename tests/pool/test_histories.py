"""Whatever is cut, lost, late, doubled or killed, nobody has more than the quota on all hosts.

Random histories of the pool and hosts whose clocks drift.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples
from support.hosts import impossible
from support.pool_world import CONFIG, World
from support.poolstorm import Plan, Storm

from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool.words import commands as cmd, events as ev
from jupyter_gpushare.pool.words.hosts import Group

pytestmark = pytest.mark.timeout(900)

HOSTS = st.sampled_from("abc")
PEOPLE = st.sampled_from(("ada", "bob", "cy", "dee"))
#: What a group has of its own, may borrow, may lend.
FEW = st.sampled_from((None, 0, 1))
NUMBERS = st.tuples(st.integers(0, 2), FEW, FEW)
GROUPS = {"ada": ("x",), "bob": ("x",), "cy": ("y",), "dee": ("z",)}


class Histories(RuleBasedStateMachine):
    """One person's quota over three hosts is never exceeded by more than the stated bound."""

    quota = Quota(gpus=2)

    def __init__(self) -> None:
        super().__init__()
        self.world = World("a", "b", "c", quota=self.quota)
        drift = CONFIG.drift
        for name, rate in zip("abc", (1 - drift, 1.0, 1 + drift), strict=True):
            self.world.nodes[name].rate = rate
        self.world.rate = 1 + drift

    @rule(host=HOSTS, who=PEOPLE, gpus=st.integers(1, 2))
    def request(self, host: str, who: str, gpus: int) -> None:
        if len(self.world.nodes[host].wants) < 4:
            self.world.request(host, who, gpus)

    @rule(host=HOSTS, who=PEOPLE)
    def release(self, host: str, who: str) -> None:
        self.world.release(host, who)

    @rule(host=HOSTS)
    def give_up_waiting(self, host: str) -> None:
        self.world.nodes[host].wants.clear()
        self.world.nodes[host].say()

    @rule(host=HOSTS, twice=st.booleans())
    def to_pool(self, host: str, twice: bool) -> None:
        self.world.deliver_up(host, twice=twice)

    @rule(host=HOSTS, twice=st.booleans())
    def to_host(self, host: str, twice: bool) -> None:
        self.world.deliver_down(host, twice=twice)

    @rule(host=HOSTS)
    def late(self, host: str) -> None:
        """A host reads what was sent over a link that has ended."""
        node = self.world.nodes[host]
        if node.late:
            node.hear(node.late.pop(0))

    @rule(host=HOSTS)
    def cut(self, host: str) -> None:
        self.world.cut(host)

    @rule(host=HOSTS)
    def heal(self, host: str) -> None:
        self.world.heal(host)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule()
    def pool_is_killed(self) -> None:
        self.world.kill()

    @rule(host=HOSTS)
    def pool_is_killed_before_it_sends(self, host: str) -> None:
        node = self.world.nodes[host]
        if node.up:
            message = node.up.popleft()
            if not isinstance(message, tuple):
                self.world.do(cmd.HostReported(self.world.time, host, message), sent=False)
            self.world.kill()

    @rule(host=HOSTS)
    def host_reboots(self, host: str) -> None:
        self.world.reboot(host)

    @rule(seconds=st.sampled_from((0.5, 20.0, 61.0, 125.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.passes(seconds)

    @invariant()
    def within_the_bound(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Once all is reachable, nobody waits in vain, and each who waits knows why."""
        for name in self.world.nodes:
            self.world.heal(name)
        self.world.settle()
        # What came late is over: the renewal has it again.
        self.world.passes(CONFIG.validity / 2 + 1.0)
        self.world.settle()
        self.world.check()
        state = self.world.state
        for name, node in self.world.nodes.items():
            for who, gpus, _since in node.wants:
                assert node.whys.get(who), (name, who, self.world.story())
                self.in_vain(who, gpus, name)
        for host in state.hosts.values():
            for who, out in host.out.items():
                held = self.world.nodes[host.name].held.get(who, 0)
                assert out.answered
                assert out.gpus == max(out.asked, held), (host.name, who, out, held)

    def in_vain(self, who: str, gpus: int, host: str) -> None:
        assert self.world.held(who) + gpus > self.quota.gpus, (host, who)


class GoesOn(Histories):
    """Hosts are given up while their people go on elsewhere."""

    @rule(lost=HOSTS, other=HOSTS, who=PEOPLE)
    def somebody_goes_on_elsewhere(self, lost: str, other: str, who: str) -> None:
        """A host is given up with what runs there, and comes back when that ends.

        Chance alone leads to this too seldom.
        """
        if lost != other:
            self.world.ask(lost, who)
            self.world.cut(lost)
            self.world.passes(125.0)
            self.world.heal(other)
            self.world.ask(other, who)
            self.world.give(other, who)
            self.world.heal(lost)
            for host in (lost, other):
                self.world.release(host, who)
                self.world.request(host, who)


class Indivisible(GoesOn):
    """A quota of one GPU."""

    quota = Quota(gpus=1)


class Hours(Histories):
    """GPU-hours are bounded without any excess."""

    quota = Quota(gpus=2, gpu_hours=0.1)

    def in_vain(self, who: str, gpus: int, host: str) -> None:
        pass

    def teardown(self) -> None:
        self.world.check()


class Breathing(GoesOn):
    """Groups: each gets its nominal GPUs once those who borrowed have given back.

    None has more than it may, but for what still runs on hosts that were given up.
    """

    quota = Quota(gpus=2)
    groups: tuple[Group, ...] = ()

    @initialize(numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS))
    def have(self, numbers: tuple[tuple[int, int | None, int | None], ...]) -> None:
        self.groups = tuple(Group(name, *of) for name, of in zip("xyz", numbers, strict=True))
        for group in self.groups:
            self.world.deed(ev.GroupSet, group)
        for who, groups in GROUPS.items():
            self.world.do(cmd.Introduce(self.world.time, who, groups))

    @rule(host=HOSTS)
    def gives_back(self, host: str) -> None:
        self.world.nodes[host].give_back()

    def used(self, group: str) -> int:
        return sum(self.world.held(who) for who, groups in GROUPS.items() if group in groups)

    def since(self, group: str) -> int:
        """What members hold, without what ran already when its host was given up."""
        older = self.world.older.items()
        return self.used(group) - sum(n for (_h, who), n in older if group in GROUPS[who])

    @invariant()
    def groups_within_their_bound(self) -> None:
        excess = sum(self.world.given_up_of_groups.values())
        common = lent = 0
        for group in self.groups:
            used, since = self.used(group.name), self.since(group.name)
            if group.borrowing is not None:
                most = group.nominal + group.borrowing
                assert used <= most + excess, (group, used, self.world.story())
                # The excess ends with what ran: nothing new begins in its place.
                assert since <= most, (group, since, self.world.older, self.world.story())
            lends = group.nominal if group.lending is None else min(group.lending, group.nominal)
            lent += lends
            common += max(0, since - (group.nominal - lends))
        most = sum(group.nominal for group in self.groups) + excess
        assert sum(self.used(group.name) for group in self.groups) <= most
        assert common <= lent, (common, lent, self.world.older, self.world.story())

    def in_vain(self, who: str, gpus: int, host: str) -> None:
        (group,) = (group for group in self.groups if group.name in GROUPS[who])
        used = self.used(group.name)
        own = self.world.held(who) + gpus <= self.quota.gpus
        assert not own or used + gpus > group.nominal, (who, used, group, self.world.story())


SETTINGS = {"stateful_step_count": 50, "suppress_health_check": [HealthCheck.too_slow]}
TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(150), **SETTINGS)
TestIndivisible = Indivisible.TestCase
TestIndivisible.settings = settings(max_examples=examples(150), **SETTINGS)
TestHours = Hours.TestCase
TestHours.settings = settings(max_examples=examples(60), **SETTINGS)
TestBreathing = Breathing.TestCase
TestBreathing.settings = settings(max_examples=examples(200), **SETTINGS)


# -- a storm ---------------------------------------------------------------------------------------

MINUTES = float(os.environ.get("POOL_STORM_MINUTES") or 10.0)


@pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")
@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_a_long_storm(tmp_path: Path) -> None:
    """``POOL_STORM_MINUTES`` and ``POOL_STORM_SEED`` say how long, and which."""
    seed = int(os.environ.get("POOL_STORM_SEED") or random.SystemRandom().randrange(2**31))
    report = Storm(tmp_path, Plan(seed, 60 * MINUTES)).run()
    print(report)
    assert not report.wrong
    assert report.rounds >= 4 * MINUTES
    assert report.leases > 200 * MINUTES
    assert report.moved > 20 * MINUTES
