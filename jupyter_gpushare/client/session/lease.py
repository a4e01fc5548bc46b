"""Keeps what this process holds: a lease and its GPUs, and the environment variables for them.

All dealings with the node manager meet here, so this is where their threads and
locks are written down.

Threads:

- the user's (the main thread, subshells, whatever imports a framework): they ask,
  wait, park, resume and release;
- ``gpushare-session``, one for each `Session`: it takes in what the node manager
  says and gives the signs of life, so it never waits for anything below but an instant;
- ``gpushare-recalls``: gives back what the node manager asks for, one after the other;
- ``gpushare-ability``: looks what could be given back.

Locks, in the order in which they are taken; no thread takes a lock that stands before one that it
has:

1. ``acquire._Process``'s, while the broker is made;
2. `kernel.CellWatch`'s, for an instant when a cell begins or ends;
3. `OwnLease.lock`: whoever changes what is held has it, also while he waits in the
   queue, parks or resumes, which may be hours. The session's thread only tries it,
   and changes without it two things: that a lease is lost (`OwnLease.lose`), and that one which
   was joined is its own (`OwnLease.take_over`);
4. `Activity.lock`, for an instant: a cell that begins and GPUs that are given back
   exclude each other;
5. `Line`'s, and `Session`'s for its opening, never longer than a hello;
6. `Frameworks`'s, while a framework is told what it may use: as long as a GPU kernel, where
   caches are emptied for it;
7. those inside `Session` and `Limits`, for an instant; nothing is called under them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from enum import Enum

from ...protocol import names
from ...protocol.batchjob import set_here
from ..words.grant import Grant
from .visible import Visible, cuda_started


class OwnState(Enum):
    """The state of this process's lease."""

    FREE = "free"
    HELD = "held"
    JOINED = "joined"
    FELL_BACK = "fell_back"
    PARKING = "parking"
    PARKED = "parked"
    LOST = "lost"


class OwnLease:
    """The lease that this process holds, under one lock.

    ``environ`` is changed: ``CUDA_VISIBLE_DEVICES`` becomes the granted GPUs, and the
    lease's id and secret are left there for child processes to join.
    """

    def __init__(
        self, environ: MutableMapping[str, str], by_index: Callable[[], bool] = lambda: False
    ) -> None:
        self.lock = threading.RLock()
        self.state = OwnState.FREE
        self.grant: Grant | None = None
        self.parked_grant: Grant | None = None  # what a parked lease had
        self.lost: str | None = None  # why
        self.visible = Visible(environ, by_index)
        #: How often this process was granted a lease of its own.
        self.grants = 0
        #: The number of blocks of code (`requests/blocks.py`) that share each lease. Under `lock`.
        self.blocks: dict[str, int] = {}
        self.cuda_had: tuple[str, ...] | None = None  # UUIDs that CUDA started with, if known
        self._environ = environ
        self._lost_gpus: tuple[str, ...] | None = None

    @property
    def parked(self) -> str | None:
        """The lease, while its GPUs are given back."""
        return None if self.parked_grant is None else self.parked_grant.lease

    @property
    def had(self) -> Grant | None:
        """The lease that is held, or was held until it was parked."""
        return self.parked_grant if self.grant is None else self.grant

    @property
    def lease(self) -> str | None:
        """The lease of this process, held or parked."""
        return None if self.had is None else self.had.lease

    @property
    def ends_with_us(self) -> str | None:
        """The lease that ends with this process; that which it has joined does not."""
        return None if self.state is OwnState.JOINED else self.lease

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that are held."""
        return () if self.grant is None else tuple(gpu.uuid for gpu in self.grant.gpus)

    def take(self, grant: Grant, secret: str) -> str | None:
        """A lease of our own is held; the value that ``CUDA_VISIBLE_DEVICES`` had from the user."""
        self.grant, self.state, self.lost, self.parked_grant = grant, OwnState.HELD, None, None
        self.grants += 1
        self._environ[names.LEASE] = grant.lease
        self._environ[names.SECRET] = secret
        self._environ[names.SET_IN] = set_here(self._environ, self._environ.get(names.SOCKET, ""))
        return self.visible.show(grant)

    def join(self, grant: Grant) -> Grant:
        """Our parent's lease is shared; what this process sees of it."""
        self.grant = self.visible.show_part(grant)
        self.state, self.lost = OwnState.JOINED, None
        return self.grant

    def park(self, grant: Grant) -> None:
        """The GPUs are given back, the lease goes on."""
        self.forget()
        self.parked_grant, self.state = grant, OwnState.PARKED

    def drop_parked(self) -> None:
        """The parked lease is given up, or has ended."""
        self.parked_grant, self.state = None, OwnState.FREE

    def forget(self) -> None:
        """Nothing is held any more."""
        self.grant, self.state = None, OwnState.FREE
        for name in (names.LEASE, names.SECRET):
            self._environ.pop(name, None)
        self.visible.hide(children_may_ask=True)

    def lose(self, lease: str, message: str) -> bool:
        """Note that ``lease`` ended without us. Returns whether it was ours.

        Runs on the session's thread, without the lock; `settle` changes the environment later.
        """
        if self.parked == lease:
            self.parked_grant = None
        elif self.grant is not None and self.grant.lease == lease:
            # Kept for `settle`: by then nothing else says on which GPUs CUDA was started.
            self._lost_gpus, self.grant = self.gpus, None
        else:
            return False
        self.state, self.lost = OwnState.LOST, message
        return True

    def settle(self) -> None:
        """Change the environment after the loss of a lease, on the user's thread."""
        # Once: the mark goes with the first call, and the state stays for whoever asks.
        if self.state is OwnState.LOST and names.LEASE in self._environ:
            if cuda_started():
                self.cuda_had = self._lost_gpus
            self.forget()
            self.state = OwnState.LOST

    def remember_cuda(self) -> None:
        """The GPUs are about to go: CUDA, where it runs, keeps what it had of them."""
        if self.grant is not None and cuda_started():
            self.cuda_had = self.gpus

    def take_over(self, lease: str) -> bool:
        """Note that ``lease``, which this process has joined, is its own: the others have ended.

        Returns whether it has joined it. Runs on the session's thread, without the lock.
        """
        if self.state is not OwnState.JOINED or self.grant is None or self.grant.lease != lease:
            return False
        self.state = OwnState.HELD
        return True

    def inherit(self, parent: OwnLease) -> None:
        """After a fork: what the parent held, this process has joined."""
        self.visible = parent.visible
        self.grant = parent.grant
        if parent.grant is not None:
            self.state = OwnState.JOINED
        elif parent.state is OwnState.FELL_BACK:
            self.state = OwnState.FELL_BACK
