"""The form with which administrators edit quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.quota import fields_of, quota_text, said_of

from . import forms
from .admin import AdminPage
from .asking import Refusal, refusals
from .page import Done, Note


class Kind(Enum):
    """The kind of quotas that a form is about; the value is in addresses."""

    USERS = "users"
    GROUP = "group"
    DEFAULT = "default"

    @property
    def names(self) -> str:
        """The argument of addresses, forms and calls that names who it is."""
        return "group" if self is Kind.GROUP else "environment"


@dataclass(frozen=True, slots=True)
class Whose:
    """The quotas of users or of a group (without a name: a new one), or the default quota."""

    kind: Kind
    names: tuple[str, ...] = ()
    is_new: bool = False

    def params(self) -> list[dict[str, Any]]:
        """The parameters of the calls, one for each."""
        if self.kind is Kind.DEFAULT:
            return [{"default": True}]
        return [{self.kind.names: name} for name in self.names]

    def text(self) -> str:
        """As the subject of a sentence."""
        if self.kind is Kind.DEFAULT:
            return "The default quota"
        if len(self.names) > 3:
            return f"The quota of {len(self.names)} users"
        of = "group " if self.kind is Kind.GROUP else ""
        return f"The quota of {of}{', '.join(self.names)}"

    def unchanged(self) -> str:
        """The note that a form has done nothing."""
        subject = self.text()
        return f"Nothing was changed: {subject[:1].lower()}{subject[1:]} has these values already."


class QuotaFormHandler(AdminPage):
    """Edit the quota of users, of a group or of everybody else, or take that back."""

    async def get(self) -> None:
        with refusals():
            node = self.node_named(self.query("node"))
            kind = self._kind(self.query("of"))
            names = tuple(self.get_query_arguments(kind.names))
            names = names if kind is not Kind.DEFAULT else ()
        await self.admin_status(node)
        whose = Whose(kind, names, is_new=kind is not Kind.DEFAULT and not names)
        rows = await self._rows(node, whose)
        self._form(node, whose, rows, forms.filled(rows[0]) if len(names) < 2 else forms.MANY)

    async def post(self) -> None:
        with refusals():
            node = self.node_named(self.typed("node") or None)
            kind = self._kind(self.typed("of") or None)
        await self.admin_status(node)
        typed = [] if kind is Kind.DEFAULT else self.get_body_arguments(kind.names)
        names, wrong = forms.checked_names(typed)
        if not names and kind is not Kind.DEFAULT:
            raise Refusal(wishes.bad_request("Nobody is named."))
        whose = Whose(kind, tuple(names), is_new=self.typed("new") == "yes")
        rows = await self._rows(node, replace(whose, names=()) if whose.is_new else whose)
        if self.typed("action") == "unset" and not wrong:
            await self._unset(node, whose, rows)
            return
        many = len(names) > 1
        fields = {name: self.get_body_argument(name, None) for name in forms.INPUTS}
        form, wish = forms.read_quota(
            {name: text for name, text in fields.items() if text is not None},
            self.get_body_arguments("change") if many else None,
            None if many else forms.filled(rows[0]),
            ("gpus",) if whose.is_new else (),  # what is all as the default is there, too
            () if many else self.get_body_arguments("follow"),
        )
        if wrong:
            form = form.marked(kind.names, wrong)
        if form.mistakes:
            self.set_status(400)
            self._form(node, whose, rows, form)
            return
        if not wish:
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING), **self.at(node))
            return
        told = await self._tell(node, Method.QUOTA_SET, whose, **wish)
        if not told.answers:
            self.set_status(wishes.HTTP_STATUS.get(told.reason, 502))
            self._form(node, whose, rows, form, refusal=told.problem)
            return
        # One user's note tells the whole quota; several users' what they now have in common.
        said = quota_text(wish if many else said_of(fields_of(told.answers[0])))
        warnings = dict.fromkeys(w for one in told.answers for w in one.get("warnings") or ())
        text = f"{whose.text()} is now {said}.{self._here(node)}"
        self._done(node, text, [*warnings], told, self._undo(node, whose, rows, told))

    async def _unset(self, node: str, whose: Whose, rows: Sequence[Mapping[str, Any]]) -> None:
        if all(row.get("source") != "override" for row in rows):
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING), **self.at(node))
            return
        told = await self._tell(node, Method.QUOTA_UNSET, whose)
        text = f"{whose.text()} is the configured one again.{self._here(node)}"
        self._done(node, text, [], told, self._undo(node, whose, rows, told))

    def _undo(
        self, node: str, whose: Whose, rows: Sequence[Mapping[str, Any]], told: Told
    ) -> list[tuple[str, str]]:
        """The form that undoes what was done to one quota."""
        if len(told.answers) != 1 or len(rows) != 1:
            return []
        names = [(whose.kind.names, name) for name in whose.names]
        fixed = [("node", node), ("of", whose.kind.value), *names]
        return [*fixed, *forms.undone(rows[0], told.answers[0])]

    def _done(
        self,
        node: str,
        text: str,
        more: Sequence[str],
        told: Told,
        undo: Sequence[tuple[str, str]],
    ) -> None:
        """Tell what was changed, and for how many users it failed."""
        if told.problem and not told.answers:
            self.leave(
                "admin", Note(f"Nothing was changed: {told.problem}", Done.FAILED), **self.at(node)
            )
        elif told.problem:
            text = f"Changed for {len(told.answers)}, not for {told.failed}: {told.problem}"
            self.leave("admin", Note(text, Done.FAILED), **self.at(node))
        else:
            self.leave("admin", Note(" ".join([text, *more]), undo=undo), **self.at(node))

    def _here(self, node: str) -> str:
        """A sentence for a site with several nodes: each has quotas of its own."""
        if self.site.hosts is not None:
            return " This holds on all hosts."
        return f" This holds on {node} only." if len(self.site.nodes) > 1 else ""

    async def _tell(self, node: str, method: Method, whose: Whose, **wish: Any) -> Told:
        """Make the call for each, one after the other: a burst of calls would have to wait."""
        answers, failed, problem = [], 0, NodeProblem("unavailable", "")
        for one in whose.params():
            try:
                answers.append(await self.ask(node, method, **one, **wish))
            except NodeProblem as error:
                failed, problem = failed + 1, error
        return Told(answers, failed, problem.message, problem.reason)

    async def _rows(self, node: str, whose: Whose) -> list[Mapping[str, Any]]:
        """The present quota of each; the default quota for an unknown name."""
        with refusals():
            quotas = await self.ask(node, Method.QUOTA_LIST)
        default = {**quotas["default"], "own": [], "source": "default"}
        if whose.kind is Kind.DEFAULT:
            return [quotas["default"]]
        if whose.kind is Kind.GROUP:
            known = {row["group"]: row for row in quotas.get("groups", ())}
        else:
            known = {row["environment"]: row for row in quotas["quotas"]}
        return [known.get(name, default) for name in whose.names] or [default]

    @staticmethod
    def _kind(text: str | None) -> Kind:
        try:
            return Kind(text or "users")
        except ValueError:
            known = ", ".join(kind.value for kind in Kind)
            raise wishes.bad_request(f"'of' is one of {known}.") from None

    def _form(
        self,
        node: str,
        whose: Whose,
        rows: Sequence[Mapping[str, Any]],
        form: forms.QuotaForm,
        *,
        refusal: str = "",
    ) -> None:
        alone = self.site.hosts is not None
        others = [] if alone else [name for name in self.site.nodes if name != node]
        self.page(
            "quota.html",
            admin=True,
            node=node,
            others=others,
            whose=whose,
            title=f"Add {'a group' if whose.kind is Kind.GROUP else 'a user'}"
            if whose.is_new
            else whose.text(),
            many=len(whose.names) > 1,
            form=form,
            parts=forms.PARTS,
            own=() if len(whose.names) > 1 else rows[0].get("own", ()),
            rest=rows[0].get("rest", ""),
            overridden=any(row.get("source") == "override" for row in rows),
            refusal=refusal,
        )


@dataclass(frozen=True, slots=True)
class Told:
    """The results of one call for each of several: the answers, how many failed, and why."""

    answers: list[dict[str, Any]]
    failed: int
    problem: str
    reason: str
