"""Build the optimizer kernels: `python -m dslaunch.engine.ops.build`, or prepare() from a program.

Everything goes through prepare(). It does nothing where all is there, and may run in any number of processes
at once. Whoever needs a kernel that nobody has prepared builds it at its first use: seconds, once for each
version.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
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
    cuda: tuple[Path, ...]  # a fatbin for each of CUDA_MODULES, or none where there is no nvcc


def prepare(folder: Path | None = None) -> Prepared:
    """Build what is missing: the CPU library, and CUDA kernels where nvcc is installed.

    Without nvcc, CUDA kernels are compiled by NVRTC on the machine that has the GPU (see cuda_modules.py).
    Into `folder` (for a wheel: the package's own `prebuilt`), everything is built anew. Raises BuildError.
    """
    cpu = build_cpu(folder)
    if nvcc() is None:
        return Prepared(cpu, ())
    return Prepared(cpu, tuple(build_cuda(module, folder) for module in CUDA_MODULES))


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
        run([*compiler, "-shared", str(artifacts.SOURCES / "cpu_library.cpp"), *objects, "-o", library])
        return artifacts.publish(name, Path(library).read_bytes(), folder)


def cuda_name(module: str) -> str:
    """The file name of the fatbin of one CUDA source."""
    return f"{module}-{artifacts.source_key('fatbin')}.fatbin"


def build_cuda(module: str, folder: Path | None = None) -> Path:
    """The fatbin of `module`: code for each known architecture, and PTX for later ones. Needs nvcc."""
    name = cuda_name(module)
    if folder is None and (found := artifacts.find(name)):
        return found
    compiler = nvcc()
    if compiler is None:
        raise NoCompilerError("no nvcc found\nhint: install the CUDA toolkit, or set CUDA_HOME")
    known = set(re.findall(r"compute_(\d+)", run([compiler, "--list-gpu-arch"])))
    targets = []
    for arch in _CUDA_ARCHITECTURES:
        if arch in known:
            code = f"[sm_{arch},compute_{arch}]" if arch == _CUDA_ARCHITECTURES[0] else f"sm_{arch}"
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


def main(arguments: list[str]) -> int:
    """`[FOLDER]`: into the cache, or anew into FOLDER."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print("usage: python -m dslaunch.engine.ops.build [FOLDER]", file=sys.stderr)
        return 2
    try:
        prepared = prepare(Path(arguments[0]) if arguments else None)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in (prepared.cpu, *prepared.cuda):
        print(path)
    if not prepared.cuda:
        print("no nvcc: CUDA kernels will be compiled by NVRTC at their first use")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
