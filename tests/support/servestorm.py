"""A storm over a server that sleeps: requests, a neighbour who needs its GPU, and kills; by a seed.

The verb `jupyter gpushare serve`, its server, the checkpoint helper, the node manager and the
neighbour are processes; the GPU is the doubles of the driver and of NVML. Round after round many
requests come at once, when the server sleeps or is about to; then nothing comes until the
neighbour has had the GPU. In some rounds something is killed, and what a service manager would
start again is started again. :mod:`.serveverdict` judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from jupyter_gpushare.protocol.messages import Method

from .cuda import Call, CudaWorld, has_ended, helper_pid
from .driverstage import Stage, Wish, staged
from .livenode import CLI
from .node import tracebacks
from .serveverdict import ANEW, Asked, How, Kill, Kind, Story, figures, judge
from .stormserver import LEAVE, Notes as Written

TESTS = Path(__file__).resolve().parents[1]
WITHIN: Final = 120.0  # seconds; on a machine that does nothing else
CONFIG = "c.Policy.heartbeat_timeout = 3600.0\nc.Policy.idle_timeout = 0.1\n"
#: All of its requests may wait, as long as it takes.
SERVE = (
    "--idle=0.1s",
    "--memory=3GiB",
    "--hold=1h",
    "--hold-requests=10000",
    "--rungs=driver,restart",
)


@dataclass(frozen=True)
class Plan:
    """What comes of the seed: for how many rounds, with how many requests in each."""

    seed: int
    rounds: int
    requests: int = 50
    #: In which share of the rounds something is killed.
    kills: float = 0.0
    #: The server's memory is a child's; and, as Yama may have it, only its ancestors get at it.
    engine: bool = False
    yama: bool = True


@dataclass(frozen=True)
class Ask:
    """A request: its kind, when it comes, how long it is, and when its client leaves."""

    what: str
    at: float
    size: int
    leaves: float = math.inf


@dataclass(frozen=True)
class Stroke:
    """A kill, so many seconds after its round began, or after all of that was answered."""

    kind: Kind
    at: float
    in_lull: bool
    away: float


@dataclass(frozen=True)
class Round:
    """``begins``: seconds after the neighbour has got the GPU."""

    begins: float
    asks: tuple[Ask, ...]
    strokes: tuple[Stroke, ...]


def course(plan: Plan) -> list[Round]:
    """What the seed gives. Each kind of kill comes before any comes again."""
    rng = random.Random(plan.seed)
    kinds = [kind for kind in Kind if plan.engine or kind is not Kind.ENGINE]
    bag: list[Kind] = []

    def stroke() -> Stroke:
        if not bag:
            bag.extend(rng.sample(kinds, len(kinds)))
        in_lull = rng.random() < 0.4
        at = rng.uniform(0.0, 1.2)
        return Stroke(bag.pop(), at, in_lull, rng.uniform(0.0, 0.5))

    def ask() -> Ask:
        what = rng.choice(("plain", "plain", "stream", "upload", "talk"))
        leaves = rng.uniform(0.0, 0.5) if rng.random() < 0.03 else math.inf
        return Ask(what, rng.uniform(0.0, 0.8), rng.randint(1, 8), leaves)

    rounds = []
    owed = 0.0
    for _ in range(plan.rounds):
        owed += plan.kills
        strokes = [stroke()] if owed >= 1.0 else []
        owed -= len(strokes)
        if strokes and rng.random() < 0.2:
            strokes.append(stroke())
        asks = tuple(ask() for _ in range(plan.requests))
        rounds.append(Round(rng.uniform(0.0, 0.3), asks, tuple(strokes)))
    return rounds


@dataclass
class Report:
    """What came of it."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> str:
        """All of it, in a line."""
        return json.dumps({**self.figures, "wrong": self.wrong})


