"""Reads scenario files (the data is in the modules beside this one), and says in one line what is wrong with one.

An unknown key is an error with file, line and the nearest known key; so is what can be seen to make no sense before
anything runs: a node that the cluster does not have, a fault after the latest end that is expected, an expectation that
nothing can meet. `json_schema()` is for editors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError
from yaml import MarkedYAMLError, YAMLError

from dualray.shared.model.config import Config
from dualray.shared.nearest import nearest
from dualray.shared.policies import check_policy
from dualray.shared.scenario.cluster import (
    NODES_MAX,
    RACK_LABEL,
    ClusterModel,
    NetworkModel,
    NodeGroup,
    ScalingGroup,
    TopologyModel,
)
from dualray.shared.scenario.expect import COUNTERS, Bounds, ErrorExpected, Expect, NumberBounds, TimeBounds
from dualray.shared.scenario.fault_model import ENDS_PROCESSES, Fault, FaultKind, nodes_added
from dualray.shared.scenario.file_faults import FaultModel, When
from dualray.shared.scenario.growth import CommandProvider, Growth, LocalProvider, ProviderModel
from dualray.shared.scenario.ray_files import RayFileError, is_of_ray, read_ray_file
from dualray.shared.scenario.scenario import Scenario, Swarm, Workload
from dualray.shared.scenario.spot import SKYPILOT
from dualray.shared.scenario.values import DRIVER_NODE_NAME, HEAD_NAME
from dualray.shared.scenario.yaml_lines import DuplicateKeyError, YamlMapping, dump_yaml, load_all_yaml, load_yaml
from dualray.shared.units import size_words, time_words

VALUE_CHARACTERS_MAX = 60
PROBLEMS_MAX = 20
"""Problems of one file that an error lists."""
"""Of a wrong value that are shown."""


Path = tuple[str | int, ...]
"""Where something stands, from the top of the file."""


class ScenarioError(ValueError):
    """A scenario file cannot be used; the message is `file:line: what is wrong and what to write instead`."""


Read = Callable[[str], str]
"""The content of a file that another one names; raises ValueError where there is none."""


def parse_scenario(text: str, name: str, read: Read | None = None) -> Scenario:
    """Read a scenario file.

    Args:
        text: its content.
        name: of the file, for messages.
        read: reads the files that `cluster: {from: FILE}` and `faults: {trace: FILE}` name; None: no other file is
            read.

    Raises:
        ScenarioError: one line that says file, line, what is wrong and what to write.
    """
    tree = _load(text, name)
    _check_commas(tree, name)
    plain = _plain(tree)
    ignored = _include(plain, tree, name, read)
    try:
        scenario = Scenario.model_validate(plain)
        scenario.cluster._ignored = ignored
    except ValidationError as error:
        raise ScenarioError(_problems(error, tree, name)) from None
    for index, item in enumerate(scenario.faults):
        try:
            item.read_trace(partial(_text_of, read))
        except ValueError as error:
            place = _real_path(tree, ("faults", index))
            raise ScenarioError(f"{name}:{_line(tree, place)}: {_where(place)}{error}") from None
    for path, problem in _nonsense(scenario):
        path = _real_path(tree, path)
        raise ScenarioError(f"{name}:{_line(tree, path)}: {_where(path)}{problem}")
    return scenario


def _text_of(read: Read | None, source: object) -> str:
    """The text of a file that a scenario names."""
    if read is None or not isinstance(source, str):
        raise ValueError(f"{source!r} must be the name of a file in the same directory as the scenario")
    try:
        return read(source)
    except OSError as error:
        raise ValueError(f"{source!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{source!r} cannot be read: it is not text in UTF-8") from None


def parse_growth(text: str, name: str, read: Read | None = None) -> Growth:
    """Read the file of a cluster that grows, what a scenario says of one, or one of Ray's; see ray_files.py.

    Raises:
        ScenarioError: as above.
    """
    tree = _load(text, name)
    _check_commas(tree, name)
    if "workload" in tree:
        scenario = parse_scenario(text, name, read)
        growth = Growth(
            name=scenario.name, cluster=scenario.cluster, config=scenario.config, policies=scenario.policies
        )
    else:
        plain = _plain(tree)
        if is_of_ray(plain):
            plain, ignored = _of_ray(plain, name)
        else:
            ignored = _include(plain, tree, name, read)
        try:
            growth = Growth.model_validate(plain)
            growth.cluster._ignored = ignored
        except ValidationError as error:
            raise ScenarioError(_problems(error, tree, name, Growth)) from None
    problems = [*_bad_config(growth), *_bad_groups(growth.cluster), *_slow_groups(growth)]
    if not growth.cluster.scaling:
        problems.append(
            (("cluster",), "the file has no groups of nodes: write cluster: {groups: {cpu: {max: 4, cpus: 2}}}")
        )
    for path, problem in problems:
        path = _real_path(tree, path)
        raise ScenarioError(f"{name}:{_line(tree, path)}: {_where(path)}{problem}")
    return growth


def _include(plain: dict[str, Any], tree: YamlMapping, name: str, read: Read | None) -> tuple[str, ...]:
    """Put what the file says that `cluster: {from: FILE}` names below what the cluster says itself; what of it has no
    meaning here."""
    cluster = plain.get("cluster")
    if not isinstance(cluster, dict) or "from" not in cluster:
        return ()
    where = f"{name}:{_line(tree, ('cluster', 'from'))}: cluster.from: "
    source = cluster.pop("from")
    try:
        said = _plain(_load(_text_of(read, source), str(source)))
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError(f"{where}{error}") from None
    if not is_of_ray(said):
        raise ScenarioError(f"{where}{source} is neither a RayCluster of KubeRay nor a cluster YAML of `ray up`")
    found, ignored = _of_ray(said, source)
    groups = found["cluster"].pop("groups")
    for group, own in cluster.pop("groups", {}).items():  # a price, a start-up time
        groups[group] = groups.get(group, {}) | own
    plain["cluster"] = found["cluster"] | cluster | {"groups": groups}
    plain["config"] = found["config"] | plain.get("config", {})
    return ignored


def _of_ray(said: Mapping[str, Any], name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        found = read_ray_file(said)
    except RayFileError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return found.plain, tuple(found.ignored)


def dump_scenario(scenario: Scenario, *, as_json: bool = False) -> str:
    """The scenario as YAML that `parse_scenario` reads back; what has its default is left out.

    as_json: as JSON, which is YAML too and is written ten times as fast.
    """
    plain = scenario.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    # What a group says of its nodes holds against what is said of all, also where it is the default.
    plain["cluster"] = scenario.cluster.model_dump(by_alias=True, exclude_unset=True, mode="json")
    plain["faults"] = [fault.get("words", fault) for fault in plain.get("faults", ()) if "trace" not in fault]
    of_traces = [item for item in scenario.faults if item.trace is not None]  # what reads this has no file beside it
    plain["faults"] += [str(fault) for item in of_traces for fault in item.faults(scenario.cluster, scenario.seed)]
    plain = {name: value for name, value in plain.items() if value not in ([], {})}
    if as_json:
        return json.dumps(plain)
    return dump_yaml(plain)


def place_of(text: str, name: str, *path: str | int, key: str | None = None) -> str:
    """Where in a file that can be read something stands, as messages begin: `pong.yaml:16: faults[1]: `. With `key`,
    the line is that of a key of the mapping there, if it has it."""
    line = _line(_load(text, name), path if key is None else (*path, key))
    return f"{name}:{line}: {_where(path)}"


def json_schema() -> dict[str, Any]:
    """The JSON schema of scenario files."""
    schema = Scenario.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "dualray scenario"
    # What is written as a word or a number and read as a mapping.
    defs = schema["$defs"]
    faults, nodes = schema["properties"]["faults"], defs["ClusterModel"]["properties"]["nodes"]
    faults["items"] = {"anyOf": [{"type": "string", "examples": ["kill node-5 at 2.5s"]}, faults["items"]]}
    trace = {"type": "object", "properties": {"trace": {"type": "string"}, "format": {"enum": [SKYPILOT]}}}
    items = {"type": faults.pop("type"), "items": faults.pop("items")}
    faults["anyOf"] = [items, {**trace, "required": ["trace", "format"], "additionalProperties": False}]
    nodes["anyOf"] = [{"type": "integer", "minimum": 1}, {"type": nodes.pop("type"), "items": nodes.pop("items")}]
    del defs["TopologyModel"]["properties"]["form"]
    topology = defs["ClusterModel"]["properties"]["topology"]
    topology["anyOf"] = [{"enum": ["star", "mesh"]}, {"$ref": topology.pop("$ref")}]
    topology["default"] = "star"
    counters = defs["Expect"]["properties"]["counters"]
    bounds = counters.pop("additionalProperties")
    counters["properties"] = {
        name: {"anyOf": [{"type": "integer"}, bounds], "description": words} for name, words in COUNTERS.items()
    }
    counters["additionalProperties"] = False
    defs["Expect"]["properties"] |= counters["properties"]
    return schema


def _load(text: str, name: str) -> YamlMapping:
    try:
        tree = _only(load_all_yaml(text), name)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.splitlines()
        line = min(mark.line + 1, len(lines)) if mark is not None else 1  # a text may end where it lacks something
        if isinstance(error, DuplicateKeyError):
            if isinstance(error.key, str) and _ENDS.fullmatch(error.key):
                _check_commas(load_yaml(text, is_lenient=True), name)
            raise ScenarioError(f"{name}:{line}: the key {error.key!r} is given twice; leave one out") from None
        if "{{" in lines[line - 1]:
            raise ScenarioError(
                f"{name}:{line}: the file is a template: first replace each part between {{{{ and }}}}"
            ) from None
        problem = str(error.problem or error.context or error).splitlines()[0]
        raise ScenarioError(f"{name}:{line}: the file is not valid YAML: {problem}") from None
    except YAMLError as error:
        raise ScenarioError(f"{name}:1: the file is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, YamlMapping):
        raise ScenarioError(f"{name}:1: a scenario must be a mapping with name, cluster, workload, faults and expect")
    return tree


def _only(documents: list[Any], name: str) -> Any:
    """The only document, or the RayCluster among several: files for Kubernetes have several documents."""
    if len(documents) <= 1:
        return documents[0] if documents else None
    meant = [each for each in documents if isinstance(each, YamlMapping) and each.get("kind") == "RayCluster"]
    if len(meant) != 1:
        raise ScenarioError(
            f"{name}:1: this file has {len(documents)} documents, of which {len(meant)} are a RayCluster; keep only "
            f"one RayCluster"
        )
    return meant[0]


_BEGINS, _ENDS = re.compile(r"\s*\w+\([^()]*"), re.compile(r"[^()]*\)\s*")


def _check_commas(tree: Any, name: str) -> None:
    """`{f: uniform(1s, 3s)}` is a mapping of two keys: say so before anything else is said of these.

    Raises:
        ScenarioError: there is one.
    """
    for path, words in _cut_in_two(tree, ()):
        where = f"{name}:{_line(tree, path)}: {_where(path)}"
        raise ScenarioError(f"{where}YAML splits a text at its comma; write the text in quotes: {words!r}")


def _cut_in_two(here: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(here, Mapping):
        entries = [(key, value, key if value is None else None) for key, value in here.items()]
    elif isinstance(here, list):
        entries = [(index, value, value) for index, value in enumerate(here)]
    else:
        return
    for index, (key, value, _) in enumerate(entries):
        rest = entries[index + 1][2] if index + 1 < len(entries) else None
        if isinstance(value, str) and isinstance(rest, str) and _BEGINS.fullmatch(value) and _ENDS.fullmatch(rest):
            yield (*path, key), f"{value}, {rest}"
        yield from _cut_in_two(value, (*path, key))


def _plain(value: Any) -> Any:
    """The lines of entries forgotten: what pydantic reads and other code may change."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# ---- Messages ------------------------------------------------------------------------------------------------------


