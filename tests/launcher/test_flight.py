"""Flight recorder dumps, as torch wrote them on two gloo ranks and made up; their way from the ranks."""

import binascii
import os
import pickle
import subprocess
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dslaunch.launcher import wire
from dslaunch.launcher.agent.flight import FlightDumps, environment
from dslaunch.launcher.flight import flight_lines
from dslaunch.launcher.flight_dump import DumpError, read_dump

PAYLOAD = str(Path(__file__).with_name("payload.py"))
DUMPS = Path(__file__).with_name("flight")
BROADCAST = "broadcast train.py:9 (#3 of default_pg)"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def real_dumps() -> dict[int, bytes]:
    """Of torch 2.13: both ranks have called all_reduce twice, rank 0 also broadcast."""
    return {rank: (DUMPS / f"rank_{rank}").read_bytes() for rank in (0, 1)}


def made_up(*names: str, completed: int = 0, ranks: str = "[0, 1, 2]", line: int = 7) -> bytes:
    """What a rank has entered of one group, in order; names without a state are waiting."""
    entries = [
        {
            "frames": [{"name": "step", "filename": "/job/train.py", "line": line}],
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": f"nccl:{name}",
            "input_sizes": [[4]],
            "state": "completed" if number <= completed else "scheduled",
            "is_p2p": False,
        }
        for number, name in enumerate(names, start=1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}, protocol=2)


def test_what_torch_writes() -> None:
    groups = read_dump(real_dumps()[0])
    assert list(groups) == ["0"]
    trace = groups["0"]
    assert (trace.name, trace.members, trace.last, trace.completed) == ("default_pg", (0, 1), 3, 2)
    assert [(each.name, each.where) for each in trace.collectives.values()] == [
        ("all_reduce", "all_reduce train.py:5"),
        ("all_reduce", "all_reduce train.py:5"),
        ("broadcast", "broadcast train.py:9"),
    ]


def test_who_is_missing_and_where_it_was_before() -> None:
    assert flight_lines(real_dumps().items()) == [
        "broadcast train.py:9 (#3 of default_pg) was entered by rank 0 and not by rank 1  <- missing",
        "before it rank 1 had entered all_reduce train.py:5 #2",
    ]


@pytest.mark.parametrize(
    ("dumps", "lines"),
    [
        ({}, []),
        (
            {rank: made_up("all_reduce", "all_reduce", completed=2) for rank in range(3)},
            ["no collective waits for a rank"],
        ),
        (
            {0: made_up("broadcast"), 1: made_up("all_reduce"), 2: made_up("all_reduce")},
            [
                "collective #1 of default_pg is not the same everywhere: "
                "broadcast on rank 0, all_reduce on ranks 1-2"
            ],
        ),
        (
            {rank: made_up("all_reduce", "barrier", completed=1) for rank in range(3)},
            [
                "barrier step train.py:7 (#2 of default_pg) was entered by all 3 ranks, "
                "and is not complete on ranks 0-2"
            ],
        ),
        (
            {rank: made_up("barrier") for rank in range(2)},
            ["barrier step train.py:7 (#1 of default_pg) was entered by ranks 0-1; no dump from rank 2"],
        ),
        (
            {0: made_up("all_reduce"), 1: made_up("all_reduce"), 2: b"\x80\x02garbage"},
            [
                "all_reduce step train.py:7 (#1 of default_pg) was entered by ranks 0-1; no dump from rank 2",
                "the dumps of rank 2 cannot be read",
            ],
        ),
    ],
)
def test_verdicts(dumps: Mapping[int, bytes], lines: list[str]) -> None:
    assert flight_lines(dumps.items()) == lines


class Malice:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/owned",)


def test_a_dump_runs_nothing() -> None:
    with pytest.raises(DumpError, match=r"a dump has no (posix|os)\.system"):
        read_dump(pickle.dumps({"entries": [Malice()], "pg_config": {}}))


@pytest.mark.parametrize(
    "data", [b"", b"x", pickle.dumps([]), pickle.dumps({"entries": [1], "pg_config": {}})]
)
def test_what_is_no_dump(data: bytes) -> None:
    with pytest.raises(DumpError):
        read_dump(data)


def test_what_is_set_already_wins() -> None:
    assert environment("/t", {}) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "/t/nccl_",
        "TORCH_FR_DEBUG_INFO_PIPE_FILE": "/t/nccl_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/t/nccl_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine"}
    assert set(environment("/t", own)) == {
        "TORCH_FR_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
    }


def test_each_dump_travels_once_and_whole(tmp_path: Path) -> None:
    dump = os.urandom(100_000)
    (tmp_path / "nccl_7").write_bytes(dump)
    (tmp_path / "nccl_x").touch()
    dumps = FlightDumps(str(tmp_path))
    pieces = [wire.decode(wire.encode(piece).rstrip(b"\n")) for piece in dumps.new_ones()]
    text = ""
    for piece in pieces:
        assert isinstance(piece, wire.FlightPiece)
        assert piece.last == (piece is pieces[-1])
        text += piece.text
    assert len(pieces) > 3
    assert zlib.decompress(binascii.a2b_base64(text)) == dump
    assert list(dumps.new_ones()) == []


def test_a_hang_has_the_recorders_dumped(run: Run, tmp_path: Path) -> None:
    result = run("--num_gpus=2", "--hang_timeout=2", "--run_dir=run", PAYLOAD, "records", "waits", str(DUMPS))
    assert result.returncode == 112, result.stderr
    assert result.stdout.count("up 2000\n") == 2
    assert (
        "dslaunch:     broadcast train.py:9 (#3 of default_pg) was entered by rank 0 and not by"
        in result.stderr
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "run/flight").iterdir()} == {
        f"rank_{rank}": dump for rank, dump in real_dumps().items()
    }


def test_a_rank_that_gives_up_leaves_its_dump(run: Run, tmp_path: Path) -> None:
    result = run("--num_gpus=2", "--run_dir=run", PAYLOAD, "records", "gives_up", str(DUMPS))
    assert result.returncode == 134, result.stderr
    assert (
        "dslaunch:     broadcast train.py:9 (#3 of default_pg) was entered by rank 0; no dump from"
        in result.stderr
    )
    assert [path.name for path in (tmp_path / "run/flight").iterdir()] == ["rank_0"]
