"""DeepSpeed's launchers of several nodes: here --launcher names a backend of dslaunch."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("launcher.multinode_runner", "start the job with dslaunch --launcher NAME")

MultiNodeRunner = _missing.type("MultiNodeRunner")
PDSHRunner = _missing.type("PDSHRunner")
OpenMPIRunner = _missing.type("OpenMPIRunner")
MPICHRunner = _missing.type("MPICHRunner")
IMPIRunner = _missing.type("IMPIRunner")
SlurmRunner = _missing.type("SlurmRunner")
MVAPICHRunner = _missing.type("MVAPICHRunner")
