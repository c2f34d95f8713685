#include "adamw.h"
#include "cuda_step.h"

STEP_KERNELS(adamw, AdamW)
PREPARE_KERNEL(adamw, AdamW)

STEP_KERNELS(adamw_bf16, InBFloat16<AdamW>)
PREPARE_KERNEL(adamw_bf16, InBFloat16<AdamW>)
