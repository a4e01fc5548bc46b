"""``transformers serve``: it forgets its models, and loads them again.

Run against transformers 5.24, on a CPU. The routes for that are not open to callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..upstream import Control, ControlFailed
from .base import Unloads, has_flag, is_program

_KEEPS = "--continuous-batching"
_ROUTES = {"/reset", "/load_model", "/v1/models", "/v1/responses", "/v1/chat/completions"}


class Transformers(Unloads):
    """Nothing of a model stays; its file is in the page cache at best. Its CUDA context stays."""

    name = "transformers"
    tried = "run against 5.24"
    open = ("/v1",)
    read = ("/health", "/docs", "/openapi.json")

    def starts(self, command: Sequence[str]) -> bool:
        return is_program(command, "transformers", "transformers") and "serve" in command[:5]

    def lacks(self, command: Sequence[str]) -> str:
        if not has_flag(command, _KEEPS):
            return ""
        return f"transformers serve keeps its model for ever with {_KEEPS}: leave that out."

    def answers(self, control: Control) -> bool:
        told: Any = control.call("GET", "/openapi.json").json
        paths = told.get("paths") if isinstance(told, dict) else None
        return isinstance(paths, dict) and paths.keys() >= _ROUTES

    def loaded(self, control: Control) -> list[str]:
        told: Any = control.must("GET", "/v1/models").json
        return [one["id"] for one in told["data"] if one["status"]["value"] == "loaded"]

    def unload(self, control: Control, model: str) -> None:
        control.must("POST", "/reset")  # all of them

    def load(self, control: Control, model: str) -> None:
        told = control.must("POST", "/load_model", {"model": model}).text
        if '"status": "ready"' not in told:
            raise ControlFailed(f"transformers serve has not loaded {model} again: {told[-300:]}")
