#include "cuda_step.h"
#include "lion.h"

STEP_KERNELS(lion, Lion)
PREPARE_KERNEL(lion, Lion)
