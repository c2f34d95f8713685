#include "cuda_step.h"
#include "sgd.h"

STEP_KERNELS(sgd, Sgd)
STEP_KERNELS(sgd_momentum, SgdMomentum)
PREPARE_KERNEL(sgd, Sgd)
PREPARE_KERNEL(sgd_momentum, SgdMomentum)
