"""llama.cpp's router: the model's process is ended, and started by the next request.

Run against the build b10434, on a CPU; read in the sources of October 2026, too (tools/server). A
``llama-server`` with a model of its own (``-m``, ``-hf``) cannot unload it; that is the driver's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..upstream import Control
from .base import Unloads, has_flag, is_program, wait_until

_OWN_MODEL = ("-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url")


class LlamaRouter(Unloads):
    """Nothing of a model stays; its file is in the page cache at best."""

    name = "llama.cpp"
    tried = "run against b10434"
    open = (
        *("/v1", "/completion", "/completions", "/chat/completions", "/responses", "/infill"),
        *("/embedding", "/embeddings", "/rerank", "/reranking", "/tokenize", "/detokenize"),
        *("/apply-template", "/audio/transcriptions"),
    )
    read = ("/", "/health", "/models", "/props", "/metrics", "/slots", "/lora-adapters")

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

    def loaded(self, control: Control) -> list[str]:
        stand = self._models(control) or {}
        return [name for name, value in stand.items() if value in ("loaded", "loading", "sleeping")]

    def unload(self, control: Control, model: str) -> None:
        control.must("POST", "/models/unload", {"model": model})

    def load(self, control: Control, model: str) -> None:
        control.must("POST", "/models/load", {"model": model})
        wait_until(
            lambda: (self._models(control) or {}).get(model) == "loaded",
            f"llama.cpp's router has not loaded {model} again.",
        )
