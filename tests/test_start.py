"""Before the first line of a command: whatever ends the process there is one line, and neither 0 nor 1."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.reports import ENVIRONMENT

ROOT = Path(__file__).parents[1]


def start(name: str, *arguments: str, path: Path, module: bool = False, **options: str) -> tuple[int, str, str]:
    """Run a command with `path` before ours, as an installed console script does or as `python -m`."""
    script = path / f"{name}-script"
    script.write_text(f"import sys\nfrom gguf_dpl.{name} import main\nsys.exit(main())\n")
    command = [sys.executable, *(["-m", name] if module else [str(script)]), *arguments]
    env = ENVIRONMENT | {"PYTHONPATH": f"{path / 'packages'}{os.pathsep}{ROOT}"} | options
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=path)
    return done.returncode, done.stdout, done.stderr


def package(folder: Path, name: str, text: str) -> Path:
    (folder / "packages" / name).mkdir(parents=True)
    (folder / "packages" / name / "__init__.py").write_text(text)
    return folder


BROKEN = {
    "missing": "raise ModuleNotFoundError('No module named rich', name='rich')",
    "no words": "raise ImportError",
    "a long story": "raise ImportError('one\\ntwo') from OSError('libblas.so.3: cannot open')",
    "something else": "1 / 0",
    "an exit of its own": "raise KeyboardInterrupt",
    "not even Python": "def",
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize("name", ["repack", "verify"])
def test_a_package_that_cannot_be_imported(name: str, module: bool, kind: str, tmp_path: Path) -> None:
    code, out, err = start(name, "--version", path=package(tmp_path, "rich", BROKEN[kind]), module=module)
    assert (code, out) == (4, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert "docs/quickstart.md" in err
    told = {"missing": "`rich` is missing", "a long story": "libblas.so.3", "not even Python": "SyntaxError"}
    assert told.get(kind, str(tmp_path)) in err


def test_a_machine_with_too_little_memory(tmp_path: Path) -> None:
    code, out, err = start("repack", path=package(tmp_path, "rich", "raise MemoryError"))
    assert (code, out, err) == (4, "", "error: out of memory\n")
    line = f"ulimit -v 60000; exec '{sys.executable}' -m repack --version"  # Python starts, NumPy does not
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (4, "", 1)
    assert "Traceback" not in done.stderr


def test_the_traceback_is_there_for_who_wants_it(tmp_path: Path) -> None:
    code, _, err = start("repack", path=package(tmp_path, "rich", "1 / 0"), DPL_DEBUG="1")
    assert code == 4
    assert "Traceback" in err
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_signal_while_packages_are_imported(number: int, module: bool, tmp_path: Path) -> None:
    text = f"import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(5)"
    code, out, err = start("repack", "--version", path=package(tmp_path, "numpy", text), module=module)
    assert (code, out) == (128 + number, "")
    assert err == f"error: interrupted by {signal.Signals(number).name}, nothing was done\n"


@pytest.mark.parametrize("name", ["repack", "verify"])
def test_a_package_of_another_project_earlier_on_the_path(name: str, tmp_path: Path) -> None:
    text = "print('foreign code')"
    code, out, err = start(name, "--version", path=package(tmp_path, "verify", text))
    assert (code, out) == (4, "")
    assert f"the package `verify` at {tmp_path / 'packages' / 'verify' / '__init__.py'} is another project's" in err
    assert "environment of its own" in err


@pytest.mark.parametrize("replaced", ["repack", "verify"])
@pytest.mark.parametrize("name", ["repack", "verify"])
def test_a_package_of_another_project_in_the_place_of_ours(name: str, replaced: str, tmp_path: Path) -> None:
    for folder in ("gguf_dpl", "repack", "verify"):
        shutil.copytree(ROOT / folder, tmp_path / "packages" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "packages" / replaced / "__init__.py").write_text("print('foreign code')")
    code, out, err = start(name, "--version", path=tmp_path)
    assert (code, out) == (4, "")
    assert f"the package `{replaced}`" in err


def test_a_folder_of_the_users_with_such_a_name_is_none_of_ours(tmp_path: Path) -> None:
    working = package(tmp_path, "verify", "print('foreign code')") / "packages"
    command = [sys.executable, "-m", "repack", "--version"]
    env = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=working)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_imports_the_library_keeps_its_own_handlers() -> None:
    code = "import repack, signal, sys; print(sys.excepthook is sys.__excepthook__, signal.getsignal(2).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "True default_int_handler\n"
