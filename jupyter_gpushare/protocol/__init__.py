"""What the parts say to each other: calls, notices and documents, each declared once.

Also how lines are framed, what people write for sizes, times and words, and the names of
environment variables. Every package but the policy may import this one, and it needs the standard
library only. It opens no connection (:mod:`..client.session` and :mod:`..link` do).
"""
