"""``transformers serve``: it forgets its models, and loads them again.

Run against transformers 5.24, on a CPU. The routes for that are not open to callers.
"""

from .base import Adapter, Models

#: Nothing of a model stays; its file is in the page cache at best. Its CUDA context stays.
TRANSFORMERS = Adapter(
    name="transformers",
    tried="run against 5.24",
    program="transformers",
    verb="serve",
    bars=["--continuous-batching"],  # with that it keeps its model for ever
    shows=(
        "/openapi.json",
        [
            *('"/reset":', '"/load_model":', '"/v1/models":', '"/v1/responses":'),
            '"/v1/chat/completions":',
        ],
    ),
    open=("/v1",),
    read=("/health", "/docs", "/openapi.json"),
    models=Models(
        listed="/v1/models",
        unload=("/reset", {}),  # all of them
        load=("/load_model", {}),
    ),
)
