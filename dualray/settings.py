"""The settings of `init`: each with its default, the modes it belongs to, and where its value came from.

Precedence: argument of `init`, environment (DUALRAY_<NAME>), config file (dualray.toml in the working directory, or
the file that DUALRAY_CONFIG names), default. `dualray config` prints them all.
"""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from dualray import runtime_env
from dualray.cluster_address import ClusterAddress
from dualray.input_files import CONFIG_FILE, read_config_file, read_text
from dualray.recording.file import check_can_write
from dualray.shared.labels import parse_labels
from dualray.shared.model.config import Config
from dualray.shared.policies import check_policy
from dualray.shared.scenario.fault_model import Fault, FaultKind, parse_fault
from dualray.shared.units import parse_size_bytes

MODES = ("real", "sim", "ray")
_OF_THE_CORE = ("real", "sim")
"""The modes that run on dualray's own core."""

REDIS_SHARDS_MAX = 64
DEFAULT_PORT = 6399
"""Where `dualray start --head` listens when no port is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `modes` are those that it belongs to; `parse` reads it from text or checks a value."""

    name: str
    default: Any
    modes: tuple[str, ...]
    parse: Callable[[str, Any], Any]
    help: str


PREFIX = "DUALRAY_"
"""Of the environment's variables."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value, and where it came from: argument, environment, the file's name, or default."""

    value: Any
    source: str


def _mode(name: str, value: Any) -> str:
    if value not in MODES:
        nearest = difflib.get_close_matches(str(value), MODES, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{name}={value!r} must be 'real', 'sim' or 'ray'.{hint}")
    return str(value)


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name}={value!r} must be an int")
    if not 1 <= number <= 1_000_000:
        raise ValueError(f"{name}={value!r} must be between 1 and 1,000,000")
    return number


def _amount(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} must be a number") from None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{name}={value!r} must be a number")
    if not 0 <= number <= 1_000_000:
        raise ValueError(f"{name}={value!r} must be between 0 and 1,000,000")
    return number


