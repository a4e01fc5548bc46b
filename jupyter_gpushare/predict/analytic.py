"""What can be said by counting alone: the time, the memory and the utilisation of a dry run.

The time is the classic roofline for each kind of graph node: the longer of computing and moving
bytes, plus a start for each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .features import Features, Hardware, Node

#: What a well-written kernel reaches of the maker's peaks.
OF_FLOPS: Final = 0.5
OF_BANDWIDTH: Final = 0.7
#: Seconds to start an operation from Python. With 2e-5 the times of an H200 are told better, and
#: its utilisation worse, for operations are started while others run.
START: Final = 1e-5
#: Bytes that CUDA, its libraries and their work spaces take in a process beside the tensors: 750 to
#: 790 MiB with cuBLAS and cuDNN on an H200 (driver 580, torch 2.11), and what torch's allocator
#: keeps beyond the tensors, 70 MiB or more (docs/hardware/README.md).
CONTEXT: Final = 872 * 2**20
#: A GPU of which nothing is known is as slow as a small one of 2018, so no promise is too bold.
UNKNOWN_FLOPS: Final = 4e12
UNKNOWN_BANDWIDTH: Final = 200e9

#: Seconds of each kind of node: for a FLOP, for a byte, for an occurrence.
Rates = Mapping[str, tuple[float, float, float]]


def peaks(hardware: Hardware) -> tuple[float, float]:
    """FLOPs and bytes a second that can be reached."""
    flops = hardware.flops or UNKNOWN_FLOPS
    bandwidth = hardware.bandwidth or UNKNOWN_BANDWIDTH
    return flops * OF_FLOPS, bandwidth * OF_BANDWIDTH


def work_of(node: Node, hardware: Hardware) -> float:
    """Seconds in which a node's occurrences keep the GPU busy."""
    flops, bandwidth = peaks(hardware)
    return max(node.flops / flops, node.bytes / bandwidth)


def seconds(features: Features, hardware: Hardware) -> float:
    """One iteration, by the peaks."""
    return sum(work_of(node, hardware) + node.count * START for node in features.nodes)


def calibrated(features: Features, rates: Rates) -> float:
    """One iteration, by what was measured for each kind of node."""
    total = 0.0
    for node in features.nodes:
        for_flop, for_byte, for_one = rates[node.kind]
        total += node.flops * for_flop + node.bytes * for_byte + node.count * for_one
    return total


def utilisation(features: Features, hardware: Hardware) -> float:
    """Hundredths, by the peaks: the part of the time in which the GPU is not waiting."""
    whole = seconds(features, hardware)
    busy = sum(work_of(node, hardware) for node in features.nodes)
    return 100.0 * busy / whole if whole else 1.0


def memory(features: Features, hardware: Hardware) -> int:
    """Bytes: the tensors' peak, and on a GPU what its driver adds."""
    return features.peak + (CONTEXT if hardware.capability else 0)
