"""Files of the availability of spot machines as faults of a prediction: `--fault-files spot.json`.

What stands in them, and what follows from it, is in dualray/shared/scenario/spot.py.
"""

from __future__ import annotations

from dualray.input_files import read_text
from dualray.shared.scenario.spot import SpotTrace, parse_spot

__all__ = ["SpotTrace", "is_spot", "load_spot"]

_ENDING = ".json"


def is_spot(path: str) -> bool:
    """Whether a file of faults is one of spot machines; scenario files are YAML."""
    return path.endswith(_ENDING)


def load_spot(path: str) -> SpotTrace:
    """Read such a file.

    Raises:
        ValueError: it cannot be read, or is of another format; one line says what is wrong.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ValueError(f"the file {path!r} with faults cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path!r} with faults cannot be read: it is not text in UTF-8") from None
    return parse_spot(text, path)
