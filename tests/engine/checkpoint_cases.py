"""Runs on the ranks: saving and loading checkpoints."""

from __future__ import annotations

import logging
import os
import random
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from equivalence_cases import FEATURES, Net, full_state

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpoint_contents, checkpoint_save, log
from dslaunch.engine.model_weights import consolidated

GLOBAL_BATCH = 24


def engine_of(
    stage: int,
    bf16: bool,
    init_seed: int,
    flags: tuple[str, ...] = ("tied", "frozen"),
    fp16: bool = False,
    checkpoint: dict[str, object] | None = None,
    zero: dict[str, object] | None = None,
) -> deepspeed.Engine:
    torch.manual_seed(init_seed)
    model = Net(flags)
    model.register_buffer("seen", torch.full((3,), float(init_seed)))
    small = [p for p in model.parameters() if p.dim() <= 1]
    large = [p for p in model.parameters() if p.dim() > 1]
    return deepspeed.initialize(
        model=model,
        model_parameters=[{"params": large, "weight_decay": 0.1}, {"params": small, "lr": 0.002}],
        config={
            "train_batch_size": GLOBAL_BATCH,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}},
            "bf16": {"enabled": bf16},
            "fp16": {"enabled": fp16, "loss_scale_window": 1, "initial_scale_power": 4},
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 400 if init_seed % 2 else 5e8,
                "stage3_param_persistence_threshold": 20 if init_seed % 2 else 300,
                **(zero or {}),
            },
            "checkpoint": checkpoint or {},
            "log_level": "error",
        },
    )[0]


