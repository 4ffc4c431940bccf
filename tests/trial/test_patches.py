"""Measured changes are written into the user's source: as a diff that applies, or as arguments of a Trainer."""

from __future__ import annotations

import ast
import inspect
import runpy
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import perfkit
from perfkit.run.records import ChangedLine
from perfkit.trial.catalog import find_changes, parse_change
from perfkit.trial.patches.edits import TrainerKind
from perfkit.trial.patches.patch import Patch, write_patch
from perfkit.trial.patches.trainers import write_config

IMPORTS = "import torch\nfrom torch.utils.data import DataLoader\n"


def place(line: int, file: str = "train.py", via: str | None = None, end: tuple[int, int] | None = None) -> ChangedLine:
    return ChangedLine(file=file, line=line, function="main", via=via, end=end)


def line_of(source: str, text: str) -> int:
    return 1 + next(index for index, line in enumerate(source.splitlines()) if text in line)


def end_of(source: str, call: str) -> tuple[int, int]:
    """Where this call ends, as a running program knows it."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    node = next(one for one in nodes if ast.get_source_segment(source, one) == call)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def patched(
    folder: Path, source: str | bytes, changes: dict[str, Sequence[ChangedLine]], name: str = "train.py"
) -> tuple[bytes, Patch]:
    """The file as git leaves it when the patch is applied, and the patch."""
    file = folder / name
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    patch = write_patch([(parse_change(one), places) for one, places in changes.items()], folder, file)
    apply(folder, patch)
    return file.read_bytes(), patch


def apply(folder: Path, patch: Patch) -> None:
    if patch.diff:
        # `folder` is no repository of its own; git applies outside of one as well.
        done = subprocess.run(["git", "apply", "-p1", "-"], input=patch.diff.encode(), cwd=folder, capture_output=True)
        assert done.returncode == 0, (done.stderr, patch.diff)


def written(folder: Path, source: str, change: str, at: str, **options: str) -> str:
    """The source with one change, at the line with this text."""
    data, patch = patched(folder, source, {change: [place(line_of(source, at), **options)]})
    assert not patch.left, patch.left
    return data.decode()


def reason(folder: Path, source: str, change: str, at: str, via: str | None = None) -> str:
    data, patch = patched(folder, source, {change: [place(line_of(source, at), via=via)]})
    assert data.decode() == source
    ((left, why),) = patch.left
    assert left == change
    return why


# -- arguments of a call


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data)", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, 8,)", "DataLoader(data, 8, num_workers=4,)"),
        ("DataLoader(data, num_workers = 0, shuffle=True)", "DataLoader(data, num_workers = 4, shuffle=True)"),
        ("DataLoader(data, num_workers=(0))", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, num_workers=n if fast else 0)", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, 8, True, None, None, 0)", "DataLoader(data, 8, True, None, None, 4)"),
        ("DataLoader(data, num_workers=0, **options)", "DataLoader(data, num_workers=4, **options)"),
        ("DataLoader((data), f'{x:>{2}}é', {1: 2})", "DataLoader((data), f'{x:>{2}}é', {1: 2}, num_workers=4)"),
        ("DataLoader(lambda a, b: a, key(c, d))", "DataLoader(lambda a, b: a, key(c, d), num_workers=4)"),
        ("torch.utils.data.DataLoader(data)", "torch.utils.data.DataLoader(data, num_workers=4)"),
        ("[DataLoader(one) for one in data]", "[DataLoader(one, num_workers=4) for one in data]"),
        ("'é', DataLoader('ü', name='ß')  # ö", "'é', DataLoader('ü', name='ß', num_workers=4)  # ö"),
        (
            "DataLoader(\n    data,  # all of it\n    batch_size=8,  # small\n)",
            "DataLoader(\n    data,  # all of it\n    batch_size=8,  # small\n    num_workers=4,\n)",
        ),
        (
            "DataLoader(\n    data,\n    batch_size=8  # small\n    # no more\n)",
            "DataLoader(\n    data,\n    batch_size=8,  # small\n    num_workers=4\n    # no more\n)",
        ),
        ("DataLoader(data,\n           batch_size=8)", "DataLoader(data,\n           batch_size=8, num_workers=4)"),
        ("DataLoader(\n\tdata\n)", "DataLoader(\n\tdata,\n\tnum_workers=4\n)"),
    ],
)  # fmt: skip
def test_an_argument_is_written_into_the_call_that_ran(tmp_path: Path, before: str, after: str) -> None:
    assert written(tmp_path, f"{IMPORTS}x = {before}\n", "workers=4", "x = ") == f"{IMPORTS}x = {after}\n"


@pytest.mark.parametrize(
    "names",
    [
        "from torch.utils.data import DataLoader as Made",
        "import torch.utils.data as t\nMade = t.DataLoader",
        "from torch.utils.data import DataLoader\nclass Made(DataLoader): ...",
        "from torch.utils import data as d\nclass Base(d.DataLoader): ...\nclass Made(Base): ...",
    ],
)
def test_a_class_is_known_by_its_other_names(tmp_path: Path, names: str) -> None:
    source = f"{names}\nx = Made(data)\n"
    assert written(tmp_path, source, "workers=4", "x = ") == f"{names}\nx = Made(data, num_workers=4)\n"


def test_a_computed_class_is_edited_where_the_running_call_is_known(tmp_path: Path) -> None:
    source = "import torch\no = OPTIMIZERS[name](model.parameters(), **{}), AdamW(x)\n"
    where = place(2, end=end_of(source, "AdamW(x)"))
    data, patch = patched(tmp_path, source, {"fused-optimizer": [where]})
    assert data.decode() == source.replace("AdamW(x)", "AdamW(x, fused=True)")
    assert patch.edited == (("fused-optimizer", "train.py:2"),)


def test_of_several_calls_in_a_line_the_one_that_ran_is_edited(tmp_path: Path) -> None:
    source = f"{IMPORTS}a, b = DataLoader(train), DataLoader(test)\n"
    where = place(3, end=end_of(source, "DataLoader(test)"))
    data, _ = patched(tmp_path, source, {"workers=4": [where]})
    assert data.decode() == f"{IMPORTS}a, b = DataLoader(train), DataLoader(test, num_workers=4)\n"
    assert "has several calls of DataLoader" in reason(tmp_path, source, "workers=4", "a, b")


def test_what_excludes_the_new_argument_is_taken_out(tmp_path: Path) -> None:
    source = "import torch\no = torch.optim.SGD(w, lr=1, foreach=True, momentum=0)\n"
    expected = source.replace("foreach=True", "fused=True")
    assert written(tmp_path, source, "fused-optimizer", "o = ") == expected
    source = f"{IMPORTS}x = DataLoader(\n    data,\n    num_workers=2,\n    timeout=3,  # s\n    prefetch_factor=4\n)\n"
    expected = f"{IMPORTS}x = DataLoader(\n    data,\n    num_workers=0,\n)\n"
    assert written(tmp_path, source, "workers=0", "x = ") == expected
    source = f"{IMPORTS}x = DataLoader(data, timeout=3, num_workers=2, persistent_workers=True, prefetch_factor=4)\n"
    assert written(tmp_path, source, "workers=0", "x = ") == f"{IMPORTS}x = DataLoader(data, num_workers=0)\n"


def test_two_changes_of_one_call_are_both_written(tmp_path: Path) -> None:
    source = f"{IMPORTS}x = DataLoader(\n    data,\n)\n"
    data, _ = patched(tmp_path, source, {"workers=2": [place(3)] * 2, "persistent-workers": [place(3)]})
    assert data.decode() == source.replace("data,\n", "data,\n    num_workers=2,\n    persistent_workers=True,\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x = DataLoader(data, **options)", "train.py:3 builds its arguments in **options: write DataLoader(..., num_"),
        ("x = DataLoader(*given)", "train.py:3 builds its arguments in *args: write DataLoader(..., num_workers=4) by"),
        ("x = make(data)", "train.py:3 has no call of DataLoader: write DataLoader(..., num_workers=4) by hand"),
        ("x = DataLoader(i for i in y)", "train.py:3 cannot be edited safely: write DataLoader(..., num_workers=4) by"),
    ],
)
def test_what_cannot_be_written_says_why_where_and_what_to_write(tmp_path: Path, line: str, why: str) -> None:
    assert reason(tmp_path, f"{IMPORTS}{line}\n", "workers=4", "x = ").startswith(why)


def test_an_edit_that_cannot_be_made_leaves_the_others_of_its_file(tmp_path: Path) -> None:
    source = f"{IMPORTS}x = DataLoader(i for i in y)\nz = DataLoader(data)\n"
    data, patch = patched(tmp_path, source, {"workers=4": [place(3), place(4)]})
    assert data.decode() == source.replace("(data)", "(data, num_workers=4)")
    assert patch.edited == (("workers=4", "train.py:4"),)
    assert len(patch.left) == 1


# -- statements

LOOP = """\
import torch

