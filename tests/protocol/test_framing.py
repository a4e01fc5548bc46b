"""Lines of JSON: whatever bytes come, there is a value or one typed error, nothing else."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.protocol.errors import (
    PARSE_ERROR,
    LocalProtocolError,
    RemoteProtocolError,
)
from jupyter_gpushare.protocol.framing import MAX_LINE, LineFramer, decode, encode

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Lone surrogates too: JSON can spell them, so our own encoder must not stumble.
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NASTY = [
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b"9" * 60_000,
    b'{"a":' + b"9" * 5_000 + b"}",
    b'{"a": NaN}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'"\\ud800"',
    b'{"\\ud800": "\\udfff"}',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` cut at these places."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("line", NASTY, ids=range(len(NASTY)))
def test_any_line_gives_an_object_or_the_one_error(line: bytes) -> None:
    """Millions of other lines: tests/faults/test_fuzz.py."""
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(decode(line), dict)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_what_is_encoded_is_one_line_of_utf8_and_decodes_to_the_same(
    message: dict[str, Any],
) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert line.decode("utf-8")
    assert LineFramer().feed(line) == [line[:-1]]
    assert decode(line) == message


def test_what_is_not_ascii_is_as_utf8_has_it_and_half_of_a_surrogate_pair_escaped() -> None:
    assert encode({"path": "\u8def/\U0001d11e"}) == '{"path":"\u8def/\U0001d11e"}\n'.encode()
    assert encode({"path": "\udce9"}) == b'{"path":"\\udce9"}\n'


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(0), max_size=20))
def test_how_a_stream_is_cut_changes_nothing(parts: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(parts)
    whole = LineFramer()
    once = whole.feed(data)
    assert all(b"\n" not in line and line.strip() for line in once)
    by_bits = LineFramer()
    assert [line for piece in pieces(data, cuts) for line in by_bits.feed(piece)] == once
    # The unfinished rest is the same, too.
    assert by_bits.feed(b"end\n") == whole.feed(b"end\n")


@given(st.lists(st.binary(max_size=14), max_size=8), st.lists(st.integers(0), max_size=20))
def test_an_over_long_line_is_found_however_it_comes(parts: list[bytes], cuts: list[int]) -> None:
    limit = 8
    data = b"\n".join(parts)
    is_too_long = any(len(line) + 1 > limit for line in data.split(b"\n"))
    framer = LineFramer(limit)

    def feed_all() -> None:
        for piece in pieces(data, cuts):
            framer.feed(piece)

    if is_too_long:
        with pytest.raises(RemoteProtocolError, match="longer than 8 bytes"):
            feed_all()
    else:
        feed_all()


def test_the_limit_counts_the_newline() -> None:
    assert LineFramer(8).feed(b"1234567\n") == [b"1234567"]
    with pytest.raises(RemoteProtocolError):
        LineFramer(8).feed(b"12345678\n")
    with pytest.raises(RemoteProtocolError) as caught:
        LineFramer().feed(b"x" * MAX_LINE)
    assert caught.value.code == PARSE_ERROR == -32700


def test_blank_lines_are_nothing() -> None:
    assert LineFramer().feed(b"\n \r\n\t\n{}\n\n") == [b"{}"]


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "message",
    [float("nan"), float("inf"), {"a": object()}, {1, 2}, {"a": b"bytes"}, {(1,): 2}, CIRCLE],
    ids=range(7),
)
def test_we_never_send_what_is_no_json(message: object) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        encode(message)


def test_we_never_send_more_than_the_limit() -> None:
    most = {"a": "x" * (MAX_LINE - len('{"a":""}') - 1)}
    assert len(encode(most, MAX_LINE)) == MAX_LINE
    with pytest.raises(LocalProtocolError, match=str(MAX_LINE)):
        encode({"a": most["a"] + "x"}, MAX_LINE)
