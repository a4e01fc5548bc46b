"""The checkpoint helper: a process that can be killed, between a kernel and a driver that hangs.

One helper serves the kernels of one OS user in one pid namespace. It is a
small *supervisor* without CUDA in it, and one *worker* that has loaded the
driver and carries out one call at a time; a call that outlives its deadline
costs the worker's life and nothing else. It knows no node manager and needs no
rights beyond its user's. Nothing here imports the rest of ``node``.
"""
