"""A model server gives its GPU to who waits while nobody asks it, and has it again for a request.

The verb, the server's process and the node manager are real. There is no driver: what frees the
memory here is the server's own sleep, or its end and another start.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, until
from support.node_fixtures import running_node
from support.served import CONFIG, RUNTIME, Served, leases, served

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.processes import start_time

GIB = 2**30
node = running_node("module", simulate="1x24GiB", config=CONFIG, people=("alice", "bob", "root"))


def test_a_server_sleeps_for_a_neighbour_and_wakes_for_a_request(
    node: RunningNode, tmp_path: Path
) -> None:
    with (
        served(node, tmp_path, "--rungs=restart", "--name=small") as it,
        node.client("bob") as bob,
        ThreadPoolExecutor() as others,
    ):
        first = it.get("/echo?id=1")
        assert first[0] == 200
        until(lambda: it.row().get("serving"), "the server is told of")
        assert it.row()["serving"]["address"] == f"http://127.0.0.1:{it.port}"
        assert it.get("/health")[1] == {"status": "awake"}
        lease = bob.wait(bob.ask(memory=4 * GIB))["lease"]
        it.until_state("parked")
        assert it.get("/health")[1] == {"status": "asleep"}
        asked: Future[tuple[int, Any]] = others.submit(it.get, "/echo?id=2")
        until(lambda: it.row()["serving"]["held"] == 1, "a request waits")
        assert it.get("/health")[1] == {"status": "waking"}
        assert not asked.done()
        bob.call(Method.RELEASE, lease=lease)
        assert asked.result(60)[0] == 200

        def told() -> bool:
            serving = it.row()["serving"]
            stands = [serving[name] for name in ("sleeps", "held", "requests")]
            return stands == [1, 0, 0] and serving["wake_seconds"] > 0

        until(told, "it is told that it slept")
        assert it.ids.read_text().split() == ["1", "2"]
        code, said = it.end()
        assert code == 0, said
        assert "It sleeps until somebody needs it." in said
    until(lambda: not leases(node), "its lease is given back")


def test_a_unix_socket_keeps_others_from_the_server_itself(
    node: RunningNode, tmp_path: Path
) -> None:
    with served(node, tmp_path, server=("support.modelserver", "{socket}")) as it:
        assert it.get("/echo")[0] == 200
        (place,) = RUNTIME.rglob(f"server-{it.port}.sock")
        assert place.parent.stat().st_mode & 0o777 == 0o700


def test_a_server_that_ends_ends_its_proxy_with_its_exit_code(
    node: RunningNode, tmp_path: Path
) -> None:
    with served(node, tmp_path) as it:
        pid = it.get("/echo")[1]["pid"]
        os.kill(pid, signal.SIGKILL)
        _out, said = it.process.communicate(timeout=60)
        assert it.process.returncode == 128 + signal.SIGKILL, said
        assert "has ended by itself, with exit code 137." in said
    until(lambda: not leases(node), "its lease is given back")


def test_a_successor_goes_on_with_the_server_of_a_killed_keeper(
    node: RunningNode, tmp_path: Path
) -> None:
    with served(node, tmp_path, "--share=group:lab") as it:
        pid, lease = it.get("/echo")[1]["pid"], it.row()["id"]
        with it.process as killed:  # what it said is not read: the server still has that pipe
            killed.kill()
        until(lambda: it.row()["pid"] == pid, "the server goes on with the lease")
        os.kill(pid, 0)
        it.process = it.start()
        it.until_health("awake")
        assert it.get("/echo")[1]["pid"] == pid
        assert it.row()["id"] == lease
        until(lambda: it.row().get("serving"), "the server is told of again")
        second = subprocess.run(it.command, env=it.environ, capture_output=True, text=True)
        assert second.returncode == 1
        assert f"keeps the server at port {it.port} already" in second.stderr
        code, said = it.end()
        assert (code, "what another one has left" in said) == (0, True)
    # It is nobody's child any more: init takes it when it comes to it.
    assert start_time(pid) is None, "the server has ended"
    until(lambda: not leases(node), "its lease is given back")


def test_a_successor_that_cannot_listen_leaves_the_server_to_the_next_one(
    node: RunningNode, tmp_path: Path
) -> None:
    with served(node, tmp_path) as it:
        pid = it.get("/echo")[1]["pid"]
        with it.process as killed:
            killed.kill()
        with socket.create_server(("127.0.0.1", it.port)):
            failed = subprocess.run(it.command, env=it.environ, capture_output=True, text=True)
        assert "cannot be listened at" in failed.stderr
        it.process = it.start()
        it.until_health("awake")
        assert it.get("/echo")[1]["pid"] == pid


def test_a_successor_finds_a_server_that_was_only_starting(
    node: RunningNode, tmp_path: Path
) -> None:
    it = Served(node, tmp_path, "--ready=/hang?id=asked")
    with it.process as killed:
        until(it.ids.exists, "its server was started, and does not say that it is ready")
        killed.kill()
    it.options = ()
    it.process = it.start()
    it.until_health("awake")
    assert it.get("/echo?id=1")[0] == 200
    code, said = it.end()
    assert (code, "what another one has left" in said) == (0, True)
    until(lambda: not leases(node), "its lease is given back")


def test_a_port_that_is_taken_is_said_before_anything_is_started(
    node: RunningNode, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        it = Served(node, tmp_path, f"--port={port}")
        _out, said = it.process.communicate(timeout=60)
    assert it.process.returncode == 1
    assert f"Port {port} of 127.0.0.1 cannot be listened at: " in said
    assert said.endswith("address already in use. Choose another with --port.\n"), said


def test_one_that_does_not_start_is_said_to_and_leaves_nothing(
    node: RunningNode, tmp_path: Path
) -> None:
    it = Served(node, tmp_path, "--ready=/hang", "--ready-within=1s")
    _out, said = it.process.communicate(timeout=60)
    assert it.process.returncode == 1
    assert "The server is not ready after 1 s: GET /hang" in said
    until(lambda: not leases(node), "its lease is given back")


@pytest.mark.parametrize("forgets", [False, True])
def test_one_that_sleeps_by_itself_wakes_as_what_it_was_or_is_started_anew(
    node: RunningNode, tmp_path: Path, forgets: bool
) -> None:
    double = ["support.modeldoubles", "vllm", "{port}", *(["forgets"] if forgets else [])]
    told = ("--adapter=vllm", "--rungs=sleep")
    lacks = Served(node, tmp_path, *told, server=double)
    _out, said = lacks.process.communicate(timeout=60)
    assert (lacks.process.returncode, "--enable-sleep-mode" in said) == (1, True)
    with (
        served(node, tmp_path, *told, server=[*double, "--enable-sleep-mode"]) as it,
        node.client("bob") as bob,
    ):
        assert it.get("/sleep")[0] == it.get("/is_sleeping")[0] == 404
        first = it.get("/v1/who")[1]
        lease = bob.wait(bob.ask(memory=4 * GIB))["lease"]
        it.until_state("parked")
        bob.call(Method.RELEASE, lease=lease)
        status, second = it.get("/v1/who")
        assert (status, second["weights"]) == (200, "right")
        assert (second["pid"] != first["pid"]) == forgets
        if not forgets:
            assert {"POST /sleep?level=1", "POST /wake_up"} <= {*second["log"]}
        assert it.row()["serving"]["model"] == "m"
        _code, said = it.end()
        assert ("does not answer as before it slept" in said) == forgets


def test_a_successor_wakes_one_that_sleeps_by_itself(node: RunningNode, tmp_path: Path) -> None:
    double = ["support.modeldoubles", "llama.cpp", "{port}"]
    told = ("--adapter=llama.cpp", "--rungs=sleep")
    with served(node, tmp_path, *told, server=double) as it, node.client("bob") as bob:
        first = it.get("/v1/who")[1]
        lease = bob.wait(bob.ask(memory=4 * GIB))["lease"]
        it.until_state("parked")
        with it.process as killed:
            killed.kill()
        it.process = it.start()
        it.until_health("asleep")
        bob.call(Method.RELEASE, lease=lease)
        status, second = it.get("/v1/who")
        assert (status, second["pid"]) == (200, first["pid"])
        assert "POST /models/load" in second["log"]
        _code, said = it.end()
        assert "does not answer as before it slept" not in said


@pytest.mark.story("jupyter_gpushare/serve/", "jupyter_gpushare/keeper/", "tests/serve/")
def test_a_model_behind_litserve_is_ended_for_a_neighbour_and_answers_as_before(
    node: RunningNode, tmp_path: Path
) -> None:
    server = ("support.litmodel", "{port}", str(tmp_path / "weights.pt"))
    with served(node, tmp_path, "--rungs=restart", server=server) as it, node.client("bob") as bob:

        def ask(_number: int = 0) -> tuple[tuple[float, ...], int]:
            status, said = it.call("POST", "/predict", {"input": [1, 2, 3, 4]})
            assert status == 200, said
            return tuple(said["output"]), said["pid"]

        before, worker = ask()
        lease = bob.wait(bob.ask(memory=4 * GIB))["lease"]
        it.until_state("parked")
        # Its parent leaves it behind, with the model and the port.
        assert start_time(worker) is None
        with ThreadPoolExecutor(8) as others:
            asked = others.map(ask, range(8))
            until(lambda: it.row()["serving"]["held"] == 8, "eight requests wait")
            bob.call(Method.RELEASE, lease=lease)
            answers = set(asked)
        ((after, woken),) = answers
        assert after == before
        assert woken != worker
    assert start_time(woken) is None
    until(lambda: not leases(node), "its lease is given back")
