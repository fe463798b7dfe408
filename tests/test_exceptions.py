"""Ray's exceptions under their names: a clause that catches one in Ray catches its counterpart here."""

from __future__ import annotations

import pickle

import pytest

from dualray import exceptions
from dualray.exceptions import DualrayError, TaskError

TREE = """
ActorAlreadyExistsError: ValueError RayError Exception
ActorDiedError: RayActorError RayError Exception
ActorHandleNotFoundError: ValueError RayError Exception
ActorPlacementGroupRemoved: RayError Exception
ActorUnavailableError: RayActorError RayError Exception
ActorUnschedulableError: RayError Exception
AsyncioActorExit: RayError Exception
AuthenticationError: RayError Exception
CrossLanguageError: RayError Exception
GetTimeoutError: RayError TimeoutError OSError Exception
LocalRayletDiedError: RayError Exception
NodeDiedError: RayError Exception
ObjectFetchTimedOutError: ObjectLostError RayError Exception
ObjectFreedError: ObjectLostError RayError Exception
ObjectLostError: RayError Exception
ObjectReconstructionFailedError: ObjectLostError RayError Exception
ObjectRefStreamEndOfStreamError: RayError Exception
ObjectStoreFullError: RayError Exception
OufOfBandObjectRefSerializationException: RayError Exception
OutOfDiskError: RayError Exception
OutOfMemoryError: RayError Exception
OwnerDiedError: ObjectLostError RayError Exception
PendingCallsLimitExceeded: RayError Exception
PlasmaObjectNotAvailable: RayError Exception
RayActorError: RayError Exception
RayCgraphCapacityExceeded: RaySystemError RayError Exception
RayChannelError: RaySystemError RayError Exception
RayChannelTimeoutError: RayChannelError RaySystemError RayError TimeoutError OSError Exception
RayDirectTransportError: RaySystemError RayError Exception
RayError: Exception
RaySystemError: RayError Exception
RayTaskError: RayError Exception
ReferenceCountingAssertionError: ObjectLostError RayError AssertionError Exception
RpcError: RayError Exception
RuntimeEnvSetupError: RayError Exception
StreamingGeneratorReplayInconsistentError: RaySystemError RayError Exception
TaskCancelledError: RayError Exception
TaskPlacementGroupRemoved: RayError Exception
TaskUnschedulableError: RayError Exception
UnserializableException: RayError Exception
UserCodeException: RayError Exception
WorkerCrashedError: RayError Exception
"""
"""The exceptions of Ray 2.60 and their `__mro__`, without BaseException and object:

python -c 'import ray.exceptions as e
for n, c in sorted(vars(e).items()):
    if isinstance(c, type) and issubclass(c, e.RayError): print(n + ":", *[k.__name__ for k in c.__mro__[1:-2]])'
"""

OF_RAY = {name: bases.split() for name, _, bases in (line.partition(":") for line in TREE.strip().splitlines())}
RAYS_NAMES = {"DualrayError": "RayError", "TaskError": "RayTaskError", "ActorError": "RayActorError"}


@pytest.mark.parametrize("name", OF_RAY)
def test_a_clause_meets_each_exception_as_in_ray(name):
    names = [RAYS_NAMES.get(cls.__name__, cls.__name__) for cls in getattr(exceptions, name).__mro__]
    assert names == [name, *OF_RAY[name], "BaseException", "object"]


def test_those_that_are_never_raised_say_so():
    source = [cls for cls in vars(exceptions).values() if isinstance(cls, type) and issubclass(cls, BaseException)]
    never = {cls.__name__ for cls in source if (cls.__doc__ or "").startswith("Never raised: ")}
    assert never <= set(OF_RAY)
    assert "RayChannelError" in never
    assert not never & {"RayError", "ActorDiedError", "ObjectLostError", "ObjectStoreFullError", "RaySystemError"}


def test_the_words_of_an_error_have_rays_names():
    assert exceptions.ActorDiedError("it died").error_msg == "it died"
    assert exceptions.TaskUnschedulableError("no node").error_message == "no node"
    assert exceptions.OutOfMemoryError("too much").message == "too much"
    assert TaskError("f", "the traceback").traceback_str == "the traceback"


@pytest.mark.parametrize(
    ("name", "message", "attributes"),
    [
        ("TaskCancelledError", "error_message", {"task_id": "ab"}),
        ("ActorError", "error_msg", {"actor_id": "ab", "actor_init_failed": True, "preempted": True}),
        ("ActorDiedError", "error_msg", {"actor_id": "ab"}),
        ("ActorUnavailableError", "error_message", {"actor_id": "ab"}),
        ("ActorUnschedulableError", "error_message", {}),
        ("TaskUnschedulableError", "error_message", {}),
        ("RuntimeEnvSetupError", "error_message", {}),
        ("OutOfMemoryError", "message", {}),
        ("NodeDiedError", "message", {}),
        ("AuthenticationError", "message", {}),
        ("UnserializableException", "original_stack_trace", {}),
        ("RaySystemError", "client_exc", {}),
    ],
)
def test_programs_make_errors_with_rays_arguments(name, message, attributes):
    cls = getattr(exceptions, name)
    made = cls(**{message: "what happened"}, **attributes)
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert str(error) == str(cls("what happened")) == "what happened"
        assert {key: getattr(error, key) for key in attributes} == attributes
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'mesage'"):
        cls(mesage="what happened")
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{message}'"):
        cls("once", **{message: "twice"})


def test_an_error_without_a_message_takes_ids_as_objects():
    error = exceptions.TaskCancelledError(task_id=b"\xab", error_message=None)
    assert (error.task_id, str(error), error.args) == ("ab", "", ())


def test_an_attribute_of_the_users_own_exception_is_not_hidden():
    class Told(Exception):
        def __init__(self):
            super().__init__()
            self.traceback_str = "its own"
            self.message = "its own, too"

    error = TaskError("f", "the traceback", Told()).as_instanceof_cause()
    assert error.traceback_str == "its own"
    assert vars(error)["message"] == "its own, too"


def test_the_cause_is_the_first_error():
    inner = TaskError("f", "inner", ValueError("boom")).as_instanceof_cause()
    outer = TaskError("g", "outer", inner).as_instanceof_cause()
    assert repr(outer) == "RayTaskError(ValueError)(ValueError('boom'))"
    assert type(outer.cause) is ValueError
    assert outer.function_name == "g"
    assert isinstance(outer.as_instanceof_cause(), ValueError)


def test_an_error_whose_cause_is_no_more_than_itself_stays_as_it_is():
    error = TaskError("f", "words", DualrayError("it could not be pickled"))
    assert error.as_instanceof_cause() is error
