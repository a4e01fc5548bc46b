"""A real training program is stopped for a person, waits in the queue, and goes on, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from support.cuda import children_of
from support.kernel import Kernel
from support.livenode import CLI, LiveNode, until
from support.node import token_file

from jupyter_gpushare.client.errors import PREEMPTED

STEPS = 400
ASKS = ("run", "--class", "interactive", "--", "true")
RUN = (*CLI, "run", "--memory", "20GiB")
WITHIN = 120.0  # seconds; torch is imported several times, on a busy machine

#: What docs/batch.md shows, with a data set, a scheduler, dropout, and a log of what was done.
TRAINING = """
import json, os, sys, time
import torch
import jupyter_gpushare as gpushare

checkpoint, result, steps, wait_at = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.97)
parts = {"net": net, "optimizer": optimizer, "scheduler": scheduler}
step, losses = 0, []
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["rng"])
    step, losses = saved["step"], saved["losses"]

def state():
    told = {name: part.state_dict() for name, part in parts.items()}
    return {**told, "rng": torch.get_rng_state(), "step": step, "losses": losses}

@gpushare.on_preempt
def save():
    torch.save(state(), checkpoint + ".new")
    os.replace(checkpoint + ".new", checkpoint)

while step < steps:
    inputs = torch.randn(32, 16)
    loss = torch.nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    losses.append(loss.item())
    print("step", step, flush=True)
    gpushare.checkpoint()
    while step == wait_at and os.environ["JUPYTER_GPUSHARE_RESTARTS"] == "0":
        time.sleep(0.01)  # the GPU computes until the program is asked to stop
        gpushare.checkpoint()
torch.save(state(), result)
"""


@contextmanager
def live(folder: Path, **policy: float) -> Iterator[LiveNode]:
    """One GPU, and people known by tokens: the programs are Bob's."""
    options = [f"--Policy.{name}={value}" for name, value in policy.items()]
    with LiveNode(folder, "1x24GiB", token_file(folder, "bob", "carol"), *options) as running:
        running.environ.update(person("bob"))
        yield running


def person(name: str) -> dict[str, str]:
    return {"JUPYTER_GPUSHARE_TOKEN": name}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with live(tmp_path, stop_after=0.5, stop_grace=60) as running:
        yield running


def read(path: Path) -> dict[str, Any]:
    return dict(torch.load(path))


def same(one: object, other: object) -> bool:
    """Bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def lines(path: Path, word: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(word)]


class Batch:
    """``run --requeue`` of a script; what it prints is in files."""

    def __init__(
        self, node: LiveNode, script: Path, *arguments: str, signal_: str = "TERM"
    ) -> None:
        self.out, self.err = script.with_suffix(".out"), script.with_suffix(".err")
        command = [*RUN, "--requeue", "--stop-signal", signal_, "--", sys.executable]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, str(script), *arguments],
                env=node.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def has(self, word: str, least: int) -> None:
        """Wait until it has printed so many lines that begin so."""
        until(lambda: len(lines(self.out, word)) >= least or self._ended(), word, WITHIN)

    def ends(self, code: int = 0) -> None:
        assert self.process.wait(WITHIN) == code, self.err.read_text()

    def _ended(self) -> bool:
        assert self.process.poll() is None, self.err.read_text()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it and its command, which would live on."""
        commands = children_of(self.process.pid) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait(60)
        for command in commands:
            with suppress(ProcessLookupError):
                os.kill(command, signal.SIGKILL)


@contextmanager
def carol_asks(node: LiveNode) -> Iterator[None]:
    """A person's command that wants the GPU."""
    with node.spawn(*ASKS, environ=person("carol")) as carol:
        try:
            yield
            _out, said = carol.communicate(timeout=60)
            assert carol.returncode == 0, said
        finally:
            carol.kill()


def has_its_turn(node: LiveNode) -> None:
    """Carol's command has had the GPU, and has ended."""
    done = node.cli(*ASKS, environ=person("carol"))
    assert done.returncode == 0, done.stderr


def plain(tmp_path: Path) -> dict[str, Any]:
    """The end of the same training without us, and undisturbed."""
    script, result = tmp_path / "plain.py", tmp_path / "plain.pt"
    script.write_text(TRAINING)
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "no.pt"), str(result), str(STEPS), "0"],
        env={**os.environ, "JUPYTER_GPUSHARE": "off"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=WITHIN,
    )
    return read(result)


