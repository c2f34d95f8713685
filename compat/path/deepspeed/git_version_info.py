"""Which DeepSpeed this stands for, and that it is not DeepSpeed's own build."""

from dslaunch.compat.builders import COMPATIBLE_OPS
from dslaunch.compat.version import git_branch, git_hash, version

installed_ops = compatible_ops = COMPATIBLE_OPS
torch_info: dict[str, str] = {}

__all__ = ["compatible_ops", "git_branch", "git_hash", "installed_ops", "torch_info", "version"]
