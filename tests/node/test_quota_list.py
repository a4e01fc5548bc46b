"""An administrator finds everybody whom the node manager knows in the list of quotas.

"all" follows the GPUs that there are, and a quota beyond them locks nobody out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.quota import FIELDS

CONFIG = """
c.Quotas.default = {"gpus": 1, "memory": "4GiB"}
c.Quotas.groups = {"team": {"gpus": 2, "memory": "8GiB", "weight": 2.0}}
c.Quotas.users = {"configured": {"gpus": 3}}
"""
DEFAULT = {"gpus": 1, "memory": 4 * GIB, "weight": 1.0}
TEAM = {"gpus": 2, "memory": 8 * GIB, "weight": 2.0}
#: What a row has of somebody who has set nothing and holds nothing.
PLAIN: dict[str, Any] = {
    **{"groups": [], "from_groups": [], "own": [], "budget": None, "idle_timeout": None},
    **{"burst_memory": 0.0, "seen": True, "used_gpus": 0},
}
OF_TEAM = {"groups": ["team"], **TEAM, "source": "group", "from_groups": ["team"]}
OVERRIDE = {"gpus": 4, "memory": None, "weight": 1.5}


def row(remaining: tuple[int, list[int]], **more: Any) -> dict[str, Any]:
    return {**PLAIN, **more, "remaining": remaining}


def left(quota: dict[str, Any]) -> tuple[int, list[int]]:
    """GPUs that remain of a quota, and the GiB that remain on each that is held."""
    more = quota["remaining"]
    return more["gpus"], [part["bytes"] // GIB for part in more["memory"]]


def listed(root: NodeClient) -> dict[str, Any]:
    answer = root.call(Method.QUOTA_LIST)
    unset = dict.fromkeys([*FIELDS, "own_burst_memory", "when"])
    more = unset | {"burst_memory": 0.0, "source": "configuration", "own": []}
    assert answer["default"] == {**more, **DEFAULT, "group": None, "members": None}
    (team,) = answer["groups"]
    assert team == {**more, **TEAM, "group": "team", "members": 1}
    names = [row["environment"] for row in answer["quotas"]]
    assert names == sorted(set(names))
    for own in {*FIELDS, "own_burst_memory"} - {*DEFAULT, "burst_memory", "idle_timeout"}:
        assert {row.pop(own) for row in answer["quotas"]} == {None}
    for row in answer["quotas"]:
        row["remaining"] = left(row)
    return {row.pop("environment"): row for row in answer["quotas"]}


def test_everybody_who_is_known_is_listed_with_source_and_use(tmp_path: Path) -> None:
    people = {"holder": [], "member": ["team"], "root": []}
    with RunningNode(tmp_path, simulate="4x24GiB", config=CONFIG, people=people) as node:
        as_ = node.client
        with as_("holder") as holder, as_("member") as member, as_("root") as root:
            # Nobody has asked for anything yet: configured quotas and groups are known.
            rows = listed(root)
            whole = {"gpus": 3, "memory": None, "weight": 1.0, "source": "user", "seen": False}
            whole = row((3, []), **whole)
            assert rows["configured"] == whole
            assert rows["member"] == row((2, []), **OF_TEAM)
            assert "ghost" not in rows
            root.call(Method.QUOTA_SET, environment="ghost", **OVERRIDE)
            own = holder.request(gpus=1)["lease"]
            for _ in range(2):
                member.request(gpus=2)  # the second joins the first on the same GPUs
            rows = listed(root)
            used = {**DEFAULT, "source": "default", "used_gpus": 1}
            assert rows["holder"] == row((0, [0]), **used)
            assert rows["member"] == row((0, [0, 0]), **OF_TEAM, used_gpus=2)
            ghost = {**OVERRIDE, "own": ["gpus", "memory", "weight"], "rest": "the default"}
            assert rows["ghost"] == row((4, []), **ghost, source="override", seen=False)
            # As each of them is told.
            status = holder.call(Method.STATUS)["quota"]
            assert (status.pop("reserve"), bool(status.pop("says"))) == (None, True)
            told = {"groups": [], "own": [], "seen": True, "remaining": left(status)}
            assert {**status, **told} == rows["holder"]
            of_member = member.call(Method.STATUS)["quota"]
            assert of_member.pop("says")
            told |= {"groups": ["team"], "remaining": left(of_member)}
            assert {**of_member, **told} == {**rows["member"], "reserve": None}
        node.restart()
        # Holder's process lives: the lease and the rest are known as before.
        with node.client("root") as root:
            assert listed(root) == rows
            root.call(Method.RELEASE, lease=own)
            root.call(Method.QUOTA_UNSET, environment="ghost")
            assert "ghost" not in listed(root)
            # A GPU counts until a measurement has found it empty.
            until(lambda: listed(root)["holder"]["used_gpus"] == 0, "the GPU is no longer used")
            assert listed(root)["configured"] == whole


# -- quotas and the GPUs that there are ------------------------------------------------------------

BEYOND = 'c.Quotas.default = {"gpus": 1, "memory": "500GiB"}\nc.Policy.max_tasks_per_gpu = 2\n'
ALL = """
c.NodeManagerApp.measure_interval = 0.2
c.NodeManagerApp.discover_interval = 1.0
c.Quotas.default = {"gpus": "all", "memory": 0.5}
"""


def warnings(root: NodeClient, name: str, **quota: Any) -> list[str]:
    return root.call(Method.QUOTA_SET, environment=name, **quota)["warnings"]


def test_a_quota_beyond_the_node_is_said_and_holds_and_locks_nobody_out(tmp_path: Path) -> None:
    people = ("ada", "bob", "root")
    with (
        RunningNode(tmp_path, simulate="2x24GiB", config=BEYOND, people=people) as node,
        node.client("root") as root,
        node.client("ada") as ada,
    ):
        assert warnings(root, "ada", gpus=1, memory=9 * GIB) == []
        (contradicts,) = warnings(root, "ada", gpus=1, memory=8 * GIB)
        assert contradicts.startswith("ada may have 8 GiB on each GPU, but max_tasks_per_gpu is 2:")
        much = (
            "ada may have 999 GiB on each GPU, but the largest GPU of this node has 24 GiB: "
            "a request that names no size gets the whole GPU."
        )
        many = "ada may have 99 GPUs, but this node has 2 GPUs: no request can get more than that."
        assert warnings(root, "ada", gpus=1, memory=999 * GIB) == [much]
        assert warnings(root, "ada", gpus=99) == [many, much]
        granted = ada.request(gpus=2)
        assert [gpu["memory"] for gpu in granted["gpus"]] == [24 * GIB, 24 * GIB]
        refused = ada.turned_away(gpus=1, memory=25 * GIB)
        assert "asked for 1 GPU with 25 GiB on each" in refused.message
        ada.call(Method.RELEASE, lease=granted["lease"])
        with node.client("bob") as bob:  # by the default quota
            assert [gpu["memory"] for gpu in bob.request()["gpus"]] == [24 * GIB]
        (of_default, *of_ada) = root.call(Method.QUOTA_LIST)["warnings"]
        assert of_default.startswith("A user without a quota of their own may have 500 GiB on each")
        assert [text[:3] for text in of_ada] == ["ada", "ada"]
    assert "A user without a quota of their own may have 500 GiB" in node.log.read_text()


def test_a_quota_for_a_name_that_nobody_has_is_said(tmp_path: Path) -> None:
    with RunningNode(tmp_path, simulate="1x24GiB") as node, node.client() as root:
        (said,) = warnings(root, "nobody-of-that-name", gpus=1)
        assert said.startswith("The name nobody-of-that-name is not known:")
        assert warnings(root, "nobody-of-that-name", gpus=1) == [], "it was said"
        assert warnings(root, "daemon", gpus=1) == [], "the host knows such a user"


def test_gpus_that_come_count_and_one_that_is_lost_still_does(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    first = nvml_world.add_gpu(memory=24 * GIB)
    with RunningNode(tmp_path, simulate="", config=ALL, environ=nvml_world.environ()) as node:

        def quota() -> tuple[int, int]:
            found = node.status()["quota"]
            return found["gpus"], round(found["memory"] / GIB)

        assert quota() == (1, 12)
        nvml_world.add_gpu(memory=16 * GIB)
        until(lambda: quota() == (2, 8), "the new GPU counts, and half of it is less")
        nvml_world.lose(first)
        until(lambda: "lost" in [one["health"] for one in node.status()["gpus"]], "it is lost")
        assert quota() == (2, 8)
