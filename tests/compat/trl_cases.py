"""TRL's trainers on the engine and without one. Started and answered as trainer_cases.py."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from case_runner import close, folder, run_cases
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from trainer_cases import TEXT, arguments, ds_config, forget_config, fresh_model
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable character, made here: no hub is asked."""
    symbols = ["<pad>", "<eos>", "<unk>", *map(chr, range(32, 127))]
    model = models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}, unk_token="<unk>")
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def tune(config: dict[str, Any] | None, **settings: Any) -> list[float]:
    forget_config()
    lines = [line for line in TEXT.decode(errors="replace").split("\n") if 20 < len(line) < 60][:32]
    given = SFTConfig(
        str(folder() / "sft"), deepspeed=config, use_cpu=config is None and not torch.cuda.is_available(),
        max_steps=4, per_device_train_batch_size=2, logging_steps=1, learning_rate=1e-2, report_to=[],
        save_strategy="no", max_length=32, disable_tqdm=True, seed=7, bf16=False, max_grad_norm=0.5,
        gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=fresh_model(pad_token_id=0, eos_token_id=1), args=given, processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"text": lines}), **settings,
    )  # fmt: skip
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def supervised() -> None:
    """The losses at stages 2 and 3 are those without an engine."""
    expected = tune(None)
    for stage in (2, 3):
        close(tune(ds_config(stage)), expected)


def adapters() -> None:
    """The same with LoRA."""
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    close(tune(ds_config(3), peft_config=settings), tune(None, peft_config=settings))


def preferences() -> None:
    """DPO at stage 3: the reference model is an engine without an optimizer."""
    seen: list[list[float]] = []
    for config in (None, ds_config(3)):
        forget_config()
        given = DPOConfig(
            str(folder() / "dpo"), deepspeed=config, use_cpu=config is None and not torch.cuda.is_available(),
            max_steps=3, per_device_train_batch_size=2, logging_steps=1, learning_rate=1e-2, report_to=[],
            save_strategy="no", max_length=32, disable_tqdm=True, bf16=False, gradient_checkpointing=False,
        )  # fmt: skip
        columns = {"prompt": "how do you do ", "chosen": "very well", "rejected": "go away"}
        tokens = {"pad_token_id": 0, "eos_token_id": 1}
        trainer = DPOTrainer(
            model=fresh_model(**tokens), ref_model=fresh_model(**tokens), args=given,
            processing_class=tokenizer(),
            train_dataset=Dataset.from_dict({name: [text] * 16 for name, text in columns.items()}),
        )  # fmt: skip
        trainer.train()
        seen.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    close(seen[1], seen[0])


def reward(completions: list[str], **_: Any) -> list[float]:
    return [sum(map(ord, completion)) / 100 for completion in completions]


def rewards() -> None:
    """GRPO: the model generates at stage 3, and is trained on what it got for that."""
    path = folder() / "base"
    arguments(path, None)  # joins the ranks
    if dist.get_rank() == 0:
        fresh_model(pad_token_id=0, eos_token_id=1).save_pretrained(path)
        tokenizer().save_pretrained(path)
    dist.barrier()
    seen: list[list[float]] = []
    for config in (None, ds_config(2), ds_config(3)):
        forget_config()
        given = GRPOConfig(
            str(folder() / "grpo"), deepspeed=config,
            use_cpu=config is None and not torch.cuda.is_available(), max_steps=3,
            per_device_train_batch_size=2, num_generations=2, logging_steps=1, learning_rate=1e-2,
            report_to=[], save_strategy="no", max_completion_length=6, disable_tqdm=True, bf16=False,
            gradient_checkpointing=False, beta=0.1, seed=7,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(path), args=given, processing_class=tokenizer(), reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": ["how do you do "] * 16}),
        )  # fmt: skip
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "loss" in entry]
        seen.append([float(entry[name]) for entry in steps for name in ("loss", "reward", "kl")])
    assert any(value != 0 for value in seen[0])
    close(seen[1], seen[0], 1e-3)
    close(seen[2], seen[0], 1e-3)


if __name__ == "__main__":
    sys.exit(run_cases([supervised, adapters, preferences, rewards]))
