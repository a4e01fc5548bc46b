"""Asking the node manager for GPUs: when a framework starts, for a block of code, and again.

`broker` is one process's dealings with the node manager. What runs in cells, and what gives memory
back, live elsewhere.
"""
