"""The dry run on programs of real shape: the marked lines and no others, the same values, nothing left behind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit._patches import installed
from perfkit.syncs import detect_syncs
from perfkit.syncs.dry_run import op_kernels

Marks = Callable[[str], dict[int, int]]

#: A transformer step with autocast, gradient scaling and clipping. A comment on each line that syncs has how often in
#: two steps; on a set-up line that moves tensors, it is their number.
TRANSFORMER = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        up, down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), up, nn.GELU(), down)

    def forward(self, x, mask):
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, words=50, width=32, length=12):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.place(torch.arange(length, device=tokens.device))
        mask = torch.triu(torch.full((length, length), float("-inf"), device=tokens.device), diagonal=1)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False)
        return self.head(x)


data = TensorDataset(torch.randint(0, 50, (16, 12)), torch.randint(0, 50, (16, 12)))
loader = DataLoader(data, batch_size=8, pin_memory=device.type == "cuda")
model = Model().to(device)  # sync: 28
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=FUSED)
scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
losses, total = [], torch.zeros((), device=device)
for step, (tokens, targets) in enumerate(loader):
    tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    if torch.isnan(loss):  # sync: 2
        raise SystemExit("diverged")
    accuracy = (logits.argmax(-1) == targets).float().mean()
    hits = logits[targets > 25]  # sync: 2
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # sync: STEP
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    schedule.step()
    total += loss.detach()
    losses.append(loss.item())  # sync: 2
    if step % 2 == 1:
        print(f"{step} {accuracy:.3f}", norm)  # sync: 2
    torch.cuda.synchronize() if torch.cuda.is_available() else None  # sync: 2
weights = [p.detach().cpu() for p in model.parameters()]  # sync: 28
"""


def counts(syncs: Any) -> dict[int, int]:
    """Line -> syncs reported there."""
    found: dict[int, int] = {}
    for event in syncs.events:
        found[event.line] = found.get(event.line, 0) + event.count
    return found


@pytest.mark.parametrize("fused", [False, True])
def test_a_transformer_step_reports_the_marked_lines_and_the_plain_losses(
    fused: bool, run_program: Callable[..., Any], no_cuda: None, marks: Marks
) -> None:
    # GradScaler reads found_inf unless the optimizer is fused.
    source = TRANSFORMER.replace("FUSED", str(fused)).replace("STEP", "0" if fused else "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the plain run has no device to pin for
        plain = run_program(source)

    with detect_syncs("dry") as syncs:
        dry = run_program(source)

    assert counts(syncs) == marks(source)
    assert dry["losses"] == plain["losses"]
    assert all(map(torch.equal, dry["weights"], plain["weights"]))


def test_a_script_on_the_cpu_reports_its_lines_and_trains_bit_for_bit_the_same(
    run_program: Callable[..., Any], marks: Marks
) -> None:
    source = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
losses = []
def train(steps):
    for _ in range(steps):
        x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
        out = model(x.to("cpu"))
        wrong = out.argmax(1) != y
        loss = torch.nn.functional.cross_entropy(out, y)
        hard = out[wrong]  # sync: 3
        if wrong.any():  # sync: 3
            loss = loss + hard.square().mean()
        optimizer.zero_grad()
        loss.backward()  # sync: 3
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.tolist())  # sync: 3
"""
    plain = run_program(source + "train(3)\n")
    dry = run_program(source)
    with detect_syncs("dry", device_of=[dry["model"], dry["optimizer"]]) as syncs:
        dry["train"](3)

    assert counts(syncs) == marks(source)
    assert dry["losses"] == plain["losses"]


#: A detector's step: masks, data-dependent sizes, boxes by index.
DETECTION = """\
import torch
from torch.nn import functional as F
device = "cuda"
torch.manual_seed(0)
features, head = torch.randn(2, 8, 16, 16).to(device), torch.nn.Conv2d(8, 5, 1).to(device)  # sync: 3
truth = (torch.rand(2, 16, 16) > 0.9).to(device)  # sync: 1
boxes = torch.rand(2, 16, 16, 4, device=device)
for step in range(3):
    out = head(features)
    scores, offsets = out[:, 0].sigmoid(), out[:, 1:].permute(0, 2, 3, 1)
    positive = truth & (scores > 0.1)
    count = positive.sum().clamp(min=1)
    chosen = offsets[positive]  # sync: 3
    box_loss = F.smooth_l1_loss(chosen, boxes[positive], reduction="sum") / count  # sync: 3
    where = torch.nonzero(positive)  # sync: 3
    if where.shape[0] == 0:
        continue
    hard = scores.flatten(1).topk(5).indices
    class_loss = F.binary_cross_entropy(scores, truth.float())
    weights = torch.where(truth, 2.0, 1.0)
    scores = scores.masked_fill(~truth, 0.0)
    labels = torch.unique(where[:, 0])  # sync: 3
    image = where[0, 0]
    row = features[image]  # sync: 3
    (box_loss + class_loss + weights.mean()).backward()  # sync: 3
    head.zero_grad()
    keep = boxes[0, 0][[0, 2]]  # sync: 3
