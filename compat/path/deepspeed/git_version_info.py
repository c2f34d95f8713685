"""Which DeepSpeed this stands for, and that it is not DeepSpeed's own build."""

from dslaunch.compat.version import git_branch, git_hash, version

installed_ops: dict[str, bool] = {}
compatible_ops: dict[str, bool] = {}
torch_info: dict[str, str] = {}

__all__ = ["compatible_ops", "git_branch", "git_hash", "installed_ops", "torch_info", "version"]
