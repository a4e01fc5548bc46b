"""How one framework's GPU memory is moved to the host and back, and how its steps are measured.

Torch's storages can be moved; CuPy's caches can be emptied. When that is done is decided in
``client/memory``.
"""
