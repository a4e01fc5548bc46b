"""Walls: what the kernel enforces on the processes of an environment, by their control group.

Here are the helper, the only program of ours that needs root's rights, and the words that it is
spoken to with. Who may open what is the policy's, and is asked for by the node manager.
"""
