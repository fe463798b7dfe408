"""The kinds of accelerators whose devices have ids, and how the core numbers the devices.

One int names a device of a node: its number among the devices of its kind, plus DEVICES_MAX times the place of the kind
in KINDS. GPUs are the first kind, so that their ids are 0, 1, 2 and so on. Logs hold these ids: a new kind is added at
the end of KINDS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dualray.shared.model.resources import BUNDLE, GPU, GPU_MASK, UNITS, Resources, add, from_units

DEVICES_MAX: Final = 2**24
"""Ids of one kind; more than AMOUNT_MAX of demands.py."""


class Kind(NamedTuple):
    """One kind of accelerator."""

    name: str
    """Of the resource."""
    variable: str
    """The variable of the environment that says which devices a process may use."""
    keeps_variable: str
    """With this variable of Ray's, workers leave `variable` as it is."""
    is_shared: bool = False
    """Whether a task or actor may hold a part of one device."""
    amounts: tuple[int, ...] = ()
    """The amounts that a task or actor may hold; empty: any."""
    prefix: str = ""
    """Stands before each device in `variable`."""
    type_name: str = ""
    """The accelerator type that a node with such devices offers, where there is one type."""
    needs_fresh_worker: bool = False
    """Whether only a worker that has run nothing gets such devices, runs nothing after them, and all others see none.
    As in Ray, workers with other kinds are used again."""


TPU: Final = "TPU"
TYPE: Final = "accelerator_type:"
"""The resource of this name and a type says that a node has accelerators of the type."""
TYPE_LABEL: Final = "ray.io/accelerator-type"
"""A label of a node with accelerators of one type; the name is Ray's."""

KINDS: Final[tuple[Kind, ...]] = (
    Kind(GPU, GPU_MASK, f"RAY_EXPERIMENTAL_NOSET_{GPU_MASK}", is_shared=True, needs_fresh_worker=True),
    Kind(
        "neuron_cores",
        "NEURON_RT_VISIBLE_CORES",
        "RAY_EXPERIMENTAL_NOSET_NEURON_RT_VISIBLE_CORES",
        type_name="aws-neuron-core",
    ),
    Kind(TPU, "TPU_VISIBLE_CHIPS", "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS", amounts=(1, 2, 4, 8)),
    Kind("HPU", "HABANA_VISIBLE_MODULES", "RAY_EXPERIMENTAL_NOSET_HABANA_VISIBLE_MODULES"),
    Kind("NPU", "ASCEND_RT_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", is_shared=True),
    Kind("RBLN", "RBLN_DEVICES", "RAY_EXPERIMENTAL_NOSET_RBLN_RT_VISIBLE_DEVICES"),
    Kind("FURIOSA", "FURIOSA_DEVICES", "RAY_EXPERIMENTAL_NOSET_FURIOSA_DEVICES", prefix="npu:"),
    Kind("TTNPU", "TT_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_TENSTORRENT_VISIBLE_DEVICES"),
    Kind("MBLT", "QBRUNTIME_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_MBLT_RT_VISIBLE_DEVICES"),
)

_PLACES: Final[dict[str, int]] = {kind.name: place for place, kind in enumerate(KINDS)}
_NONE: Final[tuple[tuple[int, int], ...]] = ()


