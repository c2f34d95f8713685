"""Build the optimizer kernels: `dslaunchctl build`, or prepare() from a program.

Everything goes through prepare(). It does nothing where all is there, and may run in any number of processes
at once. Whoever needs a kernel that nobody has prepared builds it at its first use: seconds, once for each
version. Ranks have it prepared while they import torch and build their model (`ops/ahead.py`).
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine.ops import artifacts
from dslaunch.engine.ops.toolchain import BuildError, NoCompilerError, cxx, nvcc, run, run_all

CXX_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra"),
    # Vectors are never passed between files; uninitialized registers are inside GCC's own intrinsics.
    *("-Wno-psabi", "-Wno-ignored-attributes", "-Wno-unused-function", "-Wno-uninitialized"),
    "-Wno-maybe-uninitialized",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
CUDA_MODULES = ("adamw", "lion", "adagrad", "sgd", "lamb", "norm")
_CUDA_ARCHITECTURES = ("80", "90", "100")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What there is now."""

    cpu: Path
    cuda: tuple[Path, ...]  # a file for each of CUDA_MODULES (and architecture), or none


def prepare(folder: Path | None = None, architectures: Sequence[str] = ()) -> Prepared:
    """Build what is missing: the CPU library, and CUDA kernels where nvcc is installed.

    Without nvcc, CUDA kernels are compiled by NVRTC on the machine that has the GPU (see cuda_modules.py), or
    here, which needs no GPU, for `architectures` such as "90". nvcc compiles for those instead of the usual
    ones, anew. Into `folder` (for a wheel: the package's own `prebuilt`), all is built anew. Raises
    BuildError.
    """
    cpu = build_cpu(folder)
    if nvcc() is not None:
        return Prepared(cpu, tuple(build_cuda(module, folder, architectures) for module in CUDA_MODULES))
    if not architectures:
        return Prepared(cpu, ())
    from dslaunch.engine.ops import nvrtc  # which needs torch

    return Prepared(
        cpu,
        tuple(nvrtc.built(module, f"sm_{arch}", folder) for arch in architectures for module in CUDA_MODULES),
    )


def cpu_name(flags: tuple[str, ...] = ()) -> str:
    """The file name of the CPU library of these sources."""
    return f"cpu-{artifacts.source_key(*CXX_FLAGS, *_isa_flags_text(), *flags)}.so"


def build_cpu(folder: Path | None = None, flags: tuple[str, ...] = ()) -> Path:
    """The CPU library, with `flags` beside the usual ones. Raises BuildError."""
    name = cpu_name(flags)
    if folder is None and (found := artifacts.find(name)):
        return found
    compiler = [*cxx(), *CXX_FLAGS, *flags]
    with tempfile.TemporaryDirectory(prefix="dslaunch-build-") as work:
        objects, commands = [], []
        for isa, isa_flags in _instruction_sets().items():
            objects.append(f"{work}/{isa}.o")
            commands.append([*compiler, *isa_flags, f"-DDSLAUNCH_KERNELS=kernels_{isa}", "-c"])
            commands[-1] += [str(artifacts.SOURCES / "cpu_isa.cpp"), "-o", objects[-1]]
        run_all(commands)
        library = f"{work}/library.so"
        sources = [str(artifacts.SOURCES / name) for name in ("cpu_library.cpp", "cpu_crc32.cpp")]
        run([*compiler, "-shared", *sources, *objects, "-o", library])
        return artifacts.publish(name, Path(library).read_bytes(), folder)


def cuda_name(module: str) -> str:
    """The file name of the fatbin of one CUDA source."""
    return f"{module}-{artifacts.source_key('fatbin')}.fatbin"


def build_cuda(module: str, folder: Path | None = None, architectures: Sequence[str] = ()) -> Path:
    """The fatbin of `module`: code for each of the architectures, and PTX for later ones. Needs nvcc.

    Without `architectures` for the usual ones that this nvcc knows, and only if there is none yet.
    """
    name = cuda_name(module)
    if folder is None and not architectures and (found := artifacts.find(name)):
        return found
    compiler = nvcc()
    if compiler is None:
        raise NoCompilerError("no nvcc found\nhint: install the CUDA toolkit, or set CUDA_HOME")
    chosen = list(architectures)
    if not chosen:
        known = set(re.findall(r"compute_(\d+)", run([compiler, "--list-gpu-arch"])))
        chosen = [arch for arch in _CUDA_ARCHITECTURES if arch in known]
    targets = []
    for arch in chosen:
        code = f"[sm_{arch},compute_{arch}]" if arch == chosen[0] else f"sm_{arch}"
        targets.append(f"-gencode=arch=compute_{arch},code={code}")
    with tempfile.TemporaryDirectory(prefix="dslaunch-build-") as work:
        output = f"{work}/{module}.fatbin"
        run(
            [
                compiler,
                "-std=c++17",
                "-O3",
                "-fatbin",
                *targets,
                str(artifacts.SOURCES / f"{module}.cu"),
                "-o",
                output,
            ]
        )
        return artifacts.publish(name, Path(output).read_bytes(), folder)


def _instruction_sets() -> dict[str, tuple[str, ...]]:
    if platform.machine() in ("x86_64", "AMD64"):
        return {"baseline": (), "avx2": _AVX2, "avx512": _AVX512, "avx512bf16": (*_AVX512, "-mavx512bf16")}
    return {"baseline": ()}


def _isa_flags_text() -> list[str]:
    return [f"{isa} {' '.join(flags)}" for isa, flags in _instruction_sets().items()]


def architecture(text: str) -> str:
    """ "9.0", "90" or "sm_90" as "90"."""
    found = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)([af]?)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expects an architecture such as 9.0 but got {text!r}")
    return "".join(found.groups())


def main(arguments: list[str]) -> int:
    """`[FOLDER] [--arch ARCH]...`: into the cache, or anew into FOLDER."""
    parser = argparse.ArgumentParser(prog="dslaunchctl build", description=prepare.__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--arch", action="append", default=[], type=architecture)
    options = parser.parse_args(arguments)
    try:
        prepared = prepare(options.folder, options.arch)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in (prepared.cpu, *prepared.cuda):
        print(path)
    if not prepared.cuda:
        print("no nvcc: CUDA kernels will be compiled by NVRTC at their first use, or now with --arch")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
