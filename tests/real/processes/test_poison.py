"""A task that its worker dies of, among others: only it fails."""

from __future__ import annotations

import os

import pytest

import dualray


@dualray.remote(max_retries=1)
def work(number: int, deadly: int) -> int:
    if number == deadly:
        os._exit(3)
    return number


@pytest.mark.parametrize("retries", [0, 1])
def test_only_the_task_that_ends_its_worker_fails(retries: int) -> None:
    dualray.init(num_cpus=1)
    try:
        dualray.get([work.remote(number, -1) for number in range(50)])  # from here on many are pushed ahead
        refs = [work.options(max_retries=retries).remote(number, 17) for number in range(40)]
        for number, ref in enumerate(refs):
            if number == 17:
                with pytest.raises(dualray.exceptions.WorkerCrashedError):
                    dualray.get(ref, timeout=60)
            else:
                assert dualray.get(ref, timeout=60) == number
    finally:
        dualray.shutdown()
