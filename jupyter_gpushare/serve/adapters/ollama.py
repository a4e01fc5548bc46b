"""Ollama: ``keep_alive: 0`` unloads a model, and the next request loads it.

Read in the sources of Ollama 0.33.0-rc2 (server/routes.go, server/sched.go): not run. A caller may
say a ``keep_alive`` too; that can only make a model go earlier, or wait for us.
"""

from typing import Any

from .base import LOADED, Adapter, Models


class _Running(Models):
    """It lists those only that are loaded."""

    def stand(self, document: Any) -> dict[str, str]:
        return {str(one["name"]): LOADED for one in document.get("models") or ()}


#: Nothing of a model stays; its file is in the page cache at best.
OLLAMA = Adapter(
    name="ollama",
    tried="read only: 0.33.0-rc2",
    program="ollama",
    variables={"OLLAMA_HOST": "127.0.0.1:{port}"},
    shows=("/", ["Ollama is running"]),
    ready="/api/version",
    own_host=True,  # it refuses other names than this host's
    open=("/v1", "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show"),
    read=("/", "/api/version", "/api/tags", "/api/ps"),
    models=_Running(
        listed="/api/ps", unload=("/api/generate", {"keep_alive": 0}), load=("/api/generate", {})
    ),
)
