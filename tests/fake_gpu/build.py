"""Compile the simulated runtime against a CUDA build of torch: `python tests/fake_gpu/build.py VENV`.

VENV is made if it does not exist: the CUDA build of the torch that constraints.txt pins, the headers that the sources
need, and everything else from this checkout's own environment. The libraries go to VENV/fake_gpu. Symbols of the real
libraries that no source has are generated, and answer "not supported".

Exits with 2, and one sentence that tests/allowed_skips.txt lists, where this machine cannot have it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: torch's CUDA build takes 4.7 GB, its download 0.6 GB more.
DISK_BYTES = 6 * 10**9

#: Names this checkout and the packages of the environment that made the new one; written when that is whole.
REST = "zz_rest.pth"

#: cudaErrorNotSupported is 801 and so is CUDA_ERROR_NOT_SUPPORTED; CUBLAS_STATUS_NOT_SUPPORTED is 15,
#: CUSOLVER_STATUS_NOT_SUPPORTED 9, CUFFT_NOT_SUPPORTED 16. CUPTI's answer is success, which Kineto takes for "there are
#: no such records".
NOT_SUPPORTED = {"cuda": 801, "cublas": 15, "cusolver": 9, "cufft": 16, "cupti": 0}


@dataclass(frozen=True)
class Library:
    """One library: the name that torch links, its sources, and what is generated from the real one and its header."""

    name: str
    sources: tuple[str, ...]
    prefix: str
    header: str | None = None


LIBRARIES = (
    Library(
        "libcudart.so.13", ("machine.c", "calls.c", "memory.c", "pool.c", "streams.c", "capture.c", "kernels.c"), "cuda"
    ),
    Library("libcuda.so.1", ("driver.c",), "cuda"),
    Library("libcublasLt.so.13", ("cublaslt.c",), "cublas"),
    Library("libcublas.so.13", ("cublas.c",), "cublas", "cublas_api.h"),
    Library("libcusolver.so.12", ("cusolver.c",), "cusolver", "cusolverDn.h"),
    Library("libcufft.so.12", ("cufft.c",), "cufft"),
    Library("libcupti.so.13", ("cupti.c",), "cupti"),
    Library("libnvidia-ml.so.1", ("nvml.c",), "nvml"),
    Library("libfakegpu_torch.so", ("torch_context.c",), ""),
    Library("libfakegpu_nvtx.so", ("nvtx.c",), ""),
)


class Unavailable(Exception):
    """Why this machine cannot have the simulated runtime; one of tests/allowed_skips.txt."""


def run(*command: str | Path) -> str:
    """The output of a command that must succeed."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


# -- the environment


def site_packages(venv: Path) -> Path:
    """Where the environment's packages are; this Python made it, so they are of the same version."""
    return venv / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def constraints() -> str:
    """constraints.txt, with torch's CUDA build for torch."""
    # Three equals signs compare text: with two, pip may take the build for CPUs, whose version is 2.x.y+cpu.
    return re.sub(r"^torch==", "torch===", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)


def is_ready(venv: Path) -> bool:
    """Whether the environment was made whole, and with today's pins."""
    made = venv / "constraints.txt"
    return (site_packages(venv) / REST).exists() and made.exists() and made.read_text() == constraints()


def make_environment(venv: Path) -> None:
    """torch's CUDA build in an environment of its own; all other packages come from the one that runs this."""
    if shutil.disk_usage(venv.resolve().parent).free < DISK_BYTES:
        raise Unavailable("less than 6 GB of disk are free for torch's CUDA build")
    run(sys.executable, "-m", "venv", "--without-pip", "--clear", venv)
    (venv / "constraints.txt").write_text(constraints())
    # The toolkit's headers include those of the compiler and of its C++ library, which torch does not need.
    packages = ["torch", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-ml-py", "nvtx"]
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "-q"]
    done = subprocess.run([*pip, "-c", str(venv / "constraints.txt"), *packages], check=False, stdout=sys.stderr)
    if done.returncode or not (site_packages(venv) / "nvidia").is_dir():
        raise Unavailable("a CUDA build of torch cannot be installed here")
    packages_here = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (site_packages(venv) / REST).write_text(f"{ROOT}\n{packages_here}\n")


# -- what is generated


def written(objects: list[Path]) -> set[str]:
    """Functions that the sources have."""
    return {line.split()[-1] for line in run("nm", "--defined-only", *objects).splitlines() if " T " in line}


def exported(library: Path) -> set[str]:
    """Functions of the real library."""
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] in "TWi"}


def declared(header: Path) -> set[str]:
    """Functions of the driver, by the names that its header gives them for the linker (cuMemAlloc is cuMemAlloc_v2)."""
    return set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", run("gcc", "-E", f"-I{header.parent}", header)))


