"""Ledgers on disk, and what a node manager writes of leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from jupyter_gpushare.ledger.ledger import JSON, Ledger, Record
from jupyter_gpushare.ledger.usage import DAY

GIB: Final = 2**30
#: Wall time at the boot of every test's machine: a midnight, UTC.
BOOT: Final = 1_699_920_000.0
HISTORY: Final = 30 * DAY


def open_ledger(path: Path, history: float = HISTORY) -> Ledger:
    return Ledger.open(path, history=history, wall=BOOT)


class Opens:
    """Opens ledgers, each after the one that was opened here before is closed."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __call__(self, path: Path, history: float = HISTORY) -> Ledger:
        self.close()
        return self._open.enter_context(closing(open_ledger(path, history)))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def opens() -> Iterator[Opens]:
    with closing(Opens()) as opens:
        yield opens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def ledger(opens: Opens, path: Path) -> Ledger:
    return opens(path)


def record(
    kind: str, at: float, who: str | None = "alice", lease: str | None = None, **data: JSON
) -> Record:
    return Record(kind, at, BOOT + at, who, lease, data)


def granted(at: float, lease: str, who: str = "alice", gpus: int = 1) -> Record:
    parts: JSON = [{"gpu": f"GPU-{number}", "memory": GIB} for number in range(gpus)]
    return record("LeaseGranted", at, who, lease, gpus=parts, activity="busy")


def active(at: float, lease: str, state: str, who: str = "alice") -> Record:
    return record("ActivityChanged", at, who, lease, activity=state)


def ended(at: float, lease: str, who: str = "alice") -> Record:
    return record("LeaseEnded", at, who, lease, reason="released")
