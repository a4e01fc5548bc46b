"""What servers really send is what the OpenAPI document says, no more and no less."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.jupyter import Home, Server, wait_for
from support.node import GIB, Puppet, RunningNode, until
from support.nvml import NvmlWorld

from jupyter_gpushare.link import openapi
from jupyter_gpushare.policy.words.model import EndReason
from jupyter_gpushare.protocol.messages import Method

DOCUMENT = openapi.document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
# The numbers of a refusal differ by its reason.
OPEN = {"Error"}


def closed(schema: Any) -> Any:
    """``schema`` with every object in it describing all of its keys."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object":
        result.setdefault("additionalProperties", False)
    return result


CLOSED = {name: schema if name in OPEN else closed(schema) for name, schema in SCHEMAS.items()}


def hold(name: str, document: object) -> Any:
    """Fail unless ``document`` is exactly what the component ``name`` describes; returns it."""
    described = {"components": {"schemas": CLOSED}, "$ref": f"#/components/schemas/{name}"}
    errors = sorted(Draft202012Validator(described).iter_errors(document), key=str)
    assert not errors, f"{name}: " + "; ".join(f"{e.json_path}: {e.message}" for e in errors)
    return document


def operation_of(path: str, verb: str) -> tuple[str, str]:
    """The template of ``path`` (as it is sent) and the component of its 200."""
    plain = "/gpushare/api/" + path.split("?")[0]
    for template, operations in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), plain) and verb in operations:
            content = operations[verb]["responses"]["200"]["content"]
            reference: str = content["application/json"]["schema"]["$ref"]
            return template, reference.rsplit("/", 1)[1]
    raise AssertionError(f"{verb} {path} is not described")


def test_every_word_for_an_end_is_described() -> None:
    row = SCHEMAS["History"]["properties"]["events"]["items"]["properties"]["reason"]
    assert row == SCHEMAS["Lease"]["properties"]["reason"]
    for reason in EndReason:
        assert re.search(rf"\b{reason.value}\b", row["description"]), reason


# -- what is sent ------------------------------------------------------------------------------


@dataclass
class Crowd:
    """A node manager over the NVML stub, with a server of alice's and one of an admin's."""

    node: RunningNode
    world: NvmlWorld
    gpus: list[str]
    alice: Server
    root: Server


@pytest.fixture
def crowd(home: Home, nvml_world: NvmlWorld) -> Iterator[Crowd]:
    """Two GPUs, three people, and a person's kinds of trouble."""
    gpus = [nvml_world.add_gpu(memory=24 * GIB) for _ in range(2)]
    nvml_world.set_utilisation(gpus[0], 41)
    config = "c.Policy.max_tasks_per_gpu = 2\nc.NodeManagerApp.measure_interval = 0.1\n"
    config += "c.Policy.heartbeat_timeout = 600.0\n"
    with RunningNode(
        home.path,
        simulate="",
        config=config,
        people=("alice", "bob", "root"),
        environ=nvml_world.environ(),
    ) as node:
        alice, root = (home.serve_as(name, node) for name in ("alice", "root"))
        yield Crowd(node, nvml_world, gpus, alice, root)


@contextmanager
def busy(crowd: Crowd) -> Iterator[dict[str, str]]:
    """Leases in several states, a queue, a squatter and one over its limit; lease ids by name."""
    node, (first, second) = crowd.node, crowd.gpus
    with (
        node.client("alice") as alice,
        Puppet() as puppet,
        puppet.client(node.socket, token="bob") as bob,
        node.client("root") as root,
    ):
        kernel = alice.request(kernel_id="kernel-1", name="n.ipynb", memory=4 * GIB)
        asked = {"task": {"name": "demo", "kind": "server"}, "memory": 4 * GIB, "keeper": True}
        batch = alice.wait(alice.send(Method.REQUEST, **asked, priority_class="batch"))
        serves = {"address": "http://127.0.0.1:8000", "requests": 1, "token": "sk-1"}
        alice.call(Method.SERVING, lease=batch["lease"], **serves)
        alice.call(Method.ACTIVITY, lease=batch["lease"], state="idle")
        whole = bob.request(name="secret", gpus=1, memory=18 * GIB)
        waiting = alice.ask(name="late", gpus=2, priority_class="batch", memory=23 * GIB)
        bob.ask(name="later", gpus=2, memory=22 * GIB)
        with crowd.world.together():
            # This very process is alice's tasks: far over what their leases allow.
            crowd.world.add_process(kernel["gpus"][0]["uuid"], os.getpid(), 12 * GIB)
            other = second if kernel["gpus"][0]["uuid"] == first else first
            crowd.world.add_process(other, os.getppid(), 2 * GIB)  # no task's child
        root.call(Method.QUOTA_SET, environment="carol", gpus=1, memory=8 * GIB, weight=2.0)

        def trouble() -> bool:
            status = root.call(Method.STATUS)
            kinds = {flag["kind"] for gpu in status["gpus"] for flag in gpu["squatters"]}
            return kinds == {"squatter", "over_limit"} and len(status["queue"]) == 2

        until(trouble, "a squatter, one over its limit, and two who wait")
        assert not alice.answered(waiting)
        yield {
            "kernel": kernel["lease"],
            "batch": batch["lease"],
            "bobs": whole["lease"],
        }


