"""A quota is what its strongest source says: override, user, best of the groups, default."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.policy.books.quotas import QuotaBook, QuotaSource
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.say.quotas import environment_row
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import MONTH, WEEK, Quota, Reserve
from jupyter_gpushare.quota import WHOLE, Own, best

ALICE, ROOT = "alice", "root"


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
    book = QuotaBook(
        book.default, book.groups, book.users, Map({ALICE: Own(Quota(0))}), book.groups_of
    )
    assert book.resolve(ALICE) == (Quota(0), QuotaSource.OVERRIDE)


def test_the_best_of_several_groups_is_taken_part_by_part():
    several = [Quota(1, 8, 2.0, 10.0, 60.0), Quota(3, 4, 1.0, None, 30.0)]
    assert best(several) == Quota(3, 8, 2.0, None, 60.0)
    assert best([Quota(1, None), Quota(2, 5)]).memory is None


@pytest.mark.parametrize(
    ("part", "several", "one"),
    [
        ("idle_timeout", (300.0, 60.0), 300.0),
        ("idle_timeout", (300.0, 0.0), 0.0),  # never is the longest
        ("idle_timeout", (300.0, None), None),  # who says nothing leaves it to the node
        ("idle_timeout", (0.0, None), None),
        ("burst_memory", (None, None), None),
        ("burst_memory", (None, 0.0), 0.0),
        ("burst_memory", (None, 0.0, 0.5), 0.5),
        ("burst_memory", (0.9, 40.0 * 2**30), 40 * 2**30),
        ("max_wait", (60.0, None), None),
        ("max_wait", (60.0, 90.0), 90.0),
        ("reserve", (None, Reserve.ESTIMATE, Reserve.QUOTA), Reserve.QUOTA),
        ("reserve", (None,), None),
    ],
)
def test_what_a_group_does_not_say_is_no_bound_or_left_to_others(part, several, one):
    assert getattr(best([Quota(1, **{part: some}) for some in several]), part) == one


STUDENTS = Quota(1, 6, gpu_hours=10.0, per=MONTH)


def member(own: Own, group: Quota = STUDENTS) -> QuotaBook:
    return QuotaBook(
        default=Quota(1, 2),
        groups=Map({"students": group}),
        groups_of=Map({ALICE: ("students",)}),
        overrides=Map({ALICE: own}),
    )


def test_what_was_not_set_for_a_person_follows_the_group():
    own = member(Own(Quota(0))).edited(
        ALICE, Own(Quota(0, gpu_hours=50.0), frozenset({"gpu_hours"}))
    )
    assert own.named == WHOLE, "a whole one stays whole"
    own = QuotaBook().edited(ALICE, Own(Quota(0, gpu_hours=50.0), frozenset({"gpu_hours"})))
    assert member(own).resolve(ALICE)[0] == Quota(1, 6, gpu_hours=50.0, per=MONTH)
    later = member(own, Quota(2, 24, gpu_hours=20.0, per=WEEK))
    assert later.resolve(ALICE)[0] == Quota(2, 24, gpu_hours=50.0, per=WEEK)
    row = environment_row(later, ALICE)
    assert (row["own"], row["rest"]) == (["gpu_hours"], "the group students")
    assert "rest" not in environment_row(member(Own(Quota(0))), ALICE)


def test_what_was_set_is_taken_back_part_by_part():
    def edit(book: QuotaBook, *follow: str, **parts: Any) -> QuotaBook:
        quota, named = Quota(**{"gpus": 0, **parts}), frozenset(parts)
        command = cmd.SetQuota(0.0, ALICE, quota, ALICE, named, (), frozenset(follow))
        return book if (event := book.event(command)) is None else book.after(event)

    one = edit(member(Own(Quota(3), frozenset({"gpus"}))), memory=9, gpu_hours=1.0, per=WEEK)
    assert one.resolve(ALICE)[0] == Quota(3, 9, gpu_hours=1.0, per=WEEK)
    one = edit(one, "gpu_hours")
    assert one.resolve(ALICE)[0] == Quota(3, 9, gpu_hours=10.0, per=MONTH), "and its period"
    one = edit(one, "memory", weight=2.0)
    assert one.overrides[ALICE].names == ("gpus", "weight")
    one = edit(one, "gpus", "weight", "reserve")
    assert not one.overrides, "nothing is set any more"
    assert edit(one, "gpus") == one


def test_a_period_without_hours_is_none_until_there_are_hours():
    own = Own(Quota(0, per=WEEK), frozenset({"per"}))
    assert member(own, Quota(1)).resolve(ALICE)[0] == Quota(1)
    book = member(own)
    assert book.resolve(ALICE)[0].per == WEEK
    assert WEEK in book.periods


def test_what_was_not_set_for_a_group_follows_its_configuration():
    own = Own(Quota(3), frozenset({"gpus"}))
    book = QuotaBook(
        default=Quota(1, 2),
        groups=Map({"students": STUDENTS}),
        group_overrides=Map(
            {"students": own, "club": own, None: Own(Quota(4), frozenset({"gpus"}))}
        ),
    )
    assert book.of_group("students") == Quota(3, 6, gpu_hours=10.0, per=MONTH)
    assert book.of_group("club") == Quota(3, 2)
    assert book.of_default == Quota(4, 2)
    assert book.of_groups == {name: book.of_group(name) for name in ("students", "club")}


def test_a_record_of_before_set_all_fields_that_there_were():
    assert Own.recorded(Quota(1), None).named == WHOLE - {"max_wait"}
    assert Own.recorded(Quota(1), ("memory",)).named == {"memory"}


def test_what_is_not_set_is_not_taken_back():
    for take_back in (cmd.UnsetQuota(2.0, ALICE, ROOT), cmd.UnsetQuota(2.0, None, ROOT)):
        assert QuotaBook().event(take_back) is None
    book = QuotaBook()
    for edit in (
        cmd.SetQuota(1.0, ALICE, Quota(2), ROOT),
        cmd.SetQuota(1.0, None, Quota(3), ROOT),
    ):
        book = book.after(book.event(edit))
    assert (book.resolve(ALICE)[0].gpus, book.of_default.gpus) == (2, 3)
    for take_back in (cmd.UnsetQuota(2.0, ALICE, ROOT), cmd.UnsetQuota(2.0, None, ROOT)):
        book = book.after(book.event(take_back))
    assert book == QuotaBook()
