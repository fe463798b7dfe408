"""The core: every decision, as synchronous, deterministic, pure code that both modes run.

Nothing in here reads a clock, draws a number or does input or output; `tests/test_purity.py` sees to it.
"""
