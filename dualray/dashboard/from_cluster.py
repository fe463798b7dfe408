"""The tables of a real cluster, asked of its processes: the rows of `dualray.util.state`, again and again.

Bars of the timeline are as exact as the looks are frequent: a task that was seen running in one look and not in the
next ended between the two. A run that is recorded (`init(decision_log=)`) shows each start and end instead.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil

from dualray import api, runtime
from dualray.dashboard.demand import Demand
from dualray.dashboard.feeds import LOG_LINES, WATCHED_S, LogFile, kept_logs
from dualray.dashboard.happened import Happened
from dualray.dashboard.rows import FOR_ACTOR, IN_LINE, QUEUED, words_of_turn
from dualray.dashboard.tables import Tables
from dualray.report.colours import FUNCTIONS_MAX, colours_of
from dualray.shared.model.resources import NODE_PREFIX
from dualray.util import state

__all__ = ["ClusterFeed"]

LOOK_S: Final = 1.0
ASK_NS: Final = 2_000_000_000
ENDED: Final = ("FINISHED", "FAILED")

_Rows = dict[str, dict[str, Any]]


class ClusterFeed:
    """See the module.

    Args:
        address: host:port of the cluster's head, or auto; this process joins it, as a driver that runs nothing.
    Raises:
        ValueError, DualrayError: there is no such cluster.
    """

    def __init__(self, address: str) -> None:
        api.init(address=address, log_to_driver=False)
        self._verbs = runtime.current("dashboard").verbs
        self.name = f"the cluster at {api.get_runtime_context().gcs_address}"
        self.tables = Tables()
        self.asked_s = time.monotonic()
        self.pages, self.is_opening, self.asks_others = 0, False, True
        self._began_s = time.monotonic()
        self._looked_s = 0.0
        self._known: dict[str, _Rows] = {}
        self._spans: dict[str, list[Any]] = {}
        self._times: dict[str, list[float | None]] = {}
        """Of each task: when it was first seen, seen running, and seen to have ended."""
        self._since: dict[str, tuple[str, str, float]] = {}
        """Of each task: its state, for what it waits, and since when that was seen."""
        self._names: dict[str, None] = {}
        """The functions that have a colour, in order of their first calls."""
        self._waits: dict[str, list[Any]] = {}
        self._demand = Demand(self.tables)
        self._happened = Happened(self.tables)
        self._sizes: dict[str, int] = {}
        self.tables.head.update(
            run=uuid4().hex, name=self.name, source="cluster", state="waiting", error="", is_virtual=False, groups=[]
        )

    def refresh(self) -> bool:
        """Ask once, unless no page is open or it was asked just now."""
        now_s = time.monotonic()
        if now_s - self.asked_s > WATCHED_S or now_s - self._looked_s < LOOK_S:
            return False
        began_s = time.monotonic()
        asked = {
            table: self._verbs.state_rows(table, ASK_NS) for table in ("nodes", "workers", "tasks", "actors", "objects")
        }
        waits = [row["words"] for row in self._verbs.head_rows("waits")]
        groups = self._verbs.head_rows("autoscaler")
        missing = sorted({address for _, silent in asked.values() for address in silent})
        self._looked_s = time.monotonic()
        rows = {table: {row[state.KEYS[table]]: row for row in found} for table, (found, _) in asked.items()}
        with self.tables.lock:
            now_s = round(self._looked_s - self._began_s, 3)
            self._take_tasks(rows["tasks"], rows["actors"], now_s)
            self._take_objects(rows["objects"])
            self._take_workers(rows["workers"], rows["tasks"], now_s)
            self._take_nodes(rows["nodes"], now_s)
            self._take_actors(rows["actors"])
            self._take_waits(waits, rows["tasks"], now_s)
            self._say(rows, groups, missing, now_s)
            self.tables.head["asked_s"] = round(self._looked_s - began_s, 3)
            self._known = rows
        return False

    # ---- Tables ----------------------------------------------------------------------------------------------

    def _put(self, table: str, row: list[Any]) -> None:
        self.tables.put(table, row[0], lambda: row)

    def _changed(self, table: str, key: str, row: dict[str, Any]) -> bool:
        return self._known.get(table, {}).get(key) != row

    def _take_tasks(self, rows: _Rows, actors: _Rows, now_s: float) -> None:
        for task, row in rows.items():
            if row["name"] and len(self._names) < FUNCTIONS_MAX:
                self._names[row["name"]] = None
            waits = _words_of_wait(row, rows, actors)
            before = self._since.get(task)
            if before is None or before[:2] != (row["state"], waits):
                self._since[task] = row["state"], waits, now_s
            elif not self._changed("tasks", task, row):
                continue
            times = self._times.setdefault(task, [now_s, None, None])
            if row["state"] == "RUNNING" and (times[1] is None or times[2] is not None):
                times[1], times[2] = now_s, None
            self._draw(task, row, now_s)
            if row["state"] in ENDED and times[2] is None:
                times[2] = now_s
                if row["state"] == "FAILED" and self._known:
                    self._happened.failed(
                        now_s, (task, row["name"]), row.get("error_type") or "an error", row["worker_id"] or "?"
                    )
            self._put("tasks", self._task_row(task, row, times))
        for task in self._known.get("tasks", {}).keys() - rows.keys():  # its owner has forgotten it: it has ended
            gone = self._known["tasks"][task]
            if gone["state"] not in ENDED:
                times = self._times.setdefault(task, [now_s, None, None])
                times[2] = now_s
                ended = {**gone, "state": "FINISHED"}
                self._since[task] = "FINISHED", "", now_s
                self._draw(task, ended, now_s)
                self._put("tasks", self._task_row(task, ended, times))

    def _task_row(self, task: str, row: dict[str, Any], times: list[float | None]) -> list[Any]:
        return [
            *(task, row["name"], row["type"], row["state"], row["attempt_number"], row.get("owner")),
            *(row["worker_id"] or "", row.get("node_id") or "", *times, row.get("error_type") or ""),
            row.get("waits_for") or [],
            *(*self._since[task][1:], row.get("actor_id") or ""),
        ]

    def _draw(self, task: str, row: dict[str, Any], now_s: float) -> None:
        """The bar of the attempt that runs, or that has just ended."""
        span = self._spans.get(task)
        is_running = row["state"] == "RUNNING"
        if span is not None and (not is_running or span[2] != row["attempt_number"]):
            span[5] = now_s
            is_lost = row["state"] not in ENDED or row["attempt_number"] != span[2]
            span[6] = row.get("error_type") or ("lost" if is_lost else "")
            self._put("spans", span)
            del self._spans[task]
        if is_running and task not in self._spans:
            number = row["attempt_number"]
            worker = row["worker_id"] or ""
            cause = "retry" if number else ""
            self._spans[task] = [f"{task}:{number}", task, number, worker, now_s, None, "", cause, row["name"]]
            self._put("spans", self._spans[task])

    def _take_objects(self, rows: _Rows) -> None:
        self._sizes = {}
        for object_id, row in rows.items():
            for node in row["node_ids"]:
                self._sizes[node] = self._sizes.get(node, 0) + (row["size_bytes"] or 0)
            if self._changed("objects", object_id, row):
                holders = [*row["node_ids"], *row["borrowers"]]
                of = "put" if row["is_put"] else "made by a task"
                users = row["used_by_tasks"]
                self._put("objects", [object_id, row["size_bytes"], row["state"], row["owner"], holders, users, of])
        for object_id in self._known.get("objects", {}).keys() - rows.keys():
            gone = self._known["objects"][object_id]
            self._put("objects", [object_id, gone["size_bytes"], "FREED", gone["owner"], [], 0, ""])

    def _take_workers(self, rows: _Rows, tasks: _Rows, now_s: float) -> None:
        running = {row["worker_id"]: row for row in tasks.values() if row["state"] == "RUNNING"}
        for worker, row in rows.items():
            runs = running.get(worker)
            name = runs["name"] if runs is not None else row.get("leased_for") or ""
            words = "blocked in get" if row.get("is_blocked") else ""
            task = runs["task_id"] if runs is not None else ""
            kind = row["worker_type"].lower()
            self._put("workers", [worker, row["node_id"], kind, row["state"], name, task, None, None, words])
        for worker in self._known.get("workers", {}).keys() - rows.keys():
            gone = self._known["workers"][worker]
            kind = gone["worker_type"].lower()
            self._put("workers", [worker, gone["node_id"], kind, "DEAD", "", "", None, now_s, "it has ended"])

    def _take_nodes(self, rows: _Rows, now_s: float) -> None:
        known = self._known.get("nodes", {})
        for node, row in rows.items():
            before = known.get(node)
            if before is not None and before["state"] != row["state"]:
                self._happened.node_state(now_s, node, row["state"])
            elif before is None and known:
                self._happened.node_started(now_s, node, is_new=True)
            total, free = row["resources_total"], row["resources_available"]
            used = {name: amount - free.get(name, 0.0) for name, amount in total.items()}
            self._put(
                "nodes",
                [
                    *(node, row["state"], total.get("CPU", 0.0), used.get("CPU", 0.0)),
                    *(total.get("memory"), used.get("memory"), row["store_bytes"], self._sizes.get(node, 0)),
                    *(None, None, row["incarnation"], _measured(total), None, "", [0]),
                ],
            )

    def _take_actors(self, rows: _Rows) -> None:
        for actor, row in rows.items():
            if self._changed("actors", actor, row):
                self._put(
                    "actors",
                    [
                        *(actor, row["class_name"], row["name"], row["state"], row["node_id"] or ""),
                        *(row["worker_id"] or "", row["num_restarts"], row["owner"], row["death_cause"]),
                    ],
                )

    def _take_waits(self, of_head: list[str], tasks: _Rows, now_s: float) -> None:
        counts: dict[str, int] = {}
        for words in of_head:
            counts[words] = 1
        for row in tasks.values():
            waits = self._since[row["task_id"]][1]
            if waits and (row["state"] == "PENDING_ARGS_AVAIL" or row["type"] == "ACTOR_TASK"):
                words = f"{row['name']} {waits}"  # of others, the head tells
                counts[words] = counts.get(words, 0) + 1
        for words in {*self._waits, *counts}:
            if words not in counts:
                del self._waits[words]
            else:
                row_of = self._waits.setdefault(words, [words, 0, now_s])
                row_of[1] = counts[words]
            self.tables.put("waits", words, lambda words=words: self._waits.get(words))  # type: ignore[misc]

    def _say(self, rows: dict[str, _Rows], groups: list[dict[str, Any]], missing: list[str], now_s: float) -> None:
        states: dict[str, int] = {}
        for row in rows["tasks"].values():
            states[row["state"]] = states.get(row["state"], 0) + 1
        alive = [row for row in rows["nodes"].values() if row["state"] != "DEAD"]
        queued = sum(states.get(state, 0) for state in IN_LINE)
        blocked = states.get("PENDING_ARGS_AVAIL", 0)
        running = states.get("RUNNING", 0)
        cpus = sum(row["resources_total"].get("CPU", 0.0) for row in alive)
        self._demand.now = [running, queued, blocked, cpus, len(alive)]
        self._demand.note(now_s)
        self.tables.head.update(
            state="running",
            error=f"no answer from {', '.join(missing)}" if missing else "",
            now_s=now_s,
            tasks=len(rows["tasks"]),
            running=running,
            queued=queued,
            blocked=blocked,
            finished=states.get("FINISHED", 0),
            failed=states.get("FAILED", 0),
            for_actors=sum(row["type"] == "ACTOR_TASK" and row["state"] in IN_LINE for row in rows["tasks"].values()),
            colours=list(colours_of(self._names).items()),
            nodes=len(alive),
            store=sum(self._sizes.values()),
            groups=groups,
        )

    # ---- Questions -------------------------------------------------------------------------------------------

    def story(self, wanted: str) -> dict[str, Any]:
        raise ValueError(
            "the history of a task needs a recorded run: start the program with decision_log=DIR, "
            "and open the run with `dualray dashboard DIR`"
        )

    def answer(self) -> str:
        raise ValueError(
            "this page cannot show how the cluster ends, because the cluster is still running. `dualray dashboard "
            "DIR` shows how a recorded run ended"
        )

    def logs(self) -> list[LogFile]:
        return kept_logs(None)

    def log(self, name: str, node: str) -> str:
        return "".join(state.get_log(filename=name, node_id=node or None, tail=LOG_LINES))

    def close(self) -> None:
        api.shutdown()


def _words_of_wait(row: dict[str, Any], tasks: _Rows, actors: _Rows) -> str:
    """For what a task waits, as the table `tasks` says it."""
    if row["state"] == "PENDING_ARGS_AVAIL":
        makers = sorted({tasks[dep[:32]]["name"] for dep in row["waits_for"] if dep[:32] in tasks})
        return f"waits for what {' and '.join(makers) or 'another task'} returns"
    if row["state"] not in IN_LINE:
        return ""
    if row["type"] == "ACTOR_TASK":
        actor = actors.get(row["actor_id"])
        return words_of_turn(actor["state"], actor["class_name"], actor["name"]) if actor is not None else FOR_ACTOR
    return "waits for a free worker" if row["state"] == QUEUED else "was sent to its worker, which has not started it"


def _measured(total: dict[str, float]) -> str | None:
    """What this machine is doing, of a node that is on it."""
    here = {address.address for each in psutil.net_if_addrs().values() for address in each}
    if not any(name.removeprefix(NODE_PREFIX) in here for name in total if name.startswith(NODE_PREFIX)):
        return None
    memory = psutil.virtual_memory()
    used, size = (memory.total - memory.available) / 2**30, memory.total / 2**30
    return f"machine: CPU {psutil.cpu_percent():.0f} %, memory {used:.1f} of {size:.0f} GiB"


def is_address(text: str) -> bool:
    """Whether a source names a cluster, and no file."""
    host, _, port = text.rpartition(":")
    return text == "auto" or (bool(host) and port.isdigit() and not Path(text).exists())
