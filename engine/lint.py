"""`python -m dslaunch.engine.lint ds_config.json`: everything about a config, without starting or torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from dslaunch.engine.batch import BatchSizes, World, resolve_batch
from dslaunch.engine.config import Survey, survey
from dslaunch.engine.config_optimizer import OptimizerSpec, optimizer_spec
from dslaunch.engine.config_source import LoadedSource, load_source
from dslaunch.engine.config_values import EngineConfig
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.lint_report import Finding, MemoryTable, Report, as_json, as_text
from dslaunch.engine.memory_estimate import NUM_STATES, SPLITTING_RULES, ModelStates, estimate

EXIT_ERRORS = 2

_FACTORS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def lint(
    name: str, loaded: LoadedSource, num_ranks: int | None, num_params: int | None, filled_in: bool
) -> Report:
    """Every finding. `filled_in`: "auto" is no error, a framework will fill it in."""
    raw = loaded.raw
    findings: list[Finding] = []
    if filled_in:
        raw, paths = _without_auto(raw)
        findings += [Finding("note", path, f'{path}: "auto" is left to the framework') for path in paths]
    found = survey(raw, loaded.notes)
    findings += _findings(found, raw)
    batch = None if num_ranks is None else _batch(found.config, num_ranks, findings)
    node = found.config.zero.zero_hpz_partition_size
    if num_ranks is not None and num_ranks % node:
        path = "zero_optimization.zero_hpz_partition_size"
        what = f"{path}: {num_ranks} ranks are no multiple of {node}"
        findings.append(Finding("error", path, what, "set it to the number of ranks of a node"))
    memory = None
    if num_ranks is not None and num_params is not None:
        memory = _memory(found.config, num_ranks, num_params)
    return Report(name, findings, batch, num_ranks, memory)


def _findings(found: Survey, raw: Mapping[str, object]) -> list[Finding]:
    findings = [Finding("error", error.path, error.what, error.hint) for error in found.errors]
    findings += [
        Finding("error", path, f"unknown key {path}", "remove it; training only warns of it")
        for path in found.unknown
    ]
    for remark in found.remarks:
        for path in remark.paths:
            what = f"{path}: no effect, {remark.why}"
            findings.append(Finding("warning" if remark.warn else "note", path, what))
    findings += [Finding("note", "", note) for note in found.said]
    config = found.config
    if config.scheduler is not None and config.optimizer is None:
        findings.append(
            Finding(
                "warning",
                "scheduler",
                "scheduler: it steers nothing unless the script passes an optimizer to initialize",
                "write an optimizer",
            )
        )
    findings += _short_decay(config)
    if "gradient_clipping" not in raw:
        findings.append(
            Finding(
                "note",
                "gradient_clipping",
                "gradient_clipping: gradients are clipped to a norm of 1.0 where the key is not given",
            )
        )
    return findings


def _short_decay(config: EngineConfig) -> list[Finding]:
    params = {} if config.scheduler is None else config.scheduler.params
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps", 1000)
    if isinstance(total, int) and isinstance(warmup, int) and total < warmup:
        path = "scheduler.params.total_num_steps"
        what = f"{path}: {total} steps end within the warm-up of {warmup}"
        return [Finding("warning", path, what, "lower warmup_num_steps")]
    return []


def _batch(config: EngineConfig, num_ranks: int, findings: list[Finding]) -> BatchSizes | None:
    if any(finding.level == "error" and finding.path in _BATCH_KEYS for finding in findings):
        return None
    try:
        return resolve_batch(config.batch, World(num_ranks, 0, 0, "--world_size"))
    except ConfigError as error:
        findings.append(Finding("error", error.path or "train_batch_size", error.what, error.hint))
        return None


_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _memory(config: EngineConfig, num_ranks: int, num_params: int) -> MemoryTable:
    spec = None if config.optimizer is None else optimizer_spec(config.optimizer)
    num_states = NUM_STATES["adam"] if spec is None else _num_states(spec)
    splits = config.dtype == "bf16" and (spec is None or spec.rule in SPLITTING_RULES)
    low = spec is not None and spec.hyperparameters.get("moment_dtype") == "bf16"
    states = ModelStates(
        num_params, config.dtype, config.grad_accum_dtype, num_states, splits, 2 if low else 4
    )
    optimizer = "two optimizer states" if spec is None else spec.name
    words = f"{config.dtype}, gradients in {config.grad_accum_dtype}, {optimizer}"
    return MemoryTable(
        num_params, num_ranks, words, config.zero.stage, estimate(states, num_ranks, config.zero)
    )


def _num_states(spec: OptimizerSpec) -> int:
    if spec.rule == "sgd" and not spec.hyperparameters["momentum"]:
        return 0
    return NUM_STATES[spec.rule]


def _without_auto(raw: Mapping[str, object], prefix: str = "") -> tuple[dict[str, object], list[str]]:
    """`raw` without the keys that are "auto", and their paths."""
    kept: dict[str, object] = {}
    paths: list[str] = []
    for key, value in raw.items():
        if value == "auto":
            paths.append(f"{prefix}{key}")
        elif isinstance(value, Mapping):
            kept[key], inner = _without_auto(value, f"{prefix}{key}.")
            paths += inner
        else:
            kept[key] = value
    return kept, paths


def _count(text: str) -> int:
    """7e9, 7000000000 or 7B."""
    factor = _FACTORS.get(text[-1:].lower(), 1)
    try:
        count = round(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"expects a count such as 16, 7e9 or 7B but got {text!r}")
    return count


class _Parser(argparse.ArgumentParser):
    """Errors in the house's words."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message.removeprefix('argument ')}\nhint: dslaunchctl config --help\n")
        sys.exit(EXIT_ERRORS)


def main(argv: Sequence[str] | None = None) -> int:
    """Tell what is wrong with a config; 2 if anything is, else 0."""
    parser = _Parser(prog="python -m dslaunch.engine.lint", description=main.__doc__)
    parser.add_argument("config", help="path of a ds_config.json, or base64 of its text")
    parser.add_argument("--world_size", type=_count, help="data-parallel ranks; checks the batch sizes")
    parser.add_argument("--params", type=_count, help="parameters of the model, e.g. 7e9 or 7B")
    parser.add_argument("--auto", action="store_true", help='a framework fills in what is "auto"')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    try:
        loaded = load_source(args.config)
    except ConfigError as error:
        report = Report(args.config, [Finding("error", "", error.what, error.hint)], None, None, None)
    else:
        report = lint(args.config, loaded, args.world_size, args.params, args.auto)
    sys.stdout.write((as_json(report) if args.json else as_text(report)) + "\n")
    return EXIT_ERRORS if report.count("error") else 0


if __name__ == "__main__":
    sys.exit(main())
