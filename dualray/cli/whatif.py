"""The command line for what-if questions: `dualray record`, `calibrate` and `predict`. Exit codes as in app.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from dualray.as_ray import install
from dualray.cli.after_run import run_as_main
from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import (
    ADDRESS_HELP,
    AS_RAY_HELP,
    AUTOSCALE_HELP,
    JOBS_HELP,
    MODE_HELP,
    NUM_CPUS_HELP,
    RECORD_HELP,
    REPORT_HELP,
    SCRIPT_ARGS_HELP,
    SEEDS_HELP,
    AsJson,
    in_options,
    print_json,
    refuse,
    say,
    say_aside,
    show,
)
from dualray.cli.progress import Progress
from dualray.cli.seeing import check_ours, check_outputs
from dualray.exceptions import DualrayError
from dualray.recording.calibration import load_calibration
from dualray.recording.file import check_can_write, check_place
from dualray.settings import limits_of, resolve
from dualray.shared.units import parse_time_ns
from dualray.text_tables import Table
from dualray.whatif.answers import (
    CAUSE_COLUMNS,
    COLUMNS,
    HELP_COLUMNS,
    LIKELY,
    cause_cells,
    causes_words,
    cells,
    columns_shown,
    grounds_of,
    help_cells,
    memory_lines,
    varying_of,
    verdicts_of,
)
from dualray.whatif.calibrate import SECONDS_MAX, Fit, calibrate, check_seconds
from dualray.whatif.configurations import configurations
from dualray.whatif.engines import engine_of
from dualray.whatif.predict import SEEDS, Prediction, as_list, load, predict, what_would_help
from dualray.whatif.predicted import Row, Trace

FAILED = 1


def check_page(report: Path | None) -> None:
    """Check, before the command measures anything, that it can draw and write the page.

    Raises:
        ValueError: it cannot; the message says why.
    """
    if report is not None and find_spec("plotly") is None:
        raise ValueError("--report needs plotly, which is not installed: pip install 'dualray[whatif]'")
    check_outputs(report=report, timeline=None)


def _check_calibrates() -> None:
    """Check, before the command measures anything, that it can fit a cost model and show it.

    Raises:
        ValueError: something that an extra brings is not installed.
    """
    if missing := [name for name in ("plotly", "scipy") if find_spec(name) is None]:
        are = "are" if len(missing) > 1 else "is"
        words = f"calibrate needs {' and '.join(missing)}, which {are} not installed"
        raise ValueError(f"{words}: pip install 'dualray[whatif]'")


def record_command(
    script: Annotated[Path, Argument(help="Python file of the program to record, which must call dualray.init().")],
    args: Annotated[list[str] | None, Argument(help=SCRIPT_ARGS_HELP)] = None,
    output: Annotated[Path, Option("--output", "-o", help=RECORD_HELP)] = Path("run.parquet"),
    mode: Annotated[str | None, Option(help=MODE_HELP)] = None,
    num_cpus: Annotated[float | None, Option(help=NUM_CPUS_HELP)] = None,
    as_ray: Annotated[bool, Option("--as-ray", help=AS_RAY_HELP)] = False,
) -> None:
    """Run a script, and record the duration, result size and node of each task for `dualray predict`.

    Example: dualray record --as-ray train.py -o run.parquet
    """
    if not script.is_file():
        refuse(f"there is no file {str(script)!r}")
    try:
        check_can_write(output, "--output")
        check_ours(output, "--output")
    except ValueError as error:
        refuse(error)
    given = {"RECORD": output.absolute(), "MODE": mode, "NUM_CPUS": num_cpus}
    os.environ.update({f"DUALRAY_{name}": str(value) for name, value in given.items() if value is not None})
    try:
        limits_of(resolve({}))
    except (ValueError, TypeError) as error:
        refuse(in_options(error, {**given, "RECORD": None}))
    if as_ray:
        install()
    before = output.stat().st_mtime_ns if output.exists() else None
    run_as_main([str(script), *(args or [])])
    if not output.exists() or output.stat().st_mtime_ns == before:
        refuse(
            f"dualray recorded nothing: {script} did not call dualray.init(), or was killed before its cluster ended"
        )
    try:
        say_aside(f"{output}: {load(output).words}")
    except ValueError as error:
        refuse(error)


def _list(text: str | None) -> list[str] | None:
    return None if text is None else as_list(part.strip() for part in text.split(",") if part.strip())


CalibrationReport = Annotated[
    Path | None,
    Option(
        help=f"{REPORT_HELP} The report of `dualray calibrate` compares each measured time with the time "
        "that a calibrated simulation predicts."
    ),
]
Seconds = Annotated[
    float,
    Option(
        help="Duration of the calibration in seconds, from 1 to 60. `dualray calibrate` repeats its measurements, "
        "which take about 10 s, as often as --seconds allows."
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        help=f"{ADDRESS_HELP} With `--address auto`, `dualray calibrate` finds the Ray cluster on this "
        "machine. Without --address, `dualray calibrate --engine ray` starts a Ray cluster on this "
        "machine."
    ),
]


def calibrate_command(
    output: Annotated[Path, Option("--output", "-o", help="Calibration file to write.")] = Path("calibration.yaml"),
    seconds: Seconds = SECONDS_MAX,
    report: CalibrationReport = None,
    engine: Annotated[
        str, Option(help="System to measure: dualray (with real processes on this machine) or ray (a Ray cluster).")
    ] = "dualray",
    address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Measure how long tasks, actor calls and object transfers take with dualray or Ray, and write a calibration file.

    Example: dualray calibrate --output here.yaml && dualray predict run.parquet --calibration here.yaml
    """
    try:
        _check_calibrates()
        check_page(report)
        check_place(output, "--output")
        check_ours(output, "--output")
        check_seconds(seconds)
        with Progress("measuring", seconds) as progress:

            def show_round(rounds: int, left_s: float) -> None:
                progress.update(completed=seconds - left_s, description=f"measuring, {rounds} rounds")

            fit = calibrate(seconds=seconds, on_round=show_round, engine=engine_of(engine, address))
        from dualray.whatif import calibration_page as shown  # noqa: PLC0415 - plotly takes half a second to import

        output.write_text(fit.calibration.dump())
        if as_json:
            print_json(_fit_as_json(fit, output))
        else:
            for columns, rows in (
                (shown.PARAMETERS, shown.parameter_cells(fit)),
                (shown.PHASES, shown.phase_cells(fit.phases)),
            ):
                table = Table()
                for number, column in enumerate(columns):
                    table.add_column(column, justify="left" if number == 0 else "right")
                for row in rows:
                    table.add_row(*row)
                show(table)
            say(f"{output}: {shown.summary(fit)}")
        if report is not None:
            shown.write_page(fit, report)
            print(
                f"{report}: open this page in a browser; the page needs no network",
                file=sys.stderr if as_json else sys.stdout,
            )
    except (ValueError, DualrayError) as error:
        refuse(error)


