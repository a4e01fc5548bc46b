"""Nobody is kept out of the node manager by somebody who takes many places."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from jupyter_gpushare.node.wire.admission import Admission, Places, Refusal

PLACES = Places(strangers=3, known=6, environment=4)
#: OS users.
UIDS = {"alice": 1, "bob": 1, "carol": 2}
OWNERS = st.sampled_from(list(UIDS))
STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "speak", "greet", "go"]), OWNERS, st.integers(0))
)


@given(STEPS)
def test_places_are_kept_and_who_has_fewer_always_gets_one(
    steps: list[tuple[str, str, int]],
) -> None:
    admission: Admission[int] = Admission(PLACES)
    silent: dict[int, str] = {}
    speaking: dict[int, str] = {}
    known: dict[int, str] = {}

    def pick(of: dict[int, str], who: str, number: int) -> int | None:
        mine = [guest for guest, owner in of.items() if owner == who]
        return mine[number % len(mine)] if mine else None

    for guest, (step, who, number) in enumerate(steps):
        uid = UIDS[who]
        if step == "come":
            before = Counter(UIDS[owner] for owner in (*silent.values(), who))
            silent[guest] = who
            goes = admission.arrive(guest, uid)
            if goes is not None:
                assert before[UIDS[silent.pop(goes)]] == max(before.values())
        elif step == "speak" and (one := pick(silent, who, number)) is not None:
            del silent[one]
            speaking[one] = who
            admission.speaks(one, uid)
        elif step == "greet" and (one := pick(speaking, who, number)) is not None:
            del speaking[one]
            before = Counter(known.values())
            refusal, goes = admission.greet(one, who)
            if refusal is None:
                known[one] = who
            else:
                assert goes is None
                full = before[who] >= PLACES.environment
                # Only who has as many as anybody else (or will, with this one) is refused.
                assert (refusal is Refusal.YOURS) == full
                assert full or before[who] + 1 >= max(before.values())
            if goes is not None:
                assert before[known.pop(goes)] == max(before.values()) > before[who] + 1
        elif step == "go":
            for pool, environment in ((silent, None), (speaking, None), (known, who)):
                one = pick(pool, who, number)
                if one is not None:
                    del pool[one]
                    admission.leave(one, uid, environment)
                    admission.leave(one, uid, environment)
                    break
        assert len(silent) <= PLACES.strangers
        assert len(known) <= PLACES.known
        assert max(Counter(known.values()).values(), default=0) <= PLACES.environment
        assert len(admission) == len(silent) + len(known)


def test_strangers_of_one_os_user_do_not_push_out_those_of_another() -> None:
    admission: Admission[str] = Admission(PLACES)
    assert admission.arrive("alices", 1) is None
    gone = [admission.arrive(f"bobs {number}", 2) for number in range(10)]
    assert gone == [None, None, *(f"bobs {number}" for number in range(8))]
