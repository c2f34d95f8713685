"""What scripts take from `deepspeed.utils`."""

from dslaunch.compat.lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "OnDevice": "deepspeed.utils.init_on_device:OnDevice",
        "RepeatingLoader": "dslaunch.engine.dataloader:RepeatingLoader",
        "dist": "deepspeed.comm",
        "get_accelerator": "dslaunch.compat.accelerator:get_accelerator",
        "get_caller_func": "dslaunch.compat.words:caller_name",
        "get_z3_leaf_modules": "dslaunch.engine.zero:get_z3_leaf_modules",
        "instrument_w_nvtx": "deepspeed.utils.nvtx:instrument_w_nvtx",
        "link_hp_params": "deepspeed.utils.tensor_fragment:link_hp_params",
        "log_dist": "deepspeed.utils.logging:log_dist",
        "logger": "dslaunch.engine.log:logger",
        "safe_get_full_fp32_param": "dslaunch.engine.safe_access:safe_get_full_fp32_param",
        "safe_get_full_grad": "dslaunch.engine.safe_access:safe_get_full_grad",
        "safe_get_full_optimizer_state": "dslaunch.engine.safe_access:safe_get_full_optimizer_state",
        "safe_get_local_fp32_param": "dslaunch.engine.safe_access:safe_get_local_fp32_param",
        "safe_get_local_grad": "dslaunch.engine.safe_access:safe_get_local_grad",
        "safe_get_local_optimizer_state": "dslaunch.engine.safe_access:safe_get_local_optimizer_state",
        "safe_set_full_fp32_param": "dslaunch.engine.safe_access:safe_set_full_fp32_param",
        "safe_set_full_grad": "dslaunch.engine.safe_access:safe_set_full_grad",
        "safe_set_full_optimizer_state": "dslaunch.engine.safe_access:safe_set_full_optimizer_state",
        "safe_set_local_fp32_param": "dslaunch.engine.safe_access:safe_set_local_fp32_param",
        "safe_set_local_grad": "dslaunch.engine.safe_access:safe_set_local_grad",
        "safe_set_local_optimizer_state": "dslaunch.engine.safe_access:safe_set_local_optimizer_state",
        "set_z3_leaf_module": "dslaunch.engine.zero:set_z3_leaf_module",
        "set_z3_leaf_modules": "dslaunch.engine.zero:set_z3_leaf_modules",
        "unset_z3_leaf_modules": "dslaunch.engine.zero:unset_z3_leaf_modules",
        "z3_leaf_module": "dslaunch.engine.zero:z3_leaf_module",
        "z3_leaf_parameter": "deepspeed.utils.z3_leaf_module:z3_leaf_parameter",
    },
)
