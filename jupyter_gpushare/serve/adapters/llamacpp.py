"""llama.cpp's router: the model's process is ended, and started by the next request.

Read in the sources of October 2026 (tools/server/README.md, server.cpp): not run. A
``llama-server`` with a model of its own (``-m``, ``-hf``) cannot unload it; that is the driver's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..upstream import Control, ControlFailed
from .base import Generic, ask_openai, has_flag, is_program

_OWN_MODEL = ("-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url")
_TRIES, _PAUSE = 300, 0.1


class LlamaRouter(Generic):
    """Nothing of a model stays; its file is in the page cache at best."""

    name = "llama.cpp"
    tried = "read only: main of October 2026"
    sleeps = True
    open = (
        *("/v1", "/completion", "/completions", "/chat/completions", "/responses", "/infill"),
        *("/embedding", "/embeddings", "/rerank", "/reranking", "/tokenize", "/detokenize"),
        *("/apply-template", "/audio/transcriptions"),
    )
    read = ("/", "/health", "/models", "/props", "/metrics", "/slots", "/lora-adapters")

    def __init__(self) -> None:
        self._loaded: list[str] = []
        self._asked = ""

    def starts(self, command: Sequence[str]) -> bool:
        own = any(has_flag(command, flag) for flag in _OWN_MODEL)
        return is_program(command, "llama-server", "llama-server") and not own

    def environ(self, port: int) -> Mapping[str, str]:
        return {"LLAMA_ARG_PORT": str(port)}

    def answers(self, control: Control) -> bool:
        return self._models(control) is not None

    def _models(self, control: Control) -> dict[str, str] | None:
        """How each model stands; ``None`` where it is no router."""
        listed: Any = control.call("GET", "/models").json
        try:
            return {one["id"]: one["status"]["value"] for one in listed["data"]}
        except (KeyError, TypeError):
            return None

    def _busy(self, control: Control) -> list[str]:
        stand = self._models(control) or {}
        return [name for name, value in stand.items() if value in ("loaded", "loading", "sleeping")]

    def ask(self, control: Control) -> str | None:
        loaded = self._busy(control)  # one that is not, the question would load
        if not loaded:
            return None
        # Of several always the same one.
        self._asked = self._asked if self._asked in loaded else loaded[0]
        return ask_openai(control, self._asked)

    def sleep(self, control: Control) -> None:
        self._loaded = self._busy(control)
        for name in self._loaded:
            control.must("POST", "/models/unload", {"model": name})
        for _ in range(_TRIES):
            if not self._busy(control):
                return
            time.sleep(_PAUSE)
        raise ControlFailed("llama.cpp's router still has a model loaded.")

    def wake(self, control: Control) -> None:
        for name in self._loaded:
            control.must("POST", "/models/load", {"model": name})
        for _ in range(_TRIES):
            stand = self._models(control) or {}
            if all(stand.get(name) == "loaded" for name in self._loaded):
                self._loaded = []
                return
            time.sleep(_PAUSE)
        raise ControlFailed("llama.cpp's router has not loaded its models again.")
