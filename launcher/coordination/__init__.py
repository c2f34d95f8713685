"""The coordination link of no-SSH mode: joins launchers that were started by hand, one on each node.

The launcher of node 0 listens, the others dial in. The link can compare, report and stop; it can run
nothing. `link.coordination` is the way in; protocol, auth, facts, refusals and membership are pure.
"""
