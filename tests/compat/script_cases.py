"""The shapes of scripts that people write for DeepSpeed: image classification, pre-training of a language
model with a schedule of its own, a GAN with two engines. Started and answered as trainer_cases.py.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import deepspeed
import torch
from case_runner import close, folder, run_cases
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import FusedAdam
from deepspeed.utils import RepeatingLoader, logger, safe_get_full_fp32_param
from torch.utils.data import TensorDataset


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args(["--local_rank", str(get_accelerator().current_device()), *given])


def config_file(**sections: object) -> str:
    """Comments and a trailing comma, as people's files have them."""
    path = folder() / f"ds_config_{dist.get_rank() if dist.is_initialized() else 0}.json"
    text = json.dumps({"train_batch_size": 16, "steps_per_print": 2000, **sections}, indent=1)
    path.write_text(text[:-2] + ",  // tuned by hand\n}")
    return str(path)


def images() -> None:
    """The engine makes the loader and the optimizer; the script moves batches and casts them."""
    deepspeed.init_distributed()
    args = arguments("--deepspeed", "--deepspeed_config", config_file(
        optimizer={"type": "Adam", "params": {"lr": 0.01, "betas": [0.8, 0.999], "weight_decay": 3e-7}},
        scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4}},
        gradient_clipping=1.0, prescale_gradients=False, bf16={"enabled": True}, wall_clock_breakdown=False,
        zero_optimization={
            "stage": 2, "allgather_partitions": True, "reduce_scatter": True, "allgather_bucket_size": 5e7,
            "reduce_bucket_size": 5e7, "overlap_comm": True, "contiguous_gradients": True,
            "cpu_offload": False,
        },
    ))  # fmt: skip
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(784, 10),
    )  # fmt: skip
    labels = torch.randint(0, 10, (64,))
    pictures = torch.randn(10, 3, 32, 32)[labels] + 0.1 * torch.randn(64, 3, 32, 32)
    trained = [param for param in net.parameters() if param.requires_grad]
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=trained, training_data=TensorDataset(pictures, labels)
    )
    device = get_accelerator().device_name(engine.local_rank)
    losses = []
    for _ in range(6):
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            if engine.bfloat16_enabled():
                inputs = inputs.bfloat16()
            loss = torch.nn.functional.cross_entropy(engine(inputs).float(), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert len(losses) == 6 * 64 // 16
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4]), losses
    with torch.no_grad():
        engine.eval()
        assert engine(pictures[:4].to(device).bfloat16()).shape == (4, 10)


def language() -> None:
    """Groups of parameters, accumulation, rates set by hand at the boundary, checkpoints with a state."""
    torch.manual_seed(2)
    config = {
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }  # fmt: skip
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = torch.nn.Sequential(
            torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 50)
        )
    quiet = [param for name, param in model.named_parameters() if "1." in name or "bias" in name]
    decayed = [param for param in model.parameters() if all(param is not other for other in quiet)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": quiet, "weight_decay": 0.0}]
    engine, optimizer, _, _ = deepspeed.initialize(
        args=arguments(), model=model, optimizer=FusedAdam(groups, lr=1e-3), config_params=config
    )
    logger.setLevel("WARNING")
    accumulation = engine.gradient_accumulation_steps()
    assert accumulation == 16 // 2 // dist.get_world_size()
    tokens = RepeatingLoader([torch.randint(0, 50, (2, 8)) for _ in range(5)])
    losses = []
    for micro_step, batch in zip(range(8 * accumulation), tokens, strict=False):
        batch = batch.to(engine.device)
        loss = torch.nn.functional.cross_entropy(engine(batch).view(-1, 50), batch.view(-1))
        engine.backward(loss)
        if engine.is_gradient_accumulation_boundary():
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (1 + micro_step // accumulation)
        engine.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert engine.global_steps == 8
    assert engine.get_global_grad_norm() > 0
    before = safe_get_full_fp32_param(next(engine.module.parameters()))
    engine.save_checkpoint(
        str(folder() / "language"), tag="epoch1", client_state={"epoch": 1, "last": losses[-1]}
    )
    engine.load_module_state_dict(
        {name: torch.zeros(p.ds_shape) for name, p in engine.module.named_parameters()}
    )
    _, state = engine.load_checkpoint(str(folder() / "language"), tag="epoch1")
    assert (state["epoch"], engine.global_steps) == (1, 8)
    close(safe_get_full_fp32_param(next(engine.module.parameters())).tolist(), before.tolist(), 0)


def adversaries() -> None:
    """Two engines in one process, each with its own loss."""
    torch.manual_seed(3)
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam", "params": {"lr": 1e-2}}}
    config["zero_optimization"] = {"stage": 1}
    maker, judge = (
        deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)[0]
        for net in (torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    )
    for _ in range(3):
        noise, real = torch.randn(2, 4, 4).to(maker.device)
        fake = maker(noise)
        judge.backward(judge(real).mean() - judge(fake.detach()).mean())
        judge.step()
        maker.backward(judge.module(fake).mean())
        maker.step()
        judge.zero_grad()
    assert maker.global_steps == judge.global_steps == 3
    assert all(torch.isfinite(param).all() for engine in (maker, judge) for param in engine.parameters())


if __name__ == "__main__":
    sys.exit(run_cases([images, language, adversaries]))
