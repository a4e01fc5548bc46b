"""What is made from a declared document says the same everywhere, and reading loads nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from jupyter_gpushare.link.schema import components, fields
from jupyter_gpushare.node.views.status import DisplayState
from jupyter_gpushare.policy.recall.outlook import Basis
from jupyter_gpushare.policy.words import model
from jupyter_gpushare.protocol import documents as doc
from jupyter_gpushare.protocol.calls import PARAMS
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.shapes import Words, private, shapes


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        (doc.Lease, "state", DisplayState),
        (doc.Lease, "phase", model.LeasePhase),
        (doc.Lease, "activity", model.Activity),
        (doc.Lease, "kind", model.TaskKind),
        (doc.Lease, "priority_class", model.PriorityClass),
        (doc.Budget, "level", model.BudgetLevel),
        (doc.Squatter, "kind", model.FlagKind),
        (doc.Estimate, "basis", Basis),
    ],
)
def test_the_words_of_a_field_are_the_policys(kind: Any, field: str, words: Any) -> None:
    said = shapes(kind)[field].mark(Words)
    assert said is not None
    assert set(said) == {word.value for word in words}


def test_what_is_private_is_said_where_it_is_declared_and_can_be_null() -> None:
    hidden = private(doc.Lease)
    assert {"id", "environment", "name", "path", "pid"} <= set(hidden)
    assert all(shapes(doc.Lease)[name].null for name in hidden)


def test_a_schema_has_bounds_words_null_and_what_may_be_left_out() -> None:
    lease = components({"Lease": doc.Lease})["Lease"]
    newer = {"inherited", "may_be_taken_at", "pauses", "reserve", "turn_expected"}
    newer |= {"interrupted", "progress", "promise", "compute", "job", "job_kind", "memory_most"}
    newer |= {"turn_pinned_until", "says"}
    assert set(lease["required"]) == set(lease["properties"]) - newer
    rows = lease["properties"]
    assert rows["turn_place"]["type"] == ["integer", "null"]
    assert rows["turn_place"]["minimum"] == 1
    assert rows["turn"]["enum"][-1] is None
    assert fields(PARAMS[Method.HISTORY])["limit"]["maximum"] == 1000
    both = components({"Live": doc.Live})["Live"]["oneOf"]
    assert len(both) == len(get_args(doc.Live))


def test_a_client_loads_no_declaration() -> None:
    """Those who only want a GPU read answers by the names of their parts."""
    code = (
        "import sys, jupyter_gpushare.client.acquire, jupyter_gpushare.client.words.render\n"
        "print([n for n in sys.modules if n.rpartition('.')[2] in "
        "('documents', 'shapes', 'reading', 'calls') and n.startswith('jupyter_gpushare')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
