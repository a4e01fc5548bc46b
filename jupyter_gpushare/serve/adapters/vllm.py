"""vLLM: sleep levels 1 (weights to host memory) and 2 (weights are loaded again).

Read in the documentation of vLLM 0.33 (features/sleep_mode) and its sources
(entrypoints/serve/dev): not run, since vLLM cannot sleep on a CPU. There 0.32 was served, ended and
started again. It needs ``--enable-sleep-mode``, and its development routes, by
VLLM_SERVER_DEV_MODE=1, which we set. Some of them run code: callers get only what is listed here.
"""

from dataclasses import replace

from .base import Adapter

#: Level 1: its weights wait in host memory.
VLLM = Adapter(
    name="vllm",
    tried="read only: 0.33; served without its sleep: 0.32",
    program="vllm",
    needs=["--enable-sleep-mode"],
    variables={"VLLM_SERVER_DEV_MODE": "1"},
    shows=("/is_sleeping", ['"is_sleeping":']),
    open=(
        *("/v1", "/v2", "/inference/v1", "/tokenize", "/detokenize", "/pooling", "/classify"),
        *("/score", "/rerank", "/invocations"),
    ),
    read=("/health", "/ping", "/version", "/load", "/metrics"),
    closed=("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    sleep=[("/sleep?level=1", None)],
    wake=[("/wake_up", None)],
    copies=True,
)

#: Level 2: its weights are thrown away, and loaded again in their order.
#: For several models that gave wrong answers (vllm#29341), which the prompt finds.
DISCARD = replace(
    VLLM,
    name="vllm-discard",
    program="",  # only where it is named
    shows=("", ()),
    sleep=[("/sleep?level=2", None)],
    wake=[
        ("/wake_up?tags=weights", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/wake_up?tags=kv_cache", None),
        ("/reset_prefix_cache", None),
    ],
    copies=False,
)
