"""Runs on the ranks: the engine and a plain PyTorch loop on the same data, and how far apart they end.

The loop is the textbook one: fp32 masters, torch.optim.AdamW, clip_grad_norm_. It plays all ranks and micro
batches in turn, so that it rounds where data-parallel training rounds and nowhere else.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed

GLOBAL_BATCH = 12
NUM_STEPS = 4
FEATURES = 6


@dataclass(frozen=True)
class Case:
    """One configuration of model, engine and script."""

    name: str
    stage: int
    bf16: bool = False
    fp16: bool = False
    accumulation: int = 1
    clipping: float = 0.0
    model: tuple[str, ...] = ()  # of: tied frozen unused branch
    groups: bool = False
    client: bool = False  # a torch optimizer instead of the config's
    direct: bool = False  # loss.backward()
    forget: bool = False  # the script sets gradients to None before every optimizer step's first forward
    adam_w: bool = True
    zero: dict[str, object] = field(default_factory=dict)
    grad_accum: str | None = None
    check_overflow: bool = True  # of bf16
    moments: str = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.fp16 else torch.bfloat16 if self.bf16 else torch.float32

    @property
    def loss_scale(self) -> float:
        return 256.0 if self.fp16 else 1.0


class Net(torch.nn.Module):
    """A small net with what goes wrong in flat buckets: sharing, frozen and idle parameters, odd sizes."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, 17)
        self.middle = torch.nn.Linear(17, 17)
        self.again = torch.nn.Linear(17, 17)
        self.norm = torch.nn.LayerNorm(17)
        self.outer = torch.nn.Linear(17, FEATURES)
        self.scale = torch.nn.Parameter(torch.ones(()))
        if "tied" in flags:
            self.again.weight = self.middle.weight
        if "frozen" in flags:
            self.inner.weight.requires_grad_(False)
            self.norm.bias.requires_grad_(False)
        if "unused" in flags:
            self.idle = torch.nn.Linear(5, 3)
        self.branch = torch.nn.Linear(FEATURES, FEATURES) if "branch" in flags else None

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.inner(x))))
        y = self.outer(self.norm(torch.tanh(self.again(hidden)))) * self.scale
        if self.branch is not None and rank % 2 == 0:
            y = y + self.branch(x)
        return y


