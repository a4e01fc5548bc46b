"""What runs as another OS user: attackers and the honest one. Standard library only.

``python -I -S people.py SOCKET UID NAME SECONDS``; prints one JSON object when it ends. It is
read by the starting user and becomes the other one, who may not be allowed to read it. Those who
use GPUs are in the control group ``GROUP`` of the environment; no import hook is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

TASK = {"name": "t", "kind": "process"}
HELLO = {"protocol": 1, "client": {"name": "hostile", "version": "0"}}


def line(number: int, method: str, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


def connect(path: str) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.settimeout(socket.getdefaulttimeout() or 30.0)
    wire.connect(path)
    return wire


class Lines:
    """A blocking client, as plain as can be."""

    def __init__(self, path: str) -> None:
        self.wire = connect(path)
        self.rest = b""
        self.number = 0
        self.call("hello", **HELLO)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.wire.sendall(line(self.number, method, **params))
        while True:
            message = self.next()
            if message.get("id") == self.number:
                return message

    def next(self) -> dict[str, Any]:
        while b"\n" not in self.rest:
            data = self.wire.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self.rest += data
        one, _, self.rest = self.rest.partition(b"\n")
        return json.loads(one)


def honest(path: str, seconds: float) -> dict[str, Any]:
    """Requests and releases some twenty times a second; when each request came, and its grant."""
    client, calls, refused = Lines(path), [], []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        begun = time.monotonic()
        answer = client.call("request", request_id=f"h{number}", task=TASK, gpus=1)
        if "error" in answer:
            refused.append(answer["error"]["message"])
            continue
        calls.append((begun, time.monotonic()))
        client.call("release", lease=answer["result"]["lease"])
        time.sleep(0.05)
    return {"calls": calls, "refused": refused}


def burn(path: str, seconds: float) -> dict[str, Any]:
    """Take as much of the processor as an attacker, and call nobody: what is compared with."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
    return {"number": number}


def pour(
    path: str,
    seconds: float,
    connections: int,
    says: Callable[[int], Iterator[bytes]],
    *,
    first: bytes | None = None,
    reads: bool = True,
) -> dict[str, Any]:
    """Say on many connections ``first`` (hello), then what each of ``says`` gives, as fast as it is
    taken.

    An empty piece sends at once what came before it. ``answers`` has when how many came.
    """
    hello = line(1, "hello", **HELLO) if first is None else first
    chooser = selectors.DefaultSelector()
    counted = {"sent": 0, "read": 0, "closed": 0}
    answers: list[tuple[float, int]] = []

    def start(number: int) -> None:
        try:
            wire = connect(path)
        except OSError:
            counted["closed"] += 1
            return
        wire.setblocking(False)
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
        chooser.register(wire, events, (number, says(number), bytearray(hello)))

    for number in range(connections):
        start(number)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, events in chooser.select(0.1):
            wire, (number, more, rest) = key.fileobj, key.data
            assert isinstance(wire, socket.socket)
            try:
                if events & selectors.EVENT_READ:
                    data = wire.recv(1 << 16)
                    counted["read"] += len(data)
                    answers.append((time.monotonic(), data.count(b"\n")))
                    if not data:
                        raise ConnectionError("closed")
                if events & selectors.EVENT_WRITE:
                    while len(rest) < 1 << 16 and (piece := next(more)):
                        rest += piece
                    if rest:
                        sent = wire.send(rest)
                        counted["sent"] += sent
                        del rest[:sent]
            except BlockingIOError:
                continue
            except OSError:
                counted["closed"] += 1
                chooser.unregister(wire)
                wire.close()
                start(number)
    return {**counted, "answers": answers}


def over_and_over(*lines: bytes) -> Callable[[int], Iterator[bytes]]:
    return lambda number: itertools.cycle(lines)


def leases(number: int) -> Iterator[bytes]:
    """Legal requests and releases, each pair with a name of its own."""
    for count in itertools.count(1):
        mine = f"m{number}-{count}"
        yield line(2 * count, "request", request_id=mine, task=TASK, wait=False)
        yield line(2 * count + 1, "release", request_id=mine)


def requests(**more: Any) -> Callable[[int], Iterator[bytes]]:
    """Without an end, with names as long as may be."""
    task = {"name": "n" * 200, "kind": "process", "path": "\u0001" * 4000}

    def says(number: int) -> Iterator[bytes]:
        for count in itertools.count(2):
            yield line(count, "request", request_id=f"r{number}-{count}", task=task, **more)

    return says


