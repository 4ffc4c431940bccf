"""The simulated CUDA runtime does what CUDA documents: order, waits, captures, devices, fork, memory, its log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.semantics,
    pytest.mark.skipif(
        os.environ.get("FAKE_GPU") != "1", reason="the program does not run on the simulated CUDA runtime"
    ),
]

#: Of torch.cuda._sleep: 0.3 s of the simulated device, long beside any call of the host on a busy machine.
LONG = 600_000_000


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


# -- order


def test_an_event_is_over_when_what_its_stream_had_queued_is() -> None:
    late, free = event(), event()
    side = torch.cuda.Stream()
    torch.cuda._sleep(LONG)
    late.record()
    free.record(side)

    assert not late.query()
    assert free.query()
    late.synchronize()
    assert late.query()


def test_a_stream_that_waits_for_an_event_is_as_late_as_it() -> None:
    side = torch.cuda.Stream()
    queued, after = event(), event()
    torch.cuda._sleep(LONG)
    queued.record()
    # Only what was queued before the record counts: this sleep comes after.
    torch.cuda._sleep(LONG)
    side.wait_event(queued)
    after.record(side)

    assert not side.query()
    side.synchronize()
    assert after.query()
    assert not torch.cuda.current_stream().query()
    assert queued.elapsed_time(after) < 1


def test_streams_run_beside_each_other_and_time_adds_up_in_one() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    begin, alone, both = event(), event(), event()
    begin.record(first)
    for stream in (first, second, first):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
    both.record(first)
    alone.record(second)
    torch.cuda.synchronize()

    assert 1.9 < begin.elapsed_time(both) / begin.elapsed_time(alone) < 2.1


def test_work_takes_longer_the_more_there_is() -> None:
    def took_ms(work: Callable[[], object]) -> float:
        begin, end = event(), event()
        torch.cuda._sleep(LONG // 10)  # the device is behind the host, so that what it takes is its own
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    small, large = torch.ones(1024, 1024, device="cuda"), torch.ones(4096, 4096, device="cuda")

    assert took_ms(lambda: large @ large) > 20 * took_ms(lambda: small @ small)
    assert took_ms(lambda: large.mul(2)) > 5 * took_ms(lambda: small.mul(2))


# -- who waits


def waits(log: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["call"], line["for"]) for line in log if line["event"] == "wait"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x.sum().item()", [("cudaStreamSynchronize", "stream")]),
        ("x.cpu()", [("cudaMemcpyAsync", "copy"), ("cudaStreamSynchronize", "stream")]),
        ("host.to('cuda', non_blocking=True)", [("cudaMemcpyAsync", "staging")]),
        ("host[: 1 << 16].to('cuda', non_blocking=True)", []),
        ("pinned.to('cuda', non_blocking=True)", []),
        ("pinned.copy_(x, non_blocking=True)", []),
        ("torch.cuda.synchronize()", [("cudaDeviceSynchronize", "device")]),
        ("done.synchronize()", [("cudaEventSynchronize", "event")]),
        ("done.query()", []),
        ("x * 2 + x", []),
    ],
)
def test_the_log_has_each_wait_of_the_host_with_its_thread(
    line: str, expected: list[tuple[str, str]], logged: Callable[[], Any]
) -> None:
    names = {"torch": torch, "x": torch.ones(1 << 20, device="cuda"), "done": event()}
    names |= {"host": torch.ones(1 << 20), "pinned": torch.ones(1 << 20).pin_memory()}
    names["done"].record()
    exec(line, names)  # what happens only the first time
    torch.cuda.synchronize()

    with logged() as log:
        exec(line, names)

    assert waits(log) == expected
    assert {one["thread"] for one in log} <= {threading.get_native_id()}


def test_a_wait_lasts_as_long_as_the_device_needs(logged: Callable[[], Any]) -> None:
    with logged() as log:
        torch.cuda._sleep(LONG)
        torch.cuda.synchronize()
        torch.cuda.synchronize()

    waited, idle = (line["ns"] for line in log if line["event"] == "wait")
    assert waited > 10 * idle


def test_host_functions_run_when_the_stream_gets_there(program: Callable[..., Any]) -> None:
    # As c10d and others use them; torch has no name for cudaLaunchHostFunc.
    lines, _ = program("""
        import ctypes, threading, torch
        torch.cuda.init()
        ran = threading.Event()
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.set())
        torch.cuda._sleep(600_000_000)
        ctypes.CDLL(None).cudaLaunchHostFunc(None, function, None)
        print(ran.is_set(), ran.wait(20))
    """)
    assert lines == ["False True"]


# -- captures


def captured(work: Callable[[], object], mode: str = "global") -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        work()
    return graph


#: What a capture refuses, of "Prohibited and Unhandled Operations" and cudaThreadExchangeStreamCaptureMode.
REFUSED = {
    "a sync of the device": lambda x, done: torch.cuda.synchronize(),
    "a sync of the captured stream": lambda x, done: torch.cuda.current_stream().synchronize(),
    "a query of the captured stream": lambda x, done: torch.cuda.current_stream().query(),
    "a query of an event outside": lambda x, done: done.query(),
    "a wait for an event outside": lambda x, done: torch.cuda.current_stream().wait_event(done),
    "a read of a number": lambda x, done: x.sum().item(),
    "a query of a captured event": lambda x, done: (one := event(), one.record(), one.query()),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_capture_refuses_what_cuda_refuses_and_the_next_one_works(refused: str) -> None:
    x, done = torch.ones(4, device="cuda"), event()
    done.record()
    with pytest.raises(RuntimeError, match=r"captur"):
        captured(lambda: REFUSED[refused](x, done))

    captured(lambda: x + 1).replay()
    torch.cuda.synchronize()


def test_cublas_cannot_start_in_a_capture(program: Callable[..., Any]) -> None:
    lines, _ = program("""
        import torch
        x = torch.ones(64, 64, device="cuda")
        for _ in range(2):
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    x @ x
                print("captured")
            except RuntimeError as error:
                print("CUBLAS_STATUS_NOT_INITIALIZED" in str(error.__context__ or error))
                x @ x
    """)
    assert lines == ["True", "captured"]


@pytest.mark.parametrize(("mode", "survives"), [("global", False), ("thread_local", True), ("relaxed", True)])
def test_a_query_in_another_thread_breaks_a_capture_in_the_global_mode_only(mode: str, *, survives: bool) -> None:
    x, done = torch.ones(4, device="cuda"), event()
    done.record()
    refused = []

    def query() -> None:
        try:
            done.query()
        except RuntimeError as error:
            refused.append(error)

    def work() -> None:
        thread = threading.Thread(target=query)
        thread.start()
        thread.join()
        x.add(1)

    if survives:
        captured(work, mode).replay()
    else:
        with pytest.raises(RuntimeError, match="previous error during capture"):
            captured(work, mode)
    assert bool(refused) is not survives


def fork(side: torch.cuda.Stream, *, join: bool) -> None:
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
    torch.cuda._sleep(LONG)
    if join:
        main.wait_stream(side)


def test_a_capture_with_work_that_was_not_joined_fails() -> None:
    with pytest.raises(RuntimeError, match="unjoined"):
        captured(lambda: fork(torch.cuda.Stream(), join=False))


def test_streams_of_a_capture_run_beside_each_other_in_a_replay() -> None:
    graph = captured(lambda: fork(torch.cuda.Stream(), join=True))
    begin, replayed, slept = event(), event(), event()
    begin.record()
    graph.replay()
    replayed.record()
    torch.cuda._sleep(LONG)
    slept.record()
    torch.cuda.synchronize()

    assert 0.9 < begin.elapsed_time(replayed) / replayed.elapsed_time(slept) < 1.1


def test_a_replay_copies_again() -> None:
    source, target = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    graph = captured(lambda: target.copy_(source))
    source.copy_(torch.arange(4.0))
    assert target.tolist() == [0, 0, 0, 0]
    graph.replay()

    assert target.tolist() == [0, 1, 2, 3]


# -- processes, devices, memory


FORK = """
    import os, torch
    {before}
    child = os.fork()
    if not child:
        try:
            torch._C._cuda_getDeviceCount(), torch.ones(1, device="cuda")
            print("works", flush=True)
        except RuntimeError as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [("pass", "works"), ("torch.cuda.is_available()", "RuntimeError"), ("torch.cuda.init()", "RuntimeError")],
)
def test_a_child_forked_after_cuda_was_started_cannot_use_it(
    before: str, printed: str, program: Callable[..., Any]
) -> None:
    lines, _ = program(FORK.format(before=before))
    assert lines == [printed]


