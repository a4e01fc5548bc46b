"""``jupyter gpushare quota list|set|unset``: an administrator's view of quotas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from traitlets import Bool, Float, Integer, TraitError, TraitType, Unicode

from ..node.commandline import did_you_mean
from ..protocol.periods import parse_period
from ..protocol.sizes import format_burst, format_size, parse_burst
from ..protocol.times import format_duration
from .node import connect
from .table import clean, table
from .verb import JSON_FLAG, Duration, Size, SizeOrShare, UsageError, Verb

#: What sends a part of a quota back to the node's own.
DEFAULT: Final = "default"
#: What makes a quota one of whole GPUs.
NO_LIMIT: Final = "none"
#: What makes a budget one of the rolling window.
WINDOW: Final = "window"


class QuotaMemory(SizeOrShare):
    """A size, a part of a GPU, or ``none``; ``None`` is not said."""

    info_text = "a size such as 8GiB, a part of a GPU such as 0.5, or none"

    def validate(self, obj: Any, value: Any) -> Any:
        said = isinstance(value, str) and value.strip().lower() == NO_LIMIT
        return NO_LIMIT if said else super().validate(obj, value)


class OwnDuration(Duration):
    """A time, or ``default``; ``None`` is not said."""

    also = " Or write default: the node's own."

    def read(self, given: Any) -> Any:
        return DEFAULT if given == DEFAULT else super().read(given)


class OwnPeriod(TraitType[Any, Any]):
    """What a budget is for, or ``window``; ``None`` is not said."""

    info_text = "week, month, the first day of a term such as 2026-10-01, or window"
    default_value = None
    allow_none = True

    def from_string(self, s: str) -> str:
        return s

    def validate(self, obj: Any, value: Any) -> Any:
        if value in (None, WINDOW):
            return value
        try:
            return parse_period(value)
        except ValueError as error:
            raise TraitError(f"--per: {error}") from error


class OwnBurst(Size):
    """Up to what limits are lifted, or ``default``; ``None`` is not said."""

    info_text = "a size such as 60GiB, a part of a GPU such as 0.9, 0, or default"

    def validate(self, obj: Any, value: Any) -> Any:
        if value in (None, DEFAULT):
            return value
        try:
            return parse_burst(value)
        except ValueError as error:
            raise TraitError(f"--burst-memory: {error}") from error


class Whose(Verb):
    """A verb about one quota: an environment's, a group's, or the default one."""

    arguments = "[ENVIRONMENT]"
    flags: ClassVar[Any] = {
        **Verb.flags,
        **JSON_FLAG,
        "default": ({"Whose": {"everybody": True}}, "The quota of all who have no other."),
    }
    aliases: ClassVar[Any] = {**Verb.aliases, "group": "Whose.group"}

    group = Unicode(
        None, allow_none=True, help="The group whose quota is meant, not an environment's."
    ).tag(config=True)
    everybody = Bool(False, help="Whether the default quota is meant.").tag(config=True)

    def whose(self, arguments: list[str]) -> tuple[str, dict[str, Any]]:
        """What to print, and the parameters that say it. Raises :class:`UsageError`."""
        if len(arguments) + (self.group is not None) + self.everybody != 1:
            verb = self.name.rpartition("-")[2]
            more = " --gpus 2" if verb == "set" else ""
            raise UsageError(
                f"say whose quota: jupyter gpushare quota {verb} alice{more}, or --group students, "
                "or --default"
            )
        if self.group is not None:
            return f"group {self.group}", {"group": self.group}
        if self.everybody:
            return "(everybody else)", {"default": True}
        return arguments[0], {"environment": arguments[0]}

    def show(self, said: str, quota: dict[str, Any]) -> int:
        """Print what it is now."""
        if self.json:
            self.print_json(quota)
        else:
            print(quota_table([(said, quota)]))
        warn(quota)
        return 0


class QuotaListApp(Verb):
    """List quotas."""

    name = "jupyter-gpushare-quota-list"
    description = """List every environment's quota and where it comes from (administrators)."""
    flags: ClassVar[Any] = {**Verb.flags, **JSON_FLAG}

    def run(self, arguments: list[str]) -> int:
        self.no_arguments(arguments)
        from ..protocol.messages import Method

        with connect() as node:
            answer = node.call(Method.QUOTA_LIST)
        if self.json:
            self.print_json(answer)
            return 0
        rows = [(quota["environment"], quota) for quota in answer["quotas"]]
        groups = [(f"group {one['group']}", one) for one in answer.get("groups", ())]
        print(quota_table([("(everybody else)", answer["default"]), *groups, *rows]))
        warn(answer)
        return 0


