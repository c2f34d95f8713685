"""Hugging Face's Trainer on the engine and without one, case by case, in one process for each rank.

Started by dslaunch: `trainer_cases.py FOLDER CASE...`. Rank 0 prints `case NAME ok SECONDS s` for each.
"""

import copy
import gc
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu  # noqa: F401
import torch
import torch.distributed as dist
import transformers
from case_runner import close, folder, run_cases
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

TEXT = b"".join(path.read_bytes() for path in sorted((Path(__file__).parents[2] / "docs").glob("*.md")))
LENGTH = 24
CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": 20,  # "auto" would keep all of so small a model gathered
        "stage3_gather_16bit_weights_on_model_save": True,
        "overlap_comm": True,
    },
}
OPTIMIZER = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": dict.fromkeys(
        ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"
    ),
}


def examples(count: int) -> list[dict[str, torch.Tensor]]:
    lines = [torch.tensor(list(TEXT[i * LENGTH : (i + 1) * LENGTH])) for i in range(count)]
    return [{"input_ids": line, "labels": line} for line in lines]


def model_config(**changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=256, max_position_embeddings=64, **{**sizes, **changes})


def fresh_model(**changes: Any) -> LlamaForCausalLM:
    set_seed(3)
    return LlamaForCausalLM(model_config(**changes))


def ds_config(stage: int, **changes: Any) -> dict[str, Any]:
    config = {**copy.deepcopy(CONFIG), **changes}
    config["zero_optimization"]["stage"] = stage
    return config


def arguments(path: Path, config: dict[str, Any] | None, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "max_steps": 5,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "warmup_steps": 1,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
        "save_strategy": "no",
        "report_to": [],
        "seed": 7,
        "disable_tqdm": True,
    }
    return TrainingArguments(
        str(path), deepspeed=config, use_cpu=config is None and not torch.cuda.is_available(),
        **{**settings, **changes},
    )  # fmt: skip


def forget_config() -> None:
    """What comes next knows of no engine: Transformers and Accelerate keep the last config in mind."""
    gc.collect()
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    unset_hf_deepspeed_config()


def train(
    model: Callable[[], Any],
    path: Path,
    config: dict[str, Any] | None,
    resume: str | None = None,
    kind: type[Trainer] = Trainer,
    **changes: Any,
) -> tuple[Trainer, list[float], list[float], list[float]]:
    """The trainer, and the losses, gradient norms and learning rates of all steps.

    The arguments come first: they tell Transformers how models are to be built.
    """
    forget_config()
    given = arguments(path, config, **changes)
    trainer = kind(model=model(), args=given, train_dataset=examples(64), eval_dataset=examples(8))
    assert trainer.is_deepspeed_enabled == (config is not None)
    trainer.train(resume_from_checkpoint=resume)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    columns = (("loss", []), ("grad_norm", []), ("learning_rate", []))
    for name, column in columns:
        column += [float(step[name]) for step in steps]
    return trainer, columns[0][1], columns[1][1], columns[2][1]


def same_run(
    stage: int, model: Callable[[], Any] = fresh_model, tolerance: float = 1e-4, **changes: Any
) -> Any:
    """Train with and without the engine, and compare every step; returns the engine's trainer."""
    path = folder() / "run"
    _, *theirs = train(model, path, None, **changes)
    trainer, *ours = train(model, path, ds_config(stage), **changes)
    close(ours, theirs, tolerance)
    return trainer


def stage_0() -> None:
    same_run(0)


def stage_1() -> None:
    same_run(1, gradient_accumulation_steps=2)


def stage_2() -> None:
    same_run(2, gradient_accumulation_steps=2)


def stage_3() -> None:
    trainer = same_run(3, gradient_accumulation_steps=2)
    sharded = [param for param in trainer.model.parameters() if param.numel() == 0]
    assert dist.get_world_size() == 1 or len(sharded) > 10, len(sharded)


def tied_and_checkpointed() -> None:
    """Tied embeddings and gradient checkpointing, at stages 2 and 3, both kinds of checkpointing."""
    for stage, reentrant in ((2, False), (3, False), (3, True)):
        same_run(
            stage,
            lambda: fresh_model(tie_word_embeddings=True),
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": reentrant},
            max_steps=3,
        )


def bf16() -> None:
    """Parameters in bf16 with fp32 masters against autocast: the same up to bf16's three digits."""
    for stage in (1, 3):
        same_run(stage, bf16=True, tolerance=3e-2, max_grad_norm=0)


def config_optimizer() -> None:
    """Optimizer and scheduler out of the config, everything "auto"; the plain run takes the same rates."""
    config = ds_config(2, optimizer=copy.deepcopy(OPTIMIZER), scheduler=copy.deepcopy(SCHEDULER))
    # One group holds all parameters then: Transformers leaves norms out of weight decay only in its own.
    _, *ours = train(fresh_model, folder() / "run", config, warmup_steps=2, weight_decay=0.0)
    # Trainer logs the rate of the step that follows.
    rates = [0.0, *ours[2]]

    class Scheduled(Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda step: rates[min(step, len(rates) - 1)] / 1e-2
            )
            return self.lr_scheduler

    _, *theirs = train(fresh_model, folder() / "run", None, kind=Scheduled, weight_decay=0.0)
    close(ours[:2], theirs[:2])


def resume() -> None:
    """A run that goes on from a checkpoint has the losses of one that was never stopped."""
    for stage in (2, 3):
        path = folder() / f"saved-{stage}"
        _, whole, *_ = train(
            fresh_model, path, ds_config(stage), save_strategy="steps", save_steps=2, max_steps=4
        )
        changes = {"save_strategy": "steps", "save_steps": 50, "max_steps": 4}
        _, rest, *_ = train(fresh_model, path, ds_config(stage), f"{path}/checkpoint-2", **changes)
        close(rest[-2:], whole[-2:], 1e-5)
        if dist.get_rank() == 0:
            (path / "losses.json").write_text(json.dumps(whole))


