"""What the rest of the program and people are told about the state and its events.

Reasons in sentences (``texts``), events in sentences (``telling``), the invariants that every state
keeps (``check``), the shortest history that leads to a state (``snapshot``), and what the node
manager must do because of an event (``effects``). Nothing here makes an event or changes the state;
sending and signalling are done in ``node/``.
"""
