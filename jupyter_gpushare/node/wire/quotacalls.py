"""Calls about quotas: what an administrator sets, and what may not have been meant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...policy import core
from ...policy.books.state import State
from ...policy.say import texts
from ...policy.words import commands as cmd
from ...policy.words.model import EnvironmentName
from ...protocol import documents as doc
from ...protocol.calls import Call, QuotaName
from ...protocol.messages import Method
from ...quotas.edits import edit
from ..manager import Manager
from ..views.status import environment_quota, group_quota
from .guests import Guest

#: Whose quota is doubted, where it is nobody's in particular.
_NOBODYS: Final = "A user without a quota of their own"
_MEMBER: Final = "A member of the group {}"


class QuotaCalls:
    """Answers them. ``spawn`` runs what takes its time, ``ask`` has a command decided, and
    ``refused`` answers with what was decided instead. ``knows`` tells whether identity knows
    somebody of that name, or ``None`` if it cannot tell; ``members``, the members of JupyterHub's
    groups that have a quota, and which groups those are.
    """

    def __init__(
        self,
        manager: Manager,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        ask: Callable[[Guest, Call, cmd.Command, Callable[[core.Decision], None]], None],
        refused: Callable[[Guest, Call, core.Decision], None],
        knows: Callable[[str], Awaitable[bool | None]],
        members: Callable[[], Mapping[EnvironmentName, tuple[str, ...]]],
    ) -> None:
        self._manager = manager
        self._ask = ask
        self._refused = refused
        self._knows = knows
        self._members = members
        self.calls: Mapping[Method, Callable[[Guest, Call], None]] = {
            Method.QUOTA_LIST: self.everything,
            Method.QUOTA_SET: lambda guest, call: spawn(self._set(guest, call)),
        }

    async def _set(self, guest: Guest, call: Call) -> None:
        """JupyterHub may have to be asked first who that is."""
        whose, is_known = call.params.whose, True
        groups: tuple[str, ...] = ()
        if whose.environment is not None:
            name = EnvironmentName(whose.environment)
            # Asked before it is set: who has a quota is known afterwards.
            is_known = name in self._known_names() or await self._knows(name) is not False
            groups = self._members().get(name, ())
        command = edit(self._manager.clock.boot(), guest.who.environment, call.params, groups)
        self._ask(guest, call, command, partial(self._is_set, guest, call, is_known))

    def _is_set(self, guest: Guest, call: Call, is_known: bool, decision: core.Decision) -> None:
        """The quota in force, and what of it an administrator may not have meant."""
        if not isinstance(decision, core.Done):
            self._refused(guest, call, decision)
            return
        state, whose = self._manager.state, call.params.whose
        book = state.quotas
        if whose.environment is not None:
            name = EnvironmentName(whose.environment)
            who, quota = str(name), book.resolve(name)[0]
        else:
            who = _MEMBER.format(whose.group) if whose.group is not None else _NOBODYS
            quota = book.of_group(whose.group) or book.of_default
        sizes, config = _capacities(state), self._manager.config
        warnings = texts.doubt_texts(who, quota, sizes, config, is_known=is_known)
        guest.conn.reply(call.id, {**self.answer(whose), "warnings": warnings})

    def warnings(self) -> list[str]:
        """Sentences about quotas in force that an administrator may not have meant."""
        state, book = self._manager.state, self._manager.state.quotas
        if book.pool is not None:
            return []  # The pool's quotas count, so nothing here has an effect to warn of.
        everybody = [
            (_NOBODYS, book.of_default),
            *((_MEMBER.format(name), quota) for name, quota in sorted(book.of_groups.items())),
            *((name, book.resolve(name)[0]) for name in sorted({*book.users, *book.overrides})),
        ]
        sizes, config = _capacities(state), self._manager.config
        return [
            text
            for who, quota in everybody
            for text in texts.doubt_texts(who, quota, sizes, config)
        ]

    def _seen_names(self) -> set[EnvironmentName]:
        """Everybody who was here since the ledger began."""
        state = self._manager.state
        seen = {*state.quotas.groups_of, *state.accounts}
        return seen | {lease.environment for lease in state.leases.values()}

    def _known_names(self) -> set[EnvironmentName]:
        """All seen names, and all that are configured, have a quota, or are in a group with one."""
        book = self._with_members().quotas
        return self._seen_names() | {*book.users, *book.overrides, *book.groups_of}

    def everything(self, guest: Guest, call: Call) -> None:
        """All quotas, and what of them may not have been meant."""
        state, config = self._with_members(), self._manager.config
        book, seen = state.quotas, self._seen_names()
        quotas = [
            environment_quota(state, name, config, seen=name in seen)
            for name in sorted(self._known_names())
        ]
        guest.conn.reply(
            call.id,
            {
                "quotas": quotas,
                "warnings": self.warnings(),
                "default": group_quota(state, None, config),
                "groups": [group_quota(state, name, config) for name in sorted(book.of_groups)],
            },
        )

    def _with_members(self) -> State:
        """The state, with the groups of those whom only JupyterHub has told of yet."""
        state = self._manager.state
        book = state.quotas
        told = {n: g for n, g in self._members().items() if n not in book.groups_of}
        return replace(state, quotas=replace(book, groups_of=book.groups_of.update(told)))

    def answer(self, whose: QuotaName) -> doc.ListedQuota | doc.GroupQuota:
        """The quota in force of an environment or a group."""
        state, config = self._with_members(), self._manager.config
        if whose.environment is None:
            return group_quota(state, whose.group, config)
        name = EnvironmentName(whose.environment)
        return environment_quota(state, name, config, seen=name in self._seen_names())


def _capacities(state: State) -> list[int]:
    return [books.gpu.memory for books in state.gpus.values()]
