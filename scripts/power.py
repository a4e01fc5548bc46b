"""How many of a sample of faults do the tests find, in which layer, and in how many seconds?

A test suite can get faster by losing its teeth, and nobody sees it: it stays green. So the same
small faults are put into the product, one at a time, before and after a change of the tests, and
the tests must find the same ones. A fault is what a tired person writes: a comparison turned round,
a bound moved by one, a branch or an ``await`` left out, a statement (an event, a call) that is not
there.

Four steps, and ``make test-power`` does all of them::

    power.py draw  FAULTS                  draw faults over all rooms from a seed
    power.py reach FAULTS REACHED -- …     run the tests once with the faults' places marked, to
                                           know which tests come by there
    power.py find  FAULTS REACHED FOUND    put each fault in, run the tests that come by (those of
                                           its room first, the quickest first), until one fails
    power.py table FOUND [FOUND_BEFORE]    say it as a table

FAULTS, REACHED and FOUND are JSON files. A fault that no test comes by is not found. The product is
not changed: a copy of the package, with the fault, is mounted over it in a mount namespace of the
tests' own, so this needs Linux, and root or user namespaces. A test counts only if it passes
without a fault: ``reach`` writes down which ones failed by themselves.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import collections
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jupyter_gpushare"
#: A fault is not found when the tests that come by have run for so many seconds.
PATIENCE = 90
#: No room is left out, however small; the others get more in the measure of their size.
LEAST = 2

TURNED = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
#: At a bound by one: ``<`` for ``<=``.
MOVED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}

#: What the copy's marks call. It costs a look into a set, and a line for each test and place.
MARKER = """
import os, time
_seen = {}
def at(fault):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    now = time.time()
    if now - _seen.get((fault, test), 0.0) > 0.1:
        _seen[fault, test] = now
        try:
            line = os.open(PLACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(line, f"{fault}\\t{now}\\t{test}\\n".encode())
            os.close(line)
        except OSError:
            pass
    return True
"""


def room(path: Path) -> str:
    """The room of a file of the package; its top files are a room."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "top"


def places(path: Path) -> Iterator[dict[str, Any]]:
    """All faults that could be put into a file."""
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    above: dict[ast.AST, ast.AST] = {
        child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
    }

    def fault(kind: str, node: ast.expr | ast.stmt, new: str) -> Iterator[dict[str, Any]]:
        statement: ast.AST = node
        inside = False  # of a function: what runs while a module is imported is another matter
        while not isinstance(statement, ast.stmt):
            statement = above[statement]
        up: ast.AST | None = statement
        while up is not None:
            inside |= isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef)
            up = above.get(up)
        old = ast.get_source_segment(source, node)
        if not inside or old is None or not old.isascii():
            return
        if not all(lines[at - 1].isascii() for at in (node.lineno, node.end_lineno or 0)):
            return
        yield {
            **{"file": str(path.relative_to(ROOT)), "room": room(path), "kind": kind},
            **{"line": node.lineno, "column": node.col_offset},
            **{"end_line": node.end_lineno, "end_column": node.end_col_offset},
            **{"old": old, "new": new, "statement": statement.lineno},
        }

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            kind = type(node.ops[0])
            for name, table in (("comparison turned", TURNED), ("bound moved", MOVED)):
                if kind in table:
                    changed = ast.Compare(node.left, [table[kind]()], node.comparators)
                    yield from fault(name, node, f"({ast.unparse(changed)})")
        elif isinstance(node, ast.If) and not node.orelse:
            test = ast.unparse(node.test)
            if "TYPE_CHECKING" not in test:
                yield from fault("branch left out", node.test, f"(False and ({test}))")
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            changed = ast.BoolOp(other, node.values)
            yield from fault("and for or", node, f"({ast.unparse(changed)})")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
            yield from fault("await left out", node, ast.unparse(node.value.value))
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call | ast.Yield)
            and not ast.unparse(node).startswith(("log", "self.log", "print"))
        ):
            yield from fault("statement left out", node, "pass")


