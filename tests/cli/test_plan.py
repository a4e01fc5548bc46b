"""``jupyter gpushare plan`` answers each line of JSON with the policy's decision.

A reader that has seen enough is no error worth a traceback.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from jupyter_gpushare.cli.plan import LONGEST_LINE, plan_line

GIB = 2**30
PLAN = [sys.executable, "-m", "jupyter_gpushare.cli", "plan"]


def line(
    *,
    gpus: int = 2,
    capacity: int = 24 * GIB,
    quota: int = 2,
    memory: int | None = None,
    leases: list[tuple[str, list[int]]] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
    request: dict[str, Any] | None = None,
    tasks: int = 4,
) -> dict[str, Any]:
    """A plan for alice on ``gpus`` equal GPUs named G0, G1, ...; leases are (owner, [GPU…])."""
    alice = {"gpus": quota} if memory is None else {"gpus": quota, "memory": memory}
    return {
        "gpus": [{"uuid": f"G{number}", "memory": capacity} for number in range(gpus)],
        "max_tasks_per_gpu": tasks,
        "environments": {"alice": alice, **(others or {})},
        "leases": [
            {"id": f"L{number}", "environment": owner, "gpus": [f"G{gpu}" for gpu in held]}
            for number, (owner, held) in enumerate(leases or [])
        ],
        "request": {"environment": "alice", "gpus": 1, **(request or {})},
    }


def decide(plan: dict[str, Any]) -> dict[str, Any]:
    return plan_line(json.dumps(plan).encode())


def test_a_conversation_with_the_real_command() -> None:
    """Each line is answered at once, a bad one does not end it, and the exit code is 0."""
    with subprocess.Popen(PLAN, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for sent, decision in (
            (json.dumps(line()).encode(), {"decision": "grant", "gpus": ["G0"]}),
            (b"{nonsense", None),
            (b"\xff\xfe", None),
            (b"[" * 100_000, None),
            (b" " * (LONGEST_LINE * 2 + 5) + b"x", None),
            (b'{"gpus": ' + b"9" * 10_000 + b"}", None),
            (json.dumps(line(request={"gpus": 2})).encode(), {"decision": "grant"}),
        ):
            process.stdin.write(sent + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if decision is None:
                assert answer["decision"] == "refuse"
                assert answer["reason"] == "bad_request"
                assert answer["message"]
            else:
                assert decision.items() <= answer.items()
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0


def test_a_closed_pipe_ends_quietly() -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(PLAN, text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.write("{}\n")
        process.stdin.close()
        told = process.stderr.read()
        assert process.wait(60) == 1
    assert told == ""


def crowded(**request: Any) -> dict[str, Any]:
    """Bob has half of the only GPU."""
    bob = {"gpus": 1, "memory": 12 * GIB}
    return line(gpus=1, leases=[("bob", [0])], others={"bob": bob}, request=request)


def sized(asks: int) -> dict[str, Any]:
    """Her quota is 8 GiB, and a lease of hers has named 6."""
    plan = line(gpus=1, quota=1, memory=8 * GIB, leases=[("alice", [0])])
    plan["leases"][0]["memory"] = 6 * GIB
    plan["request"]["memory"] = asks * GIB
    return plan


@pytest.mark.parametrize(
    ("plan", "decision"),
    [
        (line(quota=1, leases=[("alice", [1])]), ["G1"]),
        (line(quota=2, memory=GIB, leases=[("alice", [0, 1]), ("alice", [0])]), ["G1"]),
        (line(request={"gpus": 2}), ["G0", "G1"]),
        (line(quota=0), "zero_quota"),
        (line(quota=1, request={"gpus": 2}), "over_quota"),
        (line(quota=9, request={"gpus": 3}), "too_large"),
        (line(request={"gpus": 0}), "bad_request"),
        (crowded(), "no_resources"),
        (line(gpus=1, tasks=1, leases=[("bob", [0])], others={"bob": {"gpus": 1}}), "no_resources"),
        (crowded(estimate=10 * GIB, runs=15), ["G0"]),
        (crowded(estimate=5 * GIB), "no_resources"),  # two runs: as much again, and a half
        (crowded(estimate=10 * GIB, memory=13 * GIB), "no_resources"),
        (sized(2), ["G0"]),
        (sized(3), "no_resources"),
    ],
)
def test_what_the_policy_decides_is_written_in_json(
    plan: dict[str, Any], decision: list[str] | str
) -> None:
    """What it decides, and why, is told in tests/policy."""
    answer = decide(plan)
    if isinstance(decision, list):
        assert answer == {"decision": "grant", "gpus": decision}
        return
    waits = decision == "no_resources"
    assert (answer["decision"], answer["reason"]) == ("wait" if waits else "refuse", decision)
    assert len(answer["message"]) > 20


def nodes(**given: list[tuple[str, int] | tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Nodes by name; their GPUs are (kind, left) or (kind, left, what batch has there)."""
    return [
        {
            "name": name,
            "gpus": [
                {"uuid": f"{name}{index}", "kind": kind, "left": left, "batch": sum(batch)}
                for index, (kind, left, *batch) in enumerate(gpus)
            ],
        }
        for name, gpus in given.items()
    ]


