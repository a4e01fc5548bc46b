"""What a measurement means: whose memory it is, what is gone, and who is over a limit.

The room also decides when the node manager acts on a task that uses more than its limit or that has
stalled. The measuring itself is done in ``node/inventory`` and ``node/host``; a reading arrives
here as a command.
"""
