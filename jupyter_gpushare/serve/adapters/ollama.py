"""Ollama: ``keep_alive: 0`` unloads a model, and the next request loads it.

Read in the sources of Ollama 0.33.0-rc2 (server/routes.go, server/sched.go): not run. A caller may
say a ``keep_alive`` too; that can only make a model go earlier, or wait for us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..upstream import Control
from .base import PROMPT, Unloads, is_program

_ASKED = {
    "prompt": PROMPT,
    "raw": True,
    "stream": False,
    "options": {"temperature": 0, "seed": 7, "num_predict": 12},
}


class Ollama(Unloads):
    """Nothing of a model stays; its file is in the page cache at best."""

    name = "ollama"
    tried = "read only: 0.33.0-rc2"
    ready = "/api/version"
    own_host = True  # it refuses other names than this host's
    open = ("/v1", "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show")
    read = ("/", "/api/version", "/api/tags", "/api/ps")

    def starts(self, command: Sequence[str]) -> bool:
        return is_program(command, "ollama", "ollama")

    def environ(self, port: int) -> Mapping[str, str]:
        return {"OLLAMA_HOST": f"127.0.0.1:{port}"}

    def answers(self, control: Control) -> bool:
        return control.call("GET", "/").text.strip() == "Ollama is running"

    def loaded(self, control: Control) -> list[str]:
        told: Any = control.must("GET", "/api/ps").json
        return [str(one["name"]) for one in told.get("models") or ()]

    def unload(self, control: Control, model: str) -> None:
        control.must("POST", "/api/generate", {"model": model, "keep_alive": 0})

    def load(self, control: Control, model: str) -> None:
        control.must("POST", "/api/generate", {"model": model})

    def ask_model(self, control: Control, model: str) -> str | None:
        told: Any = control.must("POST", "/api/generate", {"model": model, **_ASKED}).json
        return str(told.get("response"))
