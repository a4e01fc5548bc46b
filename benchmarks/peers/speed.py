"""How fast, how many, and what happens in a rush and after a crash.

Each function is one experiment and gives plain data; the workers' own observations are what counts.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from crew import Worker, crew, finish, say, until
from observed import clashes, share, waits
from stage import GPUS, GenvHost, genv_host, our_host, people
from support.nvml import NvmlWorld

Data = dict[str, Any]
Crew = AbstractContextManager[list[Worker]]


def latency(peers: str, rounds: int) -> Data:
    """Request to GPU with nobody else about: from Python, and from a shell."""
    say("latency …")
    found: Data = {}
    with genv_host(peers) as genv, our_host() as ours:
        took: dict[str, list[float]] = {"genv": [], "gpushare": []}
        # In turns, so that a slow moment of the machine meets both.
        for _ in range(4):
            for name, workers in (
                ("genv", crew(peers, "genv_worker.py", [rounds // 4, 0], [genv.environ])),
                (
                    "gpushare",
                    crew(sys.executable, "gpushare_worker.py", [rounds // 4, 0], people(ours, 1)),
                ),
            ):
                with workers as crew_:
                    crew_[0].go()
                    took[name] += waits(finish(crew_))
        for name, values in took.items():
            values.sort()
            found[f"{name}_python_p50_s"] = share(values, 0.5)
            found[f"{name}_python_p99_s"] = share(values, 0.99)
        shells: dict[str, list[float]] = {"genv": [], "gpushare": []}
        activate = 'eval "$(genv shell --init)"; genv activate --gpus 1 --no-prompt >/dev/null; '
        commands = {
            "genv": (["bash", "-c", activate + 'test -n "$CUDA_VISIBLE_DEVICES"'], genv.environ),
            "gpushare": (
                [sys.executable, "-m", "jupyter_gpushare.cli", "run", "--", "true"],
                ours.environ(0),
            ),
        }
        for _ in range(max(3, rounds // 20)):
            for name, (command, environ) in commands.items():
                began = time.monotonic()
                subprocess.run(command, env=environ, check=True, stderr=subprocess.DEVNULL)
                shells[name].append(time.monotonic() - began)
        for name, values in shells.items():
            found[f"{name}_shell_p50_s"] = share(sorted(values), 0.5)
    return found


def calls(peers: str, seconds: float) -> Data:
    """Status calls a second of one Python process, and of commands one after the other."""
    say("calls a second …")
    genv_code = (
        "import sys, time, genv.core, genv.utils\n"
        "stop, n = time.monotonic() + float(sys.argv[1]), 0\n"
        "while time.monotonic() < stop:\n"
        "    with genv.utils.global_lock():\n"
        "        genv.core.devices.snapshot()\n"
        "    n += 1\n"
        "print(n)\n"
    )
    our_code = (
        "import sys, time\nfrom jupyter_gpushare.client import status\nstatus()\n"
        "stop, n = time.monotonic() + float(sys.argv[1]), 0\n"
        "while time.monotonic() < stop:\n    status()\n    n += 1\nprint(n)\n"
    )
    found: Data = {}
    with genv_host(peers) as genv, our_host() as ours:
        genv.run("devices")
        sides: list[tuple[str, str, str, dict[str, str], Callable[[], object]]] = [
            ("genv", peers, genv_code, genv.environ, lambda: genv.run("devices")),
            ("gpushare", sys.executable, our_code, ours.environ(0), lambda: ours.verb(0, "status")),
        ]
        for name, python, code, environ, command in sides:
            done = subprocess.run(
                [python, "-c", code, str(seconds)],
                env=environ,
                check=True,
                capture_output=True,
                text=True,
            )
            found[f"{name}_python_per_s"] = int(done.stdout) / seconds
            began, count = time.monotonic(), 0
            while time.monotonic() < began + seconds:
                command()
                count += 1
            found[f"{name}_command_per_s"] = count / (time.monotonic() - began)
    return found


def churn(peers: str, workers: int, rounds: int) -> Data:
    """Grants and releases a second with several at it at once, and whether any was given twice."""
    say("grants a second …")
    found: Data = {"workers": workers}
    with genv_host(peers) as genv, our_host(people=workers) as ours:
        for name, crowd in (
            ("genv", crew(peers, "genv_worker.py", [rounds, 0], [genv.environ] * workers)),
            (
                "gpushare",
                crew(sys.executable, "gpushare_worker.py", [rounds, 0], people(ours, workers)),
            ),
        ):
            with crowd as crew_:
                began = time.monotonic()
                for worker in crew_:
                    worker.go()
                held = finish(crew_)
                took = max(hold.gone for hold in held) - began
            found[f"{name}_grants_per_s"] = len(held) / took
            found[f"{name}_double"] = clashes(held).picks
    return found


def rush(peers: str, library: Path, crowd: int, startup: float, hold: float) -> Data:
    """So many ask at the same instant for one of the GPUs: how often is one given to two?"""
    found: Data = {"crowd": crowd, "gpus": GPUS, "startup_s": startup, "hold_s": hold}

    def tell(name: str, crew_: list[Worker], gap: float = 0.0) -> None:
        say(f"a rush: {name} …")
        for worker in crew_:
            worker.go()
            time.sleep(gap)
        held = finish(crew_)
        seen = clashes(held)
        took = waits(held)
        found[name] = {
            "double": seen.picks,
            "worst": seen.worst,
            "wait_p50_s": share(took, 0.5),
            "wait_p95_s": share(took, 0.95),
            "all_s": max(h.gone for h in held) - min(h.asked for h in held),
        }

    busy = startup + hold
    with genv_host(peers) as genv:
        environs = [genv.environ] * crowd
        with crew(peers, "genv_worker.py", [1, busy], environs) as crew_:
            tell("genv", crew_)
    with our_host(people=crowd) as ours:
        environs = list(people(ours, crowd))
        with crew(sys.executable, "gpushare_worker.py", [1, busy], environs) as crew_:
            tell("gpushare", crew_)
    for name, pick, size, gap in (
        ("polling, the first idle GPU", "first", crowd, 0.0),
        ("polling, a random idle GPU", "random", crowd, 0.0),
        ("polling, starts apart", "first", 2 * GPUS, startup * 1.5),
    ):
        with polling(library, pick, size, startup, hold) as crew_:
            tell(name, crew_, gap)
    return found


def polling(library: Path, pick: str, crowd: int, startup: float, hold: float) -> Crew:
    """Scripts that poll NVML: the real pynvml over a library of ours that shows who uses what."""
    world = NvmlWorld(library, library / f"state-{random.getrandbits(32):08x}")
    uuids = [world.add_gpu() for _ in range(GPUS)]
    one_at_a_time = threading.Lock()

    def heard(worker: Worker, line: dict[str, Any]) -> None:
        # The process is on the GPU from now until it ends, as the driver would show it.
        if line["event"] == "uses":
            with one_at_a_time:
                world.add_process(uuids[int(line["gpu"])], worker.process.pid, 2 * 2**30)

    arguments = [pick, startup, hold]
    environs = [world.environ()] * crowd
    return crew(sys.executable, "polling_worker.py", arguments, environs, heard)


def sessions(people_: int, gpus: int, cells: int, busy: float, think: float) -> Data:
    """People with a notebook each on fewer GPUs: a GPU for the session, or for the cell.

    Both run on our node manager with its queue, so that only the binding differs.
    """
    say("session binding …")
    found: Data = {"people": people_, "gpus": gpus, "cells": cells, "busy_s": busy}
    found["think_s"] = think
    for mode in ("session", "cell"):
        with our_host(people=people_, gpus=gpus) as ours:
            arguments = [mode, cells, busy, think]
            environs = list(people(ours, people_))
            with crew(sys.executable, "session_worker.py", arguments, environs) as crew_:
                began = time.monotonic()
                for worker in crew_:
                    worker.go()
                held = finish(crew_)
        took = waits(held)
        all_s = max(hold.gone for hold in held) - began
        found[mode] = {
            "wait_p50_s": share(took, 0.5),
            "wait_p95_s": share(took, 0.95),
            "all_s": all_s,
            "busy_share": people_ * cells * busy / (gpus * all_s),
            "double": clashes(held).picks,
        }
    return found


def crash(peers: str, rounds: int) -> Data:
    """``kill -9`` of who holds the only GPU: seconds until the next one has it.

    Once with a parent that waits for its child, as a shell does, and once with one that has not
    yet (the dead process is a zombie).
    """
    say("crashes …")
    found: Data = {}
    for reaped in (True, False):
        key = "reaped" if reaped else "zombie"
        for name in ("genv", "gpushare"):
            took: list[float | None] = []
            for _ in range(rounds if reaped else 1):
                with genv_host(peers, gpus=1) as genv, our_host(people=2, gpus=1) as ours:
                    if name == "genv":
                        script, python = "genv_worker.py", peers
                        environs = [genv.environ] * 2
                    else:
                        script, python = "gpushare_worker.py", sys.executable
                        environs = list(people(ours, 2))
                    with (
                        crew(python, script, [1, 3600], environs[:1]) as first,
                        crew(python, script, [1, 0], environs[1:]) as second,
                    ):
                        first[0].go()
                        until(lambda f=first: f[0].said("got"), "the first has the GPU")
                        second[0].go()
                        time.sleep(0.5)  # nothing may happen: there is no event to wait for
                        assert not second[0].said("got")
                        killed = time.monotonic()
                        first[0].process.send_signal(signal.SIGKILL)
                        if reaped:
                            first[0].process.wait()
                        took.append(_next(second[0], killed, 30.0 if reaped else 10.0))
            found[f"{name}_{key}_s"] = None if None in took else sorted(took)[len(took) // 2]
    found["zombie_patience_s"] = 10.0
    return found


def _next(worker: Worker, killed: float, patience: float) -> float | None:
    try:
        until(lambda: worker.said("got"), "the next one has the GPU", patience)
    except RuntimeError:
        return None
    return float(next(line["got"] for line in worker.told if line["event"] == "got")) - killed


def untouched(peers: str, seconds: float) -> Data:
    """After a crash nobody calls: what does each one's state say after some seconds?"""
    say("a crash that nobody looks at …")
    with (
        genv_host(peers, gpus=1) as genv,
        our_host(people=1, gpus=1) as ours,
        crew(peers, "genv_worker.py", [1, 3600], [genv.environ]) as theirs,
        crew(sys.executable, "gpushare_worker.py", [1, 3600], people(ours, 1)) as our,
    ):
        for crew_ in (theirs, our):
            crew_[0].go()
            until(lambda c=crew_: c[0].said("got"), "it has the GPU")
            crew_[0].process.kill()
            crew_[0].process.wait()
        time.sleep(seconds)  # what is measured: whether time alone frees it
        left = sum(map(len, genv.attached().values()))
        genv.run("devices")
        after = sum(map(len, genv.attached().values()))
        ended = "reason=lost" in ours.node.story()
    return {
        "seconds": seconds,
        "genv_still_attached": left,
        "genv_after_a_call": after,
        "gpushare_ended_by_itself": ended,
    }


