"""A door into a job of root's, say of Slurm: through it the Hub starts people's servers there.

Slurm lets only a job's owner make steps in it, and what a step started ends with the step. So a
process of the job itself starts the servers: they belong to the job, may open its GPUs, and end
with it. The job runs ``python -m jupyter_gpushare.starts.door open SOCKET``; what is put before a
command is ``… door enter SOCKET PERSON``. Only root can use the door: who is root on the host
could become anybody without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from typing import Any, Final

from ..protocol import sockets

#: Seconds in which a caller must have said whom it is for.
_PATIENCE: Final = 10.0
#: Bytes that are passed on at once.
_SOME: Final = 65536


class Door:
    """Starts a command as the person that a caller names, with the connection as its pipes."""

    def __init__(self, path: str) -> None:
        self._begun: list[subprocess.Popen[bytes]] = []
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket = sockets.bound(path, 0o177)
        self._socket.listen()

    def serve(self) -> None:
        """Let callers in, one after the other, until this process ends."""
        while True:
            caller, _nobody = self._socket.accept()
            with caller:
                caller.settimeout(_PATIENCE)
                try:
                    self._let_in(caller)
                except (OSError, ValueError, KeyError) as error:
                    with contextlib.suppress(OSError):
                        caller.sendall(json.dumps({"error": f"{error}"}).encode() + b"\n")

    def _let_in(self, caller: socket.socket) -> None:
        if sockets.peer(caller)[1] != os.geteuid():
            raise PermissionError("only root comes through this door")
        # Byte by byte: what follows the line is for the command.
        line = b""
        while not line.endswith(b"\n"):
            line += caller.recv(1) or b"\n"
        asked: dict[str, Any] = json.loads(line)
        person = pwd.getpwnam(asked["person"])
        if person.pw_uid == 0:
            raise PermissionError("nobody becomes root by this door")
        caller.settimeout(None)
        self._begun = [one for one in self._begun if one.poll() is None]
        groups = os.getgrouplist(person.pw_name, person.pw_gid)
        self._begun.append(
            subprocess.Popen(
                [str(word) for word in asked["command"]],
                stdin=caller.fileno(),
                stdout=caller.fileno(),
                # The connection is two streams, and errors among the answers could not be read.
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Nothing of the job's environment, which is root's: the call brings what belongs to
                # the server.
                env={"PATH": os.defpath, "HOME": person.pw_dir, "USER": person.pw_name},
                user=person.pw_uid,
                group=person.pw_gid,
                extra_groups=groups,
                start_new_session=True,
            )
        )


def enter(path: str, person: str, command: list[str]) -> None:
    """Run ``command`` behind the door, with this process's input and output."""
    with socket.socket(socket.AF_UNIX) as door:
        sockets.connect(door, path)
        if sockets.peer(door)[1] != os.geteuid():
            raise PermissionError(f"{path} belongs to somebody else")
        door.sendall(json.dumps({"person": person, "command": command}).encode() + b"\n")
        threading.Thread(target=_hand_in, args=(door,), daemon=True).start()
        while some := door.recv(_SOME):
            sys.stdout.buffer.write(some)
            sys.stdout.buffer.flush()


def _hand_in(door: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while some := os.read(0, _SOME):
            door.sendall(some)
        door.shutdown(socket.SHUT_WR)


def main() -> None:
    """``open SOCKET`` or ``enter SOCKET PERSON COMMAND …``."""
    do, path, *rest = sys.argv[1:]
    if do == "open":
        Door(path).serve()
    person, *command = rest
    try:
        enter(path, person, command)
    except OSError as error:
        sys.exit(f"The door {path} cannot be used: {error.strerror or error}")


if __name__ == "__main__":
    main()
