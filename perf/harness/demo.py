"""An iteration of the demo (inputs/tutorial/arithmetic.toml) and what it must cost at least on this machine."""

import json
import pathlib
import tempfile

from . import machine

BODY, HEAD = 106203456, 28311552  # parameters of SmolLM2-135M's blocks, and of its embedding, which is also the head
QUESTIONS, SAMPLES, NEW = 8, 8, 16  # of the deck: prompts, answers to each, tokens of an answer at most
LONGER = 160                        # tokens of each answer, exactly, of the same deck with answers ten times as long
MODEL = machine.CACHE / "models" / "SmolLM2-135M-Instruct"


class Iteration:
    """Called: seconds of the fastest iteration but the first, with checkpoints and exports off. Keeps the counts of that iteration for the limit.
    `longer`: answers of LONGER tokens."""

    def __init__(self, dtype, iterations, longer=False):
        self.settings = ["ppo", "inputs/tutorial/arithmetic.toml", f"run.iterations={iterations}", f"model.dtype={dtype}", f"model.path={MODEL}",
                         "ckpt.interval=0", "ckpt.save_hf=never"]
        self.new = LONGER if longer else NEW
        if longer:
            self.settings += [f"rollout.min_new_tokens={LONGER}", f"rollout.max_new_tokens={LONGER}", "data.max_len=272"]
        self.command = f"mpirun -n 2 trireme {' '.join(self.settings)}"
        self.line, self.dtype = None, dtype

    def __call__(self):
        if not MODEL.exists():
            raise machine.Failed("no model: ./bootstrap.sh model")
        with tempfile.TemporaryDirectory() as scratch:
            machine.run_ours("trireme", [*self.settings, f"run.dir={scratch}/run"], ranks=2, threads=machine.cores(), folder=machine.ROOT)
            lines = [json.loads(line) for line in pathlib.Path(scratch, "run", "metrics.jsonl").read_text().splitlines()]
            log = pathlib.Path(scratch, "run", "log.txt").read_text()
        fastest = min(lines[1:], key=lambda line: line["seconds"]["total"])
        if self.line is None or fastest["seconds"]["total"] < self.line["seconds"]["total"]:
            self.line = fastest
        self.bf16 = "compute type: bf16" in log
        if self.dtype == "auto":
            print(next(line[line.index("compute type:"):] for line in log.splitlines() if "compute type:" in line), flush=True)
        return fastest["seconds"]["total"]

    def limit(self, limits):
        """Products at the library's rates (6 FLOP per parameter and token to train, 2 for the reference, 2 for each question's one prefill),
        and for each step of the rollout the larger of reading all weights once and multiplying them with all rows."""
        kind = "bf16" if self.bf16 else "fp32"
        gemm, head = 1e9 * limits[f"gemm_{kind}_gflops"], 1e9 * limits[f"head_{kind}_gflops"]
        tokens = self.line["tokens"]
        responses = QUESTIONS * SAMPLES * self.line["response_length"]
        questions = (tokens - responses) / SAMPLES
        passes = (6 + 2) * (tokens * BODY / gemm + responses * HEAD / head) + 2 * questions * BODY / gemm
        weights = BODY + HEAD
        step = max(weights * (2 if self.bf16 else 4) / (1e9 * limits["read_gb_per_s"]),
                   2 * QUESTIONS * SAMPLES * (BODY / gemm + HEAD / head))
        return passes + self.new * step
