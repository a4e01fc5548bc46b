"""Makes new inputs from good ones: bytes, words and structure are changed at random."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

_WORDS: tuple[bytes, ...] = (
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"9" * 400,
        b'""',
        b"[]",
        b"{}",
        b'"\\ud800"',
    ),
    *(b"\n", b"\0", b"\xff\xfe", b'"', b"\\", b"[" * 3000, b'{"a":' * 1500, "𐏿ß".encode()),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53, 2**63, -(2**70), 0.5, -0.0, 1e308, "", "x", "all"),
    *("\0", "\ud800", "8GiB", "x" * 5000, [], {}, [None], {"a": {}}, [[[[]]]], "request", "GPU-0"),
)

_NUMBERS: tuple[bytes, ...] = (
    *(b"", b"0", b"-0", b"1", b"-1", b"0.5", b"1e12", b"1e13", b"1e-99", b"1e99", b"nan", b"inf"),
    *(b"9" * 19, b"9" * 40, b"4096", b"4097", b"1_0", b" 1", b"0x1", b'"a,b"', b'"', b"\r"),
)


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A new input, near a seed or far."""
    data = rng.choice(seeds)
    if rng.random() < 0.6:
        data = _structure(rng, data)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
        data = _bytes(rng, data, seeds)
    return data


def _bytes(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
    match rng.randrange(6):
        case 0:  # flip bits
            if at == len(data):
                return data
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:  # cut out
            return data[:at] + data[end:]
        case 2:  # repeat
            return data[:end] + data[at:end] * rng.choice((1, 3)) + data[end:]
        case 3:  # put in
            return data[:at] + rng.choice(_WORDS) + data[at:]
        case 4:  # overwrite
            return data[:at] + rng.randbytes(end - at) + data[end:]
        case _:  # half of another
            other = rng.choice(seeds)
            return data[:at] + other[rng.randrange(len(other) + 1) :]


def _structure(rng: random.Random, data: bytes) -> bytes:
    """Another value, another name, or something more or less, where it is JSON or a table."""
    try:
        value = json.loads(data)
    except ValueError:
        return _cell(rng, data) if data.isascii() and b"," in data else data
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _change(rng, value)
    return json.dumps(value).encode() + (b"\n" if data.endswith(b"\n") else b"")


def _cell(rng: random.Random, data: bytes) -> bytes:
    """Another value in a column, or lines that come twice, not at all, or elsewhere."""
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            lines.insert(other, lines[at])
        case 1:
            del lines[at]
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            cells = lines[at].split(b",")
            value = rng.choice((*_NUMBERS, cells[rng.randrange(len(cells))]))
            cells[rng.randrange(len(cells))] = value
            lines[at] = b",".join(cells)
    return b"\n".join(lines)


def _change(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(6):
            case 0:
                del changed[name]
            case 1:
                changed[str(rng.choice(_VALUES))] = changed.pop(name)
            case _:
                changed[name] = _change(rng, value[name])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], _change(rng, value[at]), *value[at + rng.randrange(2) :]]
    return rng.choice(_VALUES)
