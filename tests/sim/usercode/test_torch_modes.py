"""`no_grad` and `inference_mode` of PyTorch are each process's own."""

from __future__ import annotations

import pytest

import dualray as ray

torch = pytest.importorskip("torch")


@ray.remote
def modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


class Waiting:
    def wait(self, mode, refs):
        with mode():
            return modes_here(), ray.get(refs), modes_here()


def modes_here() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def test_what_one_process_enters_is_not_for_others():
    ray.init(mode="sim", num_cpus=4)
    try:
        for mode, here in ((torch.no_grad, (False, False)), (torch.inference_mode, (False, True))):
            with mode():
                assert ray.get(modes.remote()) == (True, False)
                assert modes_here() == here
            assert modes_here() == (True, False)
        actor = ray.remote(Waiting)
        first, second = actor.remote(), actor.remote()
        refs = [modes.remote()]
        assert ray.get([first.wait.remote(torch.no_grad, refs), second.wait.remote(torch.inference_mode, refs)]) == [
            ((False, False), [(True, False)], (False, False)),
            ((False, True), [(True, False)], (False, True)),
        ]
    finally:
        ray.shutdown()
