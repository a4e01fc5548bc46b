"""A client process of the storm: it behaves as its seed says, and writes down what it sees.

It talks to the node manager by the product's own ``Session`` (or, in a notebook, by the
``Broker``), and knows nothing of the faults. :func:`main` runs in a process that
``nursery.py`` forked; :func:`cell` in a real kernel.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jupyter_gpushare.client.errors import GpuShareError, LeaseLost, NodeUnavailable
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.session import Link, Session
from jupyter_gpushare.client.words.grant import Grant, read_grant
from jupyter_gpushare.client.words.recalls import (
    MEMORY,
    Give,
    limits_of,
    read_needs,
    read_recall,
)
from jupyter_gpushare.protocol.messages import Method, Notice, Notification

from ..taking_turns import turns_of
from . import hostile
from .client import Client, gpus_of
from .locked import Locked
from .mover import Mover
from .observed import Saw, boot
from .saver import Saver
from .tenant import Tenant

GIB = 2**30
ANSWER = 3.0  # seconds; a client waits so long for an answer
BEAT = 0.2  # seconds between two looks at the lease


class _Held:
    """What an actor holds; nothing once it has lost its lease."""

    state = OwnState.HELD

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    @property
    def grant(self) -> Grant | None:
        return None if self._actor.lease is None else self._actor.grant


class Actor(Client):
    """Asks for one lease after the other, and knows the node manager by the session alone."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self.session = self._new_session()
        self.lease: str | None = None
        self.asked_back = False
        self.grant: Grant | None = None
        self.turns = turns_of(self, own=_Held(self), say=lambda text: None)
        self._hangs = False
        # When turns begin, whoever computes then may end its step beside the first holder. So only
        # a turn that was waited for is certainly one's own.
        self._waited = False
        self._requests = 0

    def _new_session(self) -> Session:
        return Session(
            self.spec["socket"],
            lambda: str(self.spec["token"]),
            ANSWER,
            on_lost=self._lost,
            on_notice=self._noticed,
        )

    # On the session's thread.

    def _lost(self, lease: str, message: str, _released: bool) -> None:
        self.log.note(Saw.LOST, lease=lease, message=message)
        if lease == self.lease:
            self.lease = None

    def _noticed(self, notice: Notification) -> None:
        if notice.params.get("lease") != self.lease or self.lease is None:
            return
        recall = read_recall(notice)
        if notice.notice is Notice.TURN:
            shared = notice.params.get("quantum") is not None
            if not shared:
                self._waited = False
            else:
                self.log.note(Saw.TURN, lease=self.lease)
            self.turns.given(limits_of(read_needs(notice.params)), is_shared=shared)
        elif recall is None:
            return
        elif recall.gate:
            if recall.give is Give.TURN:
                self.log.note(Saw.YIELDS, lease=self.lease)
            self.turns.recalled(recall.limits)
        elif recall.give in MEMORY:
            self.asked_back = True
        elif recall.give is Give.STOP:  # it never said how, so nobody may tell it
            self.log.note(Saw.TOLD, lease=self.lease, seconds=recall.seconds)
        elif recall.give is Give.CACHE:
            self.log.note(Saw.EMPTIED, lease=self.lease)
            self.session.gave(Give.CACHE, self.lease)
        elif recall.give is Give.LIFT:
            self.log.note(Saw.LIMITED, lease=self.lease, gpus=list(recall.limits.items()))
            limits = [{"uuid": gpu, "memory": memory} for gpu, memory in recall.limits.items()]
            self.session.gave(Give.LIFT, self.lease, limits=limits, live=True)

    # On the main thread.

    def run(self) -> None:
        """For ever, or until it has lived its life."""
        signal.signal(signal.SIGUSR1, self._hang)
        self.born()
        for _ in range(self.spec["lives"]):
            self._connect()
            if self._ask():
                self._hold()
        self.session.close()

    def _hang(self, *_: object) -> None:
        self._hangs = True

    def _connect(self) -> None:
        while self.session.link is Link.CLOSED or self.session._thread is None:
            if self.session.link is Link.CLOSED:
                self.session = self._new_session()
            try:
                self.session.open(5.0)
            except NodeUnavailable:
                time.sleep(0.1)

    def _ask(self) -> bool:
        rng, spec = self.rng, self.spec
        self._requests += 1
        name = f"{os.getpid()}-{self._requests}"
        memory = rng.choice(spec["memory"])
        params = {
            "request_id": name,
            "task": {"name": spec["role"], "kind": spec["kind"]},
            "gpus": spec["gpus"],
            "memory": memory,
            "priority_class": spec["class"],
            "wait": True,
        }
        t0 = self.log.note(
            Saw.ASKED, request=name, gpus=spec["gpus"], memory=memory, **{"class": spec["class"]}
        )
        return self._await(
            name,
            t0,
            lambda queued, waiting: self.session.request(
                params, queued, waiting, rng.uniform(*spec["patience"])
            ),
        )

    def _await(self, name: str, t0: float, call: Any) -> bool:
        in_line: list[str] = []

        def queued(notice: Any) -> None:
            in_line[:] = [notice["lease"]]
            self.log.note(Saw.QUEUED, request=name, lease=notice["lease"])

        def waiting() -> None:
            if in_line:
                self._look(in_line[0], name)

        try:
            result = call(queued, waiting)
        except LeaseLost as error:
            self.log.note(Saw.LOST, t0, lease=name, message=str(error))
        except NodeUnavailable as error:
            self.log.note(Saw.GAVE_UP, t0, request=name, why=str(error))
        except GpuShareError as error:
            self.log.note(Saw.REFUSED, t0, request=name, why=str(error))
        else:
            self.lease, self.asked_back, self._waited = result["lease"], False, False
            self.grant = read_grant(result)
            gpus = gpus_of(self.grant)
            self.log.note(Saw.GRANTED, t0, request=name, lease=result["lease"], gpus=gpus)
            return True
        time.sleep(self.rng.uniform(0.01, 0.2))
        return False

    def _look(self, lease: str | None, request: str | None = None) -> None:
        """Write down what the node manager says of the lease now."""
        # The session's thread may have heard the same; whichever is first.
        ended = lease is not None and self.beat(self.session.call, lease, request) is None
        if ended and lease == self.lease:
            self.lease = None

    def _step(self, number: int) -> None:
        """Compute for a moment, report the memory, and wait for the turn if it is asked back."""
        grant, t0 = self.grant, boot()
        assert grant is not None
        session = self.session
        # One that was told to yield may still end the step that it is in, in memory of its own.
        has_turn = self._waited and self.turns.is_gated and not self.turns._is_shut
        is_sure = has_turn and session.link is Link.UP
        if self._hangs:
            self.log.note(Saw.HANGS, lease=grant.lease)
            while True:
                time.sleep(60.0)  # a step without end
        time.sleep(self.rng.uniform(0.02, 0.2))  # the pretend GPU computes
        if is_sure and session.link is Link.UP and self.lease == grant.lease:
            gpus = [gpu.uuid for gpu in grant.gpus]
            self.log.note(Saw.STEP, t0, lease=grant.lease, gpus=gpus)
        devices = [
            SimpleNamespace(device=f"cuda:{n}", persistent=GIB, temporary=4 * GIB, cache=0)
            for n in range(len(grant.gpus))
        ]
        self.turns.report(SimpleNamespace(steps=number, devices=devices))
        if not self.turns.is_closed:
            return
        t0 = self.log.note(Saw.WAITS, lease=grant.lease)
        self.turns.gate()
        self.log.note(Saw.PASSED, t0, lease=grant.lease)
        self._waited = self.turns.is_gated

    def _hold(self) -> None:
        rng = self.rng
        until = time.monotonic() + rng.uniform(*self.spec["hold"])
        steps = 0
        idles = self.spec["kind"] == "kernel"
        while self.lease is not None and time.monotonic() < until:
            if idles and rng.random() < 0.2:  # mostly it is idle: people think
                self.session.set_activity(self.lease, rng.random() < 0.1)
            if self.spec.get("steps"):
                steps += 1
                self._step(steps)
            else:
                time.sleep(rng.uniform(0.3, 1.0) * BEAT)  # between two looks; nothing is awaited
            self._look(self.lease)
            if idles and self.asked_back:
                self._give_back()
        if self.lease is not None and self.session.link is not Link.CLOSED:
            self._release()

    def _give_back(self) -> None:
        lease, self.asked_back = self.lease, False
        if lease is None:
            return
        t0 = self.log.note(Saw.PARKING, lease=lease)
        try:
            state = self.session.call(Method.PARKED, again=True, lease=lease)["state"]
        except GpuShareError:
            return self._find_out(lease)
        self.log.note(Saw.PARKED, t0, lease=lease, state=state)
        if state != "parked":
            return self._find_out(lease)
        for _ in range(3):
            time.sleep(self.rng.uniform(0.05, 0.5))
            self._look(self.lease)
            if self.lease is None:
                return None
            t0 = self.log.note(Saw.ASKED, request=lease, lease=lease, resume=True)
            if self._await(
                lease,
                t0,
                lambda queued, waiting: self.session.resume(
                    lease, queued, waiting, self.rng.uniform(*self.spec["patience"])
                ),
            ):
                return None
        return None

    def _find_out(self, lease: str) -> None:
        """What we have now, where an answer was lost or was not what we thought."""
        secret = self.session._secrets.get(lease)
        if secret is None:
            return
        t0 = boot()
        try:
            result = self.session.call(Method.ATTACH, lease=lease, secret=secret)
        except GpuShareError:
            return
        if result.get("state") == "held":
            gpus = gpus_of(read_grant(result))
            self.log.note(Saw.GRANTED, t0, request=lease, lease=lease, gpus=gpus)

    def _release(self) -> None:
        lease, self.lease = self.lease, None

        def release() -> str:
            self.session.let_go(lease)
            return str(self.session.call(Method.RELEASE, again=True, lease=lease)["state"])

        self.give_back(lease, release)