def main():
    model = make()
    # the loop
    for epoch in range(3):
        for batch in loader:
            output = model(batch)  # forward
            loss = criterion(output,
                             batch)
            text = '''
  as it is'''
            optimizer.zero_grad()
            loss.backward()
"""


def test_a_model_is_compiled_in_front_of_its_outermost_loop(tmp_path: Path) -> None:
    expected = LOOP.replace("    for epoch", "    model.compile()\n    for epoch")
    assert written(tmp_path, LOOP, "compile", "model(batch)") == expected


def test_the_forward_and_the_loss_go_into_autocast_and_strings_stay_as_they_are(tmp_path: Path) -> None:
    expected = LOOP[: LOOP.index("            output")] + (
        '            with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16):\n'
        "                output = model(batch)  # forward\n"
        "                loss = criterion(output,\n"
        "                                 batch)\n"
        "                text = '''\n"
        "  as it is'''\n"
        "            optimizer.zero_grad()\n"
        "            loss.backward()\n"
    )
    assert written(tmp_path, LOOP, "bf16-autocast", "model(batch)") == expected


@pytest.mark.parametrize(
    ("change", "source", "why"),
    [
        (
            "compile",
            "def step(model, x):\n    y = model(x)\n",
            "train.py:2 is in no loop of its function: write ",
        ),
        ("compile", "for m in models:\n    y = m(x)\n", "train.py:2 makes m inside of its loop"),
        ("compile", "while True:\n    y = nets[0](x)\n", "train.py:2 has several calls, of which one is the model's"),
        ("bf16-autocast", "def f(x):\n    y = model(x)\n    return y\n", "train.py:2 has no .backward() after it"),
        ("bf16-autocast", "y = model(x).sum().backward()\n", "train.py:1 calls the model and .backward() in one sta"),
        ("no-grad-in-evaluation", "if x: y = model(x)\n", "train.py:1 shares its line with another statement"),
        ("no-grad-in-evaluation", "def f():\n    y = yield model(x)\n", "train.py:2 is left in the middle"),
        ("no-grad-in-evaluation", "y = (model(x) for x in z)\n", "train.py:1 calls the model later"),
        (
            "no-grad-in-evaluation",
            "for y in model(x):\n    pass\n",
            "train.py:1 calls the model in the head of",
        ),
    ],
)
def test_a_statement_that_cannot_be_written_is_left_with_its_reason(
    tmp_path: Path, change: str, source: str, why: str
) -> None:
    _, patch = patched(tmp_path, source, {change: [place(line_of(source, "y = " if "y = " in source else "for y"))]})
    assert patch.left[0][1].startswith(why), patch.left


def test_evaluation_goes_into_no_grad(tmp_path: Path) -> None:
    source = "import torch\nfor x in data:\n\ttotal += model(x).sum()\n"
    expected = "import torch\nfor x in data:\n\twith torch.no_grad():\n\t\ttotal += model(x).sum()\n"
    assert written(tmp_path, source, "no-grad-in-evaluation", "total") == expected


def test_the_model_is_found_beside_other_calls_where_the_running_call_is_known(tmp_path: Path) -> None:
    source = "import torch\nfor x in data:\n    total += score(model(x.to(device)))\n"
    where = place(3, end=end_of(source, "model(x.to(device))"))
    data, _ = patched(tmp_path, source, {"compile": [where]})
    assert data.decode() == source.replace("for x", "model.compile()\nfor x")


def test_collections_are_taken_out_and_what_lives_is_frozen_before_the_loop(tmp_path: Path) -> None:
    loop = "for x in y:\n    opt.zero_grad()\n    gc.collect()  # every step\n    if x:\n        gc.collect()\n"
    data, _ = patched(tmp_path, f"import gc\n{loop}", {"no-collections": [place(4), place(6), place(3)]})
    expected = "for x in y:\n    opt.zero_grad()\n    if x:\n        pass\n"
    assert data.decode() == f"import gc\ngc.collect()\ngc.freeze()\n{expected}"


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ("gradients-to-none", "optimizer.zero_grad(set_to_none=False)", "optimizer.zero_grad(set_to_none=True)"),
        ("gradients-to-none", "optimizers[0].zero_grad(False)", "optimizers[0].zero_grad(True)"),
        ("no-anomaly-detection", "torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)"),
        (
            "no-anomaly-detection",
            "with torch.autograd.detect_anomaly(check_nan=False): f()",
            "with torch.autograd.set_detect_anomaly(False): f()",
        ),
        (
            "nondeterministic",
            "torch.use_deterministic_algorithms(mode=True)",
            "torch.use_deterministic_algorithms(mode=False)",
        ),
        ("threads=2", "torch.set_num_threads(8)", "torch.set_num_threads(2)"),
        ("tf32", "torch.set_float32_matmul_precision('highest')", 'torch.set_float32_matmul_precision("high")'),
        ("dynamic-shapes", "torch.compile(model)(x)", "torch.compile(model, dynamic=True)(x)"),
        ("non-blocking-copies", "x, y = x.to('cuda'), f(y)", "x, y = x.to('cuda', non_blocking=True), f(y)"),
        (
            "ddp-buckets=50",
            "m = torch.nn.parallel.DistributedDataParallel(m)",
            "m = torch.nn.parallel.DistributedDataParallel(m, bucket_cap_mb=50)",
        ),
        ("pinned-memory", "f(torch.utils.data.DataLoader(x))", "f(torch.utils.data.DataLoader(x, pin_memory=True))"),
    ],
)
def test_a_setting_is_changed_where_the_program_sets_it(tmp_path: Path, change: str, before: str, after: str) -> None:
    assert written(tmp_path, f"import torch\n{before}\n", change, before) == f"import torch\n{after}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Doc."""\nfrom __future__ import annotations\nimport os\nimport torch\nx = 1\n', None),
        ("#!/usr/bin/env python\n# Mine.\nimport torch\n\nx = 1\n", None),
        ("import torch", "import torch\n\nSET\n"),
        ("", "import torch\nSET\n"),
        ('"""Doc."""\nx = 1\n', '"""Doc."""\nimport torch\nSET\nx = 1\n'),
        ("# Mine.\n@decorated\ndef f(): ...\n", "# Mine.\nimport torch\nSET\n@decorated\ndef f(): ...\n"),
        ("import torch as t; x = 1\ny = 2\n", "import torch\nSET\nimport torch as t; x = 1\ny = 2\n"),
        ("from torch import nn\nx = 1\n", "from torch import nn\nimport torch\n\nSET\nx = 1\n"),
    ],
)
def test_a_setting_of_the_program_stands_behind_its_imports(tmp_path: Path, before: str, after: str | None) -> None:
    statement = "torch.set_num_threads(2)"
    data, _ = patched(tmp_path, before, {"threads=2": []})
    expected = before.replace("import torch\n", "import torch\n\nSET\n") if after is None else after
    assert data.decode() == expected.replace("SET", statement)


