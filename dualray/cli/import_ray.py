"""The command line for what Ray leaves: `dualray import-ray`. Exit codes as in app.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import refuse, say
from dualray.cli.seeing import check_ours
from dualray.recording.file import check_can_write, write_record
from dualray.recording.ray_import import import_ray

app = Commands()


@app.add("import-ray")
def import_ray_command(
    logs: Annotated[Path, Argument(help="The directory logs/export_events of a Ray session, or the session's.")],
    output: Annotated[Path, Option("--output", "-o", help="The file to write.")] = Path("run.parquet"),
    job: Annotated[str | None, Option(help="Job id in hex, if the log has several jobs.")] = None,
    timeline: Annotated[
        Path | None, Option(help="A file of `ray timeline`, for times that the events do not have.")
    ] = None,
    sizes: Annotated[Path | None, Option(help='JSON: {"function": bytes of its result}; else estimated.')] = None,
    edges: Annotated[
        Path | None, Option(help='JSON: [["maker\'s task id", "taker\'s task id"]]; else inferred.')
    ] = None,
) -> None:
    """Make a record of a program of plain Ray, from the events that its cluster has exported."""
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
