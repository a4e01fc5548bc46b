"""Keepers: processes of ours that hold the lease of a program which cannot ask for itself."""
