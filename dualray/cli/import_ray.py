"""The command line for what Ray leaves: `dualray import-ray`. Exit codes as in app.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import RECORD_HELP, refuse, say
from dualray.cli.seeing import check_ours
from dualray.recording.file import check_can_write, write_record
from dualray.recording.ray_import import import_ray

app = Commands()


@app.add("import-ray")
def import_ray_command(
    logs: Annotated[
        Path,
        Argument(
            help="Directory of a Ray session, such as /tmp/ray/session_latest, or its subdirectory logs/export_events."
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help=RECORD_HELP)] = Path("run.parquet"),
    job: Annotated[
        str | None,
        Option(
            help="Hexadecimal id of the Ray job to import. If the exported events belong to several "
            "Ray jobs, you must give --job."
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        Option(
            help="JSON file that `ray timeline` wrote. If Ray's exported events lack the times of a task, "
            "`dualray import-ray` takes the times from the JSON file of `ray timeline`."
        ),
    ] = None,
    sizes: Annotated[
        Path | None,
        Option(
            help='JSON file with the size in bytes of each function\'s results, such as {"train": 2048}. By '
            "default, `dualray import-ray` estimates the size of each result."
        ),
    ] = None,
    edges: Annotated[
        Path | None,
        Option(
            help='JSON file with the dependencies between tasks: [["id of a task", "id of a task that uses the '
            'result"]]. By default, `dualray import-ray` infers the dependencies between tasks from '
            "the events that the Ray cluster exported."
        ),
    ] = None,
) -> None:
    """Convert the events that a Ray cluster exported into a recorded run, which `dualray predict` can read.

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
