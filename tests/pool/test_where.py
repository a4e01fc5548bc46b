"""Something starts on the host where it can begin first, and people read the reasons.

What a model is predicted to need, and what others leave of a host's GPUs, ranks that host; a real
node manager tells it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st
from support.node import NodeClient, token_file
from support.pool import Pool, PoolNode
from support.pool_world import GIB, gpu, report
from support.predictor import PLANT

from jupyter_gpushare.policy.books.quotas import QuotaBook
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.pool.evolve import evolve
from jupyter_gpushare.pool.groups import full
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.pool.state import Drained, Host, State, Used
from jupyter_gpushare.pool.where import newest, rank
from jupyter_gpushare.pool.words import events as ev
from jupyter_gpushare.pool.words.hosts import (
    Group,
    Holding,
    HostEnvironment,
    HostEstimate,
    HostReport,
    KindShare,
    Wish,
    read_report,
)
from jupyter_gpushare.protocol.messages import Method

ADA = "ada"


def hosts(*reports: HostReport) -> list[Host]:
    state = State()
    for one in reports:
        state = evolve(state, ev.HostsChanged(0.0, one.name, True, "root"))
        state = evolve(state, ev.HostSpoke(0.0, one.name, one))
    return [state.hosts[one.name] for one in reports]


def order(wish: Wish, *reports: HostReport) -> str:
    return "".join(one.host for one in rank(hosts(*reports), wish))


def kinds(name: str, **left: int) -> HostReport:
    gpus = (gpu(name, at, kind=kind, share=share) for at, (kind, share) in enumerate(left.items()))
    return report(name, gpus=tuple(gpus))


def needing(**shares: int) -> Wish:
    """A wish for a GPU with 1 GiB, of which so much is needed of each kind."""
    expected = tuple(KindShare(kind, share, 2 * GIB) for kind, share in shares.items())
    return Wish(ADA, 1, GIB, None, expected)


def test_best_eligible_gpu_counts_not_the_sum() -> None:
    # A1 needs 40 %, A2 50 %, A3 70 %: host b's A1 with 90 left beats c's two GPUs with 80 left.
    wish = needing(A1=40, A2=50, A3=70)
    one = kinds("a", A1=30, A2=100)
    two = kinds("b", A1=90, A2=40, A3=80)
    three = kinds("c", A1=80, A3=80)
    assert order(wish, three, two, one) == "abc"
    # A GPU that has less left than the task needs of its kind is not eligible, however much it is.
    wish = needing(A1=10, A2=50, A3=90)
    assert order(wish, kinds("b", A1=30, A3=80), kinds("c", A2=80, A3=80)) == "cb"


def test_batch_makes_way_where_nothing_is_left() -> None:
    """The source's example F; hosts where it fits as it is come first."""
    full = kinds("a", A1=0)
    (a1, a2) = kinds("c", A1=20, A2=20).gpus
    some = report("c", gpus=(replace(a1, batch_share=40), a2))
    first, second = rank(hosts(full, some), needing(A1=35, A2=45))
    assert (first.host, first.fits_now, second.fits_now) == ("c", True, False)
    assert first.reasons[1] == (
        "20 % of the compute of its best one (A1) is left, and 35 % are expected to be needed: "
        "batch tasks make way there."
    )
    assert order(needing(A1=35, A2=45), some, kinds("d", A1=35)) == "dc"
    assert not rank(hosts(some), needing(A1=61, A2=45))[0].fits_now


def test_a_kind_is_known_by_the_name_that_predictors_have_for_it() -> None:
    """A host's own GPUs are predicted by NVML's names, those of others by their kinds'."""
    here = kinds("a", **{"NVIDIA H100 80GB HBM3": 50})
    ranked = rank(hosts(here), needing(H100=60))
    assert not ranked[0].fits_now
    assert rank(hosts(here), needing(**{"H100": 60, "NVIDIA H100 80GB HBM3": 40}))[0].fits_now
    # Of kinds that nobody predicted nothing is known; if that are all, it is as without.
    assert not rank(hosts(here, kinds("b", A1=10)), needing(A1=5))[1].possible
    assert rank(hosts(here), needing(A1=99))[0].fits_now