def draw(seed: int, many: int) -> list[dict[str, Any]]:
    """``many`` faults, from each room by its size, of all kinds alike."""
    chance = random.Random(seed)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for one in places(path):
            found.setdefault(one["room"], {}).setdefault(one["kind"], []).append(one)
    sizes = {name: sum(map(len, kinds.values())) for name, kinds in found.items()}
    share = {name: LEAST for name in sizes}
    while sum(share.values()) < many:
        most = max(sorted(sizes), key=lambda name: sizes[name] / (share[name] + 1))
        share[most] += 1
    drawn = []
    for name, count in sorted(share.items()):
        for _ in range(count):
            kind = chance.choice(sorted(kind for kind, left in found[name].items() if left))
            left = found[name][kind]
            drawn.append(left.pop(chance.randrange(len(left))))
    return [{"id": at, **one} for at, one in enumerate(drawn)]


def offset(lines: list[str], line: int, column: int) -> int:
    """Where a place is in a file's bytes."""
    return sum(len(text.encode()) for text in lines[: line - 1]) + column


def planted(text: str, fault: dict[str, Any]) -> str:
    """A file's text with a fault in it. Raises ``ValueError`` where the file is another one now."""
    lines = text.splitlines(keepends=True)
    start = offset(lines, fault["line"], fault["column"])
    end = offset(lines, fault["end_line"], fault["end_column"])
    data = text.encode()
    if data[start:end].decode() != fault["old"]:
        raise ValueError(f"{fault['file']}:{fault['line']} does not read {fault['old']!r}")
    return (data[:start] + fault["new"].encode() + data[end:]).decode()


def marked(text: str, faults: list[dict[str, Any]]) -> str:
    """A file's text that says when a fault's place is come by. Lines stay what they were."""
    for one in sorted(faults, key=lambda one: -offset([], one["line"], one["column"])):
        mark = f"__import__('jupyter_gpushare._reached', None, None, ['at']).at({one['id']})"
        new = f"{mark}; {one['old']}"
        if one["new"] != "pass" and one["kind"] != "await left out":
            new = f"({mark} and ({one['old']}))"
        text = planted(text, {**one, "new": new})
    return text


def mounted(copy: Path, command: list[str]) -> list[str]:
    """A command that sees ``copy`` in the package's place."""
    own = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = f'mount --bind {shlex.quote(str(copy))} {shlex.quote(str(PACKAGE))} && exec "$@"'
    return [*own, "sh", "-c", script, "sh", *command]


def copied(folder: Path) -> Path:
    """A copy of the package, as it is on the disk."""
    return Path(shutil.copytree(PACKAGE, folder / PACKAGE.name, symlinks=True))


