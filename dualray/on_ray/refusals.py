"""What Ray cannot give, and where to turn for it: each in one sentence, said at the call."""

from __future__ import annotations

from dualray.exceptions import DualrayError

_WAYS_OUT = {
    "explain": "explain is not for mode='ray', where Ray schedules: run the program with mode='sim', or ask Ray "
    "(`ray status`, `ray list tasks --detail`)",
    "timeline": "dualray.timeline is not for mode='ray', whose events Ray has: call ray.timeline(FILE)",
    "functions": "the table of functions is Ray's own in mode='ray': run the program with mode='real' to read it",
    "tables": "tables of the control plane are not for mode='ray': use an actor with a name and lifetime='detached'",
    "logs": "logs are Ray's in mode='ray': use `ray logs`, or ray.util.state.list_logs and get_log",
    "object_locations": "locations of objects are not for mode='ray': call ray.experimental.get_object_locations",
}


def refused(what: str) -> DualrayError:
    """What is raised at a call that Ray has no answer to."""
    return DualrayError(_WAYS_OUT[what])
