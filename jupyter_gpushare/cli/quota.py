"""``jupyter gpushare quota list|set|unset``: an administrator's view of quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ..console.node import Node, connect
from ..console.verb import Option, Refused, UsageError, Verb, flag, option, options
from ..figures import format_hours
from ..protocol.messages import Method
from ..protocol.quota import about, fields_of, read_text, source_text, value_text
from ..protocol.sizes import parse_share
from ..protocol.tables import table
from ..protocol.words import parse_word
from ..quota import FIELDS, Unit


def quota_field(field: str) -> Option:
    """The option of a quota's field: its value, or the word for its null; ``None`` is not said."""
    null = FIELDS[field].null

    def read(text: str) -> Any:
        if text == null:
            return text
        if field == "memory" and (share := parse_share(text)) is not None:
            return share
        try:
            return read_text(field, text)
        except ValueError as error:
            raise ValueError(f"{error} Or write {null}." if null else str(error)) from error

    return Option(None, f"{about(field)} Left out: as now.", read=read)


class AtNode(Verb):
    """A verb that asks this host's node manager; the pool's verbs ask the pool instead."""

    def connect(self) -> Node:
        """Raises `NodeSilent` and `NodeRefused`."""
        return connect()


class Whose(AtNode):
    """A verb about one quota: an environment's, a group's, or the default one."""

    arguments = "[ENVIRONMENT]"

    group = option("", "The group whose quota is meant, not an environment's.")
    everybody = flag("The quota of all who have no other.", name="default")

    def whose(self, arguments: list[str]) -> tuple[str, dict[str, Any]]:
        """The name to print, and the parameters for it. Raises :class:`UsageError`."""
        if len(arguments) + bool(self.group) + self.everybody != 1:
            verb = self.name.rpartition(" ")[2]
            more = " --gpus 2" if verb == "set" else ""
            raise UsageError(
                f"say whose quota: jupyter gpushare quota {verb} alice{more}, or --group students, "
                "or --default"
            )
        if self.group:
            return f"group {self.group}", {"group": self.group}
        if self.everybody:
            return "(everybody else)", {"default": True}
        return arguments[0], {"environment": arguments[0]}

    def show(self, said: str, quota: dict[str, Any]) -> int:
        """Print what it is now."""
        return self.say(quota, quota_table([(said, quota)]))


class QuotaListApp(AtNode):
    """List every environment's quota and where it comes from (administrators)."""

    name = "quota list"

    def run(self, arguments: list[str]) -> int:
        with self.connect() as node:
            answer = node.call(Method.QUOTA_LIST)
        rows = [(quota["environment"], quota) for quota in answer["quotas"]]
        groups = [(f"group {one['group']}", one) for one in answer.get("groups", ())]
        rest = [("(everybody else)", answer["default"])]
        return self.say(answer, quota_table([*rest, *groups, *rows]))


class QuotaSetApp(Whose):
    """Set what an environment, a group's members or everybody else may hold
    (administrators). It holds from now on: leases that are over it stay, new ones are refused. What
    is left out stays as it is now."""

    name = "quota set"
    examples = """
    jupyter gpushare quota set alice --gpus 2 --memory 8GiB
    jupyter gpushare quota set bob --gpus 4 --weight 2
    jupyter gpushare quota set carol --gpus 1 --gpu-hours 20
    jupyter gpushare quota set --group students --gpu-hours 100 --per month
    jupyter gpushare quota set --default --gpus 1 --gpu-hours 60 --per 2026-10-01
    jupyter gpushare quota set carol --gpus 1 --no-budget
    jupyter gpushare quota set dave --gpus 1 --idle-timeout 10m --burst-memory 0.9
    jupyter gpushare quota set dave --gpus 1 --idle-timeout default --burst-memory default
    """

    locals().update({name: quota_field(name) for name in FIELDS})
    no_budget = flag("Do not limit its GPU-hours.")

    def run(self, arguments: list[str]) -> int:
        said, whose = self.whose(arguments)
        given = {name: getattr(self, name) for name in FIELDS}
        if self.no_budget and given["gpu_hours"] is not None:
            raise UsageError("either --gpu-hours or --no-budget, not both")
        # Null is sent for its word; what was not said is left out, and stays.
        named: dict[str, Any] = {
            name: None if value == FIELDS[name].null else value
            for name, value in given.items()
            if value is not None
        }
        if self.no_budget:
            named["gpu_hours"] = None
        if not named:
            raise UsageError("say what to set: --gpus N, --memory SIZE, --gpu-hours N, …")
        with self.connect() as node:
            # A part of a GPU, which only the node's own GPUs make bytes of.
            if isinstance(share := named.get("memory"), float):
                named["memory"] = int(share * self.smallest(node))
            quota = node.call(Method.QUOTA_SET, **whose, **named)
        return self.show(said, quota)

    def smallest(self, node: Node) -> int:
        """Bytes of the GPU of which a part is meant. Raises `Refused` where there is none."""
        sizes = [int(gpu["memory"]) for gpu in node.call(Method.STATUS)["gpus"]]
        if not sizes:
            raise Refused("this node has no GPU to take a part of: say a size, such as 8GiB")
        return min(sizes)


