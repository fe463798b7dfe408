"""`ray start` and `ray stop`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from dualray.as_ray.system_config import all_limits_of_ray, limits_of_variables
from dualray.cli.cluster import config_of, labels_of, resources_of
from dualray.cli.declare import Commands, Exit, Option
from dualray.cli.printing import refuse, say_aside
from dualray.cli.rays.app import is_simulated, unused_option
from dualray.cli.rays.joining import FAILED, fail
from dualray.exceptions import DualrayError
from dualray.settings import SETTINGS

if TYPE_CHECKING:
    from dualray.real.cluster.launch import StartedNode

RAYS_PORT: Final = 6379
"""Where Ray's head listens by default: programs know it."""

_WITHOUT_EFFECT: Final[dict[str, tuple[str, ...]]] = {
    "--cgroup-path": (),
    "--dashboard-agent-grpc-port": ("0",),
    "--dashboard-agent-listen-port": ("0",),
    "--dashboard-host": ("localhost", "127.0.0.1"),
    "--dashboard-port": ("8265",),
    "--include-dashboard": ("false", "0", "no"),
    "--include-log-monitor": ("true", "1", "yes"),
    "--max-worker-port": ("0",),
    "--min-worker-port": ("0",),
    "--node-manager-port": ("0",),
    "--node-name": (),
    "--plasma-directory": ("/dev/shm",),
    "--proxy-server-url": (),
    "--ray-client-server-port": (),
    "--redis-password": (),
    "--redis-shard-ports": (),
    "--redis-username": (),
    "--runtime-env-agent-port": ("0",),
    "--system-reserved-cpu": (),
    "--system-reserved-memory": (),
    "--temp-dir": (),
    "--tracing-startup-hook": (),
    "--worker-port-list": (),
}
"""Options of Ray's that have no effect, with the values for which nothing is said, because they ask for nothing."""

_FLAGS_WITHOUT_EFFECT: Final = {
    "--disable-usage-stats": False,
    "--enable-object-reconstruction": False,
    "--enable-resource-isolation": True,
    "--no-monitor": False,
    "--no-redirect-output": True,
    "--ray-debugger-external": True,
}
"""Flags of Ray's that have no effect, and whether something is said of them."""

_NAMED: Final = "options without effect"
"""The key of the context under which the options are that the command says something of."""

app = Commands()