def train(engine: deepspeed.Engine, num_steps: int, seed: int) -> list[float]:
    """The same global batches at every world size; returns this rank's losses."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(engine.parameters()).dtype
    losses = []
    for _ in range(num_steps * 2):
        half = torch.randn(GLOBAL_BATCH // 2, FEATURES, generator=generator).to(dtype)
        size = len(half) // engine.world_size
        x = half.to(next(engine.parameters()).device)[
            engine.global_rank * size : (engine.global_rank + 1) * size
        ]
        loss = (engine(x, 0).float() - x.float().square()).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def state_of(engine: deepspeed.Engine) -> dict[str, torch.Tensor]:
    """Everything training depends on, whole, on every rank. Collective."""
    found = {
        f"module.{name}": value.clone() for name, value in consolidated(engine.module, False, True).items()
    }
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        found.update({f"{kind}.{name}": value for name, value in full_state(engine, kind).items()})
    return found


def unequal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def resume_is_exact(directory: str, stage: int, bf16: bool, seed: int) -> None:
    """Train 3, save, train 3; a fresh engine with other weights loads and trains the same 3."""
    fp16 = "fp16" in directory
    engine = engine_of(stage, bf16, 1, fp16=fp16)
    train(engine, 3, seed)
    assert engine.save_checkpoint(directory, client_state={"step": 3, "best": [0.5, None]})
    expected = train(engine, 3, seed + 1)
    fresh = engine_of(stage, bf16, 3, fp16=fp16)
    path, client_state = fresh.load_checkpoint(directory)
    assert (path, client_state) == (f"{directory}/global_step3", {"step": 3, "best": [0.5, None]})
    assert train(fresh, 3, seed + 1) == expected
    assert unequal(state_of(engine), state_of(fresh)) == []
    for name in ("global_steps", "global_samples", "skipped_steps"):
        assert getattr(fresh, name) == getattr(engine, name), name
    assert fresh.get_lr() == engine.get_lr()
    assert fresh.loss_scale() == engine.loss_scale()
    train(engine, 1, seed)  # in the middle of other training, over its own state
    engine.load_checkpoint(directory, tag="global_step3")
    assert train(engine, 3, seed + 1) == expected


def whole_of(engine: deepspeed.Engine) -> dict[str, object]:
    """Everything a checkpoint carries, on every rank. Collective."""
    assert engine.optimizer is not None
    assert engine.lr_scheduler is not None
    return {
        **state_of(engine),
        "applied": engine.optimizer.num_applied,
        "counters": [engine.global_steps, engine.global_samples, engine.skipped_steps],
        "groups": checkpoint_contents.hyperparameters(engine.optimizer),
        "scheduler": engine.lr_scheduler.state_dict(),
        "scaler": engine.optimizer.scaler_state(),
    }


def different(a: dict[str, object], b: dict[str, object]) -> list[str]:
    """Names of what differs in a bit."""
    assert a.keys() == b.keys()

    def same(x: object, y: object) -> bool:
        return torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y

    return [name for name in a if not same(a[name], b[name])]


def save_all(directory: str, seed: int) -> None:
    """One checkpoint of every stage and dtype at this world size, and beside it what it must bring back."""
    world = dist.get_world_size()
    for stage in range(4):
        for dtype in ("fp32", "bf16", "fp16"):
            tag = f"{dtype}-stage{stage}-world{world}"
            engine = engine_of(stage, dtype == "bf16", 1, fp16=dtype == "fp16")
            train(engine, 2, seed + 10 * world + stage)
            engine.save_checkpoint(directory, tag=tag, client_state={"tag": tag})
            whole = whole_of(engine)
            if dist.get_rank() == 0:
                torch.save(whole, f"{directory}/{tag}.expected")


def load_all(directory: str, seed: int | None) -> tuple[int, list[str]]:
    """Each of them into an engine of every stage and other buckets; how many, and what was wrong.

    With a seed each engine loads one chosen stage of every world size, without one all.
    """
    wrong = []
    choose = random.Random(seed)
    num_loads = 0
    for stage in range(4):
        for dtype in ("fp32", "bf16", "fp16"):
            engine = engine_of(stage, dtype == "bf16", 2, fp16=dtype == "fp16")
            stages = [choose.randrange(4)] if seed is not None else list(range(4))
            for tag in (f"{dtype}-stage{s}-world{world}" for s in stages for world in range(1, 5)):
                expected = torch.load(f"{directory}/{tag}.expected")
                assert engine.load_checkpoint(directory, tag) == (f"{directory}/{tag}", {"tag": tag})
                wrong += [f"{tag} at stage {stage}: {name}" for name in different(whole_of(engine), expected)]
                num_loads += 1
            train(engine, 1, 0)  # it can go on
    return num_loads, wrong


def save(directory: str, stage: int, bf16: bool, seed: int) -> dict[str, torch.Tensor]:
    engine = engine_of(stage, bf16, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory, tag=f"world{dist.get_world_size()}", client_state={"seed": seed})
    return state_of(engine)


def load(directory: str, tag: str, stage: int, bf16: bool) -> None:
    engine_of(stage, bf16, 2).load_checkpoint(directory, tag)


def background(directory: str, stage: int, seed: int) -> None:
    """Saves with `checkpoint.async`: what is kept is the state at the call, whatever training does then."""
    engine = engine_of(stage, True, 1, checkpoint={"async": True})
    for _ in range(2):
        train(engine, 1, seed)
        before = state_of(engine)
        engine.save_checkpoint(directory)
        train(engine, 2, seed + 1)
        after = state_of(engine)
        engine.load_checkpoint(directory)  # waits for the save
        assert unequal(before, state_of(engine)) == []
        assert unequal(before, after) != []
    engine.destroy()


def background_failure(directory: str) -> tuple[str, bool]:
    """The directory cannot be written any more once the save has begun; what the next call says."""
    engine = engine_of(1, False, 1, checkpoint={"async": True})
    engine.save_checkpoint(directory, tag="good")
    engine.wait_for_checkpoint()
    if dist.get_rank() == 0:
        Path(directory, "bad").write_text("not a directory, and in the way of a rename")
        Path(directory, ".bad.replaced").write_text("")
    dist.barrier()
    engine.save_checkpoint(directory, tag="bad")
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.wait_for_checkpoint()
    dist.barrier()
    engine.save_checkpoint(directory, tag="better")
    engine.wait_for_checkpoint()
    return caught.value.what, Path(directory, ".bad.saving").exists()


def keep_last(directory: str) -> None:
    engine = engine_of(1, False, 1, checkpoint={"keep_last": 2})
    for step in (1, 2, 3, 4):
        engine.global_steps = step
        engine.save_checkpoint(directory)
        if step == 2:
            engine.save_checkpoint(directory, tag="best", save_latest=False)


def restart(directory: str, resume: bool) -> tuple[object, str]:
    """As a script does at its start: the path of what was loaded, or the error; and what was warned."""
    engine = engine_of(2, False, 2)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log.logger.addHandler(handler)
    log.logger.setLevel(logging.WARNING)
    os.environ["DSLAUNCH_RESUME"] = "1" if resume else ""
    try:
        told: object = engine.load_checkpoint(directory)[0]
    except deepspeed.CheckpointError as error:
        told = str(error)
    finally:
        del os.environ["DSLAUNCH_RESUME"]
        log.logger.removeHandler(handler)
    return told, "\n".join(record.getMessage() for record in records)


def on_nodes(directory: str, num_nodes: int, seed: int) -> list[str]:
    """Ranks on as many nodes as there are, each with storage of its own; load at other world sizes too."""
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ["DSLAUNCH_HOST"] = f"host{rank * num_nodes // world}"
    local = f"{directory}/{os.environ['DSLAUNCH_HOST']}"
    try:
        wrong = []
        for stage in (0, 2, 3):
            engine = engine_of(stage, True, 1)
            train(engine, 2, seed + stage)
            engine.save_checkpoint(local, tag=f"stage{stage}", client_state={"stage": stage})
            expected = whole_of(engine)
            for other in (1, 3):
                fresh = engine_of(other, True, 2)
                assert fresh.load_checkpoint(local)[1] == {"stage": stage}
                wrong += [f"{stage} to {other}: {name}" for name in different(whole_of(fresh), expected)]
        return wrong
    finally:
        del os.environ["DSLAUNCH_HOST"]


def refuse_to_load(directory: str, **options: bool) -> tuple[str, list[str]]:
    """The words of the error, and which state has changed in spite of it."""
    engine = engine_of(1, False, 1)
    before = state_of(engine)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.load_checkpoint(directory, **options)
    return str(caught.value), unequal(before, state_of(engine))


def die_while_saving(directory: str, seed: int) -> None:
    """Save once; then write all files of a second checkpoint and die before it is put into place."""
    engine = engine_of(1, False, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory)
    train(engine, 1, seed)
    request = checkpoint_save.SaveRequest(Path(directory), "global_step2", {}, True, False)
    checkpoint_save.write_files(checkpoint_save.prepare(engine, request), dist.get_rank())
    dist.barrier()
    os._exit(9)


def loads_what_was_saved_last(directory: str, seed: int) -> int:
    """Load, check against training anew, save again over the remains."""
    engine = engine_of(1, False, 3)
    engine.load_checkpoint(directory)
    twin = engine_of(1, False, 1)
    train(twin, 2, seed)
    assert unequal(state_of(engine), state_of(twin)) == []
    train(engine, 1, seed)
    engine.save_checkpoint(directory, tag="global_step2")
    fresh = engine_of(0, False, 3)
    fresh.load_checkpoint(directory)
    assert unequal(state_of(engine), state_of(fresh)) == []
    return fresh.global_steps


def parts(directory: str, seed: int) -> None:
    """What each flag of load_checkpoint takes and leaves."""
    engine = engine_of(1, True, 1)
    train(engine, 3, seed)
    engine.save_checkpoint(directory, save_latest=False, tag=7)
    assert engine_of(1, True, 1).load_checkpoint(directory) == (None, None)
    saved = state_of(engine)

    module_only = engine_of(1, True, 3)
    module_only.load_checkpoint(directory, "7", load_module_only=True)
    loaded = state_of(module_only)
    assert {name.split(".")[0] for name in unequal(saved, loaded)} == {"master", "exp_avg", "exp_avg_sq"}
    assert all(
        torch.equal(value, loaded[f"module.{name.removeprefix('master.')}"].float())
        for name, value in loaded.items()
        if name.startswith("master.")
    )
    assert (module_only.global_steps, module_only.get_lr()) == (0, [0.0, 0.0])

    weights = engine_of(1, True, 3)
    weights.load_checkpoint(directory, 7, load_optimizer_states=False, load_lr_scheduler_states=False)
    assert weights.global_steps == 3
    assert weights.get_lr() == [0.0, 0.0]
    assert weights.optimizer is not None
    assert weights.optimizer.num_applied == 0

    def custom(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
        dst.load_state_dict({name: torch.zeros_like(value) for name, value in src.items()})

    zeros = engine_of(1, True, 3)
    zeros.load_checkpoint(directory, "7", load_module_only=True, custom_load_fn=custom)
    assert not any(param.any() for param in zeros.parameters())


def frozen_parameters_can_be_left_out(directory: str) -> None:
    engine = engine_of(1, False, 1)
    engine.save_checkpoint(directory, exclude_frozen_parameters=True)
    fresh = engine_of(1, False, 3)
    with pytest.raises(
        deepspeed.CheckpointError, match=r"Missing key\(s\) in state_dict: \"inner.weight\""
    ) as caught:
        fresh.load_checkpoint(directory)
    assert "pass load_module_strict=False" in caught.value.hint
    fresh.load_checkpoint(directory, load_module_strict=False)
    a, b = state_of(engine), state_of(fresh)
    assert set(unequal(a, b)) == {"module.inner.weight"}


def refuse_to_save(directory: str) -> list[str]:
    engine = engine_of(1, False, 1)
    said = []
    bad_states: list[dict[str, object]] = [{"x": pytest.raises}, {}]
    for number, state in enumerate(bad_states):
        tag = "ok" if number == 0 else f"rank{dist.get_rank()}"
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag, client_state=state)
        said.append(caught.value.what)
    for tag in ("a/b", ".hidden"):
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag)
        said.append(caught.value.what)
    return said


def a_disk_that_refuses(directory: str) -> str:
    """The directory to save to lies below a file."""
    engine = engine_of(1, False, 1)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.save_checkpoint(directory)
    return caught.value.what


def steps_of_a_linear(directory: str) -> int:
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "log_level": "error"}
    engine = deepspeed.initialize(model=torch.nn.Linear(64, 64), config=config)[0]
    _, client_state = engine.load_checkpoint(directory)
    assert client_state == {"step": engine.global_steps}
    return engine.global_steps


def extra_memory(directory: str, stage: int) -> tuple[int, int, int]:
    """Bytes of this rank's shard, and by how much saving and loading it raised the peak of its memory."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
    config = {
        "train_batch_size": dist.get_world_size(),
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage},
        "log_level": "error",
    }
    engine = deepspeed.initialize(model=model, config=config)[0]
    assert engine.optimizer is not None
    shard_bytes = sum(12 * state.master.kept.numel() for state in engine.optimizer.shards)
    engine.save_checkpoint(directory, tag="warm")
    engine.load_checkpoint(directory, tag="warm")
    rises = []
    for action in (engine.save_checkpoint, engine.load_checkpoint):
        dist.barrier()
        before = anonymous_bytes()
        ended = threading.Event()
        peaks = [before]

        def watch(ended: threading.Event = ended, peaks: list[int] = peaks) -> None:
            while not ended.wait(0.001):
                peaks.append(anonymous_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        action(directory, tag="it")
        ended.set()
        watcher.join()
        rises.append(max(peaks) - before)
    return shard_bytes, rises[0], rises[1]


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith("RssAnon:")))


