"""The pages about GPUs: everybody's own, and the administration. One table, two servers.

JupyterHub's service and the Jupyter server both serve them, each with its own login, and each asks
the node manager in the viewer's name. What a viewer sees and may do, the node manager says: a page
believes no browser. What is only the Hub's (its login, its users' servers, its pool) is not here.
"""
