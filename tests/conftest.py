"""For all rooms: the tests' processes can be interrupted, wherever the tests run."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell starts its background jobs with SIGINT ignored, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
