"""The model's weights as one state dict, gathered bucket by bucket where they are sharded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import log
from dslaunch.engine.buckets import home_of
from dslaunch.engine.sharded import ShardedBucket, sharded_bucket_of

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine


@torch.no_grad()
def consolidated(module: torch.nn.Module, exclude_frozen: bool, keep: bool) -> dict[str, object]:
    """The state dict with every tensor whole, where `keep`; empty elsewhere. Collective at stage 3.

    One bucket is gathered at a time; all of it is returned on the CPU. Names that share a tensor share it
    here too.
    """
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    named = dict(module.named_parameters(remove_duplicate=False))
    names_in: dict[int, list[str]] = {}
    buckets: dict[int, ShardedBucket] = {}
    found: dict[str, object] = {}
    copies: dict[tuple[object, ...], torch.Tensor] = {}
    for name, value in module.state_dict().items():
        if exclude_frozen and name in frozen:
            continue
        bucket = sharded_bucket_of(named[name]) if name in named else None
        if bucket is None:
            found[name] = _kept(value, copies) if keep else None
        else:
            found[name] = None
            buckets[id(bucket)] = bucket
            names_in.setdefault(id(bucket), []).append(name)
    for key, held in buckets.items():
        held.gather()
        copies.clear()  # the memory of the last bucket may be this one's now
        for name in names_in[key] if keep else ():
            found[name] = _kept(named[name].data, copies)
        held.let_go()
    return found if keep else {}


def save_16bit_model(engine: Engine, save_dir: str | Path, name: str, exclude_frozen: bool) -> bool:
    """Write the consolidated weights; False (and a warning) where stage 3 may not gather them."""
    if engine.zero_optimization_stage() == 3 and not engine.zero_gather_16bit_weights_on_model_save():
        log.warn(
            engine.global_rank,
            f"did not save the model {Path(save_dir) / name}: "
            "stage3_gather_16bit_weights_on_model_save is false",
        )
        return False
    weights = consolidated(engine.module, exclude_frozen, keep=engine.global_rank == 0)
    if engine.global_rank == 0:
        Path(save_dir).mkdir(parents=True, exist_ok=True)
        torch.save(weights, Path(save_dir) / name)
    engine.ranks.gather(None)  # nobody goes on before the file is there
    return True


def load_module(engine: Engine, tensors: dict[str, object], strict: bool) -> None:
    """Load whole tensors into the module; RuntimeError, in torch's words, where they do not fit."""
    taken = load_sharded(engine.module, tensors)
    rest = {name: value for name, value in tensors.items() if name not in taken}
    if not taken:
        engine.module.load_state_dict(rest, strict=strict)
        return
    missing, unexpected = engine.module.load_state_dict(rest, strict=False)
    said = []
    if names := [name for name in missing if name not in taken]:
        said.append("Missing key(s) in state_dict: " + ", ".join(f'"{name}"' for name in names) + ". ")
    if unexpected:
        said.append("Unexpected key(s) in state_dict: " + ", ".join(f'"{n}"' for n in unexpected) + ". ")
    if strict and said:
        raise RuntimeError("Error(s) in loading state_dict: " + " ".join(said))


@torch.no_grad()
def make_whole(module: torch.nn.Module) -> None:
    """Gather every sharded parameter for good and forget where it lived. Collective at stage 3."""
    for param in module.parameters():
        home = home_of(param)
        if home is None:
            continue
        if isinstance(home.bucket, ShardedBucket):
            home.bucket.gather()
            param.data = param.data.clone()
        param.grad = None
        for name in [name for name in vars(param) if name.startswith(("ds_", "_ds_"))]:
            delattr(param, name)


@torch.no_grad()
def load_sharded(module: torch.nn.Module, tensors: dict[str, object]) -> set[str]:
    """Take this rank's part of every sharded parameter from whole `tensors`; returns the names taken."""
    taken: set[str] = set()
    for name, param in module.named_parameters(remove_duplicate=False):
        home = home_of(param)
        value = tensors.get(name)
        if sharded_bucket_of(param) is None or home is None or not isinstance(value, torch.Tensor):
            continue
        if value.shape != home.shape:
            raise RuntimeError(
                f"size mismatch for {name}: copying a param with shape {value.shape} from checkpoint, "
                f"the shape in current model is {home.shape}."
            )
        home.bucket.finish_stepping()
        part, of_member = home.bucket.parts(home.index)
        home.bucket.claim()
        home.bucket.param_shard[part].copy_(value.reshape(-1)[of_member])
        taken.add(name)
    return taken


def _kept(value: object, copies: dict[tuple[object, ...], torch.Tensor]) -> object:
    """A copy on the CPU, one for all names of a tensor, with a memory of its own.

    Accelerate takes tensors of one storage, as those of a bucket are, for one tensor under several names.
    """
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    if key not in copies:
        copies[key] = tensor.cpu() if tensor.is_cuda else tensor.clone()
    return copies[key]
