"""A lease's voucher on the wire: the policy's `Voucher`, signed with the node manager's key.

The node manager stores no voucher: the lease's holder keeps it. The key lies beside the ledger.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping

import msgspec

from ...policy.words import versions
from ...policy.words.model import Allocation, Bytes, GpuReading, GpuUuid, Voucher

# A lease's secret is a signature of its id alone; the two signed texts must never be the same.
_PURPOSE = b"jupyter_gpushare voucher\0"


def sign(key: bytes, voucher: Voucher) -> str:
    """The voucher for its holder."""
    plain = msgspec.to_builtins(voucher)
    version = versions.settle(voucher, plain)
    text = base64.urlsafe_b64encode(msgspec.json.encode([version, plain]))
    return f"{_mac(key, text)}.{text.decode()}"


def read(key: bytes, signed: str) -> Voucher | None:
    """The voucher; ``None`` where it is not ours, or says what this release does not know."""
    mac, _, text = signed.partition(".")
    if not hmac.compare_digest(_mac(key, text.encode()).encode(), mac.encode()):
        return None
    version, plain = json.loads(base64.urlsafe_b64decode(text))
    if version > max(versions.RELEASES):
        return None
    try:
        return msgspec.convert(plain, type=Voucher)
    except (msgspec.ValidationError, UnicodeEncodeError):  # of a release that had other words
        return None


def _mac(key: bytes, text: bytes) -> str:
    return hmac.digest(key, _PURPOSE + text, "sha256").hex()


def measured_of(voucher: Voucher, readings: Mapping[str, GpuReading]) -> tuple[Allocation, ...]:
    """Bytes that the processes of a presented lease were measured with, by GPU."""
    own = {voucher.task.process, *voucher.members}
    return tuple(
        Allocation(GpuUuid(uuid), Bytes(used))
        for uuid, reading in readings.items()
        if (
            used := sum(
                process.memory or 0
                for process in reading.processes
                if not own.isdisjoint(process.lineage)
            )
        )
    )
