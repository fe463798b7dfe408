"""Recording what a program asks for and what it takes: the graph of its tasks, in one file, of either mode.

`recorded.py` notes what one process does, `file.py` is the Parquet file that is made of the notes of all.
"""
