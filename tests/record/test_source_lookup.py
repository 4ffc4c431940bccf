"""Lines found by reading the user's source: calls that change a setting, and lines that fill a variable."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from perfkit.record.samplers import source_lookup
from perfkit.record.samplers.source_lookup import (
    find_calls,
    find_filling_lines,
    find_filling_of,
    find_fillings,
    find_makers,
    find_padding,
)
from perfkit.run.records import RANK_SLICE, LineRow


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    return str(path)


def test_a_type_is_found_in_a_choice_of_two(tmp_path: Path) -> None:
    file = written(tmp_path, "import torch\ntorch.set_default_dtype(torch.float64 if precise else torch.float32)\n")

    assert [at.line for at in find_calls(("float64",), (file,))["float64"]] == [2]


def test_a_type_is_found_where_a_name_or_a_field_gets_it(tmp_path: Path) -> None:
    file = written(tmp_path, "class Config:\n    dtype: torch.dtype = torch.float64\nother = np.double\n")

    found = find_calls(("float64", "double"), (file,))

    assert {name: [at.line for at in lines] for name, lines in found.items()} == {"float64": [2], "double": [3]}


def test_calls_are_found_unless_they_switch_something_off(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\ntorch.set_num_threads(64)\ntorch.autograd.set_detect_anomaly(False)\n"
        "def main():\n    t = Trainer(\n        detect_anomaly=True, deterministic=False)\n"
        "    also = {'set_num_threads': 2}\n",
    )

    found = find_calls(("set_num_threads", "set_detect_anomaly", "detect_anomaly", "deterministic"), (file,))

    assert {
        name: [(found_line.line, found_line.function) for found_line in lines] for name, lines in found.items()
    } == {
        "set_num_threads": [(2, "set_num_threads(...)"), (7, "set_num_threads=")],
        "detect_anomaly": [(6, "detect_anomaly=")],
    }


@pytest.mark.parametrize(
    "line",
    [
        "kept.append(x)",
        "self.kept.append(x)",
        "kept += [x]",
        "kept = kept + x",
        "kept['a'] = x",
        "total, kept = 1, f(x)",
    ],
)
def test_the_line_that_fills_a_name_is_found(line: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"kept = []\nfor x in data:\n    {line}\n")

    lines = find_filling_lines("kept", (file,))

    assert [found_line.line for found_line in lines] == ([] if line.startswith("total") else [3])
    assert find_filling_lines("other", (file,)) == ()


def test_a_file_with_none_of_the_names_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "def train():\n    pass\n" * 1000)
    monkeypatch.setattr(source_lookup, "parsed", lambda file: pytest.fail(f"{file} was parsed"))

    assert find_calls(("set_num_threads", RANK_SLICE), (file,)) == {}


def test_a_call_is_found_wherever_its_lines_begin(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "@decorated(\n    set_num_threads=4,\n)\nclass A:\n    def f(self):\n        return (\n            torch\n"
        "            .set_num_threads(\n                8\n            )\n        )\n\nx = {\n    'a': 1,\n"
        "    'set_num_threads': 2,\n}\n",
    )

    found = find_calls(("set_num_threads",), (file,))["set_num_threads"]

    assert sorted(at.line for at in found) == [2, 7, 15]


def test_lines_that_take_a_ranks_part_are_found_and_other_slices_are_not(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "mine = rows[rank::ranks]\nother = rows[2::3]\nranked = rows[ranked:]\n"
        "part = self.rows[self.rank * n : (self.rank + 1) * n]\n",
    )

    assert [at.line for at in find_calls((RANK_SLICE,), (file,))[RANK_SLICE]] == [1, 4]


@pytest.mark.parametrize(
    "line",
    [
        "ids = tokenizer(texts, padding='max_length')",
        "ids = tokenizer(texts, padding=padding, max_length=longest)",
        "row += [0] * (width - len(row))",
        "ids[row, : len(tokens)] = tokens",
        "ids[places >= lengths[:, None]] = 0",
        "ids = nn.functional.pad(ids, (0, 9))",
    ],
)
def test_the_line_that_pads_rows_is_found(line: str, tmp_path: Path) -> None:
    other = "conv = nn.Conv1d(3, 3, 3, padding=1)\nx[0, :] = [0] * 3\n"
    file = written(tmp_path, f"{other}def collate(texts):\n    {line}\n")

    assert [at.line for at in find_padding((file,))] == [4]


def test_of_a_tensor_that_rows_fill_in_part_it_is_the_line_that_makes_it(tmp_path: Path) -> None:
    text = "def collate(rows):\n    ids = torch.zeros(len(rows), 96)\n    for i, row in enumerate(rows):\n"
    file = written(tmp_path, text + "        ids[i, : len(row)] = row\n")

    assert [at.line for at in find_padding((file,))] == [2]


@pytest.mark.parametrize("made", ["torch.zeros(len(rows), width)", "torch.full((len(rows), width, 3), PAD)"])
def test_of_a_tensor_whose_width_the_function_sets_it_is_that_line(made: str, tmp_path: Path) -> None:
    text = "def collate(rows):\n    width = LONGEST\n    if exact:\n        width = max(map(len, rows))\n"
    text += f"    ids = {made}\n    for i, row in enumerate(rows):\n        ids[i, : len(row)] = row\n"
    file = written(tmp_path, text)

    assert [at.line for at in find_padding((file,))] == [2]


@pytest.mark.parametrize(
    "text", ["generate(x, use_cache=False)", 'kept = {"use_cache": False}', "dict(use_cache=False)"]
)
def test_an_argument_that_is_set_to_false_is_found_by_that(text: str, tmp_path: Path) -> None:
    found = find_calls(["use_cache=False", "use_cache"], [written(tmp_path, f"x = 1\n{text}\nuse(use_cache=None)\n")])

    assert {name: [at.line for at in places] for name, places in found.items()} == {"use_cache=False": [2]}


def test_the_line_that_registers_hooks_adds_to_what_a_hook_takes(tmp_path: Path) -> None:
    text = "def tap(model):\n    def hook(m, x, y):\n        kept[0] = y.abs()\n    model.register_forward_hook(hook)\n"
    file = written(tmp_path, text)
    row = LineRow(file=file, line=3, function="tap.<locals>.hook", owner="user", phase="forward", samples=9, host_ns=1)

    assert [one.filled.line for one in find_fillings([row])] == [4]


def test_padding_to_a_width_comes_before_a_call_that_may_pad_to_the_longest(tmp_path: Path) -> None:
    file = written(
        tmp_path, "x = pad_sequence(rows)\nrow = row + [0] * (96 - len(row))\nclass M:\n  def forward(s): pad(x)\n"
    )

    assert [at.line for at in find_padding((file,))] == [2, 1]


def test_the_line_that_adds_to_what_a_line_reads_is_found(tmp_path: Path) -> None:
    text = "def add(self, x):\n    self.seen.append(x)\ndef walk(self):\n    for one in self.seen:\n        f(one)\n"
    file = written(tmp_path, text)

    filled = find_filling_of(file, 4)

    assert filled is not None
    assert (filled.line, filled.function) == (2, "add")
    assert find_filling_of(file, 5) is None


def test_what_a_method_reads_of_its_object_is_read_where_it_is_called(tmp_path: Path) -> None:
    text = (
        "class Seen:\n"
        "    def all(self):\n        return torch.cat(self.rows)\n"
        "    def keep(self, x):\n        self.rows.append(x)\n"
        "    def size(self):\n        return self.width\n"
        "far = one @ seen.all().T\n"
        "wide = seen.size()\n"
    )
    file = written(tmp_path, text)

    filled = find_filling_of(file, 8)

    assert filled is not None
    assert (filled.line, filled.function) == (5, "Seen.keep")
    assert find_filling_of(file, 9) is None


def test_a_tensor_that_is_joined_to_itself_grows_there_and_a_method_of_the_same_object_adds_nothing(
    tmp_path: Path,
) -> None:
    text = (
        "class Memory:\n"
        "    def add(self, row):\n        self.rows = torch.cat([self.rows, row])[-9:]\n"
        "    def look(self, x):\n        mean = self.reference()\n        self.add(x)\n"
        "    def reference(self):\n        seen = torch.cat(self.readings)\n        return seen.mean(0)\n"
        "    def keep(self, x):\n        self.readings += [x]\n"
        "    def forward(self, x):\n        x = torch.cat([x, self.bias])\n        return x\n"
    )
    file = written(tmp_path, text)

    filled = [find_filling_of(file, line) for line in (3, 5, 8, 14)]

    assert [at and (at.line, at.function) for at in filled] == [
        (3, "Memory.add"),
        (11, "Memory.keep"),
        (11, "Memory.keep"),
        None,
    ]


def test_a_deque_that_grows_is_bounded_where_it_is_made(tmp_path: Path) -> None:
    text = "def main():\n    recent: Any = deque()\n    other = list()\n    for x in data:\n"
    text += "        recent.append(x)\n        other.append(x)\n        median(recent)\n        median(other)\n"
    file = written(tmp_path, text)

    filled = [find_filling_of(file, line) for line in (7, 8)]

    assert [at and (at.line, at.function) for at in filled] == [(2, "main"), (6, "main")]


def fetching(**objects: int) -> LineRow:
    return LineRow(file="t.py", line=9, function="main", phase="data", samples=40, host_ns=1, objects=objects)


def test_the_line_that_makes_an_object_is_that_of_the_only_call_of_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path,
        "data = Molecules(root,\n                 transform=T.WalkEncoding(length=9))\n"
        "a, b = Twice(1), Twice(2)\nrarely = Seldom()\nkind = Named\n",
    )
    monkeypatch.setattr(source_lookup, "user_files", lambda: (file,))

    found = find_makers([fetching(WalkEncoding=30, Twice=30, Seldom=20, Named=30, Elsewhere=40)])

    # One that is called twice may be either; half of the samples are not most; another is made by a library.
    assert {name: at.line for name, at in found.items()} == {"WalkEncoding": 2}


def test_a_collator_that_pads_to_a_large_multiple_is_a_line_that_pads(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "few = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)\n"
        "none = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=None)\n"
        "far = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)\n"
        "any = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=args.multiple)\n",
    )

    assert [at.line for at in find_padding((file,))] == [3, 4]


def test_the_line_that_registers_a_hook_is_found_by_the_hooks_name(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "def tame(grad):\n    return grad.clamp(-1, 1)\n"
        "class Model:\n    def on_epoch(self):\n        for p in self.parameters():\n"
        "            p.register_hook(other)\n            p.register_hook(tame)\n",
    )
    row = LineRow(file=file, line=2, function="tame", phase="backward", samples=9, host_ns=1)

    [found] = find_fillings([row])

    assert (found.filled.line, found.filled.function, found.is_hook) == (7, "Model.on_epoch", True)


@pytest.mark.parametrize("given", ["partial(self.record, name)", "lambda m, x, y: self.record(name, m, x, y)"])
def test_a_hook_that_is_given_with_arguments_is_found_where_it_is_registered(given: str, tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "class Report:\n    def attach(self, net):\n        for name, m in net.named_modules():\n"
        f"            m.register_forward_hook({given})\n"
        "    def record(self, name, m, x, y):\n        self.rows[name] = torch.std_mean(y)\n",
    )
    row = LineRow(file=file, line=6, function="Report.record", owner="user", phase="forward", samples=9, host_ns=1)

    [found] = find_fillings([row])

    assert (found.filled.line, found.is_hook) == (4, True)


def test_a_list_that_a_hook_goes_through_is_what_grows(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "kept = []\ndef hook(m, x, y):\n    kept.append(y)\n    m.mean = sum(kept)\nm.register_forward_hook(hook)\n",
    )
    row = LineRow(file=file, line=4, function="hook", owner="user", phase="forward", samples=9, host_ns=1)

    [found] = find_fillings([row])

    assert (found.filled.line, found.is_hook) == (3, False)
