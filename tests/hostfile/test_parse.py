"""Hostfiles read by hand-written example: DeepSpeed's, ours, and every error word for word."""

from __future__ import annotations

import pytest

from dslaunch.hostfile import (
    Host,
    HostfileError,
    TopologyError,
    parse_hostfile,
    parse_hostfile_bytes,
)

W0 = (Host("w0", (0, 1, 2, 3)),)


def slots(count: int) -> tuple[int, ...]:
    return tuple(range(count))


@pytest.mark.parametrize(
    "text",
    [
        "w0 slots=4",
        "w0 slots=4\n",
        "w0\tslots=4\n",
        "w0 \t  slots=4   \n",
        "w0\u00a0slots=4\n",
        "w0\fslots=4\n",
        "   w0 slots=4\n",
        "w0 slots=4\r\n",
        "w0 slots=4\r",
        "\n\n   \n\t\nw0 slots=4\n\n",
        "# comment\nw0 slots=4\n",
        "   # indented comment\nw0 slots=4\n",
        "#w1 slots=8\nw0 slots=4\n",
        "w0 slots=4 # trailing\n",
        "w0 slots=004\n",
        "w0 slots=\u0664\n",
    ],
)
def test_reads_what_deepspeed_reads_right(text: str) -> None:
    assert parse_hostfile(text, "hf").hosts == W0


@pytest.mark.parametrize(
    "text",
    [
        "w0 slots=4#trailing\n",
        "\ufeffw0 slots=4\n",
        "\ufeff# comment\nw0 slots=4\n",
        "w0 slots=4 max_slots=8\n",
        "w0 slots=4 max-slots=4\n",
        "w0 max_slots=8 slots=4\n",
        "w0 slots=4 #python=/a\n",
    ],
)
def test_reads_what_deepspeed_reads_wrong_or_refuses(text: str) -> None:
    assert parse_hostfile(text, "hf").hosts == W0


def test_keeps_the_order_of_the_file_which_is_rank_order() -> None:
    topology = parse_hostfile("b slots=2\na slots=1\nc slots=3\n", "hf")
    assert topology.hosts == (Host("b", slots(2)), Host("a", slots(1)), Host("c", slots(3)))
    assert (len(topology), topology.num_slots) == (3, 6)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("worker-1.example.org", Host("worker-1.example.org", slots(1))),
        ("gpu_7", Host("gpu_7", slots(1))),
        ("10.0.0.1", Host("10.0.0.1", slots(1))),
        ("root@w0", Host("w0", slots(1), user="root")),
        ("w0:2222", Host("w0", slots(1), port=2222)),
        ("first.last@10.0.0.1:22", Host("10.0.0.1", slots(1), user="first.last", port=22)),
        ("::1", Host("::1", slots(1))),
        ("[::1]", Host("::1", slots(1))),
        ("[FE80::0:1]:65535", Host("fe80::1", slots(1), port=65535)),
        ("root@[::1]:22", Host("::1", slots(1), user="root", port=22)),
        ("root@fe80::1%eth0", Host("fe80::1%eth0", slots(1), user="root")),
    ],
)
def test_addresses(address: str, host: Host) -> None:
    assert parse_hostfile(f"{address} slots=1", "hf").hosts == (host,)


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("w-[0-3]", ["w-0", "w-1", "w-2", "w-3"]),
        ("w-[0-2,7]", ["w-0", "w-1", "w-2", "w-7"]),
        ("w-[3,1]", ["w-3", "w-1"]),
        ("w[08-11]", ["w08", "w09", "w10", "w11"]),
        ("w[098-101].lan", ["w098.lan", "w099.lan", "w100.lan", "w101.lan"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("10.0.0.[9-11]", ["10.0.0.9", "10.0.0.10", "10.0.0.11"]),
        ("fe80::[1-2]", ["fe80::1", "fe80::2"]),
        ("[1-2]w", ["1w", "2w"]),
    ],
)
def test_ranges(address: str, names: list[str]) -> None:
    topology = parse_hostfile(f"{address} slots=8", "hf")
    assert [host.name for host in topology] == names
    assert all(host.slots == slots(8) for host in topology)


