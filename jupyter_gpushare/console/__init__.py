"""What a command in a terminal is made of: options, exit codes, a line to a node manager, and
what a check has found.

The verbs themselves are in :mod:`..cli` and in the rooms that work for them. Standard library only.
"""
