"""The state of the node and the questions that it answers.

The state and its indexes, quotas, the order of the queue, the room on each GPU, and where a request
would be placed. Nothing here changes the state (:mod:`..evolve`), asks a task for anything
(:mod:`..recall`), or makes events (:mod:`..decide`).
"""