def torn(peers: str, rounds: int, seed: int) -> Data:
    """``kill -9`` in the middle of calls, at random instants: can the next one still be served?

    With genv it is the caller that is killed, as it is callers who write the state. With ours it is
    the node manager, which alone writes.
    """
    say("kill -9 in the middle of calls …")
    chance = random.Random(seed)
    found: Data = {"rounds": rounds, "seed": seed}
    broken, example = 0, ""
    with genv_host(peers) as genv:
        for _ in range(rounds):
            _kill_busy(peers, "genv_worker.py", genv.environ, chance)
            done = genv.run("devices")
            if done.returncode:
                broken += 1
                example = done.stderr.strip().splitlines()[-1]
                stays = genv.run("devices").returncode != 0
                found["genv_stays_broken"] = stays
                _forget(genv)
    found |= {"genv_broken": broken, "genv_error": example}
    broken = 0
    with our_host() as ours:
        for _ in range(rounds):
            with crew(
                sys.executable, "gpushare_worker.py", [100000, 0], [ours.environ(0)]
            ) as crew_:
                crew_[0].go()
                time.sleep(chance.uniform(0.05, 0.25))
                ours.node.kill9()
            ours.node.start()
            broken += ours.verb(0, "status").returncode != 0
    found["gpushare_broken"] = broken
    return found


def _kill_busy(python: str, script: str, environ: dict[str, str], chance: random.Random) -> None:
    with crew(python, script, [100000, 0], [environ]) as crew_:
        crew_[0].go()
        time.sleep(chance.uniform(0.05, 0.25))
        crew_[0].process.kill()
        crew_[0].process.wait()


def _forget(host: GenvHost) -> None:
    """What an administrator does then: delete the state."""
    for path in host.state.glob("*.json"):
        path.unlink()
