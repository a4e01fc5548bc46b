"""docs/comparison.md from docs/comparison.json, the template and the feature table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from features import FEATURES, SERVERS, SERVING, TOOLS, Row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JSON, PAGE = ROOT / "docs" / "comparison.json", ROOT / "docs" / "comparison.md"
#: The state of canhazgpu's repository that was read.
CANHAZGPU = "https://github.com/russellb/canhazgpu/blob/0070417c984490c1d978d6a8fff529d7063fbc5e/"


def make(data: dict[str, Any]) -> str:
    """The page."""
    text = (HERE / "page.md").read_text("utf-8")
    machine = ", ".join(f"{name}: {value}" for name, value in data["machine"].items())
    peers = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    known: dict[str, int] = {}
    parts = {
        "machine": machine,
        "versions": peers,
        "figures": _table(("what", "jupyter_gpushare", "genv", "ratio"), _figures(data)),
        "rush": _table(
            ("50 start at once, 8 GPUs", "given twice", "most on one GPU", "wait p50", "all done"),
            _rush(data["rush"]),
        ),
        "cases": _table(("case", "jupyter_gpushare", "genv", "and, beside it"), _cases(data)),
        "sessions": _table(
            ("a GPU is bound to", "wait p50", "wait p95", "all done after", "GPUs busy"),
            _sessions(data["sessions"]),
        ),
        "features": _features(TOOLS, FEATURES, known),
        "serving": _features(SERVERS, SERVING, known),
        "sources": _sources(known, data),
        "rush_crowd": str(data["rush"]["crowd"]),
        "startup": f"{data['rush']['startup_s']:g}",
        "hold": f"{data['rush']['hold_s']:g}",
        "untouched": f"{data['untouched']['seconds']:g}",
        "torn_rounds": str(data["torn"]["rounds"]),
        "torn_seed": str(data["torn"]["seed"]),
        "torn_error": data["torn"]["genv_error"] or "none in this run",
        "people": str(data["sessions"]["people"]),
        "gpus": str(data["sessions"]["gpus"]),
        "cells": str(data["sessions"]["cells"]),
        "busy": f"{data['sessions']['busy_s']:g}",
        "think": f"{data['sessions']['think_s']:g}",
        "elsewhere": "another OS user"
        if data["another_users_status"]["as_another_os_user"]
        else "this OS user with another home",
    }
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    return text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in rows)])


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _figures(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for label, part, key in (
        ("request to GPU from Python, p50", "latency", "python_p50_s"),
        ("request to GPU from Python, p99", "latency", "python_p99_s"),
        ("request to GPU from a shell, p50", "latency", "shell_p50_s"),
        ("`kill -9`, then the next one has it, p50", "crash", "reaped_s"),
        ("the same, if its parent has not waited for it", "crash", "zombie_s"),
    ):
        ours, theirs = (data[part][f"{name}_{key}"] for name in ("gpushare", "genv"))
        patience = data["crash"]["zombie_patience_s"]
        told = f"not within {patience:g} s" if theirs is None else _time(theirs)
        ratio = "" if None in (ours, theirs) else f"{ours / theirs:.2f}"
        rows.append((label, _time(ours), told, ratio))
    for label, part, key in (
        ("status calls a second, one Python process", "calls", "python_per_s"),
        ("status commands a second, one after the other", "calls", "command_per_s"),
        (f"grants a second, {data['churn']['workers']} processes", "churn", "grants_per_s"),
    ):
        ours, theirs = (data[part][f"{name}_{key}"] for name in ("gpushare", "genv"))
        rows.append((label, f"{ours:.4g}", f"{theirs:.4g}", f"{ours / theirs:.2f}"))
    churn, torn = data["churn"], data["torn"]
    rows.append(
        ("GPUs given twice meanwhile", str(churn["gpushare_double"]), str(churn["genv_double"]), "")
    )
    rows.append(
        (
            f"state unreadable after `kill -9` in mid-call, of {torn['rounds']}",
            str(torn["gpushare_broken"]),
            str(torn["genv_broken"]),
            "",
        )
    )
    return rows


def _rush(rush: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name if name != "gpushare" else "jupyter_gpushare",
            str(told["double"]),
            str(told["worst"]),
            _time(told["wait_p50_s"]),
            _time(told["all_s"]),
        )
        for name, told in rush.items()
        if isinstance(told, dict)
    ]


def _cases(data: dict[str, Any]) -> list[tuple[str, ...]]:
    one, two, three = (
        data[name] for name in ("another_users_status", "sdk_process", "kernel_memory")
    )

    def good(yes: bool) -> str:
        return "yes" if yes else "**no**"

    return [
        (
            "After a second user's status call the first user's notebook has its GPU",
            good(one["gpushare_held_after"]),
            good(one["genv_held_after"]),
            f"genv: after its owner's own call: {good(one['genv_held_after_own_status'])}",
        ),
        (
            "Who asked through the SDK lives on when squatters are ended",
            good(two["gpushare_sdk_process_lives"]),
            good(two["genv_sdk_process_lives"]),
            f"genv: a process of an activated shell: {good(two['genv_shell_process_lives'])}; "
            "the real squatter is ended by both"
            if not (two["genv_squatter_lives"] or two["gpushare_squatter_lives"])
            else "a squatter was left alone",
        ),
        (
            f"A notebook kernel with {three['given']} that uses {three['used_mib']} MiB is found",
            good(three["gpushare_kernel_seen"]),
            good(three["genv_kernel_seen"]),
            f"genv: a process of an activated shell: {good(three['genv_shell_process_seen'])}",
        ),
    ]


def _sessions(sessions: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"the {mode}",
            _time(told["wait_p50_s"]),
            _time(told["wait_p95_s"]),
            _time(told["all_s"]),
            f"{told['busy_share']:.0%}",
        )
        for mode, told in sessions.items()
        if isinstance(told, dict)
    ]


def _features(tools: tuple[str, ...], features: tuple[Row, ...], known: dict[str, int]) -> str:
    """A table; sources that it is the first to name are put into ``known``, with a number."""
    rows = []
    for feature in features:
        cells = []
        for cell in feature.cells:
            marks = [str(known.setdefault(source, len(known) + 1)) for source in cell.sources]
            cells.append(f"{cell.text} <sup>{', '.join(marks)}</sup>")
        rows.append((feature.feature, *cells))
    return _table(("", *tools), rows)


def _sources(known: dict[str, int], data: dict[str, Any]) -> str:
    return "\n".join(f"{number}. {_source(source, data)}" for source, number in known.items())


def _source(source: str, data: dict[str, Any]) -> str:
    kind, _, rest = source.partition(":")
    if kind == "test":
        return f"our test `{rest}`"
    if kind == "code":
        return f"[`{rest}`](../{rest})"
    if kind == "run":
        return f"this run, [`{rest}`](comparison.json)"
    if kind == "genv":
        return f"genv {data['versions']['genv']} from PyPI, `genv/{rest}`"
    if kind == "lab":
        return f"jupyterlab-genv {data['versions']['jupyterlab-genv']}, `jupyterlab_genv/{rest}`"
    if kind == "canhazgpu":
        return f"[canhazgpu, `{rest}`]({CANHAZGPU}{rest})"
    return f"<{source}>"


def main() -> int:
    """Write the page, or say whether it is stale (``--check``)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = make(json.loads(JSON.read_text("utf-8")))
    if parser.parse_args().check:
        return int(PAGE.read_text("utf-8") != text)
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
