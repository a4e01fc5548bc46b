"""Asks again for GPUs that were given back, at the next cell or start of CUDA that needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import GpuShareError
from ..session.holding import Standing
from ..session.visible import cuda_started
from ..words.display import on_cpu
from ..words.settings import Acquire, Ask
from ..words.tracebacks import stopped_waiting

if TYPE_CHECKING:
    from ..memory.frameworks import Frameworks
    from ..words.grant import Grant
    from .broker import Broker


class AskingAgain:
    """Asks again in one process."""

    def __init__(self, broker: Broker, frameworks: Frameworks, say: Callable[[str], None]) -> None:
        self._broker = broker
        self._frameworks = frameworks
        self._say = say
        self._told_cuda_goes_on = False  # once a lease

    @property
    def frameworks(self) -> Sequence[str] | None:
        """The frameworks whose use in a cell asks again. Empty: only a start of CUDA does.

        ``None``: this process does not ask again by itself.
        """
        broker, loaded = self._broker, self._frameworks.names()
        if not loaded or broker.standing not in (Standing.FREE, Standing.LOST):
            return None
        if not broker.may_ask or broker.wishes.ask_as_known().gpus == 0:
            return None
        if broker.settings.acquire is Acquire.FIRST_USE:
            return self._frameworks.names(late_too=False)
        return loaded

    def words(self, which: str = "The next") -> str:
        """When a kernel asks again, and for what, in a sentence or two.

        ``which`` cell: ``A`` cell, where the sentence may be read in the next one.
        """
        from ..words.render import ask_words

        frameworks, wishes = self.frameworks, self._broker.wishes
        ask = wishes.ask_as_known()
        if ask.gpus == 0:
            return "Cells run without a GPU until `%gpushare request`."
        what, more = "a GPU", ""
        if ask != Ask():
            what = ask_words(ask)
        if wishes.are_remembered:
            more = " That was your last request; `%gpushare request --later` says another one."
        if frameworks is None:
            when = "Cells run without a GPU until `%gpushare request` or the import of a framework"
            return f"{when}, which asks for {what}.{more}" if more else f"{when}."
        when = f"cell that uses {' or '.join(frameworks)}" if frameworks else "start of CUDA"
        return f"{which} {when} asks for {what} again.{more}"

    def granted(self) -> None:
        """There is a lease again."""
        self._told_cuda_goes_on = False

    def given_back(self) -> None:
        """The lease has ended: a start of CUDA asks for GPUs first."""
        if self.frameworks is not None and not cuda_started():
            self._frameworks.catch_first_use(self.at_first_use, self._broker.expected)

    def at_first_use(self, module: str) -> Grant | None:
        """A framework is about to start CUDA. Ctrl-C says how to go on without a GPU."""
        try:
            return self._broker.at_first_use(module)
        except KeyboardInterrupt as interrupt:
            text = f"you stopped waiting for a GPU. {on_cpu()}"
            raise stopped_waiting(interrupt, text) from None

    def before_cell(self, used: Callable[[Collection[str]], str | None]) -> str | None:
        """A cell is about to run, and ``used`` says which of some frameworks it uses.

        It gets a GPU first, as the first import did, and waits visibly. Returns why the cell must
        not run; ``None``: it may.
        """
        frameworks = self.frameworks
        framework = used(frameworks) if frameworks else None
        if framework is None:
            return None
        if cuda_started():
            if not self._told_cuda_goes_on:
                self._told_cuda_goes_on = True
                self._say(
                    f"This cell uses {framework} without a lease: this kernel gave its GPUs back, "
                    "but CUDA is still running in it. `%gpushare request` asks for GPUs again; if "
                    "it gets other GPUs, restart the kernel."
                )
            return None
        try:
            self._broker.ensure(f"use of {framework}")
        except KeyboardInterrupt:
            return f"You stopped waiting for a GPU, so this cell was not run. {on_cpu()}"
        except GpuShareError as error:
            return f"{error} This cell was not run."
        return None
