"""The state after an event: one function for each kind of event, grouped by subject.

Only events change the state, and only here. Nothing in this room refuses or chooses: an event has
happened, and the same event always changes the same state in the same way. What makes events is
in :mod:`..decide`.
"""
