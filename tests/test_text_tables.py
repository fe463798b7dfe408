from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.text_tables import Coloured, Table, painted


def made(*rows: tuple[str, ...], headings: tuple[str, ...] = ("name", "number")) -> Table:
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    return table


def test_a_table_has_a_box_and_its_cells():
    table = made(("one", "1"), ("two", "2,000"))
    table.columns[1].justify = "right"
    assert list(table.lines(80)) == [
        "┏━━━━━━┳━━━━━━━━┓",
        "┃ name ┃ number ┃",
        "┡━━━━━━╇━━━━━━━━┩",
        "│ one  │      1 │",
        "│ two  │  2,000 │",
        "└──────┴────────┘",
    ]
    assert table.width == 17


def test_what_is_too_wide_is_folded_between_words_and_a_word_where_it_must():
    lines = list(made(("some words that are long", "1"), ("abcdefghijklmnop", "2")).lines(20))
    assert lines[3:-1] == [
        "│ some    │ 1      │",
        "│ words   │        │",
        "│ that    │        │",
        "│ are     │        │",
        "│ long    │        │",
        "│ abcdefg │ 2      │",
        "│ hijklmn │        │",
        "│ op      │        │",
    ]


def test_a_column_that_stays_whole_gives_up_last():
    table = Table("what")
    table.add_column("id", is_whole=True)
    table.add_row("a sentence of several words", "0123456789abcdef")
    assert any("0123456789abcdef" in line for line in table.lines(30))
    assert all(len(line) <= 20 for line in table.lines(20))


def test_a_folded_column_stays_readable_while_others_can_give_up():
    table = Table("configuration")
    for name in ("makespan", "interval", "moved"):
        table.add_column(name, is_whole=True)
    table.add_row("2 x 4 CPUs", *["0123456789abcdefghij"] * 3)
    lines = list(table.lines(60))
    assert all(len(line) <= 60 for line in lines)
    assert any(line.startswith("│ 2 x 4   │") for line in lines), lines


def test_a_name_cannot_reach_the_terminal():
    text = "\n".join(made(("evil\x1b[31m\rname\x07", "\x9b2J")).lines(80))
    assert text.replace("\n", "").isprintable()
    assert "evil\\x1b[31m" in text


def test_wide_letters_take_two_places_and_colours_none():
    lines = list(made(("漢字", "1"), ("ab", "2")).lines(80))
    assert lines[3:5] == ["│ 漢字 │ 1      │", "│ ab   │ 2      │"]
    table = made(("ab", "2"))
    table.add_row(Coloured("cd", "red"), "3")
    assert "│ \x1b[31mcd\x1b[0m   │ 3      │" in list(table.lines(80, colours=True))
    assert painted("words", "red", colours=False) == "words"


def test_a_stream_without_these_lines_gets_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert made(("one", "1")).text(latin, 80).splitlines()[0] == "+------+--------+"


def test_a_row_of_too_many_cells_is_refused():
    with pytest.raises(ValueError, match="a row has 3 cells, but the table has 2 columns"):
        made(("one", "2", "3"))


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), max_size=5), st.integers(9, 100))
def test_every_table_fits_and_loses_no_letter(rows: list[tuple[str, str]], width: int):
    table = made(*rows)
    text = list(table.lines(width))
    assert all(line.isprintable() for line in text)
    letters = "".join(each for row in rows for cell in row for each in cell if each.isascii() and each.isalnum())
    shown = "".join(text[3:])
    assert all(shown.count(letter) >= letters.count(letter) for letter in set(letters))
