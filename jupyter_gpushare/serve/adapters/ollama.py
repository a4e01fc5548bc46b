"""Ollama: ``keep_alive: 0`` unloads a model, and the next request loads it.

Read in the sources of Ollama 0.33.0-rc2 (server/routes.go, server/sched.go): not run. A caller may
say a ``keep_alive`` too; that can only make a model go earlier, or wait for us.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..upstream import Control, ControlFailed
from .base import Generic, is_program

_TRIES, _PAUSE = 300, 0.1
_ASKED = {
    "prompt": "One, two, three, four, five,",
    "raw": True,
    "stream": False,
    "options": {"temperature": 0, "seed": 7, "num_predict": 12},
}


class Ollama(Generic):
    """Nothing of a model stays; its file is in the page cache at best."""

    name = "ollama"
    tried = "read only: 0.33.0-rc2"
    sleeps = True
    ready = "/api/version"
    own_host = True  # it refuses other names than this host's
    open = ("/v1", "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show")
    read = ("/", "/api/version", "/api/tags", "/api/ps")

    def __init__(self) -> None:
        self._loaded: list[str] = []
        self._asked = ""

    def starts(self, command: Sequence[str]) -> bool:
        return is_program(command, "ollama", "ollama")

    def environ(self, port: int) -> Mapping[str, str]:
        return {"OLLAMA_HOST": f"127.0.0.1:{port}"}

    def answers(self, control: Control) -> bool:
        return control.call("GET", "/").text.strip() == "Ollama is running"

    def _running(self, control: Control) -> list[str]:
        told: Any = control.must("GET", "/api/ps").json
        return [str(one["name"]) for one in told.get("models") or ()]

    def ask(self, control: Control) -> str | None:
        running = self._running(control)
        if not running:
            return None
        # Of several always the same one.
        self._asked = self._asked if self._asked in running else running[0]
        told: Any = control.must("POST", "/api/generate", {"model": self._asked, **_ASKED}).json
        return str(told.get("response"))

    def sleep(self, control: Control) -> None:
        self._loaded = self._running(control)
        for name in self._loaded:
            control.must("POST", "/api/generate", {"model": name, "keep_alive": 0})
        for _ in range(_TRIES):
            if not self._running(control):
                return
            time.sleep(_PAUSE)
        raise ControlFailed("Ollama still has a model loaded.")

    def wake(self, control: Control) -> None:
        for name in self._loaded:
            control.must("POST", "/api/generate", {"model": name})
        self._loaded = []
