"""A pool's token reaches the job that it is for, and nobody else can read or write its letter."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.engines import letters
from jupyter_gpushare.protocol.privateplace import UnsafePlace

LETTER = {"name": "n1", "token": "a-secret"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


def test_a_letter_is_for_its_owner_only_and_is_taken_once(folder: Path) -> None:
    old = os.umask(0)
    try:
        letters.put(folder, "job 7", LETTER)
    finally:
        os.umask(old)
    (file,) = folder.iterdir()
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (folder, file)]
    assert modes == [0o700, 0o600]
    assert letters.take(folder, "job 8") is None
    assert letters.take(folder, "job 7") == LETTER
    assert letters.take(folder, "job 7") is None
    assert list(folder.iterdir()) == []


def open_folder(folder: Path) -> None:
    folder.chmod(0o755)


def other_folder(folder: Path) -> None:
    os.chown(folder, 65534, 65534)


def linked_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def open_file(folder: Path) -> None:
    (folder / "job 7.letter").chmod(0o640)


def other_file(folder: Path) -> None:
    os.chown(folder / "job 7.letter", 65534, 65534)


def linked_file(folder: Path) -> None:
    (folder / "job 7.letter").rename(folder / "real")
    (folder / "job 7.letter").symlink_to("real")


def pipe(folder: Path) -> None:
    (folder / "job 7.letter").unlink()
    os.mkfifo(folder / "job 7.letter", 0o600)


@pytest.mark.parametrize(
    "spoil", [open_folder, other_folder, linked_folder, open_file, other_file, linked_file, pipe]
)
def test_what_somebody_else_could_have_written_is_no_letter(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    if spoil in (other_folder, other_file) and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    letters.put(folder, "job 7", LETTER)
    spoil(folder)
    with pytest.raises((UnsafePlace, OSError)):
        letters.take(folder, "job 7")
    if spoil in (open_folder, other_folder, linked_folder):
        with pytest.raises((UnsafePlace, OSError)):
            letters.put(folder, "job 8", LETTER)
