"""The launcher is dslaunch; these are names that scripts read."""
