"""What keeps a plan from running on this host."""

from __future__ import annotations

import os

from dslaunch.launcher.agent.port_claims import PortClaims
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.wire import Refused


def obstacle(plan: NodePlan) -> Refused | None:
    """Why no rank of this plan can run here, if so."""
    if not os.path.isdir(plan.cwd):
        return Refused(
            f"no folder {plan.cwd}",
            "ranks run in the launcher's current folder: create or mount it on this host",
        )
    if plan.script and not os.path.exists(os.path.join(plan.cwd, plan.script)):
        return Refused(
            f"no script {plan.script} in {plan.cwd}", "copy it to this host or use a shared folder"
        )
    return None


def claim_port(plan: NodePlan, claims: PortClaims) -> Refused | None:
    """Where ranks meet on this host, tell other jobs before rank 0 listens, as long as the claims live."""
    port = plan.ranks[0].env["MASTER_PORT"]
    try:
        claims.settle(int(port) if plan.node_rank == 0 else None)
        return None
    except OSError:
        return Refused(f"another job has just taken port {port}", "choose another with --master_port")
