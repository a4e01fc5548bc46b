"""TensorFlow: memory growth, and a limit for each logical device.

Growth is a variable. The limit needs TensorFlow's own API before its runtime
starts, but setting it at import would start the CUDA driver for nothing and
would make the user's own ``set_memory_growth`` raise; so it is set at the last
moment, when the runtime starts. Sessions of the 1.x API have growth only.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

from ..words.grant import Grant
from .importtime import ImportTimeAdapter

_log = logging.getLogger("jupyter_gpushare")


class TensorFlowAdapter(ImportTimeAdapter):
    """Memory growth, and a memory limit on each GPU when the lease has one."""

    name = "TensorFlow"

    def __init__(self) -> None:
        super().__init__()
        self._grant: Grant | None = None
        self._waiting = False

    def before(self, grant: Grant | None) -> None:
        # Tasks of one environment share a GPU's reservation: none may take it all at once.
        self._variables.set("TF_FORCE_GPU_ALLOW_GROWTH", "true" if grant is not None else None)

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        self._grant = grant
        if grant is None or grant.allocator_limit is None or self._waiting:
            return
        context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
        start = getattr(context, "ensure_initialized", None)
        if start is None:
            self._limit(module)
            return

        def ensure_initialized(runtime: Any) -> None:
            if context.ensure_initialized is ensure_initialized:
                context.ensure_initialized = start  # once: the next call costs nothing more
                self._limit(module)
            start(runtime)

        context.ensure_initialized = ensure_initialized
        self._waiting = True

    def cuda_started(self, module: ModuleType) -> bool | None:
        """The runtime starts at the first operation and takes all GPUs it sees."""
        eager: Any = sys.modules.get("tensorflow.python.eager.context")
        context = getattr(eager, "_context", None)
        if eager is None or not hasattr(eager, "_context"):
            return None
        if context is None or context._context_handle is None:
            return False
        return bool(context.num_gpus())

    def synchronize(self, tensorflow: Any) -> None:
        """Wait for all devices; also for those of Keras."""
        tensorflow.test.experimental.sync_devices()

    def _limit(self, tensorflow: Any) -> None:
        if self._grant is None:
            return
        try:
            config = tensorflow.config
            for device, gpu in zip(
                config.list_physical_devices("GPU"), self._grant.gpus, strict=False
            ):
                limit = gpu.allocator_limit
                if limit is None or config.get_logical_device_configuration(device) is not None:
                    continue  # a whole GPU, or the user's own logical devices
                logical = config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
                config.set_logical_device_configuration(device, [logical])
        except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
            _log.warning("TensorFlow's GPU memory is not limited to the lease: %s", error)


ADAPTER = TensorFlowAdapter
