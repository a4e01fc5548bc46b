"""What makes this process ask for GPUs by itself, without a person's request.

There are three moments. A framework is imported: that is a wish for a GPU where a person, or a
program of a person's, imports it, and none where a completer or a server does
(`words.callers`). A framework that can tell us starts CUDA: then a process that did not ask at the
import asks. And where the GPUs were given back, the next cell that uses a framework asks again, or
the next start of CUDA.

Until this process has asked, no GPU is visible to it. So what reaches CUDA by a way that nobody
here sees finds none, and not somebody else's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import ModuleType
from typing import Final

from ..adapters import registry
from ..errors import GpuShareError
from ..memory.frameworks import Frameworks, is_live
from ..memory.limits import Limits
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.preferences import Preferences
from ..session.task import running_kernel
from ..session.visible import cuda_started
from ..words.callers import PATIENCE, Caller, When, is_wish, when
from ..words.display import on_cpu
from ..words.grant import Grant
from ..words.settings import Acquire, Ask
from ..words.tracebacks import stopped_waiting
from .getting import Getting

_QUOTA_IS_FRESH: Final = 30.0  # seconds for which `Automatic.expected` remembers a failure


class Automatic:
    """Asks by itself in one process. ``caller()`` tells who runs code in this thread."""

    def __init__(
        self,
        preferences: Preferences,
        line: Line,
        own: OwnLease,
        frameworks: Frameworks,
        limits: Limits,
        getting: Getting,
        caller: Callable[[], Caller],
        say: Callable[[str], None],
    ) -> None:
        self._preferences = preferences
        self._line = line
        self._own = own
        self._frameworks = frameworks
        self._limits = limits
        self._getting = getting
        self._caller = caller
        self._say = say
        self._silent_until = 0.0
        self._told_after: int | None = None  # grants: that CUDA goes on is said once after each

    @property
    def _may_ask(self) -> bool:
        """Whether there is a node manager to ask, and the user has not hidden the GPUs."""
        return self._line.configured and not self._own.visible.hidden_by_user

    # -- a framework is imported ------------------------------------------------------

    def before_framework(self, module: str) -> None:
        """Called before a framework's module runs; may wait in the queue.

        Raises :class:`GpuShareError` only with ``fallback = "error"``, and
        :class:`KeyboardInterrupt` when the user leaves the queue.
        """
        adapter = self._frameworks.find(module) if self._may_ask else None
        if adapter is None:
            return
        self._frameworks.add(module, adapter)
        if self._asks(adapter) is not When.IMPORT and not self._getting.may_join:
            # Whatever reaches CUDA by a way we do not see finds no GPU, not somebody else's.
            self._own.visible.hide(children_may_ask=not self._preferences.go_without)
            adapter.before(None)
        else:
            patience = PATIENCE[self._caller()]
            adapter.before(self._getting.ensure(f"import {module}", patience))

    def after_framework(self, module: str, loaded: ModuleType) -> None:
        """Called when the framework's module has run."""
        adapter = self._frameworks.adapter(module)
        if adapter is None or not self._line.configured:
            return
        asks = self._asks(adapter)
        if asks is When.FIRST_USE:
            self._frameworks.add(module, adapter, loaded)
            if (
                adapter.first_use(loaded, partial(self.at_first_use, module), self.expected)
                is False
            ):
                asks = When.NEVER
        if asks is When.NEVER:
            self._tell_how(module, f"this {module} does not show")
        if asks is not When.FIRST_USE:
            self._frameworks.arrive(module, adapter, loaded, self._getting.grant_for)
            if is_live(adapter):
                self._limits.can_change()
            self._getting.tell_live()
            self._getting.connect_gates()

    def _asks(self, adapter: registry.Adapter) -> When:
        """The moment at which this process asks, as who imports the framework.

        ``IMPORT`` also where it has its answer already, and where it has parked what it had.
        """
        state = self._own.state
        has_answer = state in (OwnState.FELL_BACK, OwnState.JOINED)
        if has_answer or self._own.grant is not None:
            return When.IMPORT
        caller = self._caller()
        if state not in (OwnState.FREE, OwnState.LOST) and is_wish(caller):
            return When.IMPORT
        acquire = self._preferences.settings.acquire
        return when(caller, acquire, shows_use=adapter.catches_first_use)

    def _tell_how(self, module: str, why: str) -> None:
        """Say how a process gets a GPU that asks for none by itself. In a kernel a cell asks."""
        caller = self._caller()
        if running_kernel() is None and not is_wish(caller):
            self._preferences.say_once(
                f"`import {module}` asked for no GPU. {caller.value} asks at the first use of a "
                f"GPU, which {why}. `jupyter gpushare run -- COMMAND` takes one before; so does "
                "`request()` of jupyter_gpushare.client in the code."
            )

    # -- it starts CUDA ---------------------------------------------------------------

    def expected(self) -> int:
        """GPUs that a request would get as the quota stands. Answers at once, or asks once."""
        grant = self._own.grant
        if grant is not None:
            return len(grant.gpus)
        is_silent = time.monotonic() < self._silent_until
        if self._own.state is OwnState.FELL_BACK or is_silent:
            return 0
        try:
            quota = self._line.connect(patience=0.0).hello.get("quota")
        except GpuShareError:
            self._silent_until = time.monotonic() + _QUOTA_IS_FRESH
            return 0
        allowed = quota.get("gpus") if isinstance(quota, dict) else None
        if not isinstance(allowed, int) or self._asks_never():
            return 0
        gpus = self._preferences.ask_as_known().gpus
        if isinstance(gpus, str):
            return allowed
        wanted = 1 if gpus is None else gpus
        # More than the quota would be refused, so a device count must not promise it.
        return wanted if wanted <= allowed else 0

    def at_first_use(self, module: str) -> Grant | None:
        """A framework is about to start CUDA. Ctrl-C says how to go on without a GPU."""
        try:
            if self._asks_never():
                self._tell_how(module, "simulated GPUs cannot have")
                return None
            return self._getting.ensure(f"first use of {module}", PATIENCE[self._caller()])
        except KeyboardInterrupt as interrupt:
            text = f"you stopped waiting for a GPU. {on_cpu()}"
            raise stopped_waiting(interrupt, text) from None

    def _asks_never(self) -> bool:
        """Whether who runs code here asks for none of this node's GPUs, even at their first use."""
        caller, acquire = self._caller(), self._preferences.settings.acquire
        simulated = not is_wish(caller) and self._line.is_simulated()
        return when(caller, acquire, shows_use=True, is_simulated=simulated) is When.NEVER

    # -- again, after the GPUs were given back ----------------------------------------

    @property
    def frameworks(self) -> Sequence[str] | None:
        """The frameworks whose use in a cell asks again. Empty: only a start of CUDA does.

        ``None``: this process does not ask again by itself.
        """
        loaded = self._frameworks.names()
        if not loaded or self._own.state not in (OwnState.FREE, OwnState.LOST):
            return None
        if not self._may_ask or self._preferences.ask_as_known().gpus == 0:
            return None
        if self._preferences.settings.acquire is Acquire.FIRST_USE:
            return self._frameworks.names(late_too=False)
        return loaded

    def words(self, which: str = "The next") -> str:
        """When a kernel asks again, and for what, in a sentence or two.

        ``which`` cell: ``A`` cell, where the sentence may be read in the next one.
        """
        frameworks, ask = self.frameworks, self._preferences.ask_as_known()
        if ask.gpus == 0:
            return "Cells run without a GPU until `%gpushare request`."
        what, more = "a GPU", ""
        if ask != Ask():
            what = ask.words
        if self._preferences.are_remembered:
            more = " That was your last request; `%gpushare request --later` says another one."
        if frameworks is None:
            when = "Cells run without a GPU until `%gpushare request` or the import of a framework"
            return f"{when}, which asks for {what}.{more}" if more else f"{when}."
        when = f"cell that uses {' or '.join(frameworks)}" if frameworks else "start of CUDA"
        return f"{which} {when} asks for {what} again.{more}"

    def given_back(self) -> None:
        """The lease has ended: a start of CUDA asks for GPUs first."""
        if self.frameworks is not None and not cuda_started():
            self._frameworks.catch_first_use(self.at_first_use, self.expected)

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
            # Once after each release, or every cell of a notebook would say it.
            if self._told_after != self._own.grants:
                self._told_after = self._own.grants
                self._say(
                    f"This cell uses {framework} without a lease: this kernel gave its GPUs back, "
                    "but CUDA is still running in it. `%gpushare request` asks for GPUs again; if "
                    "it gets other GPUs, restart the kernel."
                )
            return None
        try:
            self._getting.ensure(f"use of {framework}")
        except KeyboardInterrupt:
            return f"You stopped waiting for a GPU, so this cell was not run. {on_cpu()}"
        except GpuShareError as error:
            return f"{error} This cell was not run."
        return None
