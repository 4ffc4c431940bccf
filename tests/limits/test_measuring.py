"""What was measured here is physical: as fast as torch when timed directly, faster in caches, and no op beats it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch

from perfkit import _env
from perfkit.limits import measuring
from perfkit.limits.measuring import measure_limits
from perfkit.run.records import (
    ACCESSES,
    FUNCTION_FLOPS,
    FUNCTIONS,
    LAYERS,
    PROBED_COPY,
    PROBED_FUNCTION,
    PROBED_PRODUCT,
    MachineLimits,
    OpKind,
)

#: Name, call, FLOPs, bytes and kind.
Op = tuple[str, Callable[[], Any], int, int, OpKind]
#: Other programs slow either side of a comparison; no measurement is that far off by itself.
NOISE = 1.6


@pytest.fixture(scope="module")
def limits() -> MachineLimits:
    """Of one thread, which other programs disturb least."""
    return measure_limits(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def best_ns(run: Callable[[], Any], seconds: float = 0.1) -> float:
    """The shortest of many runs, in time of this thread: other programs do not count."""
    run()
    end, best = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < end:
        begin = time.thread_time()
        run()
        best = min(best, time.thread_time() - begin)
    return best * 1e9


def test_every_part_was_measured(limits: MachineLimits) -> None:
    assert [*limits.products] == ["float32", "float64", "bfloat16", "float16"]
    assert "float32" in limits.convolutions
    assert [at.size for at in limits.depths["float32"]] == [9, 27, 72, 144, 288, 576]
    assert [*limits.functions] == [*FUNCTIONS]
    assert [*limits.layers] == [*LAYERS]
    assert [*limits.bandwidth] == [*ACCESSES]
    tables = (limits.products, limits.convolutions, limits.depths, limits.functions, limits.layers, limits.bandwidth)
    # What shows the speed of a run is compared with these.
    assert 2 * PROBED_PRODUCT**3 in {at.size for at in limits.products["float32"]}
    assert 2 * 4 * PROBED_COPY in {at.size for at in limits.bandwidth["copy"]}
    assert FUNCTION_FLOPS * PROBED_FUNCTION in {at.size for at in limits.functions["exp"]}
    for table in tables:
        for rates in table.values():
            assert [at.size for at in rates] == sorted({at.size for at in rates})
    assert [*limits.overheads] == ["op", "call", "inner"]
    assert (limits.threads, limits.torch, limits.cpu) == (1, _env.package_version("torch"), _env.cpu_name())


def test_a_product_takes_as_long_as_torch_takes_for_it_now(limits: MachineLimits) -> None:
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)

    direct_ns = best_ns(lambda: torch.mm(a, b), 0.5)

    assert direct_ns / NOISE < limits.op_limit_ns(2 * 1024**3, 3 * 4 * 1024**2, "float32", "matmul") < direct_ns * NOISE


def test_memory_is_faster_where_a_cache_holds_it(limits: MachineLimits) -> None:
    for rates in limits.bandwidth.values():
        in_cache = max(at.per_s for at in rates if at.size <= 2**21)
        assert in_cache > rates[-1].per_s


def test_a_clock_that_stands_still_for_a_reading_says_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.chain([0.0, 0.0, 1.0, 1.25], itertools.repeat(2.0))
    monkeypatch.setattr(measuring.time, "thread_time", lambda: next(readings))
    monkeypatch.setattr(measuring, "_THREAD_CLOCK", True)

    timed = measuring._Timed(lambda: None, 1)
    assert timed.disturbed
    timed._repeat()
    assert timed.seconds == 0.25
    timed._repeat()
    assert timed.seconds == 0.25


def test_an_op_and_a_node_of_autograd_cost_some_hundred_ns_to_some_us(limits: MachineLimits) -> None:
    assert 100 < limits.op_ns < 20_000
    assert 100 < limits.node_ns < 100_000


def ops() -> list[Op]:
    """Ops that trainings run."""
    n = 256 * 1024
    x, y = torch.rand(512, 512) + 0.1, torch.rand(512, 512) + 0.1
    images, kernels = torch.rand(4, 32, 28, 28), torch.rand(32, 32, 3, 3)
    table, index = torch.rand(10_000, 64), torch.arange(4_096)
    norm = torch.rand(512)
    found: list[Op] = []
    for m in (64, 200, 384, 512):
        a = torch.rand(m, m)
        found.append((f"mm {m}", lambda a=a: torch.mm(a, a), 2 * m**3, 12 * m * m, "matmul"))
    thin = torch.rand(8, 512)
    found += [
        ("mm 8x512", lambda: torch.mm(thin, x), 2 * 8 * n, 4 * n + 8 * 8 * 512, "matmul"),
        ("bmm", lambda: torch.bmm(x.view(16, 32, 512), y.view(16, 512, 32)), 2 * 32 * n, 8 * n + 2**16, "matmul"),
        ("conv2d", lambda: torch.conv2d(images, kernels, padding=1), 2 * images.numel() * 288, 0, "convolution"),
        ("add", lambda: x + y, n, 12 * n, "copy"),
        ("add_", lambda: y.add_(1.0), n, 8 * n, "update"),
        ("relu", lambda: torch.relu(x), n, 8 * n, "copy"),
        ("clone", lambda: x.clone(), 0, 8 * n, "copy"),
        ("sum", lambda: x.sum(), n, 4 * n, "read"),
        ("max", lambda: x.max(), n, 4 * n, "read"),
        ("exp", lambda: torch.exp(x), 10 * n, 8 * n, "exp"),
        ("sigmoid", lambda: torch.sigmoid(x), 10 * n, 8 * n, "exp"),
        ("tanh", lambda: torch.tanh(x), 10 * n, 8 * n, "tanh"),
        ("sqrt", lambda: torch.sqrt(x), 10 * n, 8 * n, "sqrt"),
        ("softmax", lambda: torch.softmax(x, 1), 10 * n, 8 * n, "copy"),
        ("layer_norm", lambda: torch.layer_norm(x, (512,), norm, norm), 10 * n, 8 * n, "copy"),
        ("embedding", lambda: torch.embedding(table, index), 0, 2 * 4 * 64 * 4_096, "copy"),
        ("dropout", lambda: torch.empty_like(x).bernoulli_(0.9), 10 * n, 4 * n, "bernoulli"),
    ]
    return found


@pytest.mark.parametrize("op", ops(), ids=lambda op: op[0])
def test_no_op_is_faster_than_its_limit(op: Op, limits: MachineLimits) -> None:
    _, run, flops, bytes_moved, kind = op
    with torch.no_grad():
        # A busy cache makes a measured limit slower than the machine's: measured again, it is not.
        for measured in (lambda: limits, *2 * (lambda: measure_limits(1),)):
            limit_ns, took_ns = measured().op_limit_ns(flops, bytes_moved, "float32", kind), best_ns(run)
            if limit_ns < NOISE * took_ns:
                break
        assert limit_ns < NOISE * took_ns


def test_the_limits_come_from_a_process_of_their_own_within_its_bound() -> None:
    begin = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "perfkit.limits.measuring", "--threads", "2"], capture_output=True, check=True
    )
    end = os.times()

    limits = msgspec.json.decode(done.stdout, type=MachineLimits)
    assert limits.threads == 2
    # Time of its processor, of two threads, and of the import of torch: a busy machine makes it wait longer.
    assert end.children_user - begin.children_user < 15


def test_a_call_costs_several_times_as_much_after_ops_that_take_the_caches(limits: MachineLimits) -> None:
    for name in ("op", "call", "inner"):
        warm, cold = limits.overhead_ns(name, 2**16), limits.overhead_ns(name, 2**23)  # type: ignore[arg-type]
        assert 0 < warm < cold < 200_000
    assert limits.overhead_ns("op", 2**16) < 3 * limits.op_ns


def test_ops_with_subnormal_numbers_take_as_many_times_as_long_as_measured(limits: MachineLimits) -> None:
    usual, weight = torch.ones(1000, 64), torch.ones(64, 96)
    slowed = usual.clone()
    slowed[:, ::10] = 1e-40
    products = best_ns(lambda: slowed @ weight) / best_ns(lambda: usual @ weight)
    multiplications = best_ns(lambda: slowed * usual) / best_ns(lambda: usual * usual)

    assert 1 / NOISE < limits.subnormals / max(products, multiplications) < NOISE