def by_file(faults: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Faults by the file they are in, the last in a file first: the others' places stay."""
    files = collections.defaultdict(list)
    for one in sorted(faults, key=lambda one: (-one["line"], -one["column"])):
        files[one["file"]].append(one)
    return files


def reach(faults: list[dict[str, Any]], arguments: list[str]) -> dict[str, Any]:
    """Run the tests once; which came by each fault, what each cost, and which failed."""
    with tempfile.TemporaryDirectory(prefix="gpushare-power-") as folder:
        Path(folder).chmod(0o755)
        copy, came, costs = copied(Path(folder)), Path(folder, "came"), Path(folder, "costs")
        came.touch()
        came.chmod(0o666)  # tests are of several OS users
        (copy / "_reached.py").write_text(f"PLACE = {str(came)!r}\n{MARKER}")
        for file, inside in by_file(faults).items():
            path = copy / Path(file).relative_to(PACKAGE.name)
            text = path.read_text("utf-8")
            # Two marks may not lie in one another: the outer one marks for both.
            kept: list[dict[str, Any]] = []
            for one in inside:
                if all(one["end_line"] < other["line"] for other in kept):
                    kept.append(one)
            path.write_text(marked(text, kept), "utf-8")
            for one in inside:
                if one not in kept:
                    print(f"not marked, since another fault is there: {one['id']}", flush=True)
        command = [sys.executable, "-m", "pytest", f"--costs={costs}", *arguments]
        subprocess.run(mounted(copy, command), cwd=ROOT, check=False)
        ran = [json.loads(line) for line in costs.read_text().splitlines()]
        runs = {one["test"]: (one["start"], one["end"]) for one in ran}
        by: dict[int, dict[str, float]] = collections.defaultdict(dict)
        blind: dict[int, set[float]] = collections.defaultdict(set)
        for line in came.read_text().splitlines():
            fault, at, test = line.split("\t")
            start, end = runs.get(test, (0.0, 0.0))
            if start <= float(at) <= end:
                by[int(fault)][test] = 1.0
            else:  # several tests have this process, and it was told of the first one
                blind[int(fault)].add(float(at))
    seconds = {test: end - start for test, (start, end) in runs.items()}
    for fault, moments in blind.items():
        # A process that does not know for which test it runs: one of those that ran then.
        times = sorted(moments)
        for test, (start, end) in runs.items():
            if bisect.bisect_left(times, start) < bisect.bisect_right(times, end):
                by[fault].setdefault(test, 0.5)
    return {
        "seconds": seconds,
        "layers": {one["test"]: one["layer"] for one in ran},
        "failed": sorted(one["test"] for one in ran if one["failed"]),
        "reached": {str(one["id"]): by.get(one["id"], {}) for one in faults},
    }


def those(fault: dict[str, Any], reached: dict[str, Any]) -> list[str]:
    """The tests to run for a fault: of its room first, then the surest, then the quickest."""
    failed = set(reached["failed"])
    tests = {t: c for t, c in reached["reached"][str(fault["id"])].items() if t not in failed}
    seconds = reached["seconds"]
    # What a test has made, such as a fixture of its file, others of the file may look at.
    files = {test.split("::")[0] for test, surely in tests.items() if surely == 1.0}
    beside = (test for test in seconds if test.split("::")[0] in files and test not in failed)
    tests = dict.fromkeys(beside, 0.25) | tests
    own = f"tests/{fault['room']}/"
    stem = Path(fault["file"]).stem

    def rank(test: str) -> tuple[Any, ...]:
        named = stem in Path(test.split("::")[0]).stem
        return (-tests[test], not named, not test.startswith(own), seconds.get(test, 1.0))

    ordered = sorted((test for test in tests if test in seconds), key=rank)
    # One pytest for all of them would keep a file's tests in the file's order, which is all right;
    # but it should not begin with those that take a minute.
    total, chosen = 0.0, []
    for test in ordered:
        if total + seconds[test] > PATIENCE:
            continue
        total += seconds[test]
        chosen.append(test)
    return chosen


def find(fault: dict[str, Any], reached: dict[str, Any]) -> dict[str, Any]:
    """Whether the tests find a fault: by which test, of which layer, in how many seconds."""
    began = time.monotonic()
    tests = those(fault, reached)
    if not tests:
        return {**fault, "found": None, "layer": None, "seconds": 0.0, "tests": 0}
    with tempfile.TemporaryDirectory(prefix="gpushare-power-") as folder:
        Path(folder).chmod(0o755)
        copy = copied(Path(folder))
        path = copy / Path(fault["file"]).relative_to(PACKAGE.name)
        path.write_text(planted(path.read_text("utf-8"), fault), "utf-8")
        deadline = began + PATIENCE * 1.5
        for some in (tests[:12], tests[12:60], tests[60:]):
            if not some or time.monotonic() > deadline:
                break
            named = Path(folder, "tests")
            named.write_text("\n".join(some))
            # -p no:cacheprovider: two of them run at once, and share no folder.
            command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=90"]
            command += ["-p", "no:cacheprovider", f"@{named}"]
            told = subprocess.run(
                mounted(copy, command), cwd=ROOT, capture_output=True, text=True, check=False
            )
            said = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", told.stdout, re.MULTILINE)
            if told.returncode == 4 and "ERROR collecting" not in told.stdout:
                raise SystemExit(f"pytest was asked wrongly:\n{told.stdout}\n{told.stderr}")
            if told.returncode not in (0, 5):
                test = said[1] if said else "collection"
                return {
                    **fault,
                    **{"found": test, "layer": reached["layers"].get(test, "import")},
                    **{"seconds": round(time.monotonic() - began, 1), "tests": len(tests)},
                }
    seconds = round(time.monotonic() - began, 1)
    return {**fault, "found": None, "layer": None, "seconds": seconds, "tests": len(tests)}


def table(found: list[dict[str, Any]], before: list[dict[str, Any]] | None) -> str:
    """A Markdown table of faults, and a line of sums."""
    was = {one["id"]: one for one in before or ()}
    lines = ["| # | place | fault | found by | layer | s |", "|---|---|---|---|---|---|"]
    for one in found:
        lines.append(
            f"| {one['id']} | {one['file'].removeprefix('jupyter_gpushare/')}:{one['line']} "
            f"| {one['kind']} | {(one['found'] or '-').removeprefix('tests/')} "
            f"| {one['layer'] or '-'} | {one['seconds']} |"
        )
    layers = collections.Counter(one["layer"] or "not found" for one in found)
    lines += [
        "",
        f"{sum(bool(one['found']) for one in found)} of {len(found)} found: {dict(layers)}",
    ]
    if was:
        kept = {one["id"] for one in found if one["found"]}
        lost = [at for at, one in was.items() if one["found"] and at not in kept]
        lines.append(f"Found before and not now: {lost or 'none'}")
    return "\n".join(lines)


def main() -> None:
    """Do one of the four steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("draw")
    step.add_argument("faults", type=Path)
    step.add_argument("--seed", type=int, default=40)
    step.add_argument("--many", type=int, default=60)
    step = steps.add_parser("reach")
    step.add_argument("faults", type=Path)
    step.add_argument("reached", type=Path)
    step.add_argument("arguments", nargs="*", help="for pytest")
    step = steps.add_parser("find")
    step.add_argument("faults", type=Path)
    step.add_argument("reached", type=Path)
    step.add_argument("found", type=Path)
    step.add_argument("--only", type=int, nargs="*", help="these faults")
    step = steps.add_parser("table")
    step.add_argument("found", type=Path)
    step.add_argument("before", type=Path, nargs="?")
    chosen = parser.parse_args()
    if chosen.step == "draw":
        faults = draw(chosen.seed, chosen.many)
        chosen.faults.write_text(json.dumps(faults, indent=1) + "\n")
        print(collections.Counter(one["room"] for one in faults))
    elif chosen.step == "reach":
        faults = json.loads(chosen.faults.read_text())
        chosen.reached.write_text(json.dumps(reach(faults, chosen.arguments)))
    elif chosen.step == "find":
        faults = json.loads(chosen.faults.read_text())
        reached = json.loads(chosen.reached.read_text())
        done = json.loads(chosen.found.read_text()) if chosen.found.exists() else []
        known = {one["id"]: one for one in done}
        left = [one for one in faults if one["id"] not in known or one["id"] in (chosen.only or ())]
        if chosen.only:
            left = [one for one in left if one["id"] in chosen.only]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for one in pool.map(lambda fault: find(fault, reached), left):
                known[one["id"]] = one
                print(
                    f"{one['id']:3} {one['seconds']:6} s  {one['found'] or 'NOT FOUND'}", flush=True
                )
                kept = [known[at] for at in sorted(known)]
                chosen.found.write_text(json.dumps(kept, indent=1) + "\n")
    else:
        before = json.loads(chosen.before.read_text()) if chosen.before else None
        print(table(json.loads(chosen.found.read_text()), before))


if __name__ == "__main__":
    main()