class QuotaSetApp(Whose):
    """Set a quota."""

    name = "jupyter-gpushare-quota-set"
    description = """Set what an environment, a group's members or everybody else may hold
    (administrators). It holds from now on: leases that are over it stay, new ones are refused. What
    is left out stays as it is now."""
    flags: ClassVar[Any] = {
        **Whose.flags,
        "no-budget": ({"QuotaSetApp": {"no_budget": True}}, "Do not limit its GPU-hours."),
    }
    aliases: ClassVar[Any] = {
        **Whose.aliases,
        "gpus": "QuotaSetApp.gpus",
        "memory": "QuotaSetApp.memory",
        "weight": "QuotaSetApp.weight",
        "gpu-hours": "QuotaSetApp.gpu_hours",
        "per": "QuotaSetApp.per",
        "idle-timeout": "QuotaSetApp.idle_timeout",
        "burst-memory": "QuotaSetApp.burst_memory",
    }
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

    gpus = Integer(
        None, allow_none=True, min=0, help="GPUs it may hold at once. Default: as now."
    ).tag(config=True)
    memory = QuotaMemory(
        help="""Memory on each GPU, such as 8GiB, or 0.5: half of the node's smallest; none: the
        whole GPU. Default: as now.""",
    ).tag(config=True)
    weight = Float(
        None, allow_none=True, help="Fair share among those who wait. Default: as now."
    ).tag(config=True)
    gpu_hours = Float(
        None,
        allow_none=True,
        min=0.0,
        help="""GPU-hours it may hold in the time that --per says. Default: as now.""",
    ).tag(config=True)
    per = OwnPeriod(
        help="""What the GPU-hours are for: week, month, or the first day of a term as 2026-10-01;
        window: the node manager's rolling window. Default: as now.""",
    ).tag(config=True)
    idle_timeout = OwnDuration(
        None,
        allow_none=True,
        help="""For how long a kernel may be idle before its GPUs are asked back, such as 10m; 0:
        for ever; default: the node's own. Default: as now.""",
    ).tag(config=True)
    burst_memory = OwnBurst(
        help="""Up to what its limits are lifted on a nearly empty GPU, such as 60GiB, or 0.9 of
        one; 0: not at all; default: the node's own. Default: as now.""",
    ).tag(config=True)
    no_budget = Bool(False, help="Whether its GPU-hours are not limited any more.").tag(config=True)

    def run(self, arguments: list[str]) -> int:
        said, whose = self.whose(arguments)
        if self.no_budget and self.gpu_hours is not None:
            raise UsageError("either --gpu-hours or --no-budget, not both")
        from ..protocol.messages import Method

        named: dict[str, Any] = {}
        if self.no_budget or self.gpu_hours is not None:
            named["gpu_hours"] = self.gpu_hours  # null is no budget; not named is what there is
        for name in ("gpus", "weight"):
            if getattr(self, name) is not None:
                named[name] = getattr(self, name)
        if self.per is not None:
            named["per"] = None if self.per == WINDOW else self.per
        for name in ("idle_timeout", "burst_memory"):
            value = getattr(self, name)
            if value is not None:
                named[name] = None if value == DEFAULT else value
        if not named and self.memory is None:
            raise UsageError("say what to set: --gpus N, --memory SIZE, --gpu-hours N, …")
        with connect() as node:
            if self.memory == NO_LIMIT:
                named["memory"] = None
            elif isinstance(self.memory, float):
                gpus = node.call(Method.STATUS)["gpus"]
                smallest = min((gpu["memory"] for gpu in gpus), default=0)
                named["memory"] = max(1, int(self.memory * smallest))
            elif self.memory is not None:
                named["memory"] = self.memory
            quota = node.call(Method.QUOTA_SET, **whose, **named)
        return self.show(said, quota)


class QuotaUnsetApp(Whose):
    """Forget a quota that was set."""

    name = "jupyter-gpushare-quota-unset"
    description = """Forget the quota that was set for an environment, a group or everybody else:
    the configured one counts again (administrators)."""

    def run(self, arguments: list[str]) -> int:
        said, whose = self.whose(arguments)
        from ..protocol.messages import Method

        with connect() as node:
            quota = node.call(Method.QUOTA_UNSET, **whose)
        return self.show(said, quota)


class QuotaApp(QuotaListApp):
    """Quotas."""

    name = "jupyter-gpushare-quota"
    arguments = "[list|set|unset]"
    description = """Quotas: the most an environment may hold (administrators). Alone it lists
    them."""
    subcommands: ClassVar[Any] = {
        "list": (QuotaListApp, "List quotas and where they come from."),
        "set": (QuotaSetApp, "Set a quota."),
        "unset": (QuotaUnsetApp, "Forget a quota that was set."),
    }

    def run(self, arguments: list[str]) -> int:
        if arguments:
            hint = did_you_mean(arguments[0], self.subcommands)
            raise UsageError(
                f"{arguments[0]!r} is not a quota command: use list, set or unset{hint}"
            )
        return super().run(arguments)


def warn(answer: Mapping[str, Any]) -> None:
    """Say on stderr what an administrator may not have meant; an older node manager says none."""
    for warning in answer.get("warnings", ()):
        print(f"Warning: {clean(warning)}", file=sys.stderr)


def quota_table(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Quotas by environment."""
    return table(
        (
            *("ENVIRONMENT", "GPUS", "MEMORY ON EACH", "WEIGHT", "GPU-HOURS"),
            *("IDLE TIME-OUT", "LIFTED TO", "FROM"),
        ),
        [
            (
                name,
                quota["gpus"],
                "whole GPU" if quota.get("memory") is None else format_size(quota["memory"]),
                float(quota.get("weight", 1.0)),
                _hours(quota),
                _idle(quota.get("idle_timeout")),
                None if (to := quota.get("burst_memory")) is None else format_burst(to),
                _source(quota),
            )
            for name, quota in rows
        ],
    )


def _source(quota: Mapping[str, Any]) -> str | None:
    """``group students``: which one, where the node manager says it."""
    return " ".join([*filter(None, [quota.get("source")]), *quota.get("from_groups", ())]) or None


def _idle(seconds: float | None) -> str:
    if seconds is None:
        return "the node's"
    return format_duration(seconds) if seconds else "never"


def _hours(quota: Mapping[str, Any]) -> str:
    """The budget, with what is spent of it where that is told."""
    from ..client.render import format_hours

    budget = quota.get("budget")
    when = (budget or quota).get("when")
    more = "" if when is None else f" {when}"
    if budget is not None:
        said = f"{format_hours(budget['spent'])} of {budget['hours']:g}{more}"
        return f"{said}, all spent" if budget["level"] == "spent" else said
    hours = quota.get("gpu_hours")
    return "not limited" if hours is None else f"{hours:g}{more}"