def predictions(number: int) -> Iterator[bytes]:
    """Two hundred leases of one process, and what one model needs and another, in turns."""
    if number == 0:
        for count in range(200):
            yield line(count + 2, "request", request_id=f"p{count}", task=TASK, wait=False)
    for count in itertools.count(1001):
        operation = {"kind": "MatMul", "largest": 64, "count": 1, "flops": 1e12, "bytes": 10}
        told = {"operations": [operation], "batch": count % 7 + 1, "iterations": 9, "inputs": 64}
        yield line(count, "predict", task=TASK, framework="torch", peak=count * 2**20, **told)


def watched_leases(number: int) -> Iterator[bytes]:
    """One that takes leases and gives them back, in front of many who watch."""
    if number == 0:
        yield from leases(number)
    yield line(2, "watch")
    while True:
        yield b""


def reads_of(*methods: tuple[str, dict[str, Any]]) -> Callable[[int], Iterator[bytes]]:
    def says(number: int) -> Iterator[bytes]:
        for count, (method, params) in enumerate(itertools.cycle(methods), 2):
            yield line(count, method, **params)

    return says


def comes_and_goes(path: str, seconds: float) -> dict[str, Any]:
    """Connect and hang up, as fast as can be."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connect(path):
            number += 1
    return {"connections": number}


def hellos(path: str, seconds: float) -> dict[str, Any]:
    """Connect many times, say hello on all at once, hang up; and again."""
    end, number = time.monotonic() + seconds, 0
    hello = line(1, "hello", **HELLO)
    while time.monotonic() < end:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            wires = [stack.enter_context(connect(path)) for _ in range(500)]
            for wire in wires:
                wire.sendall(hello)
            for wire in wires[::50]:
                number += bool(wire.recv(1))
    return {"answered": number}


class Driver:
    """CUDA on the GPU ``number`` of those to be seen. Raises :class:`CudaError`."""

    def __init__(self, number: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.blocks: list[tuple[ctypes.c_uint64, int]] = []
        self.context = ctypes.c_void_p()
        self.must(self.cuda.cuInit(0))
        self.must(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), number))

    def must(self, code: int) -> None:
        if code:
            raise CudaError(code)

    def take(self, size: int) -> None:
        pointer = ctypes.c_uint64()
        self.must(self.cuda.cuCtxSetCurrent(self.context))
        self.must(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        self.blocks.append((pointer, size))

    def free(self) -> None:
        while self.blocks:
            self.must(self.cuda.cuMemFree_v2(self.blocks.pop()[0]))


class CudaError(Exception):
    """The driver's code is its only argument."""


NO_DEVICE, OUT_OF_MEMORY = 100, 2
#: Bytes of a lease of theirs.
LEASE = 4 * 2**30


