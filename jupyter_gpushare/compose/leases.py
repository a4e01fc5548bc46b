"""What there is to say of a lease.

A person who looks at a lease asks four things: how it stands, why, what will happen next, and what
to do about it. So a fact is a short sentence with a tone, and where something can be done, a hint
that names the command. The most important comes first, because a terminal, a table and a panel all
cut what they have no room for.

A sentence says what is so now, and leaves moments as figures, which each reader counts on by its
own clock: a sentence with "in 5 s" written into it would be wrong a second later, and would have to
be sent again each second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..figures import counted, listed, often
from ..policy.say.texts import CAUSES
from ..protocol import documents as doc
from ..protocol.holding import gpu_number
from .text import (
    Text,
    about,
    clock,
    each,
    join,
    left,
    name,
    perhaps,
    said,
    since,
    size,
    span,
    text,
    who,
)

#: Each state: how it stands, its word, and what it means.
STATES: Final[dict[str, tuple[str, str, str]]] = {
    "queued": ("info", "waiting", "It waits for a GPU. The code goes on when it gets one."),
    "active": ("good", "active", "It holds its GPU and runs code."),
    "idle": ("muted", "idle", "It holds its GPU and runs no code."),
    "parking": (
        "warn",
        "parking",
        "It is idle and gives its GPU back. What is on the GPU goes to host memory.",
    ),
    "parked": (
        "muted",
        "parked",
        "Its GPU was given back and its variables are kept. The next cell takes a GPU again.",
    ),
    "resuming": (
        "info",
        "resuming",
        "It has a GPU again. What was in host memory is brought back to it.",
    ),
    "stalled": (
        "bad",
        "stalled",
        "Its process gives no sign of life. It keeps its memory until the process ends.",
    ),
    "suspended": (
        "warn",
        "suspended",
        "Its process is stopped, as in a suspended job or after Ctrl+Z. It keeps its memory and "
        "goes on when it is continued.",
    ),
    "over_limit": ("bad", "over its limit", "It uses more GPU memory than its lease reserves."),
    "draining": (
        "warn",
        "draining",
        "The lease has ended, but its process still holds GPU memory. It is free when that process "
        "ends: restart the kernel, or end the program.",
    ),
    "ended": ("muted", "ended", "It is over."),
}
#: The same of a server, where that is another.
_SERVERS: Final[dict[str, tuple[str, str, str]]] = {
    "active": ("good", "serving", "It holds its GPU and answers requests."),
    "idle": ("muted", "idle", "It holds its GPU, and no request is under way."),
    "parking": ("warn", "falling asleep", "It is idle and gives its GPU back."),
    "parked": ("muted", "asleep", "Its GPU was given back. The next request wakes it."),
    "resuming": ("info", "waking", "Requests wait until it has a GPU and its memory is back."),
}
#: What the task's memory does while it is parked; {} is what it takes of the host's.
_RUNGS: Final = {
    "release": "It had nothing on its GPU.",
    "trim": "Its caches were emptied. What the code uses stayed on the GPU.",
    "storage": "Its tensors are in host memory: {}.",
    "driver": "The driver keeps all that it had on the GPU in host memory: {}.",
}
#: Of a model server, where that is something else.
_SERVERS_RUNGS: Final = {
    "release": "It was stopped, and is started again.",
    "storage": "It sleeps by its own means, with {} in host memory.",
}
_ABILITIES: Final = {
    "release": "It could be parked at once, because it has not used the GPU yet",
    "trim": "It could give back cached memory only",
    "storage": "It could be parked: its tensors can move to host memory",
    "driver": "The driver could park it, with all that is on the GPU",
    "none": "It cannot be parked",
}
_PROGRAM: Final = (
    "No idle time-out ends for a program: it keeps its GPU until it ends or you release it, so "
    "there is nothing to keep."
)
_RANGE_HINT: Final = (
    "It asked for a range of memory. The smaller size is certain. What is more falls when others "
    "need memory on one of its GPUs, and rises again afterwards."
)
LIFTED_HINT: Final = (
    "The GPU is nearly empty, so the limit is higher for now. When others need the memory, caches "
    "are emptied and the limit is lowered again, also while code runs. If the code cannot do "
    "without, release the GPU and ask for more: %gpushare request --memory 16GiB."
)
_OVER_HINT: Final = (
    "Others are given the memory that is left, so they may run out of it. Free some: delete what "
    "is not needed (del), use smaller batches, or restart the kernel. If the code needs more, "
    "release the GPU and ask for more: %gpushare request --memory 16GiB."
)
_OVER_NEXT: Final = {
    "trim": "Its caches are emptied in {}.",
    "park": "Its GPU is taken back in {}, if it is idle then.",
    "last": "It is stopped in {}.",
}
#: What it means to wait for a turn of so many seconds.
_TURN_HINT: Final = (
    "Tasks on this GPU compute one after the other and change at the end of a training step. "
    "The task of whoever computed least goes first, and a turn lasts about {} s. The cell goes on "
    "by itself, and nothing is lost meanwhile. Interrupt the kernel to stop waiting."
)
_STALLS: Final = {"interrupt": "interrupted", "kill": "ended"}
_INTERRUPTIONS: Final = {
    "moves": "It moves to another GPU. Its memory waits in host memory until it is there.",
    "makes_way": "It makes way for a request that waits. Its memory goes to host memory and comes "
    "back.",
    "locked": "The driver's lock pauses it, for {} more at most.",
    "stops": "It saves its state and stops, within {}.",
}
#: How a promise stands, before what was promised.
_PROMISES: Final = {
    "on_time": "Promised",
    "late": "Will not be kept",
    "kept": "Kept",
    "missed": "Missed",
    "ended": "It was promised",
}
#: Why a promise is late or was missed, by the word of a document.
WHY_LATE: Final = {cause.value: words for cause, words in CAUSES.items()}


@dataclass(frozen=True, slots=True)
class Near:
    """What there is to know around a task, in names that the viewer may know.

    ``because``: why its memory is asked back, if it is. ``sharers`` are the same person's other
    tasks, ``computing`` those that have the turn on its GPUs, ``behind`` is how many wait for a
    turn there, ``quantum`` seconds of a turn. ``spent``: its people have no GPU-hours left.
    """

    sharers: tuple[str, ...] = ()
    computing: tuple[str, ...] = ()
    behind: int = 0
    quantum: float = 0.0
    because: str = ""
    spent: bool = False


def says(row: doc.Lease, near: Near, now: float, columns: Sequence[doc.Fact]) -> list[doc.Fact]:
    """All that there is to say of a lease at ``now``, Unix seconds: what it is, then notes.

    ``columns`` are its :func:`columns`.
    """
    what = said("what", name_of(row), hint=name(row["path"] or "", 500))
    told = [said("who", who(row)), what, *columns, *_notes(row, near, now)]
    if row["mine"]:
        return [*told, *_summary(row, near)]
    if row["environment"] is None:  # nobody has to do anything about what is others'
        return [_without_hint(one) for one in told]
    return told


def _without_hint(fact: doc.Fact) -> doc.Fact:
    if isinstance(fact, str):
        return fact
    return said(
        fact["about"], fact["text"], tone=fact.get("tone", "plain"), share=fact.get("share")
    )


def task_name(job: str | None, path: str | None, given: str | None, kind: str) -> str:
    """The name by which a person knows a task; a worker of a job goes by the job's.

    ``given`` is the name that the task has for itself: a program's may be chosen by its person, a
    notebook's is as old as its kernel.
    """
    last = (path or "").rstrip("/").rpartition("/")[2]
    if kind == "kernel":
        return name(job or last or given or "a notebook")
    return name(job or given or last or ("a server" if kind == "server" else "a program"))


def name_of(row: doc.Lease) -> str:
    """The same, of a row."""
    return task_name(row.get("job"), row["path"], row["name"], row["kind"])


_UNMEASURED: Final = "How much of it is used is not known."
#: What ending a job does to it, by its kind.
_JOBS: Final = {
    "elastic": (
        "elastic job",
        'The job saves at the end of its step and stops. In a notebook elastic.load("{}") goes on.',
    ),
    "sweep": (
        "sweep",
        "The sweep stops, and keeps the results it has. Models that run now save if they can, else "
        'they begin anew. In a notebook sweep.load("{}") goes on.',
    ),
}
_JOB: Final = (
    "job",
    "All its leases end at once. Memory that its code holds on the GPUs is freed when the code "
    "frees it.",
)


def job_says(job: str, kind: str | None, rows: Sequence[doc.Lease]) -> list[doc.Fact]:
    """What there is to say of a job's leases together; they are one person's."""
    word, ends = _JOBS.get(kind or "", _JOB)
    what = f"{word} {name(job)}, {counted(len(rows), 'worker')}"
    gpus = {part["uuid"]: part for row in rows for part in row["gpus"]}
    parts = sorted(gpus.values(), key=lambda part: (part["index"], part.get("instance") or 0))
    first = min(row["granted"] or row["requested"] for row in rows)
    return [
        said("who", who(rows[0])),
        said("what", what, hint=ends.replace("{}", name(job))),
        *perhaps(parts, "where", ", ".join(f"GPU {gpu_number(part)}" for part in parts)),
        said("state", _counted(STATES[row["state"]][1] for row in rows)),
        *_use([part for row in rows for part in row["gpus"]], together=True),
        said("class", _counted(row["priority_class"] for row in rows)),
        said("held", "{}", since(first)),
    ]


def _counted(words: Iterable[str]) -> str:
    """What several are: ``active``, or ``2 active, 1 draining``."""
    counts = Counter(words)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def of_server(state: str, waits: bool, told: doc.Serving | None) -> tuple[str, str, str]:
    """How a server stands: the tone, the word, and what it means.

    ``waits``: for a GPU. What its keeper ``told`` others may not know.
    """
    requests = 0 if told is None else told["requests"]
    if state in ("active", "idle") and told is not None:
        state = "active" if requests else "resuming" if told["held"] else "idle"
    if state == "parked" and waits:
        state = "resuming"
    tone, word, hint = _SERVERS.get(state) or STATES[state]
    if state == "active" and requests:
        word = f"{word} {counted(requests, 'request')}"
    return tone, word, hint


def _standing(row: doc.Lease, spent: bool) -> tuple[str, str, str]:
    """How a lease stands: the tone, the word, and what it means."""
    state, place = row["state"], ""
    if row["position"] is not None:
        state = "queued"
        # Who waits for GPU-hours is in no line.
        place = "waiting for GPU-hours" if spent else f"number {row['position']} in line"
    if row["kind"] == "server":
        tone, word, hint = of_server(row["state"], bool(place), row.get("serving"))
        return tone, ", ".join(filter(None, (word, place))), hint
    tone, word, hint = STATES.get(state, ("plain", state, ""))
    return tone, place or word, hint


def columns(row: doc.Lease, spent: bool) -> list[doc.Fact]:
    """What there is to say of a lease to everybody alike: where it is, and how it stands.

    ``spent``: its people have no GPU-hours left, and the viewer may know it.
    """
    tone, word, hint = _standing(row, spent)
    begun = row["since"] if row["position"] is None else row["requested"]
    where = ", ".join(f"GPU {gpu_number(gpu)}" for gpu in row["gpus"])
    return [
        *perhaps(where, "where", where),
        said("state", "{} for {}", word, since(begun), tone=tone, hint=hint),
        *_memory(row),
        said("class", row["priority_class"]),
        said("held", "{}", since(row["granted"] or row["requested"])),
    ]


def _memory(row: doc.Lease) -> Iterator[doc.Fact]:
    """What it uses of what it may, or what it asks for."""
    if row["gpus"]:
        yield from _use(row["gpus"])
    elif row["state"] == "queued":
        yield said("memory", asks(row["asked"]["gpus"], row["asked"]["memory"]))


def _use(parts: Sequence[doc.LeaseGpu], *, together: bool = False) -> Iterator[doc.Fact]:
    """What is used of what may be: on each GPU, or ``together`` on all of them."""
    may = [part["memory"] for part in parts]
    used = [part["measured"] for part in parts if part["measured"] is not None]
    if len(used) < len(may):
        yield said("memory", "may use {}", each(may), hint=_UNMEASURED)
    elif may:
        share, tone = sum(used) / max(1, sum(may)), "bad" if sum(used) > sum(may) else "plain"
        words = text("{} of {} in all", size(sum(used)), size(sum(may)))
        words = words if together else text("{} of {}", each(used), each(may))
        yield said("memory", words, share=share, tone=tone)


def asks(gpus: int, memory: int | None) -> Text:
    """``1 GPU with 8 GiB``, ``2 whole GPUs``."""
    if memory is None:
        return Text(counted(gpus, "whole GPU"))
    return text("{} with {}{}", counted(gpus, "GPU"), size(memory), " on each" if gpus > 1 else "")


def _summary(row: doc.Lease, near: Near) -> Iterator[doc.Fact]:
    """All of it in a few words, and a countdown where its GPU is about to go."""
    (tone, word, _), parts = _standing(row, near.spent), row["gpus"]
    told = Text(word)
    if parts:
        some = ", ".join(f"GPU {gpu_number(part)}" for part in parts)
        where = some if len(parts) < 3 else counted(len(parts), "GPU")
        if row["turn"] == "waits":
            word = "waits for its turn"
        elif row["state"] == "active" and row["kind"] != "server":
            word = ""
        told = join([where, each([part["memory"] for part in parts]), word], " · ")
    yield said("summary", told, tone=tone)
    if (warning := row["warning"]) is not None:
        yield said("countdown", "taken back in {}", left(warning["at"]), tone="warn")


# -- notes ---------------------------------------------------------------------------------------


def _notes(row: doc.Lease, near: Near, now: float) -> Iterator[doc.Fact]:
    if near.sharers:
        whose = "your " if row["mine"] else ""
        yield said("shared", "It shares its GPU with {}{}.", whose, listed(near.sharers))
    yield from (*_reserve(row), *_limits(row), *_over(row), *_stall(row))
    if (inherited := row.get("inherited")) is not None:
        words = "The process that asked ended {} ago, and process {} goes on."
        yield said("survivor", words, since(inherited), str(row["pid"]), tone="info")
    yield from (*_serving(row), *_turn(row, near, now), *_pauses(row))
    yield from (*_promise(row, now), *_parking(row, near, now))


def _serving(row: doc.Lease) -> Iterator[doc.Fact]:
    if (told := row.get("serving")) is None:
        return
    held, slept, woke = told["held"], told["sleeps"], told["wake_seconds"]
    wait = counted(held, "request waits", "requests wait")
    words = (
        text("It answers at {}.", told["address"]),
        f"{wait} for it to wake." if held else "",
        f"It has slept {often(slept)}." if slept else "",
        "" if woke is None else text("Waking took {} last.", span(woke)),
    )
    yield said("server", join(words, " "), hint="%gpushare servers shows how to use it.")


#: Why it reserves what it does.
_RESERVES: Final = {
    "named": "It asked for this size.",
    "estimate": "It reserves what {} of the same code needed.",
    "predicted": "It reserves what the dry run of its model predicted.",
    "measured": "It reserves its peak of {} and head-room.",
    "fixed": "It reserves what the quota gives, because its framework cannot change its limit.",
}
_UNTIL_MEASURED: Final = "It reserves what the quota gives until it is measured."


def _reserve(row: doc.Lease) -> Iterator[doc.Fact]:
    if (reserve := row.get("reserve")) is None:
        return
    figure = size(max((part.get("peak") or 0 for part in row["gpus"]), default=0))
    if reserve["why"] == "estimate":
        figure = Text(counted(reserve["runs"] or 0, "run"))
    if words := _RESERVES.get(reserve["why"], _UNTIL_MEASURED if reserve["follows"] else ""):
        yield said("reserve", words, figure, tone="muted")


#: What a limit is beside what is reserved: in words, with the number of the GPU, the limit, what is
#: reserved and the end of a range; then the tone and a hint.
_LIMITS: Final = {
    "range": ("It may use {1} of {2} to {3} on GPU {0}.", "plain", _RANGE_HINT),
    "follows": ("It may use up to {1} on GPU {0}, of which {2} are reserved for it.", "muted", ""),
    "lifted": ("Its limit on GPU {0} is lifted from {2} to {1} for now.", "plain", LIFTED_HINT),
    "lowered": ("Its limit on GPU {0} is lowered from {2} to {1}.", "plain", ""),
}


def _limits(row: doc.Lease) -> Iterator[doc.Fact]:
    most, reserve = row.get("memory_most"), row.get("reserve")
    lifted = "follows" if reserve is not None and reserve["follows"] else "lifted"
    for part in row["gpus"]:
        limit, may = part["limit"], part["memory"]
        if most is not None or limit != may:
            kind = "range" if most is not None else lifted if limit > may else "lowered"
            words, tone, hint = _LIMITS[kind]
            figures = gpu_number(part), size(limit), size(may), size(most or 0)
            yield said("limit", words, *figures, tone=tone, hint=hint)
    kept = [part["persistent"] for part in row["gpus"] if part["persistent"] is not None]
    step = [part["temporary"] for part in row["gpus"] if part["temporary"] is not None]
    if row["gpus"] and len(kept) == len(step) == len(row["gpus"]):
        cache = [part["cache"] or 0 for part in row["gpus"]]
        cached = text(". Its cache has {}", each(cache)) if any(cache) else ""
        words = "It keeps {}, and a step needs {} more{}."
        yield said("figures", words, each(kept), each(step), cached, tone="muted")


def _over(row: doc.Lease) -> Iterator[doc.Fact]:
    if (over := row["over_limit"]) is None:
        return
    on = [f" on GPU {gpu_number(part)}" for part in row["gpus"] if part["uuid"] == over["gpu"]]
    used = "more memory" if over["used"] is None else size(over["used"])
    told = text("It uses {}{} and may use {}.", used, "".join(on), size(over["limit"]))
    if over["next"] is not None and over["next_at"] is not None:
        told = text(f"{{}} {_OVER_NEXT[over['next']]}", told, left(over["next_at"]))
    yield said("over", told, tone="bad", hint=_OVER_HINT)


def _stall(row: doc.Lease) -> Iterator[doc.Fact]:
    if (stall := row["stall"]) is None:
        return
    done, at = _STALLS[stall["next"]], stall["at"]
    words, tone = "Somebody waits for its memory: it is {} in {} unless it goes on.", "bad"
    if at is None:
        words, tone = (
            "It is {} after {} without progress, if somebody waits for its memory.",
            "warn",
        )
    yield said("stall", words, done, span(stall["after"]) if at is None else left(at), tone=tone)


#: What its turn is, beside waiting for one, and the tone.
_TURNS: Final = {
    "holds": ("It has the turn{}.", "plain"),
    "yields": ("It ends its step and its turn{}.", "plain"),
    "rest": ("It asks for a turn when it computes.", "muted"),
}


def _turn(row: doc.Lease, near: Near, now: float) -> Iterator[doc.Fact]:
    if row["turn"] == "waits":
        hint = _TURN_HINT.format(f"{near.quantum:g}")
        yield said("turn", _waits(row, near, now), tone="info", hint=hint)
    elif row["turn"] is not None:
        words, tone = _TURNS[row["turn"]]
        behind = f", and {near.behind} {'waits' if near.behind == 1 else 'wait'} for one"
        yield said("turn", words, behind if near.behind else "", tone=tone)
    if (until := row.get("turn_pinned_until")) is not None:
        yield said("turn", "Its turn is pinned for {} more.", left(until))
    if row["overran"]:
        words = "It did not give its turn back in time, so it no longer takes turns."
        yield said("turn", words, tone="warn")
    if (told := row.get("interrupted")) is not None:
        yield said("interrupted", _INTERRUPTIONS[told["what"]], left(told["until"] or now))


def _waits(row: doc.Lease, near: Near, now: float) -> Text:
    place, expected = row["turn_place"] or 1, row.get("turn_expected") or now
    more = text(", about {} more", about(expected)) if expected > now else ""
    words = "Paused for somebody's turn for {}{}: {}. {}"
    line = "next in line" if place == 1 else f"number {place} in line"
    why = "The memory that the last one left is not free yet."
    if near.computing:
        why = f"The turn is with {listed(near.computing)}."
    return text(words, since(row["turn_since"] or now), more, line, Text(why))


def _pauses(row: doc.Lease) -> Iterator[doc.Fact]:
    if (pauses := row.get("pauses")) is None:
        return
    cell = "in this cell" if row["activity"] == "busy" else "in its last cell"
    where = cell if row["kind"] == "kernel" else "since it began"
    if pauses["times"] > (1 if row["turn"] == "waits" else 0):
        words = "It was paused {} {}, {} in all."
        yield said("pauses", words, often(pauses["times"]), where, span(pauses["seconds"]))
    if moved := pauses.get("moved"):
        yield said("pauses", "It moved to another GPU {} {}.", often(moved), where)


def _promise(row: doc.Lease, now: float) -> Iterator[doc.Fact]:
    promise, compute = row.get("promise"), row.get("compute")
    if promise is not None:
        late = promise["named"] and promise["state"] in ("late", "missed")
        yield said("promise", _promised(promise, now, late), tone="warn" if late else "plain")
    elif compute is not None:
        share = f"{compute['share']} %" if compute["share"] > 1 else "next to nothing"
        words = "Others leave it {} of the GPU's compute, and {} % are predicted."
        yield said("compute", words, share, compute["predicted"])
    if (progress := row.get("progress")) is not None:
        of = "" if progress["total"] is None else f" of {progress['total']}"
        yield said("progress", f"Step {progress['done']}{of}.")


def _promised(promise: doc.Promise, now: float, late: bool) -> Text:
    until, rate, ends = promise["deadline"], promise["rate"], promise["expected_end"]
    named, why = promise["named"], WHY_LATE.get(promise["why"] or "") if late else None
    goals = (
        "" if until is None else text("ready by {}", clock(until)),
        "" if rate is None else f"at least {rate:g} steps a second",
    )
    stands = _PROMISES.get(promise["state"], "Promised") if named else "Expected"
    told = [text("{}: {}.", stands, join(goals, " and "))]
    if why is not None:
        told.append(Text(f"The reason: {why}."))
    told_so = not named and until is not None and ends is not None and ends - until < 1
    if until is not None and ends is not None and ends > now and not told_so:
        told.append(text("It will be ready at about {}.", clock(ends)))
    if named and promise["share"]:
        told.append(Text(f"{promise['share']} % of its GPU's time is its own."))
    return join(told, " ")


#: What becomes of an idle task whose GPU is taken back, and what brings it another.
_GOES: Final = ("What it has in memory is kept.", "It has a GPU again when it computes.")
_KERNEL_GOES: Final = ("Its variables are kept.", "The next cell takes a GPU again.")


def _parking(row: doc.Lease, near: Near, now: float) -> Iterator[doc.Fact]:
    taken, until, rung = row.get("may_be_taken_at"), row["pinned_until"], row["rung"]
    if (warning := row["warning"]) is not None:
        kept, hint = _KERNEL_GOES if row["kind"] == "kernel" else _GOES
        words = "Its GPU is taken back in {}, because {}. {}"
        figures = left(warning["at"]), near.because, kept
        yield said("warning", words, *figures, tone="warn", hint=hint)
    elif taken is not None:
        words = "Its GPU may be asked back in {}, if it stays idle."
        words = words if taken > now else "Its GPU may be asked back, because it is idle."
        yield said("kept", words, left(taken), tone="muted")
    if row["kept"]:
        yield said("keeps", "It was asked for its GPU and keeps it: {}", name(row["kept"], 500))
    if until is not None and until > now:
        yield said("kept", "Its GPU is kept for {} more.", left(until))
    if rung is not None:
        servers = _SERVERS_RUNGS if row["kind"] == "server" else {}
        yield said("parked", servers.get(rung, _RUNGS[rung]), size(row["parked_memory"] or 0))
    if (ability := row["ability"]) is not None:
        why = f", because: {name(ability['why'], 500)}" if ability["why"] else "."
        yield said("ability", f"{_ABILITIES[ability['rung']]}{why}", tone="muted")
    elif row["mine"] and row["kind"] == "process" and row["phase"] == "held":
        yield said("ability", _PROGRAM, tone="muted")