def _problems(error: ValidationError, tree: YamlMapping, name: str, root: type[BaseModel] = Scenario) -> str:
    """The problems in the order of the file, a line for each."""
    problems = []
    for problem in error.errors():
        path = _real_path(tree, problem["loc"])
        problems.append((_line(tree, path), _say(problem, path, root)))
    lines = [f"{name}:{line}: {words}" for line, words in sorted(set(problems))]
    more = [f"and {len(lines) - PROBLEMS_MAX} more"] if len(lines) > PROBLEMS_MAX else []
    return "\n".join([*lines[:PROBLEMS_MAX], *more])


def _real_path(tree: Any, location: tuple[str | int, ...]) -> Path:
    """pydantic's location as far as it is one of the file: a mapping that was written as a word has no keys there."""
    path: list[str | int] = []
    here: Any = tree
    for index, part in enumerate(location):
        if _has(here, part):
            here = here[part]
        elif part == "counters" and index + 1 < len(location) and _has(here, location[index + 1]):
            continue  # one that is named without it
        else:
            if isinstance(here, Mapping) and index == len(location) - 1:
                path.append(part)
            break
        path.append(part)
    return tuple(path)


def _has(here: Any, part: str | int) -> bool:
    """Whether a mapping has the key, or a list the index."""
    if isinstance(here, list):
        return isinstance(part, int) and part < len(here)
    return isinstance(here, Mapping) and part in here


