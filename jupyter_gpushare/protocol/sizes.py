"""Memory sizes as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..figures import format_size

_UNITS: Final = {
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
#: A comma is a decimal one; "1,024" might be a thousand and is refused.
_SIZE: Final = r"\s*(?![1-9]\d{0,2},\d{3}(?!\d))(\d{1,18}(?:[.,]\d{1,9})?)\s*([a-zA-Z]*)\s*"
#: What stands between two sizes; only the two dots are taken, since a dash might be a minus.
_BETWEEN: Final = re.compile(r"\.\.|\S\s*-|\sto\s")

#: Said in the place of a number of GPUs: as many as the quota allows.
GPUS_OF_QUOTA: Final = "quota"
#: The most GPUs that a request or a quota may name.
MOST_GPUS: Final = 4096
#: The least memory that anybody may name, in bytes: CUDA maps no smaller piece. Less is a slip.
LEAST_MEMORY: Final = 2 * 2**20


def parse_gpus(text: object) -> int | str:
    """A GPU count or ``"quota"``; 0 deliberately asks for no GPU. Raises :class:`ValueError`."""
    plain = str(text).strip()
    if isinstance(text, str) and plain.lower() == GPUS_OF_QUOTA:
        return GPUS_OF_QUOTA
    is_number = isinstance(text, int | str) and not isinstance(text, bool) and plain.isascii()
    if not is_number or not plain.isdigit() or len(plain) > 9:
        raise ValueError("it is not a number of GPUs, nor the word quota.")
    count = int(plain)
    if count > MOST_GPUS:
        raise ValueError(f"at most {MOST_GPUS} GPUs can be asked for.")
    return count


def parse_size(text: str | int, least: int = LEAST_MEMORY) -> int:
    """Bytes of ``"8GiB"`` (1024-based), or of ``"1.5GB"`` or ``"1,5GB"`` (1000-based).

    A number is bytes, as programs say them. A text needs a unit, because a person who writes 8
    means GiB. ``least`` is in bytes; 0 means that 0 is a size too.

    Raises :class:`ValueError` with a sentence for a person.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError(f"{text!r} is no memory size: write it like 8GiB or 512MiB.")
    match = re.fullmatch(_SIZE, f"{text}b" if isinstance(text, int) else text, re.ASCII)
    if match is None or match[2].lower() not in ("", *_UNITS):
        raise ValueError(f"{text!r} is no memory size: write it like 8GiB or 512MiB.")
    number, unit = match[1].replace(",", "."), match[2].lower()
    if least == 0 and float(number) == 0:
        return 0
    if not unit:
        raise ValueError(f"{text!r} is no memory size: it has no unit.{_meant(number)}")
    size = int(number) * _UNITS[unit] if "." not in number else int(float(number) * _UNITS[unit])
    if size >= 2**63:
        raise ValueError(f"{text!r} is no usable memory size: no GPU has so much.")
    bound = least or LEAST_MEMORY
    if size < bound:
        why = f"{format_size(size)} is less than {format_size(bound)}."
        meant = _meant(number) if unit == "b" else ""
        raise ValueError(f"{text!r} is no usable memory size: {why}{meant}")
    return size


def _meant(number: str) -> str:
    """The question after a number without a unit: which size was probably meant."""
    count = float(number)
    if count == 0:
        return " Write it like 8GiB or 512MiB."
    if count < 1024:
        return f" Did you mean {number}GiB?"
    if count < LEAST_MEMORY:
        return f" Did you mean {number}MiB?"
    return f" Did you mean {format_size(int(count)).replace(' ', '')}?"


class MemoryRange(NamedTuple):
    """Bytes on each GPU: ``least`` are enough, and a task has use for ``most``."""

    least: int
    most: int

    def __str__(self) -> str:
        """``8 GiB to 40 GiB``."""
        return f"{format_size(self.least)} to {format_size(self.most)}"


#: What a request may name: a size, or a range of them.
Memory = int | MemoryRange


def parse_memory(given: str | int | Sequence[int]) -> Memory:
    """A size as :func:`parse_size` reads it, or a range of them: ``"8GiB..40GiB"``, or two numbers.

    Raises :class:`ValueError` with a sentence for a person.
    """
    if isinstance(given, str) and _BETWEEN.search(given):
        ends = [end.strip() for end in given.split("..")]
        if len(ends) != 2 or not all(end[-1:].isalpha() for end in ends):
            raise ValueError(
                f"{given!r} is no range of memory: write it like 8GiB..40GiB, each end with a unit."
            )
        least, most = (parse_size(end) for end in ends)
    elif isinstance(given, list | tuple) and len(given) == 2:
        least, most = (parse_size(end) for end in given)
    elif isinstance(given, str | int):
        return parse_size(given)
    else:
        raise ValueError(f"{given!r} is no memory size: write it like 8GiB, or 8GiB..40GiB.")
    if least > most:
        raise ValueError(f"{given!r} is no range of memory: the smaller size comes first.")
    return MemoryRange(least, most) if least < most else least


def least_of(memory: Memory | None) -> int | None:
    """The bytes that are enough. ``None`` means what the quota gives."""
    return memory.least if isinstance(memory, MemoryRange) else memory


def most_of(memory: Memory | None) -> int | None:
    """The end of a range, or ``None`` if it is no range."""
    return memory.most if isinstance(memory, MemoryRange) else None


def format_memory(memory: Memory) -> str:
    """As a person reads it: ``8 GiB``, or ``8 GiB to 40 GiB``."""
    return str(memory) if isinstance(memory, MemoryRange) else format_size(memory)


_SHARE: Final = r"\s*(0?[.,]\d{1,9}|[01][.,]\d{1,9})\s*"


def parse_share(text: object) -> float | None:
    """The part of a GPU that ``0.5``, or ``"0.5"``, means; ``None`` if it means none.

    A whole number is bytes, and so is one with a unit: for those see :func:`parse_size`. Raises
    :class:`ValueError` with a sentence for a person when it is no part: 0, or more than 1.
    """
    if isinstance(text, float):
        share = text
    elif isinstance(text, str) and re.fullmatch(_SHARE, text, re.ASCII):
        share = float(text.replace(",", "."))
    else:
        return None
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is no part of a GPU: write 0.5 for half of one, or 8GiB.")
    return share


def parse_burst(given: object) -> float:
    """Up to what limits are lifted: up to 1 it is a share of any GPU, else bytes; 0 lifts none.

    Raises :class:`ValueError` with a sentence for a person.
    """
    # A browser writes 60 * 2**30 as a whole number, or not: 1.0 and less are shares.
    if isinstance(given, float) and given > 1 and given.is_integer():
        given = int(given)
    if (type(given) in (int, float) and given == 0) or (
        isinstance(given, str) and given.strip() == "0"
    ):
        return 0.0
    share = parse_share(given)
    if share is not None:
        return share
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError(f"{given!r} is no memory size: write it like 8GiB, or 0.9, or 0.")
    try:
        return float(parse_size(given))
    except ValueError as error:
        raise ValueError(f"{error} A part of a GPU is written like 0.9.") from None


def format_burst(burst: float) -> str:
    """Up to what limits are lifted, as a person reads it: ``0.9 of a GPU``, ``60 GiB``, ``no``."""
    if burst <= 1:
        return f"{burst:.4g} of a GPU" if burst else "no"
    return format_size(int(burst))
