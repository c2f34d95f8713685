#include "adagrad.h"
#include "cuda_step.h"

STEP_KERNELS(adagrad, Adagrad)
PREPARE_KERNEL(adagrad, Adagrad)
