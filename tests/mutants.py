"""Mutants of the shared policies and machines: does exploration notice them? `python -m tests.mutants --count 200`.

Authors plant what they can catch; so mutants are made by a tool (cosmic-ray's operators), at places that a seed draws.
Each is put into a copy of the package (tests/planted/tree.py) and run in processes of its own. First the kept runs of
all scenarios (tests/kept_runs): a mutant that they notice costs, or decides, something else in a run of which every
figure is known. Then, scenario by scenario, so many seeds, until one fails, or does not end, or the run without faults
breaks what it expects. What survives is printed as a diff, for somebody to say why: it changes nothing; or exploration
lacks something. What is not evaluated (annotations, docstrings) is not mutated.

Needs the extra "mutants": `pip install dualray[mutants]`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.planted.tree import ROOT, run_in, tree_with

MUTATED = ("dualray/shared/policies", "dualray/shared/machines")
FEATURES, MIXED, ACTORS, RETRIES = "features_swarm", "mixed_swarm", "actors_swarm", "retries_swarm"
SCENARIOS = (
    *(FEATURES, MIXED, ACTORS, RETRIES, "broadcast_swarm", "spill_swarm", "gpus_swarm", "leaving_swarm"),
    *("parted_swarm", "crowd_swarm", "arguments_swarm", "cancel_swarm", "words_swarm", "tight_swarm", "full_swarm"),
    *("state_swarm", "memory_swarm", "patient_swarm", "orphans_swarm"),
)
"""In the order in which they are explored, after the kept runs; FIRST says which comes first for some files."""

FIRST = {
    "values": ACTORS,
    "references": ACTORS,
    "borrows": ACTORS,
    "waits": ACTORS,
    "pins": "arguments_swarm",
    "tasks": RETRIES,
    "lineage": RETRIES,
    "transfer": "broadcast_swarm",
    "sending": "broadcast_swarm",
    "links": "patient_swarm",
    "directory": "broadcast_swarm",
    "broadcast": "broadcast_swarm",
    "object_store": "spill_swarm",
    "contents": "spill_swarm",
    "space": "spill_swarm",
    "actor_calls": ACTORS,
    "leases": MIXED,
    "hybrid": MIXED,
    "locality": MIXED,
    "lru": MIXED,
    "retry": RETRIES,
    "reconstruction": MIXED,
    "membership": MIXED,
    "cancellation": "cancel_swarm",
    "placement_groups": "tight_swarm",
    "bundles": "tight_swarm",
    "resource_pool": "gpus_swarm",
    "worker_pool": "memory_swarm",
    "reserved_space": "arguments_swarm",
    "actor_executor": "cancel_swarm",
    "reach": "parted_swarm",
}

KEPT_TIMEOUT_S = 240.0
"""For the kept runs, which take a minute and a half on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change that a tool has made; `path` is relative to the repository."""

    path: str
    operator: str
    occurrence: int
    diff: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        by: what killed it, or "" when it survived.
        how: "run" (a run fails, or does not end), "figure" (a kept run costs something else), "digest" (all that it
            costs is the same, and what it decides is not), "explored" (seeds that are not kept); "" when it survived.
        explored: scenarios that were explored to the end, before it was killed or its time was over; -1 when not even
            the kept runs were.
    """

    path: str
    operator: str
    occurrence: int
    by: str
    how: str
    explored: int
    seconds: float
    diff: str


@cache
def _families() -> dict[str, tuple[str, ...]]:
    """Operators by what they do: else the many kinds of arithmetic would be nearly all that is drawn."""
    families: dict[str, list[str]] = {}
    for name in sorted(operator_names()):
        if not get_operator(name).arguments():
            families.setdefault(name.partition("_")[0], []).append(name)
    return {name: tuple(operators) for name, operators in families.items()}


class _Evaluated(ast.NodeTransformer):
    """Leaves out what is not evaluated."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:  # ast's names
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def _is_program(text: str) -> bool:
    """Whether it can be run at all: the tool makes `%` of a lone `*` among the parameters of a function, too."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _evaluated(text: str) -> str:
    return ast.dump(_Evaluated().visit(ast.parse(text)))


@cache
def _nodes(path: str) -> tuple[Any, ...]:
    return tuple(ast_nodes(get_ast((ROOT / path).read_text())))


@cache
def _occurrences(path: str, operator: str) -> int:
    """Places in a file at which an operator can be applied."""
    positions = get_operator(operator)().mutation_positions
    return sum(1 for node in _nodes(path) for _ in positions(node))


