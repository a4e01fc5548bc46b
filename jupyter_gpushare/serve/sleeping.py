"""Puts a server to sleep by its own means, and checks that it wakes as what it was.

It is a `Parker` to the keeper's ladder. What an adapter claims is measured: its memory by the node
manager, and its mind by a fixed prompt, answered before and after. A server that gives another
answer than before, or none, is started anew by its keeper.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..client.adapters.parkers.base import ParkedDamaged
from .adapters.base import LOADED, Adapter, Step
from .upstream import NONSENSE, Control, ControlFailed

#: Shorter than a block of a prefix cache, so that the answer does not depend on one.
_PROMPT: Final = "One, two, three, four, five,"
_TRIES, _PAUSE = 300, 0.1


def models(control: Control) -> list[str]:
    """The models that a server of OpenAI's kind lists. Raises `ControlFailed`, or `NONSENSE`."""
    return [str(one["id"]) for one in control.call("GET", "/v1/models").json.get("data") or ()]


class OwnSleep:
    """A server's own way to give its GPU memory back."""

    def __init__(
        self,
        adapter: Adapter,
        control: Control,
        memory: Callable[[], int],
        damaged: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """``memory``: the bytes that the server has on GPUs now. ``damaged`` is called where it
        must be started anew before anybody is answered.
        """
        self.adapter = adapter
        self._control, self._memory, self._damaged, self._say = control, memory, damaged, say
        #: Whether what it parks lies in host memory.
        self.copies = adapter.copies
        #: What it answered before it slept; ``None``: nothing, or not the same each time.
        self.answer: str | None = None
        #: The models that were unloaded, first the one that answered.
        self.slept: Sequence[str] = ()
        self._steady: bool | None = None
        self.is_parked = False

    def trim(self) -> int:
        """A server has no cache that it would empty for us."""
        return 0

    def drop_cache(self) -> None:
        """As `trim`."""

    def bytes_to_park(self) -> int:
        """As much as it has on GPUs: what of that goes to host memory, only the server knows."""
        return self._memory()

    def park(self) -> int:
        """Have it sleep; the bytes that it keeps in host memory. Raises `ControlFailed`."""
        # Asked before each sleep: other models may be loaded by now.
        self.answer = None if self._steady is False else self._tries(self._ask)
        if self._steady is None and self.answer is not None:
            # Asked twice, once: a server that never answers the same would be started anew at each
            # waking.
            self._steady = self._tries(self._ask) == self.answer
            if not self._steady:
                self.answer = None
                self._say(
                    "The server answers the same prompt differently each time, so it is not "
                    "checked whether it wakes as what it was."
                )
        amount = self._memory() if self.copies else 0
        self.is_parked = True  # unless it can be woken again, where it sleeps in part
        try:
            self._tries(self._sleep)
        except ControlFailed:
            with contextlib.suppress(ControlFailed):
                self._tries(self._wake)
                self.is_parked = False
            raise
        return amount

    def resume(self) -> None:
        """Have it wake, and see whether it is what it was. Raises `ControlFailed`, too."""
        self._tries(self._wake)
        again = None if self.answer is None else self._tries(self._ask)
        self.is_parked = False
        if again != self.answer:
            self._damaged()
            raise ParkedDamaged(
                f"The server ({self.adapter.name}) does not answer as before it slept; it is "
                "started anew."
            )

    # -- what it is asked --------------------------------------------------------------

    def _tries(self, what: Callable[[], Any]) -> Any:
        """Raises `ControlFailed`."""
        try:
            return what()
        except NONSENSE as error:
            words = f"The server's answer is not one of {self.adapter.name}: {error!r}"
            raise ControlFailed(words[:300]) from error

    def _ask(self) -> str | None:
        """What a model says to the prompt, or its embedding of it; ``None`` without any."""
        there, control = self.adapter.models, self._control
        # One that is not loaded, the question would load.
        loaded = models(control) if there is None else there.loaded(control)
        # Of several always the same one, also where a successor asks.
        asked = next((model for model in (*self.slept, *loaded) if model in loaded), None)
        if asked is None:
            return None
        wanted = {"model": asked, "prompt": _PROMPT, "max_tokens": 12, "temperature": 0, "seed": 7}
        answer = control.call("POST", "/v1/completions", wanted)
        if answer.status != 200:
            answer = control.call("POST", "/v1/embeddings", {"model": asked, "input": _PROMPT})
        told = answer.json if answer.status == 200 else {}
        first = (told.get("choices") or told.get("data") or [{}])[0]
        said = first.get("text", first.get("embedding"))
        return None if said is None else str(said)

    def _sleep(self) -> None:
        adapter, control, there = self.adapter, self._control, self.adapter.models
        if adapter.settles:
            wait_until(
                lambda: control.call("POST", adapter.settles).status == 200,
                f"{adapter.name} says that it still works on a request.",
            )
        for step in adapter.sleep:
            control.must("POST", *step)
        if there is not None:
            loaded = there.loaded(control)
            before = [model for model in self.slept if model in loaded]
            self.slept = [*before, *(model for model in loaded if model not in before)]
            self._each(there.unload)
            wait_until(
                lambda: not there.loaded(control), f"{adapter.name} still has a model loaded."
            )

    def _wake(self) -> None:
        adapter, control, there = self.adapter, self._control, self.adapter.models
        for step in adapter.wake:
            control.must("POST", *step)
        if there is not None:
            self._each(there.load)
            wait_until(
                lambda: {*self.slept} <= {*there.loaded(control, [LOADED])},
                f"{adapter.name} has not loaded {', '.join(self.slept)} again.",
            )

    def _each(self, step: Step) -> None:
        path, said = step
        for model in self.slept:
            self._control.must("POST", path, {"model": model, **said})


def wait_until(done: Callable[[], bool], words: str) -> None:
    """Look again and again. Raises `ControlFailed` with ``words`` after half a minute."""
    for _ in range(_TRIES):
        if done():
            return
        time.sleep(_PAUSE)  # it does it after its answer, and tells nobody when it is done
    raise ControlFailed(words)
