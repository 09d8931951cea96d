"""One way to print: in a log wide, plain and whole; in a terminal as wide as that is, and never cut."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Callable

import pytest

from repack.command import console
from repack.command.console import Console
from tests.support.calls import call_function

HEADER = ("name", "bytes", "what")
ROWS = [("a" * 300, "1,234,567", "passed"), ("b", "8", "FAILED"), ("c" * 20, "90", "some words that are long enough")]


def table() -> None:
    Console().table(HEADER, ROWS, right=(1,))


def in_a_log(draw: Callable[[], None], **environment: str) -> str:
    def child() -> int:
        os.environ.update(environment)
        draw()
        return 0

    done = call_function(child)
    assert (done.code, done.err) == (0, "")
    return done.out


def in_a_terminal(draw: Callable[[], None], **environment: str) -> str:
    ours, theirs = pty.openpty()

    def child() -> int:
        os.environ.update({"TERM": "xterm-256color"} | environment)
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        draw()
        return 0

    assert call_function(child).code == 0
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return text.decode()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


@pytest.mark.parametrize(
    "environment",
    [{}, {"COLUMNS": "40"}, {"COLUMNS": "0"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm-256color"}],
    ids=str,
)
def test_a_log_gets_plain_lines_of_any_width(environment: dict[str, str]) -> None:
    widths = (300, 9, 0)
    expected = [
        "",
        "  ".join(("name".ljust(300), "bytes".rjust(9), "what")),
        *("  ".join((name.ljust(widths[0]), size.rjust(widths[1]), what)) for name, size, what in ROWS),
    ]
    assert in_a_log(table, **environment).splitlines() == expected


def test_colour_in_a_log_is_there_for_who_forces_it() -> None:
    text = in_a_log(table, FORCE_COLOR="1", TERM="xterm")
    assert "\x1b[1;31mFAILED" in text
    assert [line.rstrip() for line in bare(text).splitlines()] == in_a_log(table).splitlines()


@pytest.mark.parametrize("columns", ["", "0", "1", "40", "60", "80", "1000"])
def test_a_terminal_of_any_width_shows_all_of_it(columns: str) -> None:
    text = in_a_terminal(table, COLUMNS=columns)
    lines = bare(text).splitlines()
    assert "\x1b[1;31mFAILED" in text
    assert max(map(len, lines)) <= max(60, int(columns or 80))
    letters = "".join(lines)
    assert letters.count("a") >= 300 + 2
    for word in (*HEADER, "1,234,567", "passed", "FAILED", "some", "enough"):
        assert word in letters, word


def test_no_colour_in_a_terminal_that_should_have_none() -> None:
    assert "[31m" not in in_a_terminal(table, NO_COLOR="1")
    assert "\x1b" not in in_a_terminal(table, TERM="dumb")


def test_facts_stand_under_their_title() -> None:
    def draw() -> None:
        Console().facts("title", [("one", "1"), ("a longer label", "2 " * 100)])
        Console().facts("alone", [])
        Console().paragraph("text")

    assert in_a_log(draw) == f"title\n  one             1\n  a longer label  {('2 ' * 100).rstrip()}\nalone\n\ntext\n"
    lines = bare(in_a_terminal(draw, COLUMNS="80")).splitlines()
    assert [line[:21] for line in lines if line.startswith("   ")] == [f"{' ' * 18}2 2"] * 3
    assert all(len(line) <= 80 for line in lines)


def test_a_quiet_console_says_nothing() -> None:
    def draw() -> None:
        quiet = Console(quiet=True)
        quiet.table(HEADER, ROWS)
        quiet.facts("title", [("one", "1")])
        quiet.verdict("verdict", good=True)
        quiet.note("note")
        with quiet.meter("working", 100) as progress:
            progress(50)

    assert (in_a_log(draw), in_a_terminal(draw)) == ("", "")


def work() -> None:
    with Console().meter("working", 4_000_000_000) as progress:
        progress(1_000_000_000)
        progress(3_000_000_000)


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def child() -> int:
        work()
        return 0

    assert call_function(child).err == "", "none for what is done in no time"
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    lines = call_function(child).err.splitlines()
    assert [line.split()[:3] for line in lines] == [["working", "1.0/4.0", "GB"], ["working", "3.0/4.0", "GB"]]


def test_progress_in_a_terminal_is_a_bar_that_goes_away() -> None:
    text = in_a_terminal(work)
    assert "working" in text
    assert "\u2501" in text
    assert text.rstrip().endswith("\x1b[2K"), "the line is erased at the end"
    assert "\x1b" not in in_a_terminal(work, TERM="dumb")