def test_what_is_expected_is_the_memory_where_the_quota_reserves_that() -> None:
    (one,) = kinds("a", A1=100).gpus
    small = report("a", gpus=(replace(one, free_memory=3 * GIB, exclusive_free=False),))
    wish = replace(needing(A1=10), memory=None)
    assert not rank(hosts(small), wish)[0].fits_now, "a whole GPU is meant"
    assert rank(hosts(small), replace(wish, by_estimate=True))[0].fits_now


def test_the_newest_of_all_that_hosts_say_counts() -> None:
    def said(at: float, share: int) -> HostEstimate:
        return HostEstimate(ADA, at, (KindShare("A1", share, GIB),))

    one = replace(report("a"), estimates=(said(20.0, 40),))
    other = HostEstimate("bob", 30.0, ())
    two = replace(report("b"), estimates=(said(10.0, 50), other))
    assert newest(hosts(two, one), ADA) == (KindShare("A1", 40, GIB),)
    assert newest(hosts(report("a")), ADA) == ()


def test_where_the_quota_is_in_use_elsewhere_it_does_not_fit_now() -> None:
    there = HostEnvironment(ADA, 1, 0, 0, 0, 0.0, 1)
    here, free = report("b", environments=(there,)), report("a")
    first, second = rank(hosts(free, here), Wish(ADA), lambda host: 1)
    # On host b another GPU is free, but the quota allows only the one that she has there.
    assert (first.host, first.fits_now) == ("b", True)
    assert first.reasons == ("It shares the GPUs that you have on host b.",)
    assert (second.host, second.fits_now, second.possible, second.wait) == ("a", False, True, None)
    assert second.reasons[0] == "Your 1 GPU in the pool is in use on host b."
    assert [one.fits_now for one in rank(hosts(free, here), Wish(ADA), lambda host: 2)] == [
        True
    ] * 2
    (only,) = rank(hosts(free), Wish(ADA), lambda host: 0)
    said = "You asked for 1 GPU; your quota in the whole pool is 0 GPUs."
    assert (only.fits_now, only.reasons[0]) == (False, said)


def test_where_the_group_may_have_no_more_it_does_not_fit_now() -> None:
    there = HostEnvironment(ADA, 1, 0, 0, 0, 0.0, 1)
    here, free = report("b", environments=(there,)), report("a")
    first, second = rank(hosts(free, here), Wish(ADA), lambda host: 2, "Group lab is full.")
    assert (first.host, first.fits_now) == ("b", True), "she shares what she has"
    assert (second.host, second.fits_now) == ("a", False)
    assert second.reasons[0] == "Group lab is full."


def test_a_group_is_full_when_it_uses_its_own_and_may_borrow_none() -> None:
    groups = Map({"lab": Group("lab", 1, borrowing=0), "other": Group("other", 4)})
    book = QuotaBook(groups_of=Map({ADA: ("lab",)}))
    state = State(
        hosts=Map({one.name: one for one in hosts(report("a"))}),
        groups=groups,
        quotas=book,
        used=Map({"lab": Used(1)}),
    )
    assert full(state, ADA, 1) == "Group lab uses all of its 1 GPU, and may borrow none."
    assert full(replace(state, used=Map()), ADA, 1) == ""
    assert full(state, "bob", 1) == "", "he is in no group"


def test_ties_queue_then_parked_bytes_then_own_kernels() -> None:
    def host(name: str, queue: int = 0, parked: int = 0, who: str = "bob", size: int = 0) -> object:
        there = HostEnvironment(who, 0, parked, size, 0, 0.0, 0)
        return report(name, queue=queue, environments=(there,))

    wish = Wish(ADA)
    assert order(wish, host("a", queue=2), host("b", queue=1)) == "ba"
    assert order(wish, host("a", size=2 * GIB), host("b", size=GIB)) == "ba"
    assert order(wish, host("a"), host("b", parked=1, who="ada")) == "ba"
    assert order(wish, host("b"), host("a")) == "ab"


