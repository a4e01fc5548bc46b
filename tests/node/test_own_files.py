"""A key or a ledger's directory that others could have read or written is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.node import RunningNode, needs_root

from jupyter_gpushare.ledger.beside import UnsafeFile, check_directory, key_beside


def test_what_others_could_write_or_know_is_refused_at_the_start(tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    place.chmod(0o777)
    node = RunningNode(tmp_path, ledger=place / "ledger.sqlite")
    said = node.refuses()
    assert "others could replace the ledger" in said
    assert "chmod go-w" in said
    place.chmod(0o1777)  # as /tmp is: nobody replaces another's file there
    with node:
        assert node.status()["node"]
    (place / "ledger.key").chmod(0o644)
    assert "others could know it" in node.refuses()


@needs_root
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 54118, 54118)
    with pytest.raises(UnsafeFile, match="belongs to user 54118"):
        check_directory(tmp_path)


def test_a_key_that_others_may_read_is_refused_and_made_anew(tmp_path: Path) -> None:
    before = key_beside(tmp_path / "ledger.sqlite")
    key = tmp_path / "ledger.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key_beside(tmp_path / "ledger.sqlite") == key.read_bytes() == before
    key.chmod(0o644)
    with pytest.raises(UnsafeFile, match="others could know it"):
        key_beside(tmp_path / "ledger.sqlite")
    key.unlink()
    assert key_beside(tmp_path / "ledger.sqlite") != before
