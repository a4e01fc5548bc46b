"""Refuse to build a package without its UI: hatchling leaves out silently what is not there.

A development build is none either: it is large, and its log has the builder's paths in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

UI = Path("jupyter_gpushare", "labextension")
SCHEMAS = Path("labextension", "schema")
#: Only there after a development build.
DEVELOPMENT = UI / "build_log.json"


def missing_from_ui(root: Path) -> list[str]:
    """What the built UI in ``root`` lacks, as paths and patterns relative to it."""
    wanted = ["package.json", "static/style.js", "static/remoteEntry.*.js"]
    package = json.loads((root / "labextension" / "package.json").read_text())
    for schema in sorted((root / SCHEMAS).glob("*.json")):
        wanted.append(f"schemas/{package['name']}/{schema.name}")
    return [str(UI / pattern) for pattern in wanted if not any((root / UI).glob(pattern))]


class NoneWithoutUi(BuildHookInterface):
    """For wheels (editable ones too) and sdists alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises `FileNotFoundError` or `FileExistsError`, which end the build."""
        missing = missing_from_ui(Path(self.root))
        if missing:
            raise FileNotFoundError(
                f"The JupyterLab side is not built: {', '.join(missing)} missing. Build it with "
                "`make ui`, or unset SKIP_JUPYTER_BUILDER and have Node 20 or later."
            )
        if version == "standard" and (Path(self.root) / DEVELOPMENT).exists():
            raise FileExistsError(
                f"The JupyterLab side was built for development ({DEVELOPMENT}). Build it for "
                "others with `make ui`."
            )
