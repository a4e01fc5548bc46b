"""No other user of the host takes part where a job's ranks meet, or changes anything unseen."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from jupyter_gpushare.elastic import member
from jupyter_gpushare.elastic.meeting import Meeting, Word

torch = pytest.importorskip("torch")

#: Seconds; torch begins slowly on a machine that has much else to do.
WITHIN = 150.0


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting.make()
    yield made
    made.remove()


def test_words_come_as_they_were_said(meeting: Meeting) -> None:
    assert meeting.heard() == Word(0)
    word = Word(3, (4, 1, 9), (2,), gentle=False, ends=True)
    meeting.say(word)
    assert meeting.heard() == word
    meeting.remove()
    assert not meeting.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_another_user_reads_and_writes_nothing_there(meeting: Meeting) -> None:
    assert stat.S_IMODE(meeting.folder.stat().st_mode) == 0o700
    for attempt in (f"cat {meeting.folder}/word", f"echo 1 > {meeting.folder}/word"):
        tried = subprocess.run(["sh", "-c", attempt], capture_output=True, text=True, user=65534)
        assert tried.returncode != 0
        assert "ermission denied" in tried.stderr
    assert meeting.heard() == Word(0)


class OldAgent:
    """What is asked of torch's agent before 2.12, where ``_shutdown`` takes no time-out."""

    def __init__(self) -> None:
        self._pcontext, self.closed = self, []

    def close(self, death_sig: object = None, timeout: int = 30) -> None:
        self.closed.append(timeout)

    def _shutdown(self, death_sig: object = None) -> None:
        self.closed.append("shut down")


@pytest.mark.parametrize(("is_gentle", "seconds"), [(True, 60), (False, 20)])
def test_a_worker_has_its_time_with_older_torches_too(is_gentle: bool, seconds: int) -> None:
    agent, _meeting = member._kinds()
    group = SimpleNamespace(spec=SimpleNamespace(rdzv_handler=SimpleNamespace(is_gentle=is_gentle)))
    old = OldAgent()
    agent._stop_workers(old, group)
    assert old.closed == [seconds, "shut down"]


RANK = """
import hashlib, sys
from pathlib import Path
import torch
from torch import distributed
from jupyter_gpushare.elastic.meeting import Meeting
from jupyter_gpushare.elastic.training import _Training

rank, sent = int(sys.argv[2]), sys.argv[3].encode()
here = _Training(None)
here.store = Meeting(Path(sys.argv[1])).store(1)
distributed.init_process_group("gloo", store=here.store, rank=rank, world_size=2)
if rank == 0:
    here.store.set("state", f"5 {hashlib.sha256(b'right').hexdigest()}")
    distributed.broadcast(torch.frombuffer(bytearray(sent), dtype=torch.uint8), src=0)
else:
    print(here._broadcast(None).decode())
"""


@pytest.mark.story
@pytest.mark.parametrize("sent", ["right", "wrong"])
def test_a_state_that_somebody_changed_is_not_unpickled(meeting: Meeting, sent: str) -> None:
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "JUPYTER_GPUSHARE": "off"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(meeting.folder), str(rank), sent],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    )
    got, said = second.communicate(timeout=WITHIN)
    first.communicate(timeout=WITHIN)
    if sent == "right":
        assert got == "right\n", said
    else:
        assert got == ""
        assert "Another process took part" in said
