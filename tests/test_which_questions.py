"""How often `perfkit which` names the right entry first: for unseen questions, and for its own, left out in turn.

The figure to believe for somebody who types a new sentence is 21 of 33: the first run of judging.toml in the words of
this project, which were chosen without sight of the table of words. The aim, nine of ten, is far off: 901 more
wordings and a larger table of words left it at 21, with the right entry among the three that are shown for 28.

First runs before that, with other wordings, each of a set that was labelled before it was asked: 37 of 60 (the table of
words before this one), then 32 of 41, 39 of 50, 27 of 40, 32 of 40 and 27 of 38, which all tuned the table
afterwards, and 27 of the 33 that now are 21.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec.toml
import pytest

from perfkit.which import ANSWERS, EVERYDAY, find_answers
from perfkit.which._concepts import CONCEPTS, concepts_of

JUDGING = Path(__file__).parent / "questions" / "judging.toml"

#: What a question is about -> a part of the question of each right entry.
RIGHT: dict[str, tuple[str, ...]] = {
    "where the time of a step goes": ("Why is my training slow",),
    "one phase of the step": ("Why is my training slow", "Which operators"),
    "two inputs compared": ("Why is my training slow", "Which operators", "Did my change make"),
    "slower than another framework": ("Why is my training slow", "Did my change make"),
    "slower on a GPU": ("Why is my training slow", "launch-bound", "My GPU is idle"),
    "steps that grow": ("longer and longer",),
    "an idle GPU": ("My GPU is idle",),
    "communication": ("is it communication",),
    "the use of several GPUs": ("is it communication", "My GPU is idle", "Which optimization helps"),
    "unequal GPUs": ("One rank or node", "CUDA out of memory"),
    "waiting ranks": ("is it communication", "One rank or node", "Ranks hang", "Now and then"),
    "unused memory": ("CUDA out of memory", "Which batch size", "My GPU is idle"),
    "saving checkpoints": ("saving checkpoints",),
    "a stop after validation": ("It hangs", "What do validation"),
    "the whole system": ("What does the whole system",),
    "NVTX in Nsight": ("Name parts", "What does the whole system", "What works on"),
    "NVTX on a timeline": ("Name parts", "the timeline: what runs when", "Profile inside"),
}


def test_questions_that_did_not_tune_the_table_get_the_right_entry_as_often_as_at_their_first_run() -> None:
    asked = msgspec.toml.decode(JUDGING.read_bytes())["question"]
    wrong = []
    for question in asked:
        found = find_answers(question["text"])
        first = found[0].answer.question if found else "no answer"
        if not any(piece in first for piece in RIGHT[question["about"]]):
            wrong.append(f"{question['text']} -> {first}")

    assert len(asked) == 33
    assert len(asked) - len(wrong) >= 21, "\n".join(wrong)


def test_every_subject_is_one_entry() -> None:
    for pieces in RIGHT.values():
        for piece in pieces:
            assert sum(piece in answer.question for answer in ANSWERS) == 1, piece


def test_no_question_that_judges_is_among_those_that_the_table_knows() -> None:
    known = {question.lower().strip(" ?.!") for answer in ANSWERS for question in answer.asked}
    asked = msgspec.toml.decode(JUDGING.read_bytes())["question"]

    assert not known & {question["text"].lower().strip(" ?.!") for question in asked}


def test_asked_questions_find_their_entry_when_a_tenth_is_left_out() -> None:
    numbered = [(number, question) for number, answer in enumerate(ANSWERS) for question in answer.asked]
    random.Random(0).shuffle(numbered)
    wrong = []
    for tenth in range(10):
        left_out = set(numbered[tenth::10])
        rest = tuple(
            msgspec.structs.replace(answer, asked=tuple(q for q in answer.asked if (number, q) not in left_out))
            for number, answer in enumerate(ANSWERS)
        )
        for number, question in sorted(left_out):
            found = find_answers(question, rest)
            if not found or found[0].answer is not rest[number]:
                wrong.append(f"{question} -> {found[0].answer.question if found else 'no answer'}")

    # 90.9% of 1782. That is too friendly: the words of the concepts were chosen with all of them in view. Of the 432
    # that half of a new set had, 82% were right before that half was looked at.
    assert len(wrong) <= 0.10 * len(numbered), "\n".join(wrong)


def test_everyday_sentences_get_no_answer_when_a_tenth_of_them_is_left_out() -> None:
    answered = []
    for tenth in range(10):
        left_out = EVERYDAY[tenth::10]
        rest = tuple(sentence for sentence in EVERYDAY if sentence not in left_out)
        answered += [sentence for sentence in left_out if find_answers(sentence, everyday=rest)]

    # Without everyday sentences to compare with, 60 of the 134 get an answer.
    assert len(EVERYDAY) == 134
    assert len(answered) <= 16, answered


@pytest.mark.parametrize(
    "question", ["the train to Berlin is late", "the ferry was late", "the bus to Paris is slow today"]
)
def test_a_sentence_about_anything_else_gets_no_answer_though_it_has_words_of_this_field(question: str) -> None:
    assert concepts_of(question)
    assert find_answers(question) == []


@pytest.mark.parametrize("question", ["my training step is slow", "training step is slow", "my steps are too slow"])
def test_a_slow_step_is_where_everything_begins(question: str) -> None:
    assert find_answers(question)[0].answer.question.startswith("Why is my training slow")


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("launch-bound", "launch-bound"),
        ("PPO rollouts take most of the time", "rollouts"),
        ("sampling from my diffusion model is slow", "generation of tokens"),
        ("which batch size should I use", "Which batch size"),
        ("is gradient checkpointing worth it", "activation (gradient) checkpointing"),
        ("saving checkpoints blocks training", "saving checkpoints"),
        ("tokenization on the fly is slow", "tokenization and augmentations"),
        ("find the straggler", "One rank or node"),
        ("out of memory", "CUDA out of memory"),
    ],
)
def test_subjects_that_everybody_asks_about_are_found(question: str, right: str) -> None:
    assert right in find_answers(question)[0].answer.question


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("my datalaoder is slow", "my dataloader is slow"),
        ("DataLoader", "data loader"),
        ("cudaStreamSynchronize", "cuda stream synchronize"),
        ("GRPOTrainer", "grpo trainer"),
        ("out-of-memory", "out of memory"),
        ("all_reduce", "allreduce"),
        ("torch.compile recompilations", "torch compile recompilation"),
    ],
)
def test_spellings_and_typing_errors_are_the_same_concepts(typed: str, meant: str) -> None:
    assert concepts_of(typed) == concepts_of(meant) != frozenset()


def test_the_longest_phrase_takes_its_words() -> None:
    assert "save_ckpt" in concepts_of("checkpoint")
    assert concepts_of("gradient checkpointing") == {"act_ckpt"}


def test_every_concept_of_an_answer_has_phrases_and_every_concept_an_answer() -> None:
    named = {
        concept
        for answer in ANSWERS
        for combination in f"{answer.subject} {answer.signs} {answer.hints}".split()
        for concept in combination.split("+")
    }

    assert named == set(CONCEPTS)
    assert all(listed.strip(" ;") for listed in CONCEPTS.values())
