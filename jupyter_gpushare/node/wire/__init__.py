"""The node manager's end of the protocol: the socket, its limits, and the translation of messages.

Connections, who may have how many, whose call is handled next, and what each client is told. The
shape of the messages is in ``protocol``, the identity of a client is found in :mod:`..people`, and
the documents that clients read are made in :mod:`..views`.
"""
