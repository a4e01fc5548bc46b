"""The GPU memory of this process: limits, giving it back, bringing it back, and waiting for a turn.

This room decides which way of parking is used and whether it is safe. How one framework's memory
is moved is in :mod:`..adapters.parkers`; the talk with the node manager is in :mod:`..session`.
"""
