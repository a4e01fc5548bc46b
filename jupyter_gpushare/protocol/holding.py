"""Says in words what a lease of a status document holds. Memory is always given for each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from .sizes import format_size
from .times import format_about, format_duration

Document = Mapping[str, Any]
OneLease = TypeVar("OneLease", bound=Document)

#: The kinds of jobs, for people.
JOB_KINDS: Final = {"elastic": "elastic job", "sweep": "sweep"}


def task_name(lease: Document) -> str:
    """The name by which a person knows a lease's task; empty where it is not told.

    A worker of a job goes by the job's.
    """
    if job := lease.get("job"):
        return str(job)
    path = lease.get("path") or ""
    return str(path).rstrip("/").rpartition("/")[2] or str(lease.get("name") or "")


def gpu_number(gpu: Document) -> str:
    """``0``, as nvidia-smi counts; of a MIG instance ``0:1``, its board's and its own."""
    instance = gpu.get("instance")
    return str(gpu["index"]) if instance is None else f"{gpu['index']}:{instance}"


def rows(leases: Iterable[OneLease]) -> list[list[OneLease]]:
    """Leases as people see them: those of one person's job are one row, where its first one is."""
    found: dict[object, list[OneLease]] = {}
    for place, lease in enumerate(leases):
        job, whose = lease.get("job"), lease.get("environment")
        key = place if job is None or whose is None else (str(whose), str(job))
        found.setdefault(key, []).append(lease)
    return list(found.values())


def job_of(row: Sequence[Document]) -> str | None:
    """The job whose leases these are; ``None``: a lease of a task by itself."""
    job = row[0].get("job")
    return None if job is None else str(job)


def job_name(job: str, row: Sequence[Document]) -> str:
    """``digits, 3 workers``; ``elastic job digits, 3 workers`` where the kind is known."""
    kind = JOB_KINDS.get(str(row[0].get("job_kind")), "")
    count = "1 worker" if len(row) == 1 else f"{len(row)} workers"
    return f"{kind}{' ' if kind else ''}{job}, {count}"


def each_state(words: Iterable[str]) -> str:
    """What several are in a row: ``active``, or ``2 active, 1 draining``."""
    counted = Counter(words)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count} {word}" for word, count in counted.items())


def sharers(leases: Iterable[Document], lease: Document, gpu: object) -> list[str]:
    """The same person's other tasks that use what a lease has on a GPU: they share it."""
    return [
        task_name(other) or "task"
        for other in leases
        if other.get("id") != lease.get("id")
        and lease.get("environment") is not None
        and other.get("environment") == lease.get("environment")
        and other.get("phase") == "held"
        and any(part.get("uuid") == gpu for part in other.get("gpus") or ())
    ]


def shared_text(names: Sequence[str], whose: str = "your ") -> str:
    """``shared with your first.ipynb and second.ipynb``; empty if it is not shared."""
    if not names:
        return ""
    *most, last = names
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"shared with {whose}{listed}"


def remaining_text(quota: Document) -> str:
    """The rest of a quota: ``1 GPU, 2 GiB on GPU 0``; empty if that is not known."""
    left = quota.get("remaining")
    if left is None:
        return ""
    count = left["gpus"]
    parts = [f"{count} GPU" if count == 1 else f"{count} GPUs"] if count else []
    parts += (
        f"{format_size(part['bytes'])} on GPU {gpu_number(part)}"
        for part in left["memory"]
        if isinstance(part["bytes"], int) and part["bytes"] > 0
    )
    return ", ".join(parts) or "nothing"


def each_text(sizes: Sequence[int]) -> str:
    """Bytes on each of several GPUs: ``24 GiB``, ``24 GiB each``, ``24 GiB and 80 GiB``."""
    words = [format_size(size) for size in sizes]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    return " and ".join(words)


def whole_memory(gpu: Document) -> int:
    """Bytes of a whole GPU: all that the host's own processes leave."""
    memory, system = gpu.get("memory"), gpu.get("system")
    whole = memory if isinstance(memory, int) else 0
    return whole - (system if isinstance(system, int) else 0)


# -- one GPU: whose memory is there, and whose time it is ------------------------------------------

#: Residents that are listed; others are counted.
_LISTED: Final = 4


def owner_text(lease: Document) -> str:
    """``your train.ipynb``, ``bob's train.ipynb``, ``someone else's notebook``."""
    kind = "program" if lease.get("kind") == "process" else "notebook"
    what = task_name(lease) or kind
    if lease.get("mine"):
        return f"your {what}"
    who = lease.get("environment")
    return f"someone else's {kind}" if who is None else f"{who}'s {what}"


