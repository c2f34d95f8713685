"""The engine trains as a plain PyTorch loop does, on 1, 2 and 4 ranks.

Tolerances. fp32: losses and masters within 2e-5 after four steps, norms to six digits. bf16: the
optimizer kernels round masters otherwise than torch does, which now and then rounds a parameter to the next
bf16; several ranks' gradients are summed in bf16, in an order of gloo's own; and Adam turns a gradient near
zero that changes its sign into whole learning rates; so single masters may differ by 2 * rate * steps, while
their mean stays within 2% of rate * steps.
"""

from __future__ import annotations

import pytest
from equivalence_cases import NUM_STEPS, Case
from rank_pool import RankPool

LR = 0.01
ALL_KINDS = ("tied", "frozen", "unused", "branch")
SMALL_BUCKETS: dict[str, object] = {"reduce_bucket_size": 300}

STAGES = (0, 1, 2, 3)


def kinds_of(stage: int) -> tuple[str, ...]:
    """At stage 3 ranks may not differ in the modules they run."""
    return ALL_KINDS if stage < 3 else tuple(kind for kind in ALL_KINDS if kind != "branch")


def zero_of(stage: int) -> dict[str, object]:
    """Small buckets; at stage 3 some parameters sharded and some not."""
    return SMALL_BUCKETS if stage < 3 else {**SMALL_BUCKETS, "stage3_param_persistence_threshold": 20}


CASES = [
    *(
        Case(
            f"stage{stage}-{dtype}-acc{accumulation}{'-clip' if clipping else ''}",
            stage,
            bf16=dtype == "bf16",
            fp16=dtype == "fp16",
            accumulation=accumulation,
            clipping=clipping,
            zero=zero_of(stage),
        )
        for stage in STAGES
        for dtype in ("fp32", "bf16", "fp16")
        for accumulation in (1, 3)
        for clipping in (0.0, 0.5)
    ),
    *(
        Case(f"stage{stage}-{kind}", stage, accumulation=3, clipping=0.5, model=(kind,), zero=zero_of(stage))
        for stage in STAGES
        for kind in kinds_of(stage)
    ),
    *(
        Case(
            f"stage{stage}-everything-{dtype}",
            stage,
            dtype == "bf16",
            dtype == "fp16",
            3,
            0.5,
            kinds_of(stage),
            groups=True,
            zero=zero_of(stage),
        )
        for stage in STAGES
        for dtype in ("fp32", "bf16", "fp16")
    ),
    *(
        Case(
            f"stage{stage}-fp32-accumulation",
            stage,
            bf16=True,
            accumulation=3,
            grad_accum="fp32",
            model=kinds_of(stage),
            zero=zero_of(stage),
        )
        for stage in STAGES
    ),
    *(
        Case(
            f"stage{stage}-direct-backward",
            stage,
            accumulation=3,
            model=kinds_of(stage),
            direct=True,
            zero=zero_of(stage),
        )
        for stage in STAGES
    ),
    *(
        Case(
            f"stage{stage}-no-overlap",
            stage,
            model=kinds_of(stage),
            zero={"overlap_comm": False, **zero_of(stage)},
        )
        for stage in (1, 2, 3)
    ),
    Case("one-bucket", 1, model=ALL_KINDS, groups=True),
    Case("client-optimizer", 1, groups=True, client=True, zero=SMALL_BUCKETS),
    Case("client-optimizer-3", 3, groups=True, client=True, zero=zero_of(3)),
    Case("set-to-none", 1, accumulation=3, model=ALL_KINDS, forget=True, zero=SMALL_BUCKETS),
    Case("set-to-none-bf16", 0, bf16=True, model=ALL_KINDS, forget=True, zero=SMALL_BUCKETS),
    Case("adam", 1, adam_w=False, groups=True, zero=SMALL_BUCKETS),
    Case("all-resident", 3, accumulation=3, model=ALL_KINDS, groups=True),
    Case("no-prefetch", 3, zero={**zero_of(3), "stage3_prefetch_bucket_size": 0}),
    Case("short-of-memory", 3, zero={**zero_of(3), "stage3_max_live_parameters": 1}),
    Case(
        "short-of-memory-bf16",  # one rank gathers too
        3,
        bf16=True,
        accumulation=3,
        clipping=0.5,
        model=kinds_of(3),
        zero={**zero_of(3), "stage3_max_live_parameters": 1},
    ),
]


@pytest.fixture(scope="module", params=[1, 2, 4])
def distances(request: pytest.FixtureRequest, ranks: RankPool, seed: int) -> dict[str, dict[str, float]]:
    """All cases in two jobs, as starting a process group costs more than training."""
    found: dict[str, dict[str, float]] = {}
    for cases in (CASES[::2], CASES[1::2]):
        found |= ranks.run(request.param, "equivalence_cases", "run", cases, seed)[0]  # type: ignore[operator]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_trains_as_plain_loop(distances: dict[str, dict[str, float]], case: Case, seed: int) -> None:
    far = distances[case.name]
    told = f"seed {seed}: {far}"
    assert far["same_names"] == 1, told
    assert far["agree"] == 1, told
    if case.bf16 or case.fp16:
        assert far["loss"] < 0.02, told
        assert far["norm"] < 0.02, told
        assert far["master_max"] <= 2 * LR * NUM_STEPS, told
        assert far["master_mean"] < 0.02 * LR * NUM_STEPS, told
    else:
        assert far["loss"] < 2e-5, told
        assert far["norm"] < 2e-6, told
        assert far["master_max"] < 2e-5, told