# -- files


@pytest.mark.parametrize(
    "source",
    [
        IMPORTS.replace("\n", "\r\n").encode() + b"x = DataLoader(\r\n    data,\r\n)\r\ny = 1",
        b"\xef\xbb\xbf" + IMPORTS.encode() + b"x = DataLoader(\n    data,\n)",
        b"# -*- coding: latin-1 -*-\n# \xe9\n#\n#\n" + IMPORTS.encode() + b"#\n#\nx = DataLoader(\n    data,\n)\n",
        IMPORTS.encode() + b"\x0c\nx = DataLoader(\n    '\xe2\x80\xa8',\n)\n",
    ],
    ids=["crlf", "bom", "latin-1", "form feed"],
)
def test_line_ends_and_encodings_are_kept(tmp_path: Path, source: bytes) -> None:
    line = 1 + source[: source.index(b"x = ")].count(b"\n")
    data, patch = patched(tmp_path, source, {"workers=4": [place(line)]})
    end = b"\r\n" if b"\r\n" in source else b"\n"
    assert data == source.replace(b"," + end + b")", b"," + end + b"    num_workers=4," + end + b")"), patch


def test_a_diff_is_text_so_lines_in_another_encoding_stay_as_they_are(tmp_path: Path) -> None:
    source = b"# coding: latin-1\nx = DataLoader('\xe9')\n"
    data, patch = patched(tmp_path, source, {"workers=4": [place(2)]})
    assert data == source
    why = "train.py:2 is not in UTF-8, as a diff must be: write DataLoader(..., num_workers=4) by hand"
    assert patch == Patch(diff="", left=(("workers=4", why),))