def memory_text(gpu: Document, leases: Iterable[Document], now: object) -> str:
    """Whose memory is on a GPU, how much, since when; empty if nobody's is.

    ``now`` is the node's time, Unix seconds.
    """
    there = [(lease, part) for lease in leases if (part := _part(lease, gpu)) is not None]
    there.sort(key=lambda one: not one[0].get("mine"))
    listed = [
        " ".join(filter(None, (owner_text(lease), _size_text(part), _for(part, now))))
        for lease, part in there[:_LISTED]
    ]
    left = len(there) - _LISTED
    if left > 0:
        listed.append(f"{left} more")
    return "; ".join(listed)


def time_text(gpu: Document, leases: Iterable[Document], now: object) -> str:
    """Who computes on a GPU, since when, and who waits for a turn; empty if nobody is there."""
    here = [lease for lease in leases if _part(lease, gpu) is not None]
    if not here:
        return ""
    taking = [lease for lease in here if lease.get("turn") is not None]
    if not taking:
        busy = [lease for lease in here if lease.get("state") == "active"]
        return f"no turns; {_and_others(busy)} now"
    holder = next((one for one in taking if one.get("turn") in ("holds", "yields")), None)
    waiting = [one for one in taking if one.get("turn") == "waits"]
    waiting.sort(key=lambda one: _number(one.get("turn_place")) or len(taking))
    words = ["by turns"]
    if holder is None:
        words.append("nobody computes")
    else:
        does = "ends its turn" if holder.get("turn") == "yields" else "computes"
        kept = pinned_text(holder, now)
        since = "" if does != "computes" else _lasts(holder.get("turn_since"), now)
        words.append(", ".join(filter(None, [f"{owner_text(holder)} {does}{since}", kept])))
    if waiting:
        lasts = _lasts(waiting[0].get("turn_since"), now)
        words.append(f"next is {owner_text(waiting[0])}, paused{lasts}")
    if len(waiting) > 1:
        words.append(f"{len(waiting) - 1} more paused")
    return "; ".join(words)


def pinned_text(lease: Document, now: object) -> str:
    """``pinned for 9 min more``: for how long a pin keeps its turn; empty: it keeps none."""
    until, at = _number(lease.get("turn_pinned_until")), _number(now)
    if until is None or at is None or until <= at:
        return ""
    return f"pinned for {format_duration(until - at)} more"


#: What the node manager does with a task that is at work; ``{}`` is for how long.
INTERRUPTIONS: Final = {
    "moves": "moves to another GPU",
    "makes_way": "makes way for a request that waits",
    "locked": "paused by the driver's lock, for {} more at most",
    "stops": "saves its state and stops, within {}",
}


def interruption_text(lease: Document, now: object) -> str:
    """``paused by the driver's lock, for 5 s more at most``; empty if nothing is done with it."""
    told = lease.get("interrupted")
    words = INTERRUPTIONS.get(str(told.get("what")), "") if isinstance(told, Mapping) else ""
    if not words or "{}" not in words or not isinstance(told, Mapping):
        return words
    until, at = _number(told.get("until")), _number(now)
    if until is None or at is None:
        return words.partition(",")[0]
    return words.format(format_duration(max(1.0, until - at)))


def pauses_text(lease: Document, now: object) -> str:
    """``paused for somebody's turn, so far 20 s, about 10 s more``; empty if it never was.

    Then how often it moved: ``moved to another GPU twice in this cell``.
    """
    pauses = lease.get("pauses")
    told = pauses if isinstance(pauses, Mapping) else {}
    times = _number(told.get("times")) or 0
    where = "since it began" if lease.get("kind") == "process" else "in this cell"
    count = f"{times:g} times {where}" if times > 1 else f"once {where}"
    moves = _number(told.get("moved")) or 0
    often = f"{moves:g} times" if moves > 1 else "once"
    moved = f"moved to another GPU {often} {where}" if moves else ""
    if lease.get("turn") == "waits":
        since = _number(lease.get("turn_since"))
        if since is None or _number(now) is None:
            return "waits for its turn"
        words = f"paused for somebody's turn, so far{_lasts(since, now).removeprefix(' for')}"
        words += _more(lease.get("turn_expected"), now)
        words = f"{words}, {count}" if times > 1 else words
    else:
        seconds = format_duration(told.get("seconds"))
        words = f"was paused {count}, {seconds} in all" if times else ""
    return "; ".join(filter(None, (words, moved)))


#: How it stands with a promise.
PROMISES: Final = {
    "on_time": "on time",
    "late": "will not be kept",
    "kept": "kept",
    "missed": "missed",
    "ended": "over",
}
#: Why a promise is late or was missed, in a table's few words.
WHY_LATE: Final = {
    "quota": "the quota lets promises claim no more of a GPU",
    "full": "others have the rest of the GPU",
    "batch": "batch tasks have the rest of the GPU and cannot be stopped",
    "stopping": "batch tasks save their state and stop for it",
    "no_turns": "the GPU's time cannot be shared out here",
    "slow": "all of the GPU would not be enough",
    "undone": "it ended before all its steps were done",
}


