"""`estimate_zero*_model_states_mem_needs*`: what model states take, by DeepSpeed's own formulas.

Legend: `P` parameters, `L` those of the largest layer, `N` GPUs in all, `n` GPUs of a node. Bytes for mixed
precision with Adam: 2 a parameter in 16 bits, 16 or 18 with gradients, master and moments. Source: the memory
requirements page of DeepSpeed's documentation. This engine keeps no gradients between steps, and needs less.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_GIBIBYTE = 1 << 30


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """Bytes on the CPU of a node and on each GPU at stage 2."""
    num_gpus = num_nodes * num_gpus_per_node
    if cpu_offload:
        return int(total_params * max(4 * num_gpus, 16) * additional_buffer_factor), 2 * total_params
    on_gpu = 2 * total_params + int(18 * total_params / num_gpus)
    return int(total_params * 4 * num_gpus_per_node * additional_buffer_factor), on_gpu


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """Bytes on the CPU of a node, on each GPU, and of them for the largest layer, at stage 3."""
    num_gpus = num_nodes * num_gpus_per_node
    needed: float
    largest = 4 * largest_layer_params
    whole_copies = total_params * 4 * num_gpus_per_node
    if not cpu_offload:
        on_gpu = largest + int(18 * total_params / num_gpus)
        needed = largest_layer_params * 4 * num_gpus_per_node if zero_init else whole_copies
    else:
        on_gpu = largest if cpu_offload_params else largest + int(2 * total_params / num_gpus)
        states = total_params * (18 if cpu_offload_params else 16) / num_nodes
        needed = states if zero_init else max(whole_copies, states)
    return int(needed * additional_buffer_factor), int(on_gpu), largest


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Print the needs at stage 2 with and without offload, for a model that exists only on paper."""
    _print_setup(num_nodes, num_gpus_per_node, f"{int(total_params / 1e6)}M total params.")
    for offload in (True, False):
        on_cpu, on_gpu = estimate_zero2_model_states_mem_needs(
            total_params, num_gpus_per_node, num_nodes, offload, additional_buffer_factor
        )
        _print_needs(on_cpu, on_gpu, f"offload_optimizer={_device(offload)}")


def estimate_zero2_model_states_mem_needs_all_live(
    model: torch.nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """The same for this model."""
    estimate_zero2_model_states_mem_needs_all_cold(
        _numel(model.parameters()), num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the needs at stage 3 with and without offload and zero.Init."""
    words = (
        f"{int(total_params / 1e6)}M total params, {int(largest_layer_params / 1e6)}M largest layer params."
    )
    _print_setup(num_nodes, num_gpus_per_node, words)
    for params, optimizer in ((True, True), (False, True), (False, False)):
        for zero_init in (True, False):
            on_cpu, on_gpu, _ = estimate_zero3_model_states_mem_needs(
                *(total_params, largest_layer_params, num_gpus_per_node, num_nodes),
                *(optimizer, params, zero_init, additional_buffer_factor),
            )
            where = f"offload_param={_device(params)}, offload_optimizer={_device(optimizer)}"
            _print_needs(on_cpu, on_gpu, f"{where}, zero_init={int(zero_init)}")


def estimate_zero3_model_states_mem_needs_all_live(
    model: torch.nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """The same for this model; its largest layer is the module with the most parameters of its own."""
    largest = max(_numel(module.parameters(recurse=False)) for module in model.modules())
    estimate_zero3_model_states_mem_needs_all_cold(
        _numel(model.parameters()), largest, num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def _numel(params: Iterable[torch.nn.Parameter]) -> int:
    """Elements, tied parameters once; a shard of stage 3 counts for its whole parameter."""
    found = {id(param): int(getattr(param, "ds_numel", param.numel())) for param in params}
    return sum(found.values())


def _device(offload: bool) -> str:
    return "cpu " if offload else "none"


def _print_setup(num_nodes: int, num_gpus_per_node: int, model: str) -> None:
    nodes, gpus = "nodes" if num_nodes > 1 else "node", "GPUs" if num_gpus_per_node > 1 else "GPU"
    print("Estimated memory needed for params, optim states and gradients for a:")
    print(f"HW: Setup with {num_nodes} {nodes}, {num_gpus_per_node} {gpus} per node.")
    print(f"SW: Model with {model}")
    print("  per CPU  |  per GPU |   Options")


def _print_needs(on_cpu: int, on_gpu: int, options: str) -> None:
    print(f"  {on_cpu / _GIBIBYTE:7.2f}GB | {on_gpu / _GIBIBYTE:6.2f}GB | {options}")
