"""`dualray stack`: where every worker on this machine is."""

from __future__ import annotations

from typing import Annotated

from dualray.cli.declare import Commands, Option

WITHIN_S = 3.0

app = Commands()


@app.add("stack")
def stack_command(
    full: Annotated[
        bool, Option("--full", help="Also show the threads and stack frames of dualray's own code.")
    ] = False,
    timeout: Annotated[
        float,
        Option(help="Maximum time, in seconds, for which `dualray stack` waits for answers of workers.", min=0.1),
    ] = WITHIN_S,
) -> None:
    """Show the Python stack of every worker process of your running clusters on this machine.

    A simulation has no worker processes, because all simulated tasks run in the process of your script. To see the
    stack of a simulation, use breakpoint(), pytest --pdb or an IDE's debugger, or press Ctrl-C.

    Example: dualray stack --full
    """
    from dualray.real.observe.stacks import ask, without_ours  # noqa: PLC0415 - as above
    from dualray.real.session.session import all_running  # noqa: PLC0415 - other commands need none of this

    sessions = all_running()
    for session in sessions:
        print(f"Session {session.directory}, {session.node}")
        answers = ask(session.stacks, timeout)
        if not answers:
            print("This node has no workers.\n")
        for answer in answers:
            print(f"\n---- Worker {answer.worker}, pid {answer.pid} ----")
            if not answer.words:
                print(f"The worker did not answer within {timeout:g} s. The worker is stopped, or has just ended.")
                continue
            print(answer.words if full else without_ours(answer.words))
            if not answer.is_whole:
                print("\nThe worker's main thread is not in Python code, so its task is not known.")
        print()
    if not sessions:
        print(
            "No real cluster of this user runs on this machine. A simulation runs inside its driver. To see the "
            "stack of a simulation, use breakpoint() or a debugger in the driver."
        )