@pytest.mark.parametrize(
    ("fields", "python"),
    [
        ("slots=4 python=/opt/venv/bin/python", "/opt/venv/bin/python"),
        ("python=/p slots=4", "/p"),
        ("slots=4 python=/p # a comment", "/p"),
        ("slots=4 python=/a#b=c/'$x\u00e9\"/python3.12", "/a#b=c/'$x\u00e9\"/python3.12"),
    ],
)
def test_a_host_may_have_an_interpreter_of_its_own(fields: str, python: str) -> None:
    assert parse_hostfile(f"w0 {fields}", "hf").hosts == (Host("w0", slots(4), python=python),)


def test_a_range_keeps_user_and_port() -> None:
    topology = parse_hostfile("me@w[0-1]:2222 slots=1", "hf")
    assert topology.hosts == (Host("w0", (0,), "me", 2222), Host("w1", (0,), "me", 2222))


LINE = "a line reads: worker-1 slots=4"
NAME = "a host name holds letters, digits, '.', '-' and '_', and does not begin with '-' or '.'"
PORT = "host:port takes an SSH port from 1 to 65535; slots are written apart, as in: worker-1 slots=4"
RANGE = "a range reads worker-[0-3,7]: numbers and low-high pairs with ',' between them"
IPV6 = "write an IPv6 address bare, ::1, or with a port, [::1]:22"
PYTHON = "write the interpreter's full path, without blanks: python=/opt/venv/bin/python"
USER = "user@host takes a user of letters, digits, '.', '-' and '_'; or leave the user to ~/.ssh/config"
TWICE = "list a host once, with all of its slots; what needs another port or user needs its own name"


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        # slots
        ("w0", "missing slots=N", "write how many devices to use: w0 slots=4"),
        ("w0 # slots=4", "missing slots=N", "write how many devices to use: w0 slots=4"),
        ("w0:4", "missing slots=N", "a number after ':' is an SSH port; for slots write: w0 slots=4"),
        ("w[0-1]:4", "missing slots=N", "a number after ':' is an SSH port; for slots write: w[0-1] slots=4"),
        ("::1", "missing slots=N", "write how many devices to use: ::1 slots=4"),
        ("w0 max_slots=8", "missing slots=N", "max_slots= only limits slots=; write: w0 slots=8"),
        ("w0 slots=0", "slots=0 gives the host no rank", "to leave a host out, put '#' before its line"),
        ("w0 slots=000", "slots=0 gives the host no rank", "to leave a host out, put '#' before its line"),
        ("w0 slots=-1", "expects a number above 0 after slots=, but got '-1'", LINE),
        ("w0 slots=4x", "expects a number above 0 after slots=, but got '4x'", LINE),
        ("w0 slots=2.5", "expects a number above 0 after slots=, but got '2.5'", LINE),
        ("w0 slots=1_0", "expects a number above 0 after slots=, but got '1_0'", LINE),
        ('w0 slots="4"', "expects a number above 0 after slots=, but got '\"4\"'", LINE),
        ("w0 slots=4=4", "expects a number above 0 after slots=, but got '4=4'", LINE),
        ("w0 slots=", "no number after slots=", f"{LINE}, without blanks around '='"),
        ("w0 slots= 4", "no number after slots=", f"{LINE}, without blanks around '='"),
        (
            "w0 slots = 4",
            "expects slots=N after the host, but got 'slots'",
            f"{LINE}, without blanks around '='",
        ),
        (
            "w0 SLOTS=4",
            "expects slots=N after the host, but got 'SLOTS=4'",
            "write it in lower case: slots=4",
        ),
        (
            "w0 slots=1025",
            "slots= is above 1024, the most that are believed",
            "it is the number of devices of one host",
        ),
        ("w0 slots=4 slots=4", "slots= given twice", f"{LINE}, with one host a line"),
        (
            "w0 slots=8 max_slots=4",
            "slots=8 is above max_slots=4",
            "lower slots= or raise max_slots=",
        ),
        (
            "w0 slots=4 banana",
            "expects slots=N after the host, but got 'banana'",
            f"{LINE}, with one host a line and comments after '#'",
        ),
        (
            "w0 slots=4 w1 slots=4",
            "expects slots=N after the host, but got 'w1'",
            f"{LINE}, with one host a line and comments after '#'",
        ),
        (
            "w0 4",
            "expects slots=N after the host, but got '4'",
            f"{LINE}, with one host a line and comments after '#'",
        ),
        ("slots=4", "no host before 'slots=4'", LINE),
        ("python=/p slots=4", "no host before 'python=/p'", LINE),
        ("w0 slots=4 python=", "expects an absolute path after python=, but got ''", PYTHON),
        ("w0 slots=4 python=python3", "expects an absolute path after python=, but got 'python3'", PYTHON),
        (
            "w0 slots=4 python=~/bin/python",
            "expects an absolute path after python=, but got '~/bin/python'",
            PYTHON,
        ),
        ("w0 slots=4 python=/a\x00b", "expects an absolute path after python=, but got '/a\\x00b'", PYTHON),
        ("w0 slots=4 python=/a python=/a", "python= given twice", f"{LINE}, with one host a line"),
        ("w0 python=/a", "missing slots=N", "write how many devices to use: w0 slots=4"),
        # host names, above all those that ssh or a shell would take for something else
        ("-oProxyCommand=x slots=4", "host '-oProxyCommand=x' looks like an option", NAME),
        ("-w0 slots=4", "host '-w0' looks like an option", NAME),
        ("w0;touch slots=4", "host name 'w0;touch' holds ';'", NAME),
        ("$(id) slots=4", "host name '$(id)' holds '$'", NAME),
        ("`id` slots=4", "host name '`id`' holds '`'", NAME),
        ("w0|w1 slots=4", "host name 'w0|w1' holds '|'", NAME),
        ("w* slots=4", "host name 'w*' holds '*'", NAME),
        ("%h slots=4", "host name '%h' holds '%'", NAME),
        ("w\u00f6 slots=4", "host name 'w\u00f6' holds '\u00f6'", NAME),
        ("w\x00 slots=4", "host name 'w\\x00' holds '\\x00'", NAME),
        (".w0 slots=4", "host name '.w0' holds '.'", NAME),
        ("@ slots=4", "'' is not a user name", USER),
        ("root@ slots=4", "empty host name", NAME),
        ("-l@w0 slots=4", "'-l' is not a user name", USER),
        ("a;b@w0 slots=4", "'a;b' is not a user name", USER),
        ("w0,w1 slots=4", "several hosts in 'w0,w1'", "one host a line; or a range: worker-[0-3,7] slots=4"),
        ("10.0.0.256 slots=4", "'10.0.0.256' is not an IPv4 address", None),
        ("10.0.0.010 slots=4", "'10.0.0.010' is not an IPv4 address", None),
        ("w0: slots=4", "'' is not a port", PORT),
        ("w0:ssh slots=4", "'ssh' is not a port", PORT),
        ("w0:0 slots=4", "'0' is not a port", PORT),
        ("w0:65536 slots=4", "'65536' is not a port", PORT),
        ("[::1]:x slots=4", "'x' is not a port", PORT),
        ("w0:1:2 slots=4", "'w0:1:2' is not an IPv6 address", IPV6),
        ("[w0:1] slots=4", "'w0:1' is not an IPv6 address", IPV6),
        ("fe80::1%;x slots=4", "'fe80::1%;x' is not an IPv6 address: odd interface name", IPV6),
        # ranges
        ("w[] slots=4", "expects a number or low-high, but got ''", RANGE),
        ("w[a-c] slots=4", "expects a number or low-high, but got 'a-c'", RANGE),
        ("w[0,x] slots=4", "expects a number or low-high, but got 'x' in '0,x'", RANGE),
        ("w[3-1] slots=4", "'3-1' counts down", RANGE),
        ("w[0-03] slots=4", "'0-03' mixes zero-padded widths", RANGE),
        ("w[0-99999] slots=4", "'0-99999' stands for more than 65536 numbers", RANGE),
        ("w[0-9999999999] slots=4", "number too large in '0-9999999999'", RANGE),
        ("w[0-999]n[0-999] slots=4", "'w[0-999]n[0-999]' stands for more than 65536 hosts", RANGE),
        ("w[0-3 slots=4", "unmatched bracket in 'w[0-3'", "a range reads worker-[0-3,7]; IPv6 reads [::1]"),
        ("w0] slots=4", "unmatched bracket in 'w0]'", "a range reads worker-[0-3,7]; IPv6 reads [::1]"),
        ("w[0-2,1] slots=4", "host 'w1' is listed twice on this line", TWICE),
    ],
)
def test_errors_name_file_line_and_next_action(line: str, what: str, hint: str | None) -> None:
    with pytest.raises(HostfileError) as refused:
        parse_hostfile(f"# hosts\nfirst slots=1\n  {line}\nlast slots=1\n", "/job/hostfile")
    error = refused.value
    assert str(error) == f"/job/hostfile:3: {what}: {line!r}"
    assert (error.source, error.line_number, error.line, error.what) == (
        "/job/hostfile",
        3,
        line,
        str(error),
    )
    if hint is not None:
        assert error.hint == hint
    assert error.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0 slots=4\n\nw0 slots=4\n", "hf:3: host 'w0' is listed again, first on line 1: 'w0 slots=4'"),
        ("w0 slots=4\nW0 slots=4\n", "hf:2: host 'W0' is listed again, first on line 1: 'W0 slots=4'"),
        ("w0 slots=4\nme@w0 slots=4\n", "hf:2: host 'w0' is listed again, first on line 1: 'me@w0 slots=4'"),
        ("w0:1 slots=4\nw0:2 slots=4\n", "hf:2: host 'w0' is listed again, first on line 1: 'w0:2 slots=4'"),
        (
            "::1 slots=1\n[0::1] slots=1\n",
            "hf:2: host '::1' is listed again, first on line 1: '[0::1] slots=1'",
        ),
        ("w[0-9] slots=1\nw5 slots=1\n", "hf:2: host 'w5' is listed again, first on line 1: 'w5 slots=1'"),
    ],
)
def test_a_host_listed_twice_is_refused_naming_both_lines(text: str, message: str) -> None:
    with pytest.raises(HostfileError) as refused:
        parse_hostfile(text, "hf")
    assert str(refused.value) == message
    assert refused.value.hint == TWICE