@app.add("start")
def start_command(
    head: Annotated[bool, Option("--head", help="Start a new cluster.")] = False,
    address: Annotated[str | None, Option(help="Address of the cluster that the node joins, or auto.")] = None,
    port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            help=f"Network port of the head process, with --head. The default is {RAYS_PORT}, and 0 means any "
            "free port.",
        ),
    ] = None,
    node_ip_address: Annotated[
        str | None, Option(help="IP address at which other machines reach this machine. The default is 127.0.0.1.")
    ] = None,
    num_cpus: Annotated[float | None, Option(help="Number of CPUs of this node.")] = None,
    num_gpus: Annotated[float | None, Option(help="Number of GPUs of this node.")] = None,
    resources: Annotated[str | None, Option(help="Custom resources of this node as JSON.")] = None,
    memory: Annotated[str | None, Option(help="Number of bytes of memory that tasks can reserve with memory=.")] = None,
    object_store_memory: Annotated[str | None, Option(help="Size of this node's object store, in bytes.")] = None,
    labels: Annotated[str | None, Option(help="Labels of this node, as key=value,key=value or as JSON.")] = None,
    labels_file: Annotated[Path | None, Option(help="YAML file with the labels of this node.")] = None,
    object_manager_port: Annotated[
        int | None, Option(min=0, max=65535, help="Network port of this node, with --address.")
    ] = None,
    metrics_export_port: Annotated[int | None, Option(min=0, max=65535, help="Port for the node's metrics.")] = None,
    object_spilling_directory: Annotated[
        str | None, Option(help="Directory to which this node spills objects.")
    ] = None,
    system_config: Annotated[str | None, Option(help="Ray's _system_config as JSON, with --head.")] = None,
    autoscaling_config: Annotated[
        Path | None,
        Option(help="File with groups of nodes, with --head. The file has the format of `dualray start --autoscale`."),
    ] = None,
    block: Annotated[
        bool, Option("--block", help="Stay in the foreground, and end the node when this command ends.")
    ] = False,
) -> None:
    """Start a node of a cluster on this machine, with the options of Ray's command."""
    _check_options(head=head, address=address, port=port)
    if named := click.get_current_context().meta.get(_NAMED):
        say_aside(f"dualray: these options have no effect in dualray's `ray start`: {', '.join(named)}")
    # Imported here, because other commands need no sockets.
    from dualray.real.cluster.address import read_secret  # noqa: PLC0415
    from dualray.real.cluster.launch import launch_plan, node_options, read_growth, start_node  # noqa: PLC0415
    from dualray.real.session.session import RAYS_START_COMMAND  # noqa: PLC0415

    ip = None if node_ip_address is None else _resolved(node_ip_address)
    try:
        growth = read_growth(autoscaling_config) if autoscaling_config is not None else None
        options = node_options(
            address=_address_to_join(address),
            node_ip=ip,
            port=(RAYS_PORT if port is None else port) if head else object_manager_port or 0,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources_of(resources),
            memory=None if memory is None else SETTINGS["memory"].parse("--memory", memory),
            labels={**_labels_in(labels_file), **(labels_of(labels) or {})},
            object_store_memory=SETTINGS["object_store_memory"].parse("--object-store-memory", object_store_memory),
            config=config_of(
                {
                    **(growth.limits if growth is not None else {}),
                    **limits_of_variables(),
                    **_limits_of(system_config, object_spilling_directory),
                }
            ),
            provider=launch_plan(growth, autoscaling_config) if growth is not None else None,
            metrics_port=metrics_export_port,
        )
        options = replace(options, command=RAYS_START_COMMAND)
        node = start_node(options, read_secret(None), is_detached=True, ends_with_us=block)
    except (ValueError, TypeError) as error:
        refuse(error)
    except (DualrayError, OSError) as error:
        fail(f"{error}{_hint_for(error)}")
    _print_started(node, head=head, ip=ip)
    if block:
        raise Exit(_wait_for(node))
    os._exit(0)  # the daemon is a child of this process and outlives it, so this process must not wait for it


def _note(context: click.Context, param: click.Parameter, value: Any) -> None:
    name = param.opts[0]
    quiet = _WITHOUT_EFFECT.get(name, ())
    is_said = _FLAGS_WITHOUT_EFFECT.get(name, True) if isinstance(value, bool) else str(value).lower() not in quiet
    if value not in (None, False) and is_said:
        context.meta.setdefault(_NAMED, []).append(name)


def _option_without_effect(name: str, *, is_flag: bool) -> click.Option:
    return click.Option([name], is_flag=is_flag, expose_value=False, callback=_note, hidden=True)


app.commands["start"].params += [
    *(_option_without_effect(name, is_flag=False) for name in _WITHOUT_EFFECT),
    *(_option_without_effect(name, is_flag=True) for name in _FLAGS_WITHOUT_EFFECT),
]


def _check_options(*, head: bool, address: str | None, port: int | None) -> None:
    if head and address is not None:
        refuse("--address with --head names an external Redis in Ray; dualray has its own tables: leave --address out")
    if not head and address is None:
        fail("`--address` is a required flag unless starting a head node with `--head`.")
    if not head and port is not None:
        fail("`--port` should only be specified when starting head node with `--head`.")


def _resolved(host: str) -> str:
    """An IP for a name, as of localhost."""
    try:
        return socket.gethostbyname(host) if ":" not in host else host
    except OSError as error:
        fail(f"--node-ip-address {host!r} cannot be resolved: {error.strerror}")


def _address_to_join(address: str | None) -> str | None:
    if address != "auto":
        return address
    from dualray.as_ray.initializing import started_address  # noqa: PLC0415 - a head joins nothing

    found = started_address()
    if found is None:
        raise DualrayError("--address auto: `ray start --head` has started no cluster on this machine")
    return found