"""

#: An agent's loop: an action, a reward and a decision are read in every step; sampling reads nothing.
AGENT = """\
import torch
device = "cuda"
policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(device)  # sync: 4
optimizer = torch.optim.Adam(policy.parameters())
state, rewards, log_probs = torch.zeros(4, device=device), [], []
for step in range(5):
    distribution = torch.distributions.Categorical(logits=policy(state), validate_args=False)
    action = distribution.sample()
    log_probs.append(distribution.log_prob(action))
    choice = action.item()  # sync: 5
    state = state + torch.tensor([choice, 1.0, 0.0, 0.0], device=device)  # sync: 5
    reward = state.sum()
    rewards.append(float(reward))  # sync: 5
    if reward > 100:  # sync: 5
        break
returns = torch.tensor(rewards).cumsum(0).to(device)  # sync: 1
loss = -(torch.stack(log_probs) * returns).sum()
loss.backward()
optimizer.step()
history = [p.tolist() for p in log_probs]  # sync: 5
"""


@pytest.mark.parametrize("source", [DETECTION, AGENT], ids=["detection", "agent"])
def test_a_program_reports_the_marked_lines_and_no_others(
    source: str, run_program: Callable[..., Any], marks: Marks
) -> None:
    with detect_syncs("dry") as syncs:
        run_program(source)

    assert counts(syncs) == marks(source)


#: Programs whose one sync, on the line marked, is reached in an unusual way. `w` is on the device.
ODD_PLACES = {
    "a backward hook": "y = (w * 2)\ny.register_hook(lambda g: g * g.sum().item())  # sync: 1\ny.sum().backward()",
    "a parameter's accumulate hook": """\
def look(p):
    p.grad.norm().item()  # sync: 1
w.register_post_accumulate_grad_hook(look)
(w * 2).sum().backward()
""",
    "the backward of a mask": "(w[w > 0]  # sync: 1\n ).sum().backward()  # sync: 1",
    "a custom Function's backward": """\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        if g.sum() > 0:  # sync: 1
            return g * 2
        return g
