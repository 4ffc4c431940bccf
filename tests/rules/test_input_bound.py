"""input-bound: the wait for data, its cost, and the line behind it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.measures.results.host import SourceLine, SourceLines
from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.rules.data import input_bound
from perfkit.run.records import SHARED, LineRow, Lines, NumpyDraw, TracedLine, Workers

MS = 1_000_000


def line(number: int, function: str, ms: float, owner: str = "user", phase: Any = "data") -> LineRow:
    return LineRow(
        file="train.py", line=number, function=function, owner=owner, phase=phase, samples=9, host_ns=round(ms * MS)
    )


def test_a_step_that_waits_for_data_is_input_bound(build: Any) -> None:
    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), build.rank())

    assert finding.severity == "critical"
    assert finding.cost_ns == pytest.approx(60 * MS, rel=0.01)
    assert "60.0 ms of the 100 ms step" in finding.message
    assert "num_workers=4" in finding.advice


def test_a_loader_without_workers_that_costs_little_is_no_finding(build: Any) -> None:
    assert build.findings(input_bound, build.step(100, data=3, forward=97), build.rank(workers=0)) == []


def test_a_step_whose_data_phase_is_unknown_is_no_finding(build: Any) -> None:
    assert build.findings(input_bound, build.step(100, other=100)) == []
    assert build.findings(input_bound) == []


def test_the_line_is_the_hottest_one_of_the_function_that_takes_most(build: Any) -> None:
    rows = (
        line(5, "open", 20),
        line(31, "Reviews.__getitem__", 14),
        line(32, "Reviews.__getitem__", 15),
        line(90, "collate", 40, owner="torch"),
        line(70, "Model.forward", 99, phase="forward"),
    )

    [finding] = build.findings(
        input_bound, build.step(100, data=60, forward=40), Lines(period_ns=MS, steps=40, rows=rows)
    )

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("train.py", 32, "Reviews.__getitem__")


def test_a_draw_that_adds_up_all_weights_for_each_sample_is_what_to_change(build: Any) -> None:
    draw = NumpyDraw(file="train.py", line=8, function="Noisy.__getitem__", owner="user", permutes=False)
    lines = Lines(period_ns=MS, steps=40, rows=(line(8, "Noisy.__getitem__", 300),), numpy_draws=(draw,))

    [finding] = build.findings(input_bound, build.step(20, data=15, forward=5), build.rank(cpus=4), lines)

    assert (finding.spent.line, finding.change, finding.edit) == (8, None, None)
    assert finding.advice.startswith("choice(p=...) adds up all weights in each call: draw for a whole batch at once")


def test_with_few_samples_the_line_comes_from_the_step_that_saw_every_line(build: Any) -> None:
    places = (("train", 149, 1), ("Reviews.__getitem__", 31, 49))  # function, line, ms of its own
    traced = tuple(
        TracedLine(file="train.py", line=at, function=name, owner="user", phase="data", runs=1, host_ns=50 * MS)
        for name, at, _ in places
    )
    known = SourceLines(
        source="window",
        steps=1,
        wall_ns=100 * MS,
        exact=1,
        function_only=0,
        lines=tuple(
            SourceLine(file="train.py", line=at, first_line=at, function=name, owner="user", self_ns=own * MS)
            for name, at, own in places
        ),
    )
    for samples, expected in ((3, 31), (30, 149)):
        on_the_loop = LineRow(
            file="train.py",
            line=149,
            function="train",
            owner="user",
            phase="data",
            samples=samples,
            host_ns=9 * MS,
        )
        lines = Lines(period_ns=MS, steps=40, rows=(on_the_loop,), traced=traced)

        [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), lines, known)

        assert finding.spent.line == expected


def test_a_line_without_samples_is_reported_where_the_step_for_lines_saw_most_of_its_function(build: Any) -> None:
    # torch.tensor(...) in line 35 releases the interpreter's lock; the loop in line 34 never does.
    traced = tuple(
        TracedLine(file="train.py", line=at, function="features", owner="user", phase="data", runs=9, host_ns=MS)
        for at in (34, 35)
    )
    known = SourceLines(
        source="window",
        steps=1,
        wall_ns=100 * MS,
        exact=1,
        function_only=0,
        lines=tuple(
            SourceLine(file="train.py", line=at, first_line=30, function="features", owner="user", self_ns=own * MS)
            for at, own in ((34, 50), (35, 3))
        ),
    )
    sampled = msgspec.structs.replace(line(35, "features", 10), samples=40)
    lines = Lines(period_ns=MS, steps=40, rows=(sampled,), traced=traced)

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), lines, known)

    assert finding.spent.line == 34


def test_a_stray_sample_of_the_next_line_does_not_make_it_the_line_that_waits(build: Any) -> None:
    def sampled(at: int, samples: int) -> LineRow:
        return LineRow(
            file="train.py", line=at, function="main", owner="user", phase="data", samples=samples, host_ns=samples * MS
        )

    known = SourceLines(
        source="window",
        steps=1,
        wall_ns=1,
        exact=1,
        function_only=0,
        lines=tuple(
            SourceLine(file="train.py", line=at, first_line=1, function="main", owner="user", self_ns=own * MS)
            for at, own in ((31, 4), (34, 8))
        ),
    )
    lines = Lines(period_ns=MS, steps=40, rows=(sampled(31, 75), sampled(34, 1)))

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), lines, known)

    assert finding.spent.line == 31


def test_workers_that_share_the_processor_with_training_save_less(build: Any) -> None:
    step = build.step(100, data=60, forward=40)
    [alone] = build.findings(input_bound, step, build.rank(cpus=8, threads=1))
    [shared] = build.findings(input_bound, step, build.rank(cpus=2, threads=2))

    # Alone: max(40, 60 / 4) ms remain. Shared: one worker, and (60 + 2 x 40) / 2 = 70 ms remain.
    # Added: 1.3 ms for handing over, 40 / 4 ms for the processor that both use.
    assert alone.saving_low_ns == round((100 - 40 - 1.3 - 10) * MS)
    assert "would hide" not in alone.message
    # That is less than two thirds of the cost, so the work has to become less.
    assert "workers alone would hide 18.7 ms" in shared.message
    assert shared.saving_low_ns == round(59.9 * MS * 2 / 3)


def test_workers_that_wait_for_a_store_share_no_processor_with_training(build: Any) -> None:
    step = build.step(100, data=60, forward=40)
    fetch = msgspec.structs.replace(line(10, "Remote.__getitem__", 60), waiting={"": 8})

    [finding] = build.findings(
        input_bound, step, build.rank(cpus=2, threads=2), Lines(period_ns=MS, steps=40, rows=(fetch,))
    )

    assert finding.saving_low_ns == round((60 - 1.3) * MS)
    assert "num_workers=4" in finding.advice
    assert "would hide" not in finding.message


def test_workers_that_ask_a_manager_are_changed_where_the_program_makes_it(build: Any) -> None:
    made = Location(file="train.py", line=31, function="Manager(...)")
    facts = build.rank(workers=2, calls={"Manager": (made,)})
    fetch = msgspec.structs.replace(line(10, "Reviews.__getitem__", 60), worker="Reviews")

    def change(samples: int) -> Any:
        row = msgspec.structs.replace(fetch, within={SHARED: samples, "": fetch.samples - samples})
        lines = Lines(period_ns=MS, steps=40, rows=(row,))
        [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), facts, lines)
        return finding.change

    assert change(fetch.samples) == made
    assert change(0) != made


def test_objects_of_a_manager_that_the_training_process_asks_for_are_no_reason_for_workers(build: Any) -> None:
    made = Location(file="train.py", line=31, function="Manager(...)")
    step, facts = build.step(100, data=60, forward=40), build.rank(workers=0, calls={"Manager": (made,)})

    def found(within: str) -> Any:
        row = line(10, "Scans.__getitem__", 60)
        row = msgspec.structs.replace(row, within={within: row.samples})
        [finding] = build.findings(input_bound, step, facts, Lines(period_ns=MS, steps=40, rows=(row,)))
        return finding

    asks, waits = found("python > multiprocessing"), found("torch.utils.data > multiprocessing")
    assert (asks.change, asks.edit) == (made, None)
    assert asks.advice.startswith("Keep the objects in the process that reads them")
    assert waits.change != made


def test_no_more_workers_are_set_where_those_there_are_wait_for_a_manager(build: Any) -> None:
    made = Location(file="train.py", line=31, function="Manager(...)")
    fetch = msgspec.structs.replace(line(10, "Reviews.__getitem__", 60), worker="Reviews", within={SHARED: 60})
    lines = Lines(period_ns=MS, steps=40, rows=(fetch,))

    [finding] = build.findings(
        input_bound, build.step(100, data=60, forward=40), build.rank(workers=1, calls={"Manager": (made,)}), lines
    )

    assert (finding.change, finding.edit) == (made, None)
    assert "would hide" not in finding.message


def test_workers_are_not_advised_where_they_would_hide_nothing(build: Any) -> None:
    step = build.step(100, data=30, forward=70)

    [finding] = build.findings(input_bound, step, build.rank(cpus=2, threads=2))

    # (30 + 2 x 70) / 2 = 85 ms would remain, 70 / 4 ms more for the processor that both use, and the handover.
    assert "workers alone" not in finding.message
    assert "num_workers" not in finding.advice
    assert finding.saving_high_ns > 0


def test_workers_that_exist_already_have_a_minimum_saving_of_zero(build: Any) -> None:
    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), build.rank(workers=2))

    assert finding.saving_low_ns == 0
    assert finding.message.endswith("although batches are prepared by 2 workers.")
    assert finding.advice == (
        "Raise num_workers from 2 to 4, persistent_workers=True, and do per-sample work once, before training."
    )


def test_without_rows_of_steps_the_wait_comes_from_the_trace(build: Any) -> None:
    [finding] = build.findings(input_bound, build.traced_step(200, source="trace, 5 steps", data=100, forward=100))

    assert finding.confidence == "medium"
    assert finding.evidence[0].source == "trace, 5 steps"


def test_without_phases_the_wait_is_the_idle_time_while_loading(build: Any) -> None:
    device = build.device(1000, compute=400, causes={"data loading": 500, "python": 100})

    [finding] = build.findings(input_bound, device)

    assert finding.cost_ns == pytest.approx(500 * MS, rel=0.01)


def test_a_wait_in_which_the_device_is_busy_costs_nothing(build: Any) -> None:
    busy = build.device(1000, compute=990, causes={"data loading": 10})

    assert build.findings(input_bound, build.step(100, data=60, forward=40), busy) == []


def in_worker(number: int, function: str, ms: float) -> LineRow:
    return LineRow(
        file="train.py",
        line=number,
        function=function,
        owner="user",
        phase="data",
        samples=9,
        host_ns=round(ms * MS),
        worker="Reviews",
    )


def test_with_workers_the_line_is_the_one_that_is_hot_inside_them(build: Any) -> None:
    workers = Workers(dataset="Reviews", processes=4, samples=900, alive_ns=100 * MS, busy_ns=90 * MS, cpu_ns=45 * MS)
    rows = (line(90, "main", 58), in_worker(8, "Reviews.__getitem__", 200), in_worker(9, "Reviews.__getitem__", 3))
    lines = Lines(period_ns=MS, steps=40, rows=rows, workers=(workers,))

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), build.rank(workers=4), lines)

    assert (finding.spent.line, finding.spent.function) == (8, "Reviews.__getitem__")
    assert "the work of Reviews.__getitem__" in finding.advice
    evidence = {item.name: item.value for item in finding.evidence}
    assert (evidence["workers at work"], evidence["of that on a CPU"]) == (90.0, 50.0)


@pytest.mark.parametrize(("busy", "waits", "severity"), [(40, 10, "info"), (90, 30, "warning"), (40, 60, "critical")])
def test_a_short_wait_for_workers_that_have_time_to_spare_is_no_problem(
    build: Any, busy: int, waits: int, severity: str
) -> None:
    workers = Workers(
        dataset="Reviews", processes=1, samples=99, alive_ns=100 * MS, busy_ns=busy * MS, cpu_ns=busy * MS
    )
    lines = Lines(period_ns=MS, steps=40, workers=(workers,))
    step = build.step(100, data=waits, forward=100 - waits)

    [finding] = build.findings(input_bound, step, build.rank(workers=1), lines)

    assert finding.severity == severity
    assert ("time to spare" in finding.message) is (severity == "info")


@pytest.mark.parametrize("busy", [90, 40])
def test_workers_that_do_not_keep_up_cost_the_cores_that_training_waits_for(build: Any, busy: int) -> None:
    # Of two cores training uses 0.4 and each of two workers 0.5: others have 0.6 at most. It waits for 40% of the step.
    workers = Workers(
        dataset="Reviews", processes=2, samples=99, alive_ns=200 * MS, busy_ns=2 * busy * MS, cpu_ns=100 * MS
    )
    lines = Lines(period_ns=MS, steps=40, workers=(workers,))
    rank = build.rank(workers=2, cpus=2, core_wait_share=0.4, thread_ns_per_step=40 * MS)

    [finding] = build.findings(input_bound, build.step(100, data=12, forward=88), rank, lines)

    expected = 11.9 + 100 * 0.4 * 1.0 / (1.0 + 0.6) if busy == 90 else 11.9
    assert finding.cost_ns == pytest.approx(expected * MS, rel=0.01)
    assert ("for cores that these use" in finding.message) is (busy == 90)


def test_lines_of_another_loaders_workers_are_not_reported(build: Any) -> None:
    rows = (line(31, "Reviews.__getitem__", 40), in_worker(8, "Validation.__getitem__", 200))
    lines = Lines(period_ns=MS, steps=40, rows=rows)

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), build.rank(workers=0), lines)

    assert finding.spent.line == 31


def started_anew(build: Any, usual: Any, every: Any) -> Finding:
    """The finding in a run whose one worker is started in each of 16 epochs: a typical step, and the mean of all."""
    workers = Workers(
        dataset="Reviews", processes=16, samples=300, alive_ns=8_000 * MS, busy_ns=200 * MS, cpu_ns=400 * MS
    )
    lines = Lines(period_ns=MS, steps=40, workers=(workers,))
    [finding] = build.findings(input_bound, usual, every, build.rank(workers=1), lines)
    return finding


def test_workers_that_start_in_every_epoch_should_stay(build: Any) -> None:
    usual, every = build.step(20, data=1, forward=19), build.mean_step(30, data=11, forward=19)

    finding = started_anew(build, usual, every)

    assert "workers that were started 16 times" in finding.message
    assert "persistent_workers=True" in (finding.advice or "")
    assert (finding.saving_low_ns, finding.saving_high_ns) == (round(10.9 * MS * 2 / 3), round(1.15 * 10.9 * MS))


def test_workers_of_loaders_that_are_made_anew_cannot_stay(build: Any) -> None:
    workers = Workers(
        dataset="Reviews", processes=16, samples=300, alive_ns=8_000 * MS, busy_ns=200 * MS, cpu_ns=400 * MS
    )
    rank = build.rank(workers=1)
    rank = msgspec.structs.replace(rank, loaders=(msgspec.structs.replace(rank.loaders[0], iterators=1),))
    usual, every = build.step(20, data=1, forward=19), build.mean_step(30, data=11, forward=19)

    [finding] = build.findings(input_bound, usual, every, rank, Lines(period_ns=MS, steps=40, workers=(workers,)))

    assert "Make the DataLoader once" in (finding.advice or "")
    assert "persistent_workers" not in (finding.advice or "")


def test_workers_that_start_slow_the_steps_meanwhile_too(build: Any) -> None:
    usual, every = build.step(20, data=1, forward=19), build.mean_step(40, data=11, forward=29)

    finding = started_anew(build, usual, every)

    # A usual step takes 20 ms, the mean one 40.
    assert finding.cost_ns == 20 * MS
    assert "Waiting for data takes 11.0 ms of the 40.0 ms step" in finding.message


def test_workers_of_each_epoch_that_are_busy_should_stay_where_its_first_batch_is_the_late_one(build: Any) -> None:
    workers = Workers(
        dataset="Reviews", processes=8, samples=300, alive_ns=1_000 * MS, busy_ns=900 * MS, cpu_ns=900 * MS
    )
    lines = Lines(period_ns=MS, steps=40, workers=(workers,))
    loader = msgspec.structs.replace(build.rank(workers=1).loaders[0], batches=12, iterators=8)
    rank = msgspec.structs.replace(build.rank(workers=1), loaders=(loader,))
    step, every = build.step(50, data=1, forward=49), build.mean_step(64, data=9, forward=49)

    def advice(period: int) -> str:
        late = LoopPart(use="rare", total_ns=800 * MS, steps=6, every=period, phase="data")
        typical = LoopPart(use="typical", total_ns=4000 * MS, steps=80)
        loop = LoopTime(total_ns=4800 * MS, steps=80, typical_ns=50 * MS, parts=(typical, late))
        [finding] = build.findings(input_bound, step, every, rank, lines, loop)
        return str(finding.advice)

    assert "persistent_workers=True" in advice(12)
    assert "Keep the workers" not in advice(5)


def test_batches_that_are_late_in_a_rhythm_count_with_what_they_take_in_the_mean_step(build: Any) -> None:
    late = LoopPart(use="rare", total_ns=2000 * MS, steps=10, every=6, phase="data")
    typical = LoopPart(use="typical", total_ns=6000 * MS, steps=60)
    loop = LoopTime(total_ns=8000 * MS, steps=60, typical_ns=100 * MS, parts=(typical, late))
    step, every = build.step(100, data=3, forward=97), build.mean_step(133, data=36, forward=97)

    [finding] = build.findings(input_bound, step, every, build.rank(), loop)

    assert finding.message.startswith("Waiting for data takes 36.0 ms of the 133 ms")
    assert finding.severity == "warning"
    [few] = build.findings(input_bound, step, build.mean_step(133, data=19, forward=114), build.rank(), loop)
    assert few.severity == "info"
    assert not build.findings(input_bound, step, every, build.rank())


def test_a_batch_that_costs_less_than_a_handover_is_for_information(build: Any) -> None:
    rank = build.rank(cpus=2, threads=1, workers=0)
    [cheap] = build.findings(input_bound, build.step(10, data=0.8, forward=9.2), rank)
    [expensive] = build.findings(input_bound, build.step(10, data=3, forward=7), rank)

    assert (cheap.severity, cheap.saving_low_ns) == ("info", 0)
    assert "less than handing one over" in (cheap.advice or "")
    assert expensive.severity == "critical"


@pytest.mark.parametrize(("busy", "samples", "advised"), [(2, 99, True), (40, 99, False), (2, 9, False)])
def test_workers_are_advised_against_where_they_make_a_batch_faster_than_they_hand_it_over(
    build: Any, busy: int, samples: int, advised: bool
) -> None:
    workers = Workers(
        dataset="Reviews", processes=1, samples=samples, alive_ns=100 * MS, busy_ns=busy * MS, cpu_ns=busy * MS
    )
    step, lines = build.step(5, data=1.5, forward=3.5), Lines(period_ns=MS, steps=40, workers=(workers,))

    [finding] = build.findings(input_bound, step, build.rank(workers=1, cpus=2), lines)

    assert ("num_workers=0" in (finding.advice or "")) is advised
    assert ("a worker makes a batch in 100 µs" in finding.message) is advised
    if advised:
        assert finding.cost_ns == pytest.approx(1.4 * MS, rel=0.01)
        assert finding.saving_low_ns == 0


def test_workers_that_wait_themselves_can_wait_at_the_same_time(build: Any) -> None:
    workers = Workers(
        dataset="Reviews", processes=1, samples=300, alive_ns=3_000 * MS, busy_ns=2_900 * MS, cpu_ns=100 * MS
    )
    lines = Lines(period_ns=MS, steps=40, workers=(workers,))
    step = build.step(30, data=25, forward=5)

    [finding] = build.findings(input_bound, step, build.rank(workers=1, cpus=2), lines)

    # A quarter of the step each, and 1.3 ms for handing a batch over.
    assert finding.saving_low_ns == round((30 - 7.5 - 1.3 - 5 / 4) * MS)
    assert "from 1 to 4" in (finding.advice or "")


def test_a_new_iterator_for_each_batch_is_the_cause_and_its_line_the_place(build: Any) -> None:
    def rank(**facts: Any) -> Any:
        loader = msgspec.structs.replace(build.rank().loaders[0], **facts)
        return build.rank(loaders=(loader,))

    def sampled(library: str) -> Lines:
        row = msgspec.structs.replace(line(26, "main", 60), within={library: 9})
        return Lines(period_ns=MS, steps=40, rows=(row,))

    lines = sampled("torch.utils.data")
    step = build.step(100, data=60, forward=40)

    [found] = build.findings(input_bound, step, rank(batches=3000, iterators=40), lines)
    by_epoch = build.findings(input_bound, step, rank(batches=20, iterators=2), lines)
    whole_dataset = build.findings(input_bound, step, rank(batches=1, iterators=40), lines)

    assert "new iterator" in found.message
    assert "batches = iter(loader)" in found.advice
    assert (found.spent.line, found.change) == (26, None)  # one line is both
    slow_dataset = build.findings(input_bound, step, rank(batches=3000, iterators=40), sampled("PIL"))
    assert not [one for one in (*by_epoch, *whole_dataset, *slow_dataset) if "iterator" in one.message]


def test_of_two_loaders_the_one_with_a_new_iterator_for_each_batch_is_the_cause(build: Any) -> None:
    first = msgspec.structs.replace(build.rank().loaders[0], batches=40, iterators=2)
    second = msgspec.structs.replace(first, dataset="Unlabelled", batches=3000, iterators=40)
    row = msgspec.structs.replace(line(26, "main", 60), within={"torch.utils.data": 9})
    lines = Lines(period_ns=MS, steps=40, rows=(row,))

    [found] = build.findings(
        input_bound, build.step(100, data=60, forward=40), build.rank(loaders=(first, second)), lines
    )

    assert "new iterator" in found.message


def test_an_array_of_an_npz_file_is_to_be_read_once_in_the_line_that_reads_it(build: Any) -> None:
    reads = msgspec.structs.replace(line(60, "__getitem__", 90), within={"numpy > zipfile": 8, "numpy": 1})
    lines = Lines(period_ns=MS, steps=10, rows=(reads,))
    step = build.step(60, data=40, forward=20)

    [finding] = build.findings(input_bound, step, build.rank(workers=0), lines)

    assert (finding.spent.line, finding.change, finding.edit) == (60, None, None)
    assert finding.advice.startswith("Read the arrays of the .npz file once")


def fetched(maker: Location | None, **objects: int) -> Lines:
    """Samples of the loop's line, in which a loader fetched from a library's dataset."""
    row = msgspec.structs.replace(
        line(60, "main", 30), samples=40, within={"torch.utils.data > graphs": 40}, objects=objects
    )
    makers = {(maker.function or "").removesuffix("(...)"): maker} if maker is not None else {}
    return Lines(period_ns=MS, steps=10, rows=(row,), makers=makers)


def test_a_librarys_transform_is_named_and_changed_where_the_program_makes_it(build: Any) -> None:
    made = Location(file="train.py", line=12, function="WalkEncoding(...)")
    step, rank = build.step(100, data=30, forward=70), build.rank(cpus=2, threads=2)

    [finding] = build.findings(input_bound, step, rank, fetched(made, Molecules=40, WalkEncoding=35))
    [seldom] = build.findings(input_bound, step, rank, fetched(made, Molecules=40, WalkEncoding=20))
    [unknown] = build.findings(input_bound, step, rank, fetched(None, Molecules=40, WalkEncoding=35))

    assert (finding.spent.line, finding.change) == (60, made)
    assert "WalkEncoding runs in the training process" in finding.message
    assert "Do the work of WalkEncoding once" in finding.advice
    for other in (seldom, unknown):
        assert other.change != made
        assert "main runs in the training process" in other.message
