"""What libraries ask here: whether the program is one of the Ray Client's, which it never is."""

from dualray.as_ray.refusals import refusing

__all__ = ["num_connected_contexts", "ray"]


class _NoClient:
    """The answers of a program that no Ray Client has connected."""

    def is_connected(self) -> bool:
        """Never."""
        return False


def num_connected_contexts() -> int:
    """None."""
    return 0


ray = _NoClient()
__getattr__ = refusing("ray.util.client")
del refusing
