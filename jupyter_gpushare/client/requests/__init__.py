"""Asking the node manager for GPUs: when a framework starts, for a block of code, and again.

The `broker` decides what one process asks of the node manager, and when. The code around cells is
in :mod:`..cell`, and giving memory back is in :mod:`..memory`.
"""
