"""Asks the Jupyter server of this kernel for the notebook as it is saved now."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final

from ...protocol import names, sockets
from ...protocol.errors import ProtocolError
from ...protocol.notebook import LONGEST_ANSWER, Notebook, question, read_answer

_WITHIN: Final = 2.0  # seconds a server that is busy may delay an import


def ask_server(environ: Mapping[str, str]) -> Notebook | None:
    """The notebook; ``None`` without a server, or when it does not answer in time."""
    path, kernel_id = environ.get(names.NOTEBOOK_SOCKET), environ.get(names.KERNEL_ID)
    if not path or not kernel_id:
        return None
    deadline = time.monotonic() + _WITHIN
    line = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as wire:
            wire.settimeout(_WITHIN)
            sockets.connect(wire, path)
            wire.sendall(question(kernel_id))
            while not line.endswith(b"\n") and len(line) <= LONGEST_ANSWER:
                wire.settimeout(max(0.001, deadline - time.monotonic()))
                got = wire.recv(LONGEST_ANSWER)
                if not got:
                    return None
                line += got
        return read_answer(line)
    except (OSError, ProtocolError):
        return None
