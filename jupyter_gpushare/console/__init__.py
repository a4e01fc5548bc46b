"""What a command in a terminal is made of: options and exit codes, and a line to a node manager.

The verbs themselves are in :mod:`..cli` and in the rooms that work for them. Standard library only.
"""
