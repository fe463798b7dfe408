"""The commands for clusters by hand: `dualray start`, `stop`, `status`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from dualray import api, autoscaler, runtime
from dualray.cli.declare import Commands, Option
from dualray.cli.printing import (
    ADDRESS_HELP,
    AUTOSCALE_HELP,
    DRY_RUN_HELP,
    PORT_HELP,
    AsJson,
    count_of,
    print_json,
    refuse,
    say,
    show,
)
from dualray.exceptions import DualrayError, InvariantViolation
from dualray.settings import DEFAULT_PORT, SETTINGS, limits_of, resolve
from dualray.shared.labels import parse_labels
from dualray.shared.machines.autoscaler.autoscaler import check_decision
from dualray.shared.machines.autoscaler.views import view_of
from dualray.shared.model.config import Config
from dualray.shared.model.resources import NODE_PREFIX, number_words
from dualray.shared.model.specs import LAUNCH_LABEL, NODE_GROUP_LABEL
from dualray.shared.policies import load_policy
from dualray.text_tables import Table

app = Commands()


@app.add("start")
def start_command(
    head: Annotated[
        bool, Option("--head", help="Start a new cluster, with its head process and its first node.")
    ] = False,
    address: Annotated[
        str | None, Option(help=f"{ADDRESS_HELP} With --address, `dualray start` adds a node to an existing cluster.")
    ] = None,
    port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            help=f"{PORT_HELP} `dualray start` accepts --port only with --head. With --head, the default port is "
            f"{DEFAULT_PORT}.",
        ),
    ] = None,
    node_ip: Annotated[
        str | None,
        Option(
            help="IP address at which other machines reach this machine. With the default address, 127.0.0.1, "
            "only programs on this machine can connect to the node."
        ),
    ] = None,
    num_cpus: Annotated[
        float | None,
        Option(
            help="Number of CPUs that the new node offers to tasks. By default, a node offers all CPUs of its machine."
        ),
    ] = None,
    num_gpus: Annotated[
        float | None,
        Option(
            help="Number of GPUs that the new node offers to tasks. By default, a node offers all GPUs of its machine."
        ),
    ] = None,
    resources: Annotated[
        str | None, Option(help="Custom resources of the new node as JSON, such as '{\"disk\": 2}'.")
    ] = None,
    memory: Annotated[
        str | None,
        Option(
            help="Memory that tasks on the new node can reserve with their option `memory`, such as 16GiB. By "
            "default, tasks can reserve 70 % of this machine's memory."
        ),
    ] = None,
    labels: Annotated[str | None, Option(help="Labels of the new node, as 'zone=a,market=spot' or as JSON.")] = None,
    object_store_memory: Annotated[
        str | None, Option(help="Size of the new node's object store, in bytes or with a unit, such as 2GiB.")
    ] = None,
    num_workers: Annotated[
        int | None,
        Option(
            help="Number of worker processes that each node of the cluster starts in advance. `dualray start` accepts "
            "--num-workers only with --head."
        ),
    ] = None,
    object_manager_port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            help="Network port for all incoming connections of a node that joins a cluster. By default, "
            "dualray chooses a free port for a node that joins a cluster.",
        ),
    ] = None,
    autoscale: Annotated[
        Path | None,
        Option(help=f"{AUTOSCALE_HELP} `dualray start` accepts --autoscale only with --head."),
    ] = None,
    secret_file: Annotated[
        Path | None,
        Option(
            help="File with the secret that all nodes of the cluster share. By default, dualray reads the cluster's "
            "secret from the environment variable DUALRAY_SECRET."
        ),
    ] = None,
    num_redis_shards: Annotated[
        int | None,
        Option(
            help="Number of additional Redis servers that store parts of the cluster's tables. `dualray start` "
            "accepts --num-redis-shards only with --head.",
            min=0,
            max=64,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        Option(help="Port on 127.0.0.1 at which the new node serves metrics for Prometheus.", min=0, max=65535),
    ] = None,
    tls: Annotated[
        bool | None,
        Option(
            help="Encrypt connections to other machines with TLS 1.3. Either all nodes of a cluster use TLS, "
            "or no node uses TLS. By default, a node uses TLS unless its --node-ip is a loopback address.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        Option(
            help="PEM file with the new node's TLS certificate. By default, dualray derives the node's TLS "
            "certificate from the cluster's secret."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, Option(help="PEM file with the private key of the certificate in --tls-cert.")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        Option(
            help="PEM file with the certificate of the authority that signed the TLS certificates of the "
            "cluster's nodes."
        ),
    ] = None,
) -> None:
    """Start a node of a cluster on this machine. `dualray stop` stops all nodes that you started on this machine.

    Example: dualray start --head --node-ip 10.0.0.1
    """
    # Imported here, because other commands need no sockets.
    from dualray.real.cluster.address import read_secret  # noqa: PLC0415
    from dualray.real.cluster.encryption import tls_files_of  # noqa: PLC0415
    from dualray.real.cluster.launch import launch_plan, node_options, read_growth, start_node  # noqa: PLC0415
    from dualray.real.net.addresses import parse_endpoint  # noqa: PLC0415
    from dualray.real.session.session import METRICS_FILE  # noqa: PLC0415

    if head == (address is not None):
        refuse("`dualray start` needs either --head, to start a cluster, or --address HOST:PORT, to join one")
    if head and object_manager_port is not None:
        refuse("--object-manager-port is for nodes that join a cluster; the first node uses --port for all connections")
    if not head and any(option is not None for option in (port, num_workers, num_redis_shards, autoscale)):
        refuse(
            "--port, --num-workers, --num-redis-shards and --autoscale need --head; leave them out for a node that "
            "joins a cluster"
        )
    try:
        growth = read_growth(autoscale) if autoscale is not None else None
        if growth is not None and growth.cluster.ignored:
            print(f"dualray ignores these keys of {autoscale}: {', '.join(growth.cluster.ignored)}")
        if address is not None:
            parse_endpoint(address, "--address")
        tls_files = tls_files_of(tls, tls_cert, tls_key, tls_ca)
        options = node_options(
            address=address,
            node_ip=node_ip,
            port=(DEFAULT_PORT if port is None else port) if head else object_manager_port or 0,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources_of(resources),
            memory=None if memory is None else SETTINGS["memory"].parse("--memory", memory),
            labels=labels_of(labels),
            object_store_memory=SETTINGS["object_store_memory"].parse("--object-store-memory", object_store_memory),
            config=config_of(growth.limits if growth is not None else {}),
            provider=launch_plan(growth, autoscale) if growth is not None else None,
            num_workers=num_workers,
            num_redis_shards=num_redis_shards or 0,
            metrics_port=metrics_port,
        )
        options = replace(options, tls=True if tls_files is not None else tls, tls_files=tls_files)
        node = start_node(options, read_secret(secret_file), is_detached=True)
    except (DualrayError, ValueError, TypeError, OSError) as error:
        refuse(error)
    print(f"{node.node} of the cluster at {node.address} runs on this machine, with daemon pid {node.process.pid}.")
    print(f"logs: {node.directory / 'logs'}")
    if metrics_port is not None:
        print(f"metrics: http://{(node.directory / METRICS_FILE).read_text()}/metrics")
    if head:
        print(f"the cluster's secret: {node.directory / 'secret'} (mode 0600)")
        if node_ip is not None:
            print("to join from another machine, copy the file with the secret to that machine, and run:")
            print(f"  dualray start --address {node.address} --node-ip THEIR_ADDRESS --secret-file FILE")
        print(f'in a program on this machine: dualray.init(address="{node.address}")')
    print("to end this node: dualray stop")
    sys.stdout.flush()
    os._exit(0)  # the daemon is a child of this process and outlives it, so this process must not wait for it


def config_of(of_file: dict[str, Any]) -> Config:
    """Return the config of a cluster that nodes can join: by default, demands that no node can meet wait. Settings win
    over the file of a cluster that grows."""
    settings = resolve({})
    said = settings["limits"].value or {}
    config = replace(limits_of(settings), **{name: value for name, value in of_file.items() if name not in said})
    is_said = settings["infeasible"].value is not None or "infeasible" in (settings["limits"].value or {})
    return config if is_said else replace(config, infeasible="wait")


def resources_of(text: str | None) -> dict[str, float] | None:
    """The custom resources that --resources says."""
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--resources {text!r} must be JSON: {error}") from None
    if not isinstance(found, dict):
        raise TypeError(f"--resources {text!r} must be a JSON object of name to amount, such as '{{\"disk\": 2}}'")
    return found


def labels_of(text: str | None) -> dict[str, str] | None:
    """The labels that --labels says."""
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        try:
            found: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"--labels {text!r} must be JSON or key=value,key=value: {error}") from None
        return parse_labels("--labels", found)
    pairs = [part.partition("=") for part in text.split(",")]
    for key, separator, _ in pairs:
        if not separator:
            raise ValueError(f"--labels {text!r}: {key!r} must be written key=value")
    return parse_labels("--labels", {key.strip(): value.strip() for key, _, value in pairs})


@app.add("stop")
def stop_command() -> None:
    """Stop all nodes of dualray that you started on this machine with `dualray start` or `ray start`.

    Example: dualray stop
    """
    from dualray.real.cluster.launch import stop_detached  # noqa: PLC0415 - as above

    stopped = stop_detached()
    for node in stopped:
        print(f"stopped {node}")
    if not stopped:
        print("no node that this user started with `dualray start` runs on this machine")


@app.add("status")
def status_command(
    address: Annotated[
        str,
        Option(help=f"{ADDRESS_HELP} With `--address auto`, dualray uses the cluster that runs on this machine."),
    ] = "auto",
    policy: Annotated[
        str | None,
        Option(
            help="Autoscaling policy that `dualray status --dry-run` tries, as package.module:Class. "
            "Without --policy, `dualray status --dry-run` uses the autoscaling policy of the cluster."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help=f"{DRY_RUN_HELP} With --dry-run, `dualray status` prints which nodes the autoscaling "
            "policy would start and stop.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the nodes of a cluster, and why tasks and actors wait for resources.

    Example: dualray status --address 10.0.0.1:6399
    """
    if policy is not None and not dry_run:
        refuse("--policy needs --dry-run, because `dualray status` only prints what the policy would do; add --dry-run")
    if as_json and dry_run:
        refuse("--dry-run prints no JSON; leave out --json")
    try:
        api.init(address=os.environ.get("DUALRAY_ADDRESS", address) if address == "auto" else address)
    except (DualrayError, ValueError) as error:
        refuse(error)
    try:
        running = runtime.current("status")
        verbs = running.verbs
        if dry_run:
            _show_dry_run(verbs.head_rows("scale_view"), policy)
            return
        where = running.addresses()["control_plane_address"]
        waits = [row["words"] for row in verbs.head_rows("waits")]
        if as_json:
            print_json({"address": where, "nodes": api.nodes(), **autoscaler.status(), "waits": waits})
            return
        say(f"Cluster at {where}")
        _show_nodes()
        _show_groups(autoscaler.status())
        for words in waits:
            say(f"Waits: {words}")
    except (DualrayError, ValueError) as error:
        refuse(error)
    finally:
        api.shutdown()