def resume_at_another_world_size() -> None:
    """What `resume` has saved on two ranks goes on on one, with the same global batches."""
    for stage, saved in ((2, 2), (3, 3), (3, 2)):
        path = folder() / f"saved-{saved}"
        whole = json.loads((path / "losses.json").read_text())
        changes = {"per_device_train_batch_size": 4, "max_steps": 4, "ignore_data_skip": False}
        _, rest, *_ = train(fresh_model, path, ds_config(stage), f"{path}/checkpoint-2", **changes)
        close(rest[-2:], whole[-2:], 1e-3)


def best_model() -> None:
    """load_best_model_at_end brings back the best weights, not the last."""
    for stage in (1, 3):
        path = folder() / "best"
        trainer, *_ = train(
            fresh_model, path, ds_config(stage),
            learning_rate=0.4, lr_scheduler_type="constant", save_strategy="steps", eval_strategy="steps",
            save_steps=1, eval_steps=1, max_steps=3, load_best_model_at_end=True,
        )  # fmt: skip
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        assert min(losses) < losses[-1], losses
        close(trainer.evaluate()["eval_loss"], min(losses), 1e-5)
        if dist.get_rank() == 0:
            shutil.rmtree(path)
        dist.barrier()


def saved_model() -> None:
    """save_model writes the whole model; Transformers reads it back, at stage 3 into shards of zero.Init."""
    import deepspeed

    inputs = torch.stack([example["input_ids"][:8] for example in examples(2)])
    for stage in (2, 3):
        path = folder() / f"model-{stage}"
        trainer, *_ = train(fresh_model, path, ds_config(stage), max_steps=2)
        trainer.save_model()
        dist.barrier()
        with deepspeed.zero.GatheredParameters(list(trainer.model.parameters())):
            weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
            expected = trainer.model.eval()(inputs.to(trainer.model.device)).logits
        del trainer
        forget_config()
        plain = LlamaForCausalLM.from_pretrained(path)
        assert all(param.numel() for param in plain.parameters()), "built in shards without a config for it"
        for name, value in plain.state_dict().items():
            close(value.tolist(), weights[name].tolist(), 1e-6)
        close(plain.eval()(inputs).logits.tolist(), expected.tolist())


def pretrained_in_shards() -> None:
    """from_pretrained under stage 3 builds shards; training and generate go as without."""
    path = folder() / "model"
    arguments(path, None)  # joins the ranks
    if dist.get_rank() == 0:
        fresh_model(tie_word_embeddings=True).save_pretrained(path)
    dist.barrier()
    seen: list[int] = []

    def load() -> Any:
        model = LlamaForCausalLM.from_pretrained(path)
        seen.append(sum(param.numel() == 0 for param in model.parameters()))
        return model

    trainer = same_run(3, load, max_steps=3)
    assert seen[0] == 0
    assert seen[1] > 10, seen
    prompt = examples(1)[0]["input_ids"][None, :6]
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    ours = trainer.model.eval().generate(
        prompt.to(trainer.model.device), synced_gpus=dist.get_world_size() > 1, **settings
    )
    weights = trainer.deepspeed._zero3_consolidated_16bit_state_dict()
    del trainer
    forget_config()
    if dist.get_rank() == 0:
        plain = fresh_model(tie_word_embeddings=True)
        plain.load_state_dict(weights)
        assert ours.tolist() == plain.eval().generate(prompt, **settings).tolist()


def resized_embeddings() -> None:
    """Tokens added under stage 3."""

    def grown() -> Any:
        model = fresh_model()
        model.resize_token_embeddings(260, mean_resizing=False)
        return model

    trainer, losses, *_ = train(grown, folder() / "run", ds_config(3), max_steps=2)
    shape = trainer.model.get_input_embeddings().weight
    assert getattr(shape, "ds_shape", shape.shape)[0] == 260
    assert losses[-1] > 0


def lora() -> None:
    """PEFT: only the adapters train, and only they are saved."""
    from peft import LoraConfig, PeftModel, get_peft_model

    def adapted() -> Any:
        set_seed(4)
        settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        return get_peft_model(fresh_model(), settings)

    for stage in (0, 2, 3):
        trainer = same_run(stage, adapted, max_steps=3, learning_rate=5e-2)
        path = folder() / f"adapter-{stage}"
        trainer.save_model(str(path))
        dist.barrier()
        if stage != 3:
            trained = {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}
            read = PeftModel.from_pretrained(fresh_model(), path)
            for name, value in read.named_parameters():
                if name in trained:
                    close(value.tolist(), trained[name].tolist(), 1e-6)
        else:
            assert (path / "adapter_model.safetensors").stat().st_size > 1000


def evaluation_only() -> None:
    """Trainer.evaluate without training: an engine without an optimizer."""
    losses = []
    for config in (None, ds_config(3)):
        forget_config()
        given = arguments(folder() / "run", config)
        trainer = Trainer(model=fresh_model(), args=given, eval_dataset=examples(8))
        losses.append(trainer.evaluate()["eval_loss"])
        del trainer, given
    close(losses[1], losses[0])


CASES = [
    *(stage_0, stage_1, stage_2, stage_3, tied_and_checkpointed, bf16, config_optimizer, resume, best_model),
    *(saved_model, pretrained_in_shards, resized_embeddings, lora, evaluation_only),
]


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(run_cases(CASES, [resume_at_another_world_size]))
