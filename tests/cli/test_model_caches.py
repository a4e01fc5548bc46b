"""``jupyter gpushare doctor`` says what one model cache would save, and not who has what."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.cli.modelcaches import WORTH, judge, look
from jupyter_gpushare.console.check import Level

#: A model's weights in the caches of Hugging Face (twice, by its old and its new layout), Ollama
#: and torch hub.
HUB = ".cache/huggingface/hub"
OLD, NEW = f"{HUB}/models--a--b/blobs/e7a6", f"{HUB}/blobs/5c/5c11"
OLLAMA, TORCH = ".ollama/models/blobs/sha256-77", ".cache/torch/hub/checkpoints/net-0123abcd.pth"


@pytest.fixture
def people(tmp_path: Path) -> list[str]:
    """The homes of two."""
    homes = [tmp_path / "ann", tmp_path / "bob[1]"]
    for home in homes:
        home.mkdir()
    return [str(home) for home in homes]


def has(home: str, place: str, size: int = 10, link: str = "") -> Path:
    """A file of somebody's, or a link."""
    path = Path(home, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    if link:
        path.symlink_to(link)
    else:
        path.write_bytes(b"x" * size)
    return path


def saved(people: list[str]) -> tuple[int, int]:
    seen = look(people)
    assert seen["whole"]
    return seen["files"], seen["saved"]


@pytest.mark.parametrize("place", [OLD, OLLAMA, TORCH])
def test_a_file_of_several_people_is_seen_by_its_name_and_size(
    people: list[str], place: str
) -> None:
    ann, bob = people
    has(ann, place)
    has(ann, place.replace("a--b", "c--d"))  # her second copy is her own business
    has(bob, place, 11)
    assert saved(people) == (0, 0)
    has(bob, place)
    assert saved(people) == (1, 10)


def test_what_lies_in_one_store_and_what_is_a_link_count_once(people: list[str]) -> None:
    ann, bob = people
    has(ann, NEW)
    has(ann, OLD, link="../../blobs/5c/5c11")
    has(bob, NEW)
    bobs = has(bob, OLD, link="../../blobs/5c/5c11")
    assert saved(people) == (1, 10)
    bobs.unlink()
    bobs.symlink_to(Path(ann, NEW))
    assert saved(people) == (0, 0)
    Path(ann, NEW).unlink()  # what leads nowhere is no file
    assert look(people) == {"caches": 0, "files": 0, "saved": 0, "whole": True}


def test_it_ends_in_time_and_says_so(people: list[str]) -> None:
    for home in people:
        has(home, OLD)
    seen = look(people, within=0.0)
    assert seen == {"caches": 0, "files": 0, "saved": 0, "whole": False}
    assert "Not all were looked at in 5 s." in judge(seen).text


@pytest.mark.parametrize(("saved", "level"), [(WORTH - 1, Level.OK), (3 * WORTH, Level.WARNING)])
def test_a_hint_comes_where_it_is_worth_it(saved: int, level: Level) -> None:
    check = judge({"caches": 4, "files": 7, "saved": saved, "whole": True})
    assert check.level is level
    if level is Level.WARNING:
        assert "7 files of models" in check.text
        assert "3 GiB less." in check.text
        assert check.fix == "docs/how-to/model-cache.md"
