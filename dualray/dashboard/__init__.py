"""The live page: `dualray dashboard` shows a cluster, a run while it goes on, or one that is over, in a browser.

What there is to see is put together from a run's trace, or asked of a cluster, in tables; a small server hands out what
has changed in them; a script in the page draws it. Nothing here changes what a run does: it is read, and never told.
"""
