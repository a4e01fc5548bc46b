"""A key or a ledger's directory that others could have read or written is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.node import RunningNode, needs_root


def start(node: RunningNode) -> tuple[int, str]:
    """The exit status and what was said, of one that must not start."""
    node.launch()
    status = node.wait_dead()
    node.close()
    return status, node.story()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    return folder


def test_a_directory_that_everybody_may_write_is_refused(tmp_path: Path, place: Path) -> None:
    node = RunningNode(tmp_path, ledger=place / "ledger.sqlite")
    place.chmod(0o777)
    status, said = start(node)
    assert status == 1
    assert "others could replace the ledger" in said
    assert "chmod go-w" in said
    place.chmod(0o1777)  # as /tmp is: nobody replaces another's file there
    with node:
        assert node.status()["node"]


@needs_root
def test_another_users_directory_is_refused(tmp_path: Path, place: Path) -> None:
    os.chown(place, 54118, 54118)
    status, said = start(RunningNode(tmp_path, ledger=place / "ledger.sqlite"))
    assert (status, "belongs to user 54118" in said) == (1, True)


def test_a_key_that_others_may_read_is_refused_and_made_anew(tmp_path: Path, place: Path) -> None:
    key = place / "ledger.key"
    with RunningNode(tmp_path, ledger=place / "ledger.sqlite") as node:
        assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    key.chmod(0o644)
    status, said = start(node)
    assert status == 1
    assert "others could know it" in said
    key.unlink()
    with node:
        assert key.read_bytes() != before
