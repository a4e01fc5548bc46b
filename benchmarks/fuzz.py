"""Many inputs into everything that reads what others wrote: ``make fuzz``.

By itself it makes inputs from good ones (``tests/support/fuzz``). With ``--atheris TARGET`` the
inputs are found by coverage (``pip install atheris``), until Ctrl-C or ``--inputs``. It fails at
an exception that is not declared, at an input that takes longer than ``--patience``, and when
memory or file descriptors have grown between the first fifth and the end.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.fuzz.mutate import mutate  # noqa: E402
from support.fuzz.targets import Target, all_targets  # noqa: E402

GROWTH = 24 * 2**20  # bytes that may come from caches and fragments


class Hang(Exception):
    """An input took too long."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Hang


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fuzz(target: Target, inputs: int, seed: int, patience: float) -> dict[str, Any]:
    """Feed ``inputs`` inputs to one target; what came of it."""
    rng = random.Random(f"{seed} {target.name}")
    failures: list[dict[str, str]] = []
    began, longest = time.perf_counter(), 0.0
    memory = files = 0
    for number in range(inputs):
        if number == inputs // 5:
            gc.collect()
            memory, files = resident(), descriptors()
        data = mutate(rng, target.seeds)
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, patience)
        try:
            target.run(data)
        except Exception as error:  # noqa: BLE001 - any is a finding
            failures.append({"error": repr(error), "input": base64.b64encode(data).decode()})
            if len(failures) >= 10:
                break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        longest = max(longest, time.perf_counter() - start)
    gc.collect()
    grown = resident() - memory
    # A leak has one for each input; a file or two come and go with what else the process does.
    if grown > GROWTH or descriptors() > files + 3:
        failures.append({"error": f"grown by {grown} bytes, {descriptors() - files} files"})
    return {
        "target": target.name,
        "inputs": number + 1 if inputs else 0,
        "seconds": round(time.perf_counter() - began, 1),
        "longest_ms": round(longest * 1e3, 1),
        "grown_bytes": grown,
        "failures": failures,
    }


def by_coverage(name: str, inputs: int) -> None:
    """Let atheris find the inputs, beginning with the seeds."""
    import atheris

    for loaded in [module for module in sys.modules if module.startswith(("support", "jupyter_"))]:
        del sys.modules[loaded]
    with atheris.instrument_imports(include=["jupyter_gpushare"]):
        from support.fuzz import targets
    target = next(target for target in targets.all_targets() if name in target.name)
    corpus = Path(tempfile.mkdtemp(prefix="gpushare-corpus-"))
    for number, seed in enumerate(target.seeds):
        (corpus / f"{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], f"-runs={inputs}", "-max_len=4096", str(corpus)], target.run)
    atheris.Fuzz()


def main() -> int:
    """Exit status 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds for one input")
    parser.add_argument("--atheris", default=None, metavar="TARGET")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.atheris is not None:
        by_coverage(options.atheris, options.inputs)
        return 0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGALRM, _alarm)
    results = []
    for target in all_targets():
        count = max(20, round(options.inputs * target.share))
        results.append(fuzz(target, count, seed, options.patience))
        print(json.dumps(results[-1]), flush=True)
    failed = sum(len(result["failures"]) for result in results)
    document = {
        "seed": seed,
        "inputs": sum(result["inputs"] for result in results),
        "failures": failed,
        "targets": results,
    }
    print(f"{document['inputs']} inputs, {failed} failures")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
