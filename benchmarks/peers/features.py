"""The feature table, with what stands behind each cell.

A source is one of ``test:PATH::NAME`` (a test of ours), ``code:PATH`` (ours), ``run:KEY`` (a
figure of the comparison's run, ``docs/comparison.json``), ``genv:PATH`` and ``lab:PATH`` (a file of
the releases that are compared), ``canhazgpu:PATH`` (a file of its repository, read and not run), or
a URL.
"""

from __future__ import annotations

from dataclasses import dataclass

TOOLS = (
    "jupyter_gpushare",
    "genv, jupyterlab-genv",
    "canhazgpu (read, not run)",
    "pick an idle GPU",
    "a GPU for the session",
)

#: What keeps a model on a GPU. None of them was run for this table.
SERVERS = ("jupyter gpushare serve", "vLLM", "llama.cpp", "Ollama", "SGLang", "GPUStack")

K8S_EXTENDED = (
    "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"
    "#extended-resources"
)
K8S_PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus"
K8S_DEVICES = (
    "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/"
)
SPAWNER = "https://jupyterhub.readthedocs.io/en/stable/reference/api/spawner.html"
KUBESPAWNER = "https://jupyterhub-kubespawner.readthedocs.io/en/latest/spawner.html"
GENV_ENFORCEMENT = "https://github.com/run-ai/genv/blob/main/docs/source/usage/enforcement.rst"
CULLER = "https://github.com/jupyterhub/jupyterhub-idle-culler#readme"
VLLM = "https://docs.vllm.ai/en/latest/features/sleep_mode/"
VLLM_SECURITY = "https://docs.vllm.ai/en/stable/usage/security/"
LLAMA = "https://github.com/ggml-org/llama.cpp/tree/master/tools/server#sleeping-on-idle"
LLAMA_ROUTER = "https://huggingface.co/blog/ggml-org/model-management-in-llamacpp"
OLLAMA = "https://github.com/ollama/ollama/blob/main/docs/faq.mdx"
SGLANG = "https://docs.sglang.io/advanced_features/sglang_for_rl.html"
GPUSTACK = "https://github.com/gpustack/gpustack/issues/1429"
GPUSTACK_SCALING = (
    "https://docs.gpustack.ai/gpustack-operator/v0.11.2/docs/modules/model-deployment/scaling/"
)
GPUSTACK_KEYS = "https://docs.gpustack.ai/2.3/user-guide/api-key-management/"
VLLM_HOSTS = "https://docs.vllm.ai/en/latest/serving/distributed_serving.html"
SERVING_STORY = "test:tests/serve/test_serving.py"
POLLING = "code:benchmarks/peers/workers/polling_worker.py"
PROMISES = "test:tests/node/test_node_promises.py"


