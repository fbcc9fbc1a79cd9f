# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables: widths, units, and names that try to break out of their cell."""

from __future__ import annotations

import pytest

from gpuprof.text.messages import Messages
from gpuprof.text.sanitize import LONGEST_NAME, cell_width, escape_text, shorten
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import (
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_rate,
    format_share,
)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 us"),
        (1_000, "1.00 us"),
        (9_994, "9.99 us"),
        (9_996, "10.0 us"),
        (99_940, "99.9 us"),
        (99_960, "100 us"),
        (999_600, "1.00 ms"),
        (12_345_678, "12.3 ms"),
        (1_234_567_890, "1.23 s"),
        (7_200_000_000_000, "7,200 s"),
        (-2_500, "-2.50 us"),
        (None, "-"),
    ],
)
def test_durations_have_three_digits_and_a_unit(duration_ns: float | None, text: str) -> None:
    assert format_duration(duration_ns) == text


def test_sizes_counts_and_fractions() -> None:
    assert [format_bytes(size) for size in (0, 999, 1_000, 1_234_567, 9.9996e9)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "1.23 MB",
        "10.0 GB",
    ]
    assert format_count(1_234_567) == "1,234,567"
    assert (format_share(0.1234), format_share(1.0), format_share(None)) == ("12.3%", "100.0%", "-")


@pytest.mark.texts
@pytest.mark.parametrize(
    ("value", "text"),
    [(40, "40"), (4.0412, "4.041"), (71.25, "71.25"), (2_830_887.4, "2,830,887"), (15_440.2, "15,440"),
     (9_999.6, "10,000"), (0, "0"), (1e300, "1e+300")],
)  # fmt: skip
def test_a_rate_has_no_exponent_where_it_can_be_read_without(value: float, text: str) -> None:
    assert format_rate(value) == f"{text}/s"
    assert Messages({"at": "{rate:rate}"}).text("at", {"rate": value}) == f"{text}/s"


@pytest.mark.parametrize(
    ("change", "text"),
    [(-0.031, "-3.1%"), (0.0, "+0.0%"), (8.9, "+890.0%"), (9.0, "10x"), (35_750.16, "35,751x")],
)
def test_a_change_of_ten_times_is_a_multiple(change: float, text: str) -> None:
    assert format_change(change) == text


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("aten::addmm", "aten::addmm"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("bell\x07 \x1b[31mred", "bell\\x07 \\x1b[31mred"),
        ("right\u202eleft", "right\\u202eleft"),
        ("line\u2028end", "line\\u2028end"),
        ("lone\udc80", "lone\\udc80"),
        ("层 🔥 ü", "层 🔥 ü"),
        ("</script>'\"", "</script>'\""),
        ("", ""),
    ],
)
def test_escaping_keeps_what_is_harmless(name: str, escaped: str) -> None:
    assert escape_text(name) == escaped


def test_a_megabyte_of_name_stays_small() -> None:
    escaped = escape_text("a" + "\x00" * 1_000_000 + "z")
    assert len(escaped) < 5 * LONGEST_NAME
    assert escaped.startswith("a\\x00")
    assert escaped.endswith("\\x00z")


def test_wide_characters_fill_two_cells() -> None:
    assert [cell_width(text) for text in ("abc", "层", "🔥x", "e\u0301")] == [3, 2, 3, 1]


@pytest.mark.parametrize("width", [3, 4, 10, 17, 40])
@pytest.mark.parametrize("text", ["encoder.layers.3.attn.q_proj" * 2, "层" * 60, "a🔥" * 30])
def test_shortening_fits_and_keeps_both_ends(text: str, width: int) -> None:
    short = shorten(text, width)
    assert width - 2 <= cell_width(short) <= width
    assert "..." in short
    head, tail = short.split("...")
    assert text.startswith(head)
    assert text.endswith(tail)


def test_shortening_leaves_short_text_alone() -> None:
    assert shorten("exact", 5) == "exact"


def test_a_table_lines_up() -> None:
    table = text_table(
        [Column("name", right=False), Column("calls"), Column("own")],
        [("a", "1", "12 ns"), ("long name", "1,000", "1.00 s")],
    )
    assert table.splitlines() == [
        "name       calls     own",
        "a              1   12 ns",
        "long name  1,000  1.00 s",
    ]


def test_a_table_with_hostile_names_keeps_its_width_and_lines() -> None:
    names = ["x" * 1_000_000, "层" * 300, "a\nb\x1b[2J", "🔥" * 51 + "\n" * 40]
    table = text_table([Column("name", right=False), Column("own")], [(name, "1 ns") for name in names])
    lines = table.splitlines()
    assert len(lines) == 1 + len(names)
    assert max(map(cell_width, lines)) == 100
    assert all(line.endswith("1 ns") for line in lines[1:])


def test_different_names_that_are_cut_to_the_same_text_are_numbered() -> None:
    columns = [Column("name", right=False), Column("n")]
    names = [f"the same beginning {middle} and the same end" for middle in "aab"]
    lines = text_table(columns, [(name, "1") for name in names], width=30).splitlines()[1:]
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]
    assert [line.split(" ~")[1][0] for line in lines] == ["1", "1", "2"]
    assert max(map(len, lines)) <= 30


def test_the_first_column_keeps_a_minimum() -> None:
    table = text_table([Column("name", right=False), Column("own")], [("n" * 50, "v" * 50)], width=40)
    assert table.splitlines()[1].startswith("nnnn")
    assert "..." in table
