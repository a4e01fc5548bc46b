"""For all rooms: tests can be interrupted wherever they run, and may be slow."""

from __future__ import annotations

import os
import signal
import tempfile

import pytest
from hypothesis import settings

# How long an example takes depends on the machine, and is no property of the code.
# The same examples at each run, so that what fails fails again; `make test-long` searches on.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    # A node manager of whoever runs the tests, say of `make lab`, would give pytest a GPU.
    runtime = tempfile.TemporaryDirectory(prefix="gpushare-")
    config.add_cleanup(runtime.cleanup)
    os.environ["JUPYTER_RUNTIME_DIR"] = runtime.name
    # A shell starts its background jobs with SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
