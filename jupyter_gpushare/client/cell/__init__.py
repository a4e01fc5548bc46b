"""Cells of a notebook: when one runs, whether it needs a GPU, and the magics that a person types.

What is known here comes from IPython and the kernel. Leases are in :mod:`..session`, and memory
that a cell needs back is in :mod:`..memory`.
"""
