"""Each change saves on a made trace what it must by the trace's construction; times in µs."""

from __future__ import annotations

import pytest
from trace_timeline import ADD, GEMM_BF16, Timeline, shaped

from perfkit.replay.transforms import find_transforms, without_words
from perfkit.replay.what_if import what_if

US = 1_000


def loading(line: Timeline, lasts: float) -> None:
    with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        line.spend(lasts)


def test_every_file_of_a_family_is_a_change() -> None:
    assert set(find_transforms()) == {
        *("hide-loader", "sync", "launch-overhead", "copy-waits", "exposed-communication", "bandwidth", "rank-waits"),
        *("scale", "fuse"),
    }
    assert set(without_words()) == {"sync", "launch-overhead", "copy-waits", "exposed-communication", "rank-waits"}


def test_a_hidden_loader_leaves_the_rest_where_the_host_waits_for_the_device(made) -> None:
    def step(line: Timeline) -> None:
        loading(line, 2_000)
        line.run(GEMM_BF16, 1_000)
        line.read()

    answer = made.ask(step, hide_loader=True)

    # Loading, a launch, the kernel and its copy, and the waits between them; loading goes.
    assert answer.low_ns == pytest.approx(answer.step_ns - 2_000 * US, rel=0.01)
    assert answer.low_ns < answer.high_ns < answer.step_ns
    assert answer.bottleneck.startswith("kernels")


def test_a_loader_behind_a_busy_device_saves_nothing(made) -> None:
    def step(line: Timeline) -> None:
        loading(line, 500)
        for _ in range(10):
            line.run(GEMM_BF16, 200)

    answer = made.ask(step, hide_loader=True)

    # Of the first step's, during which the device had nothing to do yet, a fifth is a step's share.
    assert answer.step_ns - answer.low_ns <= 1.1 * 500 * US / 5


def test_workers_that_do_not_keep_up_are_the_step(made) -> None:
    def step(line: Timeline) -> None:
        loading(line, 3_000)
        line.run(GEMM_BF16, 500)
        line.read()

    two, many = made.ask(step, hide_loader=2), made.ask(step, hide_loader=16)

    assert two.low_ns == pytest.approx(1_500 * US, rel=0.01)
    assert many.low_ns == pytest.approx(made.ask(step, hide_loader=True).low_ns)


def test_without_its_sync_the_host_runs_ahead_and_the_device_has_no_gap(made) -> None:
    def step(line: Timeline) -> None:
        for _ in range(2):
            line.run(GEMM_BF16, 500)
            line.read()
            line.spend(500)

    answer = made.ask(step, count=20, without=["sync"])

    # Two halves of the host are 2 x 500, of the device 2 x 500: one hides the other.
    assert answer.step_ns == pytest.approx(2_020 * US, rel=0.02)
    assert answer.low_ns == pytest.approx(1_020 * US, rel=0.06)


def test_a_sync_at_the_end_of_a_busy_device_saves_no_more_than_what_it_empties(made) -> None:
    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 300)
        line.read()

    answer = made.ask(step, without=["sync"])

    assert answer.step_ns - answer.low_ns <= 30 * US


def test_asynchronous_copies_let_the_host_go_on(made) -> None:
    def step(line: Timeline) -> None:
        line.copy("HtoD", 1_000, 1 << 24, memory="Pageable")
        line.spend(800)
        line.run(GEMM_BF16, 1_000)

    answer = made.ask(step, count=20, without=["copy-waits"])

    # 1,000 of the copy, 800 of the host, and the kernel beside the next step's copy at best.
    assert answer.low_ns == pytest.approx(1_000 * US, rel=0.1)
    assert answer.low_ns < answer.high_ns <= answer.step_ns


def test_a_kernel_twice_as_fast_halves_a_busy_device_and_not_an_idle_one(made) -> None:
    def busy(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 200)

    def idle(line: Timeline) -> None:
        line.run(GEMM_BF16, 200, host=10)
        line.spend(5_000)

    fast = made.ask(busy, scale={"*gemm*": 0.5})
    late = made.ask(idle, scale={"*gemm*": 0.5})

    assert fast.low_ns == pytest.approx(fast.step_ns / 2, rel=0.02)
    assert late.low_ns == pytest.approx(late.step_ns, rel=0.01)


def test_an_op_is_scaled_with_what_it_launches_and_a_range_with_its_backward(made) -> None:
    def step(line: Timeline) -> None:
        first, second = ({"Sequence number": 2 * line.number + node} for node in (5, 6))
        with line.range("block"):
            line.spend(1)
            line.run(GEMM_BF16, 100, given=first)
        line.run(GEMM_BF16, 100, op="aten::bmm", given=second)
        with line.range("autograd::engine::evaluate_function: BmmBackward0", "cpu_op", **second):
            line.run(ADD, 100, op="aten::bmm")
        with line.range("autograd::engine::evaluate_function: MmBackward0", "cpu_op", **first):
            line.run(ADD, 100, op="aten::mm")

    now = made.ask(step).step_ns
    of_op = made.ask(step, scale={"aten::bmm": 0})
    of_range = made.ask(step, scale={"block": 0})

    assert of_op.low_ns == pytest.approx(now - 200 * US, rel=0.05)
    assert of_range.low_ns == pytest.approx(now - 200 * US, rel=0.05)