def test_people_spread_while_gpus_of_every_host_are_free() -> None:
    """Who has a server on a host, or anything there, counts for each GPU, whoever computes now."""

    def host(name: str, gpus: int, talking: int, parked: int = 0) -> HostReport:
        there = tuple(HostEnvironment(f"p{n}", 0, 1, 0, 0, 0.0, 0) for n in range(parked))
        return replace(
            report(name, gpus=tuple(gpu(name, n) for n in range(gpus)), environments=there),
            talking=tuple(f"t{n}" for n in range(talking)),
        )

    wish = Wish(ADA)
    assert order(wish, host("a", 1, talking=1), host("b", 1, talking=0)) == "ba"
    assert order(wish, host("a", 1, talking=1), host("b", 4, talking=3)) == "ba"
    assert order(wish, host("a", 2, talking=1, parked=1), host("b", 2, talking=1)) == "ba"


def test_hosts_where_it_fits_later_come_by_their_wait() -> None:
    full = (gpu("x", 0, free=False),)
    one = report("a", gpus=full, expected_wait=90.0)
    two = report("b", gpus=full, expected_wait=30.0)
    never = report("c", gpus=full)
    ranked = rank(hosts(one, two, never, report("d")), Wish(ADA))
    assert [(r.host, r.fits_now, r.wait) for r in ranked] == [
        ("d", True, 0.0),
        ("b", False, 30.0),
        ("a", False, 90.0),
        ("c", False, None),
    ]
    assert ranked[0].reasons == (
        "Host d has 1 GPU free now.",
        "100 % of the compute of its best one (H100) is left.",
    )
    assert ranked[1].reasons == ("Host b has 1 GPU, of which 0 are free now.",)


def held(host: Host, until: float | None, place: str = "") -> Host:
    return replace(host, held=Holding("Slurm", "job 7", until, place))


def test_each_host_is_ranked_with_its_own_name() -> None:
    """A second job on a host has a part of it, which has another name in the pool."""
    plain, first, part = hosts(report("a"), report("b"), report("b.2"))
    lost = Host("b.3", held=Holding("Slurm", "job 8", None, "b"))
    ranked = rank([plain, held(first, None), held(part, None, "b"), lost], Wish(ADA))
    assert [one.place for one in ranked] == ["a", "b", "b", "b"]


def test_a_host_that_ends_soon_comes_after_all_others_where_it_fits_and_says_so() -> None:
    full = report("b", gpus=(gpu("b", 0, free=False),), expected_wait=1.0)
    soon, free = (held(host, 5000.0) for host in hosts(report("a"), full))
    busy, waits = hosts(report("c", gpus=(gpu("c", 0, share=5),), queue=9), replace(full, name="d"))
    ranked = rank([soon, free, busy, waits], Wish(ADA, until=5001.0))
    assert [one.host for one in ranked] == ["c", "a", "d", "b"]
    assert ranked[1].fits_now
    assert (
        ranked[1].reasons[-1]
        == "It leaves the pool at 1970-01-01 01:23 UTC, when Slurm job 7 ends."
    )
    assert rank([soon, busy], Wish(ADA, until=5000.0))[0].host == "a", "it lasts for long enough"
    # Elsewhere her quota does not let her start.
    own = report("a", environments=(HostEnvironment(ADA, 1, 0, 0, 0, 0.0, 1),))
    here = held(hosts(own)[0], 5000.0)
    assert rank([busy, here], Wish(ADA, until=5001.0), lambda host: 1)[0].host == "a"


