"""What follows from a command: a decision for the one who asked, and events for everybody.

This is the top room of the policy: it may import all others, and none of them imports it. It also
serves the waiting requests after each command. It returns events and changes no state itself:
:mod:`..evolve` does.
"""