def test_the_backward_of_a_range_is_found_where_its_nodes_hold_ops_with_their_numbers(made) -> None:
    def step(line: Timeline) -> None:
        number = {"Sequence number": line.number + 5}
        with line.range("block"):
            line.spend(1)
            line.op("aten::mm", 100, **number)
        line.op("aten::add", 50)
        with line.range("autograd::engine::evaluate_function: MmBackward0", "cpu_op", **number):
            line.spend(1)
            with line.range("MmBackward0", "cpu_op", **number):
                line.op("aten::mm", 200)
            line.spend(1)

    path = made.line(device=None).steps(step).write()
    now = what_if(path).step_ns

    assert now - what_if(path, scale={"block": 0}).ideal_ns == pytest.approx(300 * US, rel=0.03)


def test_the_backward_of_a_fused_range_is_fused_too(made) -> None:
    def step(line: Timeline) -> None:
        numbers = [{"Sequence number": 20 * line.number + 5 + k} for k in range(20)]
        with line.range("block"):
            for number in numbers:
                line.op("aten::mul", 10, **number)
        line.op("aten::mm", 500)
        for number in reversed(numbers):
            with line.range("autograd::engine::evaluate_function: MulBackward0", "cpu_op", **number):
                line.op("aten::mul", 20)

    path = made.line(device=None).steps(step).write()
    now = what_if(path).step_ns

    # 20 times 10 become one of 10, and 20 times 20 of the backward one of 20.
    assert now - what_if(path, fuse=["block"]).ideal_ns == pytest.approx(570 * US, rel=0.03)


def test_a_step_that_another_program_interrupted_does_not_change_what_an_op_saves_on_a_cpu(made) -> None:
    def step(line: Timeline) -> None:
        line.op("aten::mm", 100_000 if line.number == 2 else 400)
        line.op("aten::add", 600)

    path = made.line(device=None).steps(step, count=4).write()
    answer = what_if(path, scale={"aten::mm": 0})

    assert answer.step_ns - answer.ideal_ns == pytest.approx(400 * US, rel=0.05)


def test_a_slower_op_makes_the_step_longer(made) -> None:
    answer = made.ask(lambda line: line.run(GEMM_BF16, 1_000), scale={"aten::mm": 3})

    assert answer.low_ns >= 2.5 * answer.step_ns
    assert "longer" in repr(answer)


def test_a_fused_run_is_one_launch_and_one_kernel(made) -> None:
    def step(line: Timeline) -> None:
        with line.range("norm"):
            line.spend(1)
            for _ in range(20):
                line.run(ADD, 5, op="aten::add", host=40, given=shaped([64, 64]))
        line.read()

    answer = made.ask(step, fuse=["norm"])

    # 20 ops of 40 become one, and the last kernel and the sync stay.
    assert answer.low_ns == pytest.approx(answer.step_ns - 19 * 40 * US, rel=0.1)
    assert answer.low_ns < answer.high_ns < answer.step_ns


def test_ops_in_a_row_are_fused_and_others_part_them(made) -> None:
    def step(line: Timeline) -> None:
        for _ in range(2):
            for _ in range(8):
                line.run(ADD, 50, op="aten::add", host=4)
            line.run(GEMM_BF16, 50, host=4)

    answer = made.ask(step, fuse=["aten::add"])

    # Two runs of eight become two kernels: of 18 kernels four are left.
    assert answer.low_ns == pytest.approx(answer.step_ns * 4 / 18, rel=0.1)


def test_launches_that_cost_nothing_leave_the_kernels(made) -> None:
    def step(line: Timeline) -> None:
        for _ in range(50):
            line.run(ADD, 5, op="aten::add", host=20)

    answer = made.ask(step, without=["launch-overhead"])

    assert answer.step_ns == pytest.approx(50 * 20 * US, rel=0.05)
    assert answer.low_ns <= 1.25 * 50 * 5 * US


def exposed(line: Timeline) -> None:
    line.run(GEMM_BF16, 400)
    line.all_reduce(600, elements=1 << 20)
    line.join()
    line.run(ADD, 400, op="aten::add_")


def test_an_overlapped_collective_takes_no_time_of_the_step(made) -> None:
    answer = made.ask(exposed, count=20, without=["exposed-communication"])

    assert answer.step_ns == pytest.approx(1_405 * US, rel=0.02)
    assert answer.low_ns == pytest.approx(805 * US, rel=0.06)
    assert answer.low_ns < answer.high_ns < answer.step_ns


def test_twice_the_bandwidth_halves_the_collective(made) -> None:
    answer = made.ask(exposed, bandwidth=2)

    assert answer.low_ns == pytest.approx(answer.step_ns - 300 * US, rel=0.02)


def test_waiting_for_other_ranks_is_what_a_collective_takes_beyond_the_fastest(made) -> None:
    def step(line: Timeline) -> None:
        late = 500 if line.number % 2 else 0
        line.run(GEMM_BF16, 400)
        line.all_reduce(100 + late, elements=1 << 20)
        line.join()

    answer = made.ask(step, count=10, without=["rank-waits"])

    assert answer.step_ns - answer.low_ns == pytest.approx(250 * US, rel=0.4)


def test_changes_add_up_to_no_more_than_the_longest_chain_allows(made) -> None:
    def step(line: Timeline) -> None:
        loading(line, 1_000)
        line.run(GEMM_BF16, 700)
        line.read()
        line.spend(900)

    both = made.ask(step, count=20, hide_loader=True, without=["sync"])

    assert both.low_ns == pytest.approx(900 * US, rel=0.07)
    assert len(both.changes) == 2
