"""No input breaks a reader, whatever comes: it is read, or refused by one typed error.

Some thousands of inputs into each; ``make fuzz`` feeds millions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.fuzz.targets import Target, all_targets, records

from jupyter_gpushare.client.errors import NodeUnavailable
from jupyter_gpushare.client.words.grant import read_grant
from jupyter_gpushare.ledger.codec import from_record
from jupyter_gpushare.ledger.ledger import LedgerFailed, Record
from jupyter_gpushare.quotas.config import NodeSize, configure

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from fuzz import fuzz

TARGETS = all_targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_breaks_a_reader(target: Target) -> None:
    for seed in target.seeds:
        target.run(seed)
    inputs = 30 if target.name == "ledger files" else 600
    result = fuzz(target, inputs, seed=3, patience=20.0)
    assert not result["failures"]


def test_half_a_surrogate_pair_in_a_record_is_damage() -> None:
    """Found by fuzzing: msgspec raises another exception than its own there."""
    data = {"boot_id": "b", "usage_half_life": "\ud800", "v": 1}
    with pytest.raises(LedgerFailed, match="damaged"):
        from_record(Record("BootSeen", 1.0, 1.0, None, None, data))
    records(b'{"kind": "BootSeen", "data": {"usage_half_life": "\\ud800", "v": 1}}')


@pytest.mark.parametrize("number", ["9" * 400, "1e9990", "-1e9990", "NaN"])
@pytest.mark.parametrize("name", ["weight", "gpu_hours", "idle_timeout"])
def test_a_quota_with_no_usable_number_is_refused_in_words(name: str, number: str) -> None:
    """Found by fuzzing: a whole number may be too long for a float."""
    given = json.loads(f'{{"{name}": {number}}}')
    with pytest.raises(ValueError, match=f"Quotas.default: {name}: it "):
        configure(0.0, NodeSize(1, 1), given, {}, {})


@pytest.mark.parametrize("index", ["1e9990", "-1e9990", "null", '"x"'])
def test_a_grant_with_a_senseless_index_is_the_node_managers_fault(index: str) -> None:
    """Found by fuzzing: infinity is JSON to Python, written as 1e9990."""
    gpu = json.loads(f'{{"uuid": "GPU-0", "index": {index}, "name": "n", "memory": 5}}')
    with pytest.raises(NodeUnavailable, match="cannot be read"):
        read_grant({"lease": "l", "gpus": [gpu]})
