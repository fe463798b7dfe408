"""An actor class shows the attributes of the user's class, and some classes cannot be actor classes."""

from __future__ import annotations

import abc
import inspect

import pytest

import dualray as ray
from tests.conformance.support import get

pytestmark = pytest.mark.usefixtures("cluster")


def test_methods_of_a_class_keep_what_decorators_wrote_on_them():
    """verl finds the methods of a worker group by such a mark."""

    class Worker:
        def marked(self, x: int) -> int:
            """Adds one."""
            return x + 1

        marked.mark = "dispatch"  # type: ignore[attr-defined]

        def _hidden(self):
            return 6

        _hidden.mark = "query"  # type: ignore[attr-defined]

        def plain(self):
            return 0

    remote = ray.remote(Worker)
    found = [name for name in dir(remote) if hasattr(getattr(remote, name), "mark")]
    assert found == ["_hidden", "marked"]
    assert get(remote.remote()._hidden.remote()) == 6
    assert (remote.marked.mark, remote.marked.__name__, remote.marked.__doc__) == ("dispatch", "marked", "Adds one.")
    assert list(inspect.signature(remote.marked).parameters) == ["self", "x"]
    assert get(ray.remote(lambda method: method(None, 4)).remote(remote.marked)) == 5
    assert get(remote.remote().marked.remote(1)) == 2


def test_an_abstract_class_is_refused_when_it_is_made_remote():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def area(self):
            """Of a shape."""

    class Square(Abstract):
        def area(self):
            return 4

    with pytest.raises(TypeError, match="abstract class Abstract with abstract method area"):
        ray.remote(Abstract)
    assert get(ray.remote(Square).remote().area.remote()) == 4


def test_a_program_notes_what_it_likes_on_a_handle():
    @ray.remote
    class Worker:
        def rank(self):
            return 1

    worker = Worker.remote()
    worker.label = "first"
    assert worker.label == "first"
    assert get(worker.rank.remote()) == 1
    assert not hasattr(get(ray.put(worker)), "label")  # the note stays in its process


def test_the_text_of_an_actor_class_names_the_class():
    class Counter:
        pass

    assert repr(ray.remote(Counter)).startswith(f"<{__name__}.ActorClass(Counter) object at 0x")