def _labels_in(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    import yaml  # noqa: PLC0415 - few have such a file

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--labels-file {path}: {error}") from None
    if not isinstance(found, dict):
        raise TypeError(f"--labels-file {path} must have a line key: value for each label")
    return {str(key): str(value) for key, value in found.items()}


def _limits_of(system_config: str | None, spilling: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if spilling is None else {"spill_directory": spilling}
    if system_config is None:
        return found
    try:
        said = json.loads(system_config)
    except json.JSONDecodeError as error:
        raise ValueError(f"--system-config {system_config!r} must be JSON: {error}") from None
    if not isinstance(said, dict):
        raise TypeError(f"--system-config {system_config!r} must be a JSON object")
    return {**found, **all_limits_of_ray(said)}


def _hint_for(error: Exception) -> str:
    if "address already in use" not in str(error).lower():
        return ""
    return "\nPlease specify a different port using the `--port` flag of `ray start` command."


def _print_started(node: StartedNode, *, head: bool, ip: str | None) -> None:
    title = "Ray runtime started."
    lines = [f"Local node IP: {node.endpoint.rpartition(':')[0]}", "", "-" * len(title), title, "-" * len(title), ""]
    if head:
        lines += ["Next steps", "  To add another node to this Ray cluster, run"]
        lines += [f"    ray start --address='{node.address}'", ""]
        if ip is not None:
            lines += [
                f"  On another machine, first set DUALRAY_SECRET to the content of {node.directory / 'secret'}",
                "",
            ]
        lines += ["  To connect to this Ray cluster:", "    import ray", "    ray.init()", ""]
    lines += ["  To terminate the Ray runtime, run", "    ray stop"]
    if head:
        lines += ["", "  To view the status of the cluster, use", "    ray status"]
    print("\n".join(lines))
    sys.stdout.flush()


def _wait_for(node: StartedNode) -> int:
    """Wait for the node's end, or end it when this process is to end; the exit code of this process."""
    from dualray.real.cluster.launch import stop_node  # noqa: PLC0415 - as above

    print("\n--block\n  This command will now block forever until terminated by a signal, or by `ray stop`.")
    sys.stdout.flush()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        status = node.process.wait()
    except (KeyboardInterrupt, Exit) as error:
        stop_node(node)
        return error.exit_code if isinstance(error, Exit) else 128 + signal.SIGINT
    if status:
        say_aside(f"dualray: the node ended unexpectedly, with exit code {status}")
        return FAILED
    return 0


def _end(number: int, _frame: object) -> None:
    raise Exit(number)


@app.add("stop")
def stop_command(
    force: Annotated[
        bool,
        Option("--force", "-f", help="Kill nodes that do not end in time. `ray stop` does so even without --force."),
    ] = False,
    address: Annotated[
        str | None,
        Option(
            help="Stop all nodes of the cluster with this address on this machine, even nodes that `dualray "
            "start` has started."
        ),
    ] = None,
) -> None:
    """Stop the nodes that this user started with `ray start` on this machine.

    Nodes that `dualray start` or a program has started go on.
    """
    from dualray.real.cluster.launch import stop_detached  # noqa: PLC0415 - as above
    from dualray.real.session.session import RAYS_START_COMMAND  # noqa: PLC0415 - as above

    stopped: list[str] = []
    if not is_simulated():  # there, nothing of the program runs outside its process
        try:
            stopped = stop_detached(RAYS_START_COMMAND if address is None else None, address)
        except ValueError as error:
            refuse(error)
    if not stopped:
        print("Did not find any active Ray processes.")
        return
    print(f"Stopped all {len(stopped)} Ray processes.")


app.commands["stop"].params.append(unused_option("--grace-period", "-g"))


@app.add("disable-usage-stats")
def disable_usage_stats_command() -> None:
    """Do nothing: dualray sends no usage statistics."""
    print("Usage stats disabled for future clusters: dualray sends none.")
