"""Says each fact of a status once, as people read it.

A front end shows these sentences; it words and decides nothing itself. So a sentence may not depend
on who lays it out: it stands alone, it is plain, and a time in it is a moment that counts on. What
others may not know is not in the rows from which the sentences are made. Pure.
"""
