"""What lets `import deepspeed` find our engine: `path/` is an import path that holds the package `deepspeed`.

It is never installed as a top-level name; `dslaunch --engine` puts it on the ranks' PYTHONPATH
(docs/decisions/0010-engine-chosen-on-the-host.md). The modules beside it hold what DeepSpeed has beyond an
engine (an accelerator object, groups); those in `path/deepspeed` only give things DeepSpeed's names.
"""
