"""Model servers that sleep for a neighbour, on a real GPU: the product's verb, and what it costs.

Two kinds of server: a plain one of torch, and ``transformers serve`` with a random model that is
made on the spot, where that is installed. Only the driver's checkpoint puts them to sleep here.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.bench import Bench, Nvml, Skipped, Wrong
from hardware.product import House, house, timed
from hardware.targets import Target, pinned_rates

HERE = Path(__file__).resolve().parent
#: GB of weights; what there is no time for is left out.
SIZES = (8, 20, 40)
#: Seconds that a notebook may wait for the GPU of the first of them, and how much longer than a
#: copy from pinned memory its waking may take.
WAITS_AIM, WAKES_AIM = 5.0, 2.0
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.idle_timeout = 0.5\nc.Policy.notify_before = 0.0\n"
    "c.Policy.parked_memory = 96 * 1024**3\nc.Policy.heartbeat_timeout = 600.0\n"
)
#: Makes a model of Llama's kind with random weights, and a tokenizer of a few words.
MODEL = """
import sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, device, width, layers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
words = ["<unk>", "<s>", "</s>", *map(str, range(997))]
words = {word: number for number, word in enumerate(words)}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
PreTrainedTokenizerFast(
    tokenizer_object=made,
    unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=template,
).save_pretrained(folder)
config = LlamaConfig(
    vocab_size=1000, hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers,
    num_attention_heads=max(4, width // 128), num_key_value_heads=4, max_position_embeddings=512,
)
torch.manual_seed(11)
torch.set_default_dtype(torch.bfloat16)
with torch.device(device):
    LlamaForCausalLM(config).save_pretrained(folder)
"""
#: What stands in a rehearsal for a server's memory: a child of it holds that on the pretend GPU.
BESIDE = '"$0" "$1" bindings 0 "$2" "$3" & shift 3; exec "$@"'


@dataclass
class Served:
    """A server behind ``jupyter gpushare serve``; ``ask`` is its seconds to answer, and that."""

    port: int
    process: subprocess.Popen[bytes]
    empty: int  # bytes that were used of the GPU before
    ask: Callable[[int], tuple[float, str]]


def servers(bench: Bench) -> None:
    """How soon a notebook has a server's GPU, and the server's next client its answer."""
    if importlib.util.find_spec("aiohttp") is None:
        raise Skipped("the verb serve needs aiohttp")
    unit = bench.orders.unit
    with tempfile.TemporaryDirectory(dir=_roomy(9 * unit)) as scratch:
        bench.note("pinned_copy_bytes_per_second", rates := _rates(bench))
        weights = Path(scratch, "weights")
        weights.write_bytes(secrets.token_bytes(2**20) * (unit // 2**20))
        with house(bench, CONFIG) as place, place.kernel("bob") as bob:
            for size in SIZES:
                if not bench.has_time(20 + 2.5 * size):
                    bench.append("left_out", size)
                    continue
                kind = "bindings" if bench.orders.rehearse else "torch"
                program = [os.fspath(HERE / "plainserver.py"), kind, "{port}"]
                command = [sys.executable, *program, os.fspath(weights), str(size)]
                with _serving(bench, place, size, command, _plain) as server:
                    _sleeps_and_wakes(bench, place, bob, server, ("plain", size), rates)
            _transformers(bench, place, bob, Path(scratch), rates)


def _transformers(
    bench: Bench, place: House, bob: Any, scratch: Path, rates: dict[str, float]
) -> None:
    size = SIZES[0]
    program = shutil.which("transformers", path=os.path.dirname(sys.executable))
    if program is None or importlib.util.find_spec("uvicorn") is None:
        bench.note("transformers", "`transformers serve` is not installed")
        return
    if not bench.has_time(130):
        bench.append("left_out", "transformers")
        return
    folder, began = scratch / "model", time.monotonic()
    # 0.4 GB for each layer of bfloat16; a rehearsal's GPU is a pretended one beside it.
    shape = ("cpu", "64", "2") if bench.orders.rehearse else ("cuda", "4096", str(5 * size // 2))
    subprocess.run([sys.executable, "-c", MODEL, os.fspath(folder), *shape], check=True)
    bench.note("making the model", time.monotonic() - began)
    command = [program, "serve", os.fspath(folder), "--port", "{port}", "--host", "127.0.0.1"]
    if bench.orders.rehearse:
        beside = [os.fspath(HERE / "plainserver.py"), os.fspath(scratch / "weights"), str(size)]
        command = ["sh", "-c", BESIDE, sys.executable, *beside, *command, "--device", "cpu"]

    def ask(port: int) -> tuple[float, str]:
        prompt = {"role": "user", "content": "1 2 3"}
        asked = {"model": os.fspath(folder), "messages": [prompt], "max_tokens": 4}
        return _ask(port, "/v1/chat/completions", {**asked, "temperature": 0, "stream": True})

    with _serving(bench, place, size, command, ask) as server:
        _sleeps_and_wakes(bench, place, bob, server, ("transformers", size), rates)


def _sleeps_and_wakes(
    bench: Bench,
    place: House,
    bob: Any,
    server: Served,
    what: tuple[str, int],
    rates: dict[str, float],
) -> None:
    """Some rounds; the first pays for the pinned memory of its size. Raises :class:`Wrong`."""
    (kind, size), unit, nvml = what, bench.orders.unit, Nvml()
    awake, before = server.ask(server.port)
    for repeat in range(bench.orders.repeats if size == SIZES[0] else 1):
        if not bench.has_time(10 + size):
            bench.append("left_out", f"{kind} {size} repeat {repeat}")
            break
        place.until(
            lambda: (place.lease("alice")["gpus"][0]["measured"] or 0) >= size * unit,
            "its memory is measured",
        )
        time.sleep(2.0)  # it is idle by then
        waited, _ = timed(bob, "%gpushare request")
        lease = place.lease("alice")
        left = nvml.used() - server.empty
        if (lease["state"], lease.get("rung")) != ("parked", "driver"):
            raise Wrong(f"bob has the GPU, and the server's lease is {lease}")
        timed(bob, "%gpushare release")
        woken, after = server.ask(server.port)
        waking = _waking(place, repeat + 1)
        copied = lease["parked_memory"]
        copy = copied / rates["to_gpu"]
        bench.append(
            "rounds",
            {
                "server": kind,
                "gb": size,
                "repeat": repeat,
                "a_notebook_waits": waited,
                "memory_away": _moved(place, "parked"),
                "memory_back": _moved(place, "restored"),
                "bytes_asleep": copied,
                "left_on_gpu": left,
                "first_answer_after_waking": woken,
                "waking": waking,
                "an_answer_when_awake": awake,
                "a_pinned_copy": copy,
            },
        )
        if after != before:
            raise Wrong(f"it answers {after[:300]} after waking, {before[:300]} before")
    rounds = [one for one in bench.notes.get("rounds", ()) if (one["server"], one["gb"]) == what]
    if not rounds:
        return
    name = f"the {kind} server of {size} GB"
    if size == SIZES[0]:
        waits = [one["a_notebook_waits"] for one in rounds]
        bench.aim(f"a notebook waits for the GPU of {name}, seconds", max(waits), most=WAITS_AIM)
    ratios = [one["waking"] / one["a_pinned_copy"] for one in rounds]
    bench.aim(f"{name} wakes, in times of a pinned copy", max(ratios), most=WAKES_AIM)


def _moved(place: House, event: str) -> float:
    """Seconds that the driver took the last time, by the node manager's log."""
    told = rf"lease\.{event} .*environment=alice .*seconds=(\S+)"
    return float(re.findall(told, place.node.story())[-1])


def _waking(place: House, sleeps: int) -> float:
    """Seconds of its last waking, once that is told."""
    place.until(
        lambda: (now := place.lease("alice")["serving"])["sleeps"] == sleeps and not now["held"],
        "its waking is told",
    )
    return float(place.lease("alice")["serving"]["wake_seconds"])


@contextmanager
def _serving(
    bench: Bench,
    place: House,
    size: int,
    command: Sequence[str],
    ask: Callable[[int], tuple[float, str]],
) -> Iterator[Served]:
    """The command's server behind the verb. What starting it takes is noted."""
    unit = bench.orders.unit
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    options = ["--no-token", f"--port={port}", "--idle=1s", "--rungs=driver", "--hold=300s"]
    words = ["serve", *options, f"--memory={(size + 4) * unit // 2**20}MiB", "--", *command]
    empty, began = Nvml().used(), time.monotonic()
    with (place.folder / f"server-{port}.log").open("w+b") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpushare.cli", *words],
            env=place.environ("alice"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            server = Served(port, process, empty, ask)
            place.until(lambda: _is_awake(server), "the server is ready")
            ready = time.monotonic() - began
            first, said = ask(port)
            seconds = {"gb": size, "ready": ready, "first_answer": first}
            bench.append("starting_anew", {"command": command, **seconds, "said": said[:200]})
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            log.seek(0)
            bench.append("servers_said", log.read()[-2000:].decode("utf-8", "replace"))


def _is_awake(server: Served) -> bool:
    if server.process.poll() is not None:
        raise Wrong(f"the server has ended with {server.process.returncode}")
    try:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        with closing(line):
            line.request("GET", "/health")
            return bool(json.loads(line.getresponse().read())["status"] == "awake")
    except (OSError, ValueError, KeyError):
        return False


def _plain(port: int) -> tuple[float, str]:
    return _ask(port, "/answer", {})


def _ask(port: int, path: str, body: dict[str, Any]) -> tuple[float, str]:
    """Seconds until the first of its answer is there, and all of that. Raises :class:`Wrong`."""
    said, first = "", None
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with closing(line):
        began = time.monotonic()
        line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        for part in answer:
            said += _said(part.decode().strip())
            if said and first is None:
                first = time.monotonic() - began
    if answer.status != 200 or first is None:
        raise Wrong(f"{path} said {answer.status}: {said[:500]}")
    return first, said


def _said(line: str) -> str:
    """What a line of an answer says; of a stream's events, without ids and times."""
    if not line.startswith("data: {"):
        return "" if line.startswith("data:") else line
    choices = json.loads(line[6:]).get("choices", ())
    return "".join(str(choice.get("delta", {}).get("content") or "") for choice in choices)


def _rates(bench: Bench) -> dict[str, float]:
    """Measured by another process: what has used CUDA keeps some memory."""
    if bench.orders.rehearse:
        import torch

        return pinned_rates(torch, "cpu", bench.orders.unit)
    with Target("torch") as target:
        return dict(target.call("pinned", bench.orders.unit))


def _roomy(size: int) -> str | None:
    """A folder in memory, if so many bytes have room there."""
    place = "/dev/shm"
    return place if os.path.isdir(place) and shutil.disk_usage(place).free > 2 * size else None
