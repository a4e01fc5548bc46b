"""A server's side of the talk with node managers, for the Jupyter server and the Hub's service.

The connection on the server's own event loop, the table of the REST interface and its OpenAPI
document. Logins and pages are in :mod:`..server` and :mod:`..hub`.
"""
