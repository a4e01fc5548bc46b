"""``status`` says when JupyterHub's answers are old, which hosts are a pool's, and whole names."""

from __future__ import annotations

from typing import Any

import pytest
from support.node import RunningNode

from jupyter_gpushare.cli.leases import clipped
from jupyter_gpushare.cli.status import heading
from jupyter_gpushare.protocol.messages import Method


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RunningNode(tmp_path_factory.mktemp("node")) as node, node.client() as client:
        document: dict[str, Any] = client.call(Method.STATUS)
        return document


def test_an_old_answer_of_the_hub_is_told_with_its_age(status: dict[str, Any]) -> None:
    told = {**status["node"], "quotas_as_of": status["node"]["time"] - 7200}
    assert (
        "JupyterHub does not answer: quotas of its groups are those of 2 h ago."
        in heading({**status, "node": told}).splitlines()
    )
    assert "JupyterHub" not in heading(status)


def test_a_node_manager_that_does_not_tell_it_is_none_without_a_hub(
    status: dict[str, Any],
) -> None:
    node = {name: value for name, value in status["node"].items() if name != "quotas_as_of"}
    assert "JupyterHub" not in heading({**status, "node": node})


def test_a_host_of_a_pool_is_named_as_one_of_several(status: dict[str, Any]) -> None:
    assert "pool" not in heading(status)
    lent = {"pool": "lab", "whole": 2, "lent": 1, "borrowed": 0, "reclaimed": False, "valid": True}
    quota = {**status["quota"], "gpus": 1, "used_gpus": 1, "pool": {**lent, "why": None}}
    named = {**status["node"], "name": "b"}
    said = heading({**status, "node": named, "quota": quota}).splitlines()
    assert said[0].startswith("b (simulated GPUs), node manager ")
    assert said[1] == "This is host b of a pool: its GPUs, leases and queue."
    assert "and hold 1 here. The pool lab lends you 1 GPU on this host now." in said[2]


def test_only_a_name_of_more_than_forty_characters_is_cut() -> None:
    assert clipped("a" * 40) == "a" * 40
    assert clipped("a" * 41) == "a" * 39 + "…"
