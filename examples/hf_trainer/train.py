"""Train a small Llama on the bytes of text files with Hugging Face's Trainer: nothing here knows of dslaunch.

dslaunch train.py --deepspeed ds_config.json --text ../../docs --output_dir out --max_steps 50
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

EVALUATED_SHARE = 0.05


@dataclass
class TaskArguments:
    """What is trained on what."""

    text: str = field(metadata={"help": "a file, or a folder whose .md, .txt and .py files are read"})
    context: int = field(default=128, metadata={"help": "bytes of a sample"})
    hidden_size: int = 128
    num_layers: int = 2


def read_samples(path: Path, context: int) -> list[dict[str, torch.Tensor]]:
    """Samples of `context` bytes, all of the text in order."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    text = b"".join(file.read_bytes() for file in files if file.suffix in (".md", ".txt", ".py"))
    if len(text) < 20 * context:
        raise SystemExit(f"{path} has {len(text)} bytes of text: too little to train on")
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(text) // context * context]
    return [{"input_ids": row, "labels": row} for row in rows.view(-1, context).long()]


def main() -> None:
    training: TrainingArguments
    task, training = HfArgumentParser((TaskArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training.seed)
    samples = read_samples(Path(task.text), task.context)
    num_evaluated = max(1, int(len(samples) * EVALUATED_SHARE))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=task.hidden_size,
            intermediate_size=4 * task.hidden_size,
            num_hidden_layers=task.num_layers,
            num_attention_heads=4,
            max_position_embeddings=task.context,
        )
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=samples[:-num_evaluated],
        eval_dataset=samples[-num_evaluated:],
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"evaluation loss {metrics['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
