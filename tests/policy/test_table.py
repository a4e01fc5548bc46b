"""A state that was handed out never changes, and its mapping says what a dict says."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jupyter_gpushare.policy.books.state import Claim, GpuState, Lease, Reservation, State
from jupyter_gpushare.policy.books.table import Copied

KEYS = st.integers(0, 30).map(lambda number: (f"lease-{number % 7}", number))


class AsADict(RuleBasedStateMachine):
    """Every step is done to a dict too; each earlier map stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.map = Copied[tuple[str, int], int]()
        self.truth: dict[tuple[str, int], int] = {}
        self.earlier: list[tuple[Any, dict[tuple[str, int], int]]] = []

    def remember(self) -> None:
        self.earlier.append((self.map, dict(self.truth)))

    @rule(key=KEYS, value=st.integers())
    def set_one(self, key: tuple[str, int], value: int) -> None:
        self.remember()
        self.map = self.map.set(key, value)
        self.truth[key] = value

    @rule(more=st.dictionaries(KEYS, st.integers(), max_size=5))
    def set_some(self, more: dict[tuple[str, int], int]) -> None:
        self.remember()
        self.map = self.map.update(more)
        self.truth.update(more)

    @rule(key=KEYS)
    def delete_one(self, key: tuple[str, int]) -> None:
        self.remember()
        if key in self.truth:
            self.map = self.map.delete(key)
            del self.truth[key]
        else:
            with pytest.raises(KeyError):
                self.map.delete(key)

    @invariant()
    def they_agree(self) -> None:
        for one, truth in [(self.map, self.truth), *self.earlier[-3:]]:
            assert dict(one.items()) == truth
            assert set(one) == set(one.keys()) == set(truth)
            assert sorted(one.values()) == sorted(truth.values())
            assert len(one) == len(truth)
            assert one == Copied(truth)
            assert hash(one) == hash(Copied(reversed(list(truth.items()))))
            for number in range(31):
                key = (f"lease-{number % 7}", number)
                assert one.get(key) == truth.get(key)
                assert (key in one) == (key in truth)


TestOurs = AsADict.TestCase
TestOurs.settings = settings(max_examples=20, stateful_step_count=20)


@pytest.mark.parametrize("kind", [Claim, GpuState, Lease, Reservation, State])
def test_a_record_has_no_more_fields_than_its_objects_share_the_names_of(kind: type) -> None:
    # With more, CPython gives each object a dictionary of its own: 1.3 kB more for each lease.
    assert len(fields(kind)) <= 30


def test_it_cannot_be_changed_in_place() -> None:
    one: Any = Copied({"a": 1})
    with pytest.raises(TypeError):
        one["a"] = 2
    with pytest.raises(KeyError):
        one["b"]
    assert pickle.loads(pickle.dumps(one)) == one
