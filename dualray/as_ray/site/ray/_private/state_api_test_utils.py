"""What Ray's own public tests import from here: questions to the state API that check the answer."""

from collections.abc import Callable
from typing import Any

from ray._common.test_utils import wait_for_condition

from dualray.as_ray.refusals import refusing

__all__ = ["invoke_state_api", "invoke_state_api_n"]


def invoke_state_api(
    verify_cb: Callable[[Any], bool],
    state_api_fn: Callable[..., Any],
    state_stats: Any = None,
    key_suffix: str | None = None,
    print_result: bool | None = False,
    err_msg: str | None = None,
    **kwargs: Any,
) -> Any:
    """What a function of the state API answers, if it is right.

    Args:
        verify_cb: whether an answer is.
        state_api_fn: the function; it gets `kwargs`.
        state_stats, key_suffix: of how long it takes, which nobody counts here.
        print_result: print the answer.
        err_msg: the words of the error.

    Raises:
        AssertionError: the answer is not right.
    """
    answer = state_api_fn(**{"timeout": 60, **kwargs, "raise_on_missing_output": False})
    if print_result:
        print(answer)  # noqa: T201 - it is asked for
    if not verify_cb(answer):
        raise AssertionError(err_msg or f"{state_api_fn.__name__} has answered {answer!r}")
    return answer


def invoke_state_api_n(*args: Any, **kwargs: Any) -> None:
    """Return when ten answers in a row are right.

    Raises:
        RuntimeError: they are not, within 30 s.
    """

    def are_right() -> bool:
        for _ in range(10):
            invoke_state_api(*args, **kwargs)
        return True

    wait_for_condition(are_right, timeout=30, retry_interval_ms=2000)


__getattr__ = refusing("ray._private.state_api_test_utils")
