"""The processes under a process, by the kernel's lists of children (proc(5), CONFIG_PROC_CHILDREN)."""

from __future__ import annotations

import os


def descendants(pid: int, root: str = "/") -> list[int]:
    """Pids of its children, theirs, and so on, parents first; what ends meanwhile is left out."""
    found = []
    queue = [pid]
    while queue:
        children = _children(queue.pop(0), root)
        found += children
        queue += children
    return found


def _children(pid: int, root: str) -> list[int]:
    folder = os.path.join(root, "proc", str(pid), "task")
    children: list[int] = []
    try:
        for thread in os.listdir(folder):
            with open(os.path.join(folder, thread, "children")) as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # ended meanwhile
    return children