def groups_of(model: torch.nn.Module, case: Case) -> list[dict[str, object]]:
    params = [p for p in model.parameters() if p.requires_grad]
    common: dict[str, object] = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
    if not case.groups:
        return [{"params": params, **common}]
    return [
        {**common, "params": [p for p in params if p.dim() > 1]},
        {**common, "params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.003},
    ]


def loss_of(model: torch.nn.Module, x: torch.Tensor, rank: int) -> torch.Tensor:
    y: torch.Tensor = model(x, rank)
    return (y.float() - x.float().roll(1, 1).square()).square().mean()


def chunk(data: torch.Tensor, case: Case, world: int, rank: int, micro: int) -> torch.Tensor:
    size = GLOBAL_BATCH // (world * case.accumulation)
    start = (rank * case.accumulation + micro) * size
    return data[start : start + size]


def train_plainly(
    model: torch.nn.Module, case: Case, data: torch.Tensor, world: int
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and final fp32 masters of the plain loop."""
    dtype = case.dtype
    master = copy.deepcopy(
        model
    )  # from the parameters as the engine sees them first: rounded to the compute dtype
    for param in master.parameters():
        param.data = param.data.to(dtype).float()
    work = copy.deepcopy(master).to(dtype)
    optimizer: torch.optim.Optimizer = (torch.optim.AdamW if case.adam_w else torch.optim.Adam)(
        groups_of(master, case)
    )
    trained = [p for p in master.parameters() if p.requires_grad]
    copies = [p for p in work.parameters() if p.requires_grad]
    losses, norms = [], []
    for step_data in data:
        mean = [torch.zeros_like(p, dtype=torch.float32) for p in copies]
        total = 0.0
        for rank in range(world):
            sums = [torch.zeros_like(p, dtype=torch.float32 if case.grad_accum else dtype) for p in copies]
            for micro in range(case.accumulation):
                x = chunk(step_data.to(dtype), case, world, rank, micro)
                loss = loss_of(work, x, rank)
                total += loss.item() / (world * case.accumulation)
                scaled = loss / case.accumulation * case.loss_scale
                grads = torch.autograd.grad(scaled, copies, allow_unused=True)
                for into, grad in zip(sums, grads, strict=True):
                    if grad is not None:
                        into += grad
            for into, grad in zip(mean, sums, strict=True):
                into += grad.float() / world / case.loss_scale
        for param, grad in zip(trained, mean, strict=True):
            param.grad = grad
        limit = case.clipping or float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(trained, limit).item())
        losses.append(total)
        optimizer.step()
        with torch.no_grad():
            for low, high in zip(work.parameters(), master.parameters(), strict=True):
                low.copy_(high)
    return losses, norms, {name: p.detach() for name, p in master.named_parameters() if p.requires_grad}


def config_of(case: Case, world: int) -> dict[str, object]:
    config: dict[str, object] = {
        "train_batch_size": GLOBAL_BATCH,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": case.clipping,
        "bf16": {"enabled": case.bf16, "check_grad_overflow": case.check_overflow},
        "fp16": {"enabled": case.fp16, "initial_scale_power": 8},
        "zero_optimization": {"stage": case.stage, **case.zero},
        "log_level": "error",
    }
    if not case.client:
        params = {"adam_w_mode": case.adam_w, "torch_adam": True, "moment_dtype": case.moments}
        config["optimizer"] = {"type": "Adam", "params": params}
    if case.grad_accum is not None:
        config["data_types"] = {"grad_accum_dtype": case.grad_accum}
    return config


def train_with_engine(
    model: torch.nn.Module, case: Case, data: torch.Tensor
) -> tuple[list[float], list[float], deepspeed.Engine]:
    """This rank's mean losses, the gradient norms, and the engine."""
    groups = groups_of(model, case)
    if case.client:
        client = torch.optim.AdamW(groups)  # type: ignore[arg-type]
        engine = deepspeed.initialize(model=model, optimizer=client, config=config_of(case, 1))[0]
    else:
        engine = deepspeed.initialize(model=model, model_parameters=groups, config=config_of(case, 1))[0]
    dtype = case.dtype
    losses, norms = [], []
    for step_data in data:
        if case.forget:
            engine.module.zero_grad(set_to_none=True)
        total = 0.0
        for micro in range(case.accumulation):
            x = chunk(step_data.to(dtype), case, engine.world_size, engine.global_rank, micro)
            loss = loss_of(engine, x, engine.global_rank)
            if case.direct:
                engine.scale(loss / case.accumulation).backward()
            else:
                engine.backward(loss)
            assert engine.is_gradient_accumulation_boundary() == (micro == case.accumulation - 1)
            engine.step()
            assert engine.was_step_applied() == (micro == case.accumulation - 1)
            total += loss.item() / case.accumulation
        losses.append(total)
        norms.append(engine.get_global_grad_norm() or 0.0)
    return losses, norms, engine


def full_state(engine: deepspeed.Engine, kind: str) -> dict[str, torch.Tensor]:
    """All of `master`, `exp_avg` or `exp_avg_sq` by parameter, gathered. Collective."""
    optimizer = engine.optimizer
    assert optimizer is not None
    found: dict[str, torch.Tensor] = {}
    for bucket, state in zip(optimizer.buckets, optimizer.shards, strict=True):
        own = state.read(kind, slice(None)).float().clone()
        shards: list[torch.Tensor] = [own]
        if optimizer.sharding.num_shards > 1:
            shards = [torch.empty_like(own) for _ in range(engine.world_size)]
            dist.all_gather(shards, own)
        flat = torch.cat(shards)
        for slot, shape in zip(bucket.spec.slots, bucket.shapes, strict=True):
            found[slot.name] = flat[slot.offset : slot.offset + slot.numel].view(shape)
    return found


def ranks_agree(engine: deepspeed.Engine) -> bool:
    """Whether all ranks hold bit-equal parameters, and these are the rounded masters. Collective."""
    masters = full_state(engine, "master")
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        return _ranks_agree(engine, masters)


def _ranks_agree(engine: deepspeed.Engine, masters: dict[str, torch.Tensor]) -> bool:
    rounded = all(
        torch.equal(param.detach(), masters[name].to(param.dtype))
        for name, param in engine.module.named_parameters()
        if name in masters
    )
    mine = [param.detach().float().cpu() for param in engine.module.parameters()]
    everyone: list[list[torch.Tensor]] = [[] for _ in range(engine.world_size)]
    dist.all_gather_object(everyone, mine)
    return rounded and all(torch.equal(a, b) for other in everyone for a, b in zip(mine, other, strict=True))


def run(cases: list[Case], seed: int, device: str = "cpu") -> dict[str, dict[str, float]]:
    """Distances between engine and loop by case: losses, norms, masters (mean and max over elements)."""
    world, rank = dist.get_world_size(), dist.get_rank()
    results: dict[str, dict[str, float]] = {}
    for number, case in enumerate(cases):
        torch.manual_seed(seed + number)
        model = Net(case.model).to(device)
        data = torch.randn(NUM_STEPS, GLOBAL_BATCH, FEATURES).to(device)
        plain = train_plainly(copy.deepcopy(model), case, data, world)
        if rank != 0:  # only rank 0's parameters count
            with torch.no_grad():
                for param in model.parameters():
                    param.add_(torch.randn_like(param))
        losses, norms, engine = train_with_engine(model, case, data)
        mean_losses = torch.tensor(losses)
        dist.all_reduce(mean_losses)
        masters = full_state(engine, "master")
        gaps = torch.cat([(masters[name] - value).abs().flatten() for name, value in plain[2].items()])
        results[case.name] = {
            "loss": (mean_losses / world - torch.tensor(plain[0])).abs().max().item(),
            "norm": (torch.tensor(norms) / torch.tensor(plain[1]) - 1).abs().max().item(),
            "master_max": gaps.max().item(),
            "master_mean": gaps.mean().item(),
            "world": world,
            "agree": float(ranks_agree(engine)),
            "same_names": float(set(masters) == set(plain[2])),
        }
    return results
