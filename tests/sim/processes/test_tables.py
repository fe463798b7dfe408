"""The control plane's tables: what is written last is what is read, also where rows wait to be put in their places."""

from __future__ import annotations

from dualray.shared.machines.owner.task_records import TASK_TABLE
from dualray.shared.model.ids import TaskID
from dualray.sim.processes.tables import Tables

ONE, OTHER = TaskID(b"\1" * 16), TaskID(b"\2" * 16)
FINISHED, FAILED = (("state", "FINISHED"),), (("state", "FAILED"),)


def test_a_row_of_a_task_that_has_ended_is_there_when_it_is_read() -> None:
    tables = Tables()
    tables.write_task(ONE, FINISHED)
    assert tables.read(TASK_TABLE) == {ONE.hex(): FINISHED}
    tables.write_task(OTHER, FINISHED)
    assert list(tables.read(TASK_TABLE)) == [ONE.hex(), OTHER.hex()]


def test_what_came_last_holds_however_it_was_written() -> None:
    tables = Tables()
    tables.write_task(ONE, FINISHED)
    tables.write(TASK_TABLE, ONE.hex(), FAILED)
    assert tables.read(TASK_TABLE) == {ONE.hex(): FAILED}
    tables.write_task(ONE, FINISHED)
    assert tables.read(TASK_TABLE) == {ONE.hex(): FINISHED}


def test_rows_stand_in_the_order_in_which_they_came() -> None:
    tables = Tables()
    tables.write_task(OTHER, FINISHED)
    tables.write(TASK_TABLE, ONE.hex(), FAILED)
    tables.write("nodes", "node-0", (("state", "ALIVE"),))
    assert list(tables.read(TASK_TABLE)) == [OTHER.hex(), ONE.hex()]
    assert list(tables.all()) == [TASK_TABLE, "nodes"]
    assert tables.read("errors") == {}
