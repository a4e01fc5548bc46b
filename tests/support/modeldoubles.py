"""Doubles of model servers: their control routes, as their sources have them, and a mind.

Each answers the same prompt in the same way as long as its weights are what they were. No GPU, no
model: what is tested is which routes are called, in which order, and what is made of the answers.
``python -m support.modeldoubles NAME PORT [FAULT …]`` is one of them as a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

Said = tuple[int, Any]
WELL: Said = (200, {})


class Double:
    """One server. ``faults`` are ways in which it does not do what it should."""

    name: ClassVar[str]

    def __init__(self, *faults: str) -> None:
        self.faults, self.log, self.asked = set(faults), list[str](), 0
        #: What lies on the GPU and must be there for an answer.
        self.there: set[str] = {"weights", "kv_cache"}
        self.weights = "right"

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        if method == "GET" and path == "/v1/who":
            return 200, {"pid": os.getpid(), "weights": self.weights, "log": self.log}
        if method == "GET" and path == "/v1/models":
            return 200, {"data": [{"id": "m"}, {"id": "lora"}]}
        if method == "POST" and path == "/v1/completions":
            self.asked += 1
            if "id" in query and (seen := os.environ.get("SEEN_BY_DOUBLES")):
                with open(seen, "a", encoding="ascii") as file:
                    file.write(f"{query['id']}\n")
            if self.there != {"weights", "kv_cache"}:
                return 500, {}
            text = self.weights if "unsteady" not in self.faults else str(self.asked)
            seeded = body["seed"] == 7 and body["temperature"] == 0 and body["model"] == "m"
            return 200, {"choices": [{"text": text if seeded else "anything"}]}
        return 404, {}


class Vllm(Double):
    name = "vllm"

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        match method, path:
            case "GET", "/is_sleeping":
                return 200, {"is_sleeping": not self.there}
            case "POST", "/sleep":
                if "stuck" in self.faults:
                    return 500, {"error": "no sleep"}
                if query["level"] == "2":
                    self.weights = "rubbish"
                self.there = set()
                return WELL
            case "POST", "/wake_up":
                self.there |= {query["tags"]} if "tags" in query else {"weights", "kv_cache"}
                if "forgets" in self.faults:
                    self.weights = "rubbish"
                return WELL
            case "POST", "/collective_rpc":
                assert self.there == {"weights"}, "its key-value cache comes after its weights"
                assert body == {"method": "reload_weights"}
                self.weights = "right"
                return WELL
            case "POST", "/reset_prefix_cache":
                return WELL
        return super().answer(method, path, query, body)


class Sglang(Double):
    name = "sglang"
    busy = 2  # it says so often that it still works

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        match method, path:
            case "GET", "/server_info":
                saver = "unable" not in self.faults
                return 200, {"enable_memory_saver": saver, "enable_weights_cpu_backup": saver}
            case "POST", "/flush_cache":
                self.busy -= 1
                return (200 if self.busy < 0 else 400), {}
            case "POST", "/release_memory_occupation":
                assert self.busy < 0, "its scheduler would end"
                self.there = set()
                return WELL
            case "POST", "/resume_memory_occupation":
                self.there = {"weights", "kv_cache"}
                if "forgets" in self.faults:
                    self.weights = "rubbish"
                return WELL
        return super().answer(method, path, query, body)


class Llama(Double):
    name = "llama.cpp"

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.stand = {"m": "loaded", "other": "unloaded"}

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        match method, path:
            case "GET", "/models":
                data = [{"id": k, "status": {"value": v}} for k, v in self.stand.items()]
                if self.stand.get("m") == "loading":
                    self.stand["m"] = "loaded"
                return 200, {"data": data}
            case "POST", "/models/unload":
                self.stand[body["model"]] = "unloaded"
                return WELL
            case "POST", "/models/load":
                self.stand[body["model"]] = "loading"
                return WELL
            case "POST", "/v1/completions":
                assert self.stand[body["model"]] == "loaded", "the question would load it"
        return super().answer(method, path, query, body)


class Transformers(Double):
    name = "transformers"

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.stand = {"m": "loaded", "other": "unloaded"}

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        match method, path:
            case "GET", "/openapi.json":
                routes = "/load_model /reset /v1/models /v1/responses /v1/chat/completions"
                return 200, {"paths": {route: {} for route in routes.split()}}
            case "GET", "/v1/models":
                data = [{"id": k, "status": {"value": v}} for k, v in self.stand.items()]
                return 200, {"data": data}
            case "POST", "/reset":
                self.stand = dict.fromkeys(self.stand, "unloaded")
                return WELL
            case "POST", "/load_model":
                ends = "error" if "stuck" in self.faults else "ready"
                if ends == "ready":
                    self.stand[body["model"]] = "loaded"
                events = [{"status": status, "model": "m"} for status in ("loading", ends)]
                return 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            case "POST", "/v1/completions":
                assert self.stand[body["model"]] == "loaded", "the question would load it"
        return super().answer(method, path, query, body)


class Ollama(Double):
    name = "ollama"

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.running = ["b", "a"]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Said:
        match method, path:
            case "GET", "/":
                return 200, "Ollama is running"
            case "GET", "/api/ps":
                return 200, {"models": [{"name": name} for name in self.running]}
            case "POST", "/api/generate":
                name = body["model"]
                if body.get("keep_alive") == 0:
                    self.running.remove(name)
                elif name not in self.running:
                    self.running.append(name)
                return WELL
            case "POST", "/v1/completions":
                assert body["model"] in self.running, "the question would load it"
                return 200, {"choices": [{"text": f"{body['model']} says {self.weights}"}]}
        return 404, {}


@contextlib.contextmanager
def listening(double: Double, port: int = 0) -> Iterator[int]:
    """The port at which it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            double.log.append(f"{self.command} {self.path}")
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            status, said = double.answer(self.command, url.path, query, body)
            data = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    made = {double.name: double for double in (Vllm, Sglang, Llama, Ollama, Transformers)}
    with listening(made[sys.argv[1]](*sys.argv[3:]), int(sys.argv[2])):
        threading.Event().wait()
