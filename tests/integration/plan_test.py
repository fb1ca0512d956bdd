#!/usr/bin/env python3
"""`trireme plan` as a user starts it: one process, config.json files only; what fits and what does not, machines by name and from a file, the search."""

import os
import pathlib
import re
import subprocess
import time

from trireme_run import PROGRAM, ROOT, ProgramTest, child_environment, main

CONFIGURATION, USAGE, MISSING = 78, 64, 66

H100 = """
name = "my-h100"
gpu_memory = "79.1 GiB"
host_memory = "1 TiB"
flops = 989e12
memory_speed = 3.35e12
node_link = 450e9
network = 50e9
host_link = 64e9
"""


class Plan(ProgramTest):
    def deck_70b(self, *more):
        return [f"{ROOT}/inputs/science/ppo_70b.toml", f"model.path={ROOT}/inputs/models/llama3-70b", f"reward.source.0.path={ROOT}/inputs/models/llama3-8b",
                'data.prompt_dataset=["elsewhere.jsonl"]', "--nodes", "4", "--gpus-per-node", "8", *more]

    def plan(self, *arguments, code=0):
        return self.succeed("plan", *arguments, code=code)

    def machine(self, name, text):
        (self.folder / name).write_text(text)
        return ["--machine", name]

    def test_the_shipped_deck_fits(self):
        began = time.monotonic()
        text = self.plan(*self.deck_70b("--machine", "h100")).out
        print(f"    the 70B deck was planned in {time.monotonic() - began:.2f} s", flush=True)
        for words in ("job: 4 nodes of 8 h100, 32 ranks", "actor: llama, 80 layers", "critic: llama, 32 layers", "role: trainer    ranks 0-31",
                      "memory of the fullest GPU", "generator: KV pages", "~ process: what the allocator keeps between tensors",
                      "not measured with Trireme"):
            self.assertIn(words, text)
        self.assertRegex(text, r"fits: +[0-9.]+ of +84\.93 GB of a GPU's memory")
        self.assertRegex(text, r"fits: +[0-9.]+ of +1099\.51 GB of a node's memory")

    def test_needs_no_mpi_and_writes_nothing(self):
        """Also where MPI could not start, and in a folder that nobody may write into."""
        folder = self.folder / "read-only"
        folder.mkdir(mode=0o555)
        environment = child_environment({"OMPI_MCA_pml": "no_such_component"})
        done = subprocess.run([PROGRAM, "plan", *self.deck_70b()], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(folder), [])

    def test_what_does_not_fit_is_said_with_what_would(self):
        text = self.plan(*self.deck_70b("train.optimizer_offload=false"), code=CONFIGURATION).out
        self.assertRegex(text, r"DOES NOT FIT: +[0-9.]+ of +84\.93 GB of a GPU's memory")
        self.assertIn("would fit: train.optimizer_offload=true", text)
        self.plan(*self.deck_70b("--machine", "a100-40"), code=CONFIGURATION)

    def test_a_machine_from_a_file_is_that_machine(self):
        """The same plan as by name; with less memory another verdict; with memory alone no times and no search."""
        named = self.plan(*self.deck_70b("--machine", "h100")).out
        filed = self.plan(*self.deck_70b(*self.machine("my.toml", H100))).out
        self.assertEqual(filed.replace("my-h100", "h100"), named)
        small = self.machine("small.toml", H100.replace("79.1 GiB", "40 GiB"))
        self.assertIn("DOES NOT FIT", self.plan(*self.deck_70b(*small), code=CONFIGURATION).out)
        bare = self.machine("bare.toml", 'gpu_memory = "79.1 GiB"\nhost_memory = "1 TiB"\n')
        text = self.plan(*self.deck_70b(*bare)).out
        self.assertIn("4 nodes of 8 bare,", text)
        self.assertNotIn("seconds of an iteration", text)
        refused = self.plan(*self.deck_70b(*bare, "--search"), code=USAGE)
        self.assertIn("--search needs a machine whose speeds are known", refused.text)

    def test_machines_that_are_none(self):
        refused = self.plan(*self.deck_70b("--machine", "h1000"), code=USAGE)
        self.assertIn("--machine h1000 is not known: h100, h200, a100-80, a100-40, gh200, this, or a file that ends in .toml", refused.text)
        self.assertIn("no-such.toml", self.plan(*self.deck_70b("--machine", "no-such.toml"), code=MISSING).text)
        typo = self.machine("typo.toml", H100.replace("node_link", "nod_link"))
        self.assertIn("typo.toml:7: nod_link is not a key of a machine (nearest: node_link)", self.plan(*self.deck_70b(*typo), code=CONFIGURATION).text)
        half = self.machine("half.toml", H100.replace("host_link = 64e9\n", ""))
        self.assertIn("host_link missing", self.plan(*self.deck_70b(*half), code=CONFIGURATION).text)

    def shipped(self):
        """Every deck under inputs/, and a job that it is for."""
        jobs = {"ppo_70b.toml": (4, 8, "h100"), "ppo_70b_16x8.toml": (16, 8, "h100"), "ppo_8b.toml": (1, 8, "h100"), "ppo_8b_a100_40.toml": (6, 4, "a100-40"),
                "grpo_70b_lora.toml": (1, 8, "h100"),
                "own.toml": (1, 8, "h100"), "grpo.toml": (1, 2, "h100")}
        for deck in sorted((ROOT / "inputs").rglob("*.toml")):
            yield deck.relative_to(ROOT), jobs.get(deck.name, (1, 2, "this"))

    def test_shipped_decks_need_none_of_their_files(self):
        """On a machine that has the decks and the shapes: no weights, tokenizers, prompts, labels or programs; from the repository and from elsewhere."""
        bare = self.folder / "bare"
        for path in [*(ROOT / "inputs").rglob("*.toml"), *(ROOT / "inputs").rglob("config.json")]:
            copy = bare / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        (self.folder / "elsewhere").mkdir()
        said = {}
        for number, (deck, (nodes, per_node, machine)) in enumerate(self.shipped()):
            with self.subTest(deck=deck.name):
                cwd, path = [(bare, deck), (self.folder / "elsewhere", bare / deck)][number % 2]
                done = subprocess.run([PROGRAM, "plan", path, "--nodes", str(nodes), "--gpus-per-node", str(per_node), "--machine", machine], cwd=cwd,
                                      env=child_environment({}), capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("fits:", done.stdout)
                said[deck.name] = done.stdout
        self.assertIn('assumed: model.path = "models/SmolLM2-135M-Instruct" is not here: planned by plan.model = "../models/smollm2-135m"',
                      said["arithmetic.toml"])
        self.assertIn('planned without it: data.prompt_dataset = "inputs/tutorial/data/arithmetic.jsonl" does not exist', said["arithmetic.toml"])
        self.assertIn('assumed: reward.source.0.path = "runs/tiny-rm/hf" is not here: planned as large as the actor', said["tiny-ppo-rm.toml"])
        self.assertIn("assumed: reward.source.0.path is not set: planned by plan.reward_model", said["ppo_70b.toml"])
        self.assertIn("planned without it: model.path is missing", said["ppo_8b.toml"])
        self.assertIn("planned for dpo, which needs most of sft, rm and dpo", said["tiny-sft.toml"])
        self.assertIn("planned without it: reward.source.0.command is missing", said["own.toml"])

    def test_files_that_are_here_are_taken(self):
        """What is here is not assumed: the same plan, whatever [plan] says."""
        without = self.plan("ppo.toml", "--machine", "h100").out
        with_others = self.plan("ppo.toml", "--machine", "h100", f"plan.model={ROOT}/inputs/models/llama3-8b", f"plan.reward_model={ROOT}/inputs/models/llama3-8b").out
        self.assertEqual(with_others, without)
        self.assertNotIn("assumed", without)
        self.assertNotIn("planned without", without)

    def test_a_shape_that_cannot_be_known(self):
        refused = self.plan("ppo.toml", "model.path=/no/such/model", code=MISSING)
        self.assertIn('model.path = "/no/such/model" is not here', refused.text)
        self.assertIn("set plan.model to a config.json or a folder with one", refused.text)
        (self.folder / "empty").mkdir()
        self.assertIn('model.path = "empty" is not here', self.plan("ppo.toml", "model.path=empty", code=MISSING).text)
        nowhere = self.plan("ppo.toml", "model.path=/no/such/model", "plan.model=nowhere", code=MISSING)
        self.assertIn('plan.model = "nowhere" has no config.json', nowhere.text)
        planned = self.plan("ppo.toml", "model.path=/no/such/model", "plan.model=shape").out
        self.assertIn('planned by plan.model = "shape"', planned)

    def test_pipelines_without_generation(self):
        """dpo holds more than rm, rm and sft hold what they train."""
        peaks = {}
        for command in ("sft", "rm", "dpo"):
            text = self.plan("sft.toml", "--command", command, "--gpus-per-node", "2", "--machine", "h100").out
            peaks[command] = float(re.search(r"fits: +([0-9.]+) of", text).group(1))
            self.assertIn("role: trainer    ranks 0-1", text)
            self.assertNotIn("seconds of an iteration", text)
        self.assertGreaterEqual(peaks["dpo"], max(peaks["sft"], peaks["rm"]))
        self.assertIn("--search is for ppo", self.plan("sft.toml", "--search", code=USAGE).text)
        self.assertIn("ppo.toml", self.plan("ppo.toml", "--command", "sft", "ranks.trainer=1", code=CONFIGURATION).text)

    def test_this_machine_is_its_cpus(self):
        text = self.plan("ppo.toml", "--gpus-per-node", "2", "--machine", "this").out
        self.assertIn("machine: this node's CPUs and the memory that is free now; its GPUs, if it has some, are not looked at", text)
        self.assertIn("memory of the fullest rank", text)
        self.assertNotIn("a GPU's memory", text)

    def test_keep_memory_decides_as_in_a_run(self):
        """Memory and time go by it; what fits below the peak of another phase is kept with a budget of nothing, too, and raises no peak."""
        def planned(*more):
            text = self.plan(*self.deck_70b("--machine", "h200", *more)).out
            kept = re.search(r"(\d+) of 80 blocks keep their activations \(train.keep_memory\)", text)
            times = re.search(r", train ([0-9.]+),", text)
            backward = re.search(r"  GB  +" + r"[0-9.]+ +" * 6 + r"([0-9.]+)", text)
            peak = re.search(r"fits: +([0-9.]+) of +150", text)
            return int(kept.group(1)) if kept else None, float(times.group(1)), float(backward.group(1)), peak.group(1)
        plain = "generate.keep_kv_memory=false"
        none, train_again, least, peak = planned(plain)
        self.assertIsNone(none)
        some, train_kept, more, _ = planned(plain, "train.keep_memory=0.5")
        self.assertTrue(0 < some <= 80, some)
        self.assertLess(train_kept, train_again)
        self.assertGreater(more, least)
        few, _, _, unchanged = planned(plain, "train.keep_memory=1 KiB")
        self.assertLess(few, some)
        self.assertEqual(unchanged, peak)

    def site_job(self, path):
        """Deck, nodes and GPUs of a node of a job that a site file describes, sourced as a user would."""
        kind = path.parent.parent.name
        told = {"PATH": os.environ["PATH"], "SBATCH_ACCOUNT": "project", "TRIREME_ACCOUNT": "project"}
        shell = f"set -eu; . {kind}/sites/{path.name} && echo \"${{TRIREME_DECK:-}}|$TRIREME_GPUS_PER_NODE|${{TRIREME_QSUB:-}}\""
        done = subprocess.run(["bash", "-c", shell], cwd=ROOT, env=told, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        deck, per_node, qsub = done.stdout.strip().split("|")
        asked = qsub if kind == "pbs" else path.read_text()
        default = re.search(r"TRIREME_DECK:=([^}]+)", next((ROOT / kind).glob("ppo_70b.*")).read_text())[1]
        return pathlib.Path(deck or default).name, re.search(r"(?:select|--nodes)=(\d+)", asked)[1], per_node

    def test_the_decks_of_the_site_files_fit(self):
        """With a twentieth to spare, on as many nodes as each file asks for; docs/user/batch.md says so."""
        a100_64 = self.machine("a100-64.toml", 'gpu_memory = "63 GiB"\nhost_memory = "460 GiB"\n')[1]
        machines = {"A100 of 80 GB": "a100-80", "A100 of 64 GB": a100_64, "A100 of 40 GB": "a100-40", "GH200": "gh200"}
        rows = re.findall(r"^\| `((?:slurm|pbs)/sites/\w+\.sh)` \| (.*?) \| (.*?) \| (.*?) \|$", (ROOT / "docs/user/batch.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted(row[0] for row in rows), sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/sites/*.sh")))
        for name, hardware, runs, says in rows:
            if not runs.startswith("on GPUs"):
                continue
            with self.subTest(site=name):
                deck, nodes, per_node = self.site_job(ROOT / name)
                self.assertEqual(says, f"`{deck}`, {nodes} nodes")
                gpu, kind = re.search(r"4 (.*?) a node", hardware)[1], deck[4:].split("_")[0].removesuffix(".toml")
                text = self.plan(f"{ROOT}/inputs/science/{deck}", f"model.path={ROOT}/inputs/models/llama3-{kind}",
                                 f"reward.source.0.path={ROOT}/inputs/models/llama3-8b", 'data.prompt_dataset=["elsewhere.jsonl"]', "--nodes", nodes,
                                 "--gpus-per-node", per_node, "--machine", machines[gpu]).out
                fits = re.findall(r"^fits: +([0-9.]+) of +([0-9.]+) GB of a (?:GPU|node)'s memory", text, re.MULTILINE)
                self.assertEqual(len(fits), 2, text)
                for peak, memory in fits:
                    self.assertLessEqual(float(peak), 0.95 * float(memory), text)

    def test_search_ranks_settings_that_start(self):
        """Among them the optimizer's state on the host; the fastest is planned by itself as it says."""
        text = self.plan(*self.deck_70b("--machine", "h100", "--search")).out
        lines = re.findall(r"^ +([0-9.]+) +(\d+) +([0-9.]+)  (colocated|ranks\.trainer.*?) (train\.async_depth=.*)$", text, re.MULTILINE)
        self.assertEqual(len(lines), 10, text)
        offloaded = ["train.optimizer_offload=true" in line[4] for line in lines]
        self.assertTrue(any(offloaded) and not all(offloaded), text)
        self.assertEqual([float(line[0]) for line in lines], sorted(float(line[0]) for line in lines))
        seconds, _, peak, split, overrides = lines[0]
        settings = ([] if split == "colocated" else split.split()) + overrides.split()
        alone = self.plan(*self.deck_70b("--machine", "h100", "generate.keep_kv_memory=false", *settings)).out  # the search shows what a job needs
        self.assertIn(f"together {seconds},", alone)
        self.assertAlmostEqual(float(re.search(r"fits: +([0-9.]+) of +84\.93", alone).group(1)), float(peak), delta=0.06)


if __name__ == "__main__":
    main()
