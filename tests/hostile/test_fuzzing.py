"""The readers on mutated files: no crash, no hang, no flood, no error but perfkit's own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hostile import fuzzing, mutations
from tests.hostile.readers import ALL_VALUES, EVERYTHING

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


#: Inputs of a reader in a short test; those of events take 3 ms.
SOME = {"events": 150}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of mutated ranks are kept where the next test does not find them."""
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("reader", sorted(set(fuzzing.READERS) - {"tab"}))
def test_some_mutated_files_are_read_or_refused(reader: str) -> None:
    found = fuzzing.work(reader, 0, SOME.get(reader, 15), 60)

    assert found.defects == []


@pytest.mark.parametrize("reader", sorted(set(fuzzing.READERS) - {"tab"}))
def test_the_files_that_are_mutated_are_sound(reader: str, tmp_path: Path) -> None:
    """A reader that refuses what it was given would never come to what is looked for."""
    subject = fuzzing.READERS[reader](tmp_path)

    whole = {file.parent: file for file in subject.files}  # one shows all of its folder
    for file in subject.files:
        subject.read(file, EVERYTHING if file in whole.values() else ALL_VALUES)


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("reader", sorted(fuzzing.READERS))
def test_a_million_mutated_files_are(reader: str, recorded: Path) -> None:
    """The reader's share of a million, forty minutes of a processor; `PERFKIT_FUZZ_INPUTS` changes that number.

    The numbers differ from run to run. `python tests/hostile/fuzzing.py` takes them from the command line, and other
    real files.
    """
    inputs = round(float(os.environ.get("PERFKIT_FUZZ_INPUTS", "1e6")) * fuzzing.SHARES[reader])

    found = fuzzing.run(reader, random.SystemRandom().randrange(2**40), inputs, real=recorded.parent)

    assert found.defects == []
    assert found.inputs == inputs
    assert found.peak_bytes < fuzzing.MAX_BYTES
    assert found.slowest_s < fuzzing.MAX_S


JSON = b'{"a": [1, 2, {"b": null}], "c": "te\\"x,]t", "d": {"e": -1.5e3}}\n{"f": []}\n3\n'


def test_the_values_of_a_text_are_those_that_json_finds() -> None:
    found = [json.loads(JSON[value.start : value.end]) for value in mutations.values_of(JSON)]
    first = {"a": [1, 2, {"b": None}], "c": 'te"x,]t', "d": {"e": -1500}}
    named = [JSON[value.member : value.end] for value in mutations.values_of(JSON) if not value.is_element]

    assert found == [1, 2, None, {"b": None}, first["a"], first["c"], -1500, first["d"], first, [], {"f": []}, 3]
    assert named[0] == b'"b": null'
    assert named[-1] == b'"f": []'


def test_a_number_makes_the_same_file_again() -> None:
    mutate = mutations.json_mutator(JSON)
    made = [mutate(random.Random(seed)) for seed in range(50)]

    assert made == [mutate(random.Random(seed)) for seed in range(50)]
    assert len(set(made)) > 40


def test_half_of_mutated_json_is_json_with_other_values() -> None:
    text = json.dumps({"a": [{"b": n, "c": str(n)} for n in range(20)]}).encode()
    mutate = mutations.json_mutator(text)
    valid = 0
    for seed in range(400):
        with contextlib.suppress(ValueError):
            valid += json.loads(mutate(random.Random(seed))) != json.loads(text)

    assert valid > 200


def test_an_error_of_a_reader_is_reported_once_for_its_place_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(fuzzing.Reader):
        def one(self, number: int) -> None:
            if number >= 7:
                raise KeyError("x")

    monkeypatch.setitem(fuzzing.READERS, "broken", Broken)

    found = fuzzing.work("broken", 0, 10, 60)

    assert (found.inputs, len(found.defects)) == (10, 1)
    assert found.defects[0].startswith("broken 7: Traceback")


BREAKING = """
    import os, sys
    from perfkit.errors import UsageError
    from tests.hostile import fuzzing

    class Breaking(fuzzing.Reader):
        def one(self, number):
            if number == 1:
                raise UsageError("it must be another file")
            if number == 3:
                os.abort()
            if number == 5:
                sum(range(10**12))  # no Python runs meanwhile
            if number == 7:
                try:
                    while True:
                        pass
                except Exception:
                    pass
            if number == 9:
                b"x" * 10**8
            if number == 11:
                os.read(os.pipe()[0], 1)

    fuzzing.READERS["breaking"] = Breaking
    fuzzing.MAX_S = 1
    fuzzing.MAX_BYTES = fuzzing.peak_bytes() + 5 * 10**7
    sys.exit(fuzzing.main())
"""


@pytest.mark.slow  # each of them ends a process that imported the readers
def test_inputs_that_crash_hang_or_take_memory_are_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "breaking.py"
    program.write_text(textwrap.dedent(BREAKING))
    monkeypatch.setattr(fuzzing, "MAX_STUCK_S", 5)
    monkeypatch.setattr(fuzzing, "MAX_WAIT_S", 5)
    assert b"x" * (4 * 10**8)  # more than a reader may take; this process's memory is not theirs

    found = fuzzing.run("breaking", 0, 14, program=program)

    assert found.inputs == 14
    named: dict[str, str] = {}
    for defect in found.defects:
        number = defect.partition(":")[0]
        named[number] = named.get(number, "") + defect
    assert list(named) == ["breaking 3", "breaking 5", "breaking 7", "breaking 9", "breaking 11"]
    assert named["breaking 3"].startswith("breaking 3: the process ended with -6")
    assert named["breaking 5"].startswith("breaking 5: it was ended after")
    assert named["breaking 7"].startswith("breaking 7: Traceback")
    assert "TookTooLong" in named["breaking 7"]
    assert named["breaking 9"].endswith("MiB of memory")
    assert named["breaking 11"].startswith("breaking 11: it was ended after 0 s of processor time")
