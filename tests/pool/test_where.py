"""Something starts on the host where it can begin first, and people read the reasons."""

from __future__ import annotations

from dataclasses import replace

from support.pool_world import GIB, gpu, report

from jupyter_gpushare.policy.words.model import EnvironmentName
from jupyter_gpushare.pool.evolve import evolve
from jupyter_gpushare.pool.state import Drained, Host, State
from jupyter_gpushare.pool.where import rank
from jupyter_gpushare.pool.words import events as ev
from jupyter_gpushare.pool.words.hosts import HostEnvironment, HostReport, Wish

ADA = EnvironmentName("ada")


def hosts(*reports: HostReport) -> list[Host]:
    state = State()
    for one in reports:
        state = evolve(state, ev.HostAdded(0.0, one.name, "root"))
        state = evolve(state, ev.HostSpoke(0.0, one.name, one))
    return [state.hosts[one.name] for one in reports]


def order(wish: Wish, *reports: HostReport) -> str:
    return "".join(one.host for one in rank(hosts(*reports), wish))


def kinds(name: str, **left: int) -> HostReport:
    gpus = (gpu(name, at, kind=kind, share=share) for at, (kind, share) in enumerate(left.items()))
    return report(name, gpus=tuple(gpus))


def test_best_eligible_gpu_counts_not_the_sum() -> None:
    # A1 needs 40 %, A2 50 %, A3 70 %: host b's A1 with 90 left beats c's two GPUs with 80 left.
    wish = Wish(ADA, 1, GIB, None, (("A1", 40), ("A2", 50), ("A3", 70)))
    one = kinds("a", A1=30, A2=100)
    two = kinds("b", A1=90, A2=40, A3=80)
    three = kinds("c", A1=80, A3=80)
    assert order(wish, three, two, one) == "abc"
    # A GPU that has less left than the task needs of its kind is not eligible, however much it is.
    wish = Wish(ADA, 1, GIB, None, (("A1", 10), ("A2", 50), ("A3", 90)))
    assert order(wish, kinds("b", A1=30, A3=80), kinds("c", A2=80, A3=80)) == "cb"


def test_ties_queue_then_parked_bytes_then_own_kernels() -> None:
    def host(name: str, queue: int = 0, parked: int = 0, who: str = "bob", size: int = 0) -> object:
        there = HostEnvironment(EnvironmentName(who), 0, parked, size, 0, 0.0, 0)
        return report(name, queue=queue, environments=(there,))

    wish = Wish(ADA)
    assert order(wish, host("a", queue=2), host("b", queue=1)) == "ba"
    assert order(wish, host("a", size=2 * GIB), host("b", size=GIB)) == "ba"
    assert order(wish, host("a"), host("b", parked=1, who="ada")) == "ba"
    assert order(wish, host("b"), host("a")) == "ab"


def test_people_spread_while_gpus_of_every_host_are_free() -> None:
    """Who has a server on a host, or anything there, counts for each GPU, whoever computes now."""

    def host(name: str, gpus: int, talking: int, parked: int = 0) -> HostReport:
        there = tuple(
            HostEnvironment(EnvironmentName(f"p{n}"), 0, 1, 0, 0, 0.0, 0) for n in range(parked)
        )
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
