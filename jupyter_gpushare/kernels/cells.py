"""What a kernel works on, as it tells everybody on its channel ``iopub``."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from jupyter_client.blocking.client import BlockingKernelClient

#: Messages that may run a person's code, and so use a GPU.
_RUN_CODE: Final = frozenset(
    {
        "execute_request",
        "comm_open",
        "comm_msg",
        "comm_close",
        "complete_request",
        "inspect_request",
    }
)
_UNKNOWN: Final = "before"  # what ran when we came
#: Seconds for which what has come already is read.
_AT_ONCE: Final = 0.02
#: Seconds between two questions whether that has ended.
_ASK_EVERY: Final = 1.0


def name_of(connection_file: str) -> str:
    """What names a kernel among a user's: ``kernel-1234…``."""
    return os.path.splitext(os.path.basename(connection_file))[0]


class Cells:
    """Hears a kernel's states; its messages are read by others, and no message is held up."""

    def __init__(self, connection_file: str) -> None:
        client = BlockingKernelClient(connection_file=connection_file)
        client.load_connection_file()
        self._client = client
        self._iopub: Any = client.connect_iopub()
        self._running: set[str] = set()
        self._shell: Any = None
        self._asked_at = 0.0
        #: Since when the kernel has worked without a pause, or has not; monotonic.
        self.since = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether code runs, as far as the kernel has said."""
        return bool(self._running)

    def ask(self) -> None:
        """Take it to be busy until it has answered: nobody has heard what it said before."""
        self._changed(self._running | {_UNKNOWN})
        self._shell = self._client.connect_shell()

    def close(self) -> None:
        """Stop listening to the kernel."""
        self._client.context.destroy(linger=0)

    def hear(self, seconds: float) -> None:
        """Wait until the kernel says something, ``seconds`` at most, and take it in."""
        now = time.monotonic()
        end = now + seconds
        if _UNKNOWN in self._running and now > self._asked_at + _ASK_EVERY:
            # Its answer is not read: the state that comes with it tells, if we listen by then.
            self._asked_at = now
            self._client.session.send(self._shell, "kernel_info_request", {}, ident=None)
        # Who prints all the time holds up nothing.
        while now <= end and self._iopub.poll(int((end - now) * 1000)):
            try:
                _, parts = self._client.session.feed_identities(self._iopub.recv_multipart())
                self._take(self._client.session.deserialize(parts, content=False))
            except (ValueError, TypeError, KeyError):
                pass  # not the kernel's, or one that we cannot read
            end, now = min(end, now + _AT_ONCE), time.monotonic()

    def _take(self, message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] != "status":
            return
        state = self._client.session.unpack(message["content"])["execution_state"]
        parent = message["parent_header"]
        kind, name = parent.get("msg_type"), parent.get("msg_id")
        if state == "busy" and kind in _RUN_CODE:
            self._changed(self._running | {name})
        elif state == "idle":
            # A kernel answers on this channel in the order of asking, so what ran before our
            # question is over.
            ours = parent.get("session") == self._client.session.session
            self._changed(self._running - {name, _UNKNOWN if ours else name})

    def _changed(self, running: set[str]) -> None:
        if bool(running) != bool(self._running):
            self.since = time.monotonic()
        self._running = running
