"""Generated tests have no deadline: on a busy machine a slow example is no wrong one."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
