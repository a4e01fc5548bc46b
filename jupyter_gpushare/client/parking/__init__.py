"""Giving a GPU's memory back while nothing computes, and the process's state kept; see `base`."""
