"""Text from outside on the screen: names, metadata, paths, arguments. Shown escaped, never interpreted, in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.calls import call
from tests.support.models import F32_TENSOR, STRING, U16, Model, T, pair, q6_k_tensor
from tests.support.sidecars.by_hand import sidecar_of, tiny_model

NASTY = {
    "markup": "[bold red]x[/bold red][link=file:///etc]y[/link]",
    "open markup": "[/not.open] [",
    "colours": "\x1b[31;1mred\x1b[0m",
    "a title and a bell": "\x1b]0;owned\x07",
    "a cleared screen": "\x1b[2J\x1b[H",
    "C1 controls": "\x9b31m\x85",
    "new lines": "one\ntwo\r\nthree\x0bfour\x0cfive",
    "line separators": "one\u2028two\u2029three",
    "backspaces": "evil\b\b\b\bgood",
    "right to left": "abc\u202edcba\u2066xyz\u2069",
    "nothing to see": "a\u200b\u200d\ufeffb\u00ad",
    "combining": "e" + "\u0301" * 300,
    "wide": "\uff21\u4e2d\U0001f600",
    "a null": "a\0b",
    "empty": "",
    "spaces": "   ",
    "a workflow command": "::error file=x::y\n::set-output name=z::1",
    "a workflow command alone": "::add-mask::x",
    "commands of other CI servers": "x ##[error]y ##vso[task.setvariable variable=z]1 ###teamcity[buildStop]",
    "a format": "{0} {x} %s %(x)s ${HOME} `id`",
    "XML": "<a href='x'>&amp;]]></a><!--",
    "10,000 letters": "n" * 10_000,
    "10,000 of anything": "\x1b[31m\u202e" * 2000,
    "an emoji of two halves in JSON": "\U0001f9e8",
}


def only_safe(text: str) -> None:
    """ASCII but for a table's lines; no control character but the end of a line; no workflow command."""
    for line in text.splitlines():
        bad = {char for char in line if not (char.isascii() and char.isprintable()) and char not in "─"}
        assert not bad, ascii(line)
        assert not line.lstrip().startswith("::"), line
        assert "##" not in line, line


@pytest.mark.parametrize("kind", NASTY)
def test_names_and_metadata(kind: str, tmp_path: Path) -> None:
    name = NASTY[kind]
    model = Model(
        [q6_k_tensor(name, (256, 2)), q6_k_tensor("plain", (256, 1), 2), T(f"{name}.", (3,), F32_TENSOR)],
        (pair("general.architecture", STRING, name), pair("general.name", STRING, name)),
    ).write(tmp_path / "model.gguf")
    out, report = tmp_path / "out.dpl", tmp_path / "report"
    done = call("repack", model, "-o", out, "--json", f"{report}.json")
    assert (done.code, done.err) == (0, "")
    only_safe(done.out)
    options = [option for kind in ("json", "junit", "markdown", "html") for option in (f"--{kind}", f"{report}.{kind}")]
    done = call("verify", model, out, *options)
    assert (done.code, done.err) == (0, "")
    only_safe(done.out)
    rows = done.out.splitlines()
    assert sum(" x " in row and "passed" in row for row in rows) == 2, "one line for each tensor"
    assert [tensor["name"] for tensor in json.loads(Path(f"{report}.json").read_text())["tensors"]] == [name, "plain"]
    raw = bytearray(out.read_bytes())
    raw[-300] ^= 1
    raw[-500] ^= 1
    out.write_bytes(raw)
    done = call("verify", model, out)
    assert done.code == 1
    only_safe(done.out + done.err)
    assert all(line.startswith("error: ") and len(line) < 1500 for line in done.err.splitlines())
    call("repack", model, "-o", out, "--force", "--include", "no such tensor").refused(5)


@pytest.mark.parametrize("kind", NASTY)
def test_errors_about_a_model(kind: str, tmp_path: Path) -> None:
    text = NASTY[kind]
    split = (pair("split.count", U16, 2), pair("split.no", STRING, text))
    for number, model in enumerate(
        (
            Model([q6_k_tensor(text, (256,)), q6_k_tensor(text, (256,))]),
            Model([q6_k_tensor(text, (384, 2))]),
            Model([], (pair(text, STRING, "x"), pair(text, STRING, "y"))),
            Model([], split),
            Model([T("q", (3,), F32_TENSOR)], (), magic=text.encode()[:4].ljust(4, b"\x1b")),
        )
    ):
        path = model.write(tmp_path / f"{number}.gguf")
        call("repack", path, "-o", tmp_path / "out").refused(3)
    other = tiny_model()
    other.tensors[0].name = text
    other.tensors[0].ne = (256, 1, 2)
    (tmp_path / "out.dpl").write_bytes(sidecar_of(other))
    done = call("verify", tiny_model().write(tmp_path / "m.gguf"), tmp_path / "out.dpl")
    assert done.code == 1
    only_safe(done.out + done.err)


@pytest.mark.parametrize(
    "kind", [kind for kind, text in NASTY.items() if "\0" not in text and len(text) < 200 and text]
)
def test_paths_and_arguments(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = NASTY[kind].replace("/", "_")
    monkeypatch.chdir(tmp_path)
    if len(text.encode()) < 200:
        model = tiny_model().write(Path(f"{text}.gguf"))
        done = call("repack", model, "-o", f"{text}.dpl")
        assert (done.code, done.err) == (0, "")
        only_safe(done.out)
        done = call("verify", model, f"{text}.dpl")
        assert (done.code, done.err) == (0, "")
        only_safe(done.out)
    call("repack", f"no{text}.gguf", "-o", "x").refused(2, "no such file")
    call("repack", "m.gguf", "-o", "x", f"--{text}").refused(2)
    call("repack", "m.gguf", "-o", "x", "--threads", f"n{text}").refused(2)
    call("repack", "m.gguf", "-o", "x", "--include", f"({text}").refused(2, "regular expression")
    call("verify", "m.gguf", "x", "--rows", f"n{text}").refused(2)
    call("verify", "m.gguf", "x", "--device", f"n{text}").refused(2)
    call("verify", "m.gguf", "x", "--forms", f"n{text}").refused(2)


@pytest.mark.parametrize("option", ["--threads", "--rows", "--seed"])
def test_numbers_of_any_length(option: str, tmp_path: Path) -> None:
    model = tiny_model().write(tmp_path / "m.gguf")
    (tmp_path / "out").write_bytes(sidecar_of(tiny_model()))
    for number in ("9" * 30, "9" * 5000, "-1", "0x10", "1e3", "\u0663", "", " "):
        done = call("verify", "--quiet", model, tmp_path / "out", f"{option}={number}")
        assert done.code in {0, 2}, done.err
        only_safe(done.err)
        assert len(done.err) < 500
        assert "internal" not in done.err


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\x1b[31m.gguf"
    with open(name, "wb") as file:  # noqa: PTH123 - a name of bytes
        file.write(tiny_model().to_bytes())
    done = call("repack", name, "-o", tmp_path / "out", "--json", "-")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    only_safe(done.out + done.err)
    done = call("verify", name, tmp_path / "out")
    assert done.code == 0, done.err
    only_safe(done.out)


def test_an_encoding_that_knows_nothing(tmp_path: Path) -> None:
    model = tiny_model().write(tmp_path / "m.gguf")

    def ascii_only() -> None:
        sys.stdout.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr]
        sys.stderr.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr]

    assert call("repack", model, "-o", tmp_path / "out", before=ascii_only).code == 0
    done = call("verify", model, tmp_path / "out", before=ascii_only)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
