"""SGLang: it releases and resumes what its memory saver holds.

Read in the sources of SGLang 0.5.23 (srt/entrypoints/http_server.py, weight_updater.py): not run.
Without ``--enable-weights-cpu-backup`` its weights come back as rubbish, so both flags must be set.
A release in the middle of a request ends its scheduler: an idle one flushes its cache, another says
that it did not.
"""

from .base import Adapter

#: Its weights have a copy in host memory all the time.
SGLANG = Adapter(
    name="sglang",
    tried="read only: 0.5.23",
    program="sglang",
    needs=["--enable-memory-saver", "--enable-weights-cpu-backup"],
    shows=(
        "/server_info",
        ['"enable_memory_saver":true', '"enable_weights_cpu_backup":true'],
    ),
    ready="/ready",
    open=(
        *("/v1", "/generate", "/encode", "/classify", "/tokenize", "/detokenize", "/invocations"),
        *("/parse_function_call", "/separate_reasoning"),
    ),
    read=("/", "/health", "/health_generate", "/ready", "/ping", "/metrics", "/model_info"),
    settles="/flush_cache",
    sleep=[("/release_memory_occupation", {})],
    wake=[("/resume_memory_occupation", {})],
    copies=True,
)
