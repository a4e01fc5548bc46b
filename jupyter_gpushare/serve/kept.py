"""What a keeper is to the proxy in front of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Kept(Protocol):
    """The keeper of a server's processes. All may be called from any thread."""

    def begins(self) -> bool:
        """A request begins. True: the server is awake, and stays so until `ends`. It never waits.

        False: it sleeps; call `wake` first. Nothing was counted.
        """

    def ends(self) -> None:
        """One that had begun has ended."""

    def set_busy(self, busy: bool) -> None:
        """Whether it has work, for the node manager. It never waits."""

    def wake(
        self, on_queued: Callable[[Mapping[str, Any]], None], cancelled: Callable[[], bool]
    ) -> None:
        """Ask for GPUs in the queue and bring the server back; it takes as long as it takes.

        Raises :class:`GpuShareError`, also once ``cancelled``.
        """
