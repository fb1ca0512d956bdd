#!/usr/bin/env python3
"""Two hosts (network namespaces, a cable between them), by the cable's own counters: new weights from trainers to two replicas cross it once per sync, and
deltas are a fraction of them; of trainers on both hosts each takes the other's weights once a step. Skipped where such namespaces are not to be had."""

import json
import subprocess
import sys

from trireme_run import MPIEXEC, MPI_FLAGS, ROOT, SHAPE, SKIPPED, ProgramTest, main, timeless

TWO_NODES = ["bash", str(ROOT / "tests" / "fault" / "two_nodes.sh"), "/nowhere/cut"]


def launcher_of(hosts):
    return [MPIEXEC, *MPI_FLAGS, "--host", hosts]


METER = str(ROOT / "tests" / "support" / "cable_meter.py")
HEADERS = 1.12  # of packets and buckets, and what else a short iteration says
SYNCS = 2       # that are looked at: between the lines of three iterations
STEPS = 8
# Weights of 20 MB in bf16, so that they are nearly all that an iteration sends; few tokens.
WIDE = SHAPE | {"hidden_size": 384, "head_dim": 64, "intermediate_size": 1536, "num_hidden_layers": 4}


class TwoHosts(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "wide").mkdir()
        (cls.folder / "wide" / "config.json").write_text(json.dumps(WIDE))
        cls.run_program("init", "--shape", "wide", "--output", "wide-model", "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer", "--dtype", "bf16")

    def setUp(self):
        if subprocess.run([*TWO_NODES, "true"], check=False, capture_output=True).returncode == SKIPPED:
            self.skipTest("no network namespaces here")
        probe = subprocess.run([*TWO_NODES, *launcher_of("n1:1,n2:2"), "-n", "3", "true"], check=False, capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"this launcher starts nothing on the other host: {probe.stderr}")

    def run_over_cable(self, command, run, hosts, ranks, *overrides, steps=SYNCS):
        """Lines of metrics, and what the first host took and sent from one of them to the next."""
        measured = self.folder / f"{run}.json"
        launcher = [*TWO_NODES, sys.executable, METER, str(measured), str(self.folder / run / "metrics.jsonl"), *launcher_of(hosts)]
        self.succeed(command, f"{command}.toml", f"run.dir={run}", f"run.iterations={steps + 1}", "model.path=wide-model", "model.dtype=bf16",
                     "ckpt.interval=0", "train.batch_size=8", "actor.adam.lr=1e-6", *overrides, ranks=ranks, launcher=launcher)
        seen = json.loads(measured.read_text())
        lines = self.metrics(run)
        return lines[1:], [[after - before for before, after in zip(seen[i], seen[i + 1], strict=True)] for i in range(1, len(lines))]

    def sync_over_cable(self, run, *overrides):
        lines, crossed = self.run_over_cable("ppo", run, "n1:1,n2:2", 3, "ranks.trainer=1", "ranks.generator=2", "algo.advantage.estimator=group_norm", *overrides)
        return lines, [sent for _, sent in crossed]

    def test_weights_cross_the_cable_once(self):
        whole, sent = self.sync_over_cable("whole", "weightsync.delta=false")
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
        changes, sent = self.sync_over_cable("changes")
        for line, crossed in zip(changes, sent, strict=True):
            sync = line["weight_sync"]
            print(f"\n    changes: by the program 1/{weights / sync['network_bytes']:.1f}, over the cable 1/{weights / crossed:.1f}", flush=True)
            self.assertLess(sync["sent_share"] * 20, 1)
            self.assertLess(crossed * 20, weights)
        self.assertEqual(self.samples("changes"), self.samples("whole"))

    # Two trainers on each. Half of the bf16 weights go either way; of the fp32 sums of gradients all go from the first host to the second one,
    # which has the last ranks, and the half that is the first one's comes back.
    def test_trainers_of_a_host_take_the_others_weights_once(self):
        def train(run, *overrides):
            """What the log says, and the means of a step: new weights may still be under way when its line is seen."""
            lines, crossed = self.run_over_cable("sft", run, "n1:2,n2:2", 4, *overrides, steps=STEPS)
            self.assertEqual(len(lines), STEPS)
            return (self.folder / run / "log.txt").read_text(), [sum(way) / STEPS / weights for way in zip(*crossed, strict=True)]
        weights = (self.folder / "wide-model" / "model.safetensors").stat().st_size
        text, once = train("once")
        self.assertIn("a window on each of 2 nodes", text)
        text, ring = train("ring", "train.node_weights=false")
        self.assertIn("MPI ring", text)
        for kind, (taken, sent) in (("once a node", once), ("ring", ring)):
            print(f"\n    {kind}: taken {taken:.3f}, sent {sent:.3f} of the weights' bytes", flush=True)
        for got, want in zip(once, (0.5 + 1, 0.5 + 2), strict=True):
            self.assertGreater(got, 0.95 * want)
            self.assertLess(got, HEADERS * want)
        # Two micro-batches of one row each: their gradients cross the cable one by one, or added up on each rank.
        for run, more, sums in (("each", [], 2), ("summed", ["train.reduce_once=true"], 1)):
            text, crossed = train(run, "train.micro_batch_tokens=1", *more)
            self.assertEqual("gradients summed once a step" in text, sums == 1)
            print(f"\n    two micro-batches, {run}: taken {crossed[0]:.3f}, sent {crossed[1]:.3f} of the weights' bytes", flush=True)
            for got, want in zip(crossed, (0.5 + sums, 0.5 + 2 * sums), strict=True):
                self.assertGreater(got, 0.95 * want)
                self.assertLess(got, HEADERS * want)
        self.assertEqual(timeless(self.metrics("once")), timeless(self.metrics("ring")))


if __name__ == "__main__":
    main()
