"""SGLang: it releases and resumes what its memory saver holds.

Read in the sources of SGLang 0.5.23 (srt/entrypoints/http_server.py, weight_updater.py): not run.
Without ``--enable-weights-cpu-backup`` its weights come back as rubbish, so both flags must be set.
A release in the middle of a request ends its scheduler: an idle one flushes its cache, another says
that it did not.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..upstream import Control
from .base import Adapter, has_flag, is_program, wait_until

_FLAGS = ("--enable-memory-saver", "--enable-weights-cpu-backup")


class Sglang(Adapter):
    """Its weights have a copy in host memory all the time."""

    name = "sglang"
    tried = "read only: 0.5.23"
    sleeps = True
    copies = True
    ready = "/ready"
    open = (
        *("/v1", "/generate", "/encode", "/classify", "/tokenize", "/detokenize", "/invocations"),
        *("/parse_function_call", "/separate_reasoning"),
    )
    read = ("/", "/health", "/health_generate", "/ready", "/ping", "/metrics", "/model_info")

    def starts(self, command: Sequence[str]) -> bool:
        return is_program(command, "sglang", "sglang")

    def lacks(self, command: Sequence[str]) -> str:
        missing = [flag for flag in _FLAGS if not has_flag(command, flag)]
        if not missing:
            return ""
        words = " and ".join(missing)
        return f"SGLang cannot sleep by itself without {words}: add it to the command."

    def answers(self, control: Control) -> bool:
        info = control.call("GET", "/server_info").json
        return isinstance(info, dict) and bool(
            info.get("enable_memory_saver") and info.get("enable_weights_cpu_backup")
        )

    def sleep(self, control: Control) -> None:
        wait_until(
            lambda: control.call("POST", "/flush_cache").status == 200,
            "SGLang says that it still works on a request.",
        )
        control.must("POST", "/release_memory_occupation", {})

    def wake(self, control: Control) -> None:
        control.must("POST", "/resume_memory_occupation", {})