@dataclass(frozen=True)
class Cell:
    """What one tool does, in few words, and where that is shown."""

    text: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One feature; a cell for each of ``TOOLS``."""

    feature: str
    cells: tuple[Cell, ...]


def row(feature: str, *cells: tuple[str, *tuple[str, ...]]) -> Row:
    """A row from (text, source, …) for each tool."""
    return Row(feature, tuple(Cell(cell[0], cell[1:]) for cell in cells))


FEATURES = (
    row(
        "50 ask at the same instant: one GPU given to two?",
        ("never", "test:tests/e2e/test_load.py::test_a_small_class_loses_nothing", "run:rush"),
        ("never", "run:rush", "genv:utils/os_.py"),
        ("prevented by a lock in Redis", "canhazgpu:internal/types/types.go"),
        ("yes, nearly always", "run:rush"),
        ("never", "run:sessions"),
    ),
    row(
        "Nothing free: a queue with an order",
        (
            "yes, with place and reason",
            "test:tests/node/test_waits.py::test_a_wait_is_told_and_is_not_forgotten_in_a_crash",
        ),
        ("no, an error; ask again", "genv:entities/core/devices.py"),
        ("yes", "canhazgpu:internal/types/types.go"),
        ("no, whoever looks first", POLLING),
        ("the server's start waits, then fails", SPAWNER),
    ),
    row(
        "Quotas by user and group",
        (
            "yes, live",
            "test:tests/node/test_group_quotas.py"
            "::test_a_groups_and_the_default_quota_are_set_and_taken_back",
        ),
        (
            "devices a user, by ending what is over",
            "genv:enforce/rules/max_devices_per_user.py",
        ),
        ("none documented", "canhazgpu:docs/commands.md"),
        ("no", POLLING),
        ("GPUs a server, by profile", KUBESPAWNER),
    ),
    row(
        "A part of a GPU's memory",
        (
            "yes, the framework's limit follows",
            "test:tests/client/test_torch_adapter.py::test_the_limit_comes_with_cudas_start",
        ),
        ("yes, by its books", "genv:entities/core/devices.py"),
        ("no, whole GPUs", "canhazgpu:internal/types/types.go"),
        ("no", POLLING),
        ("by MIG, MPS or time slices", K8S_PLUGIN),
    ),
    row(
        "Somebody else's status call leaves a notebook's GPU alone",
        (
            "yes",
            "test:tests/node/test_access.py::test_another_user",
            "run:another_users_status",
        ),
        ("no, it frees it", "run:another_users_status", "genv:utils/poll.py"),
        ("reservations end by time or heartbeat", "canhazgpu:internal/gpu/heartbeat.go"),
        ("has no books", POLLING),
        ("yes, bound to the server", K8S_EXTENDED),
    ),
    row(
        "Who asked through the SDK is no squatter",
        (
            "yes",
            f"{PROMISES}::test_squatters_are_counted_shown_and_dealt_with",
            "run:sdk_process",
        ),
        ("no, it is ended (a shell's is not)", "run:sdk_process", "genv:sdk/env.py"),
        ("has commands only", "canhazgpu:docs/commands.md"),
        ("has no books", POLLING),
        ("has no audit", K8S_EXTENDED),
    ),
    row(
        "A notebook kernel is seen by the memory rule",
        (
            "yes",
            "test:tests/node/test_recalls.py"
            "::test_the_stages_are_told_shown_and_kept_and_a_busy_task_is_left_alone",
            "run:kernel_memory",
        ),
        ("no (a shell's process is)", "run:kernel_memory", "lab:genv_provisioner.py"),
        ("has no memory rule", "canhazgpu:docs/features-validation.md"),
        ("has no rule", POLLING),
        ("with MIG, by the device", K8S_PLUGIN),
    ),
    row(
        "`kill -9` of who has the GPU: when is it free?",
        (
            "at once, by itself",
            f"{PROMISES}::test_a_killed_holder_makes_room",
            "run:crash",
            "run:untouched",
        ),
        ("at the next call of anybody", "run:crash", "run:untouched", "genv:core/envs.py"),
        ("of `canhazgpu run`: after 5 minutes", "canhazgpu:internal/types/types.go"),
        ("at once: the driver frees it", POLLING),
        ("when the Hub looks (every 30 s)", SPAWNER),
    ),
    row(
        "`kill -9` in the middle of a write",
        (
            "loses nothing",
            "test:tests/node/test_node_process.py::test_what_was_told_is_so_after_every_crash",
            "run:torn",
        ),
        ("may leave a state that nobody can read", "run:torn", "genv:utils/utils.py"),
        ("is left to Redis", "canhazgpu:docs/dev-architecture.md"),
        ("has no state", POLLING),
        ("is left to the cluster", K8S_EXTENDED),
    ),
    row(
        "Who can change the books",
        (
            "the node manager only",
            "test:tests/node/test_access.py::test_another_user",
            "test:tests/node/test_access.py::test_another_user",
        ),
        (
            "every user of the host",
            "genv:utils/utils.py",
            GENV_ENFORCEMENT,
        ),
        ("whoever reaches Redis", "canhazgpu:docs/admin-setup.md"),
        ("has none", POLLING),
        ("the cluster", K8S_DEVICES),
    ),
    row(
        "A GPU for a notebook that runs already",
        (
            "at the import, no restart",
            "test:tests/e2e/test_one_host.py::test_import_gets_a_gpu_and_who_waits_for_it_can_leave_and_gets_it_when_it_is_free",
        ),
        (
            "from a terminal, then restart the kernel",
            "https://github.com/run-ai/jupyterlab_genv#attach-gpus-to-your-environment",
        ),
        ("reserve it by hand", "canhazgpu:README.md"),
        ("before the import, in the code", POLLING),
        ("no, with the server", KUBESPAWNER),
    ),
    row(
        "An idle GPU comes back and the variables stay",
        (
            "yes",
            "test:tests/client/test_parking.py::"
            "test_alice_keeps_her_variables_and_gets_a_gpu_again",
        ),
        ("no; detach by hand", "genv:cli/detach.py"),
        ("no; a reservation ends by time", "canhazgpu:README.md"),
        ("no", POLLING),
        ("no; the culler stops the server", CULLER),
    ),
    row(
        "What computes without asking is taken into account",
        (
            "counted, shown, acted on",
            f"{PROMISES}::test_squatters_are_counted_shown_and_dealt_with",
        ),
        (
            "can be ended; grants do not look at it",
            "genv:enforce/rules/non_env_processes.py",
            "genv:entities/core/devices.py",
        ),
        ("yes, left out of grants", "canhazgpu:docs/features-unreserved.md"),
        ("it sees nothing else", POLLING),
        ("no", K8S_DEVICES),
    ),
    row(
        "Several hosts",
        (
            "one pool: quotas over all of them, one page, starts where a GPU is free",
            "test:tests/hub/test_pool.py::test_a_quota_is_edited_once_and_holds_everywhere",
            "test:tests/hub/test_pool_places.py::test_a_kernel_of_a_server_starts_on_the_other_host",
        ),
        ("use, watch and enforce from one place", "genv:cli/remote.py"),
        ("status by SSH", "canhazgpu:internal/types/types.go"),
        ("no", POLLING),
        ("**better**: the cluster schedules", K8S_EXTENDED),
    ),
    row(
        "GPUs that are not NVIDIA's",
        ("no", "code:jupyter_gpushare/node/inventory/nvml.py"),
        ("no", "genv:utils/nvidia_smi.py"),
        ("**better**: AMD too", "canhazgpu:internal/gpu/amd_provider.go"),
        ("no", POLLING),
        ("**better**: what has a device plugin", K8S_DEVICES),
    ),
    row(
        "Isolation that a program cannot go round",
        ("no, it is measured and told", "code:docs/security.md"),
        ("no", GENV_ENFORCEMENT),
        ("no", "canhazgpu:docs/features-unreserved.md"),
        ("no", POLLING),
        ("**better**: a container has its devices only", K8S_DEVICES),
    ),
    row(
        "What must run besides",
        ("the node manager", "code:docs/admin.md"),
        ("**better**: nothing", "genv:core/utils.py"),
        ("Redis", "canhazgpu:docs/installation.md"),
        ("**better**: nothing", POLLING),
        ("**better**: nothing more", KUBESPAWNER),
    ),
    row(
        "Calls a second from Python",
        ("each is a round trip to the node manager", "run:calls"),
        ("**better**: it reads a file", "run:calls"),
        ("not measured", "canhazgpu:docs/installation.md"),
        ("not a service", POLLING),
        ("not a service", KUBESPAWNER),
    ),
)

SERVING = (
    row(
        "A model server sleeps when a neighbour needs the GPU",
        (
            "yes, once it is idle",
            f"{SERVING_STORY}::test_a_server_sleeps_for_a_neighbour_and_wakes_for_a_request",
            "test:tests/demo/test_demo_serve.py::test_a_server_and_two_notebooks_share_one_gpu",
        ),
        ("when somebody calls `/sleep`", VLLM),
        ("after a time without requests, wanted or not; off by default", LLAMA),
        ("after a time without requests, wanted or not; for another model of its own", OLLAMA),
        ("when somebody calls `/release_memory_occupation`", SGLANG),
        ("not documented; asked for in 2025", GPUSTACK),
    ),
    row(
        "The next request wakes it",
        (
            "yes, through the queue for GPUs",
            f"{SERVING_STORY}::test_a_server_sleeps_for_a_neighbour_and_wakes_for_a_request",
        ),
        ("no, `/wake_up` does", VLLM),
        ("yes", LLAMA, LLAMA_ROUTER),
        ("yes", OLLAMA),
        ("no, `/resume_memory_occupation` does", SGLANG),
        (
            "not documented: people set its replicas, or a scaler, which keeps one",
            GPUSTACK,
            GPUSTACK_SCALING,
        ),
    ),
    row(
        "What stays of it meanwhile",
        (
            "its process, with the GPU's memory in the host's; or nothing, as its owner says",
            "test:tests/keeper/test_succession.py"
            "::test_a_successor_finds_the_program_awake_or_asleep",
            "test:tests/keeper/test_keeper.py"
            "::test_what_cannot_be_parked_is_ended_only_where_its_owner_allows_it",
        ),
        ("its process, with the weights in host memory, or without them", VLLM),
        ("its process; the model is loaded from its file again", LLAMA),
        ("its process; the model is loaded from its file again", OLLAMA),
        (
            "its process; the weights, where it was told to keep a copy",
            "code:jupyter_gpushare/serve/adapters/sglang.py",
        ),
        ("nothing, at no replicas", GPUSTACK),
    ),
    row(
        "It is checked that it wakes as what it was",
        (
            "yes, by a fixed prompt; else it is started anew",
            f"{SERVING_STORY}"
            "::test_one_that_sleeps_by_itself_wakes_as_what_it_was_or_is_started_anew",
        ),
        ("not documented", VLLM),
        ("it is loaded anew", LLAMA),
        ("it is loaded anew", OLLAMA),
        ("not documented", SGLANG),
        ("not documented", GPUSTACK),
    ),
    row(
        "Access to it",
        (
            "whoever has its token; groups find it",
            "test:tests/node/test_servers.py::test_who_may_use_a_server_is_told_how_and_nobody_else",
        ),
        ("a key, for some of its routes", VLLM_SECURITY),
        ("a key, if one is set", LLAMA),
        ("whoever reaches it", OLLAMA),
        ("not compared", SGLANG),
        ("**better**: users with keys that end, each for some models", GPUSTACK_KEYS),
    ),
    row(
        "Several hosts, and copies of one model",
        ("no, one server on its host", "code:jupyter_gpushare/serve/serving.py"),
        ("**better**: a model over many GPUs and hosts", VLLM_HOSTS),
        ("not compared", LLAMA_ROUTER),
        ("not documented", OLLAMA),
        ("not compared", SGLANG),
        ("**better**: places models on a cluster, and scales them", GPUSTACK_SCALING),
    ),
)
