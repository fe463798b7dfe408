"""`ray.worker`, as far as programs used it: the end of a program."""

from dualray.api import shutdown


def cleanup() -> None:
    """End what `init` started; without `init`, nothing happens."""
    shutdown()


__all__ = ["cleanup"]