Double.apply(w).sum().backward()
""",
    "torch.autograd.grad": "y = w * 2\ny.register_hook(lambda g: g.cpu())  # sync: 1\ntorch.autograd.grad(y.sum(), w)",
    "inference_mode": "with torch.inference_mode():\n    (w @ w).sum().item()  # sync: 1",
    "inference_mode, a composite": "with torch.inference_mode():\n    torch.argwhere(w)  # sync: 1",
    "no_grad": "with torch.no_grad():\n    w[w > 0]  # sync: 1",
    "autocast": "with torch.autocast('cpu', dtype=torch.bfloat16):\n    (w @ w).sum().item()  # sync: 1",
    "a compiled function": "f = torch.compile(lambda x: (x * 2).sum().item(), backend='eager')  # sync: 1\nf(w)",
    "vmap, after it": "torch.vmap(lambda r: r * 2)(w).sum().item()  # sync: 1",
    "a sparse tensor": "s = w.detach().to_sparse()  # sync: 1\ns2 = s * 2",
    "a deep copy": "import copy\nc = copy.deepcopy(w)\nc.sum().item()  # sync: 1",
    "a view of data": "v = w.data.view(-1)[2:]\nv.sum().item()  # sync: 1",
    "a gradient": "(w * 2).sum().backward()\nw.grad.norm().item()  # sync: 1",
    "a scheduler": """\
o = torch.optim.SGD([w], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.detach().sum())  # sync: 1
""",
    "both checkpoints": """\
from torch.utils.checkpoint import checkpoint
def f(x):
    if x.sum() > 1e9:  # sync: 4
        x = x + 1
    return x.relu()
for reentrant in (True, False):
    checkpoint(f, w, use_reentrant=reentrant).sum().backward()
""",
    "a custom op": """\
@torch.library.custom_op("perfkit_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()  # sync: 1
doubled(w.detach()).sum().item()  # sync: 1
""",
    "a dispatch mode of the program": """\
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False):
    (w @ w).sum().item()  # sync: 1
""",
    "selective checkpointing": """\
from functools import partial
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
policy = lambda context, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE
def f(x):
    if x.sum() > 1e9:  # sync: 2
        x = x + 1
    return x.relu()
contexts = partial(create_selective_checkpoint_contexts, policy)
checkpoint(f, w, use_reentrant=False, context_fn=contexts).sum().backward()
""",
    "vmap of a gradient": "torch.func.vmap(torch.func.grad(lambda r: r.pow(3).sum()))(w).sum().item()  # sync: 1",
    "a transformer with a mask": """\