def _show_nodes() -> None:
    table = Table(title="Nodes")
    for column in ("node", "state", "incarnation", "free / total"):
        table.add_column(column)
    gone: Counter[str] = Counter()
    for row in api.nodes():
        if not row["Alive"] and LAUNCH_LABEL in row["Labels"]:  # a cluster may have thousands of these
            gone[row["Labels"].get(NODE_GROUP_LABEL, "")] += 1
            continue
        total, free = row["Resources"], row["Available"]
        amounts = ", ".join(
            f"{name} {number_words(name, free.get(name, 0))} / {number_words(name, amount)}"
            for name, amount in total.items()
            if not name.startswith(NODE_PREFIX)  # each node has these
        )
        table.add_row(row["NodeID"], "alive" if row["Alive"] else "dead", str(row["Incarnation"]), amounts)
    show(table)
    for group, count in gone.items():
        say(f"Gone: {count_of(count, 'node')} of group {group}")


def _show_groups(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the nodes of each group, the launches in progress, the refusals and the demand."""
    if not found["groups"]:
        return
    table = Table(title="Groups")
    for column in ("group", "nodes", "starting", "leaving", "min - max", "price/h", "why no node can start"):
        table.add_column(column)
    for row in found["groups"]:
        price = f"{row['price_per_hour']:g}" if row["price_per_hour"] else ""
        limits = f"{row['min']} - {row['max']}"
        counts = [str(row[name]) for name in ("nodes", "launching", "leaving")]
        table.add_row(row["group"], *counts, limits, price, row["refused"])
    show(table)
    for row in found["groups"]:
        if took_s := sorted(row["start_ups_s"]):
            each = f"{median(took_s):.1f} s (median of the last {len(took_s)}: {took_s[0]:.1f} to {took_s[-1]:.1f} s)"
            say(f"Start-up of group {row['group']}: {each}")
    for words in [words for row in found["groups"] for words in row["kept"]]:
        say(f"Kept: {words}")
    for row in found["launches"]:
        say(f"Starting: {row['launch']} of group {row['group']}, for {row['for_s']:.0f} s")
    for row in found["demands"]:
        why = row["not_launched"]
        words = (
            f"no node is launched for it: {why}"
            if why
            else "the nodes have room for this demand, or more nodes are starting"
        )
        say(f"Demand: {row['count']} x {row['demand']}: {words}")


def _show_dry_run(rows: list[dict[str, Any]], path: str | None) -> None:
    """Print what a policy decides for the view that the head shows its own policy now. Nothing is launched."""
    if not rows:
        raise ValueError(
            "the cluster has no groups of nodes: start the cluster with `dualray start --head --autoscale FILE`"
        )
    sys.path.insert(0, "")  # a policy of one's own lies in the working directory
    view = view_of(rows[0]["view"])
    path = path or str(rows[0]["policy"])
    made: Any = load_policy(path)
    if not callable(getattr(made, "choose", None)):
        raise ValueError(f"--policy {path!r} has no method 'choose'. docs/growing.md describes this method")
    try:
        decision = made.choose(view)
        check_decision(view, decision)
    except InvariantViolation as error:
        raise ValueError(
            f"the head process would refuse the launches and removals that --policy {path!r} chose: {error}"
        ) from None
    for group, count in decision.launches.items():
        say(f"the policy would launch {count} nodes of group {group}")
    for what, names in (("end", decision.leaving), ("cancel", decision.cancelled)):
        for name, why in names.items():
            say(f"the policy would {what} {name}: {why}")
    for unmet in decision.unmet:
        reasons = "; ".join(f"{group}: {why}" for group, why in unmet.reasons.items())
        say(f"the policy would launch no node for {unmet}: {reasons}")
    if not (decision.launches or decision.leaving or decision.cancelled or decision.unmet):
        say("the policy would launch and end no nodes")
