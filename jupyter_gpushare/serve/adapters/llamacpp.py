"""llama.cpp's router: the model's process is ended, and started by the next request.

Run against the build b10434, on a CPU; read in the sources of October 2026, too (tools/server). A
``llama-server`` with a model of its own (``-m``, ``-hf``) cannot unload it; that is the driver's.
"""

from .base import Adapter, Models

#: Nothing of a model stays; its file is in the page cache at best.
ROUTER = Adapter(
    name="llama.cpp",
    tried="run against b10434",
    program="llama-server",
    bars=["-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url"],
    variables={"LLAMA_ARG_PORT": "{port}"},
    shows=("/models", ['"status":{']),
    open=(
        *("/v1", "/completion", "/completions", "/chat/completions", "/responses", "/infill"),
        *("/embedding", "/embeddings", "/rerank", "/reranking", "/tokenize", "/detokenize"),
        *("/apply-template", "/audio/transcriptions"),
    ),
    read=("/", "/health", "/models", "/props", "/metrics", "/slots", "/lora-adapters"),
    models=Models(listed="/models", unload=("/models/unload", {}), load=("/models/load", {})),
)