def test_asking_for_devices_makes_no_context_and_a_tensor_makes_one(program: Callable[..., Any]) -> None:
    lines, log = program(
        """
        import torch
        torch.cuda.is_available(), torch.cuda.device_count()
        print("asked", flush=True)
        torch.ones(1, device="cuda:1")
        """,
        FAKE_GPU_DEVICES="2",
    )
    assert lines == ["asked"]
    assert 1 in [line["device"] for line in log if line["event"] == "context"]


def test_the_devices_are_those_that_are_visible_at_the_first_call(program: Callable[..., Any]) -> None:
    source = """
        import os, torch
        {first}
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        torch.cuda.device_count.cache_clear() if hasattr(torch.cuda.device_count, "cache_clear") else None
        print(torch._C._cuda_getDeviceCount())
    """
    late, _ = program(source.format(first="torch._C._cuda_getDeviceCount()"), FAKE_GPU_DEVICES="3")
    early, _ = program(source.format(first="pass"), FAKE_GPU_DEVICES="3")

    assert (late, early) == (["3"], ["1"])


def test_devices_have_their_own_time_events_and_memory(program: Callable[..., Any]) -> None:
    lines, _ = program(
        """
        import torch
        x = torch.arange(4.0).to("cuda:0")
        y = x.to("cuda:1")
        torch.cuda.synchronize(1)
        first, second = torch.cuda.Event(), torch.cuda.Event()
        torch.cuda._sleep(600_000_000)
        first.record()
        with torch.cuda.device(1):
            second.record()
        print(y.tolist(), first.query(), second.query())
        big = torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda:1")
        print([torch.cuda.mem_get_info(i)[0] >> 30 for i in (0, 1)])
        try:
            with torch.cuda.device(1):
                first.record()
        except (RuntimeError, ValueError) as error:
            print("refused")
        """,
        FAKE_GPU_DEVICES="2",
    )
    assert lines == ["[0.0, 1.0, 2.0, 3.0] False True", "[79, 69]", "refused"]