def kind_of(device: int) -> Kind:
    """The kind of a device."""
    return KINDS[device // DEVICES_MAX]


def number_of(device: int) -> int:
    """The number of a device among those of its kind on its node."""
    return device % DEVICES_MAX


def gpus_among(devices: Iterable[int]) -> tuple[int, ...]:
    """The GPUs among the devices."""
    return tuple([device for device in devices if device < DEVICES_MAX])


def need_fresh_worker(devices: Iterable[int]) -> bool:
    """Whether only a worker that has run nothing gets these devices."""
    for device in devices:  # noqa: SIM110 - asked for each lease, most of which hold none
        if kind_of(device).needs_fresh_worker:
            return True
    return False


def devices_of(total: Mapping[str, int]) -> dict[int, int]:
    """The devices of a node that offers these units of resources, with the units of each."""
    found: dict[int, int] = {}
    for place, kind in enumerate(KINDS):
        units = total.get(kind.name, 0)
        for number in range(-(-units // UNITS)):
            found[place * DEVICES_MAX + number] = min(UNITS, units - number * UNITS)
    return found


def with_types(total: Resources) -> Resources:
    """What a node offers that was told to offer `total`: 1.0 of the type of each kind of accelerator, too."""
    told = {name for name, _ in total.units}
    types = [f"{TYPE}{kind.type_name}" for kind in KINDS if kind.type_name and kind.name in told]
    return add([total, from_units({name: UNITS for name in types if name not in told})]) if types else total


def type_labels(total: Resources, labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The labels of a node that offers these resources: with the type of its accelerators, unless its own say one."""
    types = [kind.type_name for kind in KINDS if kind.type_name and total.get(kind.name)]
    if not types or TYPE_LABEL in dict(labels):
        return labels
    return tuple(sorted([*labels, (TYPE_LABEL, types[0])]))


def devices_wanted(resources: Resources) -> tuple[tuple[int, int], ...]:
    """The kinds of accelerators among the resources, each as its place in KINDS and its units: a node's own, or those
    of a bundle, which come under two names."""
    most: dict[int, int] = {}
    for name, units in resources.units:
        place = _PLACES.get(name)
        if place is None and BUNDLE in name:
            place = _PLACES.get(name.partition(BUNDLE)[0])
        if place is not None and units > most.get(place, 0):
            most[place] = units
    return tuple(sorted(most.items())) if most else _NONE


Names = Mapping[str, Sequence[str]]
"""What the devices of a node are called, by the kind's name, in the order of their numbers."""
NO_NAMES: Final[Names] = {}


def numbered(total: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Names of the devices of a node that offers these units of resources: their numbers."""
    found = {kind.name: -(-total.get(kind.name, 0) // UNITS) for kind in KINDS}
    return {name: tuple([str(number) for number in range(count)]) for name, count in found.items() if count}


def named(devices: Iterable[int], names: Names) -> dict[str, tuple[str, ...]]:
    """The names of these devices, by the kind's name."""
    found: dict[str, tuple[str, ...]] = {}
    for device in devices:
        kind = kind_of(device).name
        found[kind] = (*found.get(kind, ()), names[kind][number_of(device)])
    return found


def device_words(devices: Iterable[int]) -> str:
    """The devices, for people: `GPU 0, 1 and TPU 3`."""
    found: dict[str, list[str]] = {}
    for device in devices:
        found.setdefault(kind_of(device).name, []).append(str(number_of(device)))
    return " and ".join([f"{kind} {', '.join(numbers)}" for kind, numbers in found.items()])


# ---- What a process sees ---------------------------------------------------------------------------------------------

_TPU_BOUNDS: Final = {1: "1,1,1", 2: "1,2,1"}
"""Of the chips of a host, for as many chips; all of a host's chips need none."""
TPU_VARIABLES: Final = ("TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")


def shown_by(kind: Kind, names: Sequence[str]) -> dict[str, str]:
    """The variables of the environment of a process that holds devices with these names."""
    shown = {kind.variable: ",".join([kind.prefix + name for name in names])}
    bounds = _TPU_BOUNDS.get(len(names), "") if kind.name == TPU else ""
    if bounds:
        shown |= dict(zip(TPU_VARIABLES, (bounds, "1,1,1"), strict=True))
    return shown


def names_in(kind: Kind, text: str) -> tuple[str, ...]:
    """The names of the devices in the kind's variable: `text` is its value."""
    if text in ("", "NoDevFiles"):
        return ()
    names = [name.strip() for name in text.split(",")]
    if kind.prefix:  # `npu:0:2-3` stands for some parts of a device
        names = [name.removeprefix(kind.prefix).partition(":")[0] for name in names]
    return tuple([name for name in names if name])
