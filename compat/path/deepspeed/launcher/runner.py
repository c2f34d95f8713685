"""Names of files that DeepSpeed's launcher reads, and dslaunch too."""

DLTS_HOSTFILE = "/job/hostfile"
DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