def promise_text(lease: Document, now: object) -> str:
    """``promised to be ready in 5 min, on time, 30 % of the GPU's time``; empty: nothing is.

    A time that nobody named, which was predicted, is ``expected``.
    """
    told = lease.get("promise")
    if not isinstance(told, Mapping):
        return ""
    named, at, state = told.get("named") is not False, _number(now), str(told.get("state"))
    until, rate, ends = (_number(told.get(name)) for name in ("deadline", "rate", "expected_end"))
    goals = []
    if until is not None and at is not None:
        left = format_duration(abs(until - at))
        goals.append(f"to be ready in {left}" if until > at else f"to be ready {left} ago")
    if rate is not None:
        goals.append(f"{rate:g} steps a second")
    words = [f"{'promised' if named else 'expected'} {' and '.join(goals)}"]
    if named:
        why = WHY_LATE.get(str(told.get("why")), "") if state in ("late", "missed") else ""
        words.append(": ".join(filter(None, (PROMISES.get(state, ""), why))))
    if ends is not None and at is not None and ends > at and until is not None:
        words.append(f"ready in about {format_about(ends - at)}")
    share = _number(told.get("share"))
    if named and share:
        words.append(f"{share:g} % of the GPU's time is its own")
    return ", ".join(filter(None, words))


def compute_text(lease: Document) -> str:
    """``others leave it 30 % of the GPU's compute, and 60 % are predicted``.

    Empty: it has what was predicted, or nothing was.
    """
    told = lease.get("compute")
    if not isinstance(told, Mapping) or isinstance(lease.get("promise"), Mapping):
        return ""
    share, predicted = _number(told.get("share")), _number(told.get("predicted"))
    if share is None or predicted is None:
        return ""
    left = f"{share:g} %" if share > 1 else "next to nothing"
    return f"others leave it {left} of the GPU's compute, and {predicted:g} % are predicted"


def progress_text(lease: Document) -> str:
    """``step 40 of 100``; empty where it does not say."""
    told = lease.get("progress")
    done = _number(told.get("done")) if isinstance(told, Mapping) else None
    if done is None or not isinstance(told, Mapping):
        return ""
    total = _number(told.get("total"))
    return f"step {done:g}" if total is None else f"step {done:g} of {total:g}"


def verdicts_text(verdicts: object) -> str:
    """``12 promises kept, 1 missed (1 because …)``: of the last day; empty: there were none."""
    if not isinstance(verdicts, Mapping):
        return ""
    kept, missed = (int(_number(verdicts.get(name)) or 0) for name in ("kept", "missed"))
    if not kept and not missed:
        return ""
    known = [
        f"{row['missed']} because {WHY_LATE[row['why']]}"
        for row in verdicts.get("why") or ()
        if isinstance(row, Mapping) and row.get("why") in WHY_LATE
    ]
    said = f"{kept} {'promise' if kept == 1 else 'promises'} kept, {missed} missed"
    return f"{said} ({'; '.join(known)})" if known else said


def _part(lease: Document, gpu: Document) -> Document | None:
    if lease.get("state") in ("queued", "ended"):
        return None
    key = (gpu.get("uuid"), gpu.get("index"))
    parts = lease.get("gpus") or ()
    return next((one for one in parts if (one.get("uuid"), one.get("index")) == key), None)


def _size_text(part: Document) -> str:
    used, may = (_number(part.get(name)) for name in ("measured", "memory"))
    if may is None:
        return ""
    return (
        f"{format_size(int(may))}"
        if used is None
        else (f"{format_size(int(used))} of {format_size(int(may))}")
    )


def _for(part: Document, now: object) -> str:
    return _lasts(part.get("there_since"), now).strip()


def _lasts(since: object, now: object) -> str:
    begun, at = _number(since), _number(now)
    return "" if begun is None or at is None else f" for {format_duration(max(0.0, at - begun))}"


def _more(expected: object, now: object) -> str:
    """``, about 20 s more``; empty where nobody can tell, or it took longer than was thought."""
    until, at = _number(expected), _number(now)
    if until is None or at is None or until <= at:
        return ""
    return f", about {format_about(until - at)} more"


def _and_others(busy: Sequence[Document]) -> str:
    if not busy:
        return "nobody computes"
    others = len(busy) - 1
    first = owner_text(sorted(busy, key=lambda one: not one.get("mine"))[0])
    return f"{first} computes" if not others else f"{first} and {others} more compute"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 2**63 else None
