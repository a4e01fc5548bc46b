"""What runs in ``make demo-serve``: a small model server, and what the cells of notebooks say.

``python serve_programs.py PORT`` is the server. Its weights are on the GPU, and nowhere else.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

MIB: Final = 2**20
MODEL: Final = "small"
WEIGHTS: Final = 1024 * MIB
#: Seconds for which the GPU computes for one answer.
ANSWER: Final = 0.15
WORDS: Final = 12
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz "


class Device:
    """Memory on the GPU that the process has; from any thread."""

    def __init__(self, size: int) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._must(driver.cuInit(0))
        self._context = self._must(driver.cuDevicePrimaryCtxRetain(0))
        self._here()
        self._block = self._must(driver.cuMemAlloc(size))

    def _must(self, answer: Any) -> Any:
        if int(answer[0]):
            raise RuntimeError(f"the driver said {answer[0].name}")
        return answer[1] if len(answer) == 2 else None

    def _here(self) -> None:
        self._must(self._driver.cuCtxSetCurrent(self._context))

    def write(self, data: bytes) -> None:
        self._here()
        self._must(self._driver.cuMemcpyHtoD(self._block, data, len(data)))

    def read(self, size: int) -> bytes:
        self._here()
        data = bytearray(size)
        place = ctypes.addressof((ctypes.c_char * size).from_buffer(data))
        self._must(self._driver.cuMemcpyDtoH(place, self._block, size))
        return bytes(data)


def weights() -> bytes:
    """Those of the model."""
    return random.Random(7).randbytes(4096)


def answer(table: bytes, prompt: str) -> str:
    """What a model with these weights says; every weight counts."""
    state, said = sum(table) + sum(prompt.encode()), ""
    for number in range(WORDS * 6):
        state = (state * 31 + table[(state + number) % len(table)]) % 2**31
        said += LETTERS[state % len(LETTERS)]
    return said


def serve(port: int) -> None:
    """Answer until somebody ends us."""
    device, one_at_a_time = Device(WEIGHTS), threading.Lock()
    device.write(weights())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = {"data": [{"id": MODEL, "object": "model"}], "object": "list"}
            self._say(known if self.path == "/v1/models" else {"status": "ok"})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with one_at_a_time:
                began = time.time()
                time.sleep(ANSWER)  # the GPU computes
                text = answer(device.read(4096), asked["prompt"])
                spent = [began, time.time()]
            choice = {"index": 0, "text": text, "finish_reason": "stop"}
            whole = {"object": "text_completion", "model": MODEL, "choices": [choice]}
            self._say({**whole, "computed": spent})

        def _say(self, what: Any) -> None:
            data = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


#: A notebook's first cell, after it has asked for a GPU; its variables lie there.
BEGIN: Final = """
import json, sys, time
sys.path.insert(0, {folder!r})
from serve_programs import Device
began = time.time()
device = Device({size})
device.write(({start}).to_bytes(8, "little"))
print(json.dumps([began, time.time(), {start}]))
"""
#: And each other one.
GO_ON: Final = """
began = time.time()
time.sleep({seconds})  # the GPU computes
total = (int.from_bytes(device.read(8), "little") * 3 + {step}) % 2**61
device.write(total.to_bytes(8, "little"))
print(json.dumps([began, time.time(), total]))
"""

if __name__ == "__main__":
    serve(int(sys.argv[1]))