layer = torch.nn.TransformerEncoderLayer(4, 2, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
encoder(w[None], mask=torch.zeros(4, 4, dtype=torch.bool, device=w.device))  # sync: 1
""",
}


#: Places that need a newer torch than 2.4.
SINCE = {"selective checkpointing": pytest.mark.since_torch((2, 6), "policies of checkpoints")}


@pytest.mark.parametrize("place", [pytest.param(name, marks=SINCE.get(name, ())) for name in ODD_PLACES])
def test_a_sync_is_found_in(place: str, run_program: Callable[..., Any], marks: Marks) -> None:
    source = ODD_PLACES[place]
    with detect_syncs("dry"):
        w = torch.ones(4, 4, device="cuda", requires_grad=True)
        with detect_syncs("dry") as syncs:
            run_program(source, torch=torch, w=w)

    assert counts(syncs) == marks(source)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_pinning_loader_move_without_a_sync(workers: int) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    with detect_syncs("dry", certainty="may") as syncs:
        for pinned in (True, False):
            loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers, pin_memory=pinned)
            for (batch,) in loader:
                batch.to("cuda", non_blocking=True)

    assert [(event.certainty, event.count) for event in syncs.events] == [("may", 2)]


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_an_optimizer_that_keeps_its_counters_on_the_host_does_not_sync(name: str) -> None:
    with detect_syncs("dry") as syncs:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = getattr(torch.optim, name)([weight])
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

    assert syncs.events == ()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_does_not_sync_for_its_buckets(process_group: None) -> None:
    with detect_syncs("dry") as syncs:
        model = torch.nn.Linear(4, 4, device="cuda")
        parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            parallel(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

    assert syncs.events == ()


def test_barriers_and_collectives_of_objects_may_sync(
    process_group: None, run_program: Callable[..., Any], marks: Marks
) -> None:
    program = """\
dist.barrier()  # sync: 1
dist.all_gather_object([None], {"loss": 1.0})  # sync: 1
dist.broadcast_object_list([1.0], src=0)  # sync: 1
dist.all_reduce(x)
"""
    with detect_syncs("dry", certainty="may") as syncs:
        run_program(program, dist=torch.distributed, x=torch.ones(2, device="cuda"))

    assert counts(syncs) == marks(program)
    assert {(event.kind, event.certainty) for event in syncs.events} == {("collective", "may")}
    assert all("NCCL" in event.reason for event in syncs.events)


def test_a_script_finds_the_parts_of_torch_that_only_cuda_builds_have(
    run_program: Callable[..., Any], marks: Marks
) -> None:
    program = """\
event = torch.Event("cuda")
event.record()
event.synchronize()  # sync: 1
torch.Stream("cuda").synchronize()  # sync: 1
assert isinstance(event, torch.Event)
parallel = torch.nn.DataParallel(torch.nn.Linear(4, 4, device="cuda"))
assert parallel(torch.ones(2, 4, device="cuda")).is_cuda
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
"""
    with detect_syncs("dry") as syncs:
        run_program(program, torch=torch)

    assert counts(syncs) == marks(program)


def test_errors_of_ops_are_unchanged(run_program: Callable[..., Any]) -> None:
    with detect_syncs("dry"):
        x = torch.ones(4, 4, device="cuda", requires_grad=True)
        with pytest.raises(IndexError, match="out of bounds"):
            x[torch.tensor([10])]
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            torch.linalg.inv(torch.zeros(2, 2, device="cuda"))
        y = x * 2
        y.register_hook(lambda grad: grad @ torch.ones(3, 3, device="cuda"))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            y.sum().backward()


def test_a_line_that_raises_on_cuda_is_noted(run_program: Callable[..., Any]) -> None:
    with detect_syncs("dry") as syncs:
        x = torch.ones(2, 2, device="cuda")
        run_program("x + 1.0\nx + one\ny = host @ x", x=x, one=torch.tensor(1.0), host=torch.ones(2, 2))

    assert syncs.note is not None
    assert re.fullmatch(r"on CUDA these lines raise an error, .*program0\.py:3 \(aten::mm\)", syncs.note)


def test_the_advice_depends_on_the_torch_code_that_synced() -> None:
    with detect_syncs("dry") as syncs:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cuda")
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)

    assert [event.op for event in syncs.events] == ["item in GradScaler.step"]
    assert "fused=True" in syncs.events[0].advice


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")  # LBFGS of torch 2.8
def test_what_an_optimizer_of_torchs_reads_in_its_step_is_torchs_and_what_its_closure_reads_is_the_users() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    with perfkit.detect_syncs("dry", device_of=[model]) as syncs:
        optimizer.step(closure)

    owners = {event.op: event.owner for event in syncs.events}
    assert owners.pop("item") == "user"
    assert set(owners.values()) == {"torch"}


def test_a_sync_in_a_library_has_its_owner_and_line(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    library = tmp_path / "site-packages" / "bars" / "progress.py"
    library.parent.mkdir(parents=True)
    library.write_text("def show(value):\n    return value.item()\n")
    names: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), names)
    w = torch.ones(3)

    with detect_syncs("dry", device_of=w) as syncs:
        run_program("show(w.sum())", show=names["show"], w=w)

    event = syncs.events[0]
    assert (event.owner, event.via, event.line) == ("bars", f"{library}:2", 1)
    assert event.file.endswith("program0.py")
    assert "This sync is in bars" in event.advice
    assert "by bars" in repr(syncs)


def test_numpy_of_a_device_tensor_fails_as_on_cuda_if_the_script_requests_cuda() -> None:
    with detect_syncs("dry"):
        x = torch.ones(3, device="cuda")
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            x.numpy()


@pytest.mark.parametrize(
    "body",
    [
        "fail()",
        "y = x * 2\ny.register_hook(fail)\ny.sum().backward()",
        "torch.vmap(fail)(x)",
        "with torch.device('cuda'): fail()",
        "from torch.utils.checkpoint import checkpoint\ncheckpoint(fail, x, use_reentrant=False)",
    ],
)
def test_everything_is_put_back_after_an_error_in(body: str, run_program: Callable[..., Any]) -> None:
    def fail(*args: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), detect_syncs("dry"):
        run_program(f"x = torch.ones(3, device='cuda', requires_grad=True)\n{body}", torch=torch, fail=fail)

    assert installed() == []
    assert torch.ones(2).device.type == "cpu"


def test_the_mark_stays_with_a_model_between_two_dry_runs() -> None:
    with detect_syncs("dry"):
        model = torch.nn.Linear(2, 2).cuda()
    assert model.weight.device.type == "cpu"

    with detect_syncs("dry") as syncs:
        model(torch.ones(1, 2, device="cuda")).sum().item()

    assert [event.op for event in syncs.events] == ["item"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.15 says that torch.jit.trace is on its way out
def test_an_op_in_a_thread_that_torch_starts_from_a_dry_run_is_unchanged() -> None:
    def forked(x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    with detect_syncs("dry") as syncs:
        x = torch.ones(3, device="cuda")
        script = torch.jit.trace(forked, torch.ones(3), check_trace=False)
        result = torch.jit.wait(torch.jit.fork(script, x))

    assert result.tolist() == [1.0, 1.0, 1.0]
    assert syncs.events == ()


def test_the_table_has_no_rule_for_a_composite_op() -> None:
    from perfkit.syncs.dry_run.op_table import rule_for

    composite = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        and rule_for(name.split(".")[0], name.partition(".")[2]) is not None
    ]

    assert composite == []


def test_the_private_parts_of_torch_that_the_dry_run_needs_exist() -> None:
    key = torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert torch._C._functorch.is_functorch_wrapped_tensor(torch.ones(1)) is False
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward
    assert callable(torch.overrides._pop_mode)
    assert callable(torch.overrides._push_mode)
    assert torch.utils._device.CURRENT_DEVICE is None
    assert callable(torch._C._group_tensors_by_device_and_dtype)


def test_a_torch_without_those_parts_is_an_error_and_nothing_stays_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op_kernels, "_KEY", None)

    with pytest.raises(perfkit.UsageError, match="the dry run does not work with torch"), detect_syncs(mode="dry"):
        pass
    assert installed() == []


def test_perfkit_exports_what_the_docs_name() -> None:
    assert perfkit.detect_syncs is detect_syncs


def test_what_device_of_named_is_on_the_host_for_a_later_script_that_requests_cuda(
    run_program: Callable[..., Any],
) -> None:
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with perfkit.detect_syncs("dry", device_of=[model]):
        run_program("model(x)", model=model, x=x)
    with perfkit.detect_syncs("dry", simulate=True) as syncs:
        run_program("assert not model.weight.is_cuda\nmodel.cuda()", model=model)

    assert sum(event.count for event in syncs.events) == 2


def test_what_a_dry_run_moved_to_the_device_is_there_in_the_next(run_program: Callable[..., Any]) -> None:
    with perfkit.detect_syncs("dry", simulate=True):
        x = run_program("import torch\nx = torch.ones(2).cuda()")["x"]
    with perfkit.detect_syncs("dry", simulate=True) as syncs:
        run_program("x.sum().item()", x=x)

    assert [event.op for event in syncs.events] == ["item"]


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
def test_the_backward_of_a_maximum_reads_no_value_on_cuda(name: str) -> None:
    weight = torch.nn.Parameter(torch.randn(5))
    with detect_syncs("dry", device_of=weight) as syncs:
        getattr(weight * 2, name)().backward()

    assert syncs.events == ()
    assert syncs.observed
