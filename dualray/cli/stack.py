"""`dualray stack`: where every worker on this machine is."""

from __future__ import annotations

from typing import Annotated

from dualray.cli.declare import Commands, Option

WITHIN_S = 3.0

app = Commands()


@app.add("stack")
def stack_command(
    full: Annotated[bool, Option("--full", help="Also dualray's own threads and frames.")] = False,
    timeout: Annotated[float, Option(help="Seconds that the workers have to answer.", min=0.1)] = WITHIN_S,
) -> None:
    """Show the Python stack of every worker of this user's real clusters on this machine.

    A simulation has no workers to ask: all of it runs on one thread of its driver, where breakpoint(), pytest --pdb, an
    IDE's debugger and Ctrl-C show tasks as they show plain functions.
    """
    from dualray.real.observe.stacks import ask, without_ours  # noqa: PLC0415 - as above
    from dualray.real.session.session import all_running  # noqa: PLC0415 - other commands need none of this

    sessions = all_running()
    for session in sessions:
        print(f"Session {session.directory}, {session.node}")
        answers = ask(session.stacks, timeout)
        if not answers:
            print("it has no workers\n")
        for answer in answers:
            print(f"\n---- Worker {answer.worker}, pid {answer.pid} ----")
            if not answer.words:
                print(f"no answer within {timeout:g} s: it is stopped, or has just ended")
                continue
            print(answer.words if full else without_ours(answer.words))
            if not answer.is_whole:
                print("\nits main thread runs no Python code, and cannot say which task this is")
        print()
    if not sessions:
        print(
            "No real cluster of this user runs on this machine. A simulation runs in its driver alone: use "
            "breakpoint() or any debugger there, as in plain code."
        )
