"""What there is to say of a request that waits, in the queue and to the one who asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ..protocol import documents as doc
from .leases import asks
from .quotas import budget_used
from .text import between, left, name, perhaps, said, since, span, text, who


def says(row: doc.Waiting, now: float) -> list[doc.Fact]:
    """A row of the queue at ``now``, Unix seconds."""
    spent = row["reason"] == "budget_spent"
    return [
        *_place(row["position"], spent, row.get("budget")),
        said("who", who(row)),
        said("class", row["priority_class"]),
        said("asks", asks(row["gpus"], row["memory"])),
        said("waited", "{}", since(now - row["waiting"])),
        *_told(
            row["ahead"] if row["mine"] else None, row["message"], row.get("outlook"), spent, now
        ),
    ]


def notice_says(notice: doc.Queued, now: float) -> list[doc.Fact]:
    """What a waiting task's people are told when its place changes; ``now`` in Unix seconds."""
    spent, outlook = notice["reason"] == "budget_spent", notice.get("outlook")
    place = _place(notice["position"], spent, notice.get("budget"), notice.get("host"))
    return [*place, *_told(notice["ahead"], notice["message"], outlook, spent, now)]


def line_says(waiting: Mapping[str, int]) -> doc.Fact:
    """The queue as a whole; ``waiting`` are the requests of each class."""
    classes = ", ".join(f"{count} {kind}" for kind, count in waiting.items() if count)
    words = f"{sum(waiting.values())} waiting: {classes}." if classes else "Nobody waits."
    return said("queue", words)


def _place(
    position: int, spent: bool, budget: doc.Budget | None, host: str | None = None
) -> Iterator[doc.Fact]:
    if not spent:
        where = f" on host {name(host)}" if host else ""
        yield said("place", f"number {position} in line{where}", tone="info")
    elif budget is None:
        yield said("place", "waiting for GPU-hours", tone="warn")
    else:
        yield said("place", "the GPU-hours are spent: {}", budget_used(budget), tone="warn")


def _told(
    ahead: doc.Ahead | None,
    message: str | None,
    outlook: doc.Outlook | None,
    spent: bool,
    now: float,
) -> Iterator[doc.Fact]:
    """The message of who waits for GPU-hours says all, also when there are some again."""
    if ahead is not None and not spent:
        yield said("ahead", _ahead(ahead))
    known = None if spent or outlook is None else outlook
    if known is not None and (estimate := known["estimate"]) is not None:
        yield said("takes", "about {}", between(estimate["low"], estimate["high"]))
    yield from perhaps(message, "why", name(message or "", 2000))
    yield from () if known is None else _expected(known, now)


def _ahead(ahead: doc.Ahead) -> str:
    numbers = {"interactive": ahead["interactive"], "batch": ahead["batch"]}
    told = " and ".join(f"{number} {kind}" for kind, number in numbers.items() if number)
    return f"{told} ahead" if told else "nobody is ahead"


def _expected(outlook: doc.Outlook, now: float) -> Iterator[doc.Fact]:
    estimate, idle, stop = outlook["estimate"], outlook["idle"], outlook.get("stop")
    if estimate is not None:
        how = "as it did for others in the last hour"
        if estimate["basis"] == "idle":
            how = "if kernels that are idle now stay idle"
        yield said("why", "It takes about {}, {}.", between(estimate["low"], estimate["high"]), how)
    if idle is not None:
        words = "{} has been idle for {}. After {} it is asked for its GPU."
        whose = _whose(idle, _KINDS[idle.get("kind", "kernel")])
        yield said("why", words, whose, since(now - idle["idle"]), span(idle["after"]))
    elif stop is not None:
        when = text("in {}", left(now + stop["left"])) if stop["left"] > 0 else "now"
        words = "{} is asked {} to save its state and make way."
        yield said("why", words, _whose(stop, "batch program"), when)
    elif outlook["idle_after"] > 0:
        yield said("why", "Idle GPUs are asked back after {}.", span(outlook["idle_after"]))


_KINDS: Final = {"kernel": "kernel", "process": "program", "server": "server"}


def _whose(task: doc.WhoseTask, kind: str) -> str:
    if task["mine"]:
        return f"Your {name(task['name'])}" if task["name"] else f"A {kind} of yours"
    environment = task["environment"]
    return f"Somebody's {kind}" if environment is None else f"A {kind} of {name(environment)}"
