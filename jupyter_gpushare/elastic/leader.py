"""``python -m jupyter_gpushare.elastic.leader NAME``: the one that leads a job.

It asks the node manager for idle cards, starts a member for each, and says who trains, in the
job's meeting place. When it dies, or whoever started it, its members end at once, and save nothing
any more: the next leader goes on from the newest checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Final

from ..jobs.core import Card, End, Send
from ..jobs.engine import Event, Idle, OneHost, Silent
from ..jobs.hostside import Ended, Lost, Reported
from . import core
from .core import Phase
from .meeting import Meeting, Word
from .records import Follower, Records

#: Seconds between two questions for idle cards; after cards that could not be had, so many times
#: as long at most.
EVERY: Final = 0.5
_MOST_DOUBLED: Final = 5
#: Seconds in which members end when the job does.
_END_WITHIN: Final = 90.0
_LOOK: Final = 0.05


class Leader:
    """Leads one job, until it is over."""

    def __init__(self, name: str) -> None:
        self._records = Records(name)
        self._plan = self._records.plan()
        self._follower = Follower(self._records)
        self._meeting = Meeting.make()
        self._team = core.Team(self._plan.min_gpus, self._plan.max_gpus)
        # What is trained may be large, and a worker reads it from the records by itself.
        work = replace(self._plan.job, train=b"")
        self._host = OneHost(work, module="jupyter_gpushare.elastic.member", beside=True)
        self._is_stopped = threading.Event()
        self._started = 0
        self._ask_at, self._refused = 0.0, 0
        self._asking = False
        self._waits = ""
        self._barren, self._step = 0, -1
        self._end: tuple[Phase, str] | None = None
        self._is_done = False
        self._first = True

    def run(self) -> None:
        """Lead it to its end."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._records.add("begins", pid=os.getpid())
        while self._end is None:
            self._heard()
            self._read()
            self._grow()
            self._change()
        self._close()
        self._meeting.remove()
        phase, reason = self._end
        self._records.add("ended", phase=phase.value, reason=reason)

    # -- what comes ---------------------------------------------------------------------------

    def _listen(self) -> None:
        """``stop`` on standard input; its end is that of whoever started us."""
        for line in sys.stdin:
            if line.strip() == "stop":
                self._is_stopped.set()
        os._exit(1)  # members end with us

    def _heard(self) -> None:
        if self._is_stopped.is_set():
            self._end = self._end or (Phase.STOPPED, "It was stopped.")
        for event in self._host.events(_LOOK):
            self._told(event)

    def _told(self, event: Event) -> None:
        match event:
            case Idle(_, rows):
                self._idle(len(rows))
            case Silent(_, why):
                self._asking = False
                self._say_waits(why)
            case Reported():
                self._reported(event)
            case Lost(_, _, why):
                reason = (
                    f"One of its leases has ended: {why} So it saved and stopped. "
                    f"elastic.load({self._records.name!r}) goes on."
                )
                self._end = self._end or (Phase.STOPPED, reason)
            case Ended():
                self._ended(event)

    def _reported(self, told: Reported) -> None:
        if told.values.get("ready"):
            self._team = core.ready(self._team, told.number, time.monotonic())
            self._refused = 0
        if told.values.get("leaves"):
            self._team = core.leaves(self._team, told.number)
            self._waits = "A notebook wants a GPU."
        if generation := told.values.get("without"):
            self._team = core.failed(self._team, told.number, int(generation))

    def _ended(self, told: Ended) -> None:
        was_inside = told.number in self._team.inside
        self._team = core.gone(self._team, told.number)
        if told.end is End.DONE:
            self._is_done = True
            self._end = self._end or (Phase.DONE, "")
        elif told.end is End.NO_ROOM:
            self._refused = min(self._refused + 1, _MOST_DOUBLED)
            self._ask_at = time.monotonic() + EVERY * 2**self._refused
        elif told.end is not End.PREEMPTED and self._end is None:  # what ends later, we have ended
            self._records.add("said", text=told.error or "A worker's process has ended.")
            if was_inside:
                self._team = replace(self._team, broken=True)

    def _read(self) -> None:
        """What the workers wrote down."""
        for event in self._follower.news():
            if event.get("event") == "fault" and self._end is None:
                text = str(event["text"])
                self._records.add("said", text=text)
                last = text.strip().rpartition("\n")[2]
                self._end = (Phase.FAILED, f"Rank {event['rank']} raised {last}")

    # -- what is done ---------------------------------------------------------------------------

    def _grow(self) -> None:
        """Ask for idle cards; the answer comes as an event."""
        now = time.monotonic()
        # A member that asks for its card has none yet, and that would be counted as idle again.
        starting = any(one.ready_at is None for one in self._team.members)
        if core.room(self._team) and not starting and not self._asking and now >= self._ask_at:
            self._ask_at = now + EVERY * 2**self._refused
            self._asking = True
            self._host.ask("")

    def _idle(self, count: int) -> None:
        """Start a member for each of ``count`` idle cards."""
        self._asking = False
        if self._end is not None:
            return
        if not count and not self._team.members:
            self._say_waits("No GPU is idle, or your quota allows no more.")
        for _ in range(min(count, core.room(self._team))):
            self._start()

    def _say_waits(self, reason: str) -> None:
        if self._follower.status.phase is Phase.WAITING and reason != self._waits:
            self._records.add("waits", reason=reason)
            self._waits = reason

    def _start(self) -> None:
        self._started += 1
        told = {
            "meeting": os.fspath(self._meeting.folder),
            "output": os.fspath(self._records.output),
        }
        # Which card it gets, the node manager says.
        send = Send(self._started, 1, (Card("", ""),))
        self._host.start(send, json.dumps(told).encode())
        self._team = core.joined(self._team, self._started)

    def _change(self) -> None:
        before, was_broken = self._team, self._team.broken
        self._team = team = core.changed(before, time.monotonic())
        if team is before or self._end is not None:
            return
        if was_broken:
            self._read()
            step = self._follower.status.step
            self._barren = self._barren + 1 if step == self._step else 1
            self._step = step
            if self._barren > core.MOST_BARREN:
                self._end = (
                    Phase.FAILED,
                    f"Its workers died {self._barren} times in a row and came no step further.",
                )
                return
        reason = _why(before, team)
        if team.inside:
            self._records.add("changes", first=self._first, reason=reason)
            self._first = False
        else:
            self._records.add("waits", reason=f"{reason} It needs {team.least} at least.")
        self._announce(gentle=not was_broken)

    def _announce(self, gentle: bool, ends: bool = False) -> None:
        team = self._team
        leaving = tuple(one.number for one in team.members if one.leaving)
        self._meeting.say(Word(team.generation, team.inside, leaving, gentle, ends))

    def _close(self) -> None:
        """Let the members stop after their step, save, and end."""
        before = self._team.inside
        if not self._is_done:
            self._team = replace(self._team, generation=self._team.generation + 1, inside=())
            assert self._end is not None
            self._announce(gentle=self._end[0] is Phase.STOPPED, ends=True)
        for one in self._team.members:
            if one.number not in before:
                self._host.kill(one.number, 1)  # it has done nothing yet
        until = time.monotonic() + _END_WITHIN
        while self._team.members and time.monotonic() < until:
            self._heard()
            self._read()
        self._host.close()


def _why(before: core.Team, team: core.Team) -> str:
    lost, new = set(before.inside) - set(team.inside), set(team.inside) - set(before.inside)
    if before.broken:
        return "A worker's process died."
    if lost:
        return f"{len(lost)} of its GPUs went to others."
    return "An idle GPU joined." if len(new) == 1 else f"{len(new)} idle GPUs joined."


if __name__ == "__main__":
    Leader(sys.argv[1]).run()
