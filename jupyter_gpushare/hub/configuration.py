"""Reads a JupyterHub configuration, in all the forms in which people write it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue


class SpawnerKind(Enum):
    """How a spawner's servers reach the node manager's socket."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBE = "kube"


def spawner_kind(spawner: object) -> SpawnerKind:
    """The kind of a ``spawner_class`` (a class, its path, or an entry point's name)."""
    bases = [cls.__name__ for cls in spawner.__mro__] if isinstance(spawner, type) else []
    text = " ".join([str(spawner), *bases]).lower()
    if "kube" in text:
        return SpawnerKind.KUBE
    if any(word in text for word in ("docker", "swarm", "systemuser")):
        return SpawnerKind.DOCKER
    return SpawnerKind.PROCESS


def value(c: Config, section: str, setting: str, empty: Any) -> Any:
    """A setting's value, also if it was only appended to so far; ``empty`` if there is none."""
    if section not in c or setting not in c[section]:
        return empty
    found = c[section][setting]
    return found.get_value(empty) if isinstance(found, LazyConfigValue) else found


def spawner_sections(c: Config, setting: str, base: str = "Spawner") -> list[str]:
    """Sections in which ``setting`` counts: ``base``, and each class's that overrides it."""
    others = [
        section
        for section in c
        if section.endswith("Spawner") and section != base and setting in c[section]
    ]
    return [base, *others]