def _crowding() -> float:
    """How many want each processor: then all takes so much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Notes:
    """What a process has noted so far."""

    def __init__(self, file: Path) -> None:
        self._file, self._read, self._all = file, 0, list[dict[str, Any]]()

    def all(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._all.append(json.loads(line))
        return self._all

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.all() if note["what"] == what]


class Verb:
    """`jupyter gpushare serve`, which is started again whenever it ended."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._command, self._environ, self._log = command, environ, log
        self.process: asyncio.subprocess.Process | None = None
        self.starts, self.stops = 0, False
        #: Seconds until it is started again.
        self.away = 0.0
        #: Its exit codes, and when.
        self.ends: list[tuple[float, int]] = []

    async def run(self) -> None:
        with self._log.open("ab") as log:
            while not self.stops:
                self.process = await asyncio.create_subprocess_exec(
                    *self._command, env=self._environ, stderr=log, stdin=subprocess.DEVNULL
                )
                self.starts += 1
                self.ends.append((time.monotonic(), await self.process.wait()))
                self.process = None
                await asyncio.sleep(self.away)
                self.away = 0.0

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Whether there was one."""
        if self.process is None:
            return False
        self.process.send_signal(number)
        return True


async def _send_once(request: aiohttp.ClientRequest, send: Any) -> aiohttp.ClientResponse:
    """The library asks again by itself where it was hung up on; the storm counts."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionError(type(error).__name__) from error


def _method(size: int) -> str:
    """A GET is what libraries send again."""
    return "GET" if size % 2 else "POST"


