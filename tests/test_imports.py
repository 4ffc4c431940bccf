"""What may be imported when: perfkit itself is light, and the offline column does without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "msgspec", "rich", "click", "fsspec", "nvtx", "lightning", "tensorboard")

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Block())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_importing_perfkit_loads_neither_torch_nor_numpy_nor_any_dependency() -> None:
    code = f"import perfkit, sys, json; print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))"

    assert json.loads(python(code).stdout) == []


@pytest.mark.parametrize("first", ["import perfkit; perfkit.range", "from perfkit import Finding"])
def test_public_names_are_stored_on_first_use_and_the_look_up_is_gone(first: str) -> None:
    # A module with a __getattr__ costs every perfkit.range(...) in a loop a sixth more.
    code = f"""
import sys, perfkit
assert not set(perfkit.__all__) - {{"__version__"}} & set(vars(perfkit)) and "profile" in dir(perfkit)
{first}
assert set(perfkit.__all__) <= set(vars(perfkit)) and "__getattr__" not in vars(perfkit)
assert not [name for name in {HEAVY!r} if name != "msgspec" and name in sys.modules]
"""
    done = python(code)

    assert done.returncode == 0, done.stderr


def test_ranges_work_where_a_dependency_of_other_names_is_missing() -> None:
    code = BLOCK.replace('"torch"', '"msgspec"') + (
        "import perfkit\n"
        "with perfkit.range('x'): pass\n"
        "assert '__getattr__' in vars(perfkit) and 'range' in vars(perfkit)\n"
        "try: perfkit.diagnose\n"
        "except ImportError: print('said')"
    )

    assert python(code).stdout == "said\n"


def test_the_offline_column_works_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 1,
            "ts": n * 1000,
            "dur": 1000,
        }
        for n in range(3)
    ]
    trace.write_text(json.dumps({"traceEvents": events}))
    done = python(
        BLOCK + "from perfkit.commands import main; raise SystemExit(main(['diagnose', sys.argv[1]]))", str(trace)
    )

    assert done.returncode == 0, done.stderr
    assert "step" in done.stdout


@pytest.mark.parametrize("name", ["profile()", "detect_syncs()"])
def test_the_live_column_says_which_pip_line_it_needs(name: str, tmp_path: Path) -> None:
    code = BLOCK + (
        "import perfkit, os; os.chdir(sys.argv[1])\n"
        f"try: perfkit.{name}.__enter__()\n"
        "except perfkit.MissingDependency as error: print(error)"
    )

    assert "needs torch: pip install 'perfkit[torch]'" in python(code, str(tmp_path)).stdout


def test_perfkit_run_loads_neither_pydantic_nor_typer_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print([n for n in ('pydantic', 'typer') if n in sys.modules])")
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "x", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("arguments", [[], ["--version"]])
def test_perfkit_alone_and_its_version_load_no_command(arguments: list[str]) -> None:
    code = (
        "import sys; from perfkit.commands import main; assert main(sys.argv[1:]) == 0\n"
        "print([n for n in sys.modules if n.startswith('perfkit.commands.')])"
    )

    assert python(code, *arguments).stdout.splitlines()[-1] == "[]"


def test_ranges_work_where_torch_cannot_be_imported() -> None:
    code = BLOCK + ("import perfkit\n@perfkit.range\ndef f(): return 3\nwith perfkit.range('x'): print(f())")

    assert python(code).stdout == "3\n"