def test_several_files_make_one_patch_with_paths_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "lade né.py").write_text(f"{IMPORTS}x = DataLoader(data)", encoding="utf-8")
    source = "import torch\no = torch.optim.SGD(w)"
    data, patch = patched(
        tmp_path,
        source,
        {"workers=4": [place(3, str(tmp_path / "my code" / "lade né.py"))], "fused-optimizer": [place(2)]},
    )
    assert data.decode() == "import torch\no = torch.optim.SGD(w, fused=True)"
    assert (tmp_path / "my code" / "lade né.py").read_text(encoding="utf-8").endswith("(data, num_workers=4)")
    assert "--- a/train.py\n+++ b/train.py\n" in patch.diff
    assert patch.edited == (("workers=4", "my code/lade né.py:3"), ("fused-optimizer", "train.py:2"))


def test_only_the_users_own_files_below_the_root_are_edited(tmp_path: Path) -> None:
    outside = place(1, str(tmp_path.parent / "other.py"))
    library = ChangedLine(file="/site-packages/timm/data.py", line=3, function="load", owner="timm")
    gone = place(1, "gone.py")
    torn = place(1, "torn.py")
    (tmp_path / "torn.py").write_text("x = DataLoader(\n")
    _, patch = patched(tmp_path, "x = 1\n", {"workers=4": [outside, library, gone, torn]})
    assert not patch.diff
    whys = " ".join(why for _, why in patch.left)
    for part in ("lies outside of", "is timm's", "gone.py:1 cannot be read", "torn.py:1 cannot be read"):
        assert part in whys


