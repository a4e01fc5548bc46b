"""Asking something back: what could be given, who is asked for it, how long is waited for it.

Whoever gives, gives by one `Recall`. What it is worth is known when it was measured; the books
change then (:mod:`..evolve`), not here.
"""