def _say(problem: Any, path: Path, root: type[BaseModel]) -> str:
    where = _where(path)
    match problem["type"]:
        case "extra_forbidden":
            known = _fields_at(path[:-1], root)
            return f"unknown key {path[-1]!r}{_in(path[:-1])}{nearest(str(path[-1]), known)}"
        case "missing":
            return f"{_where(path[:-1])}key {path[-1]!r} is missing"
        case "value_error":
            return f"{where}{problem['ctx']['error']}"
        case _:
            return f"{where}{_given(problem)} {_must_be(problem)}"


_SIZES = ("object_store", "memory", "gpu_memory")
"""Keys whose values are counted in bytes once they are read."""


def _given(problem: Any) -> str:
    """What stands in the file, in a few words."""
    value = problem["input"]
    is_size = problem["loc"][-1] in _SIZES and isinstance(value, int)
    text = size_words(value) if is_size else repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "string": "a text",
    "bool": "true or false",
    "list": "a list, as in [a, b]",
    "dict": "a mapping, as in {name: value}",
}


def _must_be(problem: Any) -> str:
    """What a value that is wrong must be instead: pydantic's findings, for people."""
    kind, context = problem["type"], problem.get("ctx", {})
    match kind:
        case "greater_than_equal":
            return f"is too little: at least {_limit(problem, context['ge'])}"
        case "greater_than":
            return f"is too little: it must be above {context['gt']:g}"
        case "less_than_equal":
            return f"is too much: at most {_limit(problem, context['le'])}"
        case "less_than":
            return f"is too much: it must be below {context['lt']:g}"
        case "literal_error" | "enum":
            known = re.findall(r"'([^']*)'", context["expected"])
            return f"is not known{nearest(str(problem['input']), known)}"
        case "model_type" | "model_attributes_type":
            return "must be a mapping, as in {key: value}"
        case _:
            return f"must be {_KINDS.get(kind.partition('_')[0], problem['msg'])}"