def _part(text: str) -> str:
    return parse_word(text, [name.replace("_", "-") for name in FIELDS]).replace("-", "_")


class QuotaUnsetApp(Whose):
    """Forget the quota that was set for an environment, a group or everybody else:
    the configured one counts again (administrators)."""

    name = "quota unset"
    examples = """
    jupyter gpushare quota unset alice
    jupyter gpushare quota unset alice --only memory --only gpu-hours
    """

    only = options("Only this part of it, such as gpu-hours; the others stay.", read=_part)

    def run(self, arguments: list[str]) -> int:
        said, whose = self.whose(arguments)
        with self.connect() as node:
            if self.only:
                quota = node.call(Method.QUOTA_SET, **whose, follow=list(self.only))
            else:
                quota = node.call(Method.QUOTA_UNSET, **whose)
        return self.show(said, quota)


class QuotaApp(QuotaListApp):
    """Quotas: the most an environment may hold (administrators). Alone it lists
    them."""

    name = "quota"
    arguments = "[list|set|unset]"
    subcommands: ClassVar[Any] = {
        "list": ("cli.quota.QuotaListApp", "List quotas and where they come from."),
        "set": ("cli.quota.QuotaSetApp", "Set a quota."),
        "unset": ("cli.quota.QuotaUnsetApp", "Forget a quota that was set."),
    }


#: The columns that are there even if they say little; others where a quota has such a field.
_ALWAYS: Final = ("gpus", "memory", "weight", "gpu_hours")


def quota_table(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Quotas by environment; a column has the name of its option."""
    told = [(name, quota, fields_of(quota)) for name, quota in rows]
    shown = [
        name
        for name in FIELDS
        if name in _ALWAYS or (name != "per" and any(own[name] is not None for _, _, own in told))
    ]
    return table(
        ("ENVIRONMENT", *(name.replace("_", "-").upper() for name in shown), "FROM"),
        [
            (name, *(_cell(field, own, quota) for field in shown), source_text(quota) or None)
            for name, quota, own in told
        ],
    )


def _cell(name: str, own: Mapping[str, Any], quota: Mapping[str, Any]) -> Any:
    if name == "gpu_hours":
        return _hours(quota)
    number = FIELDS[name].unit in (Unit.COUNT, Unit.NUMBER) and own[name] is not None
    return own[name] if number else value_text(name, own[name])


def _hours(quota: Mapping[str, Any]) -> str:
    """The budget, with what is spent of it where that is told."""
    budget = quota.get("budget")
    when = (budget or quota).get("when")
    more = "" if when is None else f" {when}"
    if budget is not None:
        said = f"{format_hours(budget['spent'])} of {budget['hours']:g}{more}"
        return f"{said}, all spent" if budget["level"] == "spent" else said
    hours = quota.get("gpu_hours")
    return FIELDS["gpu_hours"].empty if hours is None else f"{hours:g}{more}"
