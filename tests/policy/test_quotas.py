"""A quota is what its strongest source says: override, user, best of the groups, default."""

from __future__ import annotations

from jupyter_gpushare.policy.books.quotas import QuotaBook, QuotaSource, best
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.model import Bytes, EnvironmentName, Quota

ALICE = EnvironmentName("alice")


def test_the_strongest_source_wins():
    book = QuotaBook(default=Quota(1))
    assert book.resolve(ALICE) == (Quota(1), QuotaSource.DEFAULT)
    book = QuotaBook(
        default=Quota(1),
        groups=Map({"students": Quota(2), "staff": Quota(3)}),
        groups_of=Map({ALICE: ("students", "unheard-of")}),
    )
    assert book.resolve(ALICE) == (Quota(2), QuotaSource.GROUP)
    book = QuotaBook(book.default, book.groups, Map({ALICE: Quota(4)}), Map(), book.groups_of)
    assert book.resolve(ALICE) == (Quota(4), QuotaSource.USER)
    book = QuotaBook(book.default, book.groups, book.users, Map({ALICE: Quota(0)}), book.groups_of)
    assert book.resolve(ALICE) == (Quota(0), QuotaSource.OVERRIDE)


def test_the_best_of_several_groups_is_taken_part_by_part():
    several = [Quota(1, Bytes(8), 2.0, 10.0, 60.0), Quota(3, Bytes(4), 1.0, None, 30.0)]
    assert best(several) == Quota(3, Bytes(8), 2.0, None, 60.0)
    assert best([Quota(1, None), Quota(2, Bytes(5))]).memory is None


def test_a_group_that_says_nothing_of_a_time_out_leaves_it_to_the_node():
    def of(*idle):
        return best([Quota(1, idle_timeout=seconds) for seconds in idle]).idle_timeout

    assert of(300.0, 60.0) == 300.0
    assert of(300.0, 0.0) == 0.0, "never is the longest"
    assert of(300.0, None) is None
    assert of(0.0, None) is None


def test_a_group_that_says_nothing_of_lifted_limits_neither_allows_nor_forbids_them():
    def of(*bursts):
        return best([Quota(1, burst_memory=burst) for burst in bursts]).burst_memory

    assert of(None, None) is None
    assert of(None, 0.0) == 0.0
    assert of(None, 0.0, 0.5) == 0.5
    assert of(0.9, 40.0 * 2**30) == 40 * 2**30
