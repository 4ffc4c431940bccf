"""``perfkit doctor``: which frameworks are here, what works with them, and which private names of theirs were found."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from perfkit import _env
from perfkit.commands import doctor


def told() -> dict[str, str]:
    return {name: fact for name, fact in doctor.facts() if name}


def test_every_framework_that_is_installed_is_named_with_its_version_and_what_works() -> None:
    facts = told()

    for package in ("lightning", "pytorch-lightning", "transformers", "accelerate", "tensorboard"):
        assert facts[package].startswith(f"{_env.package_version(package)}, works: ")


def test_a_framework_that_is_missing_or_too_old_is_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"lightning": None, "pytorch-lightning": "1.9.5", "transformers": "4.46.0.dev0"}
    installed = _env.package_version
    monkeypatch.setattr(_env, "package_version", lambda name: versions.get(name, installed(name)))

    facts = told()

    assert facts["lightning"] == "not installed (pip install -U 'perfkit[lightning]')"
    assert facts["pytorch-lightning"] == (
        "1.9.5 is too old: 2.2 or later is needed (pip install -U 'perfkit[lightning]')"
    )
    assert facts["transformers"].startswith("4.46.0.dev0, works: ")


def test_private_names_of_torch_lightning_and_transformers_are_found() -> None:
    facts = [fact for _, fact in doctor.facts()]

    assert not [fact for fact in facts if "MISSING" in fact]
    for package in ("torch", "lightning", "pytorch_lightning", "transformers"):
        [counts] = [re.findall(r"\d+", fact) for fact in facts if fact.startswith(f"{package}: ")]
        assert counts[0] == counts[1] != "0"


#: Private names that are Python's, and texts: parts of the names of ops, and what is looked for in a user's source.
#: Of the attributes that an iterator of a DataLoader sets when it begins a pass, and of a batch of torch_geometric, an
#: absent one means that samples are not compared.
NOT_OF_A_FRAMEWORK = {
    *("_send_idx", "_rcvd_idx", "_store", "_mapping", "_slice_dict", "_inc_dict"),
    *("_DummyThread", "_add_filter", "_filters_mutated_lock_held", "_getframe", "_initializing"),
    *("_c10d_functional", "_foreach_copy_", "_grouped_mm", "_int_mm", "_like", "_rank", "_to_copy"),
    *("_fft_", "_safe_softmax", "_softmax"),
    *("_batch_norm_impl_index", "_local_scalar_dense", "_native_batch_norm_legit", "_unsafe_view"),
    # Of an object, which no class has.
    "_untyped_storage",
    "_attn_implementation",
}


def test_every_private_name_that_recording_uses_is_listed() -> None:
    root = Path(doctor.__file__).parents[1]
    folders = [root / name for name in ("ranges", "record", "syncs", "integrations")]
    own, used = set(), set()
    for node in (node for folder in folders for file in folder.rglob("*.py") for node in ast.walk(parsed(file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute):
            (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names = [name for alias in node.names for name in (alias.name, *(node.module or "").split("."))]
            (own if "perfkit" in names else used).update(names)
        elif isinstance(node, ast.Tuple | ast.Call):
            texts = node.elts if isinstance(node, ast.Tuple) else node.args
            used.update(text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))
    listed = {part for module, names, _ in doctor.PRIVATE_NAMES for part in re.split(r"[ .|]", f"{module} {names}")}
    private = {name for name in used - own if name.isidentifier() and name[0] == "_" and not name.startswith("__")}

    assert private - listed - {"_"} == NOT_OF_A_FRAMEWORK


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def test_a_private_name_that_moved_is_told_with_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = ("torch.utils.data.dataloader", "_Gone.__next__", "the data phase")
    elsewhere = ("a_framework_that_is_not_here.loops", "_Loop", "nothing")
    monkeypatch.setattr(doctor, "PRIVATE_NAMES", (moved, elsewhere))

    facts = doctor.facts()

    assert [fact for _, fact in facts if "MISSING" in fact] == [
        "torch.utils.data.dataloader._Gone.__next__ is MISSING: the data phase will not work with this torch"
    ]
    assert not [fact for _, fact in facts if "not_here" in fact]
    assert "a_framework_that_is_not_here" not in sys.modules