def _limit(problem: Any, limit: float) -> str:
    """A limit in the unit in which the value is written."""
    return size_words(int(limit)) if problem["loc"][-1] in _SIZES else f"{limit:,}"


def _where(path: Path) -> str:
    return f"{_dotted(path)}: " if path else ""


def _in(path: Path) -> str:
    return f" in {_dotted(path)}" if path else ""


def _dotted(path: Path) -> str:
    words = ""
    for part in path:
        words += f"[{part}]" if isinstance(part, int) else f".{part}" if words else str(part)
    return words


def _fields_at(path: Path, root: type[BaseModel]) -> list[str]:
    """The keys that are known at a place."""
    model = root
    inside: dict[str, type[BaseModel]] = {
        "cluster": ClusterModel,
        "nodes": NodeGroup,
        "groups": ScalingGroup,
        "network": NetworkModel,
        "topology": TopologyModel,
        "workload": Workload,
        "faults": FaultModel,
        "when": When,
        "expect": Expect,
        "makespan": TimeBounds,
        "counters": Bounds,
        "figures": NumberBounds,
        "error": ErrorExpected,
        "swarm": Swarm,
        "provider": ProviderModel,
        "local": LocalProvider,
        "command": CommandProvider,
    }
    for part in path:
        if isinstance(part, str):
            model = inside.get(part, model)
    counters = COUNTERS if model is Expect else ()
    return [*(field.alias or name for name, field in model.model_fields.items()), *counters]


def _line(tree: Any, path: Path) -> int:
    """The line, from 1, of what is at a path, or of the nearest thing around it."""
    line, here = 1, tree
    for part in path:
        if not _has(here, part):
            break
        line, here = here.lines[part], here[part]
    return line


# ---- What makes no sense as a whole --------------------------------------------------------------------------------


