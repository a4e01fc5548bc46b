"""What every long-running process of ours needs, the node manager's and the pool's alike.

Clocks, files for its own user only, each person's share of its time, whose a connection is, the
port for Prometheus, what is logged of a trouble that lasts, questions to JupyterHub, and what a
host has of its pool. No lease, GPU or host of a pool is known here.
"""
