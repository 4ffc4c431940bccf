"""What an NVTX tool receives, proven by a small injection library in C."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed", allow_module_level=True)


class Call(NamedTuple):
    """One line of the library's log; ``color``, ``category`` and ``payload`` where the call has attributes."""

    what: str
    thread: str
    domain: str
    id: str
    text: str
    color: str = ""
    category: str = ""
    payload: str = ""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("nvtx") / "injection.so"
    source = Path(__file__).with_name("nvtx_injection.c")
    headers = find_spec("nvidia.cu13")  # the wheel nvidia-nvtx, in the dependency group dev
    assert headers is not None
    assert headers.submodule_search_locations is not None
    include = f"-I{headers.submodule_search_locations[0]}/include"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", include, "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    return built


@pytest.fixture
def received(library: Path, tmp_path: Path, run_python: Callable[..., object]) -> Callable[[str], list[Call]]:
    """Run a program under the tool; the calls the tool received, domains created and destroyed left out."""

    def run(program: str) -> list[Call]:
        log = tmp_path / "nvtx.log"
        run_python(program, NVTX_INJECTION64_PATH=str(library), NVTX_LOG=str(log))
        calls = [Call(*line.split("\t")) for line in log.read_text().splitlines()]
        return [call for call in calls if call.what not in ("create", "destroy")]

    return run


Received = Callable[[str], list[Call]]


def test_names_colors_categories_domains_and_payloads_arrive(received: Received) -> None:
    calls = received(
        """
        import perfkit
        @perfkit.range("decorated", color="red", category="forward", payload=7)
        def f():
            with perfkit.range("inside", domain="mine", payload=2.5, color=0x80010203): pass
        f()
        perfkit.mark("instant", color="#0000ff", payload=-1)
        """
    )
    category, outer, inner, *pops, mark = calls

    assert (category.what, category.domain, category.text) == ("category", "perfkit", "forward")
    assert outer[2:] == ("perfkit", "0", "decorated", "ffff0000", category.id, "7")
    assert inner[2:] == ("mine", "0", "inside", "80010203", "0", "2.5")
    assert [(pop.what, pop.domain) for pop in pops] == [("pop", "mine"), ("pop", "perfkit")]
    assert mark[0] == "mark"
    assert mark[4:] == ("instant", "ff0000ff", "0", "-1")


def test_each_range_arrives_from_the_thread_it_ran_in(received: Received, tmp_path: Path) -> None:
    calls = received(
        f"""
        import threading, perfkit
        def work(name):
            with perfkit.range(name): ids[name] = threading.get_native_id()
        ids = {{}}
        for name in ("first", "second"):
            thread = threading.Thread(target=work, args=(name,)); thread.start(); thread.join()
        work("main")
        open({str(tmp_path / "ids")!r}, "w").write("\\n".join(f"{{k}} {{v}}" for k, v in ids.items()))
        """
    )
    seen = {(call.text, call.thread) for call in calls if call.what == "push"}

    assert seen == {tuple(line.split()) for line in (tmp_path / "ids").read_text().splitlines()}
    assert len({thread for _, thread in seen}) >= 2


def test_payloads_change_from_entry_to_entry_under_one_name(received: Received) -> None:
    calls = received(
        """
        import perfkit
        for i in range(3):
            with perfkit.range("step", payload=i), perfkit.range("step"): pass
        """
    )
    assert [(call.text, call.payload) for call in calls if call.what == "push"] == [
        ("step", "0"), ("step", "-"), ("step", "1"), ("step", "-"), ("step", "2"), ("step", "-"),
    ]  # fmt: skip


def test_pushes_equal_pops_through_exceptions_toggles_and_threads(received: Received) -> None:
    calls = received(
        """
        import threading, perfkit
        from perfkit.ranges import start_recorder
        @perfkit.range
        def f(n):
            with perfkit.range("inside"):
                if n % 3 == 0: raise ValueError
        def work():
            for n in range(200):
                try: f(n)
                except ValueError: pass
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(20):
            with perfkit.range("toggled"):
                recorder = start_recorder()
                recorder.stop()
        for thread in threads: thread.join()
        """
    )
    balance: Counter[str] = Counter()
    for call in calls:
        balance[call.thread] += {"push": 1, "pop": -1}[call.what]
        assert balance[call.thread] >= 0

    assert len(balance) == 4
    assert set(balance.values()) == {0}
    assert sum(call.what == "push" for call in calls) == 3 * 200 * 2 + 20


