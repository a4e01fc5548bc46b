"""Memory limits that change while a task runs: the node manager lifts and lowers them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from ..session.lease import OwnLease
from ..session.line import Line
from ..words.grant import Grant
from ..words.recalls import Give
from .frameworks import Frameworks
from .worker import Worker


def with_limits(grant: Grant, limits: Mapping[str, int]) -> Grant:
    """The grant as a framework should see it whose limit can change again."""
    gpus = tuple(
        gpu._replace(memory=min(limits.get(gpu.uuid, gpu.memory), gpu.capacity))
        for gpu in grant.gpus
    )
    return grant._replace(gpus=gpus)


class Limits:
    """The newest limits of this process's grant; ``worker`` has the frameworks set them.

    `Frameworks.limit` looks up what is in force only when it sets it, because other threads tell
    frameworks their limits, too. Where a framework is being imported it is told the limits in force
    when it is here, so they are not refused meanwhile. Where none is here yet, and none is coming,
    the first one will keep to a range, and so do processes that joined.
    """

    def __init__(self, worker: Worker, frameworks: Frameworks, line: Line, own: OwnLease) -> None:
        self._worker = worker
        self._frameworks = frameworks
        self._line = line
        self._own = own
        self._lock = threading.Lock()
        self._grant: Grant | None = None
        #: By UUID, in bytes: all that is in force, and what of it was not answered yet.
        self._limits: dict[str, int] = {}
        self._news: dict[str, int] = {}
        self._refused = False

    def of(self, grant: Grant | None) -> Grant | None:
        """The grant with the limits in force."""
        with self._lock:
            if grant is None or grant != self._grant:
                return grant
            return with_limits(grant, self._limits)

    def changed(self, grant: Grant, limits: Mapping[str, int]) -> None:
        """The node manager told new limits; answered when they are in force. Never waits."""
        with self._lock:
            if grant != self._grant:
                self._grant, self._limits, self._news, self._refused = grant, {}, {}, False
            self._limits.update(limits)
            self._news.update(limits)
        self._worker.told(Give.LIFT, self._run)

    def forget(self) -> None:
        """A lease begins, or begins anew, with what it was granted."""
        with self._lock:
            self._grant, self._limits, self._news, self._refused = None, {}, {}, False

    def can_change(self) -> None:
        """A framework whose limit can change was imported; told where it was said that none can."""
        with self._lock:
            grant, refused, self._refused = self._grant, self._refused, False
        if grant is not None and refused:
            self.answer(grant.lease, {}, True)

    def in_turn(self, limits: Mapping[str, int]) -> None:
        """In its turn a task may use what it keeps and the common region, by UUID in bytes."""

        def now() -> Grant | None:
            grant = self._own.grant
            if grant is None:
                return None
            base = self.of(grant) or grant
            gpus = tuple(
                now._replace(memory=limits[own.uuid])
                if limits.get(own.uuid, own.memory) < own.memory
                else now
                for own, now in zip(grant.gpus, base.gpus, strict=True)
            )
            return base._replace(gpus=gpus)

        self._frameworks.limit(now)

    def answer(self, lease: str, limits: Mapping[str, int], live: bool) -> None:
        """Tell what is in force, and whether limits can change here at all."""
        if self._line.session is not None:
            gpus = [{"uuid": uuid, "memory": size} for uuid, size in limits.items()]
            self._line.session.gave(Give.LIFT, lease, limits=gpus, live=live)

    def _run(self) -> None:
        while True:
            with self._lock:
                grant, news, self._news = self._grant, self._news, {}
                if grant is None or not news:
                    return
            still = partial(self._still, grant)
            if self._frameworks.limit(still) or self._will_be(grant):
                if still() is not None:
                    self.answer(grant.lease, news, True)
            else:
                self._refuse(grant, news, still)

    def _will_be(self, grant: Grant) -> bool:
        comes = self._frameworks.live
        return grant.memory_most is not None if comes is None else comes

    def _refuse(
        self, grant: Grant, news: Mapping[str, int], still: Callable[[], Grant | None]
    ) -> None:
        """No framework's limit can change, so one imported later gets no higher limit either."""
        with self._lock:
            if grant != self._grant:
                return
            # Newer limits came while this was found out. They are tried first, with these below
            # them.
            if self._news:
                self._news = {**news, **self._news}
                return
            before, self._limits = self._limits, {}
        if self._frameworks.limit(still):
            # Imported just now, perhaps with the higher limit: so it is told again, and answered.
            with self._lock:
                if grant == self._grant:
                    self._limits = {**before, **self._limits}
                    self._news = {**news, **self._news}
            return
        if still() is None:
            return
        self.answer(grant.lease, {}, False)
        with self._lock:
            # What was imported since the answer saw no refusal in `can_change`; the look below
            # finds it.
            self._refused = grant == self._grant
        if self._frameworks.limit(still):
            self.can_change()

    def _still(self, grant: Grant) -> Grant | None:
        """The limits in force; ``None`` once another grant is."""
        with self._lock:
            return with_limits(grant, self._limits) if grant == self._grant else None
