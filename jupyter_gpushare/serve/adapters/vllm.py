"""vLLM: sleep levels 1 (weights to host memory) and 2 (weights are loaded again).

Read in the documentation of vLLM 0.33 (features/sleep_mode) and its sources
(entrypoints/serve/dev): not run, since vLLM cannot sleep on a CPU. There 0.32 was served, ended and
started again. It needs ``--enable-sleep-mode``, and its development routes, by
VLLM_SERVER_DEV_MODE=1, which we set. Some of them run code: callers get only what is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..upstream import Control
from .base import Adapter, has_flag, is_program

_FLAG = "--enable-sleep-mode"


class Vllm(Adapter):
    """Level 1: its weights wait in host memory."""

    name = "vllm"
    tried = "read only: 0.33; served without its sleep: 0.32"
    sleeps = True
    copies = True
    level = 1
    open = (
        *("/v1", "/v2", "/inference/v1", "/tokenize", "/detokenize", "/pooling", "/classify"),
        *("/score", "/rerank", "/invocations"),
    )
    read = ("/health", "/ping", "/version", "/load", "/metrics")
    closed = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")

    def starts(self, command: Sequence[str]) -> bool:
        return self.level == 1 and is_program(command, "vllm", "vllm")

    def environ(self, port: int) -> Mapping[str, str]:
        return {"VLLM_SERVER_DEV_MODE": "1"}

    def lacks(self, command: Sequence[str]) -> str:
        if has_flag(command, _FLAG):
            return ""
        return f"vLLM cannot sleep by itself without {_FLAG}: add it to the command."

    def answers(self, control: Control) -> bool:
        if self.level != 1:
            return False
        asleep = control.call("GET", "/is_sleeping")
        return asleep.status == 200 and "is_sleeping" in asleep.text

    def sleep(self, control: Control) -> None:
        control.must("POST", f"/sleep?level={self.level}")

    def wake(self, control: Control) -> None:
        control.must("POST", "/wake_up")


class VllmDiscard(Vllm):
    """Level 2: its weights are thrown away, and loaded again in their order.

    For several models that gave wrong answers (vllm#29341), which the prompt finds.
    """

    name = "vllm-discard"
    copies = False
    level = 2

    def wake(self, control: Control) -> None:
        control.must("POST", "/wake_up?tags=weights")
        control.must("POST", "/collective_rpc", {"method": "reload_weights"})
        control.must("POST", "/wake_up?tags=kv_cache")
        control.must("POST", "/reset_prefix_cache")
