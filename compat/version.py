"""Which DeepSpeed `compat/path` stands for, as its METADATA says too, and that it is not its build."""

version = "0.18.9+dslaunch"
major, minor, patch = 0, 18, 9
git_hash = git_branch = "dslaunch"
