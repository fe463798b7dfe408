from __future__ import annotations

import pytest

from tests.libraries.programs import PROGRAMS
from tests.libraries.tried import NOT_INSTALLED, try_library


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_is_first_imported_and_used_in_six_tasks_at_once_and_two_actors(name: str) -> None:
    tried = try_library(name, repeats=2)
    if tried.real == NOT_INSTALLED:
        pytest.skip(f"{name} is not installed; `python -m tests.libraries` reports what is")
    assert tried.is_right, tried
