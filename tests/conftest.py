"""What every test shares: nothing may be left installed, time can be replaced, skips need a listed reason."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from perfkit import _clock
from perfkit._torch_versions import release
from perfkit.commands.doctor import patched

HERE = Path(__file__).resolve().parent

# A busy machine is no reason to fail: how long an example takes says nothing of whether it is right.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def _installed() -> dict[str, Any]:
    """Everything that perfkit may patch while it records, as it is now."""
    # First: it imports perfkit.ranges, which waits for torch's import.
    own = [name for name in patched() if not name.startswith("permanent:")]
    found: dict[str, Any] = {
        "reported by perfkit doctor": own,
        "gc.callbacks": [
            callback for callback in gc.callbacks if "perfkit" in str(getattr(callback, "__module__", ""))
        ],
        "signals": (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)),
        "switch interval": sys.getswitchinterval(),
        "settrace": sys.gettrace() if "perfkit" in str(getattr(sys.gettrace(), "__module__", "")) else None,
        "warnings.filters": [f for f in warnings.filters if type(f[1]).__module__.startswith("perfkit")],
    }
    found["sys.meta_path"] = [one for one in sys.meta_path if type(one).__module__ == "perfkit._import_hook"]
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        import torch.utils.data.dataloader as dataloader

        found["DataLoader fetch"] = dataloader._BaseDataLoaderIter.__next__
        found["DataLoader worker"] = torch.utils.data._utils.worker._worker_loop
        found["backward"] = torch.autograd.backward
        found["GradScaler.step"] = torch.amp.GradScaler.step
        found["a torch profiler"] = torch.autograd._profiler_enabled()
        found["Tensor.item"] = torch.Tensor.item
        found["cuda.is_available"] = torch.cuda.is_available
    return found


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """After a test, all is as it was before it: hooks, patches, filters, profiler state."""
    had_torch = "torch" in sys.modules
    before = _installed()
    yield
    after = _installed()
    if had_torch:
        assert after == before
        return
    if "torch" in sys.modules:
        # What waits for torch's import leaves by itself when torch comes.
        del before["sys.meta_path"]
    assert {key: after[key] for key in before} == before


class FakeClock:
    """A clock that moves when told; installed by the `clock` fixture."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += round(ms * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """perfkit's clock, moved by hand."""
    fake = FakeClock()
    monkeypatch.setattr(_clock, "now_ns", fake)
    return fake


@pytest.fixture(autouse=True)
def no_graphs_counted() -> None:
    """Dynamo counts the graphs of a process: those of earlier tests are not of this one's program."""
    if (dynamo := sys.modules.get("torch._dynamo.utils")) is not None:
        dynamo.counters.clear()
        # What says that something was compiled; before torch 2.8 no lines are traced then.
        getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {}).clear()


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colour, and no variable of the outside that changes perfkit."""
    monkeypatch.setenv("COLUMNS", "80")
    # It cannot be written: a run of a test measures no limits of the machine, and a user's cache stays as it is.
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(HERE / "conftest.py"))
    for name in ("PERFKIT_DISABLE", "FORCE_COLOR", "NO_COLOR", "RANK", "WORLD_SIZE", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[str]]:
    """Runs a program in a folder, as the ranks of one job; returns what each printed."""

    def run(folder: Path, program: str, *arguments: str, ranks: int = 2) -> list[str]:
        (folder / "rendezvous").unlink(missing_ok=True)
        (folder / "train.py").write_text(program)
        shared = {
            "WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": f"{folder.name}-{arguments}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        children = [
            subprocess.Popen(
                [sys.executable, "train.py", *arguments],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
                # Linux shares a core out by session: what one rank starts takes nothing from the others.
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        try:
            # What torch 2.10's gloo says is not of the program.
            lines = [child.communicate(timeout=150)[0].splitlines(keepends=True) for child in children]
            printed = ["".join(line for line in one if not line.startswith("[Gloo]")) for one in lines]
        finally:
            for child in children:
                child.kill()
        assert [child.returncode for child in children] == [0] * ranks
        return printed

    return run


@pytest.fixture(scope="session")
def real_nsys() -> str:
    """The path of an installed nsys: `.ci/run` sets where it has put one, a developer's own is on the PATH."""
    nsys = os.environ.get("PERFKIT_TEST_NSYS") or shutil.which("nsys")
    if nsys is None:
        pytest.skip("nsys is not installed")
    return nsys


@pytest.fixture
def record_with_nsys(real_nsys: str, tmp_path: Path) -> Callable[..., Path]:
    """Runs a program under nsys, without sampling, in ``tmp_path``; returns the report."""

    def tool(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)

    def record(*program: str, trace: str) -> Path:
        options = ["-t", trace, "-s", "none", "--cpuctxsw", "none", "--force-overwrite=true", "-o", "r"]
        # On a busy machine nsys sometimes fails to start recording, which says nothing about perfkit.
        for _ in range(3):
            done = tool(real_nsys, "profile", *options, *program)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout + done.stderr
        if not (tmp_path / "r.nsys-rep").exists():
            # Debian's nsys does not find its importer; .ci/install-nsys copies it next to nsys.
            done = tool(str(Path(real_nsys).with_name("QdstrmImporter")), "-i", "r.qdstrm")
            assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / "r.nsys-rep"

    return record


def pytest_collection_finish() -> None:
    """What the 400 files hold lives to the end: no garbage collection looks at it again, which took 0.4 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def nothing_frozen() -> Iterator[None]:
    """For tests of `gc.freeze` itself."""
    gc.unfreeze()
    yield
    gc.freeze()


# -- tests that need the machine to themselves


@contextmanager
def _locked(name: str, how: int) -> Iterator[None]:
    """Hold a lock on a file of this checkout, as a thing that all processes of a test run have."""
    with (HERE / name).open() as file:
        fcntl.flock(file, how)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the test's time limit
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Under xdist a test marked ``alone`` waits for those that run, and those that come next wait for it."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with ExitStack() as machine:
        # In turn: else the others would hand the machine on among themselves, and a test alone would never have it.
        with _locked("allowed_skips.txt", fcntl.LOCK_EX):
            alone = item.get_closest_marker("alone") is not None
            machine.enter_context(_locked("conftest.py", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)


# -- what a run says that is ended from outside

#: The tests that run now, and when each began (of this process, which under xdist is the one that prints).
_running: dict[str, float] = {}


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM, as of a job's time limit, ends the run like Ctrl-C: with its failures."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


def pytest_runtest_logstart(nodeid: str) -> None:
    _running[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.pop(nodeid, None)


# -- skips


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("since_torch"):
        import torch  # only where a test asks

        first, reason = mark.args
        if release(torch.__version__) < first:
            pytest.skip(f"since torch {'.'.join(map(str, first))}: {reason}")


_skipped: dict[str, int] = {}


def _allowed() -> set[str]:
    lines = (HERE / "allowed_skips.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def _unlisted() -> list[str]:
    return sorted(reason for reason in _skipped if reason not in _allowed())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        _skipped[reason] = _skipped.get(reason, 0) + 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        _skipped[reason] = _skipped.get(reason, 0) + 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for reason, count in sorted(_skipped.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")
    for reason in _unlisted():
        terminalreporter.write_line(f"NOT ALLOWED to skip for: {reason} (see tests/allowed_skips.txt)")
    for test, began in _running.items():
        terminalreporter.write_line(f"not ended after {time.monotonic() - began:.0f} s: {test}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unlisted() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
