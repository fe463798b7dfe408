"""Tables for terminals: boxes around plain text that fit a width, and the colours of a terminal that has them.

A cell is plain text, with a colour where it is `Coloured`. Whatever would move the cursor or change the terminal is
printed as an escape, so that the name of a task cannot.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, TextIO

__all__ = ["Colour", "Coloured", "Column", "Table", "has_colours", "painted", "terminal_width"]

Justify = Literal["left", "right"]
Colour = Literal["", "bold", "dim", "green", "italic", "red", "yellow"]

_CODES: Final = {"bold": "1", "dim": "2", "italic": "3", "red": "31", "green": "32", "yellow": "33"}
_WIDTH: Final = 80
"""Characters of a line where the output is no terminal and COLUMNS is not set."""
_HEAD: Final = ("┏━┳┓", "┃ ┃┃", "┡━╇┩")
_BODY: Final = ("┌─┬┐", "│ ││", "└─┴┘")
_ASCII: Final = ("+-++", "| ||", "+-++")
_AROUND: Final = 3
"""Characters that a column takes beside its text: a line and two spaces."""
_READABLE: Final = 7
"""Characters that a folded column keeps, unless all columns are that narrow and the line is still too long."""


class Coloured(str):
    """A cell's text with its colour."""

    __slots__ = ("colour",)

    def __new__(cls, text: str, colour: Colour) -> Self:
        made = super().__new__(cls, text)
        made.colour = colour
        return made

    colour: Colour


@dataclass(slots=True)
class Column:
    """One column of a table.

    Attributes:
        is_whole: its cells are never folded, unless no other column can give up any more.
    """

    heading: str = ""
    justify: Justify = "left"
    is_whole: bool = False


class Table:
    """Rows under headings, in a box. A cell that is too wide is folded."""

    def __init__(self, *headings: str, title: str = "", has_head: bool = True) -> None:
        self.title = title
        self.columns = [Column(heading) for heading in headings]
        self._has_head = has_head
        self._rows: list[tuple[str, ...]] = []

    def add_column(self, heading: str = "", *, justify: Justify = "left", is_whole: bool = False) -> None:
        """Add a column on the right."""
        self.columns.append(Column(heading, justify, is_whole))

    def add_row(self, *cells: str) -> None:
        """Add a row at the bottom; cells that are left out are empty."""
        if len(cells) > len(self.columns):
            raise ValueError(f"a row has {len(cells)} cells, but the table has {len(self.columns)} columns: {cells!r}")
        self._rows.append((*cells, *[""] * (len(self.columns) - len(cells))))

    @property
    def has_rows(self) -> bool:
        """Whether there is a row."""
        return bool(self._rows)

    @property
    def width(self) -> int:
        """The characters of a line when no cell is folded."""
        return sum(self._widths()) + _AROUND * len(self.columns) + 1

    def lines(self, width: int, *, colours: bool = False, ascii_only: bool = False) -> Iterator[str]:
        """The table's lines, in so many characters if its columns can be made that narrow."""
        widths = self._fitted(width - _AROUND * len(self.columns) - 1)
        head, body = (_ASCII, _ASCII) if ascii_only else (_HEAD, _BODY)
        if self.title:
            yield from (painted(line, "italic", colours) for line in _folded(self.title, max(width, 1)))
        headings = tuple(Coloured(column.heading, "bold") for column in self.columns)
        if self._has_head:
            yield _rule(head[0], widths)
            yield from self._row(headings, widths, head[1], colours)
            yield _rule(head[2], widths)
        else:
            yield _rule(body[0], widths)
        for cells in self._rows:
            yield from self._row(cells, widths, body[1], colours)
        yield _rule(body[2], widths)

    def text(self, stream: TextIO, width: int) -> str:
        """The table as a stream shows it: in colours, if it has some, and with lines that its encoding has."""
        is_plain = not _can_write(stream, "".join((*_HEAD, *_BODY)))
        return "\n".join(self.lines(width, colours=has_colours(stream), ascii_only=is_plain))

    def _row(self, cells: Sequence[str], widths: Sequence[int], edges: str, colours: bool) -> Iterator[str]:
        folded = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for number in range(max(map(len, folded), default=0)):
            parts = []
            for cell, lines, width, column in zip(cells, folded, widths, self.columns, strict=True):
                text = lines[number] if number < len(lines) else ""
                space = " " * (width - _width_of(text))
                colour: Colour = cell.colour if isinstance(cell, Coloured) else ""
                shown = painted(text, colour, colours)
                parts.append(f"{space}{shown}" if column.justify == "right" else f"{shown}{space}")
            yield f"{edges[0]} {f' {edges[2]} '.join(parts)} {edges[3]}"

    def _widths(self) -> list[int]:
        """Of each column, when no cell is folded."""
        rows = [tuple(column.heading for column in self.columns) if self._has_head else (), *self._rows]
        widths = [1] * len(self.columns)
        for row in rows:
            for number, cell in enumerate(row):
                widths[number] = max([widths[number], *(_width_of(line) for line in _plain(cell).split("\n"))])
        return widths

    def _fitted(self, room: int) -> list[int]:
        """The widths in so many characters: the widest columns give up first, and those that stay whole last."""
        widths = self._widths()
        for may_fold, least in ((False, _READABLE), (True, _READABLE), (True, 1)):
            folds = [number for number, column in enumerate(self.columns) if may_fold or not column.is_whole]
            folds = [number for number in folds if widths[number] > least]
            while sum(widths) > room and any(widths[number] > least for number in folds):
                widest = max(widths[number] for number in folds)
                equals = [number for number in folds if widths[number] == widest]
                next_one = max((widths[number] for number in folds if widths[number] < widest), default=least)
                excess = sum(widths) - room
                cut = min(widest - next_one, max(1, -(-excess // len(equals))))
                for number in equals:
                    taken = min(cut, excess)
                    widths[number] -= taken
                    excess -= taken
        return widths


def terminal_width() -> int:
    """The characters of a line: of COLUMNS, else of the terminal, else 80."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def has_colours(stream: TextIO) -> bool:
    """Whether the stream is a terminal that shows colours, and nobody has set NO_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def painted(text: str, colour: Colour, colours: bool) -> str:
    """The text in a colour, if there are `colours`."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colours and colour and text else text


def _rule(form: str, widths: Sequence[int]) -> str:
    return f"{form[0]}{form[2].join(form[1] * (width + 2) for width in widths)}{form[3]}"


def _plain(text: str) -> str:
    """The text with what a terminal would obey as escapes; the ends of lines stay."""
    if text.isprintable():
        return str(text)
    kept = (each if each.isprintable() or each == "\n" else _escaped(each) for each in text.replace("\t", "    "))
    return "".join(kept)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _width_of(text: str) -> int:
    """The places that a text takes: two for what is wide in East Asia, none for what combines."""
    if text.isascii():
        return len(text)
    return sum(_places(each) for each in text)


def _places(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _folded(text: str, width: int) -> list[str]:
    """The lines of a text of at most so many places: cut between words where that can be."""
    lines: list[str] = []
    for line in _plain(text).split("\n"):
        while _width_of(line) > width:
            cut, places = 0, 0
            for cut, each in enumerate(line):  # noqa: B007 - where it stops is what is asked
                places += _places(each)
                if places > width:
                    break
            cut = max(cut, 1)
            space = line.rfind(" ", 0, cut + 1)
            if space > 0:
                lines.append(line[:space].rstrip())
                line = line[space:].lstrip()
            else:
                lines.append(line[:cut])
                line = line[cut:]
        lines.append(line)
    return lines
