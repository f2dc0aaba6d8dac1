"""What people do with DDP: unused parameters, static graphs, accumulation, several models, half precision, scalers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.checkpoint import checkpoint

import headway
from tests.ddp.training import LINK, batch, bits, mlp, parameters_of, step_once, train, wrap

pytestmark = pytest.mark.pool

TOPK = {"exchange": "allgather_topk", "ratio": 0.1}
STAR = {"exchange": "star_topk", "ratio": 0.1}


def config_of(options: dict) -> headway.Fixed:
    return headway.Fixed(link=LINK, timeout_s=20, **options)


class Forking(nn.Module):
    """Half of its layers take part, by turns and ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(20, 40), nn.Linear(20, 40)])
        self.head = nn.Linear(40, 5)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.head(self.branches[(self.turn + dist.get_rank()) % 2](x))


@pytest.mark.parametrize("options", [TOPK, STAR, {"exchange": "randomk", "ratio": 0.1}])
@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_parameters_may_be_unused(pool, options, fusion):
    results = pool.run(train_forking, options | {"fusion": fusion}, num_ranks=2)
    assert bits(results[0]["parameters"]) == bits(results[1]["parameters"])
    assert results[0]["history"][-1].exchange == options["exchange"]


def train_forking(options: dict) -> dict:
    return train(options, make=Forking, ddp_options={"find_unused_parameters": True})


