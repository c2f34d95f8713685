// All CPU kernels for one instruction set: compiled once for each, with DSLAUNCH_KERNELS naming the table.
#include "cpu_adagrad.cpp"
#include "cpu_adamw.cpp"
#include "cpu_call.h"
#include "cpu_lamb.cpp"
#include "cpu_lion.cpp"
#include "cpu_norm.cpp"
#include "cpu_sgd.cpp"

extern const Kernels DSLAUNCH_KERNELS;
const Kernels DSLAUNCH_KERNELS = {step_adamw, step_adamw_bf16,   step_lion, step_adagrad,
                                  step_sgd,   step_sgd_momentum, step_lamb, sum_of_squares};
