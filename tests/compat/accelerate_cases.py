"""Accelerate's own training loop on the engine and without one. Started and answered as trainer_cases.py."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu  # noqa: F401
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DummyOptim, DummyScheduler, set_seed
from case_runner import close, folder, run_cases
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

NUM_ACCUMULATED = 2


def accelerator(**settings: Any) -> Accelerator:
    """A first one: Accelerate keeps its state for the life of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    on_cpu_too = {} if torch.cuda.is_available() or settings else {"cpu": True}
    return Accelerator(**on_cpu_too, **(settings or {"gradient_accumulation_steps": NUM_ACCUMULATED}))


def engine(stage: int, **settings: Any) -> Accelerator:
    plugin = DeepSpeedPlugin(
        zero_stage=stage, gradient_accumulation_steps=NUM_ACCUMULATED, gradient_clipping=0.5, **settings
    )
    return accelerator(deepspeed_plugin=plugin)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any], LambdaLR]:
    set_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 4)), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, data, LambdaLR(optimizer, lambda step: 1 / (1 + step))


def train(accelerator: Accelerator, prepared: Any) -> list[float]:
    """One pass; the mean loss of every micro step, and the norm and the rate of every update."""
    model, optimizer, data, scheduler = prepared
    seen: list[float] = []
    for inputs, targets in data:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                seen.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            assert not accelerator.sync_gradients or not accelerator.optimizer_step_was_skipped
            scheduler.step()
            optimizer.zero_grad()
        seen.append(accelerator.reduce(loss.detach(), reduction="mean").item())
    return [*seen, *scheduler.get_last_lr()]


def stages() -> None:
    """Every stage has the losses, norms and rates of plain data parallelism."""
    plain = accelerator()
    expected = train(plain, plain.prepare(*parts()))
    for stage in range(4):
        ours = engine(stage)
        close(train(ours, ours.prepare(*parts())), expected)


def state() -> None:
    """save_state and load_state; whole weights from get_state_dict and save_model."""
    for stage in (2, 3):
        ours = engine(stage, zero3_save_16bit_model=True)
        prepared = ours.prepare(*parts())
        train(ours, prepared)
        ours.save_state(str(folder() / "state"))
        again = train(ours, prepared)
        ours.load_state(str(folder() / "state"))
        close(train(ours, prepared), again, 1e-5)
        weights = ours.get_state_dict(prepared[0])
        shapes = {name: list(value.shape) for name, value in (weights or {}).items()}
        if ours.is_main_process:
            assert shapes == {"0.weight": [32, 8], "0.bias": [32], "2.weight": [4, 32], "2.bias": [4]}
        ours.save_model(prepared[0], str(folder() / "model"))
        ours.wait_for_everyone()
        assert (folder() / "model/model.safetensors").stat().st_size > 4 * 300
        assert type(ours.unwrap_model(prepared[0])) is torch.nn.Sequential


def config_file() -> None:
    """Everything from ds_config: its optimizer and scheduler behind DummyOptim and DummyScheduler."""
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": NUM_ACCUMULATED,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
        },
        "steps_per_print": 1000,
    }
    ours = accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    model, _, data, _ = parts()
    optimizer = DummyOptim(model.parameters(), lr=1e-2, weight_decay=1e-2)
    scheduler = DummyScheduler(optimizer, warmup_num_steps=2)
    prepared = ours.prepare(model, optimizer, data, scheduler)
    losses = train(ours, prepared)
    assert prepared[0].lr_scheduler.get_lr() == [1e-2]
    assert losses[-2] < 2 * losses[0]


def two_models() -> None:
    """A model that is trained and one that only answers, each with a plugin of its own."""
    plugins = {
        "student": DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1, gradient_clipping=0.5),
        "teacher": DeepSpeedPlugin(hf_ds_config={
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
            "zero_optimization.reduce_bucket_size": 1000,  # as TRL writes it
        }),
    }  # fmt: skip
    ours = accelerator(deepspeed_plugins=plugins)
    assert ours.state.get_deepspeed_plugin("student").selected
    model, optimizer, data, scheduler = ours.prepare(*parts())
    ours.state.select_deepspeed_plugin("teacher")
    others = Accelerator()
    teacher, *_ = parts()
    expected = teacher(torch.ones(3, 8)).tolist()
    teacher = others.prepare(teacher)
    ours.state.select_deepspeed_plugin("student")
    for inputs, _ in data:
        with torch.no_grad():
            targets = teacher(inputs)
        ours.backward((model(inputs) - targets - 1).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    with torch.no_grad():
        ones = torch.ones(3, 8, device=ours.device)
        close(teacher(ones).tolist(), expected)
        assert (model(ones).cpu() - torch.tensor(expected)).abs().sum() > 0


def options() -> None:
    """Offload, bf16, zero.Init by the plugin, compiling, and letting go of an engine."""
    plain = accelerator()
    expected = train(plain, plain.prepare(*parts()))
    ours = engine(2, offload_optimizer_device="cpu")
    prepared = ours.prepare(*parts())
    close(train(ours, prepared), expected)
    ours.free_memory(*prepared)
    ours = engine(3, zero3_init_flag=True)
    close(train(ours, ours.prepare(*parts())), expected)
    plugin = DeepSpeedPlugin(zero_stage=1, gradient_accumulation_steps=NUM_ACCUMULATED, gradient_clipping=0.5)
    ours = accelerator(deepspeed_plugin=plugin, mixed_precision="bf16")
    prepared = ours.prepare(*parts())
    assert next(prepared[0].parameters()).dtype == torch.bfloat16


if __name__ == "__main__":
    sys.exit(run_cases([stages, state, config_file, two_models, options]))