def test_a_patch_applies_with_patch_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{IMPORTS}x = DataLoader(data)")
    patch = write_patch([(parse_change("workers=4"), [place(3)])], tmp_path)
    done = subprocess.run(["patch", "-p1"], input=patch.diff.encode(), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "train.py").read_text().endswith("DataLoader(data, num_workers=4)")


def test_a_change_that_no_machine_writes_names_its_lines_and_what_to_write(tmp_path: Path) -> None:
    by_hand = parse_change("no-bias-before-norm")
    patch = write_patch([(by_hand, [place(3), place(5)])], tmp_path)
    why = "train.py:3, train.py:5 cannot be edited by machine: write torch.nn.Conv2d(..., bias=False) by hand"
    assert patch.left == (("no-bias-before-norm", why),)


def test_an_upper_bound_is_never_written(tmp_path: Path) -> None:
    _, patch = patched(tmp_path, "x = DataLoader(data)", {"one-batch": [place(1)]})
    assert patch == Patch(diff="", left=(("one-batch", "it is an upper bound, never an edit"),))


def test_a_change_without_a_line_says_what_to_write(tmp_path: Path) -> None:
    _, patch = patched(tmp_path, "x = 1\n", {"workers=4": []})
    assert patch.left == (
        ("workers=4", "it took effect at no line of the program; a person would write DataLoader(..., num_workers=4)"),
    )


