"""``jupyter gpushare sweep FILE --over lr=1e-4,1e-3``: many models on the GPUs that idle."""

from __future__ import annotations

import ast
import itertools
import os
import sys
from dataclasses import replace
from typing import Any

from ..console.verb import COMMAND, Refused, UsageError, flag, number, option, options
from ..protocol.tables import table
from ..protocol.words import did_you_mean
from .best import Best
from .jobverb import JobVerb
from .records import Records
from .sweeps import Look, Status, Sweep, sweep
from .worker import Code


def read_over(text: str) -> tuple[str, list[Any]]:
    """``lr=1e-4,1e-3``: a name and its values. Raises `UsageError`."""
    name, equals, values = text.partition("=")
    if not equals or not name.isidentifier() or not values:
        raise UsageError(f"--over={text} cannot be used: say a name and values, lr=1e-4,1e-3")
    return name, [_value(value) for value in values.split(",")]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


class SweepApp(JobVerb):
    """Try many models on the GPUs that nobody uses: call the function train of FILE
    once for each combination of the values given by --over, each time in a process of its own under
    a lease of the class batch. What each returns is written down at once. After Ctrl-C, or when
    this program or the machine died, --resume goes on, and no model is run twice that has a result.
    --list and --show look at sweeps from any terminal, also while another program runs them. On one
    host this is all; on many it uses the Ray cluster that RAY_ADDRESS names."""

    name = "sweep"
    arguments = "FILE"
    examples = """
    jupyter gpushare sweep train.py --over lr=1e-4,1e-3 --over depth=2,4 --memory 8GiB
    jupyter gpushare sweep --list
    jupyter gpushare sweep --show sweep-20260101-120000
    jupyter gpushare sweep --resume sweep-20260101-120000 --retry
    jupyter gpushare sweep --delete sweep-20260101-120000

    The exit code is 0 where all models have a result, else 1; 130 after Ctrl-C. With --json a
    number that is none (NaN, infinite) is null.
    """

    records = Records
    listed_as = "sweeps"
    stopping = "; models that can save do so."
    alone = (*JobVerb.alone, "show")

    over = options("A name of train's arguments and its values: lr=1e-4,1e-3.")
    function = option("train", "The function of FILE to call. Default: train.")
    retry = flag("With --resume: models that have failed run again.")
    show = option("", "Show the results of the sweep of this name, and how it stands.")
    least = option("", "The best model is the one with the least of this number of its result.")
    most = option("", "The best model is the one with the most of this number of its result.")
    gpus = option(1, "GPUs for each model, of one host. Default: 1.", number(1, 1024))
    pick = option(
        "random",
        "Which idle GPU is next: random, or most-free. Default: random.",
        choices=("random", "most-free"),
    )
    seed = option(0, "The seed of the random picks. Default: 0.", number(0, 2**62))
    engine = option(
        "",
        "here: this host alone; ray: all hosts of a Ray cluster. Default: ray where RAY_ADDRESS is"
        " set.",
        choices=("here", "ray"),
    )

    def run(self, arguments: list[str]) -> int:
        if self.least and self.most:  # before hours of models, not after them
            raise UsageError("say --least or --most, not both")
        return super().run(arguments)

    def row(self, records: Records) -> dict[str, Any]:
        status = Look(records).status()
        counts = {phase.value: count for phase, count in status.counts.items()}
        state = "ended" if not counts["queued"] else "stopped"
        return {"name": records.name, "state": state if status.is_over else "runs", **counts}

    def looked(self) -> int | None:
        if not self.show:
            return super().looked()
        look = sweep.look(self.show)
        if not self.json:
            print(self._status(look))
        self.told(look)
        return 0

    def _best(self, look: Look) -> Best | None:
        most = bool(self.most) or None
        return look.best(self.least or self.most or None, False if self.least else most)

    def _status(self, look: Look) -> Status:
        """How it stands, with the best model by the number that was named."""
        return replace(look.status(), best=self._best(look))

    def begun(self, arguments: list[str]) -> Sweep:
        engine = self.engine or None
        if self.resume:
            return sweep.load(self.resume, engine=engine, retry=self.retry)
        if self.retry:
            raise UsageError("--retry is for a sweep that there is: --resume NAME --retry")
        if len(arguments) != 1:
            raise UsageError("which file? jupyter gpushare sweep train.py --over lr=1e-4,1e-3")
        if not self.over:
            raise UsageError("over what? --over lr=1e-4,1e-3")
        (path,) = arguments
        over = [read_over(text) for text in self.over]
        names = [name for name, _ in over]
        if len(set(names)) < len(names):
            raise UsageError(f"--over names an argument twice: {', '.join(names)}")
        return sweep(
            Code(os.path.abspath(path), _text(path, self.function), self.function),
            [
                dict(zip(names, values, strict=True))
                for values in itertools.product(*(values for _, values in over))
            ],
            gpus=self.gpus,
            memory=self.memory,
            name=self.job_name or None,
            pick=self.pick,
            seed=self.seed,
            engine=engine,
        )

    def follow(self, running: Sweep) -> None:
        shown, live, over = "", sys.stderr.isatty(), False
        while not over:
            over = running.wait(0.5)
            if (text := str(self._status(running))) != shown:
                back = f"\x1b[{shown.count(chr(10)) + 1}F\x1b[J" if live and shown else ""
                print(f"{back}{text}", file=sys.stderr, flush=True)
                shown = text

    def told(self, look: Look) -> int:
        status, models = self._status(look), look.models()
        rows, best, named = [model.row for model in models], status.best, self.least or self.most
        if named and best is None:
            known = {name for model in models for name in model.came}
            print(
                f"{COMMAND}: no result has a number {named}{did_you_mean(named, known)}",
                file=sys.stderr,
            )
        if self.json:
            found = None if best is None else best.number
            words = {"name": look.name, "error": status.error, "best": found, "models": rows}
            self.print_json(words)
        else:
            columns = list(dict.fromkeys(key for row in rows for key in row))
            lines = [[_cell(key, row.get(key)) for key in columns] for row in rows]
            print(table([key.upper() for key in columns], lines))
            if best is not None:
                print(best)
        return 0 if all(row["phase"] == "done" for row in rows) else 1


def _cell(key: str, value: Any) -> object:
    if key == "error" and value:
        return value.strip().rpartition("\n")[2]
    # Two decimals would make all learning rates 0.00.
    return f"{value:.6g}" if isinstance(value, float) else value


def _text(path: str, function: str) -> str:
    """The file's text. Raises `Refused` where it cannot be what a sweep runs."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        tree = ast.parse(text, path)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", "bad_request") from None
    except (SyntaxError, ValueError) as error:
        raise Refused(f"{path} is no Python: {error}", "bad_request") from None
    if not any(function in _names(node) for node in tree.body):
        raise Refused(
            f"{path} defines no function {function}: write it, or name another one by --function.",
            "bad_request",
        )
    return text


def _names(node: ast.stmt) -> set[str]:
    """What a statement at the top of a file may define."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
