"""The exact words of every refusal, and that all of them are told to the linter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dslaunch.engine.config import parse_config, survey
from dslaunch.engine.errors import ConfigError


def refusal(raw: Mapping[str, object]) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert str(caught.value) == f"{caught.value.what}\nhint: {caught.value.hint}"
    return caught.value.what, caught.value.hint


GOLDEN = [
    (
        {"zero_optimization": {"reduce_bukcet_size": 5}},
        "unknown key zero_optimization.reduce_bukcet_size",
        "did you mean zero_optimization.reduce_bucket_size?",
    ),
    ({"zero_opt": {"stage": 1}}, "unknown key zero_opt", "did you mean zero_optimization?"),
    (
        {"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memry": True}}},
        "unknown key zero_optimization.offload_optimizer.pin_memry",
        "did you mean zero_optimization.offload_optimizer.pin_memory?",
    ),
    (
        {"reduce_bucket_size": 5},
        "unknown key reduce_bucket_size",
        "did you mean zero_optimization.reduce_bucket_size?",
    ),
    ({"micro_batch_size": 5}, "unknown key micro_batch_size", "did you mean train_micro_batch_size_per_gpu?"),
    (
        {"optimizer": {"type": "Adam", "scheduler": {"type": "WarmupLR"}}},
        "unknown key optimizer.scheduler",
        "did you mean scheduler?",
    ),
    ({"max_grad_norm": 1.0}, "unknown key max_grad_norm", "did you mean gradient_clipping?"),
    ({"trainBatchSize": 8}, "unknown key trainBatchSize", "did you mean train_batch_size?"),
    (
        {"flops_profiler": {"enabled": True, "profile_steps": 3}},
        "unknown key flops_profiler.profile_steps",
        "did you mean flops_profiler.profile_step?",
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 3}}},
        "unknown key scheduler.params.warmup_num_step",
        "did you mean scheduler.params.warmup_num_steps?",
    ),
    (
        {"scheduler": {"type": "WarmupDecayLR"}},
        "scheduler.params.total_num_steps is missing: WarmupDecayLR needs it",
        "write the number of optimizer steps of the whole run",
    ),
    (
        {"scheduler": {"type": "WarmUpLR"}},
        "scheduler.type: WarmUpLR is neither DeepSpeed's nor in torch.optim.lr_scheduler",
        "did you mean WarmupLR?",
    ),
    (
        {"scheduler": {"type": "ReduceLROnPlateau"}},
        "scheduler.type: ReduceLROnPlateau is not supported: it needs a metric that the engine does not have",
        "make it in the script: initialize(lr_scheduler=lambda optimizer: ...)",
    ),
    (
        {"optimizer": {"type": "AdamW", "params": {"wieght_decay": 0.1}}},
        "unknown key optimizer.params.wieght_decay",
        "did you mean optimizer.params.weight_decay?",
    ),
    (
        {"optimizer": {"type": "Adamm"}},
        "optimizer.type: Adamm is not a supported DeepSpeed Optimizer, nor in torch.optim",
        "did you mean Adam?",
    ),
    (
        {"optimizer": {"type": "OneBitAdam"}},
        "optimizer.type: OneBitAdam is not supported: DeepSpeed itself has removed it",
        "use AdamW",
    ),
    (
        {"zero_optimization": {"stage": "two"}},
        "zero_optimization.stage: expects an integer but got 'two'",
        "write zero_optimization.stage without quotes",
    ),
    (
        {"comms_logger": {"prof_ops": "all_reduce"}},
        "comms_logger.prof_ops: expects a list of strings but got 'all_reduce'",
        "correct comms_logger.prof_ops",
    ),
    (
        {"flops_profiler": {"profile_step": 0}},
        "flops_profiler.profile_step: expects at least 1 but got 0",
        "correct flops_profiler.profile_step",
    ),
    (
        {"torch_autocast": {"enabled": True, "dtype": "fp8"}},
        "torch_autocast.dtype: expects one of bfloat16, torch.bfloat16, bf16, float16, torch.float16, "
        "fp16, half but got 'fp8'",
        "write bfloat16",
    ),
    (
        {"torch_autocast": {"enabled": True}, "bf16": {"enabled": True}},
        "torch_autocast is for fp32 parameters, but bf16 or fp16 is enabled too",
        "keep one of them",
    ),
    (
        {"bfloat16": {"enabled": True}, "bf16": {"enabled": True}},
        "bf16 and bfloat16 are the same section, both are given",
        "keep bf16",
    ),
    (
        {"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}}},
        "Cannot provide deprecated parameter 'cpu_offload' and replacing parameter 'offload_optimizer' "
        "together",
        "keep zero_optimization.offload_optimizer",
    ),
    (
        {"zero_optimization": {"max_live_parameters": 1, "stage3_max_live_parameters": 1}},
        "zero_optimization.max_live_parameters and zero_optimization.stage3_max_live_parameters are the same "
        "key, both are given",
        "keep zero_optimization.stage3_max_live_parameters",
    ),
    (
        {"train_batch_size": "8"},
        "train_batch_size: expects an integer but got '8'",
        "write train_batch_size without quotes",
    ),
    (
        {"train_batch_size": 8.5},
        "train_batch_size: expects an integer but got 8.5",
        "correct train_batch_size",
    ),
    (
        {"bf16": {"enabled": 2}},
        "bf16.enabled: expects true or false but got 2",
        "correct bf16.enabled",
    ),
    ({"bf16": True}, "bf16: expects an object but got True", 'write "bf16": { ... }'),
    (
        {"train_batch_size": "auto"},
        'train_batch_size: "auto" is only known to frameworks that fill it in (the Hugging Face Trainer)',
        "write a value for train_batch_size",
    ),
    (
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        "bfloat16 and fp16 modes cannot be simultaneously enabled",
        "disable fp16",
    ),
    (
        {"zero_optimization": {"stage": 4}},
        "zero_optimization.stage: expects 0, 1, 2 or 3 but got 4",
        "write one of these",
    ),
    (
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
        "zero_optimization.offload_optimizer needs ZeRO stage 1 or higher but got 0",
        "write stage 1",
    ),
    (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        "zero_optimization.offload_param.device: 'nvme' is not supported: every step would move 24 bytes a "
        "parameter through the disk, 4 s for a billion parameters on a fast one",
        "write cpu, and share the states among more ranks where a host's memory is short",
    ),
    (
        {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 1.5}}},
        "zero_optimization.offload_optimizer.ratio: expects at most 1 but got 1.5",
        "write 1",
    ),
    (
        {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "ratio": 0.5},
                "offload_param": {"device": "cpu"},
            }
        },
        "zero_optimization.offload_optimizer.ratio: with offload_param the host steps everything, but got "
        "0.5",
        "write 1, or remove offload_param",
    ),
    (
        {"gradient_clipping": -1},
        "gradient_clipping: expects at least 0 but got -1",
        "correct gradient_clipping",
    ),
    (
        {"optimizer": {"params": {"lr": 1}}},
        "optimizer.params is given without optimizer.type",
        "write optimizer.type",
    ),
    (
        {"steps_per_print": 0},
        "steps_per_print: expects a positive integer but got 0",
        "write e.g. 10",
    ),
]


@pytest.mark.parametrize(("raw", "what", "hint"), GOLDEN, ids=[what for _, what, _ in GOLDEN])
def test_refusals_word_for_word(raw: dict[str, object], what: str, hint: str) -> None:
    assert refusal(raw) == (what, hint)


def test_a_survey_tells_every_error() -> None:
    found = survey(
        {
            "zero_opt": {},
            "train_batch_size": "8",
            "bf16": {"enabled": 2},
            "fp16": {"enabled": True},
            "optimizer": {"type": "Adamm"},
            "zero_optimization": {"stage": 7, "overlap_com": True},
            "log_level": "loud",
            "nothing_like_it": 1,
        }
    )
    assert [error.path for error in found.errors] == [
        "zero_opt",
        "train_batch_size",
        "bf16.enabled",
        "zero_optimization.overlap_com",
        "zero_optimization.stage",
        "optimizer.type",
        "log_level",
    ]
    assert found.unknown == ("nothing_like_it",)
