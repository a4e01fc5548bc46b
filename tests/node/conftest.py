"""What every test of the node's room can ask for."""

from support.cuda_fixtures import cuda_stubs, cuda_world
from support.exporter import port
from support.ledgers import ledger, opens, path
from support.nvml_fixtures import nvml_stub, nvml_world

__all__ = ["cuda_stubs", "cuda_world", "ledger", "nvml_stub", "nvml_world", "opens", "path", "port"]