# -- whatever the formatting is

SPACE = st.sampled_from(["", " ", "  ", "\n    ", "\n\t", "  # note (é, ü\n  "])
ARGUMENT = st.sampled_from(
    ["data", "batch_size=8", "num_workers=1", "shuffle = True", "collate_fn=lambda x, y=(1, 2): [x, y]", "*more",
     "generator=g[0:1]", 'name="),("', "timeout=(\n0)", "prefetch_factor=4", "**options"]
)  # fmt: skip


ARGUMENTS = st.lists(st.tuples(SPACE, ARGUMENT, SPACE), max_size=6, unique_by=lambda one: one[1].split("=")[0])


@settings(deadline=None)
@given(ARGUMENTS, st.booleans())
def test_nothing_but_the_argument_changes_in_any_call(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[tuple[str, str, str]], comma: bool
) -> None:
    arguments.sort(key=lambda one: ("=" in one[1] or one[1].startswith("**"), one[1].startswith("**")))
    inside = ",".join("".join(one) for one in arguments) + ("," if comma and arguments else "")
    source = f"{IMPORTS}é = 1\nx = DataLoader({inside})\n# end"
    file = tmp_path_factory.getbasetemp() / "any.py"
    file.write_text(source, encoding="utf-8")
    patch = write_patch([(parse_change("workers=4"), [place(4, "any.py")])], file.parent)
    apply(file.parent, patch)
    new = file.read_text(encoding="utf-8")
    if not patch.diff:
        assert new == source
        assert "builds its arguments in *" in patch.left[0][1]
        return
    before, after = (ast.parse(text).body[-1] for text in (source, new))
    assert isinstance(before, ast.Assign)
    assert isinstance(after, ast.Assign)
    one, other = before.value, after.value
    assert isinstance(one, ast.Call)
    assert isinstance(other, ast.Call)
    names = {key.arg: ast.unparse(key.value) for key in one.keywords}
    assert {key.arg: ast.unparse(key.value) for key in other.keywords} == {**names, "num_workers": "4"}
    for text in (*[part for part in ("# note (é, ü",) if part in source], "é = 1", "# end"):
        assert source.count(text) == new.count(text)
    if "num_workers" not in source:
        # What was there stays in its order; only the argument, a comma and a line are new.
        rest = iter(new)
        assert all(character in rest for character in source)


# -- a program


PROGRAM = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=0.1,  # high
)
for inputs, targets in DataLoader(data, batch_size=4):
    optimizer.zero_grad(set_to_none=False)
    output = model(inputs)
    loss = torch.nn.functional.mse_loss(output, targets)
    loss.backward()
    optimizer.step()
model.eval()
scores = [float(model(inputs).mean()) for inputs in torch.split(data.tensors[0], 4)]
with torch.autograd.detect_anomaly(check_nan=False):
    pass
