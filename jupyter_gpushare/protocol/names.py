"""The environment variables: those by which the parts find each other, and a task's settings."""

from __future__ import annotations

from typing import Any, Final

SWITCH: Final = "JUPYTER_GPUSHARE"
SOCKET: Final = "JUPYTER_GPUSHARE_SOCKET"
HOST: Final = "JUPYTER_GPUSHARE_HOST"
TOKEN: Final = "JUPYTER_GPUSHARE_TOKEN"
TOKEN_FILE: Final = "JUPYTER_GPUSHARE_TOKEN_FILE"
#: "hub": show the JupyterHub token of the server this runs in.
IDENTITY: Final = "JUPYTER_GPUSHARE_IDENTITY"
HUB_TOKEN: Final = "JUPYTERHUB_API_TOKEN"
#: The quotas of the node manager that JupyterHub runs, as JSON.
QUOTAS: Final = "JUPYTER_GPUSHARE_QUOTAS"
LEASE: Final = "JUPYTER_GPUSHARE_LEASE"
SECRET: Final = "JUPYTER_GPUSHARE_SECRET"
#: See :func:`.batchjob.set_here`.
SET_IN: Final = "JUPYTER_GPUSHARE_SET_IN"
RESTARTS: Final = "JUPYTER_GPUSHARE_RESTARTS"
#: The process id of `run`.
RUN: Final = "JUPYTER_GPUSHARE_RUN"
JOB: Final = "JUPYTER_GPUSHARE_JOB"
JOB_KIND: Final = "JUPYTER_GPUSHARE_JOB_KIND"
MEETING: Final = "JUPYTER_GPUSHARE_MEETING"
KERNEL_ID: Final = "JUPYTER_GPUSHARE_KERNEL_ID"
NOTEBOOK: Final = "JUPYTER_GPUSHARE_NOTEBOOK"
NOTEBOOK_SOCKET: Final = "JUPYTER_GPUSHARE_NOTEBOOK_SOCKET"
GPUS: Final = "JUPYTER_GPUSHARE_GPUS"
MEMORY: Final = "JUPYTER_GPUSHARE_MEMORY"
CLASS: Final = "JUPYTER_GPUSHARE_CLASS"
RESERVE: Final = "JUPYTER_GPUSHARE_RESERVE"
FALLBACK: Final = "JUPYTER_GPUSHARE_FALLBACK"
ACQUIRE: Final = "JUPYTER_GPUSHARE_ACQUIRE"
SHOW_GRANT: Final = "JUPYTER_GPUSHARE_SHOW_GRANT"
VISIBLE_DEVICES: Final = "JUPYTER_GPUSHARE_VISIBLE_DEVICES"
AFTER_ERROR: Final = "JUPYTER_GPUSHARE_AFTER_ERROR"
WAIT_TIMEOUT: Final = "JUPYTER_GPUSHARE_WAIT_TIMEOUT"
ANSWER_TIMEOUT: Final = "JUPYTER_GPUSHARE_ANSWER_TIMEOUT"
OUTAGE_TIMEOUT: Final = "JUPYTER_GPUSHARE_OUTAGE_TIMEOUT"
FRAMEWORKS: Final = "JUPYTER_GPUSHARE_FRAMEWORKS"
HIDDEN: Final = "JUPYTER_GPUSHARE_HIDDEN"
KERNEL_HOST: Final = "JUPYTER_GPUSHARE_KERNEL_HOST"
POOL_URL: Final = "JUPYTER_GPUSHARE_POOL_URL"
STARTED_FROM: Final = "JUPYTER_GPUSHARE_STARTED_FROM"

#: Jupyter's, for kernels and all that they start.
OF_KERNEL: Final = ("JPY_PARENT_PID", "JPY_SESSION_NAME")
#: What is set for the processes below one, and means nothing in another job of a batch system.
PASSED_ON: Final = (LEASE, SECRET, RUN, RESTARTS, KERNEL_ID, NOTEBOOK, NOTEBOOK_SOCKET, SET_IN)

#: How much is reserved for a request that names no memory.
RESERVES: Final = ("whole", "quota", "estimate")

#: Settings of a task's request: the setting, its variable, its meaning.
ASKS: Final = (
    ("gpus", GPUS, "How many GPUs to ask for; `0`: run on the CPU; `quota`: all of the quota."),
    ("memory", MEMORY, "Memory on each GPU, like `8GiB`. Not set: what the quota allows."),
    (
        *("priority_class", CLASS),
        "`interactive` (a person waits) or `batch` (may wait longer). Not set: what the process "
        "looks like.",
    ),
    (
        "reserve",
        RESERVE,
        "What is reserved where no memory is named: `whole`, `quota` or `estimate`. Not set: as "
        "the administrator has it.",
    ),
)

