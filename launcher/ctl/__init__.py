"""`dslaunchctl`, the companions of `dslaunch`: a second command, so that a script named report still runs."""
