"""The objects that all requests of the service share, and the Hub's page around ours."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from jupyterhub._data import DATA_FILES_PATH

from jupyter_gpushare.pages.site import Site, make_templates

from .links import LinkPool

# The Hub's own pages need these; ours run under a policy that allows no inline script, and work
# without any.
_INLINE_SCRIPT: Final = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>.*?</script>", re.DOTALL)
_NO_SCRIPT: Final = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSite(Site):
    """The pages behind the Hub's login, and the links to the node managers."""

    auth: Any
    pool: LinkPool


class _HubPages(jinja2.FileSystemLoader):
    """JupyterHub's templates, without what their pages run in the page itself."""

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        source, path, uptodate = super().get_source(environment, template)
        return _NO_SCRIPT.sub("", _INLINE_SCRIPT.sub("", source)), path, uptodate


def hub_templates(more: Sequence[str]) -> jinja2.Environment:
    """The templates: the administrator's own first (``more``), then ours, then JupyterHub's.

    As in JupyterHub itself, ``templates/page.html`` is always the original.
    """
    original = _HubPages([os.path.join(DATA_FILES_PATH, "templates")])
    around = [jinja2.PrefixLoader({"templates": original}), original]
    return make_templates(around, [_HubPages(list(more))] if more else [])
