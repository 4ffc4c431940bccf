"""The readers on mutated files: no crash, no hang, no flood, no error but perfkit's own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hostile import fuzzing, mutations

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs named pipes and /proc")

PROGRAM = """
    import torch, perfkit
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=8)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = perfkit.schedule(wait=3, warmup=1, active=1, repeat=1)
    with perfkit.profile("run", schedule=schedule, detect_syncs="dry", quiet=True) as prof:
        for (x,) in prof.steps(loader):
            with perfkit.range("loss"):
                loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.log(samples=8, loss=loss.item())
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was recorded, with a window, stacks, lines, ranges and syncs."""
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], cwd=folder, check=True)
    return folder / "run"


@pytest.mark.parametrize("reader", sorted(set(fuzzing.READERS) - {"tab"}))
def test_some_mutated_files_are_read_or_refused(reader: str) -> None:
    found = fuzzing.work(reader, 0, 15, 60, None)

    assert found.defects == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", sorted(fuzzing.READERS))
def test_thousands_of_mutated_files_are(reader: str, recorded: Path) -> None:
    """A minute of each reader; `python tests/hostile/fuzzing.py --inputs 1000000` runs as many as one likes."""
    minutes = float(os.environ.get("PERFKIT_FUZZ_MINUTES", "1"))

    found = fuzzing.run(reader, random.SystemRandom().randrange(2**40), 10**7, 60 * minutes, recorded)

    assert found.defects == []
    assert found.inputs > 100
    assert found.peak_bytes < fuzzing.MAX_BYTES


def test_a_number_makes_the_same_file_again() -> None:
    data = b'{"a": [1, 2, {"b": null}], "c": "text"}'
    made = [mutations.mutate_json(random.Random(seed), data) for seed in range(50)]

    assert made == [mutations.mutate_json(random.Random(seed), data) for seed in range(50)]
    assert len(set(made)) > 40


def test_an_error_of_a_reader_is_reported_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(fuzzing.Reader):
        def one(self, number: int) -> None:
            if number == 7:
                raise KeyError("x")

    monkeypatch.setitem(fuzzing.READERS, "broken", Broken)

    found = fuzzing.work("broken", 0, 10, 60, None)

    assert (found.inputs, len(found.defects)) == (10, 1)
    assert found.defects[0].startswith("broken 7: Traceback")
