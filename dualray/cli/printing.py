"""How commands print tables, and refuse what they cannot use."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, NoReturn

from dualray.cli.declare import Exit, Option
from dualray.shared.model.resources import NODE_PREFIX, number_words
from dualray.text_tables import Colour, Table, has_colours, painted, terminal_width

UNUSABLE: Final = 2
"""The exit code of a command whose arguments are wrong."""
SHORT_ID: Final = 8
"""Characters of an id in a table. An id is longer where two ids of the column begin alike."""
CELL_LENGTH_MAX: Final = 48
"""Most characters of a text in a table. The commands cut a longer text; `get` and `-v` show the whole text."""
LAST_RESORTS: Final = (
    "error_message",
    "type",
    "job_id",
    "ray_namespace",
    "owner",
    "creator",
    "labels",
    "required_resources",
    "resources_available",
    "store_bytes",
    "start_time_s",
    "attempt_number",
    "call_site",
)
"""The fields that a table leaves out first when the terminal is too narrow, in this order."""
SENTENCES: Final = ("waits_for", "waiting_reason")
"""The fields that are too long for a column. A command prints sentences below the table; `-v` adds columns."""

# The help of options that several commands share. A command may add a sentence.
ADDRESS_HELP: Final = "Address of the cluster's head process, as host:port."
AS_RAY_HELP: Final = "Import dualray instead of Ray when the script runs `import ray`."
AUTOSCALE_HELP: Final = "File that describes the autoscaler's groups of nodes, or a RayCluster manifest of KubeRay."
DECISION_LOG_HELP: Final = (
    "New or empty directory, to which dualray writes the events and scheduling decisions of the run."
)
DRY_RUN_HELP: Final = "Print the planned actions, but do not perform them."
FAULTS_HELP: Final = (
    "Fault that dualray injects into the run, such as 'kill node-5 at 2.5s'. To inject several "
    "faults, repeat the option --faults."
)
FORMAT_HELP: Final = "Format of the command's output: table or json."
JOBS_HELP: Final = "Number of processes in which the command runs simulations at the same time."
JSON_HELP: Final = "Print the result of the command as JSON instead of text."
KEPT_LOGS_HELP: Final = "Directory to which an earlier run wrote its log files, as set with init(log_directory=...)."
LOG_HELP: Final = (
    "Decision log of an earlier run: the directory that you set with --decision-log or init(decision_log=...)."
)
MODE_HELP: Final = (
    "Mode in which dualray runs the program: real (in worker processes), sim (in a simulation) or ray "
    "(on a Ray cluster)."
)
NODES_HELP: Final = "Number of nodes in the cluster that the command starts or simulates."
NUM_CPUS_HELP: Final = "Number of CPUs that each node of the cluster offers to tasks."
PORT_HELP: Final = "Network port on which dualray listens, or 0 for any free port."
RECORD_HELP: Final = "File to which the command writes the recorded run."
REPORT_HELP: Final = "HTML file to which the command writes a report of its results."
SCRIPT_ARGS_HELP: Final = (
    "Arguments that dualray passes to the script. All arguments after `--` belong to the script, even arguments "
    "that look like options of dualray."
)
SEED_HELP: Final = "Seed of the random numbers that dualray draws during the run."
SEEDS_HELP: Final = "Number of random seeds for which the command runs simulations."
SCENARIO_SEED_HELP: Final = f"{SEED_HELP} Without --seed, dualray uses the seed in the scenario file."

AsJson = Annotated[bool, Option("--json", help=JSON_HELP)]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print more details than by default.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only the overall result of the command, without details.")]


def refuse(why: object) -> NoReturn:
    """Print on stderr why the command cannot continue, and end it with UNUSABLE."""
    say_aside(f"dualray: {why}", colour="red")
    raise Exit(UNUSABLE)


def in_options(error: Exception, given: Mapping[str, object]) -> str:
    """Return an error about settings, with the option's name for a setting from an option: `--nodes '0' must be ...`.

    Args:
        error: names the setting by its environment variable.
        given: by setting, the option's value; None where the option was not given.
    """
    words = str(error)
    for name, value in given.items():
        if value is not None:
            words = words.replace(f"DUALRAY_{name}=", f"--{name.lower().replace('_', '-')} ")
    return words


def say(words: str, *, colour: Colour = "") -> None:
    """Print a line on stdout, however long it is."""
    print(painted(words, colour, has_colours(sys.stdout)))


def mark(words: str, colour: Colour) -> str:
    """Return a part of a line for stdout in a colour."""
    return painted(words, colour, has_colours(sys.stdout))


def say_aside(words: str, *, colour: Colour = "") -> None:
    """Print a line on stderr, after flushing stdout."""
    sys.stdout.flush()
    print(painted(words, colour, has_colours(sys.stderr)), file=sys.stderr)


def count_of(number: int, what: str) -> str:
    """Return a number with its noun, such as "1 task" or "2,000 tasks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print a value on stdout as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def table_of(title: str, *columns: str) -> Table:
    """Return an empty table with a title and columns."""
    return Table(*columns, title=title)


