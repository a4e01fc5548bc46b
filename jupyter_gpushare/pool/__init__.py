"""The pool: several hosts' node managers seen as one.

Its core is pure, as the policy is: :mod:`.decide` decides commands over frozen data.
"""
