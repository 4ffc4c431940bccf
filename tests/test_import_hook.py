"""A callback at a module's import: a program that looks the module up finds what it would find without it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfkit._import_hook import when_imported

NAME = "imported_later"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported and is not; its file."""
    file = tmp_path / f"{NAME}.py"
    file.write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield file
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders


def test_a_lookup_imports_nothing_and_the_later_import_is_still_seen(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("called"))

    for _ in range(3):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
        assert spec.origin == str(module)
    assert seen == []
    assert NAME not in sys.modules

    imported = importlib.import_module(NAME)

    assert imported.answer == 42
    assert seen == ["called"]


def test_what_a_lookup_finds_is_the_modules_own_loader_before_and_after_the_import(module: Path) -> None:
    plain = importlib.util.find_spec(NAME)
    cancel = when_imported(NAME, lambda: None)
    looked_up = importlib.util.find_spec(NAME)

    assert plain is not None
    assert looked_up is not None
    assert type(looked_up.loader) is type(plain.loader)
    assert looked_up.loader.path == str(module)  # type: ignore[union-attr]  # a loader of source files
    assert pkgutil.get_data(NAME, f"{NAME}.py") == module.read_bytes()  # reads through the loader, and imports

    assert "exec_module" not in vars(sys.modules[NAME].__loader__)
    cancel()


def test_a_spec_that_is_run_by_hand_is_an_import(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("called"))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(made)

    assert made.answer == 42
    assert seen == ["called"]


def test_an_import_that_fails_is_none_and_the_next_one_is_seen(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("called"))
    module.write_text("raise ImportError('half installed')\n")
    with pytest.raises(ImportError, match="half installed"):
        importlib.import_module(NAME)
    assert seen == []

    module.write_text("answer = 43  # now it is whole\n")
    importlib.invalidate_caches()

    assert importlib.import_module(NAME).answer == 43
    assert seen == ["called"]


def test_several_callbacks_for_one_module_are_each_called_once_and_in_order(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("first"))
    when_imported(NAME, lambda: seen.append("second"))
    importlib.util.find_spec(NAME)

    importlib.import_module(NAME)
    importlib.reload(sys.modules[NAME])

    assert seen == ["first", "second"]


def test_a_cancelled_callback_is_not_called_even_by_a_spec_that_was_looked_up_before(module: Path) -> None:
    seen: list[str] = []
    cancel = when_imported(NAME, lambda: seen.append("called"))
    spec: Any = importlib.util.find_spec(NAME)
    cancel()

    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    importlib.import_module(NAME)

    assert seen == []


def test_an_import_in_another_thread_is_seen(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append(threading.current_thread().name))
    importlib.util.find_spec(NAME)

    importing = threading.Thread(target=importlib.import_module, args=(NAME,), name="importing")
    importing.start()
    importing.join()

    assert seen == ["importing"]


def test_a_module_that_is_loaded_lazily_is_imported_when_it_is_used(module: Path) -> None:
    seen: list[str] = []
    when_imported(NAME, lambda: seen.append("called"))
    spec: Any = importlib.util.find_spec(NAME)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    assert seen == []

    assert lazy.answer == 42
    assert seen == ["called"]


def test_distributions_and_modules_that_do_not_exist_are_looked_up_as_ever() -> None:
    cancel = when_imported("no_such_module_anywhere", lambda: None)

    assert importlib.util.find_spec("no_such_module_anywhere") is None
    assert importlib.metadata.version("pytest") == pytest.__version__
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    cancel()
