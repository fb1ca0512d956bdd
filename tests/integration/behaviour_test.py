#!/usr/bin/env python3
"""What the pipelines compute, recorded: metrics and exported weights of tiny decks of ppo, sft, rm and dpo.

`tests/gold/behaviour/record.json` holds what commit e7c4ce3b computed, with digests and the processor they are of. On any processor the
metrics must agree with it within rounding. TRIREME_AGAINST=/path/to/another/trireme runs that program too, on this machine, and compares
metrics, samples and weights bit for bit: for changes that must not change a number. TRIREME_RECORD=1 writes the record anew.
"""

import hashlib
import json
import math
import os
import pathlib
import re
import struct

import trireme_run
from trireme_run import ROOT, SFT_DECK, ProgramTest, main, read_safetensors, timeless, write_lines

RECORD = ROOT / "tests" / "gold" / "behaviour" / "record.json"
AGAINST = os.environ.get("TRIREME_AGAINST")
RELATIVE, ROUNDING = 2e-4, 2e-5  # of three or four steps in fp32, on another processor

PAIRS = [{"prompt": f"{i}+{i + 1}=", "chosen": f"{2 * i + 1}.", "rejected": f"{i}, perhaps" if i % 2 else "?"} for i in range(8)]
ENDS = ["ckpt.interval=0", "ckpt.save_hf=end"]
APART = ["ranks.trainer=1", "ranks.generator=1", "train.deterministic=true"]
# name: (command, ranks, overrides)
RUNS = {
    "ppo-1": ("ppo", 1, ["train.deterministic=true"]),
    "ppo-2": ("ppo", 2, ["train.deterministic=true"]),
    "ppo-bf16": ("ppo", 1, ["train.deterministic=true", "model.dtype=bf16"]),
    "ppo-torch": ("ppo", 1, ["train.deterministic=true", "generate.backend=torch"]),
    "ppo-sliced": ("ppo", 2, ["train.deterministic=true", "generate.tensor_parallel=2"]),
    "ppo-ahead": ("ppo", 2, [*APART, "train.async_depth=1"]),
    "ppo-two-ahead": ("ppo", 2, [*APART, "train.async_depth=2", "train.partial_rollout_enable=true"]),
    "sft-1": ("sft", 1, []), "sft-2": ("sft", 2, []),
    "rm-1": ("rm", 1, []), "rm-2": ("rm", 2, []),
    "dpo-1": ("dpo", 1, []), "dpo-2": ("dpo", 2, []),
}


def digest(value):
    return hashlib.sha256(value).hexdigest()[:16]


def sums(tensors):
    """[sum, sum of squares] over all exported weights (fp32, or bf16)."""
    total = squares = 0.0
    for kind, _, data in tensors.values():
        if kind == "BF16":
            data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        values = struct.unpack(f"<{len(data) // 4}f", data)
        total += math.fsum(values)
        squares += math.fsum(x * x for x in values)
    return [total, squares]


class Behaviour(ProgramTest):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_lines(cls.folder / "pairs.jsonl", PAIRS)
        for name in ("rm.toml", "dpo.toml"):
            (cls.folder / name).write_text(SFT_DECK.replace("examples.jsonl", "pairs.jsonl"))

    def compute(self, name, run):
        command, ranks, overrides = RUNS[name]
        self.succeed(command, f"{command}.toml", f"run.dir={run}", *ENDS, *overrides, ranks=ranks)
        tensors = {key: read_safetensors(path) for key, path in
                   ((path.parent.name, path) for path in sorted((self.folder / run).rglob("model.safetensors")))}
        self.assertTrue(tensors, "weights are exported")
        samples = self.samples(run) if command == "ppo" else []
        return {"metrics": timeless(self.metrics(run)), "samples": digest(json.dumps(samples).encode()),
                "weights": {key: digest(repr(value).encode()) for key, value in tensors.items()},
                "sums": {key: sums(value) for key, value in tensors.items()}}, (self.folder / run / "log.txt").read_text()

    def assert_close(self, ours, theirs, where):
        if isinstance(theirs, dict):
            for key, value in theirs.items():
                self.assertIn(key, ours, where)
                self.assert_close(ours[key], value, f"{where}.{key}")
        elif isinstance(theirs, list):
            self.assertEqual(len(ours), len(theirs), where)
            for i, value in enumerate(theirs):
                self.assert_close(ours[i], value, f"{where}[{i}]")
        elif isinstance(theirs, float) and not isinstance(ours, str):
            self.assertTrue(math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=ROUNDING), f"{where}: {ours} against {theirs}")
        else:
            self.assertEqual(ours, theirs, where)

    def test_as_recorded(self):
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        runs, processor = {}, ""
        for name in RUNS:
            with self.subTest(run=name):
                runs[name], text = self.compute(name, name)
                processor = processor or re.search("instruction set: .*", text)[0]
                if os.environ.get("TRIREME_RECORD") == "1":
                    continue
                # In bf16 another processor rounds other bits: tokens differ, and all that follows.
                keys = [] if name == "ppo-bf16" else ["metrics", "sums"]
                self.assert_close({key: runs[name][key] for key in keys}, {key: record["runs"][name][key] for key in keys}, name)
        if os.environ.get("TRIREME_RECORD") == "1":
            RECORD.parent.mkdir(exist_ok=True)
            RECORD.write_text(json.dumps({"processor": processor, "runs": runs}, indent=1, sort_keys=True) + "\n")
        if AGAINST:
            self.bit_for_bit(runs)

    def bit_for_bit(self, runs):
        ours = trireme_run.PROGRAM
        trireme_run.PROGRAM = pathlib.Path(AGAINST).resolve()
        try:
            for name in RUNS:
                with self.subTest(run=name, against=AGAINST):
                    self.assertEqual(self.compute(name, f"{name}-against")[0], runs[name])
        finally:
            trireme_run.PROGRAM = ours


if __name__ == "__main__":
    main()
