"""What there is to say of a quota, and of what is held of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..figures import counted, listed
from ..policy.say.texts import again
from ..protocol import documents as doc
from ..protocol.holding import gpu_number
from .text import Text, hours, join, name, perhaps, said, size, text

_SOURCES: Final = {
    "default": "the default for everybody",
    "user": "set for you in the configuration",
    "override": "set for you by an administrator",
    "pool": "the pool's, for all its hosts together",
}
_LOWERED: Final = (
    "The quota was lowered while you held more. Nothing is taken from you, but {} must come back "
    "before you get another."
)
_RESERVED: Final = (
    "The quota was lowered while this was reserved. Nothing is taken from you, and new leases get "
    "the new limit."
)
#: Of a budget, by its level.
_ADVICE: Final = {
    "warned": "Nearly all of your GPU-hours are used. When none are left, new requests wait. "
    "Release GPUs that you do not need.",
    "spent": "Your GPU-hours are spent. New requests wait until {}. What computes goes on, and an "
    "idle GPU is taken back.",
}


def says(
    quota: doc.HeldQuota, gpus: Sequence[doc.Gpu] | None, mine: Sequence[int], free: int | None
) -> list[doc.Fact]:
    """A quota; ``mine`` are bytes reserved on each of the node's ``gpus``.

    ``None`` for ``gpus``: it is of several nodes together.
    ``free`` GPUs could be granted at once, if somebody counted them.
    """
    each = Text("the whole GPU") if quota["memory"] is None else size(quota["memory"])
    weight, hint = (
        quota["weight"],
        "When several wait, GPUs are shared in proportion to the weights.",
    )
    return [
        *_held(quota, gpus),
        *_memory(quota, gpus or (), mine),
        *_budget(quota["budget"]),
        *_more(quota, free),
        said("quota", "{}, {} on each", counted(quota["gpus"], "GPU"), each, label="Quota"),
        *_left(quota),
        *perhaps(weight != 1, "weight", f"{weight:g}", label="Weight", hint=hint),
        said("source", _source(quota), label="Source"),
    ]


def _source(quota: doc.HeldQuota) -> str:
    groups = [name(group) for group in quota.get("from_groups", ())]
    if quota["source"] == "group":
        return f"from your group{'s' * (len(groups) > 1)} {listed(groups)}".rstrip()
    return _SOURCES.get(quota["source"], quota["source"])


def _held(quota: doc.HeldQuota, gpus: Sequence[doc.Gpu] | None) -> Iterator[doc.Fact]:
    used, allowed, pool = quota["used_gpus"], quota["gpus"], quota.get("pool")
    if pool is not None:
        lent = pool["lent"]
        yield said("held", f"{used} of {lent} lent here", label="GPUs", share=used / max(1, lent))
        yield said("pool", _pool(pool))
        return
    share = used / allowed if allowed else float(used > 0)
    tone = "bad" if used > allowed else "muted" if not allowed else "plain"
    yield said("held", f"{used} of {allowed}", tone=tone, label="GPUs", share=share)
    if gpus is not None and not gpus:
        yield said("advice", "This node has no GPU to share now, so code runs on the CPU.")
    elif not allowed and not used:
        words = "Your quota has no GPU, so code runs on the CPU. Ask the administrator for one."
        yield said("advice", words, tone="warn")
    elif used > allowed:
        more = counted(used - allowed + 1 if allowed else used, "GPU")
        yield said("advice", _LOWERED, more, tone="warn")


def _more(quota: doc.HeldQuota, free: int | None) -> Iterator[doc.Fact]:
    """How many more GPUs there may be, and how many of them now."""
    more, budget = quota["gpus"] - quota["used_gpus"], quota["budget"]
    if free is None or "pool" in quota or (budget is not None and budget["level"] == "spent"):
        return
    if more > 0:
        now = min(more, free)
        when = f",{f' {now} of them now, the others' if now else ''} as soon as there is room"
        words = f"You can get {counted(more, 'more GPU')}{' now' if now == more else when}."
        yield said("more", words)
    elif quota["used_gpus"]:
        words = "The quota is used up: a new task shares the GPUs you hold, or waits."
        yield said("more", words)


def _pool(pool: doc.PoolQuota) -> str:
    of, lent, borrowed = name(pool["pool"]), pool["lent"], pool["borrowed"]
    if pool["whole"] is None:
        return f"The pool {of} has lent you nothing here yet. Your first request asks it."
    told = (
        f"This quota is for all hosts of the pool {of} together. The pool lends you "
        f"{counted(lent, 'GPU')} on this host now.",
        f"{counted(borrowed, 'GPU')} of those you borrow from others, who may take "
        f"{'it' if borrowed == 1 else 'them'} back."
        if borrowed
        else "",
        "What you hold beyond that is asked back." if pool["reclaimed"] else "",
        ""
        if pool["valid"]
        else "The pool does not answer now, so nothing new begins here until it does.",
        name(pool["why"] or "", 500),
    )
    return join(told, " ")


def _memory(
    quota: doc.HeldQuota, gpus: Sequence[doc.Gpu], mine: Sequence[int]
) -> Iterator[doc.Fact]:
    for gpu, held in zip(gpus, mine, strict=True):
        if held > 0:
            most = quota["memory"] or gpu["memory"]
            yield said(
                "memory",
                "{} of {}",
                size(held),
                size(most),
                label=f"Memory on GPU {gpu_number(gpu)}",
                share=held / most,
                tone="bad" if held > most else "plain",
                hint=_RESERVED if held > most else "",
            )


def budget_used(budget: doc.Budget) -> Text:
    """``0.08 of 0.05 in the last 7 days``."""
    when = budget.get("when") or "lately"
    return text("{} of {} {}", hours(budget["spent"]), f"{budget['hours']:g}", when)


def _budget(budget: doc.Budget | None) -> Iterator[doc.Fact]:
    if budget is None:
        return
    tone = {"warned": "warn", "spent": "bad"}.get(budget["level"], "plain")
    share = budget["spent"] / budget["hours"] if budget["hours"] else 1.0
    yield said("budget", budget_used(budget), label="GPU-hours", share=share, tone=tone)
    if (advice := _ADVICE.get(budget["level"])) is not None:
        yield said("advice", advice, again(budget.get("per")), tone="warn")


def _left(quota: doc.HeldQuota) -> Iterator[doc.Fact]:
    if (remaining := quota.get("remaining")) is None:
        return
    parts = [counted(remaining["gpus"], "GPU") if remaining["gpus"] else ""]
    parts += [
        text("{} on GPU {}", size(part["bytes"]), gpu_number(part))
        for part in remaining["memory"]
        if part["bytes"] > 0
    ]
    label = "Left here" if "pool" in quota else "Left"
    yield said("left", join(parts) or Text("nothing"), label=label)