class Storm:
    """One storm; :meth:`run` does it all. ``folder`` keeps what it left."""

    def __init__(self, library: Path, folder: Path, plan: Plan) -> None:
        self.plan, self.folder = plan, folder
        self.world = CudaWorld(library, folder / "gpus.state")
        self.asked: list[Asked] = []
        self.kills: list[Kill] = []
        self.wrong: list[str] = []
        self.wakes: list[float] = []
        self.sleeps = 0
        self._ids = count()
        self._log = Written(folder / "storm")
        self._served, self._neighbour = Notes(folder / "served"), Notes(folder / "neighbour")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]

    def run(self) -> Report:
        began = time.monotonic()
        if self.plan.yama:
            self.world.only_ancestors()
        # So much time there is to kill something in the midst of it.
        self.world.slow(Call.CHECKPOINT, 50)
        self.world.slow(Call.RESTORE, 50)
        with staged(self.world, self.folder, Wish(config=CONFIG)) as stage:
            self.stage = stage
            asyncio.run(self._run(stage))
            self.wrong += tracebacks(stage.node.log)
        self.wrong += tracebacks(self.folder / "verb.log")
        story = Story(self.asked, self.kills, self._served.all(), self._neighbour.all(), self.wrong)
        wakes = sorted(self.wakes) or [math.nan]
        shown = {
            "seed": self.plan.seed,
            "seconds": round(time.monotonic() - began, 1),
            **figures(story),
            "sleeps": self.sleeps,
            "wake_seconds": {
                "p50": round(wakes[len(wakes) // 2], 3),
                "p99": round(wakes[int(len(wakes) * 0.99)], 3),
            },
        }
        return Report(self.plan.seed, judge(story), shown)

    # -- who takes part ----------------------------------------------------------------

    def _environ(self, stage: Stage, who: str) -> dict[str, str]:
        return {
            **{name: v for name, v in os.environ.items() if not name.startswith("JUPYTER_")},
            **self.world.environ({}),
            "JUPYTER_GPUSHARE_SOCKET": str(stage.node.socket),
            "JUPYTER_GPUSHARE_TOKEN": who,
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "XDG_RUNTIME_DIR": str(stage.runtime),
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        }

    async def _run(self, stage: Stage) -> None:
        engine = ["engine"] if self.plan.engine else []
        server = [sys.executable, "-m", "support.stormserver", "{port}", str(self.folder), *engine]
        words = [*CLI, "serve", f"--port={self.port}", *SERVE, "--no-token", "--", *server]
        self.verb = Verb(words, self._environ(stage, "alice"), self.folder / "verb.log")
        serving = asyncio.create_task(self.verb.run())
        neighbour = None
        try:
            async with aiohttp.ClientSession(
                f"http://127.0.0.1:{self.port}",
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                middlewares=(_send_once,),
            ) as self.session:
                await self._until(self._listens, "the server is there")
                await self._round(Round(0.0, (Ask("plain", 0.0, 1),), ()))
                with (self.folder / "neighbour.log").open("ab") as log:
                    neighbour = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "support.stormneighbour"),
                        *(str(self.folder), str(self.plan.seed)),
                        env=self._environ(stage, "bob"),
                        stderr=log,
                    )
                await self._sleeps(0)
                for one in course(self.plan):
                    await self._round(one)
            await self._end(serving)
        except AssertionError as error:
            self.wrong.append(str(error))
        finally:
            self.verb.stops = True
            if neighbour is not None:
                neighbour.kill()
                await neighbour.wait()
            self.verb.kill()
            await serving
            self._kill_left()

    async def _end(self, serving: asyncio.Task[None]) -> None:
        """It ends well, and leaves nothing."""
        self.verb.stops = True
        self.verb.kill(signal.SIGTERM)
        await self._until(serving.done, "the server ends")
        if (code := self.verb.ends[-1][1]) != 0:
            self.wrong.append(f"it ended with {code}")

        def kept() -> list[Any]:
            leases = self.stage.root.call(Method.STATUS)["leases"]
            return [one for one in leases if one["environment"] == "alice"]

        if not self._strokes_of_node():
            await self._until(lambda: not kept(), "its lease is given back")
        await self._until(lambda: not self._left(), "its processes have ended")

    def _strokes_of_node(self) -> bool:
        return any(kill.kind is Kind.NODE for kill in self.kills)

    def _left(self) -> list[int]:
        pids = [pid for note in self._served.of("boot") for pid in (note["pid"], note["engine"])]
        return [pid for pid in pids if pid and not has_ended(pid)]

    def _kill_left(self) -> None:
        if left := self._left():
            self.wrong.append(f"these processes of the server were left: {left}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _until(self, look: Callable[[], Any], what: str) -> None:
        """Raises :class:`AssertionError`, also where the verb ended by itself: no waiting helps."""
        end = time.monotonic() + WITHIN * _crowding()
        while not look():
            assert time.monotonic() < end, f"not within {WITHIN:g} s: {what}"
            if len(self.verb.ends) > 2 * len(self.kills) + self.verb.stops:
                raise AssertionError(f"the verb ended by itself: {self.verb.ends[-1]}")
            await asyncio.sleep(0.02)

    # -- a round -----------------------------------------------------------------------

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 5.0).close()
            return True
        return False

    def _grants(self) -> int:
        return len(self._neighbour.of("granted"))

    async def _sleeps(self, before: int) -> None:
        await self._until(lambda: self._grants() > before, "the neighbour gets the GPU")

    async def _round(self, plan: Round) -> None:
        await asyncio.sleep(plan.begins)
        self._log.note(what="round", asks=len(plan.asks), kills=len(plan.strokes))
        since, first = time.monotonic(), len(self.asked)
        asks = [asyncio.create_task(self._ask(one)) for one in plan.asks]
        early = [self._strike(one) for one in plan.strokes if not one.in_lull]
        await asyncio.gather(*asks, *early)
        if not plan.strokes:
            self._measure(first, since)
        if self._grants():
            grants = self._grants()
            await asyncio.gather(*(self._strike(one) for one in plan.strokes if one.in_lull))
            await self._settle()
            self._log.note(what="settled")
            await self._sleeps(grants)
            self.sleeps += 1
            self._log.note(what="sleeps")

    def _measure(self, first: int, since: float) -> None:
        """How long it took from when the neighbour gave the GPU back to the first answer."""
        released = [note["at"] for note in self._neighbour.of("released")]
        answered = [one for one in self.asked[first:] if one.how is How.ANSWERED]
        if answered and released and released[-1] > since:
            begun = max(min(one.begin for one in answered), released[-1])
            self.wakes.append(max(0.0, min(one.end for one in answered) - begun))

    async def _settle(self) -> None:
        """What was killed is there again: who asks now is answered, by a server that lives."""
        open_ = [kill for kill in self.kills if kill.over == math.inf]
        if not open_:
            return
        since = max((kill.at for kill in open_ if kill.kind in ANEW), default=0.0)
        end = time.monotonic() + WITHIN * _crowding()
        while True:
            await self._ask(Ask("plain", 0.0, 1))
            boots = self._served.of("boot")
            is_new = boots[-1]["at"] > since
            if self.asked[-1].how is How.ANSWERED and is_new and self.verb.process is not None:
                break
            if time.monotonic() > end:
                raise AssertionError(f"not within {WITHIN:g} s: it is answered after {open_}")
            await asyncio.sleep(0.05)
        over = time.monotonic()
        self.kills = [replace(k, over=over) if k in open_ else k for k in self.kills]

    # -- a request ---------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> None:
        await asyncio.sleep(ask.at)
        name, begin = f"r{next(self._ids)}", time.monotonic()
        how, said, right = How.HUNG, "", True
        patience = WITHIN * _crowding()
        try:
            async with asyncio.timeout(min(ask.leaves, patience)):
                how, said, right = await getattr(self, f"_{ask.what}")(name, ask.size)
        except TimeoutError:
            how = How.HUNG if ask.leaves > patience else How.GONE
        except aiohttp.WSServerHandshakeError as error:
            how, said = (How.REFUSED if error.status == 503 else How.ERROR), str(error.status)
        except (aiohttp.ClientError, OSError) as error:
            how, said = (
                How.ERROR,
                f"{error}" if type(error) is ConnectionError else repr(error)[:60],
            )
        self.asked.append(Asked(name, ask.what, begin, time.monotonic(), how, said, right))

    @staticmethod
    async def _problem(answer: aiohttp.ClientResponse) -> tuple[How, str, bool]:
        """An error in its place; anything else is no answer."""
        told = json.loads(await answer.read())
        kind = f"{answer.status} {told['error']['type']}"
        how = {502: How.ERROR, 503: How.REFUSED}.get(answer.status, How.WRONG)
        if how is How.REFUSED and not answer.headers.get("Retry-After", "").isdigit():
            how, kind = How.WRONG, f"{kind}: it does not say when to come again"
        return how, kind, True

    async def _plain(self, name: str, size: int) -> tuple[How, str, bool]:
        async with self.session.request(_method(size), f"/plain?id={name}") as answer:
            if answer.status != 200:
                return await self._problem(answer)
            return self._checked(name, json.loads(await answer.read()))

    def _checked(self, name: str, told: Mapping[str, Any], **also: Any) -> tuple[How, str, bool]:
        if any(told[key] != value for key, value in {"id": name, **also}.items()):
            return How.WRONG, f"another's answer: {told}", True
        return How.ANSWERED, "", bool(told["right"])

    async def _stream(self, name: str, size: int) -> tuple[How, str, bool]:
        right, last = True, ""
        path = f"/stream?id={name}&events={size}"
        async with self.session.request(_method(size), path) as answer:
            if answer.status != 200:
                return await self._problem(answer)
            async for line in answer.content:
                if not (text := line.decode().strip()):
                    continue
                last = text.removeprefix("data: ")
                if last != "[DONE]":
                    how, said, is_right = self._checked(name, json.loads(last))
                    right = right and is_right
                    if how is How.WRONG:
                        return how, said, right
        if last != "[DONE]":
            return How.WRONG, "it was cut short, and looked whole", right
        return How.ANSWERED, "", right

    async def _upload(self, name: str, size: int) -> tuple[How, str, bool]:
        body = random.Random(name).randbytes(size * 16 * 1024)

        async def chunks() -> AsyncIterator[bytes]:
            for begin in range(0, len(body), 16 * 1024):
                yield body[begin : begin + 16 * 1024]
                await asyncio.sleep(0.005)

        async with self.session.post(f"/upload?id={name}", data=chunks()) as answer:
            if answer.status != 200:
                return await self._problem(answer)
            digest = hashlib.sha256(body).hexdigest()
            return self._checked(
                name, json.loads(await answer.read()), size=len(body), digest=digest
            )

    async def _talk(self, name: str, size: int) -> tuple[How, str, bool]:
        right = True
        async with self.session.ws_connect(f"/talk?id={name}") as talk:
            for number in range(size):
                await talk.send_str(str(number))
                message = await talk.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return How.ERROR, f"WebSocket {talk.close_code}", right
                how, said, is_right = self._checked(
                    name, json.loads(message.data), said=str(number)
                )
                right = right and is_right
                if how is How.WRONG:
                    return how, said, right
            await talk.send_str(LEAVE)
            await talk.receive()
            if talk.close_code != 1000:
                return How.ERROR, f"WebSocket {talk.close_code}", right
        return How.ANSWERED, "", right

    # -- a kill ------------------------------------------------------------------------

    def _noted(self) -> dict[str, Any]:
        """What the keeper has noted of its program; nothing while there is none."""
        (file, *_) = [*Path(self.stage.runtime).rglob(f"keeper-serve-{self.port}.json"), None]
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(file.read_text())) if file else {}
        return {}

    def _pid_of(self, kind: Kind) -> int | None:
        noted, boots = self._noted(), self._served.of("boot")
        if not noted or not boots:
            return None
        if kind is Kind.ENGINE:
            return int(boots[-1]["engine"]) or None
        if kind in (Kind.SERVER, Kind.STARTING):
            return int(noted["root"]["pid"])
        helper = helper_pid(Path(noted["place"]))  # of a killed one there may be a successor
        if helper is None or kind is Kind.HELPER:
            return helper
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(helper).children():
                if "jupyter_gpushare.node.checkpoint.worker" in child.cmdline():
                    return int(child.pid)
        return None

    async def _strike(self, stroke: Stroke) -> None:
        await asyncio.sleep(stroke.at)
        kind, node = stroke.kind, self.stage.node
        self._log.note(what=kind, away=stroke.away, in_lull=stroke.in_lull)
        at = time.monotonic()
        if kind is Kind.NODE:
            await asyncio.to_thread(node.kill9)
            self.kills.append(Kill(kind, at))
            await asyncio.sleep(stroke.away)
            await asyncio.to_thread(node.start)
            return
        if kind in (Kind.KEEPER, Kind.BOTH):
            helper = self._pid_of(Kind.HELPER)
            self.verb.away = stroke.away
            if self.verb.kill():
                self.kills.append(Kill(kind, at))
                if kind is Kind.BOTH and helper is not None and not has_ended(helper):
                    os.kill(helper, signal.SIGKILL)
            return

        def lives() -> int:
            pid = self._pid_of(kind)
            return 0 if pid is None or has_ended(pid) else pid

        if kind not in (Kind.HELPER, Kind.WORKER):
            await self._until(lives, f"there is a {kind} to kill")
        if not (pid := lives()):
            return  # a helper is started when it is needed
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills.append(Kill(kind, at))
        if kind is Kind.STARTING:
            boots = len(self._served.of("boot"))
            # It may have been killed as it fell asleep, and is started anew for a request only.
            async with asyncio.TaskGroup() as probes:
                end = time.monotonic() + WITHIN * _crowding()
                while len(self._served.of("boot")) == boots and time.monotonic() < end:
                    probes.create_task(self._ask(Ask("plain", 0.0, 1)))
                    await asyncio.sleep(0.2)
                self.verb.kill()
