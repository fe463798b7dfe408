"""What Ray cannot give, and where to turn for it: each in one sentence, said at the call."""

from __future__ import annotations

from dualray.exceptions import DualrayError

_WAYS_OUT = {
    "explain": "mode='ray' has no explain, because Ray schedules the tasks: use mode='sim', or ask Ray "
    "(`ray status`, `ray list tasks --detail`)",
    "timeline": "mode='ray' has no dualray.timeline, because Ray records the events: call ray.timeline(FILE)",
    "functions": "in mode='ray' Ray keeps the table of functions: run the program with mode='real' to read it",
    "tables": "mode='ray' has no tables of the control plane: use an actor with a name and lifetime='detached'",
    "logs": "in mode='ray' Ray keeps the logs: use `ray logs`, or ray.util.state.list_logs and get_log",
    "object_locations": "mode='ray' has no locations of objects: call ray.experimental.get_object_locations",
}


def refused(what: str) -> DualrayError:
    """What is raised at a call that Ray has no answer to."""
    return DualrayError(_WAYS_OUT[what])
