#!/usr/bin/env python3
"""One deck and seed at many layouts of trainer, generator and reward ranks: the same prompts, tokens, losses and gradient
norms, whatever the ranks, and no layout hangs."""

import json
import math
import re
import shutil

from trireme_run import BINARY_DIR, RULE_SOURCE, ProgramTest, adversity, main, read_safetensors, timeless

# name -> (ranks, overrides)
LAYOUTS = {
    "2 colocated": (2, []),
    "1+1": (2, ["ranks.trainer=1", "ranks.generator=1"]),
    "1+1, reward apart": (3, ["ranks.trainer=1", "ranks.generator=1", "ranks.reward=1"]),
    "2+1": (3, ["ranks.trainer=2", "ranks.generator=1"]),
    "3+1": (4, ["ranks.trainer=3", "ranks.generator=1"]),
    "3+1, reward with the generator": (4, ["ranks.trainer=0-2", "ranks.generator=3-3", "ranks.reward=3-3"]),
    "2+2 replicas": (4, ["ranks.trainer=0-1", "ranks.generator=2-3"]),
    "2+1, generator among the trainers": (2, ["ranks.trainer=0-1", "ranks.generator=1-1"]),
}
TENSOR_PARALLEL = (4, ["ranks.trainer=0-1", "ranks.generator=2-3", "generate.tensor_parallel=2"])

# Terms of order one cancel in the losses; below this a difference is rounding, whatever the relative one.
ROUNDING = 1e-6
RELATIVE = 1e-5