def test_it_stops_for_a_persons_kernel_and_goes_on_bit_for_bit(
    node: LiveNode, tmp_path: Path
) -> None:
    script, result = tmp_path / "train.py", tmp_path / "result.pt"
    script.write_text(TRAINING)
    with Batch(node, script, str(tmp_path / "last.pt"), str(result), str(STEPS), "60") as batch:
        batch.has("step", 40)
        (lease,) = node.json("leases")["leases"]
        assert lease["priority_class"] == "batch"
        with Kernel(tmp_path, node.socket, **person("carol")) as kernel:
            kernel.ok("%gpushare request --memory 20GiB")
            (gpu,) = node.json("status")["gpus"]
            assert (gpu["mine"], gpu["reserved"]) == (0, 20 * 2**30), "she has the GPU"
            done = len(lines(batch.out, "step"))
            assert read(tmp_path / "last.pt")["step"] == done < STEPS
            until(lambda: len(node.json("status")["queue"]) == 1, "the program waits", WITHIN)
        batch.ends()
    printed = [int(line.split()[1]) for line in lines(batch.out, "step")]
    assert printed == list(range(1, STEPS + 1)), "no step was lost, and none was done twice"
    assert batch.err.read_text().count("is started again") == 1
    found = read(result)
    for part, value in plain(tmp_path).items():
        assert same(found[part], value), f"{part} is not what it would have been"


#: Counts, and waits halfway until it is to stop; started again it waits at its last step, and then
#: hangs with its checkpoint half written.
TORN = """
import os, sys, time
import jupyter_gpushare as gpushare

checkpoint, result, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
again = os.environ["JUPYTER_GPUSHARE_RESTARTS"]
waits_at = {"0": steps // 2, "1": steps - 1}.get(again)
done = []
if os.path.exists(checkpoint):
    done = list(map(int, open(checkpoint).read().split()))
print("up", again, len(done), flush=True)

def write(path):
    with open(path, "w") as file:
        print(*done, file=file)

@gpushare.on_preempt
def save():
    write(checkpoint + ".new")
    if again == "1":
        os.truncate(checkpoint + ".new", os.path.getsize(checkpoint + ".new") // 2)
        print("saving", os.getpid(), flush=True)
        time.sleep(1000)  # it is killed here
    os.replace(checkpoint + ".new", checkpoint)

while len(done) < steps:
    done.append(len(done) + 1)
    print("step", len(done), flush=True)
    gpushare.checkpoint()
    while len(done) == waits_at:
        time.sleep(0.01)  # it computes until it is asked to stop
        gpushare.checkpoint()
write(result)
"""


def test_one_that_is_killed_while_it_saves_goes_on_from_the_checkpoint_before(
    node: LiveNode, tmp_path: Path
) -> None:
    script, result, last = (tmp_path / name for name in ("torn.py", "result", "last"))
    script.write_text(TORN)
    with Batch(node, script, str(last), str(result), str(STEPS)) as batch:
        batch.has("step", 20)
        has_its_turn(node)
        before = last.read_text().split()
        assert 20 <= len(before) < STEPS - 1
        batch.has("step", STEPS - 1)
        with carol_asks(node):
            batch.has("saving", 1)
            torn = Path(f"{last}.new")
            assert 0 < torn.stat().st_size < last.stat().st_size * STEPS
            assert last.read_text().split() == before, "it is as it was"
            os.kill(int(lines(batch.out, "saving")[0].split()[1]), signal.SIGKILL)
        batch.ends()
    assert lines(batch.out, "up") == ["up 0 0", f"up 1 {len(before)}", f"up 2 {len(before)}"]
    assert result.read_text().split() == [str(step) for step in range(1, STEPS + 1)]


LIGHTNING = """
import os, sys, time
print("up", os.environ["JUPYTER_GPUSHARE_RESTARTS"], flush=True)
if os.environ["JUPYTER_GPUSHARE_RESTARTS"] != "0":
    sys.exit()  # Lightning takes long to load: what is to be done then is done below
import torch
import lightning
from lightning.pytorch.callbacks import OnExceptionCheckpoint

folder, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
last = os.path.join(folder, "last.ckpt")
torch.set_num_threads(1)

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        time.sleep(pause)  # the GPU computes
        # Lightning begins an epoch's data anew: which one comes next goes by the step here.
        torch.manual_seed(self.global_step)
        inputs = torch.randn(4, 8)
        return torch.nn.functional.mse_loss(self.net(inputs), inputs.sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def on_train_batch_end(self, *_):
        print("step", self.global_step, flush=True)

def trained(folder, begin):
    lightning.seed_everything(3)
    net = Net()
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
        callbacks=[OnExceptionCheckpoint(folder, "last")],
    )
    data = torch.utils.data.DataLoader(torch.zeros(200), batch_size=1)
    trainer.fit(net, data, ckpt_path=begin)
    return net.state_dict()

try:
    trained(folder, None)
except SystemExit as stopped:
    code, pause = stopped.code, 0
    # A program that is started again would go on so.
    torch.save(trained(folder, last), os.path.join(folder, "result.pt"))
    print("done", flush=True)
    torch.save(trained(folder, None), os.path.join(folder, "plain.pt"))
    sys.exit(code)
"""


