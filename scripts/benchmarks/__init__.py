"""What `scripts/bench` measures. A subcommand's module has a click command named `command`."""
