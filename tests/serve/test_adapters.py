"""A server is put to sleep by the routes that it has for that, which callers cannot reach.

The servers are doubles that know those routes: a real one is hundreds of megabytes, or needs a GPU.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from support.modeldoubles import Double, Llama, Ollama, Sglang, Transformers, Vllm, listening
from support.node import needs_root

from jupyter_gpushare.client.adapters.parkers.base import ParkedDamaged
from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.serve import adapters, sleeping
from jupyter_gpushare.serve.adapters.base import Adapter
from jupyter_gpushare.serve.sleeping import OwnSleep, models
from jupyter_gpushare.serve.upstream import (
    Answer,
    Control,
    ControlFailed,
    address_of,
    key_in,
    wait_until_ready,
)

GIB = 2**30
DOUBLES = {
    "vllm": Vllm,
    "vllm-discard": Vllm,
    "sglang": Sglang,
    "llama.cpp": Llama,
    "ollama": Ollama,
    "transformers": Transformers,
}


class Kept(OwnSleep):
    """A server's own sleep, and what was said of it."""

    def __init__(self, name: str, port: int) -> None:
        self.port, self.said, self.damages = port, list[str](), 0
        adapter, control = adapters.named(name), Control(port)
        super().__init__(adapter, control, lambda: GIB, self.damaged, self.said.append)

    def damaged(self) -> None:
        self.damages += 1


@contextmanager
def sleeper(name: str, *faults: str) -> Iterator[tuple[Kept, Double]]:
    double = DOUBLES[name](*faults)
    with listening(double) as port:
        yield Kept(name, port), double


@pytest.mark.parametrize("name", DOUBLES)
def test_it_sleeps_and_wakes_as_what_it_was(name: str) -> None:
    with sleeper(name) as (own, double):
        for _ in range(2):
            assert own.bytes_to_park() == GIB
            assert own.park() == (GIB if own.copies else 0)
            assert own.is_parked
            assert own.answer
            slept = double.log[-1]
            own.resume()
            assert not own.is_parked
        assert own.damages == 0
        assert own.said == []
        assert slept in {
            *("POST /sleep?level=1", "POST /sleep?level=2", "POST /release_memory_occupation"),
            *("GET /models", "GET /api/ps", "GET /v1/models"),
        }
        if isinstance(double, Ollama):
            assert sorted(double.running) == ["a", "b"]
        if isinstance(double, Llama | Transformers):
            assert double.stand == {"m": "loaded", "other": "unloaded"}


def test_a_successor_loads_what_was_loaded_and_asks_the_same_one() -> None:
    with sleeper("ollama") as (own, double):
        assert isinstance(double, Ollama)
        double.running = ["b", "a"]
        own.park()
        successor = Kept("ollama", own.port)
        successor.is_parked, successor.answer, successor.slept = True, own.answer, own.slept
        double.running = ["c"]  # somebody else was let in, before it
        successor.resume()
        assert (double.running, successor.damages) == (["c", "b", "a"], 0)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_one_that_wakes_as_something_else_must_be_started_anew(name: str) -> None:
    with sleeper(name, "forgets") as (own, _double):
        own.park()
        with pytest.raises(ParkedDamaged, match="does not answer as before"):
            own.resume()
        assert (own.is_parked, own.damages) == (False, 1)


def test_one_that_never_says_the_same_is_not_compared() -> None:
    with sleeper("vllm", "unsteady") as (own, double):
        own.park()
        own.resume()
        own.park()
        own.resume()
        assert (own.damages, len(own.said), double.asked) == (0, 1, 2)


def test_what_fails_is_undone_and_said() -> None:
    with sleeper("vllm", "stuck") as (own, double):
        with pytest.raises(ControlFailed, match=r"/sleep.* said 500: .*no sleep"):
            own.park()
        assert not own.is_parked
        assert double.log[-1] == "POST /wake_up"
    with pytest.raises(ControlFailed):
        own.park()  # nobody is there
    assert not own.is_parked
    with sleeper("vllm") as (own, double):
        own.park()
    with pytest.raises(ControlFailed):
        own.resume()
    assert own.is_parked


