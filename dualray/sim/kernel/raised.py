"""Who has raised a KeyboardInterrupt: Ctrl-C strikes between any two instructions, code raises it by a `raise`."""

from __future__ import annotations

import dis
from typing import Final

_RAISE: Final = dis.opmap["RAISE_VARARGS"]


def was_raised(error: BaseException) -> bool:
    """Whether it was code that raised it, and no signal."""
    traceback = error.__traceback__
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE
