"""Facts about kinds of GPUs, for estimates on kinds that nobody has measured.

They are the makers' (data sheets): FLOPs a second in float32 without tensor cores, which is what
frameworks use unless they are told otherwise, and bytes a second of the memory.
"""

from __future__ import annotations

import re
from typing import Final

from .features import GIB, Hardware


def _kind(
    name: str, gib: int, capability: float, cores: int, tflops: float, gbs: float
) -> Hardware:
    return Hardware(name, capability, gib * GIB, cores, tflops * 1e12, gbs * 1e9)


#: The kinds that this package knows, in the order in which people are shown them.
KINDS: Final = (
    _kind("GTX 1080 Ti", 11, 6.1, 3584, 11.3, 484),
    _kind("P100", 16, 6.0, 3584, 9.5, 732),
    _kind("V100 16GB", 16, 7.0, 5120, 15.7, 900),
    _kind("V100 32GB", 32, 7.0, 5120, 15.7, 900),
    _kind("T4", 15, 7.5, 2560, 8.1, 320),
    _kind("RTX 2080 Ti", 11, 7.5, 4352, 13.4, 616),
    _kind("RTX 3090", 24, 8.6, 10496, 35.6, 936),
    _kind("RTX 4090", 24, 8.9, 16384, 82.6, 1008),
    _kind("RTX 5090", 32, 12.0, 21760, 104.8, 1792),
    _kind("A10", 23, 8.6, 9216, 31.2, 600),
    _kind("A30", 24, 8.0, 3584, 10.3, 933),
    _kind("A40", 45, 8.6, 10752, 37.4, 696),
    _kind("A6000", 48, 8.6, 10752, 38.7, 768),
    _kind("A100 40GB", 40, 8.0, 6912, 19.5, 1555),
    _kind("A100 80GB", 80, 8.0, 6912, 19.5, 2039),
    _kind("L4", 23, 8.9, 7424, 30.3, 300),
    _kind("L40S", 45, 8.9, 18176, 91.6, 864),
    _kind("L40", 45, 8.9, 18176, 90.5, 864),
    _kind("H100 PCIe", 80, 9.0, 14592, 51.2, 2000),
    _kind("H100", 80, 9.0, 16896, 66.9, 3350),
    _kind("H200", 141, 9.0, 16896, 66.9, 4800),
    _kind("B200", 180, 10.0, 18944, 75.0, 8000),
)

_MIG: Final = re.compile(r"\bMIG (\d)g\.")
#: Compute slices of a GPU that is divided.
_SLICES: Final = 7


def named(name: str) -> Hardware | None:
    """The kind that a person names: ``A100``, ``a100-80gb``, ``RTX 4090``. ``None`` if unknown."""
    wanted = _plain(name)
    exact = (kind for kind in KINDS if _plain(kind.name) == wanted)
    begun = (kind for kind in KINDS if _plain(kind.name.split()[0]) == wanted)
    return next(exact, None) or next(begun, None)


def hardware_of(
    name: str, memory: int, capability: float | None = None, cores: int | None = None
) -> Hardware:
    """The facts of a GPU from its name, as NVML tells it; for an unknown name what NVML tells."""
    known = _known(name, memory)
    if known is None:
        return Hardware(name, capability or 0.0, memory, cores or 0)
    mig = _MIG.search(name)
    part = int(mig[1]) / _SLICES if mig else 1.0
    return Hardware(
        name,
        capability or known.capability,
        memory,
        cores or round(known.cores * part),
        known.flops * part,
        known.bandwidth * part,
    )


def model_of(name: str, memory: int) -> str:
    """How this package names the kind of a GPU that NVML calls ``name``; else as NVML does."""
    known = _known(name, memory)
    return name if known is None or _MIG.search(name) else known.name


def _known(name: str, memory: int) -> Hardware | None:
    """The kind whose model is a word of the name; of several, the one with the nearest memory."""
    words = set(re.split(r"[\s\-_()/]+", name.upper()))
    found = [kind for kind in KINDS if _model(kind) <= words]
    return min(
        found, key=lambda kind: (-len(_model(kind)), abs(kind.memory - memory)), default=None
    )


def _model(kind: Hardware) -> set[str]:
    return {part for part in kind.name.upper().split() if not part.endswith("GB")}


def _plain(name: str) -> str:
    return re.sub(r"[\s\-_]+", "", name).lower()
