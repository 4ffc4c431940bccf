"""The command lines of nsys and ncu: their defaults, and the mistakes that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from perfkit.commands.ncu import ncu as ncu_command
from perfkit.commands.nsys import nsys as nsys_command
from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions
from perfkit.nsight_runner.installed_tools import InstalledTool, find_tool
from perfkit.nsight_runner.ncu_options import LAUNCHES, NcuOptions, ncu_words
from perfkit.nsight_runner.nsys_options import NsysOptions, nsys_words
from perfkit.nsight_runner.recording_session import RecordingSession, build_command
from perfkit.nsight_runner.target_program import TargetProgram

INSIDE = TargetProgram((), ("python", "train.py"), 1, "train")
PLAIN = TargetProgram((), ("./train",), None, "train")


def nsys(program: TargetProgram = INSIDE, cuda: bool = False, tool: InstalledTool | None = None, **options: Any) -> str:
    windows = options.pop("windows", 1)
    words = nsys_words(NsysOptions(program=(), **options), tool, windows=windows, inside=program.inside, cuda=cuda)
    return " ".join(build_command(RecordingSession("nsys", Path("runs"), False), words, program, tool))


def ncu(program: TargetProgram = INSIDE, tool: InstalledTool | None = None, **options: Any) -> str:
    words = ncu_words(NcuOptions(program=(), **options), tool, inside=program.inside)
    return " ".join(build_command(RecordingSession("ncu", Path("runs"), False), words, program, tool))


@pytest.mark.parametrize(("command", "options"), [(nsys_command, NsysOptions), (ncu_command, NcuOptions)])
def test_the_options_of_a_command_are_the_fields_of_its_struct_with_the_same_defaults(
    command: click.Command, options: type[NsightOptions]
) -> None:
    with command.make_context("it", ["train.py"]) as context:
        assert options(**context.params) == options(program=("train.py",))
        assert context.params.keys() == set(options.__struct_fields__)


def test_without_cuda_nsys_records_the_whole_program_and_does_not_end_it() -> None:
    assert nsys() == (
        "nsys profile --trace=nvtx,osrt --sample=none --cpuctxsw=none --kill=none --output=runs/nsys"
        " python --quiet --out runs train.py"
    )


def test_with_cuda_nsys_records_the_window_that_perfkit_opens_and_lets_the_training_continue() -> None:
    assert nsys(cuda=True) == (
        "nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --sample=none --cpuctxsw=none --kill=none"
        " --cuda-graph-trace=node --capture-range=cudaProfilerApi --capture-range-end=stop"
        " --output=runs/nsys python --quiet --out runs train.py"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windows": 3}, "--capture-range-end=repeat "),
        ({"capture_range": "nvtx"}, "--nvtx-capture=perfkit.window@perfkit "),
        ({"nvtx_capture": "x@*", "capture_range": "nvtx"}, "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0 "),
        ({"capture_range_end": "repeat:4"}, "--capture-range-end=repeat:4 "),
        ({"capture_range_end": "stop-shutdown", "kill": "sigterm"}, "--capture-range-end=stop-shutdown "),
        ({"kill": "sigkill"}, "--kill=sigkill "),
        ({"delay": 5, "duration": 7}, "--delay=5 --duration=7 "),
        ({"nvtx_domain_include": ("mine",)}, "--nvtx-domain-include=mine,perfkit "),
        ({"nvtx_domain_exclude": ("NCCL", "x")}, "--nvtx-domain-exclude=NCCL,x "),
        ({"trace": "cuda,nvtx"}, "--trace=cuda,nvtx "),
        ({"sample": "process-tree", "cpuctxsw": "process-tree"}, "--sample=process-tree --cpuctxsw=process-tree "),
        ({"force_overwrite": True}, "--force-overwrite=true "),
        (
            {"extra": "--gpu-metrics-device=0 --nic-metrics 'a b'"},
            "--gpu-metrics-device=0 --nic-metrics a b --output=runs/nsys ",
        ),
    ],
)
def test_options_of_nsys_are_in_its_command(options: dict[str, Any], words: str) -> None:
    assert words in nsys(cuda=True, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"capture_range": "cuda"}, "--capture-range takes cudaProfilerApi, nvtx, none, got 'cuda'"),
        ({"capture_range_end": "stop-shutdown"}, "ends the training with the capture range: use stop,"),
        ({"capture_range_end": "repeat-shutdown:3", "kill": "none"}, "use repeat:3, or add --kill sigterm"),
        ({"capture_range_end": "repeat:0"}, "--capture-range-end takes"),
        ({"capture_range": "none", "capture_range_end": "stop"}, "--capture-range-end needs a capture range"),
        ({"nvtx_capture": "x@y"}, "--nvtx-capture needs --capture-range nvtx"),
        ({"kill": "please"}, "--kill takes none, sigterm, sigkill"),
        ({"nvtx_domain_include": ("a",), "nvtx_domain_exclude": ("b",)}, "exclude each other"),
        ({"nvtx_domain_exclude": ("perfkit",)}, "the domain perfkit contains the window"),
        ({"trace": "cuda"}, "--trace must include nvtx"),
    ],
)
def test_options_that_nsys_cannot_satisfy_or_that_would_end_the_training_are_refused(
    options: dict[str, Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error.replace("(", r"\(")):
        nsys(cuda=True, **options)


def test_behind_torchrun_the_launcher_comes_first() -> None:
    program = TargetProgram(("torchrun", "--no-python"), ("python", "train.py"), 1, "train")

    assert nsys(program).startswith("torchrun --no-python nsys profile ")
    assert ncu(program).startswith("torchrun --no-python ncu ")


def test_ncu_profiles_some_kernels_of_the_window_with_the_sections_that_the_rules_read() -> None:
    assert ncu() == (
        "ncu --target-processes all --set basic --section MemoryWorkloadAnalysis --section ComputeWorkloadAnalysis"
        " --section SchedulerStats --section WarpStateStats --section SourceCounters"
        f" --section SpeedOfLight_RooflineChart --launch-count {LAUNCHES} --profile-from-start off --export runs/ncu"
        " python --quiet --out runs train.py"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "gemm|conv"}, "--kernel-name regex:gemm|conv "),
        ({"launch_skip": 10, "launch_count": 2}, "--launch-skip 10 --launch-count 2 "),
        ({"nvtx_include": ("perfkit@loss/", "a")}, "--nvtx --nvtx-include perfkit@loss/ --nvtx-include a "),
        ({"set": "full"}, "--set full --launch-count"),
        ({"section": ("Occupancy",)}, "--set basic --section Occupancy --launch-count"),
        ({"replay_mode": "app-range"}, "--replay-mode app-range "),
        ({"clock_control": "none"}, "--clock-control none "),
        ({"force_overwrite": True}, "--force-overwrite "),
        ({"extra": "--cache-control none"}, "--cache-control none --export runs/ncu "),
    ],
)
def test_options_of_ncu_are_in_its_command(options: dict[str, Any], words: str) -> None:
    assert words in ncu(**options)


def test_only_all_kernels_lifts_the_limit_and_only_a_program_with_perfkit_waits_for_its_window() -> None:
    assert "--launch-count" not in ncu(all_kernels=True)
    assert "--profile-from-start" not in ncu(PLAIN)
    assert "--profile-from-start" not in ncu(from_start=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kernel": "("}, "--kernel-name takes a regular expression"),
        ({"all_kernels": True, "launch_count": 3}, "exclude each other"),
        ({"replay_mode": "twice"}, "--replay-mode takes kernel, application, range, app-range"),
        ({"clock_control": "boost"}, "--clock-control takes base or none"),
        ({"set": "detail"}, "--set takes a set of ncu, got 'detail': did you mean detailed\\?"),
        ({"section": ("Ocupancy",)}, "--section takes a section of ncu, got 'Ocupancy': did you mean Occupancy\\?"),
        ({"section": ("zzz",)}, "got 'zzz': they are C2CLink, ComputeWorkloadAnalysis"),
        ({"section_folder": ("nowhere",)}, "--section-folder takes a folder .* nowhere is none"),
    ],
)
def test_what_ncu_could_not_do_is_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        ncu(**options)


def test_an_old_tool_loses_perfkits_own_option_with_a_word_and_refuses_the_users(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = frozenset({"--trace", "--sample", "--kill", "--capture-range", "--capture-range-end"})
    old = InstalledTool("nsys", "/opt/nsys", "2019.5", known)

    assert "--cpuctxsw" not in nsys(tool=old)
    assert "/opt/nsys (2019.5) has no --cpuctxsw, so it is left out; it is in nsys 2022.4" in capsys.readouterr().err
    with pytest.raises(
        UsageError, match=r"\(2019\.5\) has no --delay: it is in nsys 2022\.4; install that or a later version"
    ):
        nsys(tool=old, delay=3)


def test_the_help_of_nsys_gives_two_options_at_once(fake_tool: Any) -> None:
    fake_tool("nsys")
    tool = find_tool("nsys")

    assert tool.version == "2022.4"
    assert tool.options is not None
    assert {"--nvtx-domain-include", "--nvtx-domain-exclude", "--kill"} <= tool.options
