"""The allocator of the arena and its sets of ranges, against plain sets and lists."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dualray.real.store.ranges import GRANULE, RangeAllocator, RangeSet, rounded, span_for

MIB = 1 << 20


def test_the_lowest_range_that_fits_is_taken() -> None:
    ranges = RangeAllocator(span=1 << 40)
    starts = [ranges.allocate(MIB) for _ in range(5)]
    assert starts == [0, MIB, 2 * MIB, 3 * MIB, 4 * MIB]
    ranges.release(3 * MIB)
    ranges.release(MIB)
    assert ranges.allocate(MIB + 1) == 5 * MIB
    assert ranges.allocate(MIB // 2) == MIB
    assert ranges.allocate(MIB // 2) == MIB + MIB // 2
    assert ranges.allocate(MIB) == 3 * MIB
    ranges.check()


def test_free_neighbours_are_one_and_the_mark_falls() -> None:
    ranges = RangeAllocator(span=1 << 40)
    for _ in range(4):
        ranges.allocate(MIB)
    for start in (0, 2 * MIB, MIB):
        ranges.release(start)
    assert list(ranges.free_ranges()) == [(0, 3 * MIB), (4 * MIB, 1 << 40)]
    ranges.release(3 * MIB)
    assert (ranges.mark, ranges.used_bytes, list(ranges.free_ranges())) == (0, 0, [(0, 1 << 40)])
    ranges.check()


def test_a_range_that_shrinks_leaves_its_end() -> None:
    ranges = RangeAllocator(span=1 << 40)
    assert [ranges.allocate(MIB) for _ in range(3)] == [0, MIB, 2 * MIB]
    first, second, third = 0, MIB, 2 * MIB
    ranges.shrink(first, MIB // 2)
    ranges.check()
    assert ranges.allocate(MIB // 2) == MIB // 2
    ranges.release(second)
    ranges.shrink(first, 1)
    ranges.check()
    ranges.shrink(third, 100)
    assert (ranges.mark, ranges.size_of(third)) == (2 * MIB + 2 * GRANULE, 2 * GRANULE)
    ranges.shrink(third, MIB)  # it never grows
    assert ranges.size_of(third) == 2 * GRANULE
    ranges.check()


def test_a_request_of_no_bytes_has_an_address_of_its_own() -> None:
    ranges = RangeAllocator(span=10 * GRANULE)
    assert [ranges.allocate(0), ranges.allocate(1), ranges.allocate(65)] == [0, GRANULE, 2 * GRANULE]
    assert ranges.allocate(7 * GRANULE) is None
    assert ranges.allocate(6 * GRANULE) == 4 * GRANULE
    assert ranges.allocate(1) is None


steps = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5 * MIB), st.integers(0, 1000)),
    max_size=120,
)


@given(steps)
@settings(deadline=None)
def test_ranges_never_overlap_and_first_fit_is_kept(program: list[tuple[bool, int, int]]) -> None:
    ranges = RangeAllocator(span=1 << 40)
    live: dict[int, int] = {}
    for wants, size, which in program:
        if wants or not live:
            start = ranges.allocate(size)
            assert start is not None
            gaps = _gaps(live)
            assert start == next((gap for gap, length in gaps if length >= rounded(size)), _end(live))
            live[start] = rounded(size)
        else:
            start = sorted(live)[which % len(live)]
            assert ranges.size_of(start) == live.pop(start)
            ranges.release(start)
        ranges.check()
        assert ranges.mark == _end(live)
        assert ranges.used_bytes == sum(live.values())


def _end(live: dict[int, int]) -> int:
    return max((start + size for start, size in live.items()), default=0)


def _gaps(live: dict[int, int]) -> list[tuple[int, int]]:
    gaps, position = [], 0
    for start in sorted(live):
        if start > position:
            gaps.append((position, start - position))
        position = start + live[start]
    return gaps


@given(
    st.integers(1, 64).map(lambda granules: granules * GRANULE),
    st.lists(st.tuples(st.sampled_from("adk"), st.integers(0, 10_000), st.integers(0, 1000)), max_size=300),
)
@settings(deadline=None)
def test_what_the_accounting_admits_always_finds_a_place(size_min: int, program: list[tuple[str, int, int]]) -> None:
    capacity = 100 * 1024
    ranges = RangeAllocator(span_for(capacity, size_min), size_min)
    live: list[int] = []
    for what, size, which in program:
        size = max(size, size_min)
        if what == "a" and ranges.used_bytes + rounded(size) <= capacity:
            start = ranges.allocate(size)
            assert start is not None, "fragmentation made an admitted object fail"
            live.append(start)
        elif what == "d" and live:
            ranges.release(live.pop(which % len(live)))
        elif what == "k":  # what makes most gaps: every second one goes
            for start in sorted(live)[::2]:
                ranges.release(start)
                live.remove(start)
    ranges.check()


def test_the_classic_adversary_finds_no_room_to_waste() -> None:
    """Robson's: fill with small ones, free all but what spoils each larger slot, ask for twice the size, and so on."""
    capacity, size_min = 64 * 1024, GRANULE
    ranges = RangeAllocator(span_for(capacity, size_min), size_min)
    live: dict[int, int] = {}
    size = size_min
    while size <= capacity // 2:
        while ranges.used_bytes + size <= capacity:
            start = ranges.allocate(size)
            assert start is not None
            live[start] = size
        kept: dict[int, int] = {}
        for start in sorted(live):  # one in each slot of the next size stays
            slot = start // (2 * size)
            if slot in kept:
                ranges.release(start)
                del live[start]
            else:
                kept[slot] = start
        size *= 2
    assert ranges.mark > 1.5 * capacity, "the adversary did its work"
    assert ranges.allocate(capacity - ranges.used_bytes) is not None
    ranges.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 60)), max_size=40), st.integers(0, 60))
@settings(deadline=None)
def test_a_set_of_ranges_is_a_set(changes: list[tuple[bool, int, int]], start: int) -> None:
    ranges, plain = RangeSet(), set[int]()
    for adds, low, high in changes:
        (ranges.add if adds else ranges.remove)(low, high)
        plain = plain | set(range(low, high)) if adds else plain - set(range(low, high))
        pieces = list(ranges)
        assert [number for low_, high_ in pieces for number in range(low_, high_)] == sorted(plain)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(pieces))
        assert ranges.total == len(plain)
    window = range(start, 50)
    assert {n for low, high in ranges.within(start, 50) for n in range(low, high)} == plain & set(window)
    assert not window or ranges.covers(start, 50) == (set(window) <= plain)
    assert {n for low, high in ranges.missing(start, 50) for n in range(low, high)} == set(window) - plain
    ranges.clear()
    assert (list(ranges), ranges.total) == ([], 0)
