"""The flops profile as text: a summary, the heaviest modules by depth, the module tree. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dslaunch.engine.config_observe import FlopsProfilerConfig

_RULE = "-" * 26


@dataclass(frozen=True, slots=True)
class ModuleProfile:
    """One module with all that stands in it, of one forward on one rank."""

    name: str  # of the attribute; empty for the model itself
    kind: str  # its class
    num_params: int
    flops: int
    seconds: float
    children: tuple[ModuleProfile, ...] = ()


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One optimizer step; seconds of all its micro steps together. `micro_batch` samples a forward."""

    step: int
    model: ModuleProfile
    world_size: int
    micro_batch: int
    accumulation: int
    forward_s: float
    backward_s: float
    step_s: float


def render(profile: StepProfile, config: FlopsProfilerConfig) -> str:
    """The whole report, without a line break at its end."""
    title = f"{_RULE} dslaunch flops profiler {_RULE}"
    parts = [title, *_summary(profile, config), "", *_by_depth(profile.model, config)]
    if config.detailed:
        parts += [
            "",
            "module tree: parameters, MACs, forward time, FLOPS, each with its share of the model's",
        ]
        parts += _tree(profile.model, profile.model)
    return "\n".join([*parts, "-" * len(title)])


def _summary(profile: StepProfile, config: FlopsProfilerConfig) -> list[str]:
    model, accumulation = profile.model, profile.accumulation
    forward_flops = model.flops * accumulation
    backward_flops = forward_flops * (2 + config.recompute_fwd_factor)
    total_s = profile.forward_s + profile.backward_s
    step_s = total_s + profile.step_s
    facts = [
        ("world size", str(profile.world_size)),
        ("batch size per rank", f"{profile.micro_batch} * {accumulation}"),
        ("params of the model", _amount(model.num_params)),
        ("fwd MACs per rank", _amount(forward_flops / 2, "MACs")),
        ("fwd flops per rank", _amount(forward_flops)),
        ("fwd latency", _time(profile.forward_s)),
        ("fwd FLOPS per rank", _rate(forward_flops, profile.forward_s)),
        ("bwd latency", _time(profile.backward_s)),
        ("bwd FLOPS per rank", _rate(backward_flops, profile.backward_s)),
        ("fwd+bwd FLOPS per rank", _rate(forward_flops + backward_flops, total_s)),
        ("step latency", _time(profile.step_s)),
        ("iter latency", _time(step_s)),
        (
            "samples/second",
            f"{profile.world_size * profile.micro_batch * accumulation / max(step_s, 1e-9):.2f}",
        ),
    ]
    return [
        f"Profile Summary at step {profile.step}:",
        *(f"{name + ':':<26}{value}" for name, value in facts),
    ]


def _by_depth(model: ModuleProfile, config: FlopsProfilerConfig) -> list[str]:
    levels = [[model]]
    while below := [child for module in levels[-1] for child in module.children]:
        levels.append(below)
    last = len(levels) - 1
    deepest = last if config.module_depth < 0 else min(config.module_depth, last)
    lines = [f"Top {config.top_modules} modules by depth, all of one class together:"]
    for depth, level in enumerate(levels[: deepest + 1]):
        lines.append(f"depth {depth}:")
        lines.append(f"    params      - {_top(level, config, lambda m: m.num_params, _amount)}")
        lines.append(f"    MACs        - {_top(level, config, lambda m: m.flops / 2, _macs)}")
        lines.append(f"    fwd latency - {_top(level, config, lambda m: m.seconds, _time)}")
    return lines


def _top(
    level: Sequence[ModuleProfile],
    config: FlopsProfilerConfig,
    value_of: Callable[[ModuleProfile], float],
    words: Callable[[float], str],
) -> str:
    totals: dict[str, float] = {}
    for module in level:
        totals[module.kind] = totals.get(module.kind, 0.0) + value_of(module)
    best = sorted(totals.items(), key=lambda item: -item[1])[: config.top_modules]
    return ", ".join(f"{kind}: {words(total)}" for kind, total in best)


def _tree(module: ModuleProfile, model: ModuleProfile, indent: str = "") -> Iterator[str]:
    label = f"({module.name}): {module.kind}" if module.name else module.kind
    figures = ", ".join(
        (
            f"{_amount(module.num_params)} = {_share(module.num_params, model.num_params)} params",
            f"{_macs(module.flops / 2)} = {_share(module.flops, model.flops)}",
            f"{_time(module.seconds)} = {_share(module.seconds, model.seconds)}",
            _rate(module.flops, module.seconds),
        )
    )
    yield f"{indent}{label} [{figures}]"
    for child in module.children:
        yield from _tree(child, model, indent + "  ")


def _amount(value: float, unit: str = "") -> str:
    for bound, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= bound:
            return f"{value / bound:.2f} {prefix}{unit}"
    return f"{value:g} {unit}".rstrip()


def _macs(value: float) -> str:
    return _amount(value, "MACs")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _rate(flops: float, seconds: float) -> str:
    return _amount(flops / seconds if seconds > 0 else 0.0, "FLOPS")


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.1%}"
