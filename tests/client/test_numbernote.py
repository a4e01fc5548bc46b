"""Code that takes the names of its GPUs for numbers is told how to get numbers."""

from __future__ import annotations

from jupyter_gpushare.client.words.numbernote import NOTE, annotate

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


def error_of(text: str) -> ValueError:
    try:
        int(text)
    except ValueError as error:
        return error
    raise AssertionError(text)


def test_a_launcher_that_counts_is_told_once() -> None:
    error = error_of(UUID)
    outer = RuntimeError("the launcher failed")
    outer.__cause__ = error
    for _ in range(2):
        annotate(outer)
    assert error.__notes__ == [NOTE]
    assert "JUPYTER_GPUSHARE_VISIBLE_DEVICES=indices" in NOTE


def test_other_errors_are_left_alone() -> None:
    for error in (error_of("eight"), ValueError(UUID), KeyError(UUID)):
        annotate(error)
        assert not hasattr(error, "__notes__")
