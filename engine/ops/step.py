"""One optimizer step of many shards: by their device's kernels, or in plain torch where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch

from dslaunch.engine.ops import backends, remainder, stochastic
from dslaunch.engine.ops.shard import Control, Rule, Shard, batch_of

_CPU_CHUNK_NUMEL = 1 << 18  # temporaries stay in cache
_GPU_CHUNK_NUMEL = 1 << 26  # temporaries stay below 256 MiB


def step_(
    rule: Rule,
    shards: Sequence[Shard],
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    num_threads: int | None = None,
) -> None:
    """One step in place on all `shards`, which are on one device and of the same dtypes.

    Gradients are multiplied by `grad_scale` (fp32 scalar tensor on that device; None is 1). Where `found_inf`
    (likewise) is not 0, nothing is changed. On GPUs neither is read by the host.
    `num_threads` is for CPUs; None: as many as torch has.
    """
    if shards:
        step_batch_(rule, shards, Control(grad_scale, found_inf, num_threads=num_threads))


def step_batch_(rule: Rule, shards: Sequence[Shard], control: Control) -> None:
    """The same for at least one shard, with all that a step can be told."""
    backend = backends.of(shards[0].master.device)
    if not rule.low_states and any(state.dtype == torch.bfloat16 for state in shards[0].states):
        raise TypeError(f"{rule.kernel} expects states in fp32 but got bf16, which only AdamW rounds")
    # The kernels of whole-tensor rules know no split masters.
    if backend is not None and all(
        shard.is_plain() and not (shard.is_split and rule.whole_tensors) for shard in shards
    ):
        backend.step(rule, batch_of(shards), control)
        return
    if control.counter is not None or control.lr is not None:
        raise RuntimeError("capturable=True needs the CUDA kernels\nhint: dslaunchctl build")
    reference_step(rule, shards, control.grad_scale, control.found_inf)


def reference_step(
    rule: Rule,
    shards: Sequence[Shard],
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """The same in plain torch, with temporaries of bounded size: every kernel's oracle, and the fallback.

    Here the host does read `found_inf`, and any floating dtype will do.
    """
    if found_inf is not None and found_inf.item():
        return
    for shard in shards:
        for part in _parts(rule, shard):
            master = _joined(part)
            g = part.grad.to(master.dtype)
            if grad_scale is not None:
                g = g * grad_scale
            states = part.states
            if rule.low_states and master.dtype == torch.float32:
                states = tuple(state.float() for state in states)  # the same tensors, where they are fp32
            rule.reference(master, states, g)
            _round_states(rule, part, states)
            _keep(part, master)


def _joined(shard: Shard) -> torch.Tensor:
    if not shard.is_split:
        return shard.master
    assert shard.param is not None
    return remainder.join(shard.param, shard.master)


def _keep(shard: Shard, master: torch.Tensor) -> None:
    if shard.param is None:
        return
    if shard.is_split:
        remainder.split_(master, shard.param, shard.master)
        return
    if shard.param.dtype == torch.bfloat16 and master.dtype == torch.float32:
        remainder.settle_ties_(master)
    shard.param.copy_(master)


class _Counted(Protocol):
    step: int


def _round_states(rule: Rule, shard: Shard, states: Sequence[torch.Tensor]) -> None:
    """Keep what a step has made of states in bf16."""
    if not states or states[0] is shard.states[0]:
        return
    shape, device, step = states[0].shape, shard.master.device, cast("_Counted", rule).step
    random = stochastic.noise(states[0].numel(), shard.start, shard.stream, step, device).view(shape)
    for state, values, bits in zip(shard.states, states, (random & 0xFFFF, random >> 16), strict=True):
        state.copy_(stochastic.rounded(values, bits))


def _parts(rule: Rule, shard: Shard) -> list[Shard]:
    tensors = [shard.master, *shard.states, shard.grad, *([] if shard.param is None else [shard.param])]
    if rule.whole_tensors or not all(tensor.is_contiguous() for tensor in tensors):
        return [shard]
    chunk = _GPU_CHUNK_NUMEL if shard.master.is_cuda else _CPU_CHUNK_NUMEL
    starts = range(shard.start, shard.start + max(shard.master.numel(), 1), chunk)
    flat = [torch.split(tensor.view(-1), chunk) for tensor in tensors]
    num_states = len(shard.states)
    return [
        Shard(
            pieces[0],
            tuple(pieces[1 : 1 + num_states]),
            pieces[1 + num_states],
            pieces[2 + num_states] if shard.param is not None else None,
            start,
            shard.stream,
        )
        for start, *pieces in zip(starts, *flat, strict=True)
    ]
