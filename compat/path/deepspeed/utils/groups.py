"""Which ranks share what."""

from dslaunch.compat.groups import (
    get_data_parallel_group,
    get_data_parallel_rank,
    get_data_parallel_world_size,
    get_model_parallel_group,
    get_model_parallel_rank,
    get_model_parallel_world_size,
)

# Every other kind of parallelism has one rank.
get_tensor_model_parallel_group = _get_sequence_parallel_group = get_model_parallel_group
get_tensor_model_parallel_rank = _get_sequence_parallel_rank = get_model_parallel_rank
get_tensor_model_parallel_world_size = _get_sequence_parallel_world_size = get_model_parallel_world_size
_get_model_parallel_world_size = _get_expert_parallel_world_size = get_model_parallel_world_size
_get_expert_parallel_rank = get_model_parallel_rank
_get_data_parallel_group = _get_sequence_data_parallel_group = get_data_parallel_group
_get_data_parallel_rank = _get_sequence_data_parallel_rank = get_data_parallel_rank
_get_data_parallel_world_size = _get_sequence_data_parallel_world_size = get_data_parallel_world_size
mpu = mesh_device = None

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
]
