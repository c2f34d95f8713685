"""The command line, the plan, the wire, the agent and the supervision of one launch."""
