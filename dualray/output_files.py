"""Files that dualray writes beside or in a place that the user names: the files of a decision log, and a run's record.

The place can be a directory where other users may write. A symbolic link that another user has put there would make
dualray write into a file of this user's elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def create_file(path: Path, *, buffering: int = -1) -> BinaryIO:
    """A new file, in place of a file or link of this name.

    Raises:
        OSError: another user's file or link is in the way, or the directory is missing.
    """
    path.unlink(missing_ok=True)  # a link goes, and not the file that it names
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(fd, "wb", buffering=buffering)
