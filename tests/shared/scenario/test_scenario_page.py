"""docs/scenarios.md has every key of a file, and each fault there means the same in words and as a mapping."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualray.shared.scenario.cluster import NodeGroup, ScalingGroup
from dualray.shared.scenario.expect import Expect
from dualray.shared.scenario.fault_model import Fault, FaultKind, parse_fault
from dualray.shared.scenario.file import parse_scenario
from dualray.shared.scenario.scenario import Scenario

PAGE = Path(__file__).parents[3] / "docs" / "scenarios.md"
CLUSTER = "cluster: {nodes: 7, gpus: 1, memory: 16GiB, groups: {gpu: {max: 2}}}"


def rows() -> list[tuple[str, str]]:
    """Words and mapping of each fault of the page; the mapping may be words that say that there is none."""
    tables = PAGE.read_text().partition("## Faults\n")[2].partition("### Anchors")[0]
    cells = [line.split("|")[1:3] for line in tables.splitlines() if line.startswith("| `")]
    found = [(re.findall(r"`([^`]+)`", words), mapping.strip().strip("`")) for words, mapping in cells]
    return [(words[0], mapping) for words, mapping in found if "from node-2" not in words[0]]


def in_words(words: str) -> Fault:
    """The fault, at a moment of its own or at 1 s."""
    moment = "" if re.search(r" at \d| when ", words) else "at 1s"
    return parse_fault(words.replace("...", moment) if "..." in words else f"{words} {moment}")


def as_mapping(mapping: str, fault: Fault) -> Fault:
    moment = "at: 1s"
    if fault.at_ns is None:
        what = f"event: {fault.event}" if fault.task_name is None else f"{fault.event}: {fault.task_name}"
        moment = f"when: {{{what}, index: {fault.start}}}"
    lasting = "" if fault.for_ns is None or re.search(r"for:|_after:", mapping) else f", for: {fault.for_ns}ns"
    text = f"name: page\n{CLUSTER}\nworkload: {{generate: mixed}}\nfaults:\n  - {{{moment}, {mapping}{lasting}}}\n"
    [planned] = parse_scenario(text, "page.yaml").planned()
    return planned


ROWS = rows()


@pytest.mark.parametrize(("words", "mapping"), ROWS, ids=[words for words, _ in ROWS])
def test_each_fault_of_the_page_means_the_same_in_words_and_as_a_mapping(words: str, mapping: str):
    fault = in_words(words)
    if mapping == "in words only":
        return
    if mapping.endswith("..."):
        details = {"latency": "10", "loss": "0.01", "delay": "5ms", "jitter": "2ms"}
        mapping = mapping.replace("...", ", ".join(f"{name}: {value}" for name, value in details.items()))
    assert as_mapping(mapping, fault) == fault


def test_the_page_has_every_kind_of_fault():
    assert {in_words(words).kind for words, _ in ROWS} == set(FaultKind)


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("## The file", {field.alias or name for name, field in Scenario.model_fields.items()}),
        ("### The cluster", set(NodeGroup.model_fields)),
        ("### Groups that grow and shrink", set(ScalingGroup.model_fields) - set(NodeGroup.model_fields)),
        ("### Expectations", set(Expect.model_fields)),
    ],
)
def test_the_page_has_every_key(heading: str, known: set[str]):
    section = re.split(r"^#+ ", PAGE.read_text().partition(f"{heading}\n")[2], flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {key for cell in cells for key in re.findall(r"`(\w+)", cell)} == known