@pytest.mark.parametrize("text", ["", "\n", "# only\n# comments\n", "\ufeff", " \t\r\n"])
def test_a_file_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(TopologyError) as refused:
        parse_hostfile(text, "/job/hostfile")
    assert str(refused.value) == "/job/hostfile: no host in this file"
    assert refused.value.hint == "a line reads: worker-1 slots=4; lines beginning with '#' are comments"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_are_utf8_with_or_without_a_byte_order_mark(mark: bytes) -> None:
    assert parse_hostfile_bytes(mark + b"# \xc3\xb6\r\nw0 slots=4\r\n", "hf").hosts == W0


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"w0 slots=4\n# \xe9\n", "hf:2: not UTF-8: '# \\\\xe9'", "save the file as UTF-8"),
        (b"w0 slots=4\r\n\r\n\xff slots=1", "hf:3: not UTF-8: '\\\\xff slots=1'", "save the file as UTF-8"),
        (b"a\rb\rc\xff", "hf:3: not UTF-8: 'c\\\\xff'", "save the file as UTF-8"),
        (
            "w0\n".encode("utf-16"),
            "hf:1: not UTF-8: '\\\\xff\\\\xfew\\x000\\x00'",
            "save the file as UTF-8 (it is UTF-16)",
        ),
    ],
)
def test_bytes_that_are_not_utf8_are_refused(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(HostfileError) as refused:
        parse_hostfile_bytes(data, "hf")
    assert str(refused.value) == message
    assert refused.value.hint == hint


def test_a_long_line_is_shortened_in_the_message_alone() -> None:
    line = f"{'w' * 5000} slots=4"
    with pytest.raises(HostfileError) as refused:
        parse_hostfile(line, "hf")
    assert str(refused.value) == f"hf:1: host name of 5000 characters: '{'w' * 120}...'"
    assert refused.value.line == line


def test_errors_are_value_errors_as_deepspeed_raises() -> None:
    with pytest.raises(ValueError, match="no host in this file"):
        parse_hostfile("", "hf")
