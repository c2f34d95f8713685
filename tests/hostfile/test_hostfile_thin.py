from dslaunch.hostfile import Selection, parse_hostfile, select


def test_parse_then_select() -> None:
    topology = parse_hostfile("worker-0 slots=4\nworker-1 slots=4\n", "hostfile")
    chosen = select(topology, Selection(include="worker-1:3,1"))
    assert [(host.name, host.slots) for host in chosen] == [("worker-1", (3, 1))]
