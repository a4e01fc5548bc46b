"""People are told truly how far a cell is, by whoever counts its steps best.

The loops around the steps tell how many there will be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from tqdm.std import tqdm

from jupyter_gpushare import steps
from jupyter_gpushare.client import acquire
from jupyter_gpushare.client.adapters.trainers import are_followed
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.progress import (
    REPORT_EVERY,
    NamedLoop,
    Progress,
    Source,
)
from jupyter_gpushare.protocol.messages import Method


class Scene:
    """A process's progress, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[int, int | None, float]] = []
        line: Any = SimpleNamespace(session=self)
        own: Any = SimpleNamespace(grant=SimpleNamespace(lease="L"))
        self.progress = Progress(line, own, {}, clock=lambda: self.now)

    def tell(self, _method: Method, *, lease: str, **told: Any) -> None:
        """As a session's."""
        self.told.append((told["done"], told["total"], told["seconds"]))

    def step(self, source: Source = Source.STEP, seconds: float = 1.0) -> None:
        self.now += seconds
        self.progress.ended(source)

    @property
    def totals(self) -> list[int | None]:
        return [total for _done, total, _seconds in self.told]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def bar(*args: Any, **kwargs: Any) -> Any:
    """One that shows each turn at once."""
    return tqdm(*args, file=StringIO(), mininterval=0.0, miniters=1, **kwargs)


def test_it_is_told_after_the_second_step_and_then_now_and_then(scene: Scene) -> None:
    for _ in range(100):
        scene.step(seconds=0.125)
    told = [done for done, _total, _seconds in scene.told]
    every = round(REPORT_EVERY / 0.125)
    assert told == [2, *range(2 + every, 101, every)]
    assert all(seconds == pytest.approx(0.125) for _done, _total, seconds in scene.told)
    assert set(scene.totals) == {None}


def test_the_last_steps_are_told_when_the_work_is_over(scene: Scene) -> None:
    for _ in range(10):
        scene.step(seconds=0.125)
    scene.progress.over()
    scene.progress.over()
    assert [done for done, _total, _seconds in scene.told] == [2, 10]


def test_waits_at_gates_are_no_computing(scene: Scene) -> None:
    for _ in range(10):
        scene.now += 5.0
        scene.progress.waited += 5.0
        scene.step(seconds=1.0)
    assert {round(seconds, 6) for _done, _total, seconds in scene.told} == {1.0}


def test_a_slower_step_is_seen_at_once_and_alone_after_two_reports(scene: Scene) -> None:
    for _ in range(20):
        scene.step(seconds=1.0)
    del scene.told[:]
    for _ in range(10):
        scene.step(seconds=3.0)
    seconds = [round(told[2], 2) for told in scene.told]
    assert 1.0 < seconds[0] < 3.0
    assert set(seconds[2:]) == {3.0}


def test_the_best_source_counts(scene: Scene) -> None:
    """A marked loop whose body has two optimizers is one step a turn."""
    loop = NamedLoop(10)
    with scene.progress.inside(loop):
        for _ in range(10):
            scene.step(Source.CALL)
            scene.step(Source.STEP)
            scene.step(Source.STEP)
            scene.progress.turn_ended(loop)
    assert scene.progress.done == 10
    assert scene.told[-1][:2] == (10, 10)


def test_of_marked_calls_the_last_one_has_not_ended(scene: Scene) -> None:
    for _ in range(3):
        scene.step(Source.CALL)
    assert scene.progress.done == 2


def test_a_cell_begins_anew(scene: Scene) -> None:
    for _ in range(3):
        scene.step(Source.NAMED)
    scene.progress.begins()
    assert scene.progress.done == 0
    scene.step(Source.STEP)
    assert scene.progress.done == 1


@pytest.mark.parametrize(("outer", "total"), [(3, 30), (None, None)])
def test_nested_marked_loops(scene: Scene, outer: int | None, total: int | None) -> None:
    """Where nobody knows how often the inner one runs, its own turns are those that are known."""
    around = NamedLoop(outer)
    with scene.progress.inside(around):
        for turn in range(3):
            inner = NamedLoop(10)
            with scene.progress.inside(inner):
                for _ in range(10):
                    scene.now += 1.0
                    scene.progress.turn_ended(inner)
            scene.progress.turn_ended(around)
            assert scene.progress.done == 10 * (turn + 1)
    if total is None:
        assert scene.totals[0] == 10
        assert scene.totals[-1] == 30, "ten more, each time"
    else:
        assert set(scene.totals) == {total}


def test_a_loop_that_is_left_is_forgotten(scene: Scene) -> None:
    outer, inner = NamedLoop(100), NamedLoop(10)
    first, second = scene.progress.inside(outer), scene.progress.inside(inner)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as the garbage collector may have it
    second.__exit__(None, None, None)
    for _ in range(4):
        scene.step()
    assert set(scene.totals) == {None}


# -- tqdm's bars ------------------------------------------------------------------------


