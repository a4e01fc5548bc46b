"""Elastic training: one model on as many GPUs of a host as nobody else needs just now.

``core`` decides, and is pure: which samples a rank takes, who trains, and how a job stands.
``leader`` runs a job in a process of its own, named by the job's key: it asks the node manager for
idle cards, starts a ``member`` for each, and says who trains. A member holds one lease and runs
torch's elastic agent; its worker is ``training``, where the user's function runs. ``checkpoints``
and ``records`` are on disk, and ``running`` is what people call.
"""

from .core import Phase, Rank, Status
from .records import ElasticError, Records
from .running import Job, delete, load, run
from .training import World, batches, device, keep, report, world

names = Records.names

__all__ = [
    "ElasticError",
    "Job",
    "Phase",
    "Rank",
    "Status",
    "World",
    "batches",
    "delete",
    "device",
    "keep",
    "load",
    "names",
    "report",
    "run",
    "world",
]
