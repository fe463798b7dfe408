"""A run on Ray is recorded through the verbs, in the file of the other modes, and predicted from it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray
from dualray import whatif
from dualray.recording.file import LEFT_THERE, RunRecord, read_record_file

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def recorded(ray_head: str, tmp_path_factory: Any) -> tuple[Path, str]:
    """The record of `program`, and what the program's process has printed to stderr."""
    path = tmp_path_factory.mktemp("record") / "run.parquet"
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", type("Err", (), {"write": lambda _, text: printed.append(text), "flush": print})())
        dualray.init(mode="ray", address=ray_head, record=path, infeasible="raise", log_to_driver=False)
        try:
            program()
        finally:
            dualray.shutdown()
    return path, "".join(printed)


def program() -> None:
    @dualray.remote
    def make(count: int) -> Any:
        time.sleep(0.02)
        return np.ones(count)

    @dualray.remote
    def add(one: Any, other: Any) -> Any:
        return one + other

    @dualray.remote(num_returns=0)
    def nothing(one: Any) -> int:
        return 5

    @dualray.remote
    def inside(refs: list[Any]) -> Any:
        return dualray.get(add.remote(*refs))

    @dualray.remote
    def items(count: int) -> Any:
        for index in range(count):
            yield np.ones(1000 * (index + 1))

    @dualray.remote(max_retries=2, retry_exceptions=[KeyError])
    def fails_once() -> int:
        if dualray.get_runtime_context().get_attempt() == 0:
            raise KeyError("once")
        return 1

    @dualray.remote
    class Adder:
        def __init__(self) -> None:
            self.sum = 0

        def add(self, number: int) -> int:
            self.sum += number
            if number == 3:
                raise ValueError("three")
            return self.sum

    put = dualray.put(np.ones(50_000))
    made = make.remote(20_000)
    nothing.remote(made)
    assert dualray.get(add.remote(put, 1.0)).sum() == 100_000
    assert dualray.get(inside.remote([made, made]))[0] == 2
    assert [len(dualray.get(ref)) for ref in items.remote(2)] == [1000, 2000]
    assert dualray.get(fails_once.remote()) == 1
    actor = Adder.remote()
    assert dualray.get([actor.add.remote(number) for number in range(3)]) == [0, 1, 3]
    with pytest.raises(ValueError, match="three"):
        dualray.get(actor.add.remote(3))
    dualray.wait([made])
    dualray.wait([made], fetch_local=False)


def rows(record: RunRecord, kind: str, name: str = "") -> list[Any]:
    return [row for row in record.of_kind(kind) if not name or row.get("name") == name]


def test_what_was_asked_for_and_what_it_took_is_in_the_file(recorded: tuple[Path, str]):
    path, printed = recorded
    record = read_record_file(path)
    assert record.facts["mode"] == "ray"
    assert list(record.facts["nodes"]) == ["node-0"]
    assert record.facts["nodes"]["node-0"]["resources"]["CPU"] == 2
    calls = Counter(row["name"] for row in record.of_kind("task"))
    assert calls == {
        "make": 1,
        "nothing": 1,
        "add": 2,
        "inside": 1,
        "items": 1,
        "fails_once": 1,
        "Adder": 1,
        "Adder.add": 4,
    }
    assert "recording took" in printed
    assert str(path) in printed


def test_each_attempt_has_its_node_its_times_its_sizes_and_its_error(recorded: tuple[Path, str]):
    record = read_record_file(recorded[0])
    [made] = rows(record, "run", "make")
    assert made["node"] == "node-0"
    assert 20_000_000 <= made["end_ns"] - made["time_ns"] < 2_000_000_000
    assert 160_000 <= made["sizes"][0] < 161_000
    assert rows(record, "run", "nothing")[0]["sizes"] == []
    first, second = sorted(rows(record, "run", "fails_once"), key=lambda row: row["attempt"])
    assert (first["attempt"], first["other"]) == (0, "APPLICATION")
    assert (second["attempt"], second["other"]) == (1, "")
    assert [row["other"] for row in rows(record, "run", "Adder.add")] == ["", "", "", "APPLICATION"]
    items = rows(record, "item")
    assert [row["bytes"] // 8000 for row in items] == [1, 2]
    assert len(rows(record, "take")) == 2


def test_references_and_parents_are_those_of_the_program(recorded: tuple[Path, str]):
    record = read_record_file(recorded[0])
    [put], [made] = rows(record, "put"), rows(record, "task", "make")
    assert 400_000 <= put["bytes"] < 401_000
    result = made["task"] + bytes(4)
    [nothing], [inside] = rows(record, "task", "nothing"), rows(record, "task", "inside")
    assert list(nothing["objects"]) == [result]
    assert list(inside["nested"]) == [result]
    outer, inner = rows(record, "task", "add")
    assert list(outer["objects"]) == [put["objects"][0]]
    assert (inner["parent"], list(inner["objects"])) == (inside["task"], [result])
    [actor] = rows(record, "task", "Adder")
    assert {row["actor"] for row in rows(record, "task", "Adder.add")} == {actor["task"]}


def test_waits_say_what_they_left_where_it_was(recorded: tuple[Path, str]):
    record = read_record_file(recorded[0])
    [made] = rows(record, "task", "make")
    waits = rows(record, "wait")[-2:]  # the items of the generator were waited for, too
    assert [list(row["ready"]) for row in waits] == [[made["task"] + bytes(4)]] * 2
    assert [row.get("other") for row in waits] == [None, LEFT_THERE]


def test_predict_reads_it(recorded: tuple[Path, str]):
    found = whatif.predict(recorded[0], nodes=[1, 2], cpus=[1, 2], seeds=1, jobs=1)
    assert [row.lacks for row in found.rows] == [""] * 4
    assert all(row.makespan_s >= 0.02 for row in found.rows)


def test_an_actor_that_is_gone_has_sent_its_last_notes(recorded: tuple[Path, str]):
    record = read_record_file(recorded[0])
    ended = {row["task"] for row in record.of_kind("run")}
    assert {row["task"] for row in record.of_kind("task")} == ended


def test_a_task_cannot_record_by_itself(ray_head: str, tmp_path: Path):
    import ray

    ray.init(address=ray_head, log_to_driver=False)

    @ray.remote
    def inside(path: str) -> str:
        try:
            dualray.init(mode="ray", record=path)
        except ValueError as error:
            return str(error)
        return "recorded"

    try:
        assert "pass record= to init() in the driver" in ray.get(
            inside.remote(str(tmp_path / "no.parquet")), timeout=60
        )
    finally:
        ray.shutdown()