class Sleeper(Client):
    """Has the pid of somebody who died."""

    def run(self) -> None:
        self.born()
        time.sleep(600)


ROLES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{"hostile": hostile.Mallory, "tenant": Tenant, "mover": Mover},
    **{"locked": Locked, "saver": Saver, "sleeper": Sleeper},
}


def main(spec: dict[str, Any]) -> None:
    """Live as ``spec`` says."""
    ROLES.get(spec["role"], Actor)(spec).run()


# -- in a real kernel ----------------------------------------------------------------------------

_notebook: list[Client] = []


def cell(spec: dict[str, Any], seconds: float) -> None:
    """What a cell does: have a GPU, look at it for some time, sometimes give it back."""
    from jupyter_gpushare.client import api
    from jupyter_gpushare.client.acquire import broker

    if not _notebook:
        _notebook.append(Client(spec))
        _notebook[0].born()
    me, log = _notebook[0], _notebook[0].log
    t0 = log.note(Saw.ASKED, request=f"cell-{os.getpid()}", notebook=True)
    try:
        grant = api.request(gpus=1, wait_timeout=3.0)
    except GpuShareError as error:
        log.note(Saw.GAVE_UP, t0, request="cell", why=str(error))
        return
    until = time.monotonic() + seconds
    is_held = False
    while time.monotonic() < until:
        t0 = boot()
        state = me.beat(broker().call, grant.lease)
        if state is None:
            return
        if state == "held" and not is_held:
            is_held = True
            log.note(Saw.GRANTED, t0, request="cell", lease=grant.lease, gpus=gpus_of(grant))
        time.sleep(BEAT)
    if me.rng.random() < 0.3:
        me.give_back(grant.lease, api.release)
    else:
        log.note(Saw.LET_GO, lease=grant.lease)
