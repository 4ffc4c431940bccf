"""Runs programs in forks of one process that has imported torch: a run costs its own work, and not the import.

A line of stdin is a request (JSON), a line of stdout its answer. ``python -m tests.faults.fork_server``
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, NoReturn

PERFKIT = str(Path(__file__).resolve().parents[2] / "perfkit") + os.sep


def of_perfkit() -> bool:
    """Whether the innermost code outside of the standard library is perfkit's."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PERFKIT):
            return True
        if not (file.startswith(("<frozen", os.path.dirname(os.__file__))) and "site-packages" not in file):
            return False
        frame = frame.f_back
    return False


class PythonFaults:
    """Makes what perfkit asks of Python fail: files outside of the run's folder, processes and threads.

    ``own`` are beginnings of paths that are not meant: the run's folder, and the program, which Python must read too.
    """

    EVENTS: ClassVar = {"open": "open-elsewhere", "subprocess.Popen": "process"}

    def __init__(self, log: str | None, faults: Iterable[str], own: tuple[str, ...]) -> None:
        self._log, self._faults, self._own = log, set(faults), own
        self._busy = threading.local()
        sys.addaudithook(self._hook)
        # How threading starts one, from Python 3.13 on and before.
        name = next(one for one in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, one))
        start = getattr(threading, name)

        def start_thread(bootstrap: Any, *arguments: Any, **named: Any) -> Any:
            if of_perfkit():
                self._meet("thread", bootstrap.__self__.name, RuntimeError("can't start new thread"))
            return start(bootstrap, *arguments, **named)

        setattr(threading, name, start_thread)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self.EVENTS or getattr(self._busy, "on", False):
            return
        name = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if name and not name.startswith(self._own) and of_perfkit():
            self._meet(self.EVENTS[event], name, OSError(24, "Too many open files", name))

    def _meet(self, event: str, name: str, error: Exception) -> None:
        fault = f"{event} {re.sub(r'[0-9]{3,}', '*', name)}"
        failed = fault in self._faults
        self._faults.discard(fault)  # once
        if self._log is not None:
            self._busy.on = True
            with open(self._log, "a") as file:
                file.write(f"{os.getpid()} {'+' if failed else ''}{fault}\n")
            self._busy.on = False
        if failed:
            raise error


def become_program(request: dict[str, Any], rank: int) -> int:
    """In a fork: run the request's program, under perfkit or not; returns its exit code, or raises as it does."""
    folder, run = request["folder"], request["run"]
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/../{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - of the program
    os.environ.update(request["environment"] | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if rank >= 0 else {}))
    inject = ctypes.CDLL(os.environ["LD_PRELOAD"])
    log = request.get("log")
    if log is not None:
        inject.fault_log(log.encode(), request["root"].encode())
    inject.fault_arm("".join(f"{fault};" for fault in request.get("faults", ())).encode())
    if request["perfkit"]:
        PythonFaults(log, request.get("python_faults", ()), (request["root"], request["program"]))
        from perfkit.commands import main
        from perfkit.profiler import profile

        if not request.get("diagnosed"):
            profile._diagnose = lambda *_: None  # type: ignore[method-assign]
        sys.argv = ["perfkit"]
        return main(["run", *request["options"], "--out", run, request["program"]])
    sys.argv = [request["program"]]
    sys.path[0] = os.path.dirname(request["program"])
    runpy.run_path(request["program"], run_name="__main__")
    return 0


#: CPU seconds of each run, to be printed at the end.
USED: list[float] = []


def wait(children: list[int], kill_after_s: float | None, run: str, timeout_s: float) -> list[int]:
    """The exit codes of the forks; they are killed that long after the run has begun, and after the time limit."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    if kill_after_s is not None:
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.path.exists(f"{run}/run.json") and time.monotonic() < deadline:
            if any(os.waitid(os.P_PID, child, ended) for child in children):
                break
            time.sleep(0.002)
        time.sleep(kill_after_s)
        for child in children:
            os.kill(child, signal.SIGKILL)
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                pid, status, used = os.wait4(child, os.WNOHANG)
                if pid:
                    codes[child] = os.waitstatus_to_exitcode(status)
                    USED.append(used.ru_utime + used.ru_stime)
        if time.monotonic() > deadline:
            for child in children:
                if child not in codes:
                    os.killpg(child, signal.SIGKILL)
            deadline += 60
        time.sleep(0.005)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the program has left running
    return [codes[child] for child in children]


def end(program: Callable[..., int], *arguments: Any) -> NoReturn:
    """Call the program, and end as Python does; but what the server has loaded is not taken down in each fork."""
    try:
        code: Any = program(*arguments)
    except SystemExit as exit_:
        code = exit_.code or 0
    except BaseException:  # noqa: BLE001 - shown as Python does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is an exception
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as Py_FinalizeEx does: it waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def serve() -> None:
    """Answer requests, each with a fork that becomes the program."""
    import torch
    import torch.utils.data

    import perfkit.commands

    for module in pkgutil.iter_modules(perfkit.commands.__path__, "perfkit.commands."):
        importlib.import_module(module.name)
    from perfkit._background import BackgroundError

    # What is made once per process: in each fork it would cost more than the run.
    with tempfile.TemporaryDirectory() as folder, perfkit.profile(folder, quiet=True, recorders=()):
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for _ in range(20):
            layer(torch.ones(4)).sum().backward()
            optimizer.step()
    import perfkit.record.machine_limits as limits

    def not_measured(*_: object) -> None:
        raise BackgroundError("it takes seconds, and is the same in each run")

    limits.measure_and_keep = not_measured  # type: ignore[assignment]
    gc.collect()
    gc.freeze()  # what is never looked at stays shared with the forks
    for line in sys.stdin:
        request = json.loads(line)
        ranks = request.get("ranks", 0)
        children = []
        for rank in range(ranks) if ranks else (-1,):
            child = os.fork()
            if not child:
                os.setpgid(0, 0)
                end(become_program, request, rank)
            children.append(child)
        codes = wait(children, request.get("kill_after_s"), request["run"], request.get("timeout_s", 280))
        print(json.dumps({"codes": codes}), flush=True)
    print(f"CPU per run: {sum(USED) / max(1, len(USED)):.2f} s", file=sys.stderr)


if __name__ == "__main__":
    serve()
