"""A traceback shows the user's frames, and no frames of dualray, compiled or not."""

from __future__ import annotations

import pytest

from dualray.testing.failures import user_traceback


def test_frames_of_compiled_modules_are_left_out() -> None:
    """Their file names are relative: mypyc compiles `dualray/shared/core/values.py` from the project's directory."""
    compiled: dict[str, object] = {}
    exec(compile("def call(function): function()", "dualray/shared/core/values.py", "exec"), compiled)

    def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as raised:
        compiled["call"](fails)  # type: ignore[operator]
    said = user_traceback(raised.value)
    assert "in fails" in said
    assert "dualray/shared" not in said
    assert said.endswith("ValueError: wrong\n")