def _nonsense(scenario: Scenario) -> Iterator[tuple[Path, str]]:
    """What can be said before anything runs."""
    yield from _bad_config(scenario)
    yield from _not_of_a_trace(scenario)
    yield from _bad_groups(scenario.cluster)
    yield from _slow_groups(scenario)
    yield from _bad_racks(scenario.cluster)
    if scenario.gpu_memory and not any(group.gpus and group.gpu_memory for group in scenario.cluster.groups()):
        yield ("gpu_memory",), "the cluster needs the memory of its GPUs, as in cluster: {gpus: 1, gpu_memory: 16GiB}"
    latest_ns = scenario.expect.makespan.max
    added = _nodes_added(scenario)
    yield from _impossible_times(scenario)
    for index, item in enumerate(scenario.faults):
        path: Path = ("faults", index)
        try:
            faults = list(item.faults(scenario.cluster))
        except ValueError as error:
            yield path, str(error)
            continue
        for fault in faults:
            yield from ((path, problem) for problem in _bad_fault(fault, scenario.cluster, added))
            if item.trace is not None:
                continue  # machines come and go whether anybody runs on them or not
            if fault.at_ns is not None and latest_ns is not None and fault.at_ns > latest_ns:
                yield (
                    path,
                    f"'{fault}' comes after the run's end: expect.makespan allows {time_words(latest_ns)} at most",
                )
            elif fault.at_ns is not None and fault.at_ns >= scenario.time_limit:
                limit = time_words(scenario.time_limit)
                yield path, f"'{fault}' comes after the run's end: the time limit is {limit}"
    least = scenario.expect.counters.get("faults")
    planned = sum(1 for item in scenario.faults for _ in item.faults(scenario.cluster))
    if least is not None and least.min is not None and least.min > planned:
        words = f"{planned} fault{'s are' if planned != 1 else ' is'} planned"
        yield ("expect", "counters", "faults"), f"no run can meet this expectation: {words}"


def _not_of_a_trace(scenario: Scenario) -> Iterator[tuple[Path, str]]:
    """What a recorded run that is run again does not have."""
    if scenario.workload.trace is None:
        return
    expect = scenario.expect
    if scenario.durations:
        yield ("durations",), "leave this key out: the tasks of a trace take the recorded time"
    if scenario.profile is not None:
        yield ("profile",), "leave this key out: the tasks of a trace take the recorded time"
    for table, is_said in (("memory", bool(scenario.memory)), ("gpu_memory", bool(scenario.gpu_memory))):
        if is_said:
            yield (table,), "leave this key out: a trace does not contain the memory that its tasks used"
    for name, is_said in (
        ("result", expect.has_result),
        ("figures", bool(expect.figures)),
        ("same_as_without_faults", expect.same_as_without_faults),
    ):
        if is_said:
            yield ("expect", name), "leave this key out: a trace has no result"


def _impossible_times(scenario: Scenario) -> Iterator[tuple[Path, str]]:
    bounds, limit_ns = scenario.expect.makespan, scenario.time_limit
    path = ("expect", "makespan")
    if bounds.max == 0:
        yield path, "no run can meet this expectation: max is 0s"
    if bounds.min is not None and bounds.min >= limit_ns:
        yield path, f"no run can meet this expectation: the time limit of the run is {time_words(limit_ns)}"


def _bad_groups(cluster: ClusterModel) -> Iterator[tuple[Path, str]]:
    for index, group in enumerate(cluster.groups()):
        try:
            _ = group.total
        except (ValueError, TypeError) as error:
            yield (("cluster", "nodes", index) if len(cluster.nodes) > 1 else ("cluster",)), str(error)
    total = sum(group.count for group in cluster.groups())
    if total > NODES_MAX:
        yield ("cluster", "nodes"), f"{total:,} nodes are too many; a cluster can have {NODES_MAX:,}"


def _slow_groups(said: Scenario | Growth) -> Iterator[tuple[Path, str]]:
    timeout_ns = said.config.get("launch_timeout_ns", Config().launch_timeout_ns)
    if isinstance(timeout_ns, int):  # else that is what is wrong
        for name, reason in said.cluster.never_join(timeout_ns).items():
            yield ("cluster", "groups", name, "start_up"), reason


