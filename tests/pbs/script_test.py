#!/usr/bin/env python3
"""What pbs/trireme.pbs itself decides, with a shell script in place of the program: which exit codes come back, what is
launched under which MPI, which GPU and network card each rank gets, and what it says of wrong settings. Standard library only.
"""

import json
import os
import re
import shutil
import subprocess
import sys

from pbs_run import ROOT, SCRIPT, Pbs, main
from stand_in import StandInTest


class Script(StandInTest):
    def test_exit_codes(self):
        # plan, settings, exit codes of the jobs that come of it, words in the log
        cases = [
            ("0 8", {}, [0], "finished at step 8"),
            ("75 5,75 6,0 8", {}, [75, 75, 0], "(restart 1): stopped at step 5 before the walltime"),
            ("75 5,75 6", {"TRIREME_MAX_RESTARTS": 1}, [75, 75], "TRIREME_MAX_RESTARTS=1 is reached"),
            ("139 3,0 8", {}, [139, 0], "from step 0 to step 3 (retry 1 of 3 without a new checkpoint)"),
            # a budget without progress, which starts anew with every checkpoint
            ("139 0,0 8", {}, [139, 0], "from step 0 to step 0 (retry 1 of 3"),
            ("70 3,70 3,70 3,0 4", {"TRIREME_MAX_RETRIES": 2}, [70, 70, 70], "stopped after 2 retries without a new checkpoint"),
            ("71 1,137 2,143 3,134 4,0 5", {"TRIREME_MAX_RETRIES": 1}, [71, 137, 143, 134, 0], "finished at step 5"),
            ("70 1,75 2,70 2,70 2,0 4", {"TRIREME_MAX_RETRIES": 1}, [70, 75, 70, 70], "stopped after 1 retries"),
            ("65 3", {}, [65], "exit code 65: a retry cannot help"),
            ("73 0", {"TRIREME_LOCK_WAIT": 0}, [73], "exit code 73: a retry cannot help"),
            # once more after a pause, in the same job
            ("74 3,0 8", {}, [0], "exit code 74: one more try in 0 s"),
            ("74 3,69 5,74 6,0 8", {}, [0], "finished at step 8"),  # each behind a new checkpoint
            ("74 3,74 3,0 8", {}, [74], "exit code 74: a retry cannot help"),
            ("69 0,69 0,0 8", {}, [69], "exit code 69: a retry cannot help"),
            # the launcher ends ranks that leave late and reports that; the program's own verdict counts
            ("143 0 0 73", {"TRIREME_LOCK_WAIT": 0}, [73], "exit code 73: a retry cannot help"),
            ("143 3 0 65", {}, [65], "the launcher reports exit code 143, the program 65: 65 counts"),
            ("1 5 0 75,0 8", {}, [75, 0], "(restart 1): stopped at step 5 before the walltime"),
            ("1 3 0 71,0 8", {}, [71, 0], "exit code 71, from step 0 to step 3 (retry 1 of 3"),
        ]
        self.install()
        for number, (plan, settings, _, _) in enumerate(cases):
            self.submit(plan, run=f"case-{number}", **settings)
        self.pbs.wait(self.pbs.all_ended, "the end of all jobs")
        for number, (plan, _, expected, words) in enumerate(cases):
            with self.subTest(plan=plan):
                mine = [job for job in self.pbs.jobs() if job["name"] == f"case-{number}"]
                log = "\n".join(self.pbs.log(job) for job in mine)
                self.assertEqual([job.get("exit") for job in mine], expected, log)
                self.assertIn(words, log)

    def test_end_by_pbs_at_the_walltime(self):
        """TERM after the walltime is not qdel: the run comes back when it made steps, whatever mpirun returned."""
        self.install(walltime_after=str(self.folder / "run.waits"), kill_delay=60)
        self.submit("1 3 10,0 8", options=("-l", "select=1:mpiprocs=1,walltime=00:00:02"))
        exits = self.exit_codes()
        self.assertIn("term walltime", self.pbs.events())
        self.assertEqual(exits, [-29, 0], self.log)
        self.assertIn("ended by PBS at the walltime (exit code 1), from step 0 to step 3", self.log)

    def test_a_launcher_that_does_not_end(self):
        """mpirun stands there when its ranks are gone: it is killed, and the run comes back."""
        rank = self.folder / "home" / "build" / "release" / "trireme-rank"
        shutil.copy(shutil.which("sleep"), rank)  # a process of the program, as the system sees it
        for name in ("mpiexec", "mpirun"):
            path = self.folder / "bin" / name
            path.write_text(path.read_text().replace("while [", f'mkdir {self.folder}/once 2>/dev/null && {{ {rank} 2; exec sleep 100; }}\nwhile [', 1))
        self.assertEqual(self.run_jobs("0 8", TRIREME_LAUNCHER_GRACE=2), [137, 0])
        self.assertIn("the launcher has not ended in 2 s behind the ranks of this node: killed", self.log)
        self.assertIn("finished at step 8", self.log)

    def test_wrong_settings(self):
        exits = self.run_jobs(TRIREME_RUN_DIR="", TRIREME_MODEL="/no/such/model", TRIREME_MAX_RETRIES="many")
        self.assertEqual(exits, [78])
        for words in ("TRIREME_RUN_DIR is empty", "TRIREME_MODEL=/no/such/model cannot be read",
                      "TRIREME_MAX_RETRIES=many is not a number"):
            self.assertIn(words, self.log)
        self.assertFalse(self.text("launches"))

    def test_quotes_do_not_survive_pbs(self):
        self.install()
        for value in ('a.b="c"', "a.b='c'", "a.b=\\c"):
            result = self.dry_run(TRIREME_OVERRIDES=value)
            self.assertIn("has a quote or a backslash", result.stderr, value)
            self.assertIn("put that key into the deck", self.dry_run(TRIREME_SWEEP=value).stderr)

    def test_deck_of_the_project_needs_its_settings(self):
        deck = self.folder / "home" / "inputs" / "science" / "ppo_70b.toml"
        deck.parent.mkdir()
        deck.touch()
        self.assertEqual(self.run_jobs(TRIREME_DECK="inputs/science/ppo_70b.toml"), [78])
        for name in ("TRIREME_MODEL", "TRIREME_REWARD_MODEL", "TRIREME_PROMPTS"):
            self.assertIn(f"{name} is empty", self.log)

    def hide_qstat(self):
        install = Pbs.command
        def hide(pbs, *arguments, **options):
            (pbs.folder / "bin" / "qstat").unlink(missing_ok=True)
            return install(pbs, *arguments, **options)
        Pbs.command = hide
        self.addCleanup(setattr, Pbs, "command", install)

    def test_without_qstat(self):
        """A site that hides qstat from its nodes: the walltime is given, and so are the options of the successor; without them there is none."""
        self.hide_qstat()
        self.assertEqual(self.run_jobs("75 5,0 8", TRIREME_WALLTIME="1:00:00", TRIREME_OVERRIDES="run.seed=3",
                                       TRIREME_SUCCESSOR_OPTIONS="-l select=1:ncpus=4 -l walltime=2:00:00 -A project"), [75, 0])
        self.assertRegex(self.text("arguments"), r"run\.walltime=3[56]\d\ds run\.seed=3")
        second = self.pbs.jobs()[1]
        self.assertEqual((second["resources"]["select"], second["resources"]["walltime"], second["account"]), ("1:ncpus=4", "2:00:00", "project"))
        self.install("none")
        self.submit("75 5,0 8", TRIREME_WALLTIME="1:00:00")
        self.assertEqual(self.exit_codes(), [75], "no guess at what the job was submitted with")
        self.assertIn("NO SUCCESSOR", self.log)

    def test_qstat_that_fails(self):
        """Asked again; a successor never gets other options than its job had."""
        options = ("-l", "select=1:ncpus=8:mpiprocs=2,walltime=00:10:00", "-A", "project")
        for fails, expected in ((1, [75, 0]), (4, [75, 0]), (-1, [75])):
            with self.subTest(fails=fails):
                self.install(f"fails{fails}", qstat_fails=fails)
                self.submit("75 5,0 8", options, run=f"fails{fails}")
                self.assertEqual(self.exit_codes(), expected, self.log)
                for job in self.pbs.jobs():
                    self.assertEqual((job["resources"]["select"], job["account"]), ("1:ncpus=8:mpiprocs=2", "project"))
        self.assertIn("NO SUCCESSOR: qstat does not say", self.log)

    def test_qsub_that_fails(self):
        """The whole command is in the log, to be given by hand."""
        self.install()
        self.submit("75 5 1,0 8", ("-l", "select=1:ncpus=8:mpiprocs=2,walltime=00:10:00", "-A", "project"))
        self.pbs.wait(lambda: (self.folder / "run.waits").exists(), "the program")
        self.executable("pbs/bin/qsub", "#!/bin/sh\necho 'qsub: Unknown resource' >&2; exit 1\n")
        self.assertEqual(self.exit_codes(), [75])
        for words in ("this is the whole command", " qsub -l place=scatter -l select=1:ncpus=8:mpiprocs=2", "-A project", "TRIREME_RESTART=1"):
            self.assertIn(words, self.log)

    def test_every_option_travels(self):
        options = ("-l", "select=2:ncpus=8:ngpus=4:mpiprocs=2", "-l", "walltime=00:10:00", "-l", "storage=scratch+home", "-l", "place=scatter:excl", "-P",
                   "rl", "-p", "7", "-m", "abe", "-M", "me@here", "-o", f"{self.folder}/logs/", "-W", "umask=027,group_list=team", "-j", "oe")
        (self.folder / "logs").mkdir()
        self.install()
        self.submit("75 5,0 8", options)
        self.pbs.wait(self.pbs.all_ended, "the end of all jobs")
        first, second = self.pbs.jobs()
        self.assertEqual((first["exit"], second["exit"]), (75, 0))
        for key in ("resources", "account", "queue", "name"):
            self.assertEqual(second[key], first[key], key)
        self.assertEqual({name: second["attributes"].get(name) for name in first["attributes"]}, first["attributes"])
        self.assertIn(f"{self.folder}/logs/", second["output"])

    def test_values_that_qsub_would_change(self):
        """Quotes and backslashes reach the successor, and its successor, as they were."""
        value = r"""a "b" c\d 'e' $f"""
        self.install(profile={"NCCL_PROBE": value})
        self.submit("75 5,75 6,0 8", ("-l", "select=1:ncpus=8:mpiprocs=2,walltime=00:10:00", "-v", "NCCL_PROBE=plain"))
        self.assertEqual(self.exit_codes(), [75, 75, 0], self.log)
        self.assertIn(f"NCCL_PROBE={value}", self.text("environment.0").splitlines())

    def test_launch_line(self):
        model = self.folder / "model dir"
        model.mkdir()
        settings = {"TRIREME_MODULES": "cuda/13.0", "NCCL_DEBUG": "INFO", "TRIREME_MPI_OPTIONS": "--tag-output", "TRIREME_UMASK": "0027"}
        self.assertEqual(self.run_jobs("0 1", TRIREME_MODEL=model, **settings), [0])
        arguments = self.text("arguments")
        for part in (f"ppo {self.folder}/home/inputs/deck.toml", f"run.dir={self.folder}/run", f"model.path={model}"):
            self.assertIn(part, arguments)
        seconds = int(re.search(r"run\.walltime=(\d+)s", arguments)[1])
        self.assertTrue(0 < seconds <= 600, seconds)
        launch = self.text("launches")
        self.assertRegex(launch, r"mpirun -n 4 --hostfile \S+ --map-by ppr:4:node:PE=2 -x PATH ")  # both chunks are on this machine
        for option in ("-x OMP_NUM_THREADS", "-x NCCL_DEBUG", "-x PBS_JOBID", "--tag-output"):
            self.assertIn(option, launch)
        self.assertNotIn("COOKIE", launch)
        saved = self.text("run/environment-1_server.txt")
        self.assertIn("module list", saved)
        self.assertIn("NCCL_AUTH_TOKEN=(hidden)", saved)
        self.assertNotIn("hush", saved)
        self.assertIn("OMP_NUM_THREADS=2\n", saved)
        self.assertEqual((self.folder / "run" / "environment-1_server.txt").stat().st_mode & 0o777, 0o640)
        self.assertIn("module load cuda/13.0", self.log)

    def test_launchers(self):
        cases = {
            "PALS": ("PALS 1.3", "PALS_LOCAL_RANKID", "bin", "--depth 2 --cpu-bind depth"),
            "PALS by its path": ("", "PALS_LOCAL_RANKID", "pals/bin", "mpiexec -n 4 --ppn 4 --hostfile "),
            "Open MPI": ("mpiexec (OpenRTE) 4.1.4", "OMPI_COMM_WORLD_LOCAL_RANK", "bin", "mpirun -n 4 --hostfile"),
            "Intel MPI": ("Intel(R) MPI Library for Linux", "MPI_LOCALRANKID", "bin", "mpiexec -n 4 -ppn 4 -hostfile"),
            "MPICH": ("HYDRA build details", "MPI_LOCALRANKID", "bin", "-bind-to core:2"),
        }
        for name, (version, variable, folder, words) in cases.items():
            with self.subTest(launcher=name):
                self.setUp()
                self.launcher(version, variable, folder)
                exits = self.run_jobs("0 1", bin_folder=folder, TRIREME_GPUS_PER_NODE=4, TRIREME_GPU_ORDER="3 2 1 0",
                                      TRIREME_NICS="mlx5_0 mlx5_0 mlx5_1")
                self.assertEqual(exits, [0], self.log)
                self.assertIn(words, self.text("launches"))
                self.assertIn("run.device=cuda", self.text("arguments"), "a node that lost its GPUs is an error, not a run on CPUs")
                self.assertEqual(self.text("run/hosts-1_server.txt").count("\n"), 1, "one line per node, where the node file has one per rank")
                for rank, (gpu, card) in enumerate([(3, "mlx5_0"), (2, "mlx5_0"), (1, "mlx5_1"), (0, None)]):
                    environment = self.text(f"environment.{rank}").splitlines()
                    self.assertIn(f"CUDA_VISIBLE_DEVICES={gpu}", environment)
                    self.assertEqual(f"UCX_NET_DEVICES={card}:1" in environment, card is not None)
                    self.assertIn("OMP_NUM_THREADS=2", environment)

    def test_no_local_rank(self):
        """Without a local rank all ranks would take GPU 0 in silence."""
        self.assertEqual(self.run_jobs("0 1", TRIREME_GPUS_PER_NODE=4), [69])
        self.assertIn("gives no local rank", self.log)

    def dry_run(self, **settings):
        environment = {"PATH": os.environ["PATH"], "TRIREME_DRY_RUN": "1", "TRIREME_HOME": str(self.folder / "home"),
                       "TRIREME_DECK": "inputs/deck.toml", "TRIREME_RUN_DIR": str(self.folder / "run"), "TRIREME_GPUS_PER_NODE": "8"}
        return subprocess.run(["bash", str(ROOT / SCRIPT)], cwd=self.folder, env=environment | settings, text=True, capture_output=True,
                              check=False)

    def test_other_subcommands(self):
        self.install()
        for command, key in (("sft", "data.dataset"), ("ppo", "data.prompt_dataset")):
            texts = self.folder / "texts.jsonl"
            texts.touch()
            output = self.dry_run(TRIREME_COMMAND=command, TRIREME_PROMPTS=str(texts), TRIREME_OVERRIDES="run.name=a b run.seed=3").stdout
            self.assertRegex(output, rf"trireme {command} \S*inputs/deck.toml run.dir=\S+ {key}=")
            self.assertIn("run.name=a\\ b run.seed=3", output)
        self.assertIn("name the deck of TRIREME_COMMAND=rm", self.dry_run(TRIREME_COMMAND="rm", TRIREME_DECK="").stderr)
        self.assertRegex(self.dry_run(TRIREME_COMMAND="selftest", TRIREME_DECK="", TRIREME_OVERRIDES="--json out.json").stdout,
                         r"trireme selftest --json out.json\n$")

    def test_dry_run(self):
        """Without a job: the launch line, and the program's own check of the deck with its exit code. Nothing is written."""
        before = sorted(self.folder.rglob("*"))
        result = self.dry_run(TRIREME_OVERRIDES="run.seed=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("launch: ", result.stdout)
        self.assertRegex(result.stdout, r"checked: ppo \S*deck.toml run.dir=\S+ run.device=cuda run.seed=3 --dry-run --ranks 32 --ranks-per-node 8")
        result = self.dry_run(TRIREME_RUN_DIR="", TRIREME_MODEL="/no/such/model")
        self.assertEqual(result.returncode, 78)
        for words in ("TRIREME_RUN_DIR is empty", "TRIREME_MODEL=/no/such/model cannot be read"):
            self.assertIn(words, result.stderr)
        self.assertIn("checked: ppo", result.stdout)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        for code, expected, words in ((78, 78, "wrong key"), (127, 0, "not checked")):
            self.executable("home/build/release/trireme", f"#!/bin/bash\necho 'wrong key'\nexit {code}\n")
            result = self.dry_run()
            self.assertEqual(result.returncode, expected)
            self.assertIn(words, result.stdout)

    def test_own_queue_and_account_travel(self):
        options = ("-l", "select=1:ncpus=8:mpiprocs=2", "-l", "walltime=00:10:00", "-l", "filesystems=home:eagle", "-A", "project",
                   "-q", "workq", "-N", "named")
        self.assertEqual(self.run_jobs("75 5,0 8", options=options), [75, 0])
        first, second = self.pbs.jobs()
        for key in ("resources", "account", "queue", "name", "variables"):
            mine, theirs = first[key], second[key]
            if key == "variables":
                theirs = {name: theirs[name] for name in mine}
            self.assertEqual(theirs, mine, json.dumps(second))
        self.assertEqual((self.folder / "run" / "job-script.pbs").read_text(), (ROOT / SCRIPT).read_text())


if __name__ == "__main__":
    sys.exit(main())