def test_memory_ends_where_the_device_does(program: Callable[..., Any]) -> None:
    lines, _ = program(
        """
        import torch
        kept = torch.empty(700 * 2**20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(700 * 2**20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print("out of memory")
        del kept
        print(torch.empty(700 * 2**20, dtype=torch.uint8, device="cuda").numel() >> 20)
        """,
        FAKE_GPU_MEMORY=str(2**30),
    )
    assert lines == ["out of memory", "700"]


def test_memory_that_is_handed_out_again_is_zero_and_so_are_sizes_that_no_kernel_computed(
    program: Callable[..., Any],
) -> None:
    # Left as it was, the number of rows would be what the bytes say, and memory for them, on the host, without end.
    lines, _ = program(
        """
        import torch
        sizes = (1, 600, 2**19, 2**21, 2**25 + 4000)
        used = [torch.full((size,), 127, dtype=torch.uint8).cuda() for size in sizes for _ in range(3)]
        addresses = {one.data_ptr() for one in used}
        del used
        again = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(3)]
        print({one.data_ptr() for one in again} == addresses, [one.cpu().any().item() for one in again].count(True))
        del again
        x = torch.ones(4, 4, device="cuda")
        rows = x.unique(dim=0), x.nonzero(), x[x > 0], torch.bincount(torch.zeros(4, dtype=torch.long).cuda())
        print([len(one) for one in rows], repr(x)[:6])
        """
    )
    assert lines == ["True 0", "[0, 0, 0, 1] tensor"]


def test_expandable_segments_grow_and_give_their_memory_back(program: Callable[..., Any]) -> None:
    lines, _ = program(
        """
        import torch
        def free(): return torch.cuda.mem_get_info()[0] >> 20
        before = free()
        kept = [torch.full((100 * 2**20,), 1, dtype=torch.uint8, device="cuda") for _ in range(3)]
        segments = torch.cuda.memory_snapshot()
        print(before - free(), [one["is_expandable"] for one in segments])
        del kept
        torch.cuda.empty_cache()
        print(before - free())
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert lines == ["300 [True]", "0"]


# -- what others see


def test_kineto_links_kernels_and_copies_to_their_launches(tmp_path: Path) -> None:
    x = torch.ones(64, 64, device="cuda")
    with torch.profiler.profile() as profiler:
        (x @ x).sum().item()
    rows = [one for one in profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA]

    names = " ".join(one.name for one in rows)
    assert "gemm" in names
    assert "reduce_kernel" in names
    assert "Memcpy DtoH" in names
    launched = [one for one in profiler.events() if one.name == "aten::mm"]
    assert [kernel.name for one in launched for kernel in one.kernels if "gemm" in kernel.name]


def test_nvtx_and_the_profiler_calls_are_logged_in_their_order(program: Callable[..., Any]) -> None:
    _, log = program("""
        import torch
        torch.cuda.init()
        torch.cuda.nvtx.range_push('the "step"')
        torch.cuda._sleep(600_000_000)
        torch.cuda.cudart().cudaProfilerStart()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        torch.cuda.nvtx.range_pop()
    """)
    told = [line for line in log if line["event"] in ("nvtx", "profiler")]

    assert [line["call"] for line in told] == ["push", "cudaProfilerStart", "cudaProfilerStop", "pop"]
    assert told[0]["text"] == 'the "step"'
    assert told[1]["queued_ns"] > 0
    assert told[2]["queued_ns"] == 0


def test_nvml_knows_the_cards_and_loses_them_when_told(program: Callable[..., Any]) -> None:
    lines, _ = program(
        """
        import os, pynvml, torch
        pynvml.nvmlInit()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuid = str(torch.cuda.get_device_properties(1).uuid)
        print(len(cards), pynvml.nvmlDeviceGetUUID(cards[1]) == f"GPU-{uuid}")
        os.environ["FAKE_GPU_NVML_ERROR"] = "15"
        try:
            pynvml.nvmlDeviceGetUtilizationRates(cards[0])
        except pynvml.NVMLError_GpuIsLost:
            print("lost")
        """,
        FAKE_GPU_DEVICES="2",
    )
    assert lines == ["2 True", "lost"]


def test_factorisations_have_their_workspaces_and_succeed() -> None:
    x = torch.eye(8, device="cuda").expand(3, 8, 8)
    for function in (torch.linalg.inv, torch.linalg.svd, torch.linalg.eigh, torch.linalg.qr, torch.linalg.cholesky):
        function(x)
        function(x[0])
    torch.cuda.synchronize()