def _bad_racks(cluster: ClusterModel) -> Iterator[tuple[Path, str]]:
    topology, path = cluster.topology, ("cluster", "topology")
    named = [index for index, group in enumerate(cluster.nodes) if group.rack is not None]
    if topology.form != "racks":
        for index in named:
            yield (
                ("cluster", "nodes", index),
                "the key rack needs a topology with racks, as in cluster: {topology: {oversubscription: 4}}",
            )
        return
    total = sum(group.count for group in cluster.nodes)
    if topology.racks is not None and named:
        yield (*path, "racks"), "leave this key out, because the groups of nodes name their racks"
    elif topology.racks is not None and topology.racks > total:
        yield (*path, "racks"), f"{topology.racks} racks are too many for {total} nodes: each rack needs at least one"
    elif topology.racks is None and len(named) < len(cluster.nodes):
        yield path, "give the number of racks, or give each group of nodes its rack"
    for index, group in enumerate(cluster.groups()):
        if RACK_LABEL in group.labels:
            place: Path = ("cluster", "nodes", index) if len(cluster.nodes) > 1 else ("cluster",)
            yield place, "dualray sets the label rack itself; give the group rack: NAME instead of the label"


def _bad_config(scenario: Scenario | Growth) -> Iterator[tuple[Path, str]]:
    known = {field.name: field.default for field in fields(Config)}
    for name, value in scenario.config.items():
        path: Path = ("config", name)
        if name == "autoscaler_groups":
            yield (
                path,
                "leave this key out, and write the groups under cluster, as in cluster: {groups: {cpu: {max: 4}}}",
            )
        elif name not in known:
            yield path, f"dualray has no limit {name!r}{nearest(name, known)}"
        elif (fault := Config.fault_of(name, value)) is not None:
            yield path, f"{value!r} {fault}"
    policies = [name.removesuffix("_policy") for name in known if name.endswith("_policy")]
    for name, dotted in scenario.policies.items():
        path = ("policies", name)
        if name not in policies:
            yield path, f"dualray has no policy for {name!r}{nearest(name, policies)}"
            continue
        try:
            check_policy(f"{name}_policy", dotted)
        except ValueError as error:
            yield path, str(error)


def _nodes_added(scenario: Scenario) -> int:
    """How many nodes may join while it runs."""
    if scenario.cluster.scaling:
        return NODES_MAX  # in the place of one that has left comes one of another name
    added = 0
    for item in scenario.faults:
        try:
            added += nodes_added(item.faults(scenario.cluster))
        except ValueError:
            continue  # it is said where the fault stands
    return added


def _bad_fault(fault: Fault, cluster: ClusterModel, added: int) -> Iterator[str]:
    nodes = dict(cluster.each_node())
    later = {f"node-{index}" for index in range(len(nodes), len(nodes) + added)}
    if fault.group and fault.group not in cluster.scaling:
        yield f"'{fault}': the cluster has no group {fault.group!r}{nearest(fault.group, cluster.scaling)}"
    for name in fault.named_nodes:
        if name not in nodes and name not in later:
            yield f"'{fault}': the cluster has no node {name!r}; {cluster.nodes_in_words}"
    if fault.kind in ENDS_PROCESSES and fault.node == DRIVER_NODE_NAME:
        yield f"'{fault}': {DRIVER_NODE_NAME} runs the driver, so this fault would end the program"
    if fault.kind is FaultKind.PARTITION:
        problem = cuts_driver_off(fault)
        if problem:
            yield f"'{fault}': {problem}"
    if fault.kind is FaultKind.FILL_MEMORY and fault.node in nodes and nodes[fault.node].memory is None:
        yield f"'{fault}': {fault.node} needs a memory size, as in cluster: {{memory: 16GiB}}"
    if fault.kind is FaultKind.LOSE_GPU and fault.node in nodes and fault.gpu >= nodes[fault.node].gpus:
        yield f"'{fault}': {fault.node} has {nodes[fault.node].gpus:g} GPUs, numbered from 0"


def cuts_driver_off(fault: Fault) -> str:
    """Why a partition would end the program, or "": the head takes the driver for dead with its node."""
    ends, one, other = {DRIVER_NODE_NAME, HEAD_NAME}, set(fault.nodes), set(fault.others)
    apart = one & ends and (other & ends if other else not ends <= one)
    return f"the driver, on {DRIVER_NODE_NAME}, would lose the head, and the program would end" if apart else ""