"""


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_in_a_patched_program_the_changes_are_in_effect_without_perfkit(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # As make test has it: else threads=1 has an effect until the program sets it.
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    names = (
        "workers=1", "persistent-workers", "fused-optimizer", "gradients-to-none", "no-grad-in-evaluation",
        "no-anomaly-detection", "bf16-autocast", "threads=1",
    )  # fmt: skip
    with perfkit.changes(*names) as applied:
        runpy.run_path(str(file))
    patch = write_patch([(parse_change(one.change), one.places) for one in applied.report()], tmp_path, file)
    apply(tmp_path, patch)
    assert {change for change, _ in patch.edited} == set(names)

    with perfkit.changes(*names) as applied:
        done = runpy.run_path(str(file))
    effects = {one.change: [at.line for at in one.places] for one in applied.report() if one.count}
    evaluation = line_of(file.read_text(), "scores = ")
    # Autocast ends at a backward, and there is none in the evaluation.
    assert effects == {"bf16-autocast": [evaluation]}
    assert [why.partition(": ")[0] for _, why in patch.left] == ["train.py:18 has no .backward() after it"]
    assert done["optimizer"].param_groups[0]["fused"] is True
    assert done["output"].dtype == torch.bfloat16
    assert done["loss"].dtype == torch.float32


def test_weights_with_their_channels_last_take_the_images_with_them() -> None:
    convolution = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    assert convolution(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)


# -- Trainers

HUGGINGFACE = """\
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    output_dir="out",
    fp16=False,
)
trainer = Trainer(model, arguments)
trainer.train()
"""
LIGHTNING = """\
import lightning as L
from transformers import Trainer
trainer = L.Trainer(max_steps=3, detect_anomaly=True)
trainer.fit(model)
"""


def in_library(name: str) -> str:
    return f"/x/lib/python3.11/site-packages/{name}/trainer.py:1"


@pytest.mark.parametrize("library", ["transformers", "accelerate"])
@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ("workers=4", "dataloader_num_workers=4"),
        ("prefetch=8", "dataloader_prefetch_factor=8"),
        ("persistent-workers", "dataloader_persistent_workers=True"),
        ("pinned-memory", "dataloader_pin_memory=True"),
        ("bf16-autocast", "bf16=True"),
        ("compile", "torch_compile=True"),
        ("fused-optimizer", 'optim="adamw_torch_fused"'),
        ("nondeterministic", "full_determinism=False"),
    ],
)
def test_what_transformers_does_is_an_argument_of_its_training_arguments(
    tmp_path: Path, library: str, change: str, argument: str
) -> None:
    expected = HUGGINGFACE.replace("fp16=False,\n", f"fp16=False,\n    {argument},\n")
    assert written(tmp_path, HUGGINGFACE, change, "trainer.train", via=in_library(library)) == expected


def test_a_setting_of_the_program_is_an_argument_where_there_is_a_trainer_for_it(tmp_path: Path) -> None:
    data, _ = patched(tmp_path, HUGGINGFACE, {"tf32": []})
    assert data.decode() == HUGGINGFACE.replace("fp16=False,\n", "fp16=False,\n    tf32=True,\n")
    data, patch = patched(tmp_path, LIGHTNING, {"cudnn-benchmark": [], "tf32": []})
    assert "detect_anomaly=True, benchmark=True)" in data.decode()
    assert "set_float32_matmul_precision" in data.decode()
    assert patch.edited == (("cudnn-benchmark", "train.py:3"), ("tf32", "train.py:1"))


def test_what_lightning_does_is_an_argument_of_its_trainer(tmp_path: Path) -> None:
    where = place(4, via=in_library("lightning"))
    data, _ = patched(tmp_path, LIGHTNING, {"no-anomaly-detection": [where], "bf16-autocast": [where]})
    line = 'L.Trainer(max_steps=3, detect_anomaly=False, precision="bf16-mixed")'
    assert data.decode() == LIGHTNING.replace("L.Trainer(max_steps=3, detect_anomaly=True)", line)


def test_a_model_in_a_step_of_a_lightning_module_is_changed_in_the_trainer_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("class Net:\n    def training_step(self, x):\n        return self.net(x)\n")
    data, patch = patched(tmp_path, LIGHTNING, {"bf16-autocast": [place(3, "module.py")]})
    assert 'precision="bf16-mixed"' in data.decode()
    assert not patch.left


def test_a_loader_of_the_program_itself_is_not_changed_in_its_trainer(tmp_path: Path) -> None:
    why = reason(tmp_path, f"{HUGGINGFACE}loader = DataLoader(data, **options)\n", "workers=4", "loader = ")
    assert why.startswith("train.py:8 builds its arguments in **options")


@pytest.mark.parametrize(
    ("source", "change", "why"),
    [
        (
            "from transformers import Trainer\nTrainer(model, arguments).train()\n",
            "workers=4",
            "train.py:2 does it through transformers: write TrainingArguments(dataloader_num_workers=4) by hand",
        ),
        (
            HUGGINGFACE.replace("fp16=False,", "**options,"),
            "workers=4",
            "train.py:7 builds its arguments in **options: write TrainingArguments(dataloader_num_workers=4) by hand",
        ),
        (
            HUGGINGFACE + "other = TrainingArguments('out')\n",
            "workers=4",
            "train.py:7 makes several TrainingArguments, in lines 2 and 8: write TrainingArguments(dataloader_num_",
        ),
        (HUGGINGFACE, "channels-last", "train.py:7 does it through transformers: write model = model.to(memory_format"),
    ],
)
def test_what_a_trainer_does_and_cannot_be_written_names_the_argument(
    tmp_path: Path, source: str, change: str, why: str
) -> None:
    given = reason(tmp_path, source, change, ".train()", via=in_library("transformers"))
    assert given.startswith(why), given


HUGGINGFACE_PROGRAM = """\
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        seen.append(logits.dtype)
        return {"loss": (logits - labels).square().mean(), "logits": logits}


