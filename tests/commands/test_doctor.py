"""``perfkit doctor``: which frameworks are here, what works with them, and which private names of theirs were found."""

from __future__ import annotations

import sys

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
    names = [fact for _, fact in doctor.facts() if fact.endswith(": found") or "MISSING" in fact]

    assert not [fact for fact in names if "MISSING" in fact]
    for package in ("torch.", "lightning.pytorch.", "pytorch_lightning.", "transformers."):
        assert [fact for fact in names if fact.startswith(package)], package


def test_a_private_name_that_moved_is_told_with_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = ("torch.utils.data.dataloader", "_Gone.__next__", "the data phase")
    elsewhere = ("a_framework_that_is_not_here.loops", "_Loop", "nothing")
    monkeypatch.setattr(doctor, "PRIVATE_NAMES", (moved, elsewhere))

    facts = doctor.facts()

    assert [fact for _, fact in facts if "MISSING" in fact] == [
        "torch.utils.data.dataloader._Gone.__next__: MISSING: the data phase will not work with this torch"
    ]
    assert not [fact for _, fact in facts if "not_here" in fact]
    assert "a_framework_that_is_not_here" not in sys.modules
