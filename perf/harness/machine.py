"""The machine: who else uses it, what it is called, and how our programs and the peers are started on it."""

import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "trireme"
BUILD = pathlib.Path(os.environ.get("TRIREME_BUILD") or ROOT / "build" / "release")
PEER_PYTHON = pathlib.Path(os.environ.get("TRIREME_PEER_PYTHON") or CACHE / "venv" / "bin" / "python")

# The same for both sides: large pages, memory kept between steps.
ENVIRONMENT = {
    "TORCH_CPP_LOG_LEVEL": "ERROR", "THP_MEM_ALLOC_ENABLE": "1", "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=17179869184:glibc.malloc.hugetlb=1",
}


# What makes this machine's libraries and our kernels behave like those of an older processor, for both sides alike.
ISA_CAPS = {
    "avx512_bf16": {},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "portable": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


def cap_isa(isa):
    """From here on both sides run as on a processor that has no more than `isa`, whatever the cap was before."""
    for caps in ISA_CAPS.values():
        for name in caps:
            ENVIRONMENT.pop(name, None)
    ENVIRONMENT.update(ISA_CAPS[isa], TRIREME_ISA=isa)


def cores():
    return len(os.sched_getaffinity(0))


def processor():
    """The processor's name and the widest of the instruction sets that matter here."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", text)
    flags = (re.search(r"^flags\s*:\s*(.*)", text, re.M) or [None, ""])[1].split()
    widest = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "baseline")
    return f"{model.group(1).strip() if model else 'unknown'} ({widest}, {cores()} cores)"


def name():
    """A folder name for results: processor and number of cores."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", text)
    words = re.sub(r"[^A-Za-z0-9]+", "-", model.group(1) if model else "unknown").strip("-").lower()
    return f"{words}-{cores()}cores"


def gpu():
    """What the first GPU is called, as a folder for results, or None."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return re.sub(r"[^A-Za-z0-9]+", "-", done.stdout.strip().splitlines()[0]).strip("-").lower() if done.stdout.strip() else None


def _busy_seconds():
    fields = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own_seconds():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


class ForeignLoad:
    """Cores used by processes that are not ours since the object was made. Our children must have ended."""

    def __init__(self):
        self.start, self.busy, self.own = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores(self):
        elapsed = max(time.monotonic() - self.start, 1e-3)
        return max(0.0, (_busy_seconds() - self.busy - (_own_seconds() - self.own)) / elapsed)


def wait_until_quiet(patience):
    """Returns when nobody else computes, or after `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        load = ForeignLoad()
        time.sleep(0.3)
        if load.cores() < 0.15:
            return


class Failed(Exception):
    """A program did not run; the message is for the table."""


def _communicate(processes, timeout):
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=timeout))
    except subprocess.TimeoutExpired as error:
        for process in processes:
            process.kill()
            process.communicate()
        raise Failed(f"took longer than {timeout} s") from error
    for process, (_, text) in zip(processes, outputs):
        if process.returncode:
            raise Failed(f"exit code {process.returncode}: {(text.strip().splitlines() or ['no message'])[-1][:200]}")
    return outputs[0][0]


def openmp(ranks, threads):
    """OpenMP's own choice where each thread has a core: they spin for a while where they meet. Told to sleep, llama.cpp and Hugging Face generate
    lose half of their speed; told to spin for ever, LibTorch's idle threads take half of ours."""
    return {"OMP_NUM_THREADS": str(threads)} | ({"OMP_WAIT_POLICY": "passive"} if ranks * threads > cores() else {})


def _built(program):
    path = next((p for p in (BUILD / program, BUILD / "perf" / program) if p.exists()), None)
    if path is None:
        raise Failed(f"{program} is not built")
    return path


def _start_ours(program, arguments, ranks, threads, folder, output=None):
    """One of our programs under mpirun (one rank: without it)."""
    command = [str(_built(program)), *map(str, arguments)]
    if ranks > 1:
        launcher = [shutil.which("mpirun") or "mpirun", "-n", str(ranks), "--bind-to", "none"]
        launcher += ["--oversubscribe"] if ranks > cores() else []
        command = launcher + command
    environment = os.environ | ENVIRONMENT | openmp(ranks, threads)
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if ranks > cores():
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return subprocess.Popen(command, env=environment, cwd=folder, text=True, stdout=output or subprocess.PIPE, stderr=output or subprocess.PIPE)


def run_ours(program, arguments, ranks=1, threads=1, timeout=1200, folder=None):
    """Standard output of rank 0 of one of our programs."""
    return _communicate([_start_ours(program, arguments, ranks, threads, folder)], timeout)


def peak_of_job(program, arguments, ranks, threads, folder):
    """Bytes of the largest resident set of any process of one of our programs' jobs."""
    with tempfile.TemporaryFile("w+") as output:
        process = _start_ours(program, arguments, ranks, threads, folder, output)
        _, status, usage = os.wait4(process.pid, 0)  # of all that mpirun waited for
        if status != 0:
            output.seek(0)
            raise Failed(f"{program} {' '.join(map(str, arguments))}: {output.read()[-2000:]}")
        process.returncode = 0
    return usage.ru_maxrss * 1024


def run_on_hosts(program, arguments, hosts, mbit, settings=None, timeout=1200):
    """The same with a rank on each of so many simulated hosts, from the repository's root; `settings` of the environment beside ours."""
    command = [str(ROOT / "perf" / "weightsync" / "hosts.sh"), str(hosts), str(mbit), shutil.which("mpirun") or "mpirun", "--host",
               ",".join(f"h{host}:1" for host in range(hosts)), "-n", str(hosts), "--bind-to", "none", str(_built(program)), *map(str, arguments)]
    environment = os.environ | ENVIRONMENT | openmp(hosts, 1) | {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | (settings or {})
    return _communicate([subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)], timeout)


def run_peer(script, arguments, ranks=1, threads=1, timeout=1200, folder=None):
    """The same for a script of perf/peers, its ranks joined by gloo."""
    if not PEER_PYTHON.exists():
        raise Failed("no peer environment: ./bootstrap.sh interop")
    port = 20000 + (os.getpid() * 7 + int(time.time())) % 40000
    processes = []
    for rank in reversed(range(ranks)):
        environment = os.environ | ENVIRONMENT | openmp(ranks, threads) | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        processes.insert(0, subprocess.Popen([str(PEER_PYTHON), str(ROOT / "perf" / "peers" / script), *map(str, arguments)], env=environment,
                                             cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return _communicate(processes, timeout)


def disk_write_gb_per_s(folder, size):
    """dd with fdatasync: what a file of `size` bytes costs at least."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = ["dd", "if=/dev/zero", f"of={scratch}/dd", "bs=16M", f"count={max(1, size >> 24)}", "conv=fdatasync"]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return max(1, size >> 24) * (1 << 24) / 1e9 / (time.perf_counter() - start)
