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
            form = replace(form, mistakes={**form.mistakes, kind.names: wrong})
        if form.mistakes:
            self.set_status(400)
            self._form(node, whose, rows, form)
            return
        if not wish:
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING), **self.at(node))
            return
        answers, problems = await self._tell(node, Method.QUOTA_SET, whose, **wish)
        if not answers:
            self.set_status(wishes.HTTP_STATUS.get(problems[-1].reason, 502))
            self._form(node, whose, rows, form, refusal=problems[-1].message)
            return
        # One user's note tells the whole quota; several users' what they now have in common.
        said = quota_text(wish if many else said_of(fields_of(answers[0])))
        warnings = dict.fromkeys(w for one in answers for w in one.get("warnings") or ())
        text = " ".join([f"{whose.text()} is now {said}.{self._here(node)}", *warnings])
        self._done(node, text, whose, rows, answers, problems)

    async def _unset(self, node: str, whose: Whose, rows: Sequence[Mapping[str, Any]]) -> None:
        if all(row.get("source") != "override" for row in rows):
            self.leave("admin", Note(whose.unchanged(), Done.NOTHING), **self.at(node))
            return
        answers, problems = await self._tell(node, Method.QUOTA_UNSET, whose)
        text = f"{whose.text()} is the configured one again.{self._here(node)}"
        self._done(node, text, whose, rows, answers, problems)

    def _done(
        self,
        node: str,
        text: str,
        whose: Whose,
        rows: Sequence[Mapping[str, Any]],
        answers: Sequence[Mapping[str, Any]],
        problems: Sequence[NodeProblem],
    ) -> None:
        """Tell what was changed, with the form that undoes it for one quota; and what failed."""
        if problems:
            some = f"Changed for {len(answers)}, not for {len(problems)}"
            what = some if answers else "Nothing was changed"
            note = Note(f"{what}: {problems[-1].message}", Done.FAILED)
        elif len(answers) == len(rows) == 1:
            names = [(whose.kind.names, name) for name in whose.names]
            fixed = [("node", node), ("of", whose.kind.value), *names]
            note = Note(text, undo=[*fixed, *forms.undone(rows[0], answers[0])])
        else:
            note = Note(text)
        self.leave("admin", note, **self.at(node))

    def _here(self, node: str) -> str:
        """A sentence for a site with several nodes: each has quotas of its own."""
        if self.site.hosts is not None:
            return " This holds on all hosts."
        return f" This holds on {node} only." if len(self.site.nodes) > 1 else ""

    async def _tell(
        self, node: str, method: Method, whose: Whose, **wish: Any
    ) -> tuple[list[dict[str, Any]], list[NodeProblem]]:
        """Make the call for each, one after the other: a burst of calls would have to wait."""
        answers, problems = [], []
        for one in whose.params():
            try:
                answers.append(await self.ask(node, method, **one, **wish))
            except NodeProblem as problem:
                problems.append(problem)
        return answers, problems

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
