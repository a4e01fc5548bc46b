"""The stage of the golden documents: what makes a status document of a policy's state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final
from unittest import mock

from support.policy_world import GIB, World, gpu, plain_config, process
from support.sheets import status_document

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.views.lately import Lately
from jupyter_gpushare.node.views.pauses import Pauses
from jupyter_gpushare.node.views.status import NodeFacts, Sheet
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.recall import outlook
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.events import Event
from jupyter_gpushare.policy.words.model import (
    Loan,
    Quota,
    Request,
    Task,
    TaskKind,
)

#: Whole documents; and those parts of others in which a situation shows.
DOCUMENTS: Final = Path(__file__).parent / "documents"
PARTS: Final = DOCUMENTS.with_name("parts.json")
#: Unix time at which the host booted.
BOOTED: Final = 1_700_000_000.0

OTHER: Final = Viewer("stranger")
ROOT: Final = Viewer("root", admin=True)


def who(name: str, *, servers: bool = False) -> Viewer:
    return Viewer(name, all_servers=servers)


ALICE: Final = who("alice")
BOB: Final = who("bob")


@dataclass
class Situation:
    """A policy's state, and all else that a status tells. ``util``: of GPUs, by their index.

    ``patches``: bounds on the length of lists, smaller for the while. ``parts``: where it shows, if
    the rest of the document is as elsewhere. ``whole``: the first viewer's is kept all the same.
    """

    world: World
    viewers: tuple[Viewer, ...] = (ALICE,)
    facts: Mapping[str, Any] = field(default_factory=dict)
    util: Mapping[int, float] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)
    serving: Mapping[str, Any] = field(default_factory=dict)
    connected: tuple[str, ...] = ()
    patches: Mapping[str, Any] = field(default_factory=dict)
    parts: str = ""
    whole: bool = False

    def kept(self) -> tuple[dict[str, Any], list[Any]]:
        """Whole documents, and of the others and of its parts all rows that are their viewers'."""
        documents, parts = self.documents(), self.parts.split()
        viewers = [*documents]
        whole = int(self.whole) if parts else len(viewers)
        told = [own(documents[name], part) for name in viewers[whole:] for part in parts]
        return {name: documents[name] for name in viewers[:whole]}, [*chain(*told)]

    def documents(self) -> dict[str, Any]:
        """The status of each viewer, by name; a viewer's named servers are told by the name."""
        with ExitStack() as stack:
            for name, value in self.patches.items():
                stack.enter_context(mock.patch(f"jupyter_gpushare.{name}", value))
            sheet = self.sheet()
            return {name_of(one): plain(status_document(sheet, one)) for one in self.viewers}

    def sheet(self) -> Sheet:
        world, at = self.world, self.world.at
        now = BOOTED + at
        known = {"name": "gpuhost", "version": "1.0.0", "simulated": False, "ledger": "/l.sqlite"}
        facts = NodeFacts(**{**known, **self.facts}, started=BOOTED + 40, now=now, boot=at)
        util = {gpu(index).uuid: share for index, share in self.util.items()}
        readings = {
            one.uuid: dataclasses.replace(one, utilisation=util.get(one.uuid, 0.0))
            for one in world.readings()
        }
        lately, pauses = Lately(), Pauses()
        pauses.heard(_outcome(*world.history))
        for event in world.history:
            lately.heard(_outcome(event), BOOTED + event.at)
        recent = lately.waited(now)
        return Sheet(
            world.state,
            facts,
            world.config,
            readings,
            lately,
            (name for name in self.connected),
            lambda: outlook.outlooks(world.state, world.config, at, recent),
            pauses,
            lambda is_mine: self.predictions,
            lambda lease: self.serving.get(lease.id),
        )


def own(document: Mapping[str, Any], part: str) -> list[Any]:
    """The rows of a part, without those that are told to be others'; to an administrator all."""
    rows = document[part] if isinstance(document[part], list) else [document[part]]
    mine = (row for row in rows if isinstance(row, str) or row.get("mine") is not False)
    return rows if document["admin"] else list(mine)


def _outcome(*events: Event) -> Outcome:
    return Outcome(cmd.Command(0.0), core.Done(), events, ())


def name_of(viewer: Viewer) -> str:
    return viewer.environment + ("'s servers" if viewer.all_servers else "")


