"""``jupyter gpushare usage --trace``: what a node's people did, as a trace for replays."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from ..cli.ledger import copy_ledger
from ..console.node import connect
from ..console.verb import Refused
from ..ledger.ledger import LedgerError, StoppedLedger
from .ledgertrace import KINDS, Told, trace_of
from .trace import write_trace


def export(target: Path, since: float, backup: str) -> dict[str, Any]:
    """Write the trace of the last ``since`` seconds into ``target``; what there is in it.

    From ``backup``, or else from a copy of the running node manager's ledger, which only
    administrators get. Raises `Refused`, `NodeSilent`, `NodeRefused`.
    """
    try:
        if backup:
            return _export(target, since, Path(backup))
        with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
            copy = Path(folder, "ledger.sqlite")
            with connect() as node, copy.open("wb") as file:
                copy_ledger(node, file)
            return _export(target, since, copy)
    except LedgerError as error:
        raise Refused(str(error), "unavailable") from error
    except OSError as error:
        raise Refused(f"{error.filename or target}: {error.strerror}.", "unavailable") from error


def _export(target: Path, since: float, ledger: Path) -> dict[str, Any]:
    now = time.time()
    with closing(StoppedLedger(ledger)) as stopped:
        records = (
            Told(one.kind, one.wall, one.environment, one.lease, one.data)
            for one in stopped.records(KINDS)
            if one.lease is not None
        )
        trace = trace_of(records, now - since, now)
    with target.open("w", encoding="utf-8") as file:
        cells = write_trace(trace.sessions, file)
    return {
        "file": str(target),
        "sessions": len(trace.sessions),
        "cells": cells,
        "guessed": trace.guessed,
    }
