"""Ops that compute the same in each step, as two steps in a row show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfkit.record.samplers import constant_ops, op_paths
from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import ConstantOps

SIDE = 8
TABLE = torch.randn(64, SIDE)
PROMPTS = torch.randint(16, (3, 5))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(16, SIDE), nn.Linear(SIDE, SIDE)
        self.requires_grad_(False)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = torch.relu(self.out(self.embed(codes)))
        return hidden.mean(1)


FROZEN = Frozen()


def found(step: Callable[[], Any]) -> ConstantOps:
    """The row with most ops that are the same in two steps."""
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return max(log.rows(), key=lambda row: row.ops)


def mask() -> Tensor:
    allowed = torch.ones(SIDE, SIDE).tril_()
    allowed[0] = 2.0
    allowed = allowed.clone().unsqueeze(0).squeeze(0)  # a view of what has no name any more
    return allowed.log() * torch.tensor([float(2**power) for power in range(SIDE)])


def test_a_function_whose_ops_are_the_same_again_is_to_be_called_once_by_its_caller() -> None:
    def step() -> Tensor:
        batch = torch.randn(SIDE)
        return batch + mask()

    for row in (found(step), found(torch.inference_mode()(step))):
        assert row.called is not None
        assert (row.called.function, row.function.rpartition(".")[2]) == ("mask", "step")
        assert row.ops >= 4


def test_an_expression_in_a_function_that_also_does_other_things_is_that_line() -> None:
    def step() -> Tensor:
        batch = TABLE[torch.randint(64, (4,))]
        return (batch - TABLE.mean(0)) / batch.std()

    row = found(step)

    assert (row.called, row.ops, row.busiest.line) == (None, 1, row.line)


def test_an_average_of_weights_that_are_not_trained_is_written_in_vain() -> None:
    trained, frozen = torch.randn(SIDE), torch.randn(SIDE)
    averages = {"trained": trained.clone(), "frozen": frozen.clone()}
    noise = torch.ones(SIDE)

    def step() -> None:
        trained.add_(torch.randn(SIDE))
        averages["trained"].lerp_(trained, 0.1)
        averages["frozen"].lerp_(frozen, 0.1)
        noise.fill_(2.0)
        noise.mul_(0.5)  # what is written twice is needed in between

    row = found(step)

    assert (row.line, row.ops) == (step.__code__.co_firstlineno + 3, 1)


def test_a_frozen_model_on_the_same_input_is_one_call() -> None:
    def step() -> Tensor:
        return torch.randn(3, SIDE) @ FROZEN(PROMPTS).T

    row = found(step)

    assert row.called is not None
    assert row.called.function == "Frozen.forward"


def test_memory_in_another_order_is_looked_at_too() -> None:
    """Weights in channels_last, and a picture whose channels were moved to the front."""
    frozen = nn.Conv2d(3, 16, 3).to(memory_format=torch.channels_last).requires_grad_(False)
    picture = torch.randn(1, 20, 20, 3).permute(0, 3, 1, 2)

    def step() -> None:
        frozen(picture)
        frozen(torch.randn(1, 3, 20, 20))

    assert found(step).line == step.__code__.co_firstlineno + 1


def test_what_a_library_does_below_a_line_that_also_changes_is_not_the_line_s(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "trainer.py"
    library.parent.mkdir()
    library.write_text("def run(table, torch):\n    return table.exp() + torch.randn(8)\n")
    scope: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), scope)
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        scope["run"](TABLE, torch)
        log.stop()

    assert log.rows() == ()


def test_a_library_s_loop_without_a_line_of_the_user_s_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_ops, "owner_of", lambda file: "lightning")
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        TABLE.exp()
        log.stop()

    assert log.rows() == ()


def _trained() -> Callable[[], Any]:
    weight = torch.ones(SIDE, SIDE, requires_grad=True)

    def step() -> None:
        (TABLE @ weight).sum()
        with torch.no_grad():
            weight.sub_(0.1)

    return step


def _updated_without_a_graph() -> Callable[[], Any]:
    average = torch.ones(SIDE, SIDE)

    def step() -> None:
        average.mul_(0.9)
        TABLE @ average

    return step


def _updated_as_a_list() -> Callable[[], Any]:
    averages = [torch.ones(SIDE), torch.ones(SIDE)]

    def step() -> None:
        torch._foreach_mul_(averages, 0.9)
        averages[0].exp()

    return step


def _written_in_place() -> Callable[[], Any]:
    buffer = torch.zeros(SIDE)
    return lambda: buffer.exp_().zero_()


def _filled_through_numpy() -> Callable[[], Any]:
    seen = torch.zeros(SIDE)
    array = seen.numpy()

    def step() -> None:
        array[:] += 1
        seen.exp()

    return step


def _new_batches() -> Callable[[], Any]:
    batches = iter([torch.ones(SIDE), torch.ones(SIDE)])
    return lambda: next(batches).exp()


def _other_numbers() -> Callable[[], Any]:
    factors = iter([0.1, 0.2])
    return lambda: TABLE * next(factors)


def _written_through_a_view() -> Callable[[], Any]:
    def step() -> None:
        made = torch.zeros(SIDE)
        made[2:4] = torch.randn(2)
        made.exp()

    return step


def _inferring(changing: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
    """The same in inference mode, in which torch counts no versions and knows no bases of views."""

    def make() -> Callable[[], Any]:
        with torch.inference_mode():
            return torch.inference_mode()(changing())

    return make


def _cache_of_keys() -> Callable[[], Any]:
    cache, places = torch.zeros(1000), iter([3, 5])

    def step() -> None:
        at = next(places)
        cache[at : at + 1] = 1.0
        cache.exp()

    return step


def _read_through_another_view() -> Callable[[], Any]:
    def step() -> None:
        made = torch.zeros(SIDE)
        first, all_ = made[:4], made[:]
        first.copy_(torch.randn(4))
        all_.exp()

    return step


@pytest.mark.parametrize(
    ("changing", "operation"),
    [
        (_cache_of_keys, "exp"),
        (_inferring(_cache_of_keys), "exp"),
        (_read_through_another_view, "exp"),
        (_inferring(_read_through_another_view), "exp"),
        (_inferring(_written_in_place), "exp_"),
        (_inferring(_written_through_a_view), "exp"),
        (_inferring(_new_batches), "exp"),
        (_inferring(_other_numbers), "mul"),
        (_inferring(lambda: lambda: torch.randn(SIDE).exp()), "exp"),
        (_trained, "mm"),
        (_updated_without_a_graph, "mm"),
        (_updated_as_a_list, "exp"),
        (_updated_as_a_list, "_foreach_mul_"),
        (_written_in_place, "exp_"),
        (_filled_through_numpy, "exp"),
        (_new_batches, "exp"),
        (_other_numbers, "mul"),
        (lambda: lambda: torch.randn(SIDE).exp(), "exp"),
        (_written_through_a_view, "exp"),
    ],
)
def test_what_depends_on_something_that_changes_is_not_constant(
    changing: Callable[[], Callable[[], Any]], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant: list[str] = []
    number_of_op = ConstantOpLog._number_of_op

    def noted(self: Any, func: Any, *given: Any) -> int | None:
        number = number_of_op(self, func, *given)
        if self._before is not None and number in self._before:
            constant.append(func._schema.name.partition("::")[2])
        return number

    monkeypatch.setattr(ConstantOpLog, "_number_of_op", noted)

    step = changing()
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()

    assert operation not in constant


def test_a_range_of_torchs_profiler_is_no_work() -> None:
    def step() -> Tensor:
        with torch.profiler.record_function("outer"):
            return torch.randn(SIDE).exp()

    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()

    assert log.rows() == ()


def test_one_step_alone_shows_nothing_and_nothing_is_kept_alive() -> None:
    def step() -> Tensor:
        return torch.randn(SIDE) + mask()

    log = ConstantOpLog(lambda: "forward")
    log.start()
    step()
    log.stop()

    assert log.rows() == ()
    assert not log._values


def test_an_error_of_the_program_is_the_program_s() -> None:
    log = ConstantOpLog(lambda: "forward")
    log.start()
    with pytest.raises(RuntimeError, match="size"):
        torch.ones(2) + torch.ones(3)
    log.stop()

    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_an_error_of_perfkit_s_stays_in_perfkit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(func: Any) -> Any:
        raise AttributeError("this torch has no schemas")

    monkeypatch.setattr(constant_ops, "schema_of", refuse)
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
        log.stop()

    assert log.rows() == ()


def test_a_library_s_function_that_computes_the_same_is_named_at_the_line_below_which_it_runs(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "graphs.py"
    library.parent.mkdir()
    library.write_text(
        "def norm(table):\n    return table.exp().sum(0)\ndef conv(x, table):\n    return (x * norm(table)).relu()\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), scope)

    row = found(lambda: scope["conv"](torch.randn(SIDE), TABLE))

    assert row.called is not None
    assert (row.called.function, row.called.owner, row.ops) == ("norm", "graphs", 2)
    assert Path(row.file).name == Path(__file__).name


def test_a_function_that_computes_something_else_elsewhere_is_constant_where_its_input_is() -> None:
    def block(x: Tensor) -> Tensor:
        return x.exp().sum(0)

    def encode(x: Tensor) -> Tensor:
        return block(block(x).unsqueeze(0)).relu()  # mostly

    def step() -> None:
        encoded = encode(TABLE)  # once
        block(torch.randn(SIDE, SIDE) + encoded)

    row = found(step)

    assert "# once" in Path(__file__).read_text().splitlines()[row.line - 1]
    assert row.called is not None
    assert (row.called.function or "").endswith("encode")
    assert row.ops == 5
    assert "# mostly" in Path(__file__).read_text().splitlines()[(row.busiest.line or 0) - 1]


def test_of_a_module_of_a_library_that_computes_the_same_the_line_that_makes_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process may have imported more files than are read.
    monkeypatch.setattr(op_paths, "user_files", lambda: (__file__,))
    op_paths.made_at.cache_clear()
    library = tmp_path / "site-packages" / "graphs.py"
    library.parent.mkdir()
    library.write_text(
        "import torch\ndef norm(table):\n    return table.exp().sum(0)\nclass GraphConv(torch.nn.Module):\n"
        "    def forward(self, x, table):\n        return (x * norm(table)).relu()\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), scope)
    GraphConv = scope["GraphConv"]
    conv = GraphConv()  # the line that makes it

    row = found(lambda: conv(torch.randn(SIDE), TABLE))

    assert row.made_at is not None
    assert row.made_at.line is not None
    assert "the line that makes it" in Path(__file__).read_text().splitlines()[row.made_at.line - 1]


def test_zeros_that_are_filled_in_each_step_cannot_be_kept() -> None:
    def step() -> Tensor:
        part, whole = torch.zeros(64, 64), torch.zeros(64, 64)
        part[:, 0] = torch.rand(64)
        whole.copy_(torch.rand(64, 64))
        return part + whole + torch.full((64, 64), -1.0).triu(1)

    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()

    assert [row.ops for row in log.rows()] == [2]


def buffers(step: Callable[[], Any]) -> list[tuple[int, int, int]]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return [(one.calls, one.elements, one.added) for one in log.buffers.rows()]


@pytest.mark.parametrize(
    ("keeps", "times", "expected"), [(True, 1, [(1, 80_000, 8)]), (True, 3, [(3, 240_000, 24)]), (False, 1, [])]
)
def test_a_memory_that_is_joined_anew_in_each_step_is_counted(keeps: bool, times: int, expected: list[Any]) -> None:
    memory = torch.zeros(10_000, 8)

    def step() -> None:
        nonlocal memory
        for _ in range(times):
            joined = torch.cat([memory[1:], torch.randn(1, 8)])
            memory = joined if keeps else torch.randn(10_000, 8)

    assert buffers(step) == expected


def test_features_that_a_forward_joins_one_after_the_other_are_no_memory() -> None:
    def step() -> None:
        x = torch.randn(100, 1000)
        for _ in range(3):
            x = torch.cat([x, x[:, :9].relu()], dim=1)

    assert buffers(step) == []


def test_the_library_that_joins_a_cache_anew_is_named() -> None:
    source = "def update(torch, keys, new):\n    return torch.cat([keys, new])\n"
    library: dict[str, Any] = {}
    exec(compile(source, "/x/site-packages/transformers/cache_utils.py", "exec"), library)
    log = ConstantOpLog(lambda: "forward")
    keys = torch.zeros(10_000, 8)
    for _ in range(2):
        log.start()
        keys = library["update"](torch, keys, torch.randn(1, 8))
        log.stop()

    assert [one.library for one in log.buffers.rows()] == ["transformers"]