def draw(count: int, seed: int) -> Iterator[Mutant]:
    """So many mutants, none of them twice: a line of code, a kind of change, and a place for it in the line's file."""
    stream = random.Random(f"mutants:{seed}")
    paths = [
        str(path.relative_to(ROOT)) for directory in MUTATED for path in sorted((ROOT / directory).rglob("[a-z]*.py"))
    ]
    lines = [len((ROOT / path).read_text().splitlines()) for path in paths]
    drawn: set[tuple[str, str, int]] = set()
    while len(drawn) < count:
        (path,) = stream.choices(paths, lines)
        operator = stream.choice(_families()[stream.choice(list(_families()))])
        places = _occurrences(path, operator)
        if not places:
            continue
        occurrence = stream.randrange(places)
        before = (ROOT / path).read_text()
        after = mutate_code(before, get_operator(operator)(), occurrence)
        if (path, operator, occurrence) in drawn or after is None or not _is_program(after):
            continue
        if _evaluated(after) == _evaluated(before):
            continue
        drawn.add((path, operator, occurrence))
        diff = "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, "", "", 2, ""))
        yield Mutant(path=path, operator=operator, occurrence=occurrence, diff=diff, text=after)


def explore(mutant: Mutant, *, seeds: int, timeout_s: float, scenarios: Sequence[str] = SCENARIOS) -> Verdict:
    """Explore one mutant until something fails.

    Args:
        seeds: of each scenario.
        timeout_s: for the mutant, all scenarios together; what is left when it is over is not explored.
    """
    began_s = time.monotonic()
    first = FIRST.get(Path(mutant.path).stem)
    order = sorted(scenarios, key=lambda name: name != first)
    by, how, explored = "", "", -1
    with tree_with({mutant.path: mutant.text}) as tree:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = run_in(tree, ["-m", "tests.kept_runs", "--stop"], timeout_s=max(timeout_s, KEPT_TIMEOUT_S))
            by, how = _what_differs(done) if done.returncode else ("", "")
            explored = 0
        for name in order if explored == 0 and seeds else ():
            left_s = timeout_s - (time.monotonic() - began_s)
            if left_s <= 0 or by:
                break
            words = ["-m", "dualray", "explore", str(ROOT / "scenarios" / f"{name}.yaml"), "--seeds", str(seeds)]
            words += ["--stop-after", "1", "--no-shrink", "--seed-timeout", "20"]
            try:
                done = run_in(tree, words, timeout_s=max(left_s, 30.0))
            except subprocess.TimeoutExpired:
                break
            if done.returncode:
                by, how = f"{name}: {_why(done)}", "explored"
            else:
                explored += 1
    return Verdict(
        path=mutant.path,
        operator=mutant.operator,
        occurrence=mutant.occurrence,
        by=by,
        how=how,
        explored=explored,
        seconds=time.monotonic() - began_s,
        diff=mutant.diff,
    )


def _what_differs(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What the kept runs say of a mutant, and of which kind it is."""
    found = [line for line in done.stdout.splitlines() if not line.startswith("they were kept")][:-1]
    if not found:  # it did not come so far as to say how many runs there were
        said = [line for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line.strip()]
        return (said[-1] if said else f"exit code {done.returncode}")[:160], "run"
    wrong = [line for line in found if ": expected " in line]
    ended = [line for line in found if " ending: " in line or not (line in wrong or "decides otherwise" in line)]
    if ended:
        return ended[0][:160], "run"
    return (wrong or found)[0][:160], "figure" if wrong else "digest"


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 1 and "seed " in done.stdout:
        line = next(line for line in done.stdout.splitlines() if line.startswith("seed "))
        return line[:160]
    said = [line for line in done.stderr.splitlines() if "without any fault" in line or "Error" in line]
    return (said[-1] if said else f"exit code {done.returncode}")[-160:]


def _survived(verdict: Verdict) -> str:
    if verdict.explored < 0:
        return "NOT RUN: the time was over before the kept runs were; give it more (--timeout)"
    return f"SURVIVED {verdict.explored} of {len(SCENARIOS)} scenarios"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="mutants to draw")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many, which were explored before")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument(
        "--seeds", type=int, default=40, help="for each scenario that are explored, after the kept runs"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one mutant")
    parser.add_argument("--json", type=Path, help="add each verdict to this file, a line each")
    options = parser.parse_args()
    killed: Counter[str] = Counter()
    unexplored, survivors = 0, []
    for number, mutant in enumerate(draw(options.count, options.seed)):
        if number < options.skip:
            continue
        verdict = explore(mutant, seeds=options.seeds, timeout_s=options.timeout)
        if verdict.by:
            killed[verdict.how] += 1
        elif verdict.explored >= 0:
            survivors.append((number, verdict))
        else:
            unexplored += 1
        words = verdict.by or _survived(verdict)
        print(f"{number}: {verdict.path} {verdict.operator}: {verdict.how} {words} ({verdict.seconds:.0f} s)")
        sys.stdout.flush()
        if options.json:
            with options.json.open("a") as lines:
                lines.write(json.dumps({"number": number, "seed": options.seed, **asdict(verdict)}) + "\n")
    total = killed.total() + len(survivors)
    for number, verdict in survivors:
        print(f"\nsurvivor {number}: {verdict.operator}\n{verdict.diff}")
    hows = ", ".join(f"{how} {count}" for how, count in sorted(killed.items()))
    print(f"\n{killed.total()} of {total} killed ({killed.total() / max(total, 1):.0%}): {hows}; not run: {unexplored}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
