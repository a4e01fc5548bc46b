"""One user attacks: what does another one notice? Prints a table; exit 1 past the bar.

Needs root, to be two users. ``--seconds`` is for each attack. The ledger's growth in an hour is
without what may be written at once, before the hour's allowance counts. ``--walls`` is where the
figures of GPU memory go, on doubles of the driver; with ``--only`` and no name there are no others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machine import machine
from support.cuda import build_stubs
from support.hostile import people, scene, walled
from support.node import WITHIN, RunningNode, open_directory
from support.walls import WHY_NOT

from jupyter_gpushare.node.wire.transport import Limits

MIB = 2**20


def hourly(seen: scene.Seen) -> float:
    """Bytes by which the ledger would grow in an hour of it."""
    return max(0, seen.ledger - Limits().recorded_at_once) / seen.seconds * 3600


def memory(told: Path) -> bool:
    """Requests beside two who take all GPU memory, with walls and without; whether it is well."""
    if WHY_NOT:
        print(f"GPU memory: not tried. {WHY_NOT}")
        return True
    seen = {}
    with tempfile.TemporaryDirectory() as stubs, walled.gpus(build_stubs(Path(stubs))) as on:
        for name, each, patience in (("with walls", 100, WITHIN), ("without walls", 10, 2.0)):
            one = walled.play(*on, 10, each, patience, walls=name == "with walls")
            seen[name] = one
            print(f"GPU memory {name}: {json.dumps(one)}", flush=True)
    told.write_text(json.dumps({"machine": machine(), **seen}, indent=1) + "\n")
    one = seen["with walls"]
    most = max(one[who]["most"] for who in ("without a lease", "with a lease"))
    return one["ends"] == {"served": one["requests"]} and most <= walled.ALLOWED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--walls", type=Path)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    is_well = args.walls is None or memory(args.walls)
    if args.only == []:
        return 0 if is_well else 1
    controls = (None, "burn", "burn, five times")
    attacks = [n for n in (*people.PEOPLE, *scene.CROWDS) if n not in (*controls, "honest")]
    if args.only:
        attacks = [n for n in attacks if n in args.only]
    seen: list[scene.Seen] = []
    with open_directory() as place, tempfile.TemporaryDirectory() as private:
        node = RunningNode(
            place,
            simulate="8x24GiB",
            config=scene.CONFIG,
            shared=True,
            ledger=Path(private) / "ledger.sqlite",
        )
        with node:
            for attack in (*controls, *attacks):
                # Several at once: twice as long, or one slow write of the disk would be 1 of 100.
                longer = 2 if attack in scene.CROWDS else 1
                one = scene.play(node, attack, args.seconds * longer)
                seen.append(one)
                hour = hourly(one)
                print(
                    f"{one.name:22} p50 {one.p50 * 1e3:8.1f} ms  p99 {one.p99 * 1e3:8.1f} ms  "
                    f"{one.grants:4} grants  {len(one.refused):3} refused  "
                    f"memory +{one.memory / MIB:6.1f} MiB  ledger {hour / MIB:8.0f} MiB/h  "
                    f"log {one.log / MIB:6.2f} MiB",
                    flush=True,
                )
    quiet, control = seen[0].p99, max(seen[1].p99, seen[2].p99)
    bar = max(5 * quiet, 0.05 if quiet < 0.01 else 0.0, control)
    bad = [
        one
        for one in seen[len(controls) :]
        if one.p99 > bar or one.refused or one.memory > 64 * MIB or hourly(one) > 50 * MIB
    ]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(one) for one in seen]))
    print(f"bar: p99 {bar * 1e3:.1f} ms; past it: {', '.join(s.name for s in bad) or 'none'}")
    return 1 if bad or not is_well else 0


if __name__ == "__main__":
    sys.exit(main())
