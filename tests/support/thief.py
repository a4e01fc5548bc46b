"""Another user of the host, who wants a service's port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .hub import as_os_user
from .jupyter import wait_for

#: Takes the port as soon as it can be had, in each way there is, and says what he is given.
THIEF = """
import socket, sys, time
port, tries = int(sys.argv[1]), 0
ways = (
    ("127.0.0.1", (socket.SO_REUSEADDR,)),
    ("0.0.0.0", (socket.SO_REUSEPORT,)),
    ("127.0.0.1", (socket.SO_REUSEADDR, socket.SO_REUSEPORT)),
)
while True:
    for host, options in ways:
        with socket.socket() as mine:
            for option in options:
                mine.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                mine.bind((host, port))
                mine.listen()
            except OSError:
                tries += 1
                if tries % 300 == 0:
                    print("nothing", flush=True)
                continue
            print("mine", flush=True)
            while True:
                with mine.accept()[0] as visitor:
                    visitor.settimeout(5)
                    told = visitor.recv(65536).decode(errors="replace")
                    visitor.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nthief")
                    if "cookie" in told.lower():
                        print("cookies", flush=True)
    time.sleep(0.001)
"""


class Thief:
    """Another user of the host, who wants the port."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    def said(self) -> list[str]:
        return self._log.read_text().split()

    def try_again(self) -> None:
        """Come back when he has tried some hundred times more."""
        before = len(self.said())
        wait_for(lambda: len(self.said()) > before + 1, 20, "the thief's tries")


@contextmanager
def thief(port: int, log: Path) -> Iterator[Thief]:
    with (
        log.open("w") as out,
        subprocess.Popen(
            [*as_os_user("bob"), sys.executable, "-c", THIEF, str(port)], stdout=out, text=True
        ) as process,
    ):
        try:
            yield Thief(process, log)
        finally:
            process.kill()
