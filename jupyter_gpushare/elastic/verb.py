"""``jupyter gpushare elastic -- python train.py``: a training that grows and shrinks."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..console.verb import COMMAND, Refused, UsageError, WithCommand, number, option
from ..jobs.jobverb import JobVerb
from .core import Phase
from .records import Follower, Records
from .running import Job, begun, load

#: What may stand before the script: a worker runs the script in a Python of its own anyway.
_PYTHONS = ("python", "python3")


def _is_python(words: list[str]) -> bool:
    return bool(words) and os.path.basename(words[0]) in _PYTHONS


class ElasticApp(WithCommand, JobVerb):
    """Run a PyTorch program once on each idle GPU of this host, like torchrun, but
    with a number that changes: when a GPU becomes idle the training grows, and when a notebook
    wants one back it goes on with one less. The program takes its samples from
    jupyter_gpushare.elastic.batches and names its state with elastic.keep. Each GPU is a lease of
    the class batch. After Ctrl-C, or when this program or the machine died, --resume goes on from
    the newest checkpoint."""

    name = "elastic"
    arguments = "-- python FILE [ARGUMENT …]"
    examples = """
    jupyter gpushare elastic --max-gpus 4 --memory 8GiB --name digits -- python train.py --lr 1e-3
    jupyter gpushare elastic --list
    jupyter gpushare elastic --resume digits
    jupyter gpushare elastic --delete digits

    The exit code is 0 where the training is done, else 1; 130 after Ctrl-C. The workers print to a
    file that is named at the beginning.
    """

    records = Records
    listed_as = "jobs"
    stopping = " after the step under way."

    min_gpus = option(
        1, "It trains with so many at least, else it waits. Default: 1.", number(1, 1024)
    )
    max_gpus = option(8, "It takes so many at most. Default: 8.", number(1, 1024))

    def row(self, records: Records) -> dict[str, Any]:
        status = Follower(records).read()
        # Whoever led it may have died without a word.
        state = status.phase.value if status.is_over or records.is_run() else "stopped"
        return {"name": status.name, "state": state, "step": status.step, "epoch": status.epoch}

    def begun(self, arguments: list[str]) -> Job:
        if self.resume:
            return load(self.resume)
        program = arguments[1:] if _is_python(arguments[:1]) else arguments
        if not program:
            raise UsageError(f"which program? {COMMAND} elastic -- python train.py")
        if program[0].startswith("-"):
            raise UsageError(
                f"{program[0]} is an option of Python, and workers get none: name the program's "
                f"file. {COMMAND} elastic -- python train.py"
            )
        if not os.path.isfile(program[0]):
            raise Refused(
                f"{program[0]}: there is no such file here. Name the file of a Python program: "
                f"{COMMAND} elastic -- python train.py",
                "bad_request",
            )
        return begun(
            b"",
            [os.path.abspath(program[0]), *program[1:]],
            self.min_gpus,
            self.max_gpus,
            self.job_name or None,
            self.memory,
        )

    def follow(self, running: Job) -> None:
        print(f"{COMMAND}: what the workers print is in {running.output}", file=sys.stderr)
        heard, phase = 0, ""
        over = False
        while not over:
            over = running.wait(0.5)
            status = running.status()
            for at, text in status.said[heard:]:
                print(f"{at:8.1f} s  {text}", file=sys.stderr, flush=True)
            heard = len(status.said)
            now = f"{status.phase.value}: {status.reason}" if status.reason else ""
            if now and now != phase:
                print(f"{running.seconds:8.1f} s  {now}", file=sys.stderr, flush=True)
            phase = now

    def told(self, running: Job) -> int:
        status = running.status()
        self.say(
            {
                "name": status.name,
                "phase": status.phase.value,
                "reason": status.reason,
                "step": status.step,
                "epoch": status.epoch,
                "restarts": status.restarts,
                "result": running.result(),
                "checkpoint": str(running.checkpoint() or ""),
            },
            str(status),
        )
        if status.phase in (Phase.FAILED, Phase.STOPPED) and not self.json:
            print(f"Go on: {COMMAND} elastic --resume {running.name}", file=sys.stderr)
        return 0 if status.phase is Phase.DONE else 1
