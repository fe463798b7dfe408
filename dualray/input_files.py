"""Files that the user names, and dualray.toml: dualray reads regular files of bounded size.

A FIFO would make the reader wait for ever, and /dev/zero would fill the memory. Both end in an `OSError` with a reason
in words. dualray.toml is read without being named, so it must also come from somebody whom this user trusts.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

INPUT_BYTES_MAX: Final = 64 << 20
"""Largest size of a file that people write: scenarios, settings, calibrations, secrets."""
CONFIG_FILE: Final = "dualray.toml"


def read_bytes(path: str | Path, *, bytes_max: int | None = INPUT_BYTES_MAX) -> bytes:
    """The content of a regular file.

    Args:
        bytes_max: the largest size, or None for files that programs write and that may be large.
    Raises:
        OSError: it cannot be read, is not a regular file, or is too large; `strerror` says which.
    """
    return _read(_open(path), path, bytes_max)


def read_text(path: str | Path, *, bytes_max: int | None = INPUT_BYTES_MAX, errors: str = "strict") -> str:
    """The content of a regular file in UTF-8.

    Raises:
        OSError: as `read_bytes`.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    text = read_bytes(path, bytes_max=bytes_max).decode(errors=errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Path.read_text


def read_pipe(path: Path) -> bytes:
    """Read a pipe of the shell, as in `<(command)`, until the command ends. Other files are read as by `read_bytes`."""
    if not path.is_fifo():
        return read_bytes(path)
    return _read(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, INPUT_BYTES_MAX)


def read_config_file(path: Path, *, is_named: bool) -> dict[str, Any]:
    """The content of a file in TOML.

    Args:
        is_named: the user has named the file. A file that is only found could come from anybody who can write into
            the current directory, for example into /tmp, and its settings can run code.
    Raises:
        ValueError: the file cannot be used; one line says why.
    """
    try:
        fd = _open(path)
        if not is_named and (owner := _foreign_owner(fd, path)) is not None:
            os.close(fd)
            raise ValueError(
                f"{path} in this directory belongs to another user (uid {owner}), and its settings can run code. "
                f"Run in another directory, or trust the file with DUALRAY_CONFIG={path}"
            )
        return tomllib.loads(_read(fd, path, INPUT_BYTES_MAX).decode())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} cannot be read: it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path} cannot be read: it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    except ValueError as error:
        if str(error).startswith(f"{path} "):
            raise
        raise ValueError(f"{path}: {str(error).partition(';')[0]}") from None  # an integer of thousands of digits


def _foreign_owner(fd: int, path: Path) -> int | None:
    """The owner of the file, or of the link to it, unless this user trusts the owner.

    This user trusts root. If only its owner can write into the directory, this user also trusts the owner, for example
    of a checkout that a container mounts.
    """
    directory = path.absolute().parent.stat()
    trusted = {os.getuid(), 0}
    if not directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        trusted.add(directory.st_uid)
    owners = (os.fstat(fd).st_uid, path.lstat().st_uid)
    return next((owner for owner in owners if owner not in trusted), None)


def _open(path: str | Path) -> int:
    """A descriptor of a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would wait for its writer
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _read(fd: int, path: str | Path, bytes_max: int | None) -> bytes:
    with os.fdopen(fd, "rb") as file:
        content = file.read() if bytes_max is None else file.read(bytes_max + 1)
    if bytes_max is not None and len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max:,} bytes", str(path))
    return content
