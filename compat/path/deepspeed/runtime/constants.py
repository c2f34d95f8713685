"""Keys of the configuration that scripts spell by these names."""

TRAIN_BATCH_SIZE = "train_batch_size"
TRAIN_MICRO_BATCH_SIZE_PER_GPU = "train_micro_batch_size_per_gpu"
GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
GRADIENT_CLIPPING = "gradient_clipping"
STEPS_PER_PRINT = "steps_per_print"
OPTIMIZER, SCHEDULER, TYPE, PARAMS = "optimizer", "scheduler", "type", "params"
OPTIMIZER_PARAMS = SCHEDULER_PARAMS = PARAMS
MAX_GRAD_NORM = "max_grad_norm"
FP16, BFLOAT16, ENABLED = "fp16", "bf16", "enabled"
ZERO_OPTIMIZATION = "zero_optimization"
ROUTE_TRAIN, ROUTE_EVAL, ROUTE_PREDICT = "train", "eval", "predict"
