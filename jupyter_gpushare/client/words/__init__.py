"""What the client reads and says: settings in, sentences and tables for people out.

Also what the node manager granted, as adapters see it. Nothing here talks to the node manager or
touches a GPU.
"""
