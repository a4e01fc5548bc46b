"""The satellites: rooms without which all the rest works, and what the rest has from them.

Here they register their verbs, and what servers, pages and modules of the core take from them, by
names of modules only. What is registered is loaded when it is used, and a room that is not
installed has registered nothing. Nobody else names a satellite.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from typing import Any, Final

#: Verbs: module and class, below ``jupyter_gpushare``, and what it does.
VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "sweep": ("jobs.verb.SweepApp", "Try many models on the GPUs that idle."),
    "elastic": ("elastic.verb.ElasticApp", "Train on as many idle GPUs as there are just now."),
    "serve": ("serve.verb.ServeApp", "A model server that sleeps while others need its GPU."),
    "kernelspec": ("kernels.verb.KernelspecApp", "Kernels of R, Julia, C++ under a lease."),
    "pool": ("pool.verbs.PoolApp", "Several hosts as one: hosts, quotas, tokens, drain."),
    "replay": ("replay.verb.ReplayApp", "Replay a trace of sessions through the policy."),
    "advise": ("replay.advise.AdviseApp", "Would turns serve more people on this node?"),
    "predictor": ("training.verb.PredictorApp", "The predictor: retrain it, or see its card."),
}


#: Verbs below ``pool``: each engine's, which gives the pool hosts for a time.
ENGINES: Final[Mapping[str, tuple[str, str]]] = {
    "slurm": ("engines.slurm.SlurmApp", "Have jobs of Slurm hold GPUs for the pool."),
    "slurm-job": ("engines.slurm.JobApp", "What such a job runs."),
    "slurm-run": ("engines.inside.InsideApp", "Run a command in such a job, as a person."),
    "static": ("engines.static.StaticApp", "Hosts of your own, in service while wanted."),
}


class Part(StrEnum):
    """What the core takes from a satellite, and the module that has it."""

    #: ``sweep``, which notebooks import.
    SWEEP = "jobs.sweeps"
    #: The module that notebooks import.
    ELASTIC = "elastic"
    #: ``export``, which makes a trace of a node's history.
    TRACE = "replay.export"
    #: ``Pool``, its settings, and ``running``: the pool as a role of the Hub's service.
    HUB_POOL = "pool.hubrole"
    #: ``place_servers``, by which the pool chooses the hosts of the Hub's servers.
    PLACING = "starts.placing"
    SPAWNER = "starts.spawner"
    #: ``Elsewhere``: kernels of a Jupyter server on other hosts.
    ELSEWHERE = "starts.elsewhere"


def there(module: str) -> bool:
    """Whether a module, named from ``jupyter_gpushare`` on, is installed; it is not loaded."""
    path = os.path.join(os.path.dirname(__file__), *module.split("."))
    return os.path.isfile(f"{path}.py")


def take(part: Part) -> Any:
    """The module. Raises `ModuleNotFoundError` where its room is not installed."""
    return import_module(f".{part}", __package__)
