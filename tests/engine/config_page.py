"""The generated parts of docs/engine.md, from the same tables that read a config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from typing_extensions import assert_never

from dslaunch.engine.config import STAGES
from dslaunch.engine.config_answers import Answer, Feature, Honoured, NoEffect, Refused, Renamed, Section
from dslaunch.engine.config_keys import TOP
from dslaunch.engine.config_optimizer import RULE_PARAMS, TORCH_ELEMENTWISE, TORCH_OTHERS, Rule
from dslaunch.engine.config_scheduler import SCHEDULE_PARAMS, TORCH_REFUSED, TORCH_SCHEDULERS

_TITLES: Mapping[Rule, str] = {
    "adam": "Adam, AdamW",
    "adagrad": "Adagrad",
    "lion": "Lion",
    "sgd": "SGD",
    "lamb": "LAMB",
    "muon": "Muon",
}


def filled(page: str) -> str:
    """`page` with everything between `<!-- name -->` and `<!-- end -->` generated anew."""

    def fill(match: re.Match[str]) -> str:
        lines = "\n".join(_PARTS[match.group(1)]())
        return f"<!-- {match.group(1)} -->\n{lines}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


def _today() -> Iterator[str]:
    stages = ", ".join(str(stage) for stage in STAGES)
    rules = [title.replace(", ", " and ") for title in _TITLES.values()]
    rules.append(f"{', '.join(TORCH_ELEMENTWISE)} of torch.optim")
    yield f"- ZeRO stages: {stages}"
    yield "- precision: fp32, bf16, fp16, and torch.autocast to bf16 or fp16"
    yield f"- optimizers: {', '.join(rules)}"
    schedulers = [*SCHEDULE_PARAMS, *TORCH_SCHEDULERS]
    yield f"- schedules: {', '.join(schedulers)}"


def _keys() -> Iterator[str]:
    yield "| key | default | answer |"
    yield "|---|---|---|"
    yield from _rows(TOP)


def _rows(keys: Mapping[str, Answer], prefix: str = "") -> Iterator[str]:
    sections = [(key, answer) for key, answer in keys.items() if isinstance(answer, Section)]
    for key, answer in keys.items():
        if not isinstance(answer, Section):
            default = f"`{json.dumps(answer.default)}`" if isinstance(answer, Honoured) else ""
            yield f"| `{prefix}{key}` | {default.replace('`null`', '')} | {_words(answer)} |"
    for key, answer in sections:
        yield from _rows(answer.keys, f"{prefix}{key}.")


def _words(answer: Answer) -> str:
    match answer:
        case Honoured():
            limit = "" if answer.low is None else f"; at least {answer.low:g}"
            return answer.means.replace("|", "\\|") + limit
        case NoEffect():
            return f"*no effect*: {answer.why}" + (" (a warning)" if answer.warn else "")
        case Refused():
            return f"**refused**{_unless(answer.off)}: {answer.why}"
        case Feature(Refused(why), _):
            return f"**refused** if on: {why}"
        case Feature(inner, _):
            return f"if on, {_words(inner)}"
        case Renamed(path):
            return f"old spelling of `{path}`"
        case Section():
            raise AssertionError("a section has rows of its own")
        case _:
            assert_never(answer)


def _unless(off: tuple[object, ...]) -> str:
    values = [f"`{json.dumps(value)}`" for value in off if value is not None]
    return f", unless {' or '.join(values)}" if values else ""


def _optimizers() -> Iterator[str]:
    yield "| optimizer | parameters and defaults |"
    yield "|---|---|"
    for rule, title in _TITLES.items():
        yield f"| {title} | {_params(RULE_PARAMS[rule])} |"
    yield f"| {', '.join(TORCH_ELEMENTWISE)} | torch's |"
    for name, why in TORCH_OTHERS.items():
        yield f"| {name} | **refused**: {why} |"


def _schedules() -> Iterator[str]:
    yield "| schedule | parameters and defaults |"
    yield "|---|---|"
    for name, params in SCHEDULE_PARAMS.items():
        yield f"| {name} | {_params(params)} |"
    yield f"| {', '.join(TORCH_SCHEDULERS)} | torch's |"
    for name, why in TORCH_REFUSED.items():
        yield f"| {name} | **refused**: {why} |"


def _params(params: Mapping[str, Honoured]) -> str:
    return ", ".join(
        f"`{key}`" + ("" if answer.default is None else f" {json.dumps(answer.default)}")
        for key, answer in params.items()
    )


_PARTS = {"today": _today, "keys": _keys, "optimizers": _optimizers, "schedules": _schedules}