def test_one_that_does_not_load_its_model_again_is_not_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sleeping, "_TRIES", 3)
    with sleeper("transformers", "stuck") as (own, _double):
        own.park()
        with pytest.raises(ControlFailed, match="has not loaded m again"):
            own.resume()
        assert own.is_parked


def test_one_that_cannot_be_woken_again_stays_parked() -> None:
    with sleeper("vllm", "stuck") as (own, double):
        wakes = double.answer
        double.answer = lambda method, path, query, body: (  # type: ignore[method-assign]
            (500, {}) if path == "/wake_up" else wakes(method, path, query, body)
        )
        with pytest.raises(ControlFailed):
            own.park()
        assert own.is_parked


def test_nothing_is_loaded_only_to_be_asked() -> None:
    for name in ("ollama", "llama.cpp", "transformers"):
        with sleeper(name) as (own, double):
            if isinstance(double, Ollama):
                double.running = []
            elif isinstance(double, Llama | Transformers):
                double.stand = {"m": "unloaded"}
            own.park()
            own.resume()
            assert own.answer is None
            assert not [line for line in double.log if "load" in line or "generate" in line]


# -- which one it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name", "lacks"),
    [
        ("vllm serve a/model --enable-sleep-mode", "vllm", ""),
        ("vllm serve a/model", "vllm", "--enable-sleep-mode"),
        ("python -m vllm.entrypoints.openai.api_server", "vllm", "--enable-sleep-mode"),
        ("python3 -m sglang.launch_server --enable-memory-saver", "sglang", "weights-cpu-backup"),
        ("llama-server --models-dir models", "llama.cpp", ""),
        ("/opt/ollama serve", "ollama", ""),
        ("transformers serve a/model", "transformers", ""),
        ("transformers serve --continuous-batching", "transformers", "--continuous-batching"),
        ("transformers chat", "generic", ""),
        ("llama-server -m a.gguf", "llama.cpp", "with -m:"),
        ("python serve.py --with vllm", "generic", ""),
    ],
)
def test_a_command_says_what_it_starts_and_what_it_lacks(
    command: str, name: str, lacks: str
) -> None:
    found = adapters.by_command(shlex.split(command))
    assert found.name == name
    said = found.lacks(shlex.split(command))
    assert lacks in said
    assert bool(said) == bool(lacks)


@pytest.mark.parametrize("double", [Vllm(), Sglang(), Llama(), Ollama(), Transformers(), Double()])
def test_an_answer_says_what_it_is(double: Double) -> None:
    with listening(double) as port:
        assert adapters.by_answers(Control(port)).name == getattr(double, "name", "generic")
        double.faults.add("unable")
        if isinstance(double, Sglang):
            assert adapters.by_answers(Control(port)).name == "generic"


@pytest.mark.parametrize(
    "document", ['{"data": 5}', '{"data": [{"id": 1}], "choices": 7}', "[" * 99999]
)
def test_nonsense_of_a_server_keeps_it_awake(
    monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    monkeypatch.setattr(Control, "call", lambda *_asked, **_more: Answer(200, document))
    for name in ("vllm", "transformers"):
        kept = Kept(name, 1)
        if document[0] == "[" and name == "vllm":
            assert kept.park() == GIB, "it only has no models"
        else:
            with pytest.raises(ControlFailed):
                kept.park()


def test_one_that_hangs_up_is_nothing_special() -> None:
    assert adapters.by_answers(Control(1)).name == "generic"


@needs_root
def test_nothing_is_sent_to_another_user_who_listens_at_the_server_s_port() -> None:
    with socket.socket() as his:
        os.fchown(his.fileno(), 65534, -1)
        his.bind(("127.0.0.1", 0))
        port = his.getsockname()[1]
        his.listen()
        with pytest.raises(GpuShareError, match=f"Port {port}.* user 65534 "):
            wait_until_ready(Control(port, key="secret"), "/health", 60.0, lambda: False)
        his.setblocking(False)
        with pytest.raises(BlockingIOError):
            his.accept()


def test_packages_of_others_bring_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("theirs", "theirs:ADAPTER", adapters.GROUP)])
    theirs = Adapter(name="theirs", program="their-server")
    monkeypatch.setattr(EntryPoint, "load", lambda self: theirs)
    monkeypatch.setattr(adapters, "entry_points", lambda group: points.select(group=group))
    assert adapters.named("theirs") is adapters.by_command(["their-server"]) is theirs
    with pytest.raises(GpuShareError, match=r"no adapter 'their'.*did you mean.*theirs"):
        adapters.named("their")


