"""Reads from the driver's answers whether it can checkpoint processes here, and how well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from jupyter_gpushare.protocol.checkpoint import Ability, Cause, Outcome, Result, SeenGpu

#: CUDA versions, as the driver says them, from which checkpoints and another GPU are possible.
CHECKPOINT_CUDA: Final = 12080
MIGRATION_CUDA: Final = 13000
_INSTALL: Final = "pip install 'cuda-bindings>=12.8' in the kernel's environment"


def cannot_load(cause: Cause, text: str, bindings: str | None = None) -> Ability:
    """The driver could not be loaded at all."""
    if cause is Cause.NO_BINDINGS:
        why = f"cuda-bindings cannot be used ({text}): {_INSTALL}."
    elif cause is Cause.TIMEOUT:
        why = "The NVIDIA driver did not start in time; see nvidia-smi and the system's log."
    else:
        why = f"The NVIDIA driver cannot be used from here: {text.rstrip('.')}."
    return Ability(False, why, cause, bindings=bindings)


def judge(said: Mapping[str, Any]) -> Ability:
    """``said``: the worker's answer to a probe."""
    gpus = tuple(
        SeenGpu(gpu["uuid"], gpu["name"], gpu.get("persistence"), gpu.get("mig"))
        for gpu in said.get("gpus", ())
    )
    cuda: int | None = said.get("cuda")
    migration, migration_why = _migration(cuda, bool(said.get("pairs")), gpus)
    usable, why, cause = _usable(said, cuda, gpus)
    return Ability(
        usable=usable,
        why=why,
        cause=cause,
        migration=usable and migration,
        migration_why=migration_why if usable else why,
        cuda=cuda,
        driver=said.get("driver"),
        bindings=said.get("bindings"),
        gpus=gpus,
        cautions=tuple(_cautions(gpus)),
    )


def with_trial(ability: Ability, trial: Outcome) -> Ability:
    """``ability`` after the driver was asked for the state of the very process in question."""
    hopeless = (Cause.NOT_PERMITTED, Cause.NOT_SUPPORTED, Cause.TIMEOUT)
    if trial.result is Result.DONE or trial.cause not in hopeless:
        return ability  # no CUDA in that process yet is no reason against it
    why = trial.message
    if trial.cause is Cause.NOT_PERMITTED:
        why = (
            f"The driver may not checkpoint this process ({trial.driver_error}): the helper needs"
            " leave to trace it. In a container allow ptrace, on a host see"
            " /proc/sys/kernel/yama/ptrace_scope; gVisor does not have it."
        )
    return replace(
        ability, usable=False, why=why, cause=trial.cause, migration=False, migration_why=why
    )


def _usable(
    said: Mapping[str, Any], cuda: int | None, gpus: Sequence[SeenGpu]
) -> tuple[bool, str, Cause | None]:
    if cuda is None:
        text = said.get("error") or said.get("code")
        return False, f"The driver does not say its version ({text}).", Cause.DRIVER
    if cuda < CHECKPOINT_CUDA:
        why = (
            f"The driver is of CUDA {version(cuda)}; checkpoints need a driver of CUDA"
            f" {version(CHECKPOINT_CUDA)} or newer (570 and later)."
        )
        return False, why, Cause.OLD_DRIVER
    if not gpus:
        return False, "The driver shows no GPU here.", Cause.NO_DRIVER
    if all(gpu.mig for gpu in gpus):
        why = "The GPUs are in MIG mode, which the driver's checkpoints do not support."
        return False, why, Cause.NOT_SUPPORTED
    return True, f"The driver (CUDA {version(cuda)}) can checkpoint processes.", None


def _migration(cuda: int | None, pairs: bool, gpus: Sequence[SeenGpu]) -> tuple[bool, str]:
    if not pairs:
        return False, f"Another GPU at resume needs cuda-bindings 13.0.3 or newer: {_INSTALL}."
    if cuda is None or cuda < MIGRATION_CUDA:
        needed = version(MIGRATION_CUDA)
        return False, f"Another GPU at resume needs a driver of CUDA {needed} or newer (580)."
    names = [gpu.name for gpu in gpus if not gpu.mig]
    if all(names.count(name) < 2 for name in names):
        return False, "There are no two GPUs of one kind here."
    return True, "A process can be resumed on another GPU of the same kind."


def _cautions(gpus: Sequence[SeenGpu]) -> list[str]:
    cautions = []
    for gpu in gpus:
        if gpu.mig:
            cautions.append(f"{gpu.name} ({gpu.uuid}) is in MIG mode: no checkpoints there.")
        if gpu.persistence is False:
            cautions.append(
                f"Persistence mode is off on {gpu.name} ({gpu.uuid}); processes have died in a"
                " checkpoint without it. An administrator turns it on: nvidia-smi -pm 1."
            )
    return cautions


def version(cuda: int) -> str:
    """12080 → ``12.8``."""
    return f"{cuda // 1000}.{cuda % 1000 // 10}"
