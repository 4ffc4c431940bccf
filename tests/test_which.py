"""``perfkit which``: questions find their tool, WHICH.md is generated from the table, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import perfkit
from perfkit.commands import _build, main
from perfkit.rules._engine import find_rules
from perfkit.which import ANSWERS, as_markdown, find_answers

#: A phrase as a person wrote it (titles of issues of many projects, or questions as people ask them), and a part of the
#: question of each right answer. They were collected before the first version of the table and divided alternately: the
#: table was tuned with these ...
TUNED_WITH: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Why is training so slow and GPU utilization so low?", ("idle half", "Why is my training slow")),
    ("High GPU Memory-Usage but low volatile gpu-util", ("idle half",)),
    ("nvidia-smi shows 30% and drops to 0 every few seconds", ("idle half", "Now and then a step")),
    ("In windows, DataLoader with num_workers > 0 is extremely slow (50 times slower)", ("loading the data",)),
    ("reading images from the network drive takes forever", ("loading the data",)),
    ("GPU memory leaks and GPU memory keeps increasing", ("Memory grows",)),
    ("GPU memory keep increasing while training", ("Memory grows",)),
    ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", ("CUDA out of memory",)),
    ("memory fragmentation: reserved is much larger than allocated", ("CUDA out of memory",)),
    ("How to test inference time FPS?", ("inference take",)),
    ("Measuring inference time", ("inference take",)),
    ("is time.time() around my forward ok on cuda", ("one function or op", "inference take")),
    (
        "After ~4 clips torch.compile stops working with error message: torch._dynamo hit config.cache_size_limit",
        ("compiles again",),
    ),
    ("unnoticed recompilations because of dynamic shapes", ("compiles again",)),
    ("look at the triton code inductor generates", ("does not help",)),
    ("Use Nsight (nsys profile) to profile the training", ("whole system",)),
    ("How to profile NCCL kernels?", ("More GPUs", "whole system", "One rank")),
    ("achieved occupancy of my custom CUDA kernel", ("one kernel slow",)),
    ("why is flash attention kernel memory bound, register spills?", ("one kernel slow",)),
    ("Adding gpus but without improvement of training speed", ("More GPUs",)),
    ("Multi-GPU training is reducing speed compared to single GPU", ("More GPUs",)),
    ("one of the 8 workers is always late", ("One rank",)),
    ("Watchdog caught collective operation timeout: WorkNCCL", ("Ranks hang",)),
    ("program freezes without any error, where is it stuck?", ("It hangs", "Ranks hang")),
    ("capture a trace on demand in the middle of a long job", ("record a few steps now",)),
    ("every few hundred iterations one takes 10x longer", ("Now and then a step",)),
    ("GC pauses in my loop?", ("Now and then a step", "line of my Python")),
    ("find hidden cudaStreamSynchronize calls", ("wait for the GPU",)),
    ("make a unit test fail when somebody adds a .item() to the step", ("keep syncs out",)),
    ("is the new release of pytorch slower than the old one", ("my change",)),
    ("performance regression gate for pull requests", ("slowdown in CI",)),
    ("trace is 1.8 GB for 10 steps, cannot view", ("too big to open",)),
    ("interpret trace.json without a gpu", ("I have a trace",)),
    ("view the timeline of kernels and cpu ops", ("see the timeline",)),
    ("time spent per layer in forward and backward", ("Which operators", "line of my Python", "Name parts")),
    ("nvtx ranges for the loss function", ("Name parts",)),
    ("AdvancedProfiler in lightning makes training 37% slower", ("Profile inside",)),
    ("same script is 20% slower on one node of the cluster", ("throttled", "One rank")),
    ("gpu clocks drop under load", ("throttled",)),
    ("which users waste gpus in our slurm cluster over the month", ("of the cluster",)),
    ("am I compute bound or memory bandwidth bound", ("hardware's limit", "one kernel slow")),
    ("where does python spend its time in my train loop", ("line of my Python",)),
    ("a for loop over samples is slow, find it", ("line of my Python",)),
    ("live view of step times in tmux", ("Watch a training",)),
    ("check that everything is set up to profile here", ("What works",)),
    ("my epoch takes 3 hours, where do I begin", ("Why is my training slow",)),
    ("speed up my pytorch training", ("Why is my training slow",)),
    ("training diverges after switching to fp16", ("loss is NaN",)),
)
#: ... and never with these.
HELD_OUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("GPU utilization is low.", ("idle half",)),
    ("Little GPU-util", ("idle half",)),
    (
        "dataloader, when worker num is N, then first batch is very slow then follow N-1 very faster, why?",
        ("loading the data",),
    ),
    ("are my augmentations too slow for the GPU?", ("loading the data", "idle half")),
    ("should I use more workers or pin memory", ("loading the data",)),
    ("Memory usage increases after one iteration on GPU", ("Memory grows", "CUDA out of memory")),
    ("DDP training, GPU memory consumption gradually and slowly grows", ("Memory grows",)),
    ("which tensors eat my VRAM", ("CUDA out of memory", "Memory grows")),
    ("the process gets killed by the kernel's OOM killer after a day", ("Memory grows", "host's memory")),
    ("How to measure the latency correctly?", ("inference take", "one function or op")),
    ("what batch size should I serve with", ("inference take",)),
    ("compare two implementations of a custom op", ("one function or op", "my change")),
    ("Why Torch.compile is usually slower than eager mode?", ("does not help", "compiles again")),
    ("torch.compile first step takes 300 seconds", ("compiles again", "does not help")),
    ("graph break at print statement", ("compiles again",)),
    ("how do I use nsys at all?", ("whole system",)),
    ("see CUDA API calls of a C++ extension", ("whole system",)),
    ("my triton kernel is far below peak bandwidth", ("one kernel slow", "hardware's limit")),
    ("Why multi-GPU train is slower than single GPU", ("More GPUs", "One rank")),
    ("Training model with DDP couldn't accelerate", ("More GPUs",)),
    ("how much of all_reduce is hidden behind backward", ("More GPUs",)),
    ("find the straggler rank in FSDP", ("One rank",)),
    ("training hangs at barrier with 2 nodes", ("Ranks hang", "It hangs")),
    ("attach a profiler to a running python process", ("It hangs", "record a few steps now")),
    (
        "take a profile of step 5000 when I notice it is slow, without restarting",
        ("record a few steps now", "Now and then a step", "It hangs"),
    ),
    ("random latency spikes during training", ("Now and then a step",)),
    ("loss.item() slows everything down?", ("wait for the GPU",)),
    ("which line calls .cpu() too often", ("wait for the GPU",)),
    (
        "assert that there is no host device synchronization in CI",
        ("keep syncs out", "slowdown in CI", "wait for the GPU"),
    ),
    ("did my optimisation bring anything or is it noise", ("my change",)),
    ("chrome://tracing crashes with my 2 GB json", ("too big to open", "see the timeline")),
    ("somebody sent me a .nsys-rep, how to make sense of it", ("I have a trace", "whole system")),
    ("can't find any satisfactory alternative to the tensorboard plugin", ("see the timeline", "Profile inside")),
    ("which aten ops are most expensive", ("Which operators",)),
    ("annotate my own code regions in nsys", ("Name parts", "whole system")),
    ("profile with the huggingface Trainer", ("Profile inside",)),
    ("my A100 runs at 70 degrees and seems to throttle", ("throttled",)),
    ("is someone else using my GPU", ("throttled",)),
    ("grafana dashboard of gpu use for the whole lab", ("of the cluster",)),
    ("what MFU do I get, how far from peak tflops", ("hardware's limit",)),
    ("do I use tensor cores", ("hardware's limit", "one kernel slow")),
    ("cProfile of the training loop", ("line of my Python",)),
    ("watch throughput while it trains", ("Watch a training",)),
    ("profiler shows no cuda kernels, is cupti installed?", ("What works", "see the timeline")),
    ("dataset list of python dicts fills the RAM of the workers", ("host's memory", "loading the data")),
    ("training got stuck at 2 it/s", ("Why is my training slow", "It hangs")),
    ("my loss is nan", ("loss is NaN",)),
    ("profile a plain training script without changing it", ("Why is my training slow",)),
)


def hits(phrases: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[float, float]:
    """Share of the phrases whose first answer is right, and of those that get a right one at all."""
    first = any_right = 0
    for phrase, right in phrases:
        found = [any(piece in match.answer.question for piece in right) for match in find_answers(phrase)]
        first += found[:1] == [True]
        any_right += any(found)
    return first / len(phrases), any_right / len(phrases)


def test_held_out_questions_find_their_tool() -> None:
    first, any_right = hits(HELD_OUT)

    assert first >= 0.75
    assert any_right >= 0.85


def test_tuning_questions_find_their_tool() -> None:
    first, any_right = hits(TUNED_WITH)

    assert first >= 0.90
    assert any_right == 1.0


def test_every_right_answer_of_the_phrases_is_one_entry() -> None:
    for _, right in TUNED_WITH + HELD_OUT:
        for piece in right:
            assert sum(piece in answer.question for answer in ANSWERS) == 1, piece


def test_every_entry_finds_itself() -> None:
    for answer in ANSWERS:
        assert find_answers(answer.question)[0].answer is answer


@given(st.text(max_size=80))
def test_any_text_gets_up_to_three_answers_the_best_first(text: str) -> None:
    fits = [match.fit for match in find_answers(text)]

    assert len(fits) <= 3
    assert fits == sorted(fits, reverse=True)
    assert fits[:1] in ([], [1.0])


@pytest.mark.parametrize("question", ["my training is slow", "slow", "training is slow, help!"])
def test_the_simplest_question_finds_its_answer(question: str) -> None:
    assert find_answers(question)[0].answer.question.startswith("Why is my training slow")


def test_the_order_and_the_case_of_words_do_not_matter() -> None:
    matches = find_answers("GPU is idle, half the TIME?")

    assert matches == find_answers("time the half idle is gpu")
    assert matches[0].answer.question == "My GPU is idle half of the time"


@pytest.mark.parametrize("question", ["what is the weather tomorrow", "bake a chocolate cake", "?!", "asdf qwer"])
def test_a_question_without_an_entry_prints_the_list(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", question]) == 0

    out = capsys.readouterr().out
    assert out.startswith("No entry matches this question.")
    assert all(answer.question in out for answer in ANSWERS)


def test_without_a_question_all_entries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which"]) == 0

    out = capsys.readouterr().out
    assert all(answer.question in out and answer.tool in out for answer in ANSWERS)


def test_an_answer_has_the_command_what_to_look_for_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "my", "GPU", "is", "idle", "half", "of", "the", "time"]) == 0

    out = capsys.readouterr().out
    answer = find_answers("my GPU is idle half of the time")[0].answer
    assert f"\n  {answer.command}\n" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    for part in (f"Look for: {answer.look_for}", f"Why this one: {answer.why}"):
        assert part in " ".join(out.split())


def test_answers_close_to_the_best_are_shown_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "is", "nccl", "slow"]) == 0

    assert "\nOr: " in capsys.readouterr().out


def test_the_page_is_generated_from_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(perfkit.__file__).parent / "WHICH.md").read_text("utf-8")

    assert main(["which", "--markdown"]) == 0
    assert capsys.readouterr().out == page == as_markdown(), "perfkit which --markdown > perfkit/WHICH.md"


def test_markdown_refuses_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "--markdown", "idle"]) == 2
    assert "give no question with it" in capsys.readouterr().err


def test_commands_of_perfkit_and_their_options_exist() -> None:
    group = typer.main.get_command(_build())
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    for answer in ANSWERS:
        for name, rest in re.findall(r"perfkit ([a-z]+)([^#&]*)", answer.command):
            command = group.commands[name]
            known = {option for parameter in command.params for option in parameter.opts}
            own = rest.partition(" -- ")[0].partition(".py")[0]
            assert set(re.findall(r" (--[a-z-]+)", own)) <= known, answer.command


def test_findings_that_are_named_exist() -> None:
    ids = {rule.id for rule in find_rules()}
    # Words with a hyphen that are no option.
    named = set(re.findall(r"(?<!-)\b(?:[a-z]+-)+[a-z]+\b", " ".join(answer.look_for for answer in ANSWERS)))
    assert {"input-bound", "sync-in-step"} <= named & ids
    assert named - {"tensor-core"} <= ids
