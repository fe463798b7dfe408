"""The commands `dualray sim params`, `workload` and `workloads`."""

from __future__ import annotations

from typing import Any

from dualray.cli import modelled
from dualray.cli.declare import Commands
from dualray.cli.printing import AsJson, print_json, show, table_of
from dualray.sim.cost.cost_model import CostModel, Param
from dualray.sim.params import fixed_params, node_params

sim = Commands("sim", help="Simulate built-in workloads, or show a simulation's assumptions.")
modelled.add_to(sim)


@sim.add("params")
def sim_params_command(as_json: AsJson = False) -> None:
    """Show the assumptions of a simulation, such as the duration of each operation and the default hardware of a node.

    Example: dualray sim params --json
    """
    if as_json:
        groups = (("cost_model", CostModel.params()), ("node", node_params()), ("fixed", fixed_params()))
        print_json({name: [_as_json(param) for param in params] for name, params in groups})
        return
    for title, params in (
        ("The cost model. A calibration or a scenario's `costs` can replace these.", CostModel.params()),
        ("Defaults of a node. init() or a scenario can replace these.", node_params()),
        ("Fixed", fixed_params()),
    ):
        table = table_of(title, "parameter", "default", "unit", "source")
        table.columns[1].justify = "right"
        for param in params:
            table.add_row(param.name, f"{param.default:,}", param.unit, param.source)
        show(table)


def _as_json(param: Param) -> dict[str, Any]:
    return {"name": param.name, "default": param.default, "unit": param.unit, "source": param.source}