def test_bars_in_bars(scene: Scene) -> None:
    for _ in bar(range(3)):
        for _ in bar(range(20)):
            scene.step()
    assert set(scene.totals) == {60}
    scene.progress.begins()
    scene.told.clear()
    for _ in bar(range(40)):
        scene.step()
    assert set(scene.totals) == {40}
    assert len(scene.totals) > 10


def test_a_bar_of_epochs_is_understood_from_the_second_one_on(scene: Scene) -> None:
    for _ in bar(range(5)):
        for _ in range(50):
            scene.step()
    before, after = scene.totals[:20], scene.totals[30:]
    assert set(before) == {None}
    assert all(total is not None and abs(total - 250) <= 50 for total in after)
    assert abs((scene.totals[-1] or 0) - 250) <= 2


def test_a_bar_of_batches_of_which_four_are_a_step(scene: Scene) -> None:
    for batch in bar(range(400)):
        if batch % 4 == 3:
            scene.step()
    assert all(total is not None and abs(total - 100) <= 1 for total in scene.totals[1:])


def test_a_bar_that_lags_behind(scene: Scene) -> None:
    """It shows its turns ten at a time, as it does where a turn is quick."""
    with tqdm(total=1000, file=StringIO(), mininterval=0.0) as shown:
        for number in range(1000):
            scene.step(seconds=0.1)
            if number % 10 == 9:
                shown.update(10)
    known = [total for total in scene.totals if total is not None]
    assert len(known) > 40
    assert all(abs(total - 1000) <= 10 for total in known)


def test_other_bars_do_not_count(scene: Scene) -> None:
    old = bar(total=1000)
    old.start_t -= 3600.0  # of an earlier cell, in which it was left
    full = bar(range(3))
    list(full)
    silent = tqdm(range(100), disable=True)
    for _ in silent:
        scene.step()
    endless = bar(iter(int, 1))
    for _ in range(5):
        scene.step()
    assert set(scene.totals) == {None}
    for one in (old, full, silent, endless):
        one.close()


def test_a_trainers_broken_figures_do_not_reach_the_loop(scene: Scene) -> None:
    class Broken:
        n = 0

        @property
        def total(self) -> float:
            raise RuntimeError("no data yet")

    with scene.progress.inside(Broken()):
        for _ in range(5):
            scene.step()
    assert set(scene.totals) == {None}


# -- trainers ---------------------------------------------------------------------------


def test_transformers_trainer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the names that transformers 4 and 5 have."""

    class Trainer:
        def __init__(self, steps: int) -> None:
            self.state = types.SimpleNamespace(max_steps=steps, global_step=0)

        def train(self, resume_from_checkpoint: int = 0) -> str:
            self.state = types.SimpleNamespace(
                max_steps=self.state.max_steps, global_step=resume_from_checkpoint
            )
            for _ in range(resume_from_checkpoint, self.state.max_steps):
                scene.step()
                self.state.global_step += 1
            return "done"

    module = types.ModuleType("transformers.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    are_followed(scene.progress)
    assert Trainer(60).train(resume_from_checkpoint=20) == "done"
    assert set(scene.totals) == {40}, "those of this cell"
    scene.progress.begins()
    scene.told.clear()
    for _ in range(5):
        scene.step()
    assert set(scene.totals) == {None}, "it trains no more"


LIGHTNING = """
import json, sys
told = []
from jupyter_gpushare.client.adapters.trainers import are_followed
from jupyter_gpushare.client.session.progress import Progress, Source
progress = Progress(None, None, {})
progress._tell = lambda *what: told.append(what)
are_followed(progress)
import torch
import lightning
sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(
    lambda *_: progress.ended(Source.STEP))

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch).sum()
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

lightning.Trainer(max_epochs=3, accumulate_grad_batches=2, logger=False, accelerator="cpu",
    enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=True).fit(Model())
print(json.dumps({"first": told[0][:2], "done": progress.done}))
"""


def test_lightnings_trainer() -> None:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHTNING],
        env={**os.environ, "JUPYTER_GPUSHARE": "off"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"first": [2, 12], "done": 12}


# -- `steps` ---------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a broker would tell that only writes it down."""
    broker, told = Broker({}), list[Any]()
    broker.progress._tell = lambda *what: told.append(what[:2])  # type: ignore[method-assign]
    monkeypatch.setattr(acquire._process, "_broker", broker)
    return told


def test_steps_tells_how_many(told: list[Any]) -> None:
    for loader in (steps(range(7)), steps(iter(range(7))), steps(iter(range(7)), total=7)):
        acquire.broker().progress.begins()
        for _ in loader:
            pass
        assert acquire.broker().progress.done == 7
    assert told == [(2, 7), (2, None), (2, 7)]


def test_a_loop_that_breaks_is_over(told: list[Any]) -> None:
    for number in steps(range(9)):
        if number == 4:
            break
    assert acquire.broker().progress.done == 4
    assert acquire.broker().progress._loops == []
    assert told == [(2, 9)]
