"""Sharded parameters."""

from dslaunch.compat.lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "GatheredParameters": "dslaunch.engine.zero:GatheredParameters",
        "Init": "dslaunch.engine.zero:Init",
        "ZeroParamStatus": "dslaunch.engine.zero:ZeroParamStatus",
        "register_external_parameter": "dslaunch.engine.zero:register_external_parameter",
        "unregister_external_parameter": "dslaunch.engine.zero:unregister_external_parameter",
        "ZeroParamType": "dslaunch.compat.zero_names:ZeroParamType",
        "unwrap_model_for_generation": "dslaunch.compat.zero_names:unwrap_model_for_generation",
        "TiledLinear": "deepspeed.runtime.zero.tiling:TiledLinear",
        "TiledLinearReturnBias": "deepspeed.runtime.zero.tiling:TiledLinearReturnBias",
        "DeepSpeedZeRoOffload": "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload",
    },
)
