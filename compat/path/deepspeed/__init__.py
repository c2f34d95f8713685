"""DeepSpeed's programming interface over dslaunch's engine. Names load with their first use."""

from dslaunch.compat.lazy import lazy
from dslaunch.compat.version import git_branch, git_hash, major, minor, patch, version

__all__ = ["git_branch", "git_hash", "version"]
__version__ = version
__version_major__, __version_minor__, __version_patch__ = major, minor, patch
__git_hash__ = git_hash
__git_branch__ = git_branch

HAS_TRITON = False

__getattr__ = lazy(
    __name__,
    {
        "initialize": "dslaunch.engine:initialize",
        "init_distributed": "dslaunch.engine:init_distributed",
        "add_config_arguments": "dslaunch.engine:add_config_arguments",
        "add_tuning_arguments": "dslaunch.engine:add_tuning_arguments",
        "DeepSpeedDataLoader": "dslaunch.engine.dataloader:TrainingDataLoader",
        "DeepSpeedEngine": "dslaunch.engine:Engine",
        "DeepSpeedOptimizerCallable": "deepspeed.runtime.engine:DeepSpeedOptimizerCallable",
        "DeepSpeedSchedulerCallable": "deepspeed.runtime.engine:DeepSpeedSchedulerCallable",
        "DeepSpeedOptimizer": "deepspeed.runtime.base_optimizer:DeepSpeedOptimizer",
        "DeepSpeedConfig": "deepspeed.runtime.config:DeepSpeedConfig",
        "DeepSpeedConfigError": "dslaunch.engine:ConfigError",
        "DeepSpeedHybridEngine": "deepspeed.runtime.hybrid_engine:DeepSpeedHybridEngine",
        "DeepSpeedTransformerConfig": "deepspeed.ops.transformer:DeepSpeedTransformerConfig",
        "DeepSpeedTransformerLayer": "deepspeed.ops.transformer:DeepSpeedTransformerLayer",
        "InferenceEngine": "deepspeed.inference.engine:InferenceEngine",
        "OnDevice": "deepspeed.utils.init_on_device:OnDevice",
        "PipelineEngine": "deepspeed.runtime.pipe.engine:PipelineEngine",
        "PipelineModule": "deepspeed.pipe:PipelineModule",
        "checkpointing": "dslaunch.engine.checkpointing",
        "default_inference_config": "deepspeed.inference.engine:default_inference_config",
        "dist": "deepspeed.comm",
        "get_accelerator": "dslaunch.compat.accelerator:get_accelerator",
        "init_inference": "deepspeed.inference.engine:init_inference",
        "log_dist": "deepspeed.utils.logging:log_dist",
        "logger": "dslaunch.engine.log:logger",
        "tp_model_init": "deepspeed.runtime.tensor_parallel:tp_model_init",
        "TORCH_DISTRIBUTED_DEFAULT_PORT": "deepspeed.constants:TORCH_DISTRIBUTED_DEFAULT_PORT",
        "zero": "deepspeed.runtime.zero",
    },
)
