"""What a training function calls, and the worker process that it runs in.

Somebody writes a loop as for one process, and the job may win or lose a GPU at any moment. What the
training becomes must not depend on that, and no step may be done twice or left out. So there must
be moments at which all ranks have done the same steps and one number says which samples were used
(:mod:`.core`). Such a moment is the *boundary* between two batches: there all ranks add up whether
anybody is to stop, and either all go on or all stop. Rank 0 saves, all end, and torch's agent
starts them anew, as many as there are cards, from what was saved. Processes are not regrouped while
they live: one that starts has nothing left of a group that is gone.

The state is what ``keep`` names, and also what is easily forgotten: the random generators, the
model's buffers, the place in the epoch. All are noted as they are at the boundary, because the next
batch's forward pass changes them before anybody knows whether its step counts. A rank whose peer
has died may save only what is surely whole: its optimizer has not stepped since the boundary.

``batches`` gives each rank its part of the data. Outside of a job all of this does what a single
process needs, and no more, so that the same program runs anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import pickle
import random
import runpy
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..client.acquire import broker
from ..jobs.worker import plain
from ..protocol import names
from . import checkpoints, core
from .meeting import Meeting
from .records import Records

#: The exit code of a worker that is to be started again.
AGAIN: Final = 76
#: Seconds between two lines that say the step.
_SAY_EVERY: Final = 0.1
#: Seconds in which the agent ends a worker that has stopped between two steps.
_AGENT_WITHIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class World:
    """Who trains now. ``entry``: ``"train"`` for a fresh start, else ``"breakpoint"``."""

    rank: int
    size: int
    step: int
    epoch: int
    entry: str


class _Training:
    """This process's part of a training."""

    def __init__(self, records: Records | None, data: Any = None) -> None:
        """Without ``records`` this process belongs to no job."""
        self.records, self.data = records, data
        self.rank, self.size = 0, 1
        self.step = self.epoch = self.done = 0
        self.entry = "train"
        self.wanted = False  # the agent wants this worker to stop
        self.kept: dict[str, Any] = {}
        self.has_begun = False
        self._loss: float | None = None
        self._more: dict[str, Any] = {}
        self._saved_step, self._saved_at, self._cost = -1, 0.0, 0.0
        self._said_at = 0.0
        self._undisturbed = True  # no optimizer has stepped since the last boundary
        self._random: Any = None
        self._buffers: dict[str, Any] = {}

    def begin(self) -> None:
        """Meet the other ranks; once."""
        if self.has_begun:
            return
        self.has_begun = True
        if self.records is None:
            return
        import torch
        from torch import distributed

        folder, generation = os.environ[names.MEETING].rsplit(" ", 1)
        self.store = Meeting(Path(folder)).store(int(generation))
        if not distributed.is_initialized():
            distributed.init_process_group(
                # Both: gradients are on the GPU, and what ranks agree on at a boundary is on the
                # CPU.
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                # torch's own keys stand apart from ours in the same store.
                store=distributed.PrefixStore("ranks", self.store),
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
            )
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._watch_optimizers()

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(*_: Any) -> None:
            self._undisturbed = False

        register_optimizer_step_post_hook(stepped)

    # -- the state ------------------------------------------------------------------------

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Load the newest state into these, on all ranks, or the first rank's own."""
        self.begin()
        self.kept = {name: held for name, held in kept.items() if held is not None}
        records = self.records
        if records is None:
            return
        content, began = None, time.monotonic()
        if self.rank == 0:
            content = checkpoints.newest(records.checkpoints, lambda t: records.add("said", text=t))
            # One rank's fresh state for all: each has drawn its own parameters.
            if content is None and self.size > 1:
                fresh = io.BytesIO()
                self._write_state(fresh, fresh=True)
                content = fresh.getvalue()
        if self.size > 1:
            content = self._broadcast(content)
        if content is not None:
            self._load(content)
        self._saved_step = self.step if self.entry == "breakpoint" else -1
        if self.entry == "breakpoint":  # it is saved; saving takes about as long as loading
            self._saved_at = time.monotonic()
            self._cost = self._saved_at - began
        self._check_same()
        self._tell_trains(records)
        self._mark()

    def _load(self, content: bytes) -> None:
        import torch

        # It is this user's own file, and a scheduler's state may be any object.
        state = torch.load(io.BytesIO(content), map_location=device(), weights_only=False)
        for name, held in self.kept.items():
            if name in state["kept"]:
                held.load_state_dict(state["kept"][name])
        self.step, self.epoch, self.done = state["step"], state["epoch"], state["done"]
        self.entry = state["entry"]
        if self.rank == 0:
            _set_random(state["random"])
        else:
            # There may have been no such rank when it was saved, and two ranks that draw the same
            # numbers would drop out the same neurons.
            torch.manual_seed(hash((state["seed"], self.step, self.rank)) % 2**63)

    def _broadcast(self, content: bytes | None) -> bytes:
        """What rank 0 has, on all ranks.

        Ranks hear each other over sockets, and these ask nobody who they are. So what is to be
        unpickled is compared with what rank 0 wrote in the meeting place. Raises `RuntimeError`
        where it differs.
        """
        import torch
        from torch import distributed

        if content is not None:
            self.store.set("state", f"{len(content)} {hashlib.sha256(content).hexdigest()}")
        size, digest = self.store.get("state").decode().split()
        held = torch.frombuffer(bytearray(content or int(size)), dtype=torch.uint8)
        distributed.broadcast(held, src=0)
        if content is not None:
            return content
        got: bytes = _bytes_of(held)
        if hashlib.sha256(got).hexdigest() != digest:
            raise RuntimeError(
                "The state that came is not the one that rank 0 sent. Another process took part."
            )
        return got

    def _write_state(self, file: Any, *, fresh: bool = False) -> None:
        import torch

        kept = {name: held.state_dict() for name, held in self.kept.items()}
        if "model" in kept and self._buffers:
            # As they were at the boundary: the next batch's forward pass may have run since.
            kept["model"] = {**kept["model"], **self._buffers}
        state = {
            "kept": kept,
            **{"step": self.step, "epoch": self.epoch, "done": self.done},
            "random": _random() if fresh or self._random is None else self._random,
            "seed": torch.initial_seed(),
            "entry": "train" if fresh else "breakpoint",
        }
        torch.save(state, file)

    def _check_same(self) -> None:
        """Raises `RuntimeError` where ranks have different parameters.

        They have loaded the same state. If they differ nevertheless, nothing of it may be saved.
        """
        import torch
        from torch import distributed

        mine = 0
        if "model" in self.kept:
            for held in self.kept["model"].state_dict().values():
                mine = zlib.crc32(_bytes_of(held), mine)
        all_of = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(all_of, torch.tensor([mine]))
        if len(found := {int(one) for one in all_of}) > 1:
            raise RuntimeError(f"The ranks begin with different parameters: {found}")
        self.hash = mine

    def _tell_trains(self, records: Records) -> None:
        grant = broker().grant
        records.add(
            "trains",
            **{"rank": self.rank, "world": self.size, "entry": self.entry},
            **{"step": self.step, "epoch": self.epoch, "hash": f"{self.hash:08x}"},
            host=os.uname().nodename,
            gpu=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            index=grant.gpus[0].index if grant is not None and grant.gpus else None,
            lease=os.environ.get(names.LEASE, ""),
            pid=os.getpid(),
        )

    def save(self) -> None:
        """Write the state as it was at the last boundary."""
        if self.records is None or not self.kept or self._saved_step == self.step:
            return
        began = time.monotonic()
        checkpoints.write(self.records.checkpoints, self.step, self._write_state)
        self._saved_at = time.monotonic()
        self._saved_step, self._cost = self.step, self._saved_at - began

    def save_after_loss(self) -> None:
        """Another rank is gone. What this one has in memory is saved, if it is sure to be whole.

        NCCL's work is queued: there nobody knows what it has left behind.
        """
        import torch

        if self.has_begun and self._undisturbed and not torch.cuda.is_initialized():
            self.save()

    # -- the boundary between two steps -------------------------------------------------------

    def boundary(self, cut: core.Cut, every: int | None) -> None:
        """A step is done on this rank. May end this process."""
        from torch import distributed

        self.done = core.after(cut, self.done, self.size)
        self.step += 1
        if self.done >= cut.samples:
            self.epoch, self.done = self.epoch + 1, 0
        self._mark()
        if self.records is None:
            return
        # Before anything is saved: the answer tells that all ranks have come so far.
        stops, loss = self._agreed()
        now = time.monotonic()
        if self.rank == 0:
            is_due = core.is_due(self.step, now, self._saved_at, self._cost, every)
            if stops or is_due:
                self.save()
            if stops or now - self._said_at >= _SAY_EVERY:
                self._say_step(self.records, loss)
                self._said_at = now
        if stops:
            distributed.barrier()  # nobody begins anew before it is saved
            until = time.monotonic() + _AGENT_WITHIN
            while not self.wanted and time.monotonic() < until:
                time.sleep(0.005)
            os._exit(AGAIN)

    def _mark(self) -> None:
        """What a forward pass changes is remembered as it is now."""
        self._undisturbed = True
        if self.records is None:
            return
        self._random = _random()
        model = self.kept.get("model")
        if model is not None and hasattr(model, "named_buffers"):
            saved = model.state_dict()
            held = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
            self._buffers = {name: buffer.detach().clone() for name, buffer in held}

    def _agreed(self) -> tuple[bool, float | None]:
        """Whether any rank is to stop, and the loss over all that told one."""
        import torch
        from torch import distributed

        loss, self._loss = self._loss, None
        # One message for all that ranks have to tell each other: each costs every step a round
        # trip.
        sums = torch.tensor(
            [float(self.wanted), loss or 0.0, float(loss is not None)], dtype=torch.float64
        )
        if self.size > 1:
            distributed.all_reduce(sums)
        stops, total, count = sums.tolist()
        return stops > 0, total / count if count else None

    def report(self, values: Mapping[str, Any]) -> None:
        said = plain(values)
        if isinstance(loss := said.pop("loss", None), float | int):
            self._loss = float(loss)
        self._more = said

    def _say_step(self, records: Records, loss: float | None) -> None:
        more = {key: value for key, value in self._more.items() if key not in _TAKEN}
        words = {"step": self.step, "epoch": self.epoch, **more}
        records.add("step", **words, **({} if loss is None else {"loss": loss}))

    def over(self, result: Any) -> None:
        """The function has returned."""
        if self.rank == 0 and self.records is not None:
            self.save()
            if self.has_begun:
                self._say_step(self.records, None)
            with contextlib.suppress(TypeError):
                self.records.add("result", value=plain(result))


