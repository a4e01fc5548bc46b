"""The lease of this process: the line to the node manager, and what the process holds.

This room asks, waits, keeps the lease alive and sets ``CUDA_VISIBLE_DEVICES``. It moves no GPU
memory (:mod:`..memory`) and knows no framework (:mod:`..adapters`).
"""