def test_rest_answers_are_described(crowd: Crowd) -> None:
    asked: set[tuple[str, str]] = set()

    def ask(server: Server, verb: str, path: str, body: object = None, code: int = 200) -> Any:
        answer = server.api.request(verb, f"gpushare/api/{path}", json=body)
        assert answer.status_code == code, (path, answer.text)
        if code != 200:
            return hold("Error", answer.json())
        template, name = operation_of(path, verb.lower())
        asked.add((template, verb.lower()))
        return hold(name, answer.json())

    with busy(crowd) as leases:
        for server in (crowd.alice, crowd.root):
            for path in (
                *("status", "leases", "quota", "usage", "usage?since=60", "readings", "kernels"),
                "servers",
                *("usage/daily?days=3&utc_offset=-3600", "readings?since=60"),
                *("history?limit=1000", "history?environment=bob", "usage?environment=bob"),
                "usage/daily?environment=bob",
            ):
                ask(server, "GET", path)
        for path in ("quotas", "quotas/alice"):
            ask(crowd.alice, "GET", path, code=403)
        listed = ask(crowd.root, "GET", "quotas")["quotas"]
        assert {"alice", "bob", "carol"} <= {row["environment"] for row in listed}
        name, dave = "d\u00e5ve/second server", "quotas/d%C3%A5ve%2Fsecond%20server"
        for wish, hours in (({"memory": "8GiB", "gpu_hours": 5}, 5), ({"gpu_hours": None}, None)):
            put = ask(crowd.root, "PUT", dave, {"gpus": 1, "weight": 3, **wish})
            assert all(name in warning for warning in put.pop("warnings"))
            assert put == ask(crowd.root, "GET", dave)
            assert (put["environment"], put["source"]) == (name, "override")
            assert put["memory"] == 8 * GIB, "left out: as it is"
            assert (put["budget"] and put["budget"]["hours"]) == hours
        ask(crowd.root, "DELETE", dave)
        ask(crowd.root, "PUT", dave, {"gpus": -1}, code=400)
        ask(crowd.alice, "DELETE", "leases/no-such", code=404)
        ask(crowd.alice, "POST", f"leases/{leases['kernel']}/pin", {"seconds": 60})
        ask(crowd.alice, "POST", f"leases/{leases['kernel']}/pin", {"seconds": -1}, code=400)
        ask(crowd.alice, "POST", "leases/no-such/pin", {}, code=404)
        ask(crowd.alice, "DELETE", f"leases/{leases['batch']}")
        gpu = ask(crowd.root, "GET", "status")["gpus"][0]["uuid"]
        ask(crowd.root, "POST", f"gpus/{gpu}/drain", {"reason": "A demo."})
        assert ask(crowd.alice, "GET", "status")["gpus"][0]["out_of_service"]["by"] is None
        ask(crowd.root, "POST", f"gpus/{gpu}/resume")
        ask(crowd.root, "POST", f"leases/{leases['bobs']}/revoke", {"reason": "A demo."})
        kinds = {row["kind"] for row in ask(crowd.root, "GET", "history?limit=1000")["events"]}
        assert {"LeaseQueued", "LeaseGranted", "LeaseEnded", "QuotaChanged"} <= kinds
        # The lease that ended drains while its process keeps memory.
        for server in (crowd.alice, crowd.root):
            ask(server, "GET", "status")
            with closing(server.websocket("gpushare/api/live")) as live:
                assert hold("Live", json.loads(live.recv()))["type"] == "status"
    every = {
        (template, verb)
        for template, operations in DOCUMENT["paths"].items()
        for verb in operations
        if verb != "parameters"
    }
    # It needs a second host: tests/starts has one.
    elsewhere = {("/gpushare/api/kernels/{kernel}/host", "post")}
    assert asked == every - elsewhere, "an operation was not tried"
    crowd.node.terminate()
    for server in (crowd.alice, crowd.root):
        wait_for(lambda s=server: s.api.get("gpushare/api/status").status_code == 503, 10, "503")
        for path in ("status", "readings", "usage/daily"):
            ask(server, "GET", path, code=503)
        with closing(server.websocket("gpushare/api/live")) as live:
            assert hold("Live", json.loads(live.recv()))["type"] == "unavailable"
