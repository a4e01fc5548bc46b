"""``python tests/hardware/run.py``: what can only be measured on a GPU, in ten minutes.

Each section runs in a process group of its own with a time limit; what it has
noted until then is kept. The report is written anew after every section, so
that even a host that hangs leaves what came before. docs/hardware/README.md
says how to run it and how to read it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from hardware.sections import SECTIONS  # noqa: E402 - found by the lines above

GIB, MIB = 2**30, 2**20
#: Seconds kept back to write the report.
RESERVE = 5.0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, default=Path("hardware-report.json"))
    parser.add_argument("--budget", type=float, default=590.0, help="seconds for everything")
    parser.add_argument("--only", help="sections, with commas between them")
    parser.add_argument("--sizes", default="1,8,32", help="GiB to park (MiB in a rehearsal)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a GPU: the tests' pretend driver, torch on the CPU, MiB for GiB",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    began = time.monotonic()
    chosen = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := [name for name in chosen if name not in SECTIONS]:
        raise SystemExit(f"no such sections: {', '.join(unknown)}")
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rehearsal": options.rehearse,
        "commit": _commit(),
        "sections": {},
    }
    with world(options.rehearse) as environ, tempfile.TemporaryDirectory() as scratch:
        for name in chosen:
            left = began + options.budget - RESERVE - time.monotonic()
            # A rehearsal may be one of many things on a small machine, and measures nothing.
            limit = min(SECTIONS[name][1] * (4 if options.rehearse else 1), left)
            orders = {
                "rehearse": options.rehearse,
                "unit": MIB if options.rehearse else GIB,
                "sizes": [int(size) for size in options.sizes.split(",")],
                "repeats": options.repeats,
                "until": time.monotonic() + limit,
                "result": os.path.join(scratch, f"{name}.json"),
            }
            print(f"{name} …", end=" ", flush=True)
            at = time.monotonic()
            section = run_section(name, orders, environ, limit) if limit > 5 else _no_time()
            section["seconds"] = round(time.monotonic() - at, 3)
            report["sections"][name] = section
            report["seconds"] = round(time.monotonic() - began, 3)
            write(options.report, report)
            notes = section["notes"]
            why = "".join(f"; {notes[name]}" for name in ("skipped", "lacks") if name in notes)
            print(f"{section['result']} ({section['seconds']:.1f} s){why}", flush=True)
            for aim in notes.get("aims", ()):
                judged = "passed" if aim["met"] else "FAILED"
                word = "rehearsed" if options.rehearse else judged
                print(f"  {word}: {aim['what']}: {aim['got']:.3g}, {aim['wanted']}")
    results = [section["result"] for section in report["sections"].values()]
    print(f"{len(results)} sections, {results.count('ok')} ok; the report is {options.report}")
    return 0 if all(result in ("ok", "skipped") for result in results) else 1


def run_section(
    name: str, orders: dict[str, Any], environ: dict[str, str], limit: float
) -> dict[str, Any]:
    """What became of one section: ``result`` and its notes."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, os.fspath(HERE / "sections.py"), name, json.dumps(orders)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        try:
            process.wait(limit)
            result = None if process.returncode == 0 else f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            result = "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        output.seek(0)
        tail = output.read()[-4000:]
    try:
        notes = json.loads(Path(orders["result"]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        notes = {}
    if result is None:
        done = [word for word in ("done", "skipped", "failed") if word in notes]
        result = {"done": "ok"}.get(done[0], done[0]) if done else "said nothing"
    section = {"result": result, "notes": notes}
    if result not in ("ok", "skipped"):
        section["output"] = tail
    return section


def _no_time() -> dict[str, Any]:
    return {"result": "no time", "notes": {}}


@contextmanager
def world(rehearse: bool) -> Iterator[dict[str, str]]:
    """The environment of the sections."""
    paths = [os.fspath(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environ["JUPYTER_GPUSHARE"] = "off"  # no section is to ask for a lease by itself
    if not rehearse:
        yield environ
        return
    from support.cuda import CudaWorld, build_stubs

    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        pretend = CudaWorld(build_stubs(Path(folder, "stubs")), Path(folder, "gpus.state"))
        pretend.add_gpu(memory=141 * MIB, reserved=MIB, name="Pretend GPU")
        pretend.set_context(MIB // 2)
        yield pretend.environ(environ)


def write(file: Path, report: dict[str, Any]) -> None:
    scratch = file.with_name(file.name + ".new")
    scratch.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    scratch.replace(file)


def _commit() -> str | None:
    with suppress(OSError):
        done = subprocess.run(
            ["git", "-C", os.fspath(ROOT), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() or None
    return None


if __name__ == "__main__":
    raise SystemExit(main())