def test_modules_of_a_model_are_pushed_and_popped_also_where_one_raises(received: Received) -> None:
    calls = received(
        """
        import perfkit, torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        with perfkit.annotate_modules(model, category="module"):
            model(torch.ones(1, 2))
            try: model(torch.ones(1, 3))
            except RuntimeError: pass
        model(torch.ones(1, 2))
        """
    )
    pushes = [call for call in calls if call.what == "push"]

    assert [call.text for call in pushes] == ["Sequential", "0", "1", "Sequential", "0"]
    assert {call.category for call in pushes} == {next(call.id for call in calls if call.what == "category")}
    assert sum(call.what == "pop" for call in calls) == len(pushes)


def test_bridged_ranges_reach_the_tool_once_as_without_perfkit(received: Received) -> None:
    calls = received(
        """
        import nvtx
        from perfkit.ranges import bridge_nvtx, start_recorder
        recorder, bridge = start_recorder(), bridge_nvtx()
        @nvtx.annotate("decorated", domain="mine")
        def f(): nvtx.push_range("pushed"); nvtx.pop_range()
        with nvtx.annotate("with", color="red"): f()
        bridge.remove(); recorder.stop()
        assert {row.name for row in recorder.rows()} == {"with", "pushed"}
        with nvtx.annotate("later"): pass
        """
    )
    pushes = [(call.text, call.domain) for call in calls if call.what == "push"]

    assert pushes == [("with", "-"), ("decorated", "mine"), ("pushed", "-"), ("later", "-")]
    assert sum(call.what == "pop" for call in calls) == len(pushes)


def test_what_may_overlap_goes_through_start_and_end(received: Received) -> None:
    calls = received(
        """
        import asyncio, perfkit
        @perfkit.range("generator")
        def numbers():
            yield 1
            yield 2
        @perfkit.range("coroutine")
        async def waits(mine, other):
            other.set(); await mine.wait()
        async def block(mine, other):
            async with perfkit.range("block"):
                other.set(); await mine.wait()
        async def main():
            a, b = asyncio.Event(), asyncio.Event()
            await asyncio.gather(waits(a, b), block(b, a))
        running = numbers(); next(running); other = numbers(); next(other); running.close(); other.close()
        asyncio.run(main())
        """
    )
    started = {call.id: call.text for call in calls if call.what == "start"}
    ended = [started[call.id] for call in calls if call.what == "end"]

    assert Counter(call.what for call in calls) == {"start": 4, "end": 4}
    assert sorted(ended) == ["block", "coroutine", "generator", "generator"]
    assert [call.what for call in calls[:4]] == ["start", "start", "end", "end"]


def test_names_beyond_the_limit_still_arrive(received: Received) -> None:
    calls = received(
        """
        import perfkit, warnings
        warnings.simplefilter("ignore")
        for i in range(4200):
            with perfkit.range(f"step {i}"): pass
        """
    )
    assert [call.text for call in calls if call.what == "push"] == [f"step {i}" for i in range(4200)]


def test_a_tool_that_reports_its_domain_off_still_gets_the_ranges(received: Received) -> None:
    # Nsight Systems up to 2023.4 answers so, and records what it is sent.
    calls = received(
        """
        import nvtx._lib.lib as lib
        class Off(lib.DomainHandle):
            def enabled(self): return False
        lib.DomainHandle = Off
        import perfkit
        with perfkit.range("arrives"): pass
        """
    )
    assert [call.what for call in calls] == ["push", "pop"]


def test_without_the_nvtx_package_the_reason_is_reported_and_ranges_still_work(
    library: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(
        """
        import sys
        sys.modules["nvtx"] = None
        import perfkit
        from perfkit.ranges import start_recorder
        recorder = start_recorder()
        with perfkit.range("recorded"): pass
        recorder.stop()
        assert [row.name for row in recorder.rows()] == ["recorded"]
        """,
        NVTX_INJECTION64_PATH=str(library),
    )
    assert "an NVTX tool is attached but will see no ranges" in done.stderr
