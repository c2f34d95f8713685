"""Whether a checkpoint fits an engine, told before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine.buckets import Bucket, home_of
from dslaunch.engine.checkpoint_manifest import Manifest
from dslaunch.engine.checkpoint_source import shape_in, stored_name
from dslaunch.engine.errors import CheckpointError

if TYPE_CHECKING:
    from dslaunch.engine.checkpoint_load import LoadRequest
    from dslaunch.engine.engine import Engine


def has_states(manifest: Manifest, bucket: Bucket, name: str) -> bool:
    """Whether everything the optimizer keeps of a parameter of `bucket` is in the checkpoint."""
    stored = stored_name(manifest, name)
    if stored is None or stored not in manifest.params or bucket.state is None:
        return False
    return set(bucket.state.kinds) <= set(manifest.kinds_of(stored))


def check_fit(engine: Engine, manifest: Manifest, request: LoadRequest) -> None:
    """CheckpointError, in torch's words, where names or shapes differ, or optimizer states are missing."""
    if request.custom_load_fn is None:
        _check_module(engine, manifest, request.module_strict)
    if engine.zero_optimizer is None or not request.wants_optimizer or not manifest.param_groups:
        return
    for bucket in engine.zero_optimizer.buckets:
        for slot in bucket.spec.slots:
            if has_states(manifest, bucket, slot.name):
                continue
            stored = stored_name(manifest, slot.name)
            kinds = () if stored is None or stored not in manifest.params else manifest.kinds_of(stored)
            if kinds not in ((), (manifests.PARAM,)):
                assert bucket.state is not None
                missing = next(kind for kind in bucket.state.kinds if kind not in kinds)
                raise CheckpointError(
                    f"the checkpoint has no optimizer state {missing} of {slot.name}: "
                    "another optimizer has saved it",
                    "load it with load_optimizer_states=False",
                )
            if request.module_strict:
                raise CheckpointError(
                    f"the checkpoint {manifest.tag} has no optimizer state for {slot.name}",
                    "pass load_optimizer_states=False, or load_module_strict=False to start it from zero",
                )


def _check_module(engine: Engine, manifest: Manifest, strict: bool) -> None:
    module = engine.module
    own = module.state_dict()
    said: list[str] = []
    if strict:
        tensors = {name for name, value in own.items() if hasattr(value, "shape")}
        known = manifest.names()
        if missing := [name for name in own if name in tensors and stored_name(manifest, name) is None]:
            said.append("Missing key(s) in state_dict: " + _quoted(missing))
        if unexpected := sorted(known - own.keys()):
            said.append("Unexpected key(s) in state_dict: " + _quoted(unexpected))
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in own.items()}
    for name, param in module.named_parameters(remove_duplicate=False):
        home = home_of(param)
        if name in shapes and home is not None:
            shapes[name] = tuple(home.shape)
    for name, shape in shapes.items():
        stored = stored_name(manifest, name)
        if stored is not None and (saved := shape_in(manifest, stored)) != shape:
            said.append(
                f"size mismatch for {name}: the checkpoint has shape {list(saved)}, "
                f"the current model {list(shape)}."
            )
    if said:
        raise CheckpointError(
            f"the checkpoint {manifest.tag} does not fit the module: " + " ".join(said),
            "build the model as it was when it was saved, or pass load_module_strict=False",
        )


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) + "."