_TAKEN: Final = {"at", "event", "step", "epoch"}
_training: _Training | None = None


def _here() -> _Training:
    """The training of this process, which belongs to no job if the process does not."""
    global _training
    if _training is None:
        _training = _Training(None)
    return _training


# -- what people call -------------------------------------------------------------------------


def device() -> Any:
    """The ``torch.device`` of this rank: its GPU, or the CPU where it has none."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def keep(model: Any, optimizer: Any = None, scheduler: Any = None, **more: Any) -> Any:
    """These make up the training's state. Returns the model to call: over all ranks.

    Call it once, when all are made and before the first batch. They get the newest state there is,
    on each rank the same; ``more`` may be anything with ``state_dict`` and ``load_state_dict``.
    What is returned is torch's ``DistributedDataParallel``: its backward pass gives each rank the
    mean of all ranks' gradients.
    """
    here = _here()
    here.keep({"model": model, "optimizer": optimizer, "scheduler": scheduler, **more})
    if here.records is None or not any(one.requires_grad for one in model.parameters()):
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[0] if device().type == "cuda" else None)


def batches(
    data: Any = None,
    *,
    batch: int,
    epochs: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    tail: str = "drop",
    save_every: int | None = None,
    **loader: Any,
) -> Iterator[Any]:
    """This rank's part of each batch of ``data``, a dataset with a length; over all epochs.

    ``batch`` is that of all ranks together: each takes ``batch // ranks``. Choose a number that all
    numbers of ranks divide, and the batch is the same however many train. The last samples of an
    epoch, fewer than there are ranks, are dropped, or with ``tail="pad"`` filled up with others of
    the epoch. ``loader``: what ``torch.utils.data.DataLoader`` takes, such as ``num_workers``.

    When the next batch is asked for, the step before is done; there the job may change, and there
    it is saved: after each ``save_every`` steps, or as often as saving takes at most a tenth of the
    time. ``data`` left out is that of ``elastic.run(data=…)``. Raises :class:`ValueError`.
    """
    import torch

    here = _here()
    here.begin()
    data = here.data if data is None else data
    if data is None:
        raise ValueError("batches: of which data? Say batches(data, …), or elastic.run(data=…).")
    if tail not in (words := [one.value for one in core.Tail]):
        raise ValueError(f"batches: tail={tail!r} is none; say {' or '.join(map(repr, words))}.")
    cut = core.Cut(len(data), batch, core.Tail(tail))
    while here.epoch < epochs:
        # The same order on all ranks and after each start, so that one number says what is done of
        # it.
        chosen = torch.Generator().manual_seed(seed * 1_000_003 + here.epoch)
        order = torch.randperm(cut.samples, generator=chosen) if shuffle else None
        parts = _parts(cut, here.done, here.size, here.rank, order)
        # A generator of its own: the loader must not move the training's random numbers.
        loads = torch.utils.data.DataLoader(
            data, batch_sampler=parts, generator=torch.Generator(), **loader
        )
        epoch = here.epoch
        for part in loads:
            yield part
            here.boundary(cut, save_every)
        if here.epoch == epoch:  # fewer samples were left than there are ranks
            here.epoch, here.done = epoch + 1, 0


def _parts(cut: core.Cut, done: int, size: int, rank: int, order: Any) -> Iterator[list[int]]:
    while done < cut.samples and core.each(cut, done, size):
        places = core.share(cut, done, size, rank)
        yield [int(place if order is None else order[place]) for place in places]
        done = core.after(cut, done, size)


def report(**values: Any) -> None:
    """Say how the step does, such as ``report(loss=loss)``: before the next batch is asked for.

    The loss that is shown is the mean over all ranks. Outside of a job it does nothing.
    """
    _here().report(values)


def world() -> World:
    """Who trains now; outside of a job one rank of one."""
    here = _here()
    here.begin()
    return World(here.rank, here.size, here.step, here.epoch, here.entry)


# -- the worker -------------------------------------------------------------------------------


def main(name: str) -> None:
    """The worker's process, which torch's agent starts: run what is to be trained."""
    global _training
    # Off for the agent only, whose own torch asks for no card: this is what trains.
    os.environ.pop(names.SWITCH, None)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    records = Records(name)
    plan = records.plan()
    _training = here = _Training(records)

    def stop(_number: int, _frame: Any) -> None:
        here.wanted = True
        if not here.has_begun:  # it is a program that does not know us: it ends as it would
            os._exit(AGAIN)

    signal.signal(signal.SIGTERM, stop)
    _joined()
    if plan.job.folder and os.path.isdir(plan.job.folder):
        os.chdir(plan.job.folder)
    sys.path += [place for place in plan.job.path if place not in sys.path]
    try:
        if plan.command:
            result = None
            sys.argv = [*plan.command]
            sys.path.insert(0, os.path.dirname(os.path.abspath(plan.command[0])))
            try:
                runpy.run_path(plan.command[0], run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
        else:
            train, here.data = pickle.loads(plan.job.train)
            result = train()
        here.over(result)
    except BaseException as error:  # noqa: BLE001 - whatever ended it is to be said
        _ended_by(error, here, records)


def _ended_by(error: BaseException, here: _Training, records: Records) -> None:
    text = traceback.format_exc()
    print(text, file=sys.stderr, flush=True)
    if is_of_a_peer(error):
        here.save_after_loss()
    else:
        # The leader reads it and ends the job. To the agent it is an end like any other.
        records.add("fault", rank=here.rank, text=text[-20000:])
    os._exit(AGAIN)


def is_of_a_peer(error: BaseException) -> bool:
    """Whether another rank's end is what ended this one."""
    from torch import distributed

    if isinstance(error, distributed.DistError):
        return True
    said = str(error)
    words = ("gloo", "Connection closed by peer", "Connection reset", "NCCL")
    return isinstance(error, RuntimeError) and any(word in said for word in words)


def _joined() -> None:
    """The import hook's work, for torch is there already: this process joins the agent's lease."""
    import torch

    from .._boot import install
    from ..client.acquire import after_framework, before_framework

    install()
    before_framework("torch")
    after_framework("torch", torch)


def _end_with_parent() -> None:
    import multiprocessing

    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(AGAIN)


def _bytes_of(held: Any) -> Any:
    """A tensor's memory, which is there only as long as the tensor; other things have none."""
    if not hasattr(held, "data_ptr"):
        return b""
    tensor = held.detach().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    # Not by NumPy, which may be missing and lacks some of torch's types, such as bfloat16.
    return bytes((ctypes.c_char * size).from_address(tensor.data_ptr())) if size else b""


def _random() -> dict[str, Any]:
    """The random generators' states."""
    import torch

    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random(state: Mapping[str, Any]) -> None:
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"].cpu())
