"""Runs the program for tests: a folder of its own, a tiny random model, decks, launcher, time limits, and readers of what a
run writes. Standard library only.

Environment: TRIREME_BINARY_DIR (default build/release), TRIREME_MPIEXEC and TRIREME_MPI_FLAGS (a ;-list) for the launcher,
TRIREME_KEEP=1 keeps the folders of the tests.
"""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY_DIR = pathlib.Path(os.environ.get("TRIREME_BINARY_DIR", ROOT / "build" / "release")).resolve()
PROGRAM = BINARY_DIR / "trireme"
MPIEXEC = os.environ.get("TRIREME_MPIEXEC", "mpirun")
MPI_FLAGS = os.environ.get("TRIREME_MPI_FLAGS", "--oversubscribe;--bind-to;none").split(";")
SKIPPED = 125  # exit code of a test that cannot run here
PATIENCE = 300  # seconds after which a program that takes a few has hung, on a busy machine, too

# Six query heads on three key-value heads: two tensor-parallel ranks get 2 + 1 groups.
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "head_dim": 16,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 272,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "initializer_range": 0.05, "torch_dtype": "float32",
}

PROMPTS = ["1+2=", "12+30=", "7+8=", "what is 2+2? ", "9+1=", "100+1=", "3+3=", "five plus six is "]

# A reward plugin saboteur.py in the run's folder, which does something to the run at a given time and does not count.
SABOTEUR_SOURCE = f"""
[[reward.source]]
kind = "plugin"
name = "saboteur"
weight = 0.0
command = ["{sys.executable}", "saboteur.py"]
"""

RULE_SOURCE = """[[reward.source]]
kind = "rule"
rule = "regex"
pattern = "[a-zA-Z0-9]"
length_target = 4
length_weight = 0.25
"""

# Answers of different lengths (they end at a vowel or a digit) and rewards that differ, so that a loss means something.
PPO_DECK = f"""
[run]
dir = "run"
seed = 3
iterations = 3
[model]
path = "model"
dtype = "fp32"
[data]
prompt_dataset = ["prompts.jsonl"]
max_len = 48
[rollout]
batch_size = 4
n_samples_per_prompt = 2
max_new_tokens = 8
stop = ["a", "e", "i", "o", "u", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
save_samples = -1
{RULE_SOURCE}[actor]
adam.lr = 1e-3
[critic]
adam.lr = 1e-3
[train]
batch_size = 4
recompute = 0
[ckpt]
interval = 1
save_hf = "never"
"""

SFT_DECK = """
[run]
dir = "run"
seed = 3
iterations = 4
[model]
path = "model"
dtype = "fp32"
[data]
dataset = ["examples.jsonl"]
max_len = 48
[train]
batch_size = 4
[actor]
adam.lr = 1e-3
[ckpt]
interval = 1
save_hf = "never"
"""


# When a rank has ended with a code that is not 0, mpirun sleeps for a second before it ends the others, and for another one after that, also when
# there is nobody left. For tests of what comes out and of what the next start finds; tests of the end itself have it as users do.
ENDS_AT_ONCE = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}
ENDS_AS_USUAL = {"OMPI_MCA_odls_base_sigkill_timeout": "1"}


def adversity(name, **settings):
    """Environment in which tests/support/NAME.c acts on every process."""
    return {"LD_PRELOAD": str(BINARY_DIR / "tests" / f"lib{name}.so")} | settings


def child_environment(extra=None):
    environment = dict(os.environ)
    environment.update({
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "TORCH_CPP_LOG_LEVEL": "ERROR",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    })
    environment.update(extra or {})
    return environment


class Result:
    """A finished run: exit code, texts and duration."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def text(self):
        return self.out + self.err


class Job:
    """A run in progress, in a process group of its own."""

    def __init__(self, arguments, cwd, ranks=1, env=None, prefix=(), launcher=None):
        """`prefix` is put before the program on every rank; `launcher` stands for the usual one and its flags."""
        command = [*prefix, str(PROGRAM), *map(str, arguments)]
        if launcher is not None or ranks > 1:
            command = [*(launcher or [MPIEXEC, *MPI_FLAGS]), "-n", str(ranks), *command]
        self.began = time.monotonic()
        self.out = tempfile.TemporaryFile("w+", errors="replace")
        self.err = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(command, cwd=cwd, env=child_environment(env), stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err, start_new_session=True)

    def send(self, signal_number):
        """To the launcher, which passes USR1 and USR2 on to its ranks, or to the only process."""
        self.process.send_signal(signal_number)

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait(self, timeout=PATIENCE):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {timeout} s: {self.process.args}\n{self.read(self.out)}{self.read(self.err)}") from None
        seconds = time.monotonic() - self.began
        return Result(code, self.read(self.out), self.read(self.err), seconds)

    @staticmethod
    def read(file):
        file.seek(0)
        return file.read()


def descends(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def ranks_of(job):
    """{rank: pid} of the program's processes below a launcher, or in its session, which they keep when it dies; without one the process itself."""
    if job.process.args[0] == str(PROGRAM):
        return {0: job.process.pid}
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"trireme" not in (path / "cmdline").read_bytes().split(b"\0")[0]:
                continue
            environment = dict(part.partition(b"=")[::2] for part in (path / "environ").read_bytes().split(b"\0"))
            session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
            if session == job.process.pid or descends(int(path.name), job.process.pid):
                found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = int(path.name)
        except (OSError, ValueError, KeyError):
            continue
    return found


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().split("\n") if line]  # splitlines() also splits inside texts