def test_an_adapter_is_a_short_file_that_says_how_it_was_tried() -> None:
    folder = Path(adapters.__path__[0])
    names = {module.name for module in pkgutil.iter_modules(adapters.__path__)} - {"base"}
    assert names == {"vllm", "sglang", "llamacpp", "ollama", "transformers"}
    for name in names:
        text = (folder / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 100
        says = ast.get_docstring(ast.parse(text)) or ""
        made = [one for one in vars(getattr(adapters, name)).values() if isinstance(one, Adapter)]
        tried = [one.tried for one in made]
        assert all(one in adapters.OWN for one in made)
        assert ("not run" in says) == all(said.startswith("read only") for said in tried)
        assert ("Run against" in says) == all(said.startswith("run against") for said in tried)


# -- what callers may ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "opened", "closed"),
    [
        (
            "vllm",
            "POST /v1/chat/completions, GET /v1/models, GET /health, POST /tokenize, GET /metrics",
            "POST /sleep, POST /wake_up, POST /collective_rpc, GET /is_sleeping, POST /pause, "
            "POST /reset_prefix_cache, POST /update_weights, GET /server_info, POST /health, "
            "POST /v1/load_lora_adapter, POST /v1/load_lora_adapter/",
        ),
        (
            "sglang",
            "POST /v1/completions, POST /generate, GET /health_generate, GET /",
            "POST /release_memory_occupation, GET /resume_memory_occupation, POST /flush_cache, "
            "POST /update_weights_from_disk, POST /set_internal_state, GET /server_info",
        ),
        (
            "llama.cpp",
            "POST /v1/chat/completions, GET /models, POST /completion, GET /slots",
            "POST /models/unload, POST /models/load, POST /models, DELETE /models, GET /models/sse,"
            " POST /slots, POST /lora-adapters, POST /props, GET /cors-proxy, POST /tools",
        ),
        (
            "ollama",
            "POST /api/chat, POST /v1/chat/completions, GET /api/tags, GET /",
            "POST /api/pull, DELETE /api/delete, POST /api/create, POST /api/push, POST /api/tags",
        ),
        (
            "transformers",
            "POST /v1/completions, POST /v1/audio/transcriptions, GET /v1/models, GET /docs",
            "POST /load_model, POST /reset, POST /reset/, POST /health",
        ),
        ("generic", "POST /sleep, GET /anything", ""),
    ],
)
def test_control_routes_are_not_open_to_callers(name: str, opened: str, closed: str) -> None:
    adapter = adapters.named(name)
    for word, expected in ((opened, True), (closed, False)):
        for route in filter(None, word.split(",")):
            method, path = route.split()
            assert adapter.opens(method, path) is expected, route


def test_a_key_in_the_command_is_the_servers() -> None:
    assert key_in(["vllm", "--api-key", "k"]) == key_in(["vllm", "--api-key=k"]) == "k"
    assert key_in(["vllm", "--api-key"]) == key_in(["vllm"]) == ""


def test_an_address_is_one_that_can_be_called() -> None:
    hosts = ("127.0.0.1", "0.0.0.0", "::", "fd00::1", "gpu.lab")
    named = [address_of(host, 8000).removeprefix("http://") for host in hosts]
    assert named[:2] == ["127.0.0.1:8000"] * 2
    assert named[2:] == ["[::1]:8000", "[fd00::1]:8000", "gpu.lab:8000"]


def test_models_are_listed_if_it_lists_them() -> None:
    with listening(Vllm()) as port:
        assert models(Control(port)) == ["m", "lora"]
    with listening(Ollama()) as port:
        assert models(Control(port)) == []
