#!/usr/bin/env python3
"""The memory ledger before and after a run: a job that cannot fit is refused before a weight is read, one that fits goes on, and what was
planned stands beside what was measured."""

import json
import re
import resource

from trireme_run import ROOT, ProgramTest, adversity, main, timeless

OUT_OF_MEMORY = 71
CONFIGURATION = 78


class Memory(ProgramTest):
    def small_node(self, megabytes):
        return adversity("small_node", SMALL_NODE_MB=str(megabytes))

    def test_70b_is_refused_before_a_weight_is_made(self):
        """The shipped deck on this machine as it is: 1.1 TB of states in fp32."""
        for ranks in (1, 2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            result = self.run_program("ppo", "ppo.toml", "run.dir=large", "model.path=\"\"", f"model.shape={ROOT}/inputs/models/llama3-70b",
                                      f"model.tokenizer={self.folder}/model", ranks=ranks)
            self.assertEqual(result.code, CONFIGURATION, result.text)
            self.assertEqual(result.text.count("error: "), 1, result.text)
            message = result.text[result.text.index("error: "):]
            for words in ("needs more memory than there is", "planned peak", "free", "actor: Adam's moments", "~", "estimated",
                          'run.memory_check = "warn"'):
                self.assertIn(words, message)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            self.assertLess(peak, max(before, 3 << 20), "kB: no weights were made")
            self.assertFalse((self.folder / "large" / "metrics.jsonl").exists())

    def test_a_small_node_refuses_and_says_what_fits(self):
        """The limit lies between what the deck needs with long micro-batches and what it needs with short ones."""
        long = ["data.max_len=240", "rollout.max_new_tokens=200", "rollout.batch_size=256", "train.batch_size=512"]
        micro_batch = "train.micro_batch_tokens=65536"
        plan = self.planned("ppo", "ppo.toml", "run.dir=plan-long", *long, micro_batch, only_plan=True)
        enough = int(plan * 1e9 / 2**20) + 1  # MiB
        refused = self.run_program("ppo", "ppo.toml", "run.dir=small", *long, micro_batch, env=self.small_node(enough - 20), ranks=1)
        self.assertEqual(refused.code, CONFIGURATION, refused.text)
        self.assertRegex(refused.text, r"fits: train\.micro_batch_tokens=\d+")
        change = re.search(r"fits: (train\.micro_batch_tokens=\d+)", refused.text).group(1)
        cured = self.run_program("ppo", "ppo.toml", "run.dir=small", "run.iterations=1", *long, change, env=self.small_node(enough - 20), ranks=1)
        self.assertNotEqual(cured.code, CONFIGURATION, cured.text)

    def planned(self, *arguments, only_plan=False, **options):
        """GB that the log plans on the host. `only_plan`: on a node without memory, so that nothing is run."""
        env = self.small_node(1) if only_plan else None
        result = self.run_program(*arguments, env=env, **options)
        self.assertEqual(result.code, CONFIGURATION if only_plan else 0, result.text)
        return float(re.search(r"memory: planned peak ([0-9.]+) GB of", result.text).group(1))

    def log(self, run):
        return (self.folder / run / "log.txt").read_text()

    def test_caches_stay_beside_trainers_where_there_is_room(self):
        """A tenth of the memory is to be left; where it is not, the pages are given back, and the run is the same."""
        roomy = self.succeed("ppo", "ppo.toml", "run.dir=roomy", "run.iterations=2", ranks=2)
        self.assertRegex(self.log("roomy"), "memory: KV pages of at most .* a rank stay where they are while trainers of the rank work")
        enough = float(re.search(r"memory: planned peak ([0-9.]+) GB of", roomy.text).group(1)) * 1e9 / 2**20
        self.succeed("ppo", "ppo.toml", "run.dir=tight", "run.iterations=2", env=self.small_node(int(1.06 * enough)), ranks=2)
        self.assertIn("are given back while trainers of the rank work (beside them they would leave less than a tenth of the memory)", self.log("tight"))
        for run, count in (("roomy", "kv_cache_bytes_kept"), ("tight", "kv_cache_bytes_given_back")):
            self.assertGreater(json.loads((self.folder / run / "summary.json").read_text())["counts"][count], 0)
        self.assertEqual(self.samples("tight"), self.samples("roomy"))
        self.assertEqual(timeless(self.metrics("tight")), timeless(self.metrics("roomy")))

    def test_warn_goes_on(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=warned", "run.iterations=1", "run.memory_check=warn", env=self.small_node(20), ranks=2)
        self.assertIn("needs more memory than there is", result.text)
        self.assertEqual(len(self.metrics("warned")), 1)

    def test_all_ranks_leave_alike(self):
        result = self.run_program("sft", "sft.toml", "run.dir=refused-sft", env=self.small_node(20), ranks=3)
        self.assertEqual(result.code, CONFIGURATION, result.text)
        self.assertEqual(result.text.count("error: "), 1, result.text)

    def test_planned_beside_measured(self):
        """The plan covers what the run takes, and is not far above it: the models are small, most of both is the libraries."""
        for command, deck in (("ppo", "ppo.toml"), ("sft", "sft.toml")):
            result = self.succeed(command, deck, f"run.dir=measured-{command}", "run.iterations=2", ranks=2)
            self.assertRegex(result.text, r"memory: planned peak [0-9.]+ GB of [0-9.]+ GB free \(host memory, ranks 0-1, in ")
            self.assertRegex(result.text, r"memory: host peak [0-9.]+ GB planned, [0-9.]+ GB measured")
            memory = self.metrics(f"measured-{command}")[-1]["memory"]
            print(f"    {command}: planned {memory['planned_host_peak'] / 1e6:.0f} MB, measured {memory['host_peak'] / 1e6:.0f} MB", flush=True)
            summary = json.loads((self.folder / f"measured-{command}" / "summary.json").read_text())
            self.assertEqual(summary["last"]["memory"]["planned_host_peak"], memory["planned_host_peak"])
            self.assertLess(memory["host_peak"], 1.1 * memory["planned_host_peak"])
            self.assertLess(memory["planned_host_peak"], 2 * memory["host_peak"])
            for line in self.metrics(f"measured-{command}"):
                memory = line["memory"]
                peaks = [memory[f"{name}_host_peak"] for name in ("start", "train", *(("rollout", "reward", "sync") if command == "ppo" else ()))]
                self.assertTrue(all(0 < peak <= memory["host_peak"] for peak in peaks), memory)
                self.assertGreater(max(peaks), 0.9 * memory["host_peak"], "some phase has reached the peak")

    def test_an_allocation_that_fails_is_told(self):
        """Amount, place, this rank's plan and what would need less; alone, beside others, and where all ranks agree on the failure."""
        long = ["data.max_len=240", "rollout.max_new_tokens=200", "rollout.batch_size=256", "train.batch_size=512", "train.micro_batch_tokens=65536"]
        for run, ranks, place, phase, overrides, advice in (
                ("alone", 1, "0:train:2", "backward|forward|head|step|log-probs", [], "no change of the deck needs a fifth less"),
                ("one", 2, "1:rollout:1", "rollout", long, "needs a fifth less: train.micro_batch_tokens="),
                ("together", 2, "*:load weights:1", "start", long, "needs a fifth less: train.micro_batch_tokens=")):
            with self.subTest(run=run):
                result = self.run_program("ppo", "ppo.toml", f"run.dir=fails-{run}", *overrides, f'fault.at=["alloc_fail:{place}"]', ranks=ranks)
                self.assertEqual(result.code, OUT_OF_MEMORY, result.text)
                region = place.split(":")[1]
                self.assertRegex(result.text, rf"out of memory: 1024\.0 PiB of host memory could not be had \([^)]*{region}[ 0-9]*\)")
                self.assertRegex(result.text, rf"planned for ({phase}) on this rank: ")
                for words in ("process: ", "this process holds ", "free: ", advice):
                    self.assertIn(words, result.text)


if __name__ == "__main__":
    main()