def full_disk(directory: str, asynchronous: bool) -> tuple[str, list[str]]:
    """Save, fill the disk, fail to save, make room, save; the error, and what was not as it should be."""
    engine = engine_of(1, False, 1, checkpoint={"async": asynchronous})
    filler = Path(directory, "filler")

    def save(tag: str) -> None:
        engine.save_checkpoint(directory, tag=tag)
        engine.wait_for_checkpoint()

    save("first")
    kept = state_of(engine)
    train(engine, 1, 1)
    if dist.get_rank() == 0:
        room = os.statvfs(directory)
        filler.write_bytes(bytes(room.f_bavail * room.f_bsize - 8_000))  # less than a checkpoint
    dist.barrier()
    with pytest.raises(deepspeed.CheckpointError) as caught:
        save("second")
    fresh = engine_of(2, False, 2)
    fresh.load_checkpoint(directory)
    wrong = unequal(kept, state_of(fresh))
    if dist.get_rank() == 0:
        wrong += [str(path) for path in Path(directory).glob(".*")]
        filler.unlink()
    dist.barrier()
    save("second")
    fresh.load_checkpoint(directory)
    return caught.value.what, wrong + unequal(state_of(engine), state_of(fresh))


def without_an_optimizer(directory: str) -> list[str]:
    """A trained checkpoint into engines that only run the model, and what such a one saves into another."""
    trained = engine_of(2, True, 1)
    train(trained, 2, 5)
    trained.save_checkpoint(directory, tag="trained")
    expected = consolidated(trained.module, False, True)
    wrong = []
    for stage in (0, 3):
        torch.manual_seed(9)
        model = Net(("tied", "frozen"))
        model.register_buffer("seen", torch.zeros(3))
        config = {
            "train_batch_size": GLOBAL_BATCH,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "log_level": "error",
        }
        engine = deepspeed.initialize(model=model, config=config)[0]
        for tag in ("trained", f"run{3 - stage}"):
            if tag == "trained" or Path(directory, tag).exists():
                engine.load_checkpoint(directory, tag)
                found = consolidated(engine.module, False, True)
                wrong += [f"{stage} from {tag}: {name}" for name in different(expected, found)]
        engine.save_checkpoint(directory, tag=f"run{stage}")
        dist.barrier()
    return wrong
