"""The command line for what Ray leaves: `dualray import-ray`. Exit codes as in app.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import OUTPUT_HELP, refuse, say
from dualray.cli.seeing import check_ours
from dualray.recording.file import check_can_write, write_record
from dualray.recording.ray_import import import_ray

app = Commands()


@app.add("import-ray")
def import_ray_command(
    logs: Annotated[Path, Argument(help="Directory of a Ray session, or the directory logs/export_events in it.")],
    output: Annotated[Path, Option("--output", "-o", help=OUTPUT_HELP)] = Path("run.parquet"),
    job: Annotated[
        str | None, Option(help="Id of the job to import, in hex; required if the events belong to several jobs.")
    ] = None,
    timeline: Annotated[
        Path | None, Option(help="JSON file from `ray timeline`, with times that are missing in the events.")
    ] = None,
    sizes: Annotated[
        Path | None,
        Option(
            help='JSON file with the sizes of results, {"function": bytes}; by default, dualray estimates the sizes.'
        ),
    ] = None,
    edges: Annotated[
        Path | None,
        Option(
            help='JSON file with dependencies, [["id of a task", "id of the task that takes its result"]]; '
            "by default, dualray infers the dependencies."
        ),
    ] = None,
) -> None:
    """Convert the events that a Ray cluster exported into a recorded run, for `dualray predict`.

    Example: dualray import-ray /tmp/ray/session_latest --output run.parquet
    """
    try:
        check_can_write(output, "--output")
        check_ours(output, "--output")
        record = import_ray(logs, job=job, timeline=timeline, sizes=sizes, edges=edges)
        write_record(output, record)
    except ValueError as error:
        refuse(error)
    for sentence in record.facts["estimates"]:
        say(sentence)
    say(f"{output}: predict from it with `dualray predict {output}`")
