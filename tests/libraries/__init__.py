"""Popular libraries, each first imported inside six tasks at once and in two actors, in both modes.

`python -m tests.libraries` prints the table; `--only numba` asks for one. A library that is not installed is reported,
not failed. Each runs in processes of its own, so that the import is the first; simulated, 20 such runs have to be
equal, under two hash seeds.
"""
