#!/usr/bin/env python3
"""By what ways weights, sums and samples travel: shared memory or messages, one node or several, whole or as changes, through queues of one
message. The run is the same, bit for bit."""

import math
import re
import shutil

from layout_runs import LAYOUTS, TENSOR_PARALLEL, LayoutTest
from trireme_run import BINARY_DIR, adversity, main, read_safetensors, timeless


class Transports(LayoutTest):
    def test_without_shared_memory(self):
        """A system where ranks cannot share memory: trainers and weight sync go on by messages, say so once each, and give the same."""
        layout = ["ranks.trainer=2", "ranks.generator=1", "run.iterations=2", "ckpt.interval=0"]
        self.succeed("ppo", self.deck, "run.dir=shared", *layout, ranks=3)
        result = self.succeed("ppo", self.deck, "run.dir=alone", *layout, ranks=3,
                              env={"LD_PRELOAD": str(BINARY_DIR / "tests" / "libno_shared_memory.so")})
        self.assertEqual(result.text.count("weight sync: 3 ranks send messages"), 1, result.text)
        self.assertEqual(self.samples("alone"), self.samples("shared"))
        # Actor, critic and reference take turns in one ring of each rank; in shared memory nothing is gathered.
        self.assertGreater(self.metrics("alone")[0]["memory"]["rings_weights"], 0)
        self.assertNotIn("rings_weights", self.metrics("shared")[0]["memory"])
        chosen = self.succeed("ppo", self.deck, "run.dir=never", *layout, "weightsync.shared_memory=never", ranks=3)
        self.assertNotIn("weight sync:", chosen.text)
        self.assertEqual(self.samples("never"), self.samples("shared"))
        for line, reference in zip(self.metrics("never"), self.metrics("shared"), strict=True):
            self.assertEqual(line["grad_norm"], reference["grad_norm"])

    def test_memory_of_somebody_else_is_not_written(self):
        """Ranks with process numbers of their own: what they find under the number of another one is not its memory."""
        layout = ["ranks.trainer=2", "ranks.generator=1", "run.iterations=1", "ckpt.interval=0"]
        victim = self.folder / "victim"
        victim.write_bytes(bytes(8 << 20))
        result = self.succeed("ppo", self.deck, "run.dir=foreign", *layout, ranks=3, env=adversity("foreign_memory", FOREIGN_FILE=str(victim)))
        self.assertEqual(result.text.count("weight sync: 3 ranks send messages"), 1, result.text)
        self.assertEqual(victim.read_bytes(), bytes(8 << 20))

    def test_a_node_takes_the_weights_once(self):
        """A node of trainers and two of two replicas each: a node gets every byte once from others, and its ranks share it or pass it on by messages;
        the run is that of one node, bit for bit."""
        layout = ["ranks.trainer=2", "ranks.generator=4", "model.dtype=bf16", "actor.adam.lr=2e-6", "run.iterations=3", "ckpt.interval=0"]
        self.succeed("ppo", self.deck, "run.dir=one-node", *layout, ranks=6)
        weights = 2 * sum(math.prod(shape) for _, shape, _ in read_safetensors(self.folder / "model" / "model.safetensors").values())
        for name, *more in (("rings", "weightsync.delta=false"), ("messages", "weightsync.delta=false", "weightsync.shared_memory=never"), ("deltas",)):
            with self.subTest(name):
                run = f"nodes-{name}"
                result = self.succeed("ppo", self.deck, f"run.dir={run}", *layout, *more, ranks=6, env=adversity("made_up_nodes", RANKS_OF_NODE="2"))
                self.assertEqual(self.samples(run), self.samples("one-node"))
                self.assertEqual(timeless(self.metrics(run)), timeless(self.metrics("one-node")))
                self.assertEqual(len([line for line in self.sync_lines(run) if "GB/s" in line]), 4, result.text)
                for line in self.metrics(run):
                    sync = line["weight_sync"]
                    self.assertEqual(sync["bytes"], weights)
                    if name == "deltas":
                        self.assertLess(sync["sent_share"] * 10, 1)
                        self.assertLess(sync["busiest_node_bytes"] * 10, weights)
                        continue
                    self.assertEqual(sync["network_bytes"], 2 * weights, "two nodes")
                    self.assertEqual(sync["busiest_node_bytes"], weights, "both alike")
                    self.assertEqual(sync["node_bytes"], 2 * weights, "what one rank took went to the other")
        self.succeed("ppo", self.deck, "run.dir=buckets", *layout, "weightsync.shared_memory=buckets", ranks=6)
        self.assertEqual(timeless(self.metrics("buckets")), timeless(self.metrics("one-node")))
        for line, packed in zip(self.metrics("one-node"), self.metrics("buckets"), strict=True):
            sync = line["weight_sync"]
            self.assertEqual(sync["network_bytes"], 0)
            self.assertEqual(sync["node_bytes"], 4 * weights)
            self.assertEqual(sync["in_place_bytes"], 4 * weights, "copied from the trainers' memory")
            self.assertEqual((packed["weight_sync"]["node_bytes"], packed["weight_sync"]["in_place_bytes"]), (4 * weights, 0))

    def test_colocated_ranks_share_the_weights(self):
        """Generators among the trainers of a node read their weights in place: nothing is copied, and the numbers are those of copies."""
        for name, ranks, roles in (("two", 2, []), ("one of two", 2, ["ranks.trainer=0-1", "ranks.generator=1-1"])):
            with self.subTest(layout=name):
                layout = [*roles, "run.iterations=2", "ckpt.interval=0", "run.log_level=debug"]
                self.succeed("ppo", self.deck, "run.dir=place", *layout, ranks=ranks)
                lines = self.sync_lines("place")
                self.assertEqual(len(lines), 3, "before the first iteration and after each")
                for line in lines:
                    self.assertIn("in shared memory, 0 bytes copied", line)
                self.succeed("ppo", self.deck, "run.dir=copies", *layout, "weightsync.shared_memory=never", ranks=ranks)
                self.assertFalse([line for line in self.sync_lines("copies") if "in shared memory" in line])
                self.assertEqual(self.samples("place"), self.samples("copies"))
                for mine, theirs in zip(self.metrics("place"), self.metrics("copies"), strict=True):
                    self.assertEqual(mine["grad_norm"], theirs["grad_norm"])
            for run in ("place", "copies"):
                shutil.rmtree(self.folder / run)

    def test_sums_of_tensor_parallel_ranks(self):
        """Through memory that the ranks share, or by MPI where they are told so, cannot share any, or lie on two nodes: the log says which, the texts are the same."""
        layout = ["generate.tensor_parallel=2", "run.iterations=2", "ckpt.interval=0", "run.log_level=info"]
        ways = {"shared": ([], {}, "memory that they share"), "told": (["generate.shared_sums=false"], {}, "MPI: generate.shared_sums = false"),
                "forbidden": ([], {"LD_PRELOAD": str(BINARY_DIR / "tests" / "libno_shared_memory.so")}, "MPI: cannot share"),
                "nodes": ([], adversity("made_up_nodes", RANKS_OF_NODE="1"), "MPI: they are on 2 nodes")}
        for name, (more, environment, way) in ways.items():
            with self.subTest(name):
                self.succeed("ppo", self.deck, f"run.dir=sums-{name}", *layout, *more, ranks=2, env=environment)
                log = (self.folder / f"sums-{name}" / "log.txt").read_text()
                self.assertIn(f"sums of the replica's 2 ranks through {way}", log)
                self.assertRegex(log, "free .host memory, " + ("rank [01]," if name == "nodes" else "ranks 0-1,"), "nodes of one name are two nodes")
                self.assertEqual(self.samples(f"sums-{name}"), self.samples("sums-shared"))

    def test_sft_on_two_nodes(self):
        """Two ranks on each of two nodes, with whole weights on each and without: the bits of one node."""
        nodes = adversity("made_up_nodes", RANKS_OF_NODE="2")
        runs = {"one": ({}, [], "shared window"), "two": (nodes, [], "a window on each of 2 nodes"), "ring": (nodes, ["train.node_weights=false"], "MPI ring")}
        for run, (env, overrides, kind) in runs.items():
            self.succeed("sft", "sft.toml", f"run.dir=nodes-{run}", *overrides, ranks=4, env=env)
            self.assertIn(f"sharded over 4 ranks by {kind}", (self.folder / f"nodes-{run}" / "log.txt").read_text())
            self.assertEqual(timeless(self.metrics(f"nodes-{run}")), timeless(self.metrics("nodes-one")))

    def test_gradients_in_half_precision(self):
        """train.reduce_dtype = "bf16": the same bits through memory and through messages, near those of fp32; the log says so."""
        messages = {"LD_PRELOAD": str(BINARY_DIR / "tests" / "libno_shared_memory.so")}
        runs = {"fp32": ([], None, 2), "window": (["train.reduce_dtype=bf16"], None, 2), "ring": (["train.reduce_dtype=bf16"], messages, 2),
                "one": (["train.reduce_dtype=bf16"], None, 1), "copies": (["train.reduce_dtype=bf16", "train.shard_group=2"], None, 4),
                "nodes": (["train.reduce_dtype=bf16"], adversity("made_up_nodes", RANKS_OF_NODE="2"), 4)}
        for run, (overrides, env, ranks) in runs.items():
            self.succeed("sft", "sft.toml", f"run.dir=half-{run}", *overrides, ranks=ranks, env=env)
            said = "gradients summed in bf16" in (self.folder / f"half-{run}" / "log.txt").read_text()
            self.assertEqual(said, ranks > 1 and run != "fp32", run)
            for ours, reference in zip(self.metrics(f"half-{run}"), self.metrics("half-fp32"), strict=True):
                self.assertTrue(math.isclose(ours["loss"], reference["loss"], rel_tol=1e-3), f"{run}: {ours['loss']} {reference['loss']}")
                self.assertTrue(math.isclose(ours["grad_norm"], reference["grad_norm"], rel_tol=1e-2), f"{run}: {ours['grad_norm']} {reference['grad_norm']}")
        self.assertEqual(timeless(self.metrics("half-ring")), timeless(self.metrics("half-window")))
        self.assertNotEqual(self.metrics("half-window")[-1]["grad_norm"], self.metrics("half-fp32")[-1]["grad_norm"])

    def test_gradients_reduced_once_a_step(self):
        """train.reduce_once: a step of several micro-batches near one that reduces with each, the same bits on one node, through messages and on two."""
        overrides = ["run.iterations=2", "ckpt.interval=0", "train.micro_batch_tokens=32"]
        messages, nodes = {"LD_PRELOAD": str(BINARY_DIR / "tests" / "libno_shared_memory.so")}, adversity("made_up_nodes", RANKS_OF_NODE="2")
        once = "train.reduce_once=true"
        runs = {"each": (2, [], None), "once": (2, [once], None), "once-ring": (2, [once], messages),
                "once-4": (4, [once], None), "once-nodes": (4, [once], nodes), "once-copies": (4, [once, "train.shard_group=2"], None)}
        for run, (ranks, more, env) in runs.items():
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, *more, ranks=ranks, env=env)
            text, lines = (self.folder / run / "log.txt").read_text(), self.metrics(run)
            for model in ("actor", "critic"):
                self.assertEqual(bool(re.search(f"{model}: sharded over .*, gradients summed once a step", text)), run != "each", text)
                self.assertEqual(lines[0]["memory"][f"{model}_gradient_sums"] > 0, run != "each")
            for name in ("policy_loss", "value_loss", "grad_norm", "critic_grad_norm"):
                ours, theirs = lines[0][name], self.metrics("each")[0][name]
                self.assertTrue(math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-6), f"{run}: {name} {ours} {theirs}")
        self.assertNotEqual(timeless(self.metrics("once")), timeless(self.metrics("each")), "several micro-batches in a step")
        self.assertEqual(timeless(self.metrics("once")), timeless(self.metrics("once-ring")))
        self.assertEqual(timeless(self.metrics("once-4")), timeless(self.metrics("once-nodes")))

    def test_queues_of_one_message(self):
        """However short the queues between the roles are, the run is the same, bit for bit, and does not stand still."""
        layouts = {name: (*LAYOUTS[name], []) for name in ("2 colocated", "1+1, reward apart", "3+1, reward with the generator", "2+2 replicas")}
        layouts["2+2 TP 2"] = (*TENSOR_PARALLEL, ["ranks.reward=2-3"])
        layouts["1+1 ahead"] = (*LAYOUTS["1+1"], ["train.async_depth=1"])
        layouts["1+1+1 ahead"] = (*LAYOUTS["1+1, reward apart"], ["train.async_depth=1"])
        for name, (ranks, roles, more) in layouts.items():
            with self.subTest(layout=name):
                overrides = [*roles, *more, "run.iterations=3", 'eval.dataset=["prompts.jsonl"]', "eval.steps=1"]
                usual = self.run_layout(name, ranks, overrides)
                short = self.run_layout(name, ranks, [*overrides, "rollout.queue_messages=1", "rollout.queue_bytes=1"])
                self.assertEqual(self.samples(short), self.samples(usual))
                self.assertEqual(timeless(self.metrics(short)), timeless(self.metrics(usual)))
                self.assertGreater(self.counts(short)["mail_held_back"], 0)
                for run in (usual, short):
                    shutil.rmtree(self.folder / run)


if __name__ == "__main__":
    main()
