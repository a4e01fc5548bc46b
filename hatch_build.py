"""Refuse to build a package without its UI, or that asks for another version of the client.

And make the links of README.md absolute for the package's page on an index, which has no files.

It is also the build backend: hatchling's, with the metadata told before the build. pip then says
within seconds that it finds no `jupyter-gpushare-client`, which is on no index and comes from this
repository, too, and not after the minutes that the JupyterLab side takes.

Hatchling leaves out silently what is not there. A development build is no UI either: it is large,
and its log has the builder's paths in it. Nor is one of another version, which was left behind.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.version import Version

# Hatchling leaves these hooks out for pip, since its own build hooks may add dependencies. Ours add
# none.
_pip = os.environ.pop("PIP_BUILD_TRACKER", None)
from hatchling.build import *  # noqa: E402, F403

if _pip is not None:
    os.environ["PIP_BUILD_TRACKER"] = _pip

UI = Path("jupyter_gpushare", "labextension")
SCHEMAS = Path("labextension", "schema")
#: Only there after a development build.
DEVELOPMENT = UI / "build_log.json"


#: A picture or a link of Markdown to a file of ours.
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, source: str) -> str:
    """A page of Markdown whose links lead to the repository ``source`` from anywhere."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        return f"{picture}{words}({source}/{'raw' if picture else 'blob'}/HEAD/{path})"

    return LINK.sub(absolute, text)


def missing_from_ui(root: Path) -> list[str]:
    """What the built UI in ``root`` lacks, as paths and patterns relative to it."""
    wanted = ["package.json", "static/style.js", "static/remoteEntry.*.js"]
    package = json.loads((root / "labextension" / "package.json").read_text())
    for schema in sorted((root / SCHEMAS).glob("*.json")):
        wanted.append(f"schemas/{package['name']}/{schema.name}")
    return [str(UI / pattern) for pattern in wanted if not any((root / UI).glob(pattern))]


def other_versions(root: Path, version: str) -> dict[str, str]:
    """The package.json files that say another version than the package, and which."""
    files = [Path("labextension", "package.json"), UI / "package.json"]
    said = {str(file): json.loads((root / file).read_text())["version"] for file in files}
    # npm writes 1.2.0-rc.1 where Python writes 1.2.0rc1.
    return {file: found for file, found in said.items() if Version(found) != Version(version)}


class Checked(BuildHookInterface):
    """For wheels (editable ones too) and sdists alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises `FileNotFoundError`, `FileExistsError` or `ValueError`, which end the build."""
        ours = self.metadata.version
        client = f"jupyter-gpushare-client=={ours}"
        if client not in self.metadata.core.dependencies:
            raise ValueError(f"pyproject.toml has to ask for {client}, which has this version.")
        missing = missing_from_ui(Path(self.root))
        if missing:
            raise FileNotFoundError(
                f"The JupyterLab side is not built: {', '.join(missing)} missing. Build it with "
                "`make ui`, or unset SKIP_JUPYTER_BUILDER and have Node 20 or later."
            )
        if others := other_versions(Path(self.root), ours):
            raise ValueError(
                f"jupyter_gpushare is {ours}, but the JupyterLab side is not: {others}. Set the "
                "version with `scripts/release.py`, and build the JupyterLab side with `make ui`."
            )
        if version == "standard" and (Path(self.root) / DEVELOPMENT).exists():
            raise FileExistsError(
                f"The JupyterLab side was built for development ({DEVELOPMENT}). Build it for "
                "others with `make ui`."
            )


class LongDescription(MetadataHookInterface):
    """README.md as a package index shows it."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Source"]),
        }
