"""Lines whose results training reads, by the source: of a rollout they are, of a preview they are not."""

from __future__ import annotations

import ast
import linecache
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfkit._location import Location
from perfkit.record.samplers.training_inputs import find_training_inputs
from perfkit.record.samplers.user_source import HotPlaces, hot_places
from perfkit.run.records import CallPaths, Phase

PPO = """
def rollout(env, policy):
    for _ in range(64):
        env.push(policy(env.state))  # hot
    return env.states, env.rewards

def update(policy, optimizer, data):
    for pick in batches(data):
        loss = policy(pick).mean()
        loss.backward()  # trains
        optimizer.step()

def main():
    for _ in range(100):
        states, rewards = rollout(env, policy)  # called
        update(policy, optimizer, (states, rewards))  # trains
"""
INSIDE_OF_THE_LOOP = """
def main():
    for step in range(400):
        if step % 16 == 0:
            states, rewards = rollout(policy, carts)  # called
            advantage = rewards - rewards.mean()
        ratio = policy(states)
        loss = (ratio * advantage).mean()
        loss.backward()  # trains
"""
BUFFER = """
def collect(env, policy, memory):
    for _ in range(64):
        memory.add(env.push(policy(env.state)))  # hot

def main():
    for step in range(400):
        if step % 16 == 0:
            collect(env, policy, buffer)  # called
        batch = buffer.sample(32)
        loss = policy(batch).mean()
        loss.backward()  # trains
"""
AGENT = """
class Agent:
    def play(self):
        self.states[self.at] = self.env.push()  # hot

    def update(self):
        chosen = self.states[torch.randint(9, (4,))]
        loss = self.policy(chosen).mean()
        loss.backward()  # trains

    def fit(self):
        for _ in range(100):
            self.play()  # called
            self.update()  # trains
"""
NESTED = """
class PPO:
    def rollout(self):
        rows = self.rows
        for t in range(64):
            answer, reward = self.env.step(self.agent.act(self.seen))  # hot
            rows.reward[t] = reward
        return rows.advantages()

    def update(self, advantages):
        loss = self.agent(advantages).mean()
        loss.backward()  # trains

    def learn(self):
        for _ in range(100):
            self.update(self.rollout())  # called and trains
"""
PREVIEW = """
def preview(model, noise):
    image = model(noise)  # hot
    image.save("now.png")

def main():
    for step in range(400):
        loss = model(noise.add(images)).mean()
        loss.backward()  # trains
        if step % 16 == 0:
            preview(model, noise)  # called
"""
VALIDATION = """
def main():
    best = 9.0
    for step in range(400):
        loss = model(images).mean()
        loss.backward()  # trains
        if step % 16 == 0:
            error = validate(model, held_out)  # called
            history.append(error)
            best = min(best, error)
            print(step, error, best)
"""
KEEPS_ITS_OWN = """
class Trainer:
    def report(self):
        self.image = self.model(self.noise)  # hot

    def step(self, images):
        loss = self.model(images).mean()
        loss.backward()  # trains

    def fit(self):
        for images in self.loader:
            self.step(images)  # trains
            self.report()  # called
"""


def paths_of(file: Path, text: str) -> CallPaths:
    """Samples of the marked lines: "called" leads to "hot", and the last two lines that train to one another."""
    marks: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if "# " in line:
            for mark in line.partition("# ")[2].split(" and "):
                marks.setdefault(mark, []).append(number)
    chains: Sequence[tuple[Phase, list[int]]] = (
        ("other", [*marks["called"], *marks.get("hot", [])]),
        ("backward", marks["trains"][::-1]),
    )
    frames, frame, parent, phase, samples = [], [], [], [], []
    for of, numbers in chains:
        above = -1
        for number in numbers:
            frames.append(Location(file=str(file), line=number, function="main", owner="user"))
            frame.append(len(frames) - 1)
            parent.append(above)
            phase.append(of)
            samples.append(0)
            above = len(frame) - 1
        samples[-1] = 40
    columns = (tuple(column) for column in (frames, frame, parent, phase, samples))
    return CallPaths(**dict(zip(("frames", "frame", "parent", "phase", "samples"), columns, strict=True)))


def found(folder: Path, text: str) -> list[str]:
    """What stands in the lines whose results training reads."""
    file = folder / "train.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    lines = text.splitlines()
    places = find_training_inputs(hot_places(paths_of(file, text)))
    return [lines[(place.line or 0) - 1].partition("# ")[2] for place in places]


@pytest.mark.parametrize(
    "text",
    [PPO, INSIDE_OF_THE_LOOP, BUFFER, AGENT],
    ids=["returned", "names of the loop", "a buffer that is filled", "attributes of an agent"],
)
def test_what_a_rollout_computes_goes_into_training(text: str, tmp_path: Path) -> None:
    assert "called" in found(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NESTED, ["hot"]),
        (NESTED.replace("self.update(self.rollout())", "self.update(self.rows, print(self.rollout))"), []),
        (NESTED.replace("self.update(self.rollout())", "self.update(self.rows.rollout())"), []),
        (NESTED.replace("return rows.advantages()", "return self.seen"), []),
    ],
    ids=["its result is an argument", "it is not called", "of something else", "it returns something else"],
)
def test_what_a_rollout_hands_to_the_update_in_one_statement_goes_into_training(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert found(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text",
    [PREVIEW, VALIDATION, KEEPS_ITS_OWN],
    ids=["a preview", "a validation", "an attribute that nobody trains on"],
)
def test_what_people_look_at_does_not(text: str, tmp_path: Path) -> None:
    assert "called" not in found(tmp_path, text)


@pytest.mark.parametrize("text", ["", "def main(:\n    pass  # called\n    pass  # trains\n"])
def test_without_a_source_nothing_is_known(text: str, tmp_path: Path) -> None:
    text = text or "step()  # called\ntrain()  # trains\n"
    paths = paths_of(tmp_path / "gone.py", text)

    assert find_training_inputs(hot_places(paths)) == ()


def test_a_long_function_is_read_in_the_time_of_some_parses_of_its_file(tmp_path: Path) -> None:
    """Each statement reads what the one before sets, as in a script without functions."""
    lines = [f"    v{i} = f{i}(v{i - 1}, w[{i}], key=x.y.z({i}) + q.r)" for i in range(1, 500)]
    text = "\n".join(["def main():", *lines, "    v499.backward()  # trains"])
    text += "".join(f"\ndef f{i}(a, b, key=None):\n    self.u{i}[b] = a\n    self.v{i}.add(a)" for i in range(1, 500))
    file = tmp_path / "train.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    at = {(str(file), n): Location(file=str(file), line=n, function="main", owner="user") for n in range(2, 34)}

    began = time.perf_counter()
    ast.parse(text)
    parsed, began = time.perf_counter() - began, time.perf_counter()
    found = find_training_inputs(HotPlaces(frozenset({(str(file), 501)}), at))

    assert len(found) == 32
    # About as long was measured for a similar file; without a table of what statements read and set 700 times.
    assert time.perf_counter() - began < 50 * parsed
