"""The qualified names of functions, which Python 3.10 does not keep in their code."""

from __future__ import annotations

import inspect
import sys
import tempfile
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from perfkit import _code_owner


def by_indentation(function: FunctionType) -> str:
    code = function.__code__
    return _code_owner._qualified(code.co_name, code.co_filename, code.co_firstlineno)


SOURCE = """
def before(): return lambda: 1

class Model:
    '''A text
with a line at the left.
    '''
    @staticmethod
    def decorated(): return 1

    class Inner:
        async def method(self):
            total = 1

            return total

    def outer(self):
        def after(): return 2

        def inner(): return 3

        listed = [
            lambda: 4,
        ]
        return inner, listed[0], after

alone = lambda: 5
"""


def test_it_is_found_by_the_lines_above_a_function(tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(SOURCE, str(file), "exec"), names)
    model = names["Model"]
    functions = [names["before"], names["alone"], model.decorated, model.Inner.method, model.outer, *model().outer()]

    assert [by_indentation(one) for one in functions] == [one.__qualname__ for one in functions]


@pytest.mark.parametrize("module", [torch.optim.lr_scheduler, torch.amp.grad_scaler, torch.utils.data.dataloader])
def test_it_is_that_of_each_method_of_torchs(module: Any) -> None:
    methods = [
        method
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
        for method in vars(kind).values()
        # A wrapper has the name of what it wraps, its code has its own.
        if isinstance(method, FunctionType) and method.__code__.co_name == method.__name__
    ]
    methods = [method for method in methods if method.__code__.co_filename == module.__file__]
    assert len(methods) > 10
    assert [by_indentation(one) for one in methods] == [one.__qualname__ for one in methods]


def test_a_function_whose_file_cannot_be_read_keeps_its_own_name() -> None:
    names: dict[str, Any] = {}
    exec("class A:\n    def f(self): return 1", names)

    assert by_indentation(names["A"].f) == "f"


def test_code_that_a_library_has_written_elsewhere_is_the_library_s(tmp_path: Path) -> None:
    assert _code_owner.owner_of(str(tmp_path / "msgspec.nn.conv_x7.py")) == "msgspec"
    assert _code_owner.owner_of(str(tmp_path / "train.v2.py")) == "user"
    assert _code_owner.owner_of(str(tmp_path / "msgspec.py")) == "user"


def test_what_torch_geometric_writes_for_a_layer_of_the_user_s_is_torch_geometric_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", ModuleType("torch_geometric"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert _code_owner.owner_of(str(tmp_path / "layers_EdgeConv_propagate_wyw2_m2b.py")) == "torch_geometric"
    assert _code_owner.owner_of(str(tmp_path / "layers_EdgeConv_edge_updater_wyw2xm2b.py")) == "torch_geometric"
    assert _code_owner.owner_of(str(tmp_path / "layers_propagate.py")) == "user"
    assert _code_owner.owner_of(str(tmp_path / "project" / "label_propagate_features.py")) == "user"


def test_the_owner_of_other_files_is_known_without_a_folder_for_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)

    assert _code_owner.owner_of(str(tmp_path / "train_without_temporary_files.py")) == "user"


def test_torch_geometric_writes_its_files_under_these_names() -> None:
    conv = pytest.importorskip("torch_geometric.nn").MessagePassing

    class EdgeConv(conv):  # type: ignore[misc]
        def forward(self, x: object, edge_index: object) -> object:
            return self.propagate(edge_index, x=x)

    assert _code_owner.owner_of(EdgeConv().propagate.__code__.co_filename) == "torch_geometric"


def test_models_of_a_library_that_prepares_inputs_are_a_part_of_their_own() -> None:
    packages = "/usr/lib/python3/site-packages"

    found = [
        _code_owner.library_of(f"{packages}/torchvision/{name}.py")
        for name in ("models/resnet", "ops/boxes", "io/image")
    ]

    assert found == ["torchvision.models", "torchvision.ops", "torchvision"]


def test_a_file_is_its_targets_owner_s_through_links_of_files_and_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "library"
    library.mkdir(parents=True)
    (library / "code.py").touch()
    own = tmp_path / "own"
    own.mkdir()
    (own / "file.py").symlink_to(library / "code.py")
    (own / "folder").symlink_to(library)
    (own / "train.py").touch()
    monkeypatch.chdir(own)
    monkeypatch.setattr(_code_owner, "_owners", {})

    names = ("file.py", "folder/code.py", "train.py")
    assert [_code_owner.owner_of(str(own / name)) for name in names] == ["library", "library", "user"]
    assert [_code_owner.owner_of(name) for name in names] == ["library", "library", "user"]
