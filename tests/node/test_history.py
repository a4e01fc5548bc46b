"""People read a sentence of each event that happened, and not the name of a class."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from jupyter_gpushare.ledger.codec import to_record
from jupyter_gpushare.node.views.history import entry, telling
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    EndReason,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    ProcessId,
    Quota,
)

ALICE, CAROL = EnvironmentName("alice"), EnvironmentName("carol")
LEASE, GPU = LeaseId("l-1"), GpuUuid("GPU-1")
GIB = 2**30
TELLING = telling({GPU: "0"})


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ev.LeasePinned(1.0, LEASE, ALICE, 9.0), "keeps its GPUs while it is idle"),
        (ev.LeaseRestored(1.0, LEASE, ALICE, 2 * GIB, 0.5), "has its 2 GiB on its GPUs again"),
        (
            ev.ReservationResized(1.0, ALICE, GPU, Bytes(8 * GIB)),
            "its reservation on GPU 0 is 8 GiB now",
        ),
        (
            ev.LeaseGranted(
                1.0,
                LEASE,
                ALICE,
                (Allocation(GPU, Bytes(GIB)), Allocation(GpuUuid("GPU-gone"), Bytes(GIB))),
                Activity.BUSY,
            ),
            "got 1 GiB of GPU 0, 1 GiB of GPU-gone",
        ),
        (
            ev.LeaseEnded(1.0, LEASE, ALICE, EndReason.REVOKED, "maintenance", CAROL),
            "ended: taken back by carol, maintenance",
        ),
        (ev.LeaseEnded(1.0, LEASE, ALICE, EndReason.RELEASED, ""), "ended: released"),
        (
            ev.LeaseEnded(1.0, LEASE, ALICE, EndReason.PROCESS_GONE, "its process is gone"),
            "ended: its process has ended",
        ),
        (ev.StopOffered(1.0, LEASE, ALICE, True), "can save its state and be stopped"),
        (
            ev.BooksRestored(1.0, 1, 2, 1.0, (), ()),
            "the ledger was shortened to what is true now",
        ),
        (
            ev.QuotaChanged(
                1.0,
                ALICE,
                None,
                Quota(2, idle_timeout=600.0, burst_memory=0.9),
                EnvironmentName("root"),
            ),
            "quota set to GPUs: 2, memory on each GPU: the whole GPU, weight: 1, idle time-out: "
            "10 min, limits lifted up to: 0.9 of a GPU, by root",
        ),
    ],
)
def test_an_event_is_told_in_a_sentence(event: ev.Event, text: str) -> None:
    assert entry(to_record(event, wall=5.0), TELLING)["text"] == text


@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_what_the_ledger_keeps_is_listed_in_a_sentence_or_says_why_not(
    kind: type[ev.Event], data: st.DataObject
) -> None:
    about = kind.ABOUT
    assert bool(about.title) == bool(about.text) == (kind.DURABLE and not about.unlisted)
    assert isinstance(TELLING.of(data.draw(st.builds(kind))), str)


def test_a_record_of_another_release_is_told_as_far_as_it_is_understood() -> None:
    known = to_record(ev.MemberLeft(1.0, LEASE, ProcessId("b", 7, 1)), wall=5.0)
    more = dataclasses.replace(known, data={**known.data, "new": 1})
    assert entry(more, TELLING)["text"] == "process 7 ended"
    other = dataclasses.replace(known, data={"process": "?"})
    assert entry(other, TELLING)["what"] == "process ended"
    unknown = dataclasses.replace(known, kind="Unheard")
    assert [entry(unknown, TELLING)[part] for part in ("what", "text")] == ["Unheard"] * 2
