"""``jupyter gpushare quota list|set|unset``: an administrator's view of quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from traitlets import Bool, Float, Integer

from ..protocol.sizes import format_size
from .node import connect
from .table import table
from .verb import JSON_FLAG, SizeOrShare, UsageError, Verb


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
        print(quota_table([("(everybody else)", answer["default"]), *rows]))
        return 0


class QuotaSetApp(Verb):
    """Set an environment's quota."""

    name = "jupyter-gpushare-quota-set"
    arguments = "ENVIRONMENT"
    description = """Set what an environment may hold (administrators). It holds from now on: leases
    that are over it stay, new ones are refused."""
    flags: ClassVar[Any] = {
        **Verb.flags,
        **JSON_FLAG,
        "no-budget": ({"QuotaSetApp": {"no_budget": True}}, "Do not limit its GPU-hours."),
    }
    aliases: ClassVar[Any] = {
        **Verb.aliases,
        "gpus": "QuotaSetApp.gpus",
        "memory": "QuotaSetApp.memory",
        "weight": "QuotaSetApp.weight",
        "gpu-hours": "QuotaSetApp.gpu_hours",
    }
    examples = """
    jupyter gpushare quota set alice --gpus 2 --memory 8GiB
    jupyter gpushare quota set bob --gpus 4 --weight 2
    jupyter gpushare quota set carol --gpus 1 --gpu-hours 20
    jupyter gpushare quota set carol --gpus 1 --no-budget
    """

    gpus = Integer(None, allow_none=True, min=0, help="GPUs it may hold at once.").tag(config=True)
    memory = SizeOrShare(
        help="""Memory on each GPU, such as 8GiB, or 0.5: half of the node's smallest. Default:
        the whole GPU.""",
    ).tag(config=True)
    weight = Float(1.0, help="Fair share among those who wait.").tag(config=True)
    gpu_hours = Float(
        None,
        allow_none=True,
        min=0.0,
        help="""GPU-hours it may hold in the node manager's rolling window. Default: as now.""",
    ).tag(config=True)
    no_budget = Bool(False, help="Whether its GPU-hours are not limited any more.").tag(config=True)

    def run(self, arguments: list[str]) -> int:
        if len(arguments) != 1:
            raise UsageError("name one environment: jupyter gpushare quota set alice --gpus 2")
        if self.gpus is None:
            raise UsageError("say how many: --gpus N")
        if self.no_budget and self.gpu_hours is not None:
            raise UsageError("either --gpu-hours or --no-budget, not both")
        from ..protocol.messages import Method

        named: dict[str, Any] = {}
        if self.no_budget or self.gpu_hours is not None:
            named["gpu_hours"] = self.gpu_hours  # null is no budget; not named is what there is
        with connect() as node:
            memory = self.memory
            if isinstance(memory, float):
                gpus = node.call(Method.STATUS)["gpus"]
                memory = max(1, int(memory * min((gpu["memory"] for gpu in gpus), default=0)))
            quota = node.call(
                Method.QUOTA_SET,
                environment=arguments[0],
                gpus=self.gpus,
                memory=memory,
                weight=self.weight,
                **named,
            )
        if self.json:
            self.print_json(quota)
        else:
            print(quota_table([(arguments[0], quota)]))
        return 0


class QuotaUnsetApp(Verb):
    """Forget an environment's quota."""

    name = "jupyter-gpushare-quota-unset"
    arguments = "ENVIRONMENT"
    description = """Forget the quota that was set for an environment; its group's or the default
    one counts again (administrators)."""
    flags: ClassVar[Any] = {**Verb.flags, **JSON_FLAG}

    def run(self, arguments: list[str]) -> int:
        if len(arguments) != 1:
            raise UsageError("name one environment: jupyter gpushare quota unset alice")
        from ..protocol.messages import Method

        with connect() as node:
            quota = node.call(Method.QUOTA_UNSET, environment=arguments[0])
        if self.json:
            self.print_json(quota)
        else:
            print(quota_table([(arguments[0], quota)]))
        return 0


class QuotaApp(Verb):
    """Quotas."""

    name = "jupyter-gpushare-quota"
    arguments = "list|set|unset"
    description = """Quotas: the most an environment may hold (administrators)."""
    subcommands: ClassVar[Any] = {
        "list": (QuotaListApp, "List quotas and where they come from."),
        "set": (QuotaSetApp, "Set an environment's quota."),
        "unset": (QuotaUnsetApp, "Forget an environment's quota."),
    }

    def run(self, arguments: list[str]) -> int:
        raise UsageError("say what to do with quotas: list, set or unset")


def quota_table(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Quotas by environment."""
    return table(
        ("ENVIRONMENT", "GPUS", "MEMORY ON EACH", "WEIGHT", "GPU-HOURS", "FROM"),
        [
            (
                name,
                quota["gpus"],
                "whole GPU" if quota.get("memory") is None else format_size(quota["memory"]),
                float(quota.get("weight", 1.0)),
                _hours(quota),
                quota.get("source"),
            )
            for name, quota in rows
        ],
    )


def _hours(quota: Mapping[str, Any]) -> str:
    """The budget, with what is spent of it where that is told."""
    budget = quota.get("budget")
    if budget is not None:
        return f"{budget['spent']:.1f} of {budget['hours']:g}"
    hours = quota.get("gpu_hours")
    return "not limited" if hours is None else f"{hours:g}"
