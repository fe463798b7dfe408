"""Ranges of an address space: which are free (`RangeAllocator`), and sets of numbers as ranges (`RangeSet`).

Theory of operation. `RangeAllocator` is address-ordered first fit: a request takes the low end of the lowest free
range that is long enough, and free neighbours are one range. What has been used lies low, so that used memory is used
again and the high end can be given back. It also fragments little in the worst case: it needs the live bytes times
about the logarithm of largest over smallest request (J. M. Robson, "Worst case fragmentation of first fit and best fit
storage allocation strategies", The Computer Journal 20, 1977), where best fit may need them times the largest request.
So address space of that many times the bytes that may live always has room (`span_for`).

Everything above the mark, the end of the highest range in use, is free and costs nothing. Below it each free range is
filed under the bucket of addresses in which it begins, and a tree of maxima over the buckets finds the lowest bucket
with a range that is long enough: each operation takes O(log buckets), plus a look at the few ranges of one bucket.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

GRANULE = 64
"""Bytes; every range begins and ends at a multiple: the alignment that numpy and Arrow like."""

_BUCKET_BYTES_MIN = 64 * 1024


def span_for(live_bytes_max: int, size_min: int) -> int:
    """Address space in which first fit never fails while at most `live_bytes_max` are in use in requests of at least
    `size_min`: that, times the logarithm of what may lie in use, and two more for rounding and the last request."""
    largest = max(2, live_bytes_max // max(size_min, GRANULE))
    return rounded(live_bytes_max) * (largest.bit_length() + 2)


def rounded(size: int) -> int:
    """The bytes that a request takes: a multiple of the granule, and at least one."""
    return max(GRANULE, -(-size // GRANULE) * GRANULE)


class RangeAllocator:
    """See the module.

    Args:
        span: bytes of address space.
        size_min: bytes that requests have at least, as a rule; smaller ones are served, only more slowly.
    """

    def __init__(self, span: int, size_min: int = _BUCKET_BYTES_MIN) -> None:
        self.span = span
        self.mark = 0
        """The end of the highest range in use."""
        self.used_bytes = 0
        self._sizes: dict[int, int] = {}
        """Of the ranges in use, by their first address."""
        self._free: dict[int, int] = {}
        """Sizes of the free ranges below the mark, by their first address."""
        self._ends: dict[int, int] = {}
        """Their first addresses, by their ends."""
        self._bucket_bytes = max(_BUCKET_BYTES_MIN, 16 * size_min)
        self._buckets: list[list[int]] = [[]]
        self._tree = [0, 0]
        """Node i has the maximum of nodes 2i and 2i + 1; the second half are the buckets."""

    def allocate(self, size: int) -> int | None:
        """The first address of `size` bytes that are in use from now on; None when no free range is that long."""
        size = rounded(size)
        start = self._lowest_fit(size)
        if start is None:
            start = self.mark
            if start + size > self.span:
                return None
            self.mark = start + size
        else:
            length = self._remove_free(start)
            if length > size:
                self._add_free(start + size, length - size)
        self._sizes[start] = size
        self.used_bytes += size
        return start

    def release(self, start: int) -> None:
        """A range is free from now on; KeyError when no range in use begins there."""
        size = self._sizes.pop(start)
        self.used_bytes -= size
        end = start + size
        if end in self._free:
            end += self._remove_free(end)
        before = self._ends.get(start)
        if before is not None:
            self._remove_free(before)
            start = before
        if end == self.mark:
            self.mark = start
        else:
            self._add_free(start, end - start)

    def shrink(self, start: int, size: int) -> None:
        """A range in use keeps its first `size` bytes; KeyError when none begins there."""
        before, size = self._sizes[start], rounded(size)
        if size >= before:
            return
        self._sizes[start] = size
        self.used_bytes -= before - size
        end = start + before
        if end in self._free:
            end += self._remove_free(end)
        if end == self.mark:
            self.mark = start + size
        else:
            self._add_free(start + size, end - start - size)

    def size_of(self, start: int) -> int:
        """Bytes of the range in use that begins there."""
        return self._sizes[start]

    def free_ranges(self, size_min: int = 1) -> Iterator[tuple[int, int]]:
        """First address and end of each free range of at least `size_min` bytes, lowest first; the last one is what
        lies above the mark."""
        for bucket in self._buckets:
            for start in bucket:
                if self._free[start] >= size_min:
                    yield start, start + self._free[start]
        if self.span - self.mark >= size_min:
            yield self.mark, self.span

    def check(self) -> None:
        """Raise AssertionError when the books do not agree: for tests."""
        position = 0
        both = sorted(
            [(start, size, True) for start, size in self._sizes.items()]
            + [(s, z, False) for s, z in self._free.items()]
        )
        was_free = False
        for start, size, is_used in both:
            assert start == position and size > 0 and start % GRANULE == 0 and size % GRANULE == 0, (start, size)
            assert is_used or not was_free, f"two free neighbours meet at {start}"
            position, was_free = start + size, not is_used
        assert position == self.mark and not was_free, (position, self.mark)
        assert self._ends == {start + size: start for start, size in self._free.items()}
        assert [s for bucket in self._buckets for s in bucket] == sorted(self._free)
        half = len(self._tree) // 2
        for index, bucket in enumerate(self._buckets):
            assert self._tree[half + index] == max((self._free[start] for start in bucket), default=0)
        assert all(self._tree[i] == max(self._tree[2 * i], self._tree[2 * i + 1]) for i in range(1, half))
        assert self.used_bytes == sum(self._sizes.values())

    # ---- Free ranges below the mark ----------------------------------------------------------------------------

    def _lowest_fit(self, size: int) -> int | None:
        tree = self._tree
        if tree[1] < size:
            return None
        node, half = 1, len(tree) // 2
        while node < half:
            node *= 2
            if tree[node] < size:
                node += 1
        return next(start for start in self._buckets[node - half] if self._free[start] >= size)

    def _add_free(self, start: int, size: int) -> None:
        self._free[start] = size
        self._ends[start + size] = start
        index = start // self._bucket_bytes
        if index >= len(self._buckets):
            self._grow(index + 1)
        insort(self._buckets[index], start)
        self._update(index)

    def _remove_free(self, start: int) -> int:
        size = self._free.pop(start)
        del self._ends[start + size]
        index = start // self._bucket_bytes
        bucket = self._buckets[index]
        del bucket[bisect_left(bucket, start)]
        self._update(index)
        return size

    def _update(self, index: int) -> None:
        tree, bucket, free = self._tree, self._buckets[index], self._free
        node = len(tree) // 2 + index
        tree[node] = max([free[start] for start in bucket], default=0)
        while node > 1:
            node //= 2
            largest = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == largest:
                break
            tree[node] = largest

    def _grow(self, bucket_count: int) -> None:
        half = len(self._tree) // 2
        while half < bucket_count:
            half *= 2
        self._buckets += [[] for _ in range(half - len(self._buckets))]
        self._tree = [0] * (2 * half)
        for index, bucket in enumerate(self._buckets):
            self._tree[half + index] = max((self._free[start] for start in bucket), default=0)
        for node in range(half - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node], self._tree[2 * node + 1])


class RangeSet:
    """A set of whole numbers, kept as ranges: neighbours are one. `total` is how many numbers are in it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def add(self, start: int, end: int) -> None:
        """All numbers from `start` to before `end` are in the set from now on."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
            self.total -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.total += end - start

    def remove(self, start: int, end: int) -> None:
        """None of them is in the set from now on."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if start >= end or first >= last:
            return
        kept = []
        if self._starts[first] < start:
            kept.append((self._starts[first], start))
        if end < self._ends[last - 1]:
            kept.append((end, self._ends[last - 1]))
        self.total -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [piece[0] for piece in kept]
        self._ends[first:last] = [piece[1] for piece in kept]
        self.total += sum(piece[1] - piece[0] for piece in kept)

    def covers(self, start: int, end: int) -> bool:
        """Whether all numbers from `start` to before `end`, of which there are some, are in the set."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and self._ends[index] >= end

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges of the set from `start` to before `end`."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return [(max(start, self._starts[index]), min(end, self._ends[index])) for index in range(first, last)]

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges from `start` to before `end` that are not in the set."""
        gaps = []
        for piece_start, piece_end in self.within(start, end):
            if start < piece_start:
                gaps.append((start, piece_start))
            start = piece_end
        if start < end:
            gaps.append((start, end))
        return gaps

    def clear(self) -> None:
        """Nothing is in the set from now on."""
        self._starts.clear()
        self._ends.clear()
        self.total = 0
