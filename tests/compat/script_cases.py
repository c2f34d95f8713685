"""The shapes of scripts that people write for DeepSpeed: image classification, pre-training of a language
model with a schedule of its own, a GAN with two engines, an encoder, a decoder that generates. Started and
answered as trainer_cases.py.
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


class Layer(torch.nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.mix, self.out = (
            torch.nn.LayerNorm(16),
            torch.nn.Linear(16, 48),
            torch.nn.Linear(16, 16),
        )
        self.feed = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.mix(self.norm(hidden)).chunk(3, -1)
        mixed = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        hidden = hidden + self.out(mixed)
        return hidden + self.feed(hidden)


class Transformer(torch.nn.Module):
    """Logits of every position; activations by `deepspeed.checkpointing` where it is asked for."""

    def __init__(self, causal: bool, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.words, self.places = torch.nn.Embedding(40, 16), torch.nn.Embedding(12, 16)
        self.layers = torch.nn.ModuleList(Layer(causal) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            keeps = self.checkpoints and torch.is_grad_enabled()
            hidden = deepspeed.checkpointing.checkpoint(layer, hidden) if keeps else layer(hidden)
        return torch.nn.functional.linear(hidden, self.words.weight)


def trained(causal: bool, stage: int, steps: int = 6) -> torch.nn.Module:
    """An engine that has gone the way of plain torch: activations checkpointed, clipped, on a schedule."""
    deepspeed.init_distributed()
    config = config_file(
        train_batch_size=2 * dist.get_world_size(), gradient_clipping=0.5,
        optimizer={"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        scheduler={"type": "WarmupDecayLR", "params": {
            "warmup_num_steps": 2, "total_num_steps": 9, "warmup_max_lr": 0.01, "warmup_type": "linear"}},
        zero_optimization={"stage": stage, "stage3_param_persistence_threshold": 0},
        activation_checkpointing={"partition_activations": False, "cpu_checkpointing": True},
    )  # fmt: skip
    torch.manual_seed(5)
    plain, model = Transformer(causal, False), Transformer(causal, True)
    model.load_state_dict(plain.state_dict())
    engine, _, _, _ = deepspeed.initialize(
        args=arguments("--deepspeed", "--deepspeed_config", config),
        model=model,
        model_parameters=model.parameters(),
    )
    deepspeed.checkpointing.configure(None, deepspeed_config=config)
    assert deepspeed.checkpointing.is_configured()
    plain = plain.to(engine.device)
    oracle = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    data = torch.randint(1, 40, (steps, dist.get_world_size(), 2, 12))
    hidden = torch.rand(data.shape) < 0.15
    hidden[..., 0] = True
    for ids, mask in zip(data.to(engine.device), hidden.to(engine.device), strict=True):

        def loss_of(net: torch.nn.Module, rank: int, ids=ids, mask=mask) -> torch.Tensor:
            if causal:
                logits, targets = net(ids[rank])[:, :-1], ids[rank][:, 1:]
            else:
                logits, targets = net(ids[rank].masked_fill(mask[rank], 0))[mask[rank]], ids[rank][mask[rank]]
            return torch.nn.functional.cross_entropy(logits.reshape(-1, 40), targets.reshape(-1))

        (rate,) = engine.get_lr()
        loss = loss_of(engine, dist.get_rank())
        close(loss.item(), loss_of(plain, dist.get_rank()).item())
        engine.backward(loss)
        engine.step()
        oracle.zero_grad()
        (sum(loss_of(plain, rank) for rank in range(len(ids))) / len(ids)).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        close(float(engine.get_global_grad_norm()), norm.item())
        oracle.param_groups[0]["lr"] = rate
        oracle.step()
    engine.plain = plain
    return engine


def encoder() -> None:
    """Masked words, as BERT is pre-trained."""
    trained(causal=False, stage=2)


def generation() -> None:
    """A decoder at stage 3, which then goes on by itself from what ranks give it, unequally long."""
    engine = trained(causal=True, stage=3)
    ids = torch.arange(1, 3 + dist.get_rank(), device=engine.device)[None]
    expected = ids
    engine.eval()
    with torch.no_grad():
        while ids.shape[1] < 9 + dist.get_rank():
            ids = torch.cat([ids, engine(ids)[:, -1:].argmax(-1)], 1)
            expected = torch.cat([expected, engine.plain(expected)[:, -1:].argmax(-1)], 1)
    assert ids.tolist() == expected.tolist()


if __name__ == "__main__":
    sys.exit(run_cases([images, language, adversaries, encoder, generation]))