@pytest.mark.skipif(not find_spec("lightning"), reason="no Lightning here")
def test_lightning_stops_by_its_own_hook_and_goes_on(node: LiveNode, tmp_path: Path) -> None:
    script, steps = tmp_path / "fit.py", 50
    script.write_text(LIGHTNING)
    with Batch(node, script, str(tmp_path), str(steps), "0.05") as batch:
        batch.has("step", 10)
        has_its_turn(node)
        batch.ends()
    assert lines(batch.out, "up") == ["up 0", "up 1"], "its code says that it has stopped"
    printed = batch.out.read_text().partition("done")[0]
    steps_done = [int(line.split()[1]) for line in printed.splitlines() if line[:4] == "step"]
    assert steps_done == list(range(1, steps + 1)), "no step was lost, and none was done twice"
    assert batch.err.read_text().count("is started again") == 1
    assert same(read(tmp_path / "result.pt"), read(tmp_path / "plain.pt"))


#: A program with a gate. Torch, by whose import it would ask, takes long to load.
GATED = """
import time
from jupyter_gpushare.client.acquire import broker
import jupyter_gpushare as gpushare

broker().getting.ensure("a test")

@gpushare.on_preempt
def save():
    print("saved", flush=True)

print("up", flush=True)
while True:
    time.sleep(0.02)
    gpushare.checkpoint()
"""


@pytest.mark.parametrize("under_run", [False, True])
def test_a_program_that_said_how_saves_at_its_gate_and_ends_with_75(
    node: LiveNode, tmp_path: Path, under_run: bool
) -> None:
    """For whoever starts it again: nobody does. `run` passes the ask on."""
    script = tmp_path / "gated.py"
    script.write_text(GATED)
    command = [*((*RUN, "--") if under_run else ()), sys.executable, str(script)]
    environ = {**node.environ, "JUPYTER_GPUSHARE_CLASS": "batch"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "up\n"
            has_its_turn(node)
            out, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (out, program.returncode) == ("saved\n", PREEMPTED)


#: A program that is asked by the signal to which it listens, and ends when it is told to, with the
#: exit code that it is told.
TOLD = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("asked", flush=True))
print("up", os.environ["JUPYTER_GPUSHARE_RESTARTS"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
code = int(open(sys.argv[1]).read() or 0)
os.unlink(sys.argv[1])
sys.exit(code)
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[Batch, Path]]:
    """A program that was asked for Carol, and has said that it goes on."""
    script, file = tmp_path / "told.py", tmp_path / "code"
    script.write_text(TOLD)
    with (
        live(tmp_path, stop_after=0.2, stop_grace=0.5) as node,
        Batch(node, script, str(file), signal_="USR1") as batch,
    ):
        batch.has("up", 1)
        with carol_asks(node):
            batch.has("asked", 1)
            yield batch, file


def tells(file: Path, code: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(code))
    new.replace(file)


def test_after_ctrl_c_it_is_not_started_again(waiting: tuple[Batch, Path]) -> None:
    batch, _file = waiting
    batch.process.send_signal(signal.SIGINT)
    assert batch.process.wait(WITHIN) != 0
    assert lines(batch.out, "up") == ["up 0"]


def test_one_that_went_on_and_fails_later_is_not_started_again(
    waiting: tuple[Batch, Path],
) -> None:
    batch, file = waiting
    until(lambda: "goes on" in batch.err.read_text(), "it said that it goes on", WITHIN)
    tells(file, 3)
    batch.ends(3)
    assert lines(batch.out, "up") == ["up 0"]


def test_one_that_took_longer_to_save_is(waiting: tuple[Batch, Path]) -> None:
    batch, file = waiting
    until(lambda: "goes on" in batch.err.read_text(), "it said that it goes on", WITHIN)
    tells(file, PREEMPTED)
    batch.has("up 1", 1)
    tells(file, 0)
    batch.ends()
