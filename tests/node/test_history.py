"""People read a sentence of each event that happened, and not the name of a class."""

from __future__ import annotations

import pytest

from jupyter_gpushare.node.ledger.codec import to_record
from jupyter_gpushare.node.views.history import TOLD, entry
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.policy.words.model import Bytes, EnvironmentName, GpuUuid, LeaseId, Quota

ALICE, LEASE, GPU = EnvironmentName("alice"), LeaseId("l-1"), GpuUuid("GPU-1")
GIB = 2**30


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ev.LeasePinned(1.0, LEASE, ALICE, 9.0), "keeps its GPUs while it is idle"),
        (ev.LeaseRestored(1.0, LEASE, ALICE, 2 * GIB, 0.5), "has its 2 GiB on its GPUs again"),
        (
            ev.ReservationResized(1.0, ALICE, GPU, Bytes(8 * GIB)),
            "its reservation on GPU-1 is 8 GiB now",
        ),
        (ev.TurnGiven(1.0, LEASE, (GPU,)), "may compute on GPU-1"),
        (
            ev.BooksRestored(1.0, 1, 2, 1.0, (), ()),
            "the ledger was shortened to what is true now",
        ),
        (
            ev.QuotaOverridden(
                1.0, ALICE, Quota(2, idle_timeout=600.0, burst_memory=0.9), EnvironmentName("root")
            ),
            "quota set to 2 GPUs, whole GPUs, weight 1, idle time-out 10 min, limits lifted to 0.9 "
            "of a GPU, by root",
        ),
    ],
)
def test_an_event_is_told_in_a_sentence(event: ev.Event, text: str) -> None:
    assert entry(to_record(event, wall=5.0))["text"] == text


def test_every_event_that_the_ledger_keeps_has_words() -> None:
    durable = {name for name, kind in EVENTS.items() if kind.DURABLE}
    assert durable == TOLD.keys()