def needs(*shares: int, **more: Any) -> dict[str, Any]:
    expected = [{"kind": f"A{n}", "share": share} for n, share in enumerate(shares, 1)]
    return {"expected": expected, **more}


A, B, C = "A1", "A2", "A3"


def test_a_node_is_chosen_first_and_batch_makes_way_there() -> None:
    free = {"nodes": nodes(A=[(A, 90), (A, 100)], B=[(A, 90), (B, 40)]), "request": needs(40, 50)}
    assert decide(free) == {"decision": "grant", "node": "A", "gpus": ["A1"], "share": 40}
    full = nodes(A=[(A, 0)], B=[(A, 30), (C, 50)], C=[(A, 20, 40), (B, 20), (C, 40)])
    granted = decide({"nodes": full, "request": needs(35, 45, 65)})
    assert (granted["node"], granted["gpus"], granted["reclaim"]) == ("C", ["C0"], {"C0": 15})
    batch = needs(35, 45, 65, priority_class="batch")
    assert decide({"nodes": full, "request": batch})["decision"] == "wait"


def test_leases_have_shares_on_one_node() -> None:
    plan = line(leases=[("bob", [0]), ("bob", [1])], others={"bob": {"gpus": 2, "memory": GIB}})
    plan["request"] |= {"memory": GIB, "expected": [{"kind": "GPU", "share": 50, "seconds": 9.5}]}
    for lease, share in zip(plan["leases"], (60, 30), strict=True):
        lease["share"] = share
    assert decide(plan) == {"decision": "grant", "gpus": ["G1"], "share": 50}
    plan["leases"][1]["share"] = 70
    waits = decide(plan)
    assert waits["decision"] == "wait"
    assert "40 % of its compute left" in waits["message"]
    plan["leases"][1]["batch"] = True
    assert decide(plan)["reclaim"] == {"G1": 20}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"expected": [{"kind": "A1", "share": 101}]}, "Expected `int` <= 100"),
        ({"expected": [{"kind": "A9", "share": 10}]}, "must name a kind"),
        (
            {"expected": [{"kind": "A1", "share": 1, "seconds": "x"}]},
            "expected[0].seconds: Expected `float",
        ),
        ({}, "must name a kind"),
    ],
)
def test_what_is_wrong_with_a_share_is_said(wrong: dict[str, Any], said: str) -> None:
    answer = decide({"nodes": nodes(N=[(A, 50)]), "request": wrong})
    assert answer["reason"] == "bad_request"
    assert said in answer["message"]


def changed(value: Any, *path: str | int) -> dict[str, Any]:
    """A plan with this value there; ``...``: with none."""
    plan = line(leases=[("alice", [0])])
    place: Any = plan
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is ...:
        del place[path[-1]]
    return plan


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (changed(..., "gpus"), "gpus is missing"),
        (changed(..., "request"), "missing required field `request`"),
        (changed(..., "gpus", 0, "uuid"), "gpus[0]: Object missing required field `uuid`"),
        (changed(..., "environments", "alice"), "not among the environments"),
        (changed("many", "request", "gpus"), "request.gpus: Expected `int`, got `str`"),
        (changed("nobody", "request", "environment"), "'nobody' is not among"),
        (changed(-5, "gpus", 0, "memory"), "gpus[0].memory: Expected `int` >= 1"),
        (changed("G1", "gpus", 0, "uuid"), "is there twice"),
        (changed(0, "max_tasks_per_gpu"), "max_tasks_per_gpu: Expected `int` >= 1"),
        (changed(["G7"], "leases", 0, "gpus"), "there is no GPU 'G7'"),
        (changed(["G0", "G0"], "leases", 0, "gpus"), "a GPU twice"),
        (changed("bob", "leases", 0, "environment"), "'bob' is not among"),
        (changed(-1, "environments", "alice"), "Expected `object`, got `int`"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(plan: dict[str, Any], said: str) -> None:
    answer = decide(plan)
    assert answer["decision"] == "refuse"
    assert answer["reason"] == "bad_request"
    assert said in answer["message"]