#: Settings of a task's behaviour: the setting, its variable, its default, its words or its bounds
#: in seconds, its meaning. The traits of kernels and of the Jupyter server are made from these
#: rows.
SETTINGS: Final[tuple[tuple[str, str, Any, tuple[Any, ...], str], ...]] = (
    (
        *("fallback", FALLBACK, "cpu", ("cpu", "error")),
        "What happens when no GPU can be had: `cpu` warns once and goes on without a GPU; `error` "
        "raises QuotaExceeded, NotGranted or NodeUnavailable.",
    ),
    (
        *("acquire", ACQUIRE, "import", ("import", "first-use")),
        "When cells and programs take the lease: when a framework is imported, or (`first-use`) "
        "when it first starts CUDA, where the framework lets us see that.",
    ),
    (
        *("wait_timeout", WAIT_TIMEOUT, 0.0, (0.0, 1e12)),
        "The longest wait in the queue: seconds, or 10m, 2h. 0: for ever.",
    ),
    (
        *("answer_timeout", ANSWER_TIMEOUT, 5.0, (0.05, 3600.0)),
        "Seconds in which the node manager must answer.",
    ),
    (
        *("outage_timeout", OUTAGE_TIMEOUT, 30.0, (0.0, 1e12)),
        "How long a cell waits for a node manager that stopped answering (it may be restarting) "
        "before the cell goes on without a GPU. 0: not at all.",
    ),
    (
        *("visible_devices", VISIBLE_DEVICES, "uuids", ("uuids", "indices")),
        "How CUDA_VISIBLE_DEVICES names a lease's GPUs: by their UUIDs, or by their `indices`, as "
        "nvidia-smi counts, with CUDA_DEVICE_ORDER=PCI_BUS_ID, for programs that take its entries "
        "for numbers. Only where all GPUs of the host are seen, so not in a container that was "
        "given some. MIG instances have no index.",
    ),
    (
        *("show_grant", SHOW_GRANT, True, ()),
        "Whether a line says which GPU the first import got, in a notebook and on a terminal.",
    ),
    (
        *("after_error", AFTER_ERROR, "next-cell", ("next-cell", "at-once", "keep")),
        "When the GPU memory comes back that only an out-of-memory error, or an interrupt, keeps: "
        "before the `next-cell`, so that `%debug` works until then; `at-once`; or not (`keep`).",
    ),
)

#: The meanings of the other variables.
MEANING: Final = {
    SWITCH: "`off` switches everything of ours off in this process.",
    SOCKET: "Path of the node manager's socket: clients look there, and "
    "`jupyter gpushare node` listens there.",
    HOST: "This host's own name among those that share the home directory, where its "
    "`/etc/machine-id` is not its own (cloned machines, containers of one image).",
    TOKEN: "Token for a node manager that identifies by tokens.",
    TOKEN_FILE: "A file with that token; shows in no process list.",
    IDENTITY: "`hub`: show the JupyterHub token of the server this runs in.",
    HUB_TOKEN: "Set by JupyterHub: the server's token.",
    QUOTAS: "Set by `setup(c)` for the Hub's node manager: its quotas, as JSON.",
    LEASE: "Set by us: the lease that child processes join.",
    SECRET: "Set by us: what proves it.",
    SET_IN: "Set by us: in which job of a batch system these were set. A job that is submitted "
    "there has them in its environment, too, and does not go by them.",
    RESTARTS: "Set by `run --requeue`: how often it has started this command again; first 0.",
    RUN: "Set by `run`: its process id, by which its command knows that SIGTERM only asks.",
    JOB: "Set by us for the workers of a job: its name, by which people see their leases as one.",
    JOB_KIND: "Set by us for the workers of a job: `elastic` or `sweep`, for display.",
    MEETING: "Set by us for the ranks of an elastic job: the folder where they meet, and the "
    "generation.",
    KERNEL_ID: "Set by the Jupyter server: the kernel's id.",
    NOTEBOOK: "Set by the Jupyter server: the notebook's `gpushare` metadata when the "
    "kernel started, as JSON; for when the server does not answer.",
    NOTEBOOK_SOCKET: "Set by the Jupyter server: where its kernels ask for that metadata "
    "as it is saved now.",
    KERNEL_HOST: "Set by the Jupyter server: the host of the pool that a person chose for a "
    "kernel.",
    POOL_URL: "Where a Jupyter server asks the pool for a host with a free GPU: the address of the "
    "Hub's GPU pages, as servers reach it.",
    STARTED_FROM: "Set by us for a kernel that may run on another host than its Jupyter server: "
    "the server's host.",
    HIDDEN: "Set by us: the GPUs are hidden until this process has a lease.",
    FRAMEWORKS: "More frameworks (top-level modules) to watch, by commas. The "
    "Jupyter server sets it to those that installed packages have adapters for, if it is "
    "not set.",
}
