"""What the kernel says of a connection, read from tables of its form."""

from pathlib import Path

import pytest

from dslaunch.launcher.agent.ssh_watch import is_resending

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   1: {} {} 01 {:08X}:00000000 01:00000014 {:08X}     0        0 21 1 ffff 20 4 30 10 -1\n"
IPV4 = ("0B06A8C0:0016", "0106A8C0:C350")
MAPPED = ("0000000000000000FFFF00000B06A8C0:0016", "0000000000000000FFFF00000106A8C0:C350")
IPV6 = ("B80D0120000000000000000001000000:0016", "B80D0120000000000000000002000000:C350")


@pytest.mark.parametrize(
    ("endpoints", "connection"),
    [
        (IPV4, "192.168.6.1 50000 192.168.6.11 22"),
        (MAPPED, "192.168.6.1 50000 192.168.6.11 22"),
        (IPV6, "2001:db8::2 50000 2001:db8::1 22"),
    ],
)
@pytest.mark.parametrize(
    ("queued", "resent", "expected"), [(0, 0, False), (100, 0, False), (100, 3, True), (0, 3, False)]
)
def test_queued_and_resent_is_cut(
    tmp_path: Path, endpoints: tuple[str, str], connection: str, queued: int, resent: int, expected: bool
) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        HEADER + ROW.format("00000000:0016", "00000000:0000", 9, 9) + ROW.format(*endpoints, queued, resent)
    )
    assert is_resending(connection, (str(tmp_path / "missing"), str(table))) is expected


@pytest.mark.parametrize("connection", ["", "nonsense", "192.168.6.1 50001 192.168.6.11 22"])
def test_an_unknown_connection_is_not_known_to_be_cut(tmp_path: Path, connection: str) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEADER + ROW.format(*IPV4, 9, 9))
    assert not is_resending(connection, (str(table),))