class Layouts(ProgramTest):
    deck = "ppo.toml"
    runs = 0

    def run_layout(self, name, ranks, overrides):
        self.runs += 1  # every run has a folder of its own: another deck would be refused there
        run = "".join(c if c.isalnum() else "-" for c in f"{self._testMethodName}-{name}-{self.runs}")
        self.succeed("ppo", self.deck, f"run.dir={run}", "ckpt.interval=0", *overrides, ranks=ranks)
        return run

    def first_samples(self, run):
        return [(s["id"], s["prompt"], s["output_ids"], s["reward"]) for s in self.samples(run) if s["iteration"] == 1]

    def assert_same_numbers(self, run, reference, keys):
        mine, theirs = self.metrics(run)[0], self.metrics(reference)[0]
        for key in keys:
            self.assertTrue(math.isclose(mine[key], theirs[key], rel_tol=RELATIVE, abs_tol=ROUNDING),
                            f"{run}: {key} = {mine[key]} against {theirs[key]}")
        self.assertEqual(mine["tokens"], theirs["tokens"], run)

    def compare_all(self, layouts, keys, overrides):
        reference = self.run_layout("1", 1, overrides)
        samples = self.first_samples(reference)
        self.assertGreater(len({len(s[2]) for s in samples}), 1, "answers should differ in length")
        self.assertGreater(len({s[3] for s in samples}), 1, "rewards should differ")
        for key in keys:
            self.assertGreater(abs(self.metrics(reference)[0][key]), 100 * ROUNDING, f"{key} says nothing")
        for name, (ranks, roles) in layouts.items():
            with self.subTest(layout=name):
                run = self.run_layout(name, ranks, roles + overrides)
                self.assertEqual(self.first_samples(run), samples)
                self.assert_same_numbers(run, reference, keys)

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
        result = self.succeed("ppo", self.deck, "run.dir=buckets", *layout, "weightsync.shared_memory=buckets", ranks=6)
        self.assertNotIn("read in place", result.text)
        self.assertEqual(timeless(self.metrics("buckets")), timeless(self.metrics("one-node")))
        for line, packed in zip(self.metrics("one-node"), self.metrics("buckets"), strict=True):
            sync = line["weight_sync"]
            self.assertEqual(sync["network_bytes"], 0)
            self.assertEqual(sync["node_bytes"], 4 * weights)
            self.assertEqual(sync["in_place_bytes"], 4 * weights, "copied from the trainers' memory")
            self.assertEqual((packed["weight_sync"]["node_bytes"], packed["weight_sync"]["in_place_bytes"]), (4 * weights, 0))

    def sync_lines(self, run):
        return [line for line in (self.folder / run / "log.txt").read_text().splitlines() if "weight sync " in line]

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

    def test_deltas_carry_the_changes_of_all_steps(self):
        """Several optimizer steps between two syncs: what any of them changed is sent, and the memory of both sides is compared."""
        layout = ["ranks.trainer=1", "ranks.generator=1", "weightsync.shared_memory=never", "model.dtype=bf16", "actor.adam.lr=2e-6",
                  "run.iterations=3", "train.max_epochs=3", "ckpt.interval=0", "run.log_level=debug"]
        result = self.succeed("ppo", self.deck, "run.dir=deltas", *layout, ranks=2)
        self.assertNotIn("sent again", result.text)
        self.assertGreater(self.metrics("deltas")[0]["optimizer_steps"], 1)
        self.assertTrue(any("deltas: 1/" in line for line in self.sync_lines("deltas")), self.sync_lines("deltas"))
        self.succeed("ppo", self.deck, "run.dir=whole", *layout, "weightsync.delta=false", ranks=2)
        self.assertFalse(any("deltas: 1/" in line for line in self.sync_lines("whole")))
        for line in self.metrics("deltas"):  # every group changes; the few values of an update this small do not make the whole
            changed = {key: share for key, share in line["weight_sync"].items() if key.startswith("changed_")}
            self.assertEqual(set(changed), {"changed_embedding", "changed_head", "changed_layers_0_0", "changed_layers_1_1"})
            self.assertTrue(all(0 < share < 1 for name, share in changed.items() if name != "changed_head"), changed)
        self.assertFalse([key for line in self.metrics("whole") for key in line["weight_sync"] if key.startswith("changed_")])
        self.assertEqual(self.samples("deltas"), self.samples("whole"))

    def test_memory_that_went_wrong_is_healed(self):
        """A generator's weights change under the run after a sync by deltas: it is seen, everything is sent again, and the run is the same."""
        layout = ["ranks.trainer=1", "ranks.generator=1", "weightsync.shared_memory=never", "run.iterations=3", "ckpt.interval=0"]
        self.succeed("ppo", self.deck, "run.dir=sound", *layout, ranks=2)
        result = self.succeed("ppo", self.deck, "run.dir=healed", *layout, 'fault.at=["nan:1:generator:3"]', ranks=2)
        self.assertIn("rank 1 differs from the trainers in 1 tensors: model.embed_tokens.weight: all weights are sent again", result.text)
        self.assertEqual([line.get("healed_syncs", 0) for line in self.metrics("healed")], [0, 1, 1])
        self.assertNotIn("healed_syncs", self.metrics("sound")[-1])
        self.assertEqual(self.samples("healed"), self.samples("sound"))

    def counts(self, run):
        return json.loads((self.folder / run / "summary.json").read_text())["counts"]

    def test_guards_of_a_run(self):
        """Each guard that the run has tells what it cost."""
        self.succeed("ppo", self.deck, "run.dir=guarded", "run.iterations=2", "train.shard_group=1", "train.replica_check=1", "ckpt.interval=1", ranks=2)
        guards = json.loads((self.folder / "guarded" / "summary.json").read_text())["guards"]
        self.assertEqual(sorted(guards), ["collectives", "inputs", "liveness", "read_back", "replicas", "share"])
        self.assertGreaterEqual(guards.pop("liveness"), 0)  # its thread looks round seldom: not once in a run of a fraction of a second
        self.assertTrue(all(seconds > 0 for seconds in guards.values()), guards)

    def test_blocks_are_kept_where_memory_allows(self):
        """As many as the budget holds; the numbers are those of a run that computes all of them again."""
        for ranks in (1, 2):
            run = {}
            for name, setting, kept in (("again", "train.recompute=-1", None), ("share", "train.keep_memory=0.5", "2"), ("bytes", "train.keep_memory=1 KiB", "[0-2]")):
                made = self.succeed("ppo", self.deck, f"run.dir={name}-{ranks}", "ckpt.interval=0", "run.log_level=info", setting, ranks=ranks)
                if kept is not None:
                    self.assertRegex(made.text, rf"{kept} of 2 blocks keep their activations \(train.keep_memory\)")
                run[name] = timeless(self.metrics(f"{name}-{ranks}"))
            self.assertEqual(run["share"], run["again"])
            self.assertEqual(run["bytes"], run["again"])

    def test_logits_are_kept_or_computed_again(self):
        """From the loss to their gradient, as many as the deck's bytes hold; the numbers are those of a run that computes all of them twice."""
        for ranks in (1, 2):
            run, again = {}, {}
            for name, setting in (("twice", "train.logits_memory=0"), ("some", "train.logits_memory=96 KiB"), ("once", "train.logits_memory=1 GiB")):
                self.succeed("ppo", self.deck, f"run.dir={name}-{ranks}", "ckpt.interval=0", "actor.entropy_coef=0.01", setting, ranks=ranks)
                run[name] = timeless(self.metrics(f"{name}-{ranks}"))
                again[name] = self.counts(f"{name}-{ranks}").get("logits_computed_again", 0)
            self.assertEqual(run["some"], run["twice"])
            self.assertEqual(run["once"], run["twice"])
            self.assertEqual(again["once"], 0)
            self.assertLessEqual(again["some"], again["twice"])
            self.assertGreater(again["twice"], 0)

    def test_counts_of_a_run(self):
        """What the loop itself computed and moved: every prompt once for its samples, every token once per pass, no padding, no copies."""
        for ranks, more in ((1, []), (2, []), (3, ["ranks.trainer=2", "ranks.generator=1"])):
            layout = ["run.iterations=2", "train.max_epochs=2", "rollout.n_samples_per_prompt=4", "ckpt.interval=0", *more]
            with self.subTest(ranks=ranks):
                self.succeed("ppo", self.deck, "run.dir=counted", *layout, ranks=ranks)
                counts, lines = self.counts("counted"), self.metrics("counted")
                tokens = sum(line["tokens"] for line in lines)
                answers = round(sum(line["response_length"] * 16 for line in lines))  # four prompts of four samples each
                self.assertEqual(counts["actor_positions_trained"], 2 * tokens, "each sequence once an epoch, nothing padded")
                self.assertEqual(counts["step_tokens"], 2 * tokens)
                self.assertLess(counts["step_tokens_if_full"], 1.2 * 2 * tokens, "trainers have about as much of each step, in each epoch")
                self.assertEqual(4 * counts["prompt_tokens_computed"], tokens - answers, "a prompt once for its samples")
                self.assertLessEqual(counts["tokens_decoded"], answers, "one row for a token")
                if more:
                    self.assertGreater(counts["weight_sync_bytes_copied"], 0)
                else:
                    self.assertEqual(counts["weight_sync_bytes_copied"], 0)
                    self.assertGreater(counts["kv_cache_bytes_kept"], 0, "beside trainers: this machine has room for both")
                    self.assertEqual(counts.get("kv_cache_bytes_given_back", 0), 0)
                    self.succeed("ppo", self.deck, "run.dir=lean", *layout, "generate.keep_kv_memory=false", ranks=ranks)
                    self.assertGreater(self.counts("lean")["kv_cache_bytes_given_back"], 0, "while the trainers of the same ranks work")
                    self.assertEqual(self.counts("lean").get("kv_cache_bytes_kept", 0), 0)
                    self.assertEqual(self.samples("lean"), self.samples("counted"))
                    self.assertEqual(timeless(self.metrics("lean")), timeless(lines))
                    shutil.rmtree(self.folder / "lean")
                shutil.rmtree(self.folder / "counted")

    def test_gae(self):
        self.compare_all(LAYOUTS, ["policy_loss", "value_loss", "grad_norm", "critic_grad_norm"],
                         ["run.iterations=2", "train.max_epochs=2"])

    def test_group_norm(self):
        layouts = {name: LAYOUTS[name] for name in ("2 colocated", "3+1")}
        self.compare_all(layouts, ["policy_loss", "grad_norm"],
                         ["run.iterations=2", "train.max_epochs=2", "algo.advantage.estimator=group_norm",
                          "rollout.n_samples_per_prompt=4", "train.batch_size=8"])

    def test_tensor_parallel_generators(self):
        """Sums have another order: a draw near a boundary may fall to the other side, in at most 1 % of the rows."""
        overrides = ["run.iterations=1", "train.max_epochs=2", "rollout.n_samples_per_prompt=32", "train.batch_size=128"]
        reference = self.run_layout("1", 1, overrides)
        run = self.run_layout("2+2 TP 2", TENSOR_PARALLEL[0], TENSOR_PARALLEL[1] + overrides)
        mine, theirs = self.first_samples(run), self.first_samples(reference)
        self.assertEqual([s[:2] for s in mine], [s[:2] for s in theirs])
        different = sum(a != b for a, b in zip(mine, theirs))
        print(f"\n    tensor parallel: {different} of {len(mine)} rows differ", flush=True)
        self.assertLessEqual(different, len(mine) // 100)
        if different == 0:
            self.assert_same_numbers(run, reference, ["policy_loss", "value_loss", "grad_norm"])

    def test_sums_of_tensor_parallel_ranks(self):
        """Through memory that the ranks share, or by MPI where they are told so, cannot share any, or lie on two nodes: the log says which, the texts are the same."""
        layout = ["generate.tensor_parallel=2", "run.iterations=2", "ckpt.interval=0", "run.log_level=info"]
        ways = {"shared": ([], {}, "memory that they share"), "told": (["generate.shared_sums=false"], {}, "MPI: generate.shared_sums = false"),
                "forbidden": ([], {"LD_PRELOAD": str(BINARY_DIR / "tests" / "libno_shared_memory.so")}, "MPI: cannot share"),
                "nodes": ([], adversity("made_up_nodes", RANKS_OF_NODE="1"), "MPI: they are on 2 nodes")}
        for name, (more, environment, way) in ways.items():
            with self.subTest(name):
                result = self.succeed("ppo", self.deck, f"run.dir=sums-{name}", *layout, *more, ranks=2, env=environment)
                self.assertIn(f"sums of the replica's 2 ranks through {way}", result.text)
                self.assertRegex(result.text, "free .host memory, " + ("rank [01]," if name == "nodes" else "ranks 0-1,"), "nodes of one name are two nodes")
                self.assertEqual(self.samples(f"sums-{name}"), self.samples("sums-shared"))

    def test_unequal_work(self):
        """Three trainers with four sequences, then with two: some have one, some none, and nobody waits for ever."""
        for sequences in (4, 2):
            with self.subTest(sequences=sequences):
                overrides = [f"rollout.batch_size={sequences}", "rollout.n_samples_per_prompt=1", f"train.batch_size={sequences}",
                             "run.iterations=1"]
                self.compare_all({"3 colocated": (3, []), "3+1": LAYOUTS["3+1"]}, ["value_loss", "grad_norm"], overrides)

    def test_reward_model(self):
        """A reward model is sharded over the reward ranks, wherever these are; here the critic of a short run."""
        self.succeed("ppo", "ppo.toml", "run.dir=for-judge", "run.iterations=1")
        self.succeed("convert", "for-judge", "judge", "--part", "critic", "--dtype", "fp32")
        self.deck = self.deck_with("judged.toml", RULE_SOURCE, '[[reward.source]]\nkind = "model"\npath = "judge"\n')
        layouts = {name: LAYOUTS[name] for name in ("2 colocated", "1+1, reward apart", "3+1, reward with the generator")}
        self.compare_all(layouts, ["value_loss", "grad_norm", "reward"],
                         ["run.iterations=1", "train.max_epochs=2"])

    def test_sft(self):
        self.succeed("sft", "sft.toml", "run.dir=sft-1")
        theirs = self.metrics("sft-1")
        self.assertLess(theirs[-1]["loss"], theirs[0]["loss"])
        for ranks, overrides in ((2, []), (3, []), (4, ["train.shard_group=2"])):
            run = f"sft-{ranks}"
            self.succeed("sft", "sft.toml", f"run.dir={run}", *overrides, ranks=ranks)
            for ours, reference in zip(self.metrics(run), theirs, strict=True):
                for key in ("loss", "grad_norm"):
                    self.assertTrue(math.isclose(ours[key], reference[key], rel_tol=10 * RELATIVE), f"{run}: {key} {ours} {reference}")

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

    def test_bf16(self):
        """Weights travel and compute in bf16; one rank and two see the same first rollout."""
        overrides = ["run.iterations=2", "model.dtype=bf16"]
        reference = self.run_layout("1", 1, overrides)
        run = self.run_layout("2", 2, overrides)
        self.assertEqual(self.first_samples(run), self.first_samples(reference))

    def test_dynamic_filtering_and_evaluation(self):
        """Groups without a spread of rewards are drawn again; held-out prompts are scored; both the same at every layout."""
        overrides = ["run.iterations=2", "algo.dynamic_filtering_enable=true", "algo.advantage.estimator=group_norm",
                     "rollout.n_samples_per_prompt=4", "train.batch_size=8", "reward.source.0.length_weight=0",
                     "algo.dynamic_filtering_range=[0.1, 0.9]", 'eval.dataset=["prompts.jsonl"]', "eval.steps=1"]
        reference = self.run_layout("1", 1, overrides)
        run = self.run_layout("2+1", *LAYOUTS["2+1"][:1], LAYOUTS["2+1"][1] + overrides)
        self.assertEqual(self.first_samples(run), self.first_samples(reference))
        self.assertEqual(len(self.first_samples(run)), 16)
        rewards = {}
        for sample in self.first_samples(run):
            rewards.setdefault(sample[1], []).append(sample[3])
        for prompt, values in rewards.items():
            self.assertTrue(0.1 < sum(values) / len(values) < 0.9, (prompt, values))
        self.assert_same_numbers(run, reference, ["policy_loss", "grad_norm", "eval_reward", "eval_pass1"])

    def test_hybrid_sharding(self):
        self.compare_all({"2 x 2": (4, ["train.shard_group=2"]), "3 x 1": (3, ["train.shard_group=1"])},
                         ["policy_loss", "value_loss", "grad_norm"], ["run.iterations=2", "train.max_epochs=2"])

    def test_frozen_models_obey_the_shard_group(self):
        """The reference and a reward model: each group has a copy, as the log says once, and the first rollout is scored as by one copy, to the bit."""
        self.succeed("ppo", "ppo.toml", "run.dir=for-frozen", "run.iterations=1", "ckpt.save_hf=end", ranks=2)
        self.succeed("convert", "for-frozen", "frozen-judge", "--part", "critic", "--dtype", "fp32")
        deck = self.deck_with("frozen.toml", RULE_SOURCE, '[[reward.source]]\nkind = "model"\npath = "frozen-judge"\n')
        for group in (0, 2):
            self.succeed("ppo", deck, f"run.dir=frozen-{group}", f"train.shard_group={group}", "run.iterations=1", "algo.kl.init_coef=0.1",
                         "reference.path=for-frozen/hf", ranks=4)
            log = (self.folder / f"frozen-{group}" / "log.txt").read_text()
            for name in ("reference", "model0"):
                self.assertEqual(re.findall(rf"{name}: sharded over (\d+) ranks", log), [str(group or 4)], log)
        one, two = self.metrics("frozen-0")[0], self.metrics("frozen-2")[0]
        for key in ("reward", "kl"):
            self.assertEqual(one[key], two[key], key)

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

    def test_sequences_are_taken_while_others_are_written(self):
        run = self.run_layout("2", 2, ["run.iterations=1"])
        self.assertGreater(self.counts(run)["sequences_received_while_writing"], 0)

    def test_one_step_ahead(self):
        """With async_depth = 1 the second batch comes from the weights before the first update; the first is as ever."""
        overrides = ["train.async_depth=1", "train.max_epochs=2"]
        layouts = {"1+1": LAYOUTS["1+1"], "2+1": LAYOUTS["2+1"]}
        self.compare_all(layouts, ["policy_loss", "value_loss", "grad_norm"], overrides)


if __name__ == "__main__":
    main()
