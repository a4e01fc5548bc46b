"""Walls: what the kernel enforces on the processes of an environment, by their control group.

The helper lives here, the only program of ours that needs root's rights. The policy decides who may
open which GPU, and the node manager tells the helper (:mod:`jupyter_gpushare.node.host.walls`).
"""
