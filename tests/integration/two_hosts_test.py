#!/usr/bin/env python3
"""New weights from a host of trainers to two replicas on another one (network namespaces, a cable between them): they cross the cable once per sync, by the
cable's own counters, and deltas are a fraction of them. Skipped where such namespaces are not to be had."""

import json
import subprocess
import sys

from trireme_run import MPIEXEC, MPI_FLAGS, ROOT, SHAPE, SKIPPED, ProgramTest, main

TWO_NODES = ["bash", str(ROOT / "tests" / "fault" / "two_nodes.sh"), "/nowhere/cut"]
LAUNCHER = [MPIEXEC, *MPI_FLAGS, "--host", "n1:1,n2:2"]
METER = str(ROOT / "tests" / "support" / "cable_meter.py")
HEADERS = 1.12  # of packets and buckets, and what else a short iteration says
SYNCS = 2       # that are looked at: between the lines of three iterations
# Weights of 20 MB in bf16, so that they are nearly all that an iteration sends; few tokens.
WIDE = SHAPE | {"hidden_size": 384, "head_dim": 64, "intermediate_size": 1536, "num_hidden_layers": 4}


class TwoHosts(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "wide").mkdir()
        (cls.folder / "wide" / "config.json").write_text(json.dumps(WIDE))
        cls.run_program("init", "--shape", "wide", "--output", "wide-model", "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer", "--dtype", "bf16")

    def run_over_cable(self, run, *overrides):
        """Lines of metrics, and what the trainers' host sent from one of them to the next."""
        measured = self.folder / f"{run}.json"
        launcher = [*TWO_NODES, sys.executable, METER, str(measured), str(self.folder / run / "metrics.jsonl"), *LAUNCHER]
        self.succeed("ppo", "ppo.toml", f"run.dir={run}", f"run.iterations={SYNCS + 1}", "model.path=wide-model", "model.dtype=bf16", "ckpt.interval=0",
                     "ranks.trainer=1", "ranks.generator=2", "train.batch_size=8", "algo.advantage.estimator=group_norm", "actor.adam.lr=1e-6", *overrides,
                     ranks=3, launcher=launcher)
        sent = [seen[1] for seen in json.loads(measured.read_text())]
        lines = self.metrics(run)
        return lines[1:], [sent[i + 1] - sent[i] for i in range(1, len(lines))]

    def test_weights_cross_the_cable_once(self):
        if subprocess.run([*TWO_NODES, "true"], check=False, capture_output=True).returncode == SKIPPED:
            self.skipTest("no network namespaces here")
        probe = subprocess.run([*TWO_NODES, *LAUNCHER, "-n", "3", "true"], check=False, capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"this launcher starts nothing on the other host: {probe.stderr}")
        whole, sent = self.run_over_cable("whole", "weightsync.delta=false")
        self.assertEqual(len(whole), SYNCS)
        for line, crossed in zip(whole, sent, strict=True):
            sync = line["weight_sync"]
            weights = sync["bytes"]
            print(f"\n    whole: {weights / 1e6:.2f} MB, by the program {sync['network_bytes'] / weights:.4f}, over the cable {crossed / weights:.4f}", flush=True)
            self.assertEqual(sync["network_bytes"], weights)
            self.assertEqual(sync["busiest_node_bytes"], weights)
            self.assertEqual(sync["over_bound"], 1)
            self.assertEqual(sync["node_bytes"], weights, "each replica takes half from the other one")
            self.assertGreaterEqual(crossed, weights)
            self.assertLess(crossed, HEADERS * weights)
        changes, sent = self.run_over_cable("changes")
        for line, crossed in zip(changes, sent, strict=True):
            sync = line["weight_sync"]
            print(f"\n    changes: by the program 1/{weights / sync['network_bytes']:.1f}, over the cable 1/{weights / crossed:.1f}", flush=True)
            self.assertLess(sync["sent_share"] * 20, 1)
            self.assertLess(crossed * 20, weights)
        self.assertEqual(self.samples("changes"), self.samples("whole"))


if __name__ == "__main__":
    main()
