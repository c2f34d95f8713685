"""Lets Hugging Face train through DeepSpeed's interface on CPU ranks; import it before anything of theirs.

Accelerate picks no backend for DeepSpeed where there is no GPU: it is handed gloo. Transformers takes bf16
for a feature of GPUs.
"""

import os

import torch
import transformers.training_args
from accelerate import PartialState
from accelerate.utils import DistributedType

_ask = PartialState._prepare_backend


def _prepare_backend(
    state: PartialState, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
) -> tuple[str, DistributedType]:
    chosen = _ask(state, cpu, sagemaker_dp, backend)
    if chosen[0] is None and "LOCAL_RANK" in os.environ:
        return "gloo", DistributedType.MULTI_CPU
    return chosen


if not torch.cuda.is_available():
    PartialState._prepare_backend = _prepare_backend
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