@pytest.mark.parametrize("ddp_options", [{"static_graph": True}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("fusion", ["bucket", "step", "auto"])
def test_options_of_ddp(pool, ddp_options, fusion):
    results = pool.run(train_with_options, TOPK | {"fusion": fusion}, ddp_options, num_ranks=3)
    assert len({bits(result["parameters"]) for result in results}) == 1
    assert results[0]["losses"][-1] < 0.9 * results[0]["losses"][0]
    if fusion == "bucket":
        assert len({record.bucket for record in results[0]["history"][-6:]}) > 1
    assert results[0]["history"][-1].wire_bytes < results[0]["history"][-1].dense_bytes


def train_with_options(options: dict, ddp_options: dict) -> dict:
    return train(options, ddp_options=ddp_options)


def accumulate(options: dict) -> dict:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, config_of(options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(8):
        for part in range(2):
            inputs, targets = batch(dist.get_rank(), 10 * step + part)
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(inputs), targets).backward()
        inputs, targets = batch(dist.get_rank(), 10 * step + 5)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    seen = {"parameters": parameters_of(ddp), "step": handle.statistics().step, "plan": handle.plan}
    handle.close()
    return seen


@pytest.mark.parametrize("options", [TOPK, STAR, {"exchange": "dense"}])
def test_gradients_may_be_accumulated(pool, options):
    results = pool.run(accumulate, options, num_ranks=2)
    assert bits(results[0]["parameters"]) == bits(results[1]["parameters"])
    assert results[0]["step"] == 8


def two_models() -> list[bytes]:
    models = [wrap(mlp()), wrap(mlp(width=32))]
    handles = [headway.attach(model, config_of(options)) for model, options in zip(models, (TOPK, STAR), strict=True)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for step in range(10):
        inputs, targets = batch(dist.get_rank(), step)
        losses = [nn.functional.cross_entropy(model(inputs), targets) for model in models]
        sum(losses).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    seen = [bits(parameters_of(model)) for model in models] + [handle.plan.exchange for handle in handles]
    for handle in handles:
        handle.close()
    return seen


def test_several_models_in_one_process(pool):
    first, second = pool.run(two_models, num_ranks=2)
    assert first == second
    assert first[2:] == ["allgather_topk", "star_topk"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [TOPK, STAR, {"exchange": "dense"}])
def test_parameters_of_other_types(pool, dtype, options):
    results = pool.run(train_in, dtype, options, num_ranks=2)
    assert bits(results[0]) == bits(results[1])


def train_in(dtype: torch.dtype, options: dict) -> torch.Tensor:
    ddp = wrap(mlp().to(dtype))
    handle = headway.attach(ddp, config_of(options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(6):
        inputs, _ = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        ddp(inputs.to(dtype)).square().mean().backward()
        optimizer.step()
    assert all(parameter.dtype == dtype for parameter in ddp.parameters())
    handle.close()
    return parameters_of(ddp)


def scale(options: dict, bad_rank: int) -> dict:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, config_of(options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    scales, moved = [], []
    for step in range(8):
        inputs, targets = batch(dist.get_rank(), step)
        if step == 4 and dist.get_rank() == bad_rank:
            inputs[0, 0] = torch.inf
        before = parameters_of(ddp)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, parameters_of(ddp)))
    residual = handle.state_dict()["residual"]
    seen = {"scales": scales, "moved": moved, "parameters": parameters_of(ddp), "residual": residual}
    handle.close()
    return seen


@pytest.mark.parametrize("bad_rank", [0, 1])
@pytest.mark.parametrize("options", [TOPK, STAR, {"exchange": "quantized"}, {"exchange": "dense"}])
def test_autocast_and_a_scaler_that_skips_a_step(pool, options, bad_rank):
    results = pool.run(scale, options, bad_rank, num_ranks=2)
    for result in results:
        assert result["scales"] == [1024.0] * 4 + [512.0] * 4
        assert result["moved"] == [True] * 4 + [False] + [True] * 3
        assert result["residual"] is None or result["residual"].isfinite().all()
    assert bits(results[0]["parameters"]) == bits(results[1]["parameters"])


def many_small_buckets(options: dict) -> bytes:
    torch.manual_seed(3)
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(160, 160), nn.ReLU())], nn.Linear(160, 5))
    ddp = wrap(model, bucket_cap_mb=1)
    handle = headway.attach(ddp, config_of(options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(6):
        inputs, targets = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs.repeat(1, 8)), targets).backward()
        optimizer.step()
    assert len({record.bucket for record in handle.records}) >= 2
    handle.close()
    return bits(parameters_of(ddp))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_many_small_buckets_never_hang(pool, num_ranks):
    """Where a hook that waits within a future's callback hangs on Gloo: eight times over."""
    for repeat in range(8):
        options = [TOPK, STAR, {"exchange": "var_topk", "ratio": 0.01}, {"exchange": "dense"}][repeat % 4]
        results = pool.run(many_small_buckets, options | {"fusion": "bucket"}, num_ranks=num_ranks)
        assert len(set(results)) == 1


def plain_way() -> bytes:
    ddp = wrap(mlp())
    state = headway.HookState(config_of(TOPK))
    ddp.register_comm_hook(state, headway.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(5):
        step_once(ddp, optimizer, step)
    assert state.records[-1].exchange == "allgather_topk"
    state.close()
    return bits(parameters_of(ddp))


def test_the_plain_pytorch_way(pool):
    assert len(set(pool.run(plain_way, num_ranks=2))) == 1


class Checkpointed(nn.Module):
    """Recomputes its activations in backward, within a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: self.second(torch.relu(self.first(y))), x.requires_grad_(), use_reentrant=True)


def train_checkpointed(options: dict) -> dict:
    return train(options, make=Checkpointed)


@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_activations_may_be_recomputed(pool, fusion):
    results = pool.run(train_checkpointed, TOPK | {"fusion": fusion}, num_ranks=2)
    assert bits(results[0]["parameters"]) == bits(results[1]["parameters"])


def uneven(options: dict) -> int:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, config_of(options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with Join([ddp]):
        for step in range(6 + 2 * dist.get_rank()):
            step_once(ddp, optimizer, step)
    num_steps = handle.statistics().step
    handle.close()
    return num_steps


@pytest.mark.parametrize("options", [TOPK, STAR])
def test_ranks_may_have_uneven_numbers_of_batches(pool, options):
    assert pool.run(uneven, options | {"fusion": "bucket"}, num_ranks=2) == [8, 8]


def after_the_end() -> str:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, config_of(TOPK))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    step_once(ddp, optimizer, 0)
    handle.close()
    try:
        step_once(ddp, optimizer, 1)
    except ValueError as error:
        return str(error)
    return "nothing was said"


def test_a_backward_after_close_says_what_to_do(pool):
    for said in pool.run(after_the_end, num_ranks=2):
        assert "wrap the model anew" in said


def disagree(name: str, values: list) -> str:
    ddp = wrap(mlp())
    options = TOPK | {"link": LINK, "timeout_s": 20, name: values[dist.get_rank()]}
    try:
        headway.attach(ddp, headway.Fixed(**options))
    except ValueError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize(("name", "values"), [("ratio", [0.1, 0.2]), ("interval", [0, 3]), ("link", [LINK, None])])
def test_ranks_with_different_configurations_are_told(pool, name, values):
    assert (
        pool.run(disagree, name, values, num_ranks=2)
        == ["ranks [1] have another configuration than rank 0: give the same to all"] * 2
    )


def odd_gradients(kind: str) -> str:
    torch.manual_seed(0)
    if kind == "sparse":
        model, inputs = nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2])
    else:
        model, inputs = nn.Linear(4, 4, dtype=torch.complex64), torch.ones(2, 4, dtype=torch.complex64)
    ddp = wrap(model)
    handle = headway.attach(ddp, config_of(TOPK))
    try:
        ddp(inputs).abs().sum().backward()
    except ValueError as error:
        return str(error)
    finally:
        handle.close()
    return "nothing was said"


@pytest.mark.parametrize(
    ("kind", "message"), [("sparse", "use Embedding(sparse=False)"), ("complex", "torch.complex64")]
)
def test_gradients_that_cannot_be_averaged_are_refused(pool, kind, message):
    for said in pool.run(odd_gradients, kind, num_ranks=2):
        assert message in said


def misuse() -> list[str]:
    model = mlp()
    ddp = wrap(mlp())
    headway.attach(ddp, config_of({"exchange": "dense"})).close()
    said = []
    for wrong in (
        lambda: headway.attach(model),
        lambda: headway.attach(ddp),
        lambda: headway.Fixed(exchange="topk"),
        lambda: headway.Fixed(ratio=2),
        lambda: headway.Fixed(exchange="star_topk", algorithm="bruck"),
        lambda: headway.Fixed(ratio="0.1"),
        lambda: headway.Fixed(link="20ms"),
        lambda: headway.Fixed(timeout_s=0),
        lambda: headway.Fixed(seed=1.5),
        lambda: headway.attach(wrap(mlp()), "star_topk"),
    ):
        try:
            wrong()
        except ValueError as error:
            said.append(str(error))
    return said


def test_wrong_use_says_what_to_do(pool):
    for said in pool.run(misuse, num_ranks=1):
        bare, twice, unknown, ratio, algorithm, text, link, timeout, seed, config = said
        assert text.startswith("ratio is '0.1'")
        assert link.startswith("link is '20ms', but must be a headway.Link")
        assert timeout.startswith("timeout_s is 0")
        assert seed.startswith("seed is 1.5")
        assert config == "config is a str, but must be a headway.Adaptive(...) or headway.Fixed(...)"
        assert bare == "attach takes a DistributedDataParallel model, not Sequential: wrap the model first, then attach"
        assert twice.startswith("this model has a communication hook, and DDP takes one for life")
        assert "must be one of dense, allgather_topk" in unknown
        assert "ratio is 2" in ratio
        assert "algorithm of star_topk is 'bruck'" in algorithm
