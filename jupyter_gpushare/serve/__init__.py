"""A model server that sleeps while a neighbour needs the GPU, and wakes with the next request.

Here live: who waits for a sleeping server (``gate``, which is pure), what passes requests on
(``proxy``), the server's port, health and control routes (``upstream``), what puts a known server
to sleep by its own means (``sleeping`` and ``adapters``), who may use it (``token``), and the verb.
The lease, the server's processes and the other ways to free its memory are the keeper's.
"""
