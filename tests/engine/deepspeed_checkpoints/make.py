"""Writes the checkpoints beside this file with the real DeepSpeed, which is not needed to run the tests.

Run it where deepspeed is installed, once for each world size:
`torchrun --nproc_per_node 2 make.py`, `torchrun --nproc_per_node 3 make.py`.
Each case is a folder: what save_checkpoint wrote, and expected.safetensors: the state that DeepSpeed's own
functions tell, every tensor whole, by `<kind>.<parameter>`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file

HERE = Path(os.environ.get("OUT") or Path(__file__).parent)
FEATURES = 6
CASES = {  # of each world size
    2: [
        (0, "fp32"),
        (0, "bf16"),
        (0, "fp16"),
        (1, "fp32"),
        (1, "fp16"),
        (2, "bf16"),
        (2, "fp16"),
        (3, "bf16"),
        (3, "fp16"),
    ],
    3: [(1, "bf16"), (2, "fp32"), (3, "fp32")],
}


class Net(torch.nn.Module):
    """Odd sizes, a tied pair, frozen parameters, a single element, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, 7)
        self.middle = torch.nn.Linear(7, 7)
        self.again = torch.nn.Linear(7, 7)
        self.norm = torch.nn.LayerNorm(7)
        self.outer = torch.nn.Linear(7, FEATURES)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.again.weight = self.middle.weight
        self.inner.weight.requires_grad_(False)
        self.norm.bias.requires_grad_(False)
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.inner(x))))
        return self.outer(self.norm(torch.tanh(self.again(hidden)))) * self.scale


def tells_states(param: torch.nn.Parameter, stage: int) -> bool:
    """Whether safe_get_full_optimizer_state works on every rank: in fp32 it does not below stage 3."""
    mapping = None if stage == 3 else param._hp_mapping
    tells = torch.tensor(int(mapping is None or "exp_avg" in mapping.optim_fragment))
    dist.all_reduce(tells, dist.ReduceOp.MIN)
    return bool(tells)


def make(stage: int, dtype: str) -> None:
    torch.manual_seed(17)
    model = Net()
    trained = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.002},
    ]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups, lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}},
            "bf16": {"enabled": dtype == "bf16"},
            "fp16": {"enabled": dtype == "fp16", "initial_scale_power": 6},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0,
        },
    )
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(rank)
    kind = next(engine.parameters()).dtype
    for _ in range(3):
        x = torch.randn(2, FEATURES).to(kind)
        loss = (engine(x).float() - x.float().square()).square().mean()
        engine.backward(loss)
        engine.step()
    folder = HERE / f"stage{stage}-{dtype}-world{world}"
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    engine.save_checkpoint(folder, client_state={"step": 3, "note": ["a", 1.5]})
    expected = {}
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        master = safe_get_full_fp32_param(param)
        if master is None:
            continue  # stage 0: the files themselves are the only source
        expected[f"master.{name}"] = master.clone()
        for state in ("exp_avg", "exp_avg_sq") if tells_states(param, stage) else ():
            expected[f"{state}.{name}"] = safe_get_full_optimizer_state(param, state).clone()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        weights = {f"module.{name}": value.clone() for name, value in model.state_dict().items()}
    if rank == 0:
        save_file(
            {k: v.contiguous() for k, v in (expected | weights).items()}, folder / "expected.safetensors"
        )
        about = {
            "global_steps": engine.global_steps,
            "skipped_steps": engine.skipped_steps,
            "global_samples": engine.global_samples,
            "lr": engine.get_lr(),
            "loss_scale": float(engine.optimizer.cur_scale) if dtype == "fp16" else 1.0,
            "deepspeed": deepspeed.__version__,
        }
        (folder / "expected.json").write_text(json.dumps(about, indent=1))
        for name in ("zero_to_fp32.py", "zero_to_torch.py"):
            (folder / name).unlink(missing_ok=True)
    dist.barrier()
    engine.destroy()


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    get_accelerator().is_fp16_supported = lambda: True  # of the CPU, for a small model
    for case in CASES[dist.get_world_size()].split():
        stage, dtype = case.split("-")
        make(int(stage), dtype)
    dist.destroy_process_group()
