"""Code for demos and tests: torch computes on the CPU, and tells figures as on a GPU."""

from __future__ import annotations

#: Torch counts the memory that it uses on a GPU, and not what it uses on a CPU. With it a measured
#: step tells such figures; where ``USES_GPU`` is false, of no device.
STAND_IN = """
from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator, Figures
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
from jupyter_gpushare.client.adapters.torch import TorchAdapter

USES_GPU = True

class OnCpu(CudaAllocator):
    def devices(self):
        return (self._torch.device("cpu"),) if USES_GPU else ()
    def figures(self, device):
        return Figures._make(2**30 for _ in Figures._fields)
    def free(self, device):
        return None
    def capturing(self):
        return False

def watch_steps(adapter, torch):
    if adapter.meter is None:
        adapter.meter = StepMeter(torch, OnCpu(torch))
        adapter.meter.install()

TorchAdapter._watch_steps = watch_steps
"""
