"""A running job, seen and touched from other terminals: its entry, its socket, and who asks there."""
