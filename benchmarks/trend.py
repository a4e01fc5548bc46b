"""What gets slower: the ratios of the benchmarks, one line a run in docs/trend.jsonl.

A ratio compares two things that one run measured on one machine by turns, so lines of different
machines can stand below each other. `add` takes the ratios from the pages' JSON files and writes
docs/trend.md; `check` (which the tests do, too) fails where the newest ratio is worse than the
median of the five before it by more than its factor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TREND = DOCS / "trend.jsonl"
PAGE = DOCS / "trend.md"
#: Lines before the newest that it is compared with.
BEFORE = 5


@dataclass(frozen=True, slots=True)
class Watched:
    """A ratio, higher is worse: where it comes from, and by what factor it may get worse."""

    name: str
    file: str
    read: Callable[[Any], float]
    factor: float


def figure(name: str) -> Callable[[Any], float]:
    """The value of a figure by its name."""

    def read(data: Any) -> float:
        return float(next(one["value"] for one in data["figures"] if one["name"] == name))

    return read


def with_us(name: str) -> Callable[[Any], float]:
    """With us by without us, of a figure that says what we add."""

    def read(data: Any) -> float:
        without = figure(f"{name}, without us")(data)
        return (without + figure(f"{name}, what we add")(data)) / without

    return read


#: Medians are steadier than their p99, which is one of a few hundred measurements.
WATCHED: tuple[Watched, ...] = (
    *(
        Watched(
            f"request to grant by its echo floor, {clients} clients, {part}",
            "benchmarks.json",
            figure(f"request to grant, {clients} clients, {part}, ratio"),
            factor,
        )
        for clients in (1, 100, 1000)
        for part, factor in (("p50", 1.4), ("p99", 3.0))
    ),
    Watched(
        "lease(gpus=1) from Python by its echo floor, p50",
        "benchmarks.json",
        figure("lease(gpus=1) from Python, p50, ratio"),
        1.4,
    ),
    Watched(
        "a short cell, with us by without", "benchmarks.json", figure("a short cell, ratio"), 1.25
    ),
    Watched(
        "a hand-over between two loops in round trips, p50",
        "benchmarks.json",
        figure("hand-over between two loops, p50, round trips"),
        1.6,
    ),
    Watched("import torch, with us by without", "benchmarks.json", with_us("import torch"), 1.1),
    Watched("kernel ready, with us by without", "benchmarks.json", with_us("kernel ready"), 1.15),
    Watched("Python start, with us by without", "benchmarks.json", with_us("Python start"), 1.1),
    Watched(
        "a class of 200: p99 in the storm by the median of one alone",
        "benchmarks-hub.json",
        figure("p99 in the storm / median of one who asks alone"),
        3.0,
    ),
    Watched(
        "a class of 200: memory after an hour by before",
        "benchmarks-hub.json",
        figure("memory after all / before"),
        1.1,
    ),
    Watched(
        "the panel: p95 after an hour of updates by the first",
        "benchmarks-ui.json",
        lambda data: float(data["last"]["p95"] / data["first"]["p95"]),
        1.6,
    ),
    Watched(
        "a lease in Python by genv's, p50",
        "comparison.json",
        lambda data: float(
            data["latency"]["gpushare_python_p50_s"] / data["latency"]["genv_python_p50_s"]
        ),
        1.6,
    ),
)

Line = Mapping[str, Any]


def ratios(docs: Path) -> dict[str, float]:
    """The ratios of the pages' JSON files, as far as these have them."""
    found: dict[str, float] = {}
    for one in WATCHED:
        try:
            found[one.name] = round(one.read(json.loads((docs / one.file).read_text("utf-8"))), 4)
        except (FileNotFoundError, KeyError, StopIteration):
            continue
    return found


def lines(path: Path) -> list[Line]:
    """The lines of the file, the oldest first."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def worse(rows: Sequence[Line]) -> list[str]:
    """What is worse in the last row than the rows before allow, a sentence each."""
    if not rows:
        return []
    *before, newest = rows
    found = []
    for one in WATCHED:
        known = [row["ratios"][one.name] for row in before if one.name in row["ratios"]][-BEFORE:]
        now = newest["ratios"].get(one.name)
        if now is None or not known:
            continue
        usual = statistics.median(known)
        if now > one.factor * usual:
            found.append(
                f"{one.name}: {now:.3g} at {newest['commit']}, usually {usual:.3g}; at most "
                f"{one.factor:g} times that is allowed."
            )
    return found


def page(rows: Sequence[Line]) -> str:
    """The docs page: each ratio with its median so far, its limit and the newest."""
    newest = rows[-1]
    text = (
        "<!-- Made by `python benchmarks/trend.py add`; do not edit. -->\n\n"
        "# Does it get slower?\n\n"
        "Each run of `make bench-all` adds a line to [`trend.jsonl`](trend.jsonl). Each ratio "
        "compares two things that one run measured on one machine; lower is better. A test fails "
        f"when the newest is worse than the median of the {BEFORE} before it by more than the "
        "factor.\n\n"
        f"So far there are {len(rows)} lines. The newest is of {newest['date']}, at commit "
        f"{newest['commit']}.\n\n"
        "| ratio | before | newest | factor allowed |\n|---|---|---|---|\n"
    )
    for one in WATCHED:
        known = [row["ratios"][one.name] for row in rows[:-1] if one.name in row["ratios"]][
            -BEFORE:
        ]
        before = f"{statistics.median(known):.3g}" if known else "-"
        now = newest["ratios"].get(one.name)
        text += (
            f"| {one.name} | {before} | {'-' if now is None else f'{now:.3g}'} | {one.factor:g} |\n"
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("add", "check"))
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the JSON files are")
    options = parser.parse_args()
    if options.what == "add":
        where = json.loads((options.docs / "benchmarks.json").read_text("utf-8"))["machine"]
        kept = {name: where[name] for name in ("date", "commit", "cpu", "cores") if name in where}
        with TREND.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**kept, "ratios": ratios(options.docs)}) + "\n")
        PAGE.write_text(page(lines(TREND)), "utf-8")
    found = worse(lines(TREND))
    print(*(found or ["Nothing got slower than it may."]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
