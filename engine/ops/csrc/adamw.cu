#include "adamw.h"
#include "cuda_step.h"

STEP_KERNELS(adamw, AdamW)
PREPARE_KERNEL(adamw, AdamW)