def prototypes(header: Path) -> dict[str, list[tuple[str, str]]]:
    """Function -> its parameters, each as text and name; of a header of cuBLAS or cuSOLVER."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header.read_text(), flags=re.DOTALL)
    found = {}
    pattern = r"\b(?:cublas|cusolver)Status_t\s+(?:CUBLASWINAPI|CUSOLVERAPI)\s+(\w+)\s*\(([^)]*)\)\s*;"
    for name, inside in re.findall(pattern, text):
        parameters = [" ".join(one.split()) for one in inside.split(",")]
        found[name] = [(one, match[1]) for one in parameters if (match := re.search(r"(\w+)\s*(?:\[\w*\]\s*)*$", one))]
    return found


def order(names: set[str], *candidates: str) -> str:
    """The first of the parameters that a function has, or 1."""
    return next((name for name in candidates if name in names), "1")


def cublas_body(function: str, names: set[str]) -> str:
    """A product of the size that the parameters say; other calculations are one of a vector."""
    letter = function.removeprefix("cublas")[0]
    types = {"D": "CUDA_R_64F", "Z": "CUDA_C_64F"}
    kind = "Atype" if "Atype" in names else types.get(letter, "CUDA_R_32F")
    m, n, k = order(names, "m", "n"), order(names, "n", "m"), order(names, "k", "n", "m")
    if not {"m", "k"} & names:  # a vector
        m = k = "1"
    batch = order(names, "batchCount", "batchSize")
    return f"return fake_cublas(handle, {kind}, {m}, {n}, {k}, {batch});"


def cusolver_body(function: str, names: set[str]) -> str:
    """A workspace of the size that is asked for, or one kernel."""
    if function.endswith("_bufferSize"):
        sizes = sorted(names & {"lwork", "workspaceInBytesOnDevice", "workspaceInBytesOnHost"})
        # Small, and not zero: torch allocates it and hands it back.
        return " ".join(f"*{name} = 16;" for name in sizes) + " return CUSOLVER_STATUS_SUCCESS;"
    return f'return fake_cusolver(handle, "{function}", (double)({order(names, "n", "m")}));'


#: Where a function says whether it succeeded, one for each matrix of a batch; device memory is the host's.
INFO = ("info", "infoArray", "devInfo", "d_info", "devInfoArray")
#: These have one `info` for the whole batch: it says which argument was wrong.
ONE_INFO = re.compile(r"(getrs|geqrf|gels|potrs)Batched")


def calculations(library: Library, include: Path, missing: set[str]) -> str:
    """C for the functions of the header that calculate on a handle: each takes time, succeeds and computes nothing."""
    if library.header is None:
        return ""
    family = "cublas" if library.prefix == "cublas" else "cusolver"
    parts = [f'#include "fake_{family}.h"']
    for function, parameters in sorted(prototypes(include / library.header).items()):
        names = {name for _, name in parameters}
        if function not in missing or not parameters or not re.fullmatch(r"\w+Handle_t handle", parameters[0][0]):
            continue
        if any("__" in text for text, _ in parameters):  # types of C++; torch has no use for these
            continue
        if function.startswith((f"{family}Set", f"{family}Get", f"{family}DnSet", f"{family}DnGet")):
            continue
        body = cublas_body(function, names) if family == "cublas" else cusolver_body(function, names)
        for text, name in parameters:
            if name in INFO and "*" in text and not function.endswith("_bufferSize"):
                single = ONE_INFO.search(function) and not name.endswith("Array")
                count = "1" if single else order(names, "batchSize", "batchCount")
                body = f"for (int i = 0; i < {count}; i++) {name}[i] = 0; {body}"
        status = f"{family}Status_t"
        parts.append(f"{status} {function}({', '.join(text for text, _ in parameters)}) {{ {body} }}")
    return "\n".join(parts)


# -- compiling


def link(library: Library, nvidia: Path, out: Path, others: list[Path]) -> Path:
    """Compile one library: its sources, what is generated, and the symbols that are left."""
    work = out / "build"
    compile_ = ["gcc", "-std=gnu11", "-O1", "-g", "-fPIC", f"-I{nvidia / 'include'}", f"-I{HERE}"]
    objects = [work / f"{source}.o" for source in library.sources]
    for source, made in zip(library.sources, objects, strict=True):
        run(*compile_, "-Wall", "-Wextra", "-Werror", "-c", HERE / source, "-o", made)
    real = nvidia / "lib" / library.name
    wanted = exported(real) if real.exists() else set()
    if library.name == "libcuda.so.1":  # only a machine with a GPU has one
        wanted = declared(nvidia / "include" / "cuda.h")
    missing = {name for name in wanted if re.match("(__)?cu[A-Za-z]", name)} - written(objects)
    for name in ("calculations", "rest"):
        if name == "calculations":
            text = calculations(library, nvidia / "include", missing)
        else:
            answer = NOT_SUPPORTED.get(library.prefix)
            text = "\n".join(f"int {one}(void) {{ return {answer}; }}" for one in sorted(missing - written(objects)))
        (work / f"{name}.c").write_text(text)
        objects.append(work / f"{name}.o")
        # A generated function uses none of its parameters, and may be one that gcc has an idea of.
        run(*compile_, "-w", "-Werror=implicit-function-declaration", "-c", work / f"{name}.c", "-o", objects[-1])
    # The real libraries' symbols have a version of the library's name, which torch's libraries ask for.
    (work / "map").write_text(f"{library.name} {{ global: *; }};\n")
    versioned = [f"-Wl,--version-script={work / 'map'}"] if real.exists() else []
    run(*compile_, "-shared", "-o", out / library.name, f"-Wl,-soname,{library.name}", *versioned, *objects, *others)
    return out / library.name


def build(venv: Path) -> Path:
    """The folder with the libraries, compiled against the headers and symbols of the environment's CUDA."""
    (nvidia,) = (site_packages(venv) / "nvidia").glob("cu[0-9]*")
    out = venv / "fake_gpu"
    shutil.rmtree(out, ignore_errors=True)
    (out / "build").mkdir(parents=True)
    runtime, *others = LIBRARIES
    made = link(runtime, nvidia, out, [])
    for library in others:
        link(library, nvidia, out, [made])
    shutil.rmtree(out / "build")
    return out


def main() -> int:
    """Make the environment where it is missing, and compile."""
    if len(sys.argv) != 2:
        print("usage: python tests/fake_gpu/build.py VENV", file=sys.stderr)
        return 1
    venv = Path(sys.argv[1])
    try:
        if shutil.which("gcc") is None or shutil.which("nm") is None:
            raise Unavailable("gcc is not installed")
        if not is_ready(venv):
            make_environment(venv)
    except Unavailable as error:
        print(error)
        return 2
    print(build(venv))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