def timeless(metrics):
    """Metrics without what may differ between equal runs: times and shares of them, how long the run is, memory, which threads had work, what the engines and the weight sync did in this start, how often
    plugins, judges and environments were asked."""
    own = ("seconds", "busy", "memory", "threads", "weight_sync", "generation", "plugins", "judges", "environment", "time", "iterations", "epoch")
    return [{key: value for key, value in line.items() if key not in own} for line in metrics]


class ProgramTest(unittest.TestCase):
    """Tests of one class share a folder with `model`, `prompts.jsonl`, `ppo.toml` and `sft.toml`."""

    longMessage = True
    environment = {}  # of all runs, where the call does not say otherwise

    @classmethod
    def setUpClass(cls):
        base = BINARY_DIR / "integration"
        base.mkdir(parents=True, exist_ok=True)
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix=cls.__name__ + "-", dir=base))
        (cls.folder / "shape").mkdir()
        (cls.folder / "shape" / "config.json").write_text(json.dumps(SHAPE))
        write_lines(cls.folder / "prompts.jsonl", [{"prompt": text, "label": str(i)} for i, text in enumerate(PROMPTS)])
        write_lines(cls.folder / "examples.jsonl", [{"prompt": text, "response": f"{i}."} for i, text in enumerate(PROMPTS)])
        (cls.folder / "ppo.toml").write_text(PPO_DECK)
        (cls.folder / "sft.toml").write_text(SFT_DECK)
        made = cls.run_program("init", "--shape", "shape", "--output", "model", "--tokenizer",
                               ROOT / "inputs" / "tutorial" / "tokenizer", "--dtype", "fp32")
        if made.code:
            raise RuntimeError(made.text)

    @classmethod
    def tearDownClass(cls):
        if os.environ.get("TRIREME_KEEP") != "1":
            shutil.rmtree(cls.folder, ignore_errors=True)

    @classmethod
    def start(cls, *arguments, ranks=1, env=None, **options):
        return Job(arguments, cls.folder, ranks, cls.environment | (env or {}), **options)

    @classmethod
    def run_program(cls, *arguments, ranks=1, env=None, **options):
        return cls.start(*arguments, ranks=ranks, env=env, **options).wait()

    def succeed(self, *arguments, code=0, **options):
        """Runs and expects this exit code."""
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.code, code, f"{arguments}\n{result.text}")
        return result

    @classmethod
    def deck_with(cls, name, old, new):
        """A copy of ppo.toml with one text replaced."""
        text = (cls.folder / "ppo.toml").read_text()
        if old not in text:
            raise AssertionError(f"ppo.toml has no {old}")
        (cls.folder / name).write_text(text.replace(old, new))
        return name

    def metrics(self, run):
        return read_lines(self.folder / run / "metrics.jsonl")

    def samples(self, run):
        return read_lines(self.folder / run / "samples.jsonl")

    def wait_for(self, condition, job, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if job.process.poll() is not None or time.monotonic() > deadline:
                job.kill()
                result = job.wait()
                self.fail(f"{what} did not come about; exit code {result.code}\n{result.text}")
            time.sleep(0.01)


def lines_in(path):
    """Complete lines of a file that may not exist yet."""
    try:
        return pathlib.Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def read_safetensors(path):
    """{name: (type, shape, bytes)} of one file."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + first:8 + length + last])
    return tensors


def main():
    """unittest with the duration of each test; exit code 125 when every test was skipped."""

    class TimedResult(unittest.TextTestResult):
        def startTest(self, test):
            self.began = time.monotonic()
            super().startTest(test)

        def addSuccess(self, test):
            super().addSuccess(test)
            self.stream.writeln(f"    {time.monotonic() - self.began:.1f} s")

    program = unittest.main(module="__main__", exit=False, verbosity=2,
                            testRunner=unittest.TextTestRunner(verbosity=2, resultclass=TimedResult))
    result = program.result
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun else 0)
