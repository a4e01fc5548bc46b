"""Kernels that have nothing of ours, in R, Julia, C++ or another Python, under leases."""
