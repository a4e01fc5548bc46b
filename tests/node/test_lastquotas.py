"""The Hub's last answer in a file is nobody else's, never half of one, and stops no start."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.node import needs_root

from jupyter_gpushare.quotas.last import LastQuotas

LOG = logging.getLogger("lastquotas")
HUB = "http://127.0.0.1:8081/hub/api"
GROUPS, AT = {"students": {"gpus": 1, "memory": "16GiB"}}, 1_700_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.hub-quotas.json"


def last(file: Path, hub: str = HUB) -> LastQuotas:
    return LastQuotas(file, hub, LOG)


def test_what_was_kept_is_recalled_for_the_owner_only(file: Path) -> None:
    mask = os.umask(0)
    try:
        last(file).keep(GROUPS, AT)
    finally:
        os.umask(mask)
    assert last(file).recall() == (GROUPS, AT)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_same_answer_writes_nothing_but_the_time(file: Path) -> None:
    kept = last(file)
    kept.keep(GROUPS, AT)
    inode = file.stat().st_ino
    kept.keep(GROUPS, AT + 60)
    assert file.stat().st_ino == inode
    again = last(file)
    assert again.recall() == (GROUPS, AT + 60)
    again.keep(GROUPS, AT)
    assert file.stat().st_ino == inode
    again.keep({}, AT)
    assert last(file).recall() == ({}, AT)


def test_another_hubs_groups_are_nobodys_here(file: Path) -> None:
    last(file).keep(GROUPS, AT)
    assert last(file, "http://other/hub/api").recall() is None


def test_none_was_kept(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert last(file).recall() is None
    assert caplog.text == ""


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o640, 0o604])
def test_what_others_may_open_is_not_believed(
    file: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    last(file).keep(GROUPS, AT)
    file.chmod(mode)
    assert last(file).recall() is None
    assert "open to other users" in caplog.text


@needs_root
def test_what_belongs_to_another_is_not_believed(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last(file).keep(GROUPS, AT)
    os.chown(file, 12_345, 12_345)
    assert last(file).recall() is None
    assert "belongs to user 12345" in caplog.text


@pytest.mark.parametrize("plant", [os.symlink, os.link, None])
def test_what_is_planted_is_neither_read_nor_written_through(
    file: Path, tmp_path: Path, plant: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A link, or a pipe that nobody writes to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"version": 1, "hub": HUB, "groups": {}}))
    elsewhere.chmod(0o644)
    if plant is None:
        os.mkfifo(file, 0o600)
    else:
        plant(elsewhere, file)
    before = elsewhere.read_bytes()
    assert last(file).recall() is None
    assert "is not used" in caplog.text
    last(file).keep(GROUPS, AT)
    assert elsewhere.read_bytes() == before
    assert last(file).recall() == (GROUPS, AT)


@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps({"version": 1, "hub": HUB, "groups": value}).encode()
    )
)
def test_no_file_is_too_odd(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("odd") / "file"
    file.write_bytes(content)
    file.chmod(0o600)
    assert last(file).recall() is None


def test_a_place_where_nothing_can_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = last(tmp_path / "nowhere" / "file")
    kept.keep(GROUPS, AT)
    kept.keep(GROUPS, AT)
    assert caplog.text.count("could not be kept") == 1