def _fit_as_json(fit: Fit, output: Path) -> dict[str, Any]:
    return {
        "file": str(output),
        "machine": fit.calibration.machine,
        "error": fit.calibration.error,
        "noise": fit.calibration.noise,
        "rounds": fit.rounds,
        "measured_for_s": fit.measured_for_s,
        "costs": dict(fit.calibration.costs),
        "phases": [asdict(phase) for phase in fit.phases],
    }


def predict_command(
    trace: Annotated[
        Path, Argument(help="File with a recorded run that `dualray record` or `dualray import-ray` wrote.")
    ],
    nodes: Annotated[str, Option(help="Cluster sizes to compare, as numbers of nodes, such as 1,2,4.")] = "1,2,4,8",
    cpus: Annotated[
        str | None,
        Option(
            help="Numbers of CPUs per node to compare, such as 4,8. By default, each node has as many "
            "CPUs as in the recorded run."
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        Option(
            help="Numbers of GPUs per node to compare, such as 0,1. By default, each node has as many "
            "GPUs as in the recorded run."
        ),
    ] = None,
    store: Annotated[
        str | None,
        Option(
            help="Sizes of a node's object store to compare, such as 1GiB,8GiB. By default, the object"
            " store has the same size as in the recorded run."
        ),
    ] = None,
    memory: Annotated[
        str,
        Option(
            help="Amounts of memory per node to compare, such as 8GiB,16GiB. The object store and the workers "
            "of a node share the node's memory. With --memory 0, each simulated node has unlimited memory."
        ),
    ] = "0",
    network: Annotated[
        str,
        Option(help="Network bandwidths to compare, each with an optional latency, such as 1Gbps,10Gbps/50us."),
    ] = "10Gbps",
    policy: Annotated[
        str,
        Option(
            help="Placement policies to compare: hybrid, spread, locality, or your own class as package.module:Class."
        ),
    ] = "hybrid",
    eviction: Annotated[
        str,
        Option(
            help="Eviction policies of object stores to compare: cost, lru, spill, or your own class as "
            "package.module:Class."
        ),
    ] = "cost",
    fault_files: Annotated[
        str,
        Option(
            help="Files with faults to compare: scenario files, or JSON files with the number of available spot "
            "machines over time. The word `none` in --fault-files stands for a simulation without faults."
        ),
    ] = "none",
    faults: Annotated[
        str | None, Option("--faults", help="Earlier name of `dualray predict --fault-files`.", is_hidden=True)
    ] = None,
    seeds: Annotated[
        int, Option(min=1, max=1000, help=f"{SEEDS_HELP} `dualray predict` simulates each cluster once with each seed.")
    ] = SEEDS,
    jobs: Annotated[
        int | None,
        Option(min=1, max=256, help=f"{JOBS_HELP} By default, `dualray predict` uses one process for each CPU core."),
    ] = None,
    price: Annotated[
        str | None,
        Option(
            help="Price of one node per hour, in any currency. With --autoscale, give one price for each group of "
            "nodes, such as cpu=0.40,gpu=2.80."
        ),
    ] = None,
    gpu_price: Annotated[
        float, Option(min=0, help="Price of a GPU per hour, which dualray adds to the price of the GPU's node.")
    ] = 0.0,
    spot_price: Annotated[
        float | None,
        Option(
            min=0,
            help="Price of a spot machine per hour. By default, `dualray predict` reads the price from the "
            "JSON file about spot machines that you pass with --fault-files. If the JSON file in --fault-files "
            "contains no price, a spot machine has the price that you set with --price.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        Option(help="Longest time that the recorded run may take on another cluster, such as 10min."),
    ] = None,
    probability: Annotated[
        float,
        Option(min=0.01, max=0.99, help="Minimum probability that a run on spot machines meets the --deadline."),
    ] = LIKELY,
    calibration: Annotated[
        Path | None,
        Option(
            help="Calibration file that `dualray calibrate` wrote. With --calibration, predictions use the measured "
            "times of operations in the calibration file."
        ),
    ] = None,
    cores: Annotated[
        float | None,
        Option(
            min=0.01,
            help="Number of physical cores of each simulated node. By default, a simulated node has one physical "
            "core for each CPU that it offers to tasks.",
        ),
    ] = None,
    host_cores: Annotated[
        float | None,
        Option(
            min=0.01, help="Number of physical cores that all nodes share, if the nodes are containers on one machine."
        ),
    ] = None,
    cold_start: Annotated[
        str | None,
        Option(
            help="Time that the first workers of a new node take to start, such as 300ms. With --cold-start "
            "recorded, workers take as long to start as in the recorded run. With --autoscale, --cold-start is "
            "`recorded` by default. Without --autoscale, --cold-start is 0 by default, so that workers start at once."
        ),
    ] = None,
    autoscale: Annotated[
        Path | None,
        Option(help=f"{AUTOSCALE_HELP} With --autoscale, `dualray predict` simulates a cluster with an autoscaler."),
    ] = None,
    idle_timeout: Annotated[
        str | None,
        Option(
            help="Idle times to compare, such as 1m,5m, after which the autoscaler removes an idle node. By "
            "default, the --autoscale file says how long a node is idle before the autoscaler removes it."
        ),
    ] = None,
    causes: Annotated[
        bool,
        Option(
            "--causes",
            help="Show how much of the predicted time the run spends on each activity, such as computing or "
            "transferring objects.",
        ),
    ] = False,
    needs: Annotated[
        bool,
        Option(
            "--memory-needs", help="Show how much memory and how large an object store the recommended cluster needs."
        ),
    ] = False,
    what_help: Annotated[
        bool,
        Option(
            "--what-would-help",
            help="For each of several changes of the recommended cluster, such as one more node, show the saved time.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        Option(
            help="Refuse to predict for a cluster that differs too much from the calibrated machine, such as a cluster "
            "with GPUs."
        ),
    ] = False,
    report: Annotated[
        Path | None,
        Option(
            help=f"{REPORT_HELP} The report of `dualray predict` shows how long the run would take on each compared "
            "cluster."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long a recorded run would take on other clusters, and compare the clusters.

    With --deadline, `dualray predict` recommends the cheapest cluster that meets the deadline. Without --deadline,
    `dualray predict` recommends the cluster size beyond which more CPUs hardly shorten the run. If more CPUs
    clearly shorten the run up to the largest compared cluster, `dualray predict` recommends the fastest of the
    compared clusters.

    Example: dualray predict run.parquet --nodes 1,2,4,8 --cpus 4,8
    """
    sys.path.insert(0, "")  # a policy of one's own lies in the working directory
    try:
        if faults is not None:
            fault_files = _of_earlier_name(faults)
        check_page(report)
        if deadline is not None:
            parse_time_ns(deadline, "--deadline")
        loaded = load(trace)
        if autoscale is not None:
            with_cluster = GrowingOptions(
                autoscale,
                price,
                _list(idle_timeout) or [],
                seeds,
                calibration,
                cores,
                host_cores,
                cold_start or "recorded",
            )
            raise Exit(_show_growing(loaded, with_cluster, as_json=as_json))
        if idle_timeout is not None:
            raise ValueError(
                "--idle-timeout needs --autoscale FILE, because a cluster without autoscaling keeps its idle nodes"
            )
        own = loaded.own
        configs = configurations(
            nodes=_list(nodes) or [],  # type: ignore[arg-type]  # texts are read there
            cpus=_list(cpus) or [own.cpus],  # type: ignore[arg-type]
            gpus=_list(gpus) or [own.gpus],  # type: ignore[arg-type]
            store=_list(store) or [own.store_bytes],
            network=_list(network) or [],
            policy=_list(policy) or [],
            eviction=_list(eviction) or [],
            memory=[0 if it == "0" else it for it in _list(memory) or []],
            faults=["" if it == "none" else it for it in _list(fault_files) or []],
        )
        if not as_json:
            say(f"{trace}: {loaded.words}")
        with Progress("replays", len(configs) * seeds) as progress:
            found = predict(
                loaded,
                configs,
                seeds=seeds,
                jobs=jobs,
                price=_price(price),
                gpu_price=gpu_price,
                spot_price=spot_price,
                calibration=calibration,
                cores=cores,
                host_cores=host_cores,
                cold_start=cold_start,
                strict=strict,
                on_done=lambda done, total: progress.update(completed=done, total=total),
            )
        chosen = found.chosen(deadline)
        more = {"causes": causes, "memory": needs, "what_would_help": what_help}
        if as_json:
            print_json(_as_json(found, chosen, deadline, probability) | _more_as_json(found, chosen, jobs, more))
        else:
            _show(found, deadline, probability)
            _show_more(found, chosen, jobs, more)
        if report is not None:
            found.write_page(report, deadline=deadline, probability=probability)
            print(
                f"{report}: open this page in a browser; the page needs no network",
                file=sys.stderr if as_json else sys.stdout,
            )
    except ValueError as error:
        refuse(error)
    if not found.possible:
        raise Exit(FAILED)


def _as_json(found: Prediction, chosen: Row | None, deadline: str | None, probability: float) -> dict[str, Any]:
    return {
        "answers": list(verdicts_of(found, deadline, probability)),
        "chosen": None if chosen is None else chosen.plain(),
        "rows": [row.plain() for row in found.rows],
    }


def _of_earlier_name(faults: str) -> str:
    """Return the files given as `--faults`, the earlier name. Other commands take faults in words under this name.

    Raises:
        ValueError: a fault in words.
    """
    if " " in faults.strip() and not Path(faults.partition(",")[0]).exists():
        raise ValueError(
            f"--faults {faults!r} is a fault, but `dualray predict` reads faults only from files: write the fault "
            "into a scenario file, and pass the file with --fault-files"
        )
    say_aside("dualray: `dualray predict` has renamed --faults to --fault-files; use --fault-files")
    return faults


def _more_as_json(found: Prediction, chosen: Row | None, jobs: int | None, more: dict[str, bool]) -> dict[str, Any]:
    """Return the answers to the other options by key, for the JSON output."""
    if chosen is None:
        return dict.fromkeys(name for name, is_asked in more.items() if is_asked)
    makers: dict[str, Callable[[], Any]] = {
        "causes": lambda: [asdict(cause) for cause in found.causes(chosen)],
        "memory": lambda: memory_lines(found, chosen),
        "what_would_help": lambda: [
            {**asdict(each), "configuration": each.configuration.words}
            for each in what_would_help(found, chosen.configuration, jobs=jobs)
        ],
    }
    return {name: makers[name]() for name, is_asked in more.items() if is_asked}


def _show_more(found: Prediction, chosen: Row | None, jobs: int | None, more: dict[str, bool]) -> None:
    """Print the answers to the other options, below the table."""
    if chosen is None:
        return
    if more["causes"]:
        _show_causes(found, chosen)
    if more["memory"]:
        for line in memory_lines(found, chosen):
            say(line)
    if more["what_would_help"]:
        _show_help(found, chosen, jobs)


def _price(text: str | None) -> float | None:
    """Of a node of a cluster that stays as it is."""
    if text is None:
        return None
    try:
        price = float(text)
    except ValueError:
        raise ValueError(
            f"--price {text!r} must be a number: the price of a node for an hour. Prices of groups of nodes need "
            f"--autoscale FILE"
        ) from None
    if not 0 <= price < float("inf"):
        raise ValueError(f"--price {text} must be 0 or more")
    return price


class GrowingOptions(NamedTuple):
    """What `dualray predict --autoscale` is given."""

    file: Path
    price: str | None
    idle_timeouts: list[str]
    seeds: int
    calibration: Path | None
    cores: float | None
    host_cores: float | None
    cold_start: str


def _show_growing(trace: Trace, said: GrowingOptions, *, as_json: bool) -> int:
    """Print what a cluster that grows would take, beside fixed ones; the exit status."""
    from dualray.real.cluster.launch import read_growth  # noqa: PLC0415 - it imports what real nodes need
    from dualray.whatif import growing  # noqa: PLC0415 - only who asks for it needs it

    growth = read_growth(said.file)
    if said.price is not None:
        growth = growing.with_prices(growth, growing.parse_prices(said.price))
    rows = growing.predict_growing(
        trace,
        growth,
        idle_timeouts=said.idle_timeouts,
        seeds=said.seeds,
        calibration=load_calibration(said.calibration) if said.calibration is not None else None,
        cores=said.cores,
        host_cores=said.host_cores,
        cold_start=said.cold_start,
    )
    status = FAILED if all(row.lacks for row in rows) else 0
    if as_json:
        print_json({"ignored": list(growth.cluster.ignored), "rows": [asdict(row) for row in rows]})
        return status
    say(f"{trace.path}: {trace.words}")
    if growth.cluster.ignored:
        ignored = ", ".join(growth.cluster.ignored)
        say(f"dualray ignores these keys of {said.file}: {ignored}")
    table = Table()
    for number, column in enumerate(growing.COLUMNS):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row.cells())
    show(table)
    for row in rows:
        if row.lacks:
            say(f"{row.words}: {row.lacks}")
    return status


def _show(found: Prediction, deadline: str | None, probability: float) -> None:
    for line in verdicts_of(found, deadline, probability):
        say(line)
    varying = varying_of(found.rows)
    rows = [cells(row, varying) for row in found.rows]
    shown, equal = columns_shown(rows)
    table = Table()
    for number in shown:
        table.add_column(COLUMNS[number], justify="right" if number else "left", is_whole=number > 0)
    for row_cells in rows:
        table.add_row(*[row_cells[number] for number in shown])
    show(table)
    if equal:
        say(f"{'In all rows' if len(rows) > 1 else 'Also'}: {', '.join(equal)}.")
    for lacks in dict.fromkeys(row.lacks for row in found.rows if row.lacks):
        where = [row.configuration.short(varying) for row in found.rows if row.lacks == lacks]
        say(
            f"cannot run on {'; '.join(where[:4])}{' and others' * (len(where) > 4)}: {lacks}",
        )
    for line in grounds_of(found):
        say(line)


def _show_causes(found: Prediction, row: Row) -> None:
    say(causes_words(row))
    table = Table()
    for number, column in enumerate(CAUSE_COLUMNS):
        table.add_column(column, justify="left" if number == 0 else "right")
    for cells_of_cause in cause_cells(found.causes(row)):
        table.add_row(*cells_of_cause)
    show(table)


def _show_help(found: Prediction, row: Row, jobs: int | None) -> None:
    say(f"Single changes of {row.configuration.words}:")
    table = Table()
    for number, column in enumerate(HELP_COLUMNS):
        table.add_column(column, justify="left" if number == 0 else "right")
    for each in help_cells(what_would_help(found, row.configuration, jobs=jobs)):
        table.add_row(*each)
    show(table)


app = Commands()
app.add("record", takes_unknown=True)(record_command)
app.add("calibrate")(calibrate_command)
app.add("predict")(predict_command)