seen = []
examples = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
arguments = TrainingArguments("out", max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
trainer = Trainer(Model(), arguments, train_dataset=examples)
trainer.train()
"""
LIGHTNING_PROGRAM = """\
import lightning as L
import torch


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, x):
        logits = self.layer(x)
        seen.append(logits.dtype)
        return logits.square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


seen = []
trainer = L.Trainer(
    max_steps=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    detect_anomaly=True,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 4), 2))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("program", "names", "call"),
    [
        (
            HUGGINGFACE_PROGRAM,
            ("workers=1", "persistent-workers", "bf16-autocast"),
            "disable_tqdm=True, dataloader_num_workers=1, dataloader_persistent_workers=True, bf16=True)",
        ),
        (
            LIGHTNING_PROGRAM,
            ("workers=1", "fused-optimizer", "no-anomaly-detection", "bf16-autocast"),
            'detect_anomaly=False,\n    precision="bf16-mixed",\n)\n',
        ),
    ],
    ids=["huggingface", "lightning"],
)
def test_in_a_patched_program_with_a_trainer_the_changes_are_in_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, names: tuple[str, ...], call: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(program)
    with perfkit.changes(*names) as applied:
        runpy.run_path(str(file))
    patch = write_patch([(parse_change(one.change), one.places) for one in applied.report()], tmp_path, file)
    assert not patch.left
    apply(tmp_path, patch)
    assert call in file.read_text()

    with perfkit.changes(*names) as applied:
        done = runpy.run_path(str(file))
    # Transformers enters autocast inside of the model's forward, behind what perfkit wraps.
    still = {"bf16-autocast"} if program == HUGGINGFACE_PROGRAM else set()
    assert {one.change for one in applied.report() if one.count} == still
    assert set(done["seen"]) == {torch.bfloat16}


def test_a_config_lists_the_arguments_and_what_has_none() -> None:
    changes = [parse_change(one) for one in ("workers=4", "bf16-autocast", "threads=2")]
    assert write_config(changes, "huggingface") == (
        "TrainingArguments(\n    dataloader_num_workers=4,\n    bf16=True,\n)\n"
        "# TrainingArguments has no argument for:\n#   threads=2: torch.set_num_threads(2)\n"
    )
    assert write_config(changes[2:], "lightning") == (
        "# Trainer has no argument for:\n#   threads=2: torch.set_num_threads(2)\n"
    )
    assert write_config([], "accelerate") == ""


def test_the_arguments_are_those_of_the_installed_libraries() -> None:
    import accelerate
    import lightning
    import transformers

    kinds: dict[TrainerKind, object] = {
        "huggingface": transformers.TrainingArguments,
        "lightning": lightning.Trainer,
        "accelerate": accelerate.Accelerator,
    }
    for kind, constructor in kinds.items():
        assert inspect.isclass(constructor)
        known = inspect.signature(constructor).parameters
        given = {one.trainer.of(kind) for one in find_changes().values()} - {None}
        assert given
        assert {str(one).partition("=")[0] for one in given} <= set(known)
    assert "adamw_torch_fused" in [str(one.value) for one in transformers.training_args.OptimizerNames]