def _bytes(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = int(value) if value.isdigit() else parse_size_bytes(value, name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be a number of bytes, or a string such as '2GiB'")
    if value < 1024 * 1024:
        raise ValueError(f"{name}={value!r} must be at least 1 MiB (1,048,576 bytes)")
    return value


def _memory(name: str, value: Any) -> int | None:
    """Bytes for tasks to ask for; as few as a program likes. A part of a byte is dropped, as in demands."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value < inf:  # NaN fails this comparison too
            raise ValueError(f"{name}={value!r} must be more than 0 bytes")
        return int(value)
    return _bytes(name, value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "0", "false", "no"):
        return value.lower() in ("1", "true", "yes")
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")
    return value


def _seed(name: str, value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ValueError(f"{name}={value!r} must be a whole number") from None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name}={value!r} must be an int")
    return value


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name}={text[:200]!r} must be valid JSON: {error}") from None


def _resources(name: str, value: Any) -> dict[str, float] | None:
    if isinstance(value, str):
        value = _json(name, value)
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict from names to amounts, such as {{'disk': 1}}")
    return None if value is None else dict(value)


def _labels(name: str, value: Any) -> Any:
    if isinstance(value, str):
        value = _json(name, value)
    if isinstance(value, list | tuple):
        return [parse_labels(f"{name}[{index}]", each) for index, each in enumerate(value)]
    return None if value is None else parse_labels(name, value)


def _faults(name: str, value: Any) -> tuple[Fault, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name}={value!r} must be a list of faults, such as ['kill node-5 at 2.5s']")
    return tuple(fault if isinstance(fault, Fault) else parse_fault(str(fault)) for fault in value)


PREPARED: dict[str, Any] = {}
"""Scenarios by the paths of their files: a fork takes those of its parent instead of reading them again."""


def _scenario(name: str, value: Any) -> Any:
    if value is None or not isinstance(value, str | Path):
        return value
    if str(value) in PREPARED:
        return PREPARED[str(value)]
    # Not at the top: it imports pydantic and a YAML parser, which a run without a scenario does not need.
    from dualray.shared.scenario.file import parse_scenario  # noqa: PLC0415

    try:
        text = read_text(value)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not text in UTF-8")
        raise ValueError(f"{name}={str(value)!r} cannot be read: {why}") from None
    scenario = parse_scenario(text, str(value), lambda file: read_text(Path(value).parent / file))
    if scenario.profile is not None and not Path(scenario.profile).exists():  # then it lies beside the file
        beside = Path(value).parent / scenario.profile
        scenario = scenario.model_copy(update={"profile": str(beside if beside.exists() else scenario.profile)})
    return scenario


def _log_directory(name: str, value: Any) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if any(path.glob("*.decisions")):
        raise ValueError(f"{name}={str(path)!r} contains the logs of an earlier run; give a new or empty directory")
    return path


def _record(name: str, value: Any) -> Path | None:
    if value is None:
        return None
    path = Path(value).absolute()
    check_can_write(path, name)
    return path


def _calibration(name: str, value: Any) -> Any:
    if value is None or not isinstance(value, str | Path):
        return value
    from dualray.recording.calibration import load_calibration  # noqa: PLC0415 - it imports a YAML parser

    return load_calibration(Path(value))


def _task_profile(name: str, value: Any) -> Any:
    if value is None or not isinstance(value, str | Path):
        return value
    from dualray.recording.profile import load_profile  # noqa: PLC0415 - only who names one needs it

    try:
        return load_profile(Path(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _pace(name: str, value: Any) -> float | None:
    pace = _amount(name, value)
    if pace == 0:
        raise ValueError(f"{name}={value!r} must be above 0: {name} is the number of virtual seconds in a real second")
    return pace


def _port(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} must be a port number between 0 and 65,535") from None
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name}={value!r} must be an int")
    if not 0 <= number < 65536:
        raise ValueError(f"{name}={value!r} must be between 0 and 65,535, where 0 means any free port")
    return number


def _shards(name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name}={value!r} must be an int")
    if not 0 <= number <= REDIS_SHARDS_MAX:
        raise ValueError(f"{name}={value!r} must be between 0 and {REDIS_SHARDS_MAX}")
    return number


def _directory(name: str, value: Any) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name}={str(path)!r} is a file; give a directory, which need not exist yet")
    return path


def _namespace(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a str")
    if not value:
        raise ValueError(f"{name}={value!r} must not be empty")
    return value


def _address(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be 'auto', 'local' or a string such as '10.0.0.1:{DEFAULT_PORT}'")
    if value == "local":
        return value
    if value.startswith("ray://"):
        raise ValueError(
            f"{name}={value!r} is an address of Ray Client, which dualray does not support; run the program on the "
            f"cluster, for example with `ray job submit`"
        )
    host, _, port = value.rpartition(":")
    if value != "auto" and not value.startswith("/") and not (host and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{name}={value!r} must be host:port, as in '10.0.0.1:{DEFAULT_PORT}', or 'auto' or 'local'")
    return value


def _infeasible(name: str, value: Any) -> str | None:
    if value not in (None, "raise", "wait"):
        raise ValueError(f"{name}={value!r} must be 'raise' or 'wait'")
    return None if value is None else str(value)


def _sim_unsafe(name: str, value: Any) -> str:
    if value not in ("refuse", "allow"):
        raise ValueError(f"{name}={value!r} must be 'refuse' or 'allow'")
    return str(value)


def _durations(name: str, value: Any) -> str:
    if value not in ("vary", "fixed"):
        raise ValueError(f"{name}={value!r} must be 'vary' or 'fixed'")
    return str(value)


def _runtime_env(name: str, value: Any) -> str:
    return runtime_env.parse(name, _json(name, value) if isinstance(value, str) else value).to_text()


def _limits(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(name, value)
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict from names to values, such as {{'push_window_max': 8}}")
    known = [row[0] for row in Config.describe()]
    for key in value or {}:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"{name} has the unknown limit {key!r}.{hint} `dualray config` lists all limits.")
    return dict(value or {})


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            name="mode",
            default="real",
            modes=MODES,
            parse=_mode,
            help="where tasks run: real (real processes), sim (a simulated cluster) or ray (a Ray cluster)",
        ),
        Setting(
            name="address",
            default=None,
            modes=("real", "ray"),
            parse=_address,
            help="cluster to join: host:port of its head, or auto; default: start a new cluster",
        ),
        Setting(
            name="auto_init",
            default=True,
            modes=MODES,
            parse=_flag,
            help="whether a call before init() starts a cluster with the defaults",
        ),
        Setting(name="num_cpus", default=None, modes=MODES, parse=_amount, help="CPUs of each node; real: all; sim: 4"),
        Setting(name="num_gpus", default=None, modes=MODES, parse=_amount, help="GPUs of each node; real: all; sim: 0"),
        Setting(
            name="resources",
            default=None,
            modes=MODES,
            parse=_resources,
            help="custom resources of each node, such as {'disk': 2}",
        ),
        Setting(
            name="memory",
            default=None,
            modes=MODES,
            parse=_memory,
            help="bytes of each node that tasks can reserve with memory=; real: 70 % of its memory; sim: 11.2 GiB",
        ),
        Setting(
            name="labels",
            default=None,
            modes=MODES,
            parse=_labels,
            help="labels of each node, such as {'zone': 'a'}; sim: or a list with one dict for each node",
        ),
        Setting(
            name="object_store_memory",
            default=None,
            modes=MODES,
            parse=_bytes,
            help="bytes of each node's object store; real: 30 % of its memory; sim: 2 GiB",
        ),
        Setting(name="seed", default=None, modes=_OF_THE_CORE, parse=_seed, help="seed of random numbers; sim: 0"),
        Setting(name="object_id_seed", default=None, modes=_OF_THE_CORE, parse=_seed, help="seed of all ids"),
        Setting(
            name="decision_log",
            default=None,
            modes=_OF_THE_CORE,
            parse=_log_directory,
            help="new or empty directory for decision logs and traces",
        ),
        Setting(
            name="record",
            default=None,
            modes=MODES,
            parse=_record,
            help="Parquet file to write, a record of the run for `dualray predict`",
        ),
        Setting(
            name="infeasible",
            default=None,
            modes=MODES,
            parse=_infeasible,
            help="raise or wait: what happens to a demand that no node can meet; default: wait if nodes can join",
        ),
        Setting(
            name="runtime_env",
            default=None,
            modes=MODES,
            parse=_runtime_env,
            help="environment of all tasks and actors, such as {'env_vars': {'NAME': 'value'}}; in a variable: JSON",
        ),
        Setting(
            name="sim_unsafe",
            default="refuse",
            modes=("sim",),
            parse=_sim_unsafe,
            help="refuse or allow: what happens when a task uses a socket or anything else outside the simulation",
        ),
        Setting(
            name="durations",
            default="vary",
            modes=("sim",),
            parse=_durations,
            help="vary or fixed: whether the assumed durations of tasks vary at random or are all equal",
        ),
        Setting(name="limits", default=None, modes=_OF_THE_CORE, parse=_limits, help="limits and policies of the core"),
        Setting(name="log_to_driver", default=True, modes=MODES, parse=_flag, help="print the output of workers"),
        Setting(
            name="redirect_output",
            default=False,
            modes=("real",),
            parse=_flag,
            help="whether workers write their output only to log files",
        ),
        Setting(
            name="log_directory",
            default=None,
            modes=("real",),
            parse=_directory,
            help="directory for the logs of all processes; default: a directory that is deleted with the session",
        ),
        Setting(
            name="metrics_port",
            default=None,
            modes=("real",),
            parse=_port,
            help="port of 127.0.0.1 that serves metrics for Prometheus; 0: any free port; default: none",
        ),
        Setting(
            name="namespace",
            default=None,
            modes=MODES,
            parse=_namespace,
            help="namespace of the program's named actors; default: a new one",
        ),
        Setting(
            name="num_redis_shards",
            default=0,
            modes=("real",),
            parse=_shards,
            help="number of Redis servers to add, among which the control plane's tables are spread",
        ),
        Setting(name="nodes", default=1, modes=("sim",), parse=_count, help="number of nodes"),
        Setting(
            name="scenario",
            default=None,
            modes=("sim",),
            parse=_scenario,
            help="scenario file whose cluster, config and faults replace the other settings",
        ),
        Setting(
            name="run_summary",
            default=None,
            modes=("sim",),
            parse=lambda name, value: None if value is None else Path(value),
            help="file to which shutdown() adds a line of JSON, a summary of the simulation",
        ),
        Setting(
            name="run_report",
            default=None,
            modes=("sim",),
            parse=lambda name, value: None if value is None else Path(value),
            help="file that shutdown() writes, with the trace, the faults and the leaks",
        ),
        Setting(
            name="pace",
            default=None,
            modes=("sim",),
            parse=_pace,
            help="most seconds of virtual time in a second of real time; default: no limit",
        ),
        Setting(
            name="calibration",
            default=None,
            modes=("sim",),
            parse=_calibration,
            help="calibration file, with measured costs that replace the cost model's defaults",
        ),
        Setting(
            name="task_profile",
            default=None,
            modes=("sim",),
            parse=_task_profile,
            help="recorded run; a task without a duration takes as long as tasks of its name took there",
        ),
        Setting(name="faults", default=(), modes=("sim",), parse=_faults, help="faults, such as 'kill node-5 at 2.5s'"),
    )
}


def resolve(arguments: Mapping[str, Any]) -> dict[str, Resolved]:
    """Every setting with its source; `arguments` are those of `init` that were given.

    Raises:
        ValueError, TypeError: a value that a setting cannot have, an unknown name in the config file, or, where the
            mode was given in the code, an argument that belongs to the other mode.
    """
    file_name, from_file = _read_file()
    environment = {name for name in os.environ if name.startswith(PREFIX)}
    resolved: dict[str, Resolved] = {}
    for name, setting in SETTINGS.items():
        variable = PREFIX + name.upper()
        if name in arguments:
            resolved[name] = Resolved(setting.parse(name, arguments[name]), "argument")
        elif variable in environment:
            resolved[name] = Resolved(setting.parse(variable, os.environ[variable]), "environment")
        elif name in from_file:
            resolved[name] = Resolved(setting.parse(f"{name} in {file_name}", from_file[name]), file_name)
        else:
            resolved[name] = Resolved(setting.default, "default")
    if resolved["mode"].value != "ray" and resolved["address"].value == "local":  # as when nothing is said
        resolved["address"] = Resolved(None, resolved["address"].source)
    _check_modes(resolved)
    _check_address(resolved)
    return resolved


_OF_THE_CLUSTER = (
    "num_cpus",
    "num_gpus",
    "resources",
    "memory",
    "labels",
    "object_store_memory",
    "seed",
    "infeasible",
    "limits",
    "log_directory",
    "num_redis_shards",
    "metrics_port",
)


def _check_address(resolved: dict[str, Resolved]) -> None:
    """Who joins a cluster brings nothing along; what the environment says is for clusters that are started."""
    given = [name for name in _OF_THE_CLUSTER if resolved[name].source == "argument"]
    address, mode = resolved["address"].value, resolved["mode"].value
    if isinstance(address, ClusterAddress):
        given = [name for name in given if name not in address.settings]
        if mode != address.settings["mode"]:
            raise ValueError(f"mode={mode!r} must be {address.settings['mode']!r}, the mode of the Cluster in address=")
    elif mode not in ("real", "ray") or address == "local":
        return
    if mode == "ray":
        given = [name for name in given if name != "infeasible"]
    if given and address is not None:
        it = "them" if len(given) > 1 else "it"
        raise ValueError(
            f"init(address={address!r}) joins a running cluster, and cannot set {', '.join(given)} for this cluster. "
            f"Leave {it} out, or pass {it} to `{'ray' if mode == 'ray' else 'dualray'} start` as you start the cluster"
        )


_NOT_ON_RAY = {
    "seed": "Ray does not seed tasks; set the seed inside the task, or use mode='sim'",
    "object_id_seed": "Ray makes its own ids; use mode='sim' for ids that repeat",
    "decision_log": "Ray writes no decision logs; use mode='sim' or mode='real'",
    "limits": "Ray has its own policies and limits; use mode='sim' or mode='real' to choose them",
    "log_directory": "Ray writes the logs to the directory that `ray start --temp-dir` names",
    "num_redis_shards": "Ray has its own control store; leave the setting out",
    "metrics_port": "Ray serves the metrics; choose the port with `ray start --metrics-export-port`",
    "redirect_output": "Ray shows the output of workers; log_to_driver=False hides it from this program",
}
"""Settings that Ray has no counterpart of, and what to do instead."""


def _check_modes(resolved: dict[str, Resolved]) -> None:
    mode = resolved["mode"].value
    mode_in_code = resolved["mode"].source == "argument"
    ignored = []
    for name, setting in SETTINGS.items():
        given = resolved[name]
        # address="local" is for either mode, and that of a simulated cluster for its own.
        is_local = name == "address" and (given.value is None or isinstance(given.value, ClusterAddress))
        if given.source == "argument" and mode not in setting.modes and not is_local:
            if mode_in_code and mode == "ray" and name in _NOT_ON_RAY:
                raise ValueError(f"init({name}=...) is not possible with mode='ray': {_NOT_ON_RAY[name]}")
            if mode_in_code:
                raise ValueError(
                    f"init({name}=...) works only in {setting.modes[0]} mode, but mode={mode!r} was given; leave out "
                    f"{name}= or mode="
                )
            ignored.append(name)
    if ignored:
        source = resolved["mode"].source
        warnings.warn(
            f"init ignores {', '.join(ignored)}: mode {mode!r}, from {source}, has no such setting",
            stacklevel=4,
        )


def _read_file() -> tuple[str, dict[str, Any]]:
    named = os.environ.get("DUALRAY_CONFIG")
    path = Path(named or CONFIG_FILE)
    if not path.exists():
        if named:
            raise ValueError(f"the environment variable DUALRAY_CONFIG names the file {named!r}, which does not exist")
        return "", {}
    content = read_config_file(path, is_named=bool(named))
    for key in content:
        if key not in SETTINGS:
            nearest = difflib.get_close_matches(key, SETTINGS, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"{path}: unknown setting {key!r}.{hint}")
    return str(path), content


def limits_of(resolved: Mapping[str, Resolved]) -> Config:
    """The core's configuration.

    Raises:
        ValueError: a limit that is not of its type or out of bounds, or a policy that cannot be loaded.
    """
    scenario = resolved["scenario"].value
    given = {**(scenario.limits if scenario is not None else {}), **(resolved["limits"].value or {})}
    if "autoscaler_groups" in (resolved["limits"].value or {}):
        raise ValueError(
            "limits= cannot set autoscaler_groups. Write the groups of nodes into a scenario file, such as "
            "cluster: {groups: {cpu: {max: 4}}}"
        )
    if any(fault.kind is FaultKind.ADD_NODES for fault in resolved["faults"].value):
        given.setdefault("infeasible", "wait")  # for a node that can take it
    if resolved["infeasible"].value is not None:
        given["infeasible"] = resolved["infeasible"].value
    for name, value in given.items():
        if (fault := Config.fault_of(name, value)) is not None:
            raise ValueError(f"limits: {name}={value!r} {fault}")
        if name.endswith("_policy"):
            check_policy(name, value)  # here, and not first in a process that the user does not see
    return Config(**given)