some_hosts = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from([None, 1.0, 9.0])),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(some_hosts, st.sampled_from([0.0, 5.0, 99.0]))
def test_no_host_that_ends_soon_is_first_where_another_serves_and_nothing_else_changes(
    some: list[tuple[bool, int, float | None]], until: float
) -> None:
    told = [
        report(f"{n}", gpus=(gpu("x", 0, free=is_free),), queue=q)
        for n, (is_free, q, _) in enumerate(some)
    ]
    there = [held(host, ends) for host, (_, _, ends) in zip(hosts(*told), some, strict=True)]
    ends = {host.name for host in there if host.ends_before(until)}
    ranked, before = rank(there, Wish(ADA, until=until)), rank(there, Wish(ADA))
    fits = [one.host for one in ranked if one.fits_now]
    assert fits == sorted(fits, key=lambda name: name in ends)
    for group in (ends, {host.name for host in there} - ends):
        assert [x.host for x in ranked if x.host in group] == [
            x.host for x in before if x.host in group
        ]


def test_hosts_that_cannot_do_it_come_last_and_say_why() -> None:
    some = hosts(report("a"), report("b", draining="new disks"), report("c"), report("d"))
    lost = [Host("e"), some[0], some[1], some[3]]
    drained = Host("f", connected=True, report=report("f"), drain=Drained("moved", "root"))
    wish = Wish(ADA, 1, 24 * GIB, "H100")
    ranked = rank([*lost, drained], wish)
    assert [r.host for r in ranked if r.fits_now] == ["a", "d"]
    assert {r.host: r.reasons[0] for r in ranked if not r.possible} == {
        "b": "Host b is left out: it is out of service: new disks.",
        "e": "Host e is left out: it cannot be reached.",
        "f": "Host f is left out: it is out of service: moved.",
    }
    (only,) = rank([some[0]], Wish(ADA, 2, 100 * GIB, "A100"))
    assert only.reasons == (
        "Host a is left out: it has no GPU of the kind A100 with at least 100 GiB.",
    )
    (out,) = rank(hosts(report("a", gpus=(gpu("a", 0, out="broken"),))), Wish(ADA))
    assert not out.possible


# -- as a node manager tells it --------------------------------------------------------------------

#: Of every GPU a model needs so many hundredths as its batch is large.
TOLD = PLANT.replace("kind.name, 50,", "kind.name, features.batch,")


def predicts(client: NodeClient, share: int) -> None:
    """A task says which model it will run."""
    node = {"kind": "MatMul", "largest": 64, "count": 1, "flops": 1, "bytes": 1}
    told: dict[str, Any] = {"operations": [node], "batch": share, "inputs": 1, "peak": GIB}
    task = {"name": "n.ipynb", "kind": "process"}
    client.call(Method.PREDICT, task=task, framework="torch", iterations=1, training=False, **told)


def test_a_host_tells_the_pool_what_is_left_of_its_gpus_and_what_a_model_needs(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "authority", "lab", time.time())
    people = token_file(tmp_path, "ada", "bob")
    options: dict[str, Any] = {"simulate": "1xA100,1xT4", "config": TOLD, "arguments": [people]}
    with PoolNode(tmp_path, authority, "b", **options) as node, ExitStack() as stack:
        pool = Pool(node, authority)
        stack.callback(pool.client.close)
        pool.lend(ada=1, bob=1)

        def left() -> list[int]:
            return [gpu["free_share"] for gpu in pool.fresh()["gpus"]]

        def ranked() -> Any:
            there = hosts(read_report(pool.fresh()))
            return rank(there, Wish(ADA, 1, GIB, None, newest(there, ADA)))[0]

        assert left() == [100, 100]
        with node.client("bob") as bob, node.client("ada") as ada:
            predicts(bob, 70)
            bob.request(memory=GIB)
            assert sorted(left()) == [30, 100]
            predicts(ada, 20)
            assert ranked().fits_now
            ada.request(memory=GIB)
            assert sorted(left()) == [30, 80], "she has the GPU that nobody has"
            predicts(ada, 90)
            assert not ranked().fits_now, "of her newest model"