def script(path: str, name: str) -> str:
    """Take a lease, use all of it but a little, and give it back: what became of it."""
    client = Lines(path)
    answer = client.call("request", request_id=name, task=TASK, gpus=1, memory=LEASE)
    if "error" in answer:
        print(f"refused: {answer['error']['message']}", file=sys.stderr)
        return "refused"
    os.environ["CUDA_VISIBLE_DEVICES"] = answer["result"]["gpus"][0]["uuid"]
    driver = Driver(0)
    for _ in range(7):  # with the context it is a sixteenth less than the lease
        driver.take(LEASE // 8)
    time.sleep(0.1)  # it computes
    driver.free()
    done = client.call("release", lease=answer["result"]["lease"])
    return "ended" if "error" in done else "served"


#: How a script ends; its exit status is the place here, and any other one is a crash.
ENDS = ("served", "refused", "ended", "waited", "out of memory", "no device")


def scripts(path: str, patience: float) -> dict[str, Any]:
    """``COUNT`` scripts, one after the other: how each ended, and for how many."""
    told: dict[str, int] = {}
    for number in range(int(os.environ["COUNT"])):
        if (pid := os.fork()) == 0:
            try:
                socket.setdefaulttimeout(patience)
                how = script(path, f"s{number}")
            except TimeoutError:
                how = "waited"
            except CudaError as error:
                how = "out of memory" if error.args[0] == OUT_OF_MEMORY else "no device"
            except BaseException:  # noqa: BLE001 - it is a copy, and goes no further
                sys.excepthook(*sys.exc_info())
                os._exit(99)
            os._exit(ENDS.index(how))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in glob.glob(f"{os.environ['NVML_STUB_STATE']}.procs/{pid}.*"):
            os.unlink(file)  # or the driver's double reads a thousand of them at each call
        how = ENDS[code] if 0 <= code < len(ENDS) else "killed"
        told[how] = told.get(how, 0) + 1
    return told


def allocate(gpus: int) -> dict[str, int]:
    """Take all that can be had of all GPUs, free it each second, and again, until input ends."""
    counted = {"taken": 0, "out of memory": 0, "no device": 0}
    drivers: dict[int, Driver] = {}
    sizes: dict[int, int] = {}
    begun = time.monotonic()
    while not select.select([0], [], [], 0.002)[0]:
        for number in range(gpus):
            try:
                if number not in drivers:
                    drivers[number] = Driver(number)
                drivers[number].take(sizes.setdefault(number, 2**30))
                sizes[number] = min(2 * sizes[number], 2**30)
                counted["taken"] += 1
            except CudaError as error:
                counted["no device" if error.args[0] == NO_DEVICE else "out of memory"] += 1
                sizes[number] = max(sizes.get(number, 0) // 2, 2**20)
        if time.monotonic() - begun > 1:
            for driver in drivers.values():
                driver.free()
            begun = time.monotonic()
            sizes.clear()
    return counted


def into_own_group() -> None:
    own = os.environ["GROUP"] + "/own"
    os.makedirs(own, exist_ok=True)
    with open(own + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))


def unheard() -> None:
    """As ``nohup`` and a daemon do it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    if os.fork():
        os._exit(0)


def takes_all(path: str, seconds: float) -> dict[str, Any]:
    """Processes that :func:`allocate`; with ``LEASES`` a fifth has a lease, now and then."""
    for way in (lambda: None, into_own_group, unheard):
        if os.fork() == 0:
            way()
            print(json.dumps(allocate(int(os.environ["COUNT"]))), flush=True)
            os._exit(0)
    if "LEASES" not in os.environ:
        return allocate(int(os.environ["COUNT"]))
    client, number = Lines(path), 0
    while True:
        number += 1
        asked = {"request_id": f"a{number}", "task": TASK, "memory": LEASE, "wait": False}
        client.call("request", **asked)
        if select.select([0], [], [], seconds)[0]:
            break
        client.call("release", request_id=asked["request_id"])
        if select.select([0], [], [], seconds)[0]:
            break
    return {"leases": number}


LEDGER = (
    ("history", {"limit": 1000}),
    ("usage", {"since": 90 * 86400.0}),
    ("usage.daily", {"days": 90, "utc_offset": 0.0}),
)
WATCH = (("watch", {}), ("status", {}))

PEOPLE: dict[str, Callable[[str, float], dict[str, Any]]] = {
    "honest": honest,
    "burn": burn,
    "nonsense": lambda path, s: pour(path, s, 20, over_and_over(b"{}\n" * 1000)),
    "blank lines": lambda path, s: pour(path, s, 20, over_and_over(b"\n" * 60000)),
    "single bytes": lambda path, s: pour(path, s, 200, over_and_over(b" ", b"")),
    "no hello": lambda path, s: pour(path, s, 200, over_and_over(b"x", b""), first=b""),
    "leases": lambda path, s: pour(path, s, 40, leases),
    "refused requests": lambda path, s: pour(path, s, 10, requests(gpus=4000)),
    "leases kept": lambda path, s: pour(path, s, 4, requests(wait=False)),
    "predictions": lambda path, s: pour(path, s, 10, predictions),
    "watchers": lambda path, s: pour(path, s, 200, watched_leases),
    "status": lambda path, s: pour(path, s, 20, reads_of(("status", {}))),
    "reads of the ledger": lambda path, s: pour(path, s, 20, reads_of(*LEDGER)),
    "answers not read": lambda path, s: pour(path, s, 200, reads_of(*WATCH), reads=False),
    "connections": comes_and_goes,
    "hellos": hellos,
}
#: Those who use GPUs.
USERS = {"scripts": scripts, "takes all": takes_all}


def main() -> None:
    path, uid, name, seconds = sys.argv[1:]
    if group := os.environ.get("GROUP"):
        with open(group + "/cgroup.procs", "w") as procs:
            procs.write(str(os.getpid()))
        ctypes.CDLL("libcuda.so.1")
    if int(uid) != os.getuid():
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    print(json.dumps({**PEOPLE, **USERS}[name](path, float(seconds))))


if __name__ == "__main__":
    main()
