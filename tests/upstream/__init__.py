"""Test suites of other projects, run unedited on Ray, on dualray's processes and in its simulation.

`python -m tests.upstream.run` runs them and compares the engines; it takes the sources from directories that the caller
names, and keeps environments and results outside the checkout. Nothing here is part of `make test`.
"""
