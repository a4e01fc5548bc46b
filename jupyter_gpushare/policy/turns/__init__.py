"""Taking turns on a GPU: which task computes now, which is next, and which loses its turn.

This room knows the order and its bound. The words for turns are in :mod:`..words.turns`, the
memory that tasks share while they take turns in :mod:`..books.shares`, and the state after a
turn's event in :mod:`..evolve.turns`.
"""
