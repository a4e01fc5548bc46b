"""Serves what many people wait for by turns, each person within an allowance. Pure.

Owners are people (an environment; before it is known, an OS user), never connections: a person
with a thousand of them waits as long as a person with one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import inf
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Charges:
    """Who pays for what is done: nobody, where there are no connections.

    `wire.turnstile.Turnstile`, which lets calls in, has accounts.
    """

    def took(self, owner: Hashable, seconds: float) -> None:
        """Something was done for ``owner``, for so long."""

    def wrote(self, owner: Hashable, size: int) -> None:
        """So many bytes were recorded because of ``owner``, about."""

    def owes(self, owner: Hashable) -> bool:
        """Whether ``owner`` has spent more than the allowance."""
        return False


FREE: Final = Charges()


class Purse:
    """The allowance of one owner: ``rate`` a second, at most ``most`` at once (a token bucket).

    Debt beyond ``owes`` is forgiven, so that one expensive thing holds its owner up only briefly.
    """

    __slots__ = ("_at", "_left", "_most", "_owes", "_rate")

    def __init__(self, rate: float, most: float, now: float, owes: float = inf) -> None:
        self._rate, self._most, self._owes = rate, most, owes
        self._left, self._at = most, now

    def left(self, now: float) -> float:
        """The amount left at ``now``; below zero after something cost more than expected."""
        if now > self._at:  # each line that is read asks several times
            left = self._left + (now - self._at) * self._rate
            self._left = left if left < self._most else self._most
            self._at = now
        return self._left

    def spend(self, cost: float, now: float) -> None:
        """Take ``cost``; it may be more than is left, and is then owed."""
        self._left = max(self.left(now) - cost, -self._owes)

    def pays(self, cost: float, now: float) -> bool:
        """Take ``cost`` if there is that much. Returns whether there was."""
        if self.left(now) < cost:
            return False
        self.spend(cost, now)
        return True

    def wait(self, cost: float, now: float) -> float:
        """Seconds until ``cost`` is there."""
        return max(0.0, (min(cost, self._most) - self.left(now)) / self._rate)


#: The number of purses above which full ones are thrown away.
_MANY: Final = 1000


class Purses:
    """A :class:`Purse` for each owner that has spent something."""

    def __init__(self, rate: float, most: float, owes: float = inf) -> None:
        self._rate, self._most, self._owes = rate, most, owes
        self._purses: dict[Hashable, Purse] = {}

    def of(self, owner: Hashable, now: float) -> Purse:
        """The purse of ``owner``."""
        purse = self._purses.get(owner)
        if purse is None:
            # A full purse is as good as none, so it is made anew at its owner's next call.
            if len(self._purses) >= _MANY:
                # One that is not full is what its owner has spent: coming back must not fill it.
                for name in [n for n, p in self._purses.items() if p.left(now) >= self._most]:
                    del self._purses[name]
            purse = self._purses[owner] = Purse(self._rate, self._most, now, self._owes)
        return purse

    def wait(self, owner: Hashable, cost: float, now: float) -> float:
        """Seconds until ``owner`` has ``cost``."""
        purse = self._purses.get(owner)
        return 0.0 if purse is None else purse.wait(cost, now)


class RoundRobin(Generic[T]):
    """Waiting things of many owners. They are taken by turns, one of each owner, oldest first.

    Things of a paused owner are not taken and do not count.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T]] = {}
        self._order: deque[Hashable] = deque()
        self._paused: dict[Hashable, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: Hashable, thing: T) -> None:
        """Add a thing behind the others of its owner."""
        if (paused := self._paused.get(owner)) is not None:
            paused.append(thing)
            return
        mine = self._waiting.get(owner)
        if mine is None:
            self._waiting[owner] = deque((thing,))
            self._order.append(owner)
        else:
            mine.append(thing)
        self._count += 1

    def next_owner(self) -> Hashable:
        """The owner whose turn it is. Raises :class:`IndexError` when nothing waits."""
        return self._order[0]

    def pop(self) -> T:
        """The next thing; its owner is last in turn then. Raises :class:`IndexError`."""
        owner = self._order.popleft()
        mine = self._waiting[owner]
        thing = mine.popleft()
        self._count -= 1
        if mine:
            self._order.append(owner)
        else:
            del self._waiting[owner]
        return thing

    def take(self, most: int, each: int) -> list[T]:
        """At most ``most`` things in turn, and at most ``each`` of one owner."""
        taken: list[T] = []
        while self._order and len(taken) < most and each > 0:
            for _ in range(min(len(self._order), most - len(taken))):
                taken.append(self.pop())
            each -= 1
        return taken

    def pause(self, owner: Hashable) -> None:
        """Take nothing of ``owner``, who has something waiting, until :meth:`go_on`. O(owners).

        Raises :class:`KeyError` if the owner has nothing waiting.
        """
        mine = self._paused[owner] = self._waiting.pop(owner)
        self._order.remove(owner)
        self._count -= len(mine)

    def go_on(self, owner: Hashable) -> None:
        """Take things of ``owner`` again, last in turn. Raises :class:`KeyError`: not paused."""
        mine = self._waiting[owner] = self._paused.pop(owner)
        self._order.append(owner)
        self._count += len(mine)

    def is_paused(self, owner: Hashable) -> bool:
        """Whether ``owner`` is paused."""
        return owner in self._paused