def show(*tables: Table, width: int | None = None) -> None:
    """Print tables on stdout, one below the other, in the width of the terminal or in the given width."""
    for table in tables:
        print(table.text(sys.stdout, width or terminal_width()))


# ---- Rows ----------------------------------------------------------------------------------------------------------


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], *, key: str = "", verbose: bool = False) -> None:
    """Print rows as a table that fits a narrow terminal.

    A column that is empty in all rows is left out. One that is equal in all rows is told in a line below the table.
    Where the terminal is still too narrow, the columns of LAST_RESORTS go. Ids are cut to the shortest beginning that
    tells them apart; every command accepts such a beginning.

    Args:
        title: printed above the table.
        rows: every row by field.
        key: the field that stays, whatever its values.
        verbose: print every column and whole ids, however wide the table gets.
    """
    columns = {
        field: [row.get(field) for row in rows]
        for field in dict.fromkeys(field for row in rows for field in row)
        if verbose or field not in SENTENCES
    }
    width = terminal_width()
    if verbose:
        table = _filled(columns, verbose)
        say(title, colour="italic")
        show(table, width=max(width, table.width))
        return
    equal = _take_equal(columns, key, len(rows))
    narrow: list[str] = []
    table = _filled(columns, verbose)
    for field in [each for each in LAST_RESORTS if each in columns]:
        if table.width <= width:
            break
        del columns[field]
        narrow.append(heading(field))
        table = _filled(columns, verbose)
    say(title, colour="italic")
    show(table)
    if equal:
        say(f"In all rows: {', '.join(equal)}.")
    if narrow:
        say(f"Left out: {', '.join(narrow)}; -v shows all.")


def _take_equal(columns: dict[str, list[Any]], key: str, count: int) -> list[str]:
    """Remove the columns whose values are equal in all rows, and return words for those that are not empty."""
    equal: list[str] = []
    for field in [field for field in columns if field != key]:
        shown = {value_words(field, value) for value in columns[field]}
        if len(shown) == 1 and (count > 1 or shown <= {"-", "False"}):
            del columns[field]
            if not shown <= {"-", "False"}:
                text = shown.pop()
                equal.append(f"{heading(field)} {text[:SHORT_ID] if field.endswith('_id') and _is_hex(text) else text}")
    if _is_in_the_worker(columns):
        del columns["node_id"]
    return equal


def _filled(columns: Mapping[str, Sequence[Any]], verbose: bool) -> Table:
    table = table_of("", *(field if verbose else heading(field) for field in columns))
    texts = [_texts(field, values, verbose) for field, values in columns.items()]
    for cells in zip(*texts, strict=True):
        table.add_row(*cells)
    return table


def _is_in_the_worker(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the column of nodes repeats what the column of workers says: `node-1/w3` is on `node-1`."""
    if "node_id" not in columns or "worker_id" not in columns:
        return False
    pairs = zip(columns["node_id"], columns["worker_id"], strict=True)
    return all(worker is None or str(worker).startswith(f"{node}/") for node, worker in pairs)


def _texts(field: str, values: Sequence[Any], verbose: bool) -> list[str]:
    texts = [value_words(field, value) for value in values]
    if verbose:
        return texts
    if not field.endswith("_id"):
        return [text if len(text) <= CELL_LENGTH_MAX else text[: CELL_LENGTH_MAX - 3] + "..." for text in texts]
    length = shortest(texts)
    return [text[:length] if _is_hex(text) else text for text in texts]


def shortest(ids: Iterable[str]) -> int:
    """Return how many characters, at least SHORT_ID, distinguish the hexadecimal ids."""
    ordered = sorted({each for each in ids if _is_hex(each)})
    length = SHORT_ID
    for before, after in pairwise(ordered):
        while before[:length] == after[:length]:
            length += 1
    return length


def _is_hex(text: str) -> bool:
    return len(text) > SHORT_ID and all(letter in "0123456789abcdef" for letter in text)


def heading(field: str) -> str:
    """Return the heading of a field's column: the heading of `worker_id` is `worker`."""
    for ending in ("_time_s", "_id", "_number", "_ids"):
        field = field.removesuffix(ending)
    return field.replace("_", " ")


def value_words(field: str, value: Any) -> str:
    """Return the text of a cell."""
    if value is None or value in ("", [], {}):
        return "-"
    match value:
        case float() if field.endswith("_time_s"):
            return f"{value:.6f}".rstrip("0").rstrip(".")
        case float():
            return f"{value:g}"
        case dict():
            return ", ".join(
                f"{key} {number_words(key, amount) if isinstance(amount, float) else value_words('', amount)}"
                for key, amount in value.items()
                if not key.startswith(NODE_PREFIX)  # each node has these
            )
        case list():
            return ", ".join(value_words("", item) for item in value)
    return str(value)