def plain(value: Any) -> Any:
    """As JSON has it; the last bits of a sum are another machine's business."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return round(value, 3) if isinstance(value, float) else value


def text(documents: Mapping[str, Any]) -> str:
    """JSON with a line for each row, so that a change shows as the rows that changed."""
    return "".join(_lines(documents, 3)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    named = isinstance(value, dict)
    if value and depth >= 1 + named and isinstance(value, dict | list):
        yield "{\n" if named else "[\n"
        for number, one in enumerate(value):
            yield ",\n" if number else ""
            yield f"{json.dumps(one)}: " if named else ""
            part = value[one] if isinstance(value, dict) else one
            yield from _lines(part, depth - 1)
        yield "\n}" if named else "\n]"
    else:
        yield json.dumps(value, ensure_ascii=False)


SITUATIONS: Final[dict[str, Callable[[], Situation]]] = {}


def golden(name: str, viewer: str = "alice") -> Any:
    """The status document of a situation for whoever looks."""
    whose = ROOT if viewer == "root" else who(viewer.split("'")[0], servers="'" in viewer)
    return dataclasses.replace(SITUATIONS[name](), viewers=(whose,)).documents()[viewer]


def situation(make: Callable[[], Situation]) -> Callable[[], Situation]:
    SITUATIONS[make.__name__] = make
    return make


# -- short words for what people do ------------------------------------------------------------


def node(
    gpus: int = 1, quota: Quota | None = None, gib: int = 24, users: Any = None, **parts: Any
) -> World:
    """GPUs, people of one quota, and signs of life that last."""
    config = plain_config(**{"heartbeat_timeout": 1e6, **parts})
    return started(World(config), gpus, quota, gib, users)


def started(
    world: World, gpus: int, quota: Quota | None = None, gib: int = 24, users: Any = None
) -> World:
    world.start([gpu(n, gib) for n in range(gpus)], quota or Quota(2, None), **(users or {}))
    return world


def ask(world: World, name: str, what: str = "train.ipynb", **request: Any) -> str:
    """Somebody's notebook, script or model server asks; ``gib`` is the memory that it names."""
    parts = {key: request.pop(key) for key in ("job", "job_kind") if key in request}
    is_server = what.endswith(".gguf")
    gib, wait = request.pop("gib", None), request.pop("wait", True)
    world.serial += 1
    lease, pid = f"L{world.serial}", world.serial
    kind = TaskKind.PROCESS if what.endswith(".py") else TaskKind.KERNEL
    kind = TaskKind.SERVER if is_server else kind
    kernel = f"k{pid}" if kind is TaskKind.KERNEL else None
    path = f"/home/{name}/{what}" if kernel is None else f"work/{what}"
    task = Task(process(pid), what, kind, kernel, path, **parts)
    memory = None if gib is None else int(gib * GIB)
    asked = Request(**{"memory": memory, "keeper": is_server, **request})
    world.run(cmd.RequestLease(world.at, lease, name, task, asked, wait))
    return lease


def uses(world: World, lease: str, *gib: float, work: float | None = None) -> None:
    """What a task has on each of its GPUs from now on, GiB; ``work``: how busy it keeps them."""
    found = world.state.leases[lease]
    for part, size in zip(found.allocations, gib * len(found.allocations), strict=False):
        key = (found.task.process.pid, part.gpu)
        world.memory[key] = int(size * GIB)
        if work is not None:
            world.work[key] = work
    world.observe()


def later(world: World, seconds: float, every: float = 1.0) -> None:
    """Time passes with a measurement now and then; whatever is due happens."""
    until = world.at + seconds
    while world.at < until - 1e-9:
        due = max(world.at + 0.01, core.next_deadline(world.state, world.config))
        world.tick(min(due, until, world.at + every) - world.at)
        world.observe()


def lend(world: World, seconds: float = 300.0, **loans: Loan) -> None:
    """The host belongs to a pool, which lends."""
    if world.state.quotas.pool is None:
        world.run(cmd.BelongTo(world.at, "uni"))
    told = tuple(loans.values())
    world.run(cmd.LendQuotas(world.at, world.state.boot.boot_id, world.at, seconds, told))


def loan(name: str, here: int, whole: int, **parts: Any) -> Loan:
    return Loan(name, Quota(here), whole, **parts)
