"""`optimizer.type` and `optimizer.params` as a checked description that the core can build from. No torch.

Names and defaults are DeepSpeed's ("Optimizer Parameters" of its configuration page) and, where DeepSpeed
hands over to torch.optim, torch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

from dslaunch.engine.config_answers import Honoured
from dslaunch.engine.config_read import as_kind, auto_value
from dslaunch.engine.config_unknown import similar_key, unknown_key
from dslaunch.engine.config_values import OptimizerConfig
from dslaunch.engine.errors import ConfigError

Rule = Literal["adam", "adagrad", "lion", "lamb", "sgd", "muon", "torch"]

# Public optimizers of torch.optim; a test holds the list against torch. Elementwise ones run on flat shards.
TORCH_ELEMENTWISE = ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
TORCH_OTHERS: Mapping[str, str] = {
    "Adafactor": "it keeps sums of rows and columns, and ZeRO shards matrices",
    "LBFGS": "it needs a closure",
    "SparseAdam": "gradients are dense",
}


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """A checked optimizer.

    Attributes:
        name: the type in its usual spelling, e.g. "AdamW"; for `rule` "torch" the name in torch.optim.
        hyperparameters: those of every parameter group, defaults filled in; for `rule` "torch" only what the
            config says.
    """

    name: str
    rule: Rule
    hyperparameters: Mapping[str, object]


def _number(default: float | None, means: str) -> Honoured:
    return Honoured("number", means, default, low=0)


def _flag(default: bool, means: str) -> Honoured:
    return Honoured("flag", means, default)


_LR = _number(1e-3, "learning rate")
_DECAY = _number(0.0, "weight decay")
_EPS = _number(1e-8, "added to the denominator")
_BETAS = (0.9, 0.999)

RULE_PARAMS: Mapping[Rule, Mapping[str, Honoured]] = {
    "adam": {
        "lr": _LR,
        "betas": Honoured("mapping", "decay of the two moments", _BETAS),
        "eps": _EPS,
        "weight_decay": _DECAY,
        "bias_correction": _flag(True, "divide the moments by 1 - beta^t"),
        "adam_w_mode": _flag(True, "decoupled weight decay"),
        "moment_dtype": Honoured("text", "of both moments, fp32 or bf16: dslaunch's own", "fp32"),
    },
    "adagrad": {
        "lr": _number(1e-2, "learning rate"),
        "lr_decay": _number(0.0, "lr / (1 + (t - 1) * lr_decay)"),
        "weight_decay": _DECAY,
        "initial_accumulator_value": _number(0.0, "the sum of squares to start from"),
        "eps": _number(1e-10, "added to the denominator"),
    },
    "lion": {
        "lr": _LR,
        "betas": Honoured("mapping", "decay of update and moment", (0.9, 0.99)),
        "weight_decay": _DECAY,
    },
    "sgd": {
        "lr": _LR,
        "momentum": _number(0.0, "momentum"),
        "dampening": Honoured("number", "dampening of momentum", 0.0),
        "weight_decay": _DECAY,
        "nesterov": _flag(False, "Nesterov momentum"),
    },
    "lamb": {
        "lr": _LR,
        "betas": Honoured("mapping", "decay of the two moments", _BETAS),
        "eps": _EPS,
        "weight_decay": _DECAY,
        "bias_correction": _flag(True, "divide the moments by 1 - beta^t"),
        "eps_inside_sqrt": _flag(False, "add eps below the root"),
        "max_coeff": _number(10.0, "the largest trust ratio"),
        "min_coeff": _number(0.01, "the least trust ratio"),
    },
    "muon": {
        "lr": _number(None, "learning rate of both halves"),
        "muon_lr": _number(0.02, "learning rate of matrices, before lr"),
        "adam_lr": _number(3e-4, "learning rate of everything else, before lr"),
        "momentum": _number(0.95, "momentum of matrices"),
        "nesterov": _flag(True, "Nesterov momentum"),
        "ns_method": Honoured("text", "how matrices are made orthogonal: gram or standard", "gram"),
        "ns_steps": Honoured("int", "Newton-Schulz iterations", 5, low=1),
        "betas": Honoured("mapping", "decay of the two moments of everything else", (0.9, 0.95)),
        "eps": _number(1e-10, "added to the denominator"),
        "adam_w_mode": _flag(True, "decoupled weight decay of everything else"),
        "weight_decay": _DECAY,
    },
    "torch": {},
}
_NAMES: Mapping[str, tuple[str, Rule]] = {
    "adam": ("Adam", "adam"),
    "adamw": ("AdamW", "adam"),
    "adagrad": ("Adagrad", "adagrad"),
    "lion": ("Lion", "lion"),
    "lamb": ("LAMB", "lamb"),
    "sgd": ("SGD", "sgd"),
    "muon": ("Muon", "muon"),
    **{name.lower(): (name, "torch") for name in TORCH_ELEMENTWISE},
}
_REFUSED: Mapping[str, str] = {
    **{name.lower(): why for name, why in TORCH_OTHERS.items()},
    **dict.fromkeys(("onebitadam", "zerooneadam", "onebitlamb"), "DeepSpeed itself has removed it"),
    **dict.fromkeys(("muadam", "muadamw", "musgd"), "mup is not supported"),
}
MOMENT_DTYPES = ("fp32", "bf16")
# These choose an implementation, and the engine has one.
_IMPLEMENTATION = frozenset(
    {"torch_adam", "fused", "foreach", "set_grad_none", "fp32_optimizer_states", "capturable"}
)
_OFF = frozenset({"amsgrad", "maximize", "differentiable", "per_head_muon"})


def optimizer_spec(config: OptimizerConfig) -> OptimizerSpec:
    """The optimizer a config names; ConfigError on an unknown or unsupported name, or a wrong parameter."""
    name, rule = _rule(config.type)
    found: dict[str, object] = {key: answer.default for key, answer in RULE_PARAMS[rule].items()}
    for key, value in config.params.items():
        _take(rule, name, key, value, found)
    # "AdamW" is decoupled whatever adam_w_mode says; "Adam" is AdamW too unless told otherwise.
    if name == "AdamW":
        found["adam_w_mode"] = True
    if rule == "adam" and found["moment_dtype"] not in MOMENT_DTYPES:
        path = "optimizer.params.moment_dtype"
        raise ConfigError(
            f"{path} expects {' or '.join(MOMENT_DTYPES)} but got {found['moment_dtype']!r}",
            "write bf16",
            path,
        )
    if rule == "muon":
        _settle_muon(config.params, found)
    if rule == "sgd" and found["nesterov"] and (not found["momentum"] or found["dampening"]):
        raise ConfigError(
            "optimizer.params.nesterov needs a momentum and no dampening",
            "set momentum, or remove nesterov",
            "optimizer.params.nesterov",
        )
    return OptimizerSpec(name, rule, MappingProxyType(found))


def _settle_muon(given: Mapping[str, object], found: dict[str, object]) -> None:
    """`lr` is for both halves, unless a half has its own."""
    for key in ("muon_lr", "adam_lr"):
        if given.get(key) is None and found["lr"] is not None:
            found[key] = found["lr"]
    if found["ns_method"] not in ("gram", "standard"):
        path = "optimizer.params.ns_method"
        raise ConfigError(
            f"{path} expects gram or standard but got {found['ns_method']!r}", "write gram", path
        )


def _rule(written: str) -> tuple[str, Rule]:
    path = "optimizer.type"
    lower = written.lower()
    if lower in _REFUSED:
        raise ConfigError(f"{path}: {written} is not supported: {_REFUSED[lower]}", "use AdamW", path)
    if lower not in _NAMES:
        usual = {name.lower(): name for name, _ in _NAMES.values()}
        near = similar_key(lower, usual)
        raise ConfigError(
            f"{path}: {written} is not a supported DeepSpeed Optimizer, nor in torch.optim",
            f"did you mean {usual[near]}?" if near else f"known: {', '.join(sorted(usual.values()))}",
            path,
        )
    return _NAMES[lower]


def _take(rule: Rule, name: str, key: str, value: object, found: dict[str, object]) -> None:
    path = f"optimizer.params.{key}"
    answers = RULE_PARAMS[rule]
    if value == "auto":
        raise auto_value(path)
    if key == "moment_dtype" and key not in answers:
        raise ConfigError(
            f"{path} is refused: only AdamW keeps moments in another dtype, not {name}",
            "remove the key",
            path,
        )
    if key == "max_grad_norm":
        raise ConfigError(
            f"{path} is refused: clipping is not the optimizer's", "set gradient_clipping", path
        )
    if key in _IMPLEMENTATION:
        as_kind(path, value, "flag") if value is not None else None
    elif key in _OFF:
        if value:
            raise ConfigError(f"{path}: {value!r} is not supported by {name} here", "remove the key", path)
    elif key == "betas" and (key in answers or rule == "torch"):
        found[key] = _betas(path, value)
    elif key in answers:
        if value is not None:
            found[key] = _checked(path, value, answers[key])
    elif rule == "torch":
        found[key] = value  # torch knows its parameters; the core asks it
    else:
        raise unknown_key("optimizer.params.", key, [*answers, *_IMPLEMENTATION, *_OFF])


def _checked(path: str, value: object, answer: Honoured) -> object:
    checked = as_kind(path, value, answer.kind)
    if answer.low is not None and cast(float, checked) < answer.low:
        raise ConfigError(
            f"{path}: {value} has to be at least {answer.low:g}", f"correct {path.rpartition('.')[2]}", path
        )
    return checked


def _betas(path: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        beta1, beta2 = (float(cast(float, as_kind(path, beta, "number"))) for beta in value)
        if 0 <= beta1 < 1 and 0 <= beta2 < 1:
            return beta1, beta2
    raise ConfigError(f"{path}: expects two numbers in [0, 1) but got {value!r}", "write [0.9, 0.999]", path)
