#!/usr/bin/env python3
"""The files of slurm/sites and pbs/sites: sourced under `set -eu` as a user would, then the shipped script with what they set.
Of Slurm the dry run; of PBS a job on the stand-ins, with a shell script in place of the program. Standard library only.
"""

import os
import re
import shlex
import subprocess
import sys

from pbs_run import ROOT, SCRIPT, main
from stand_in import StandInTest

SITES = {kind: sorted((ROOT / kind / "sites").glob("*.sh")) for kind in ("slurm", "pbs")}
NOT_CUDA = ("frontier", "lumi", "aurora")  # AMD's or Intel's GPUs
CRAY = ("frontier", "lumi", "perlmutter", "derecho", "polaris")  # cray-mpich
ACCOUNT = {"slurm": "SBATCH_ACCOUNT", "pbs": "TRIREME_ACCOUNT"}

# Input environment variables of the manual page of sbatch that site files may set.
SBATCH_VARIABLES = {"SBATCH_ACCOUNT", "SBATCH_CONSTRAINT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_TIMELIMIT"}


class Sites(StandInTest):
    def source(self, path, then="true", **settings):
        """The exit code and output of `. FILE && THEN` in a strict shell, from the folder of the repository."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "TRIREME_HOME": str(self.folder / "home"),
                       "TRIREME_DECK": "inputs/deck.toml", "TRIREME_RUN_DIR": str(self.folder / "run"),
                       "BASH_FUNC_module%%": '() { echo "module $*"; }'}
        environment |= {name: str(value) for name, value in settings.items()}
        return subprocess.run(["bash", "-c", f"set -eu; . {path.relative_to(ROOT)} && {then}"], cwd=ROOT, env=environment, text=True,
                              capture_output=True, check=False)

    def settings(self, kind, path):
        """What a user must set before."""
        return {ACCOUNT[kind]: "project"} | ({"TRIREME_GPUS_PER_NODE": 0} if path.stem in NOT_CUDA else {})

    def for_each_file(self, check, *kinds):
        for kind in kinds or SITES:
            self.assertGreaterEqual(len(SITES[kind]), 3)
            for path in SITES[kind]:
                with self.subTest(site=f"{kind}/{path.stem}"):
                    check(kind, path)

    def test_says_what_it_rests_on(self):
        def check(kind, path):
            lines = path.read_text().splitlines()
            self.assertTrue(lines[0].startswith("# Not tried on the machine itself"), lines[0])
            self.assertRegex(lines[0], r"retrieved \d{4}-\d\d-\d\d")
            self.assertIn("https://", path.read_text())
            self.assertIn(f". {kind}/sites/{path.name} && ", path.read_text())

        self.for_each_file(check)

    def test_needs_an_account(self):
        def check(kind, path):
            result = self.source(path, TRIREME_GPUS_PER_NODE=0)
            self.assertEqual(result.returncode, 78, result.stderr)
            self.assertIn(f"set {ACCOUNT[kind]} first", result.stderr)

        self.for_each_file(check)

    def test_refuses_other_gpus(self):
        def check(kind, path):
            if path.stem not in NOT_CUDA:
                return
            for settings in ({}, {"TRIREME_GPUS_PER_NODE": 8}):
                result = self.source(path, **{ACCOUNT[kind]: "project"}, **settings)
                self.assertEqual(result.returncode, 78)
                self.assertIn("CUDA and NCCL", result.stderr)

        self.for_each_file(check)

    def test_cray_mpi_carries_host_memory_only(self):
        def check(kind, path):
            result = self.source(path, "env", **self.settings(kind, path), MPICH_GPU_SUPPORT_ENABLED=1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("MPICH_GPU_SUPPORT_ENABLED=0" in result.stdout.splitlines(), path.stem in CRAY)
            self.assertEqual(re.findall("^FI_MR_CACHE_MONITOR=(.*)$", result.stdout, re.MULTILINE),
                             ["userfaultfd"] if path.stem in CRAY and path.stem not in NOT_CUDA else [])
            if kind == "pbs" and path.stem in CRAY:  # qsub passes what it is told alone
                names = re.search("^TRIREME_QSUB=.* -v (.*)$", result.stdout, re.MULTILINE)[1].split(",")
                self.assertLessEqual({"MPICH_GPU_SUPPORT_ENABLED", "FI_MR_CACHE_MONITOR"}, set(names))

        self.for_each_file(check)

    def test_slurm(self):
        def check(kind, path):
            result = self.source(path, "env", **self.settings(kind, path))
            self.assertEqual(result.returncode, 0, result.stderr)
            values = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
            self.assertLessEqual({name for name in values if name.startswith("SBATCH_")}, SBATCH_VARIABLES)
            options = values["TRIREME_SBATCH"].split()
            tasks = int(re.search(r"--ntasks-per-node=(\d+)", values["TRIREME_SBATCH"])[1])
            if path.stem not in NOT_CUDA:
                self.assertEqual(tasks, int(values["TRIREME_GPUS_PER_NODE"]), "one rank per GPU")
                self.assertIn(f"--gpus-per-node={tasks}", options)
            self.assertTrue(all(option.startswith("--") for option in options), options)
            dry = self.source(path, "bash slurm/ppo_70b.sh", TRIREME_DRY_RUN=1, SLURM_JOB_NUM_NODES=4, SLURM_NTASKS=4 * tasks,
                              **self.settings(kind, path))
            self.assertEqual(dry.returncode, 0, dry.stdout + dry.stderr)
            self.assertIn("launch: ", dry.stdout)
            self.assertRegex(dry.stdout, rf"--ranks {4 * tasks}\b|ranks: {4 * tasks} on 4 nodes")

        self.for_each_file(check, "slurm")

    def test_pbs(self):
        def check(kind, path):
            self.install(path.stem, "pals/bin")
            self.plan("75 5", f"run-{path.stem}")
            (self.folder / "launches").write_text("")
            qsub = shlex.quote(str(self.pbs.folder / "bin" / "qsub"))
            run = self.folder / f"run-{path.stem}"
            settings = self.settings(kind, path) | {"TRIREME_RUN_DIR": run, "TRIREME_OVERRIDES": "run.seed=3 actor.adam.lr=1e-6"}
            result = self.source(path, f"cd {shlex.quote(str(self.folder))} && {qsub} $TRIREME_QSUB {ROOT / SCRIPT}", **settings)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.pbs.wait(self.pbs.all_ended, "the end of all jobs")
            first, second = self.pbs.jobs()
            self.assertEqual((first["exit"], second["exit"]), (75, 0), self.pbs.log(first) + self.pbs.log(second))
            self.check_job(path, first, second)

        self.launcher("PALS", "PALS_LOCAL_RANKID", "pals/bin")
        self.for_each_file(check, "pbs")

    def check_job(self, path, first, second):
        nodes, shape = re.match(r"(\d+):(.*)", first["resources"]["select"]).groups()
        per_node = int(re.search(r"mpiprocs=(\d+)", shape)[1])
        depth = first["variables"]["TRIREME_THREADS_PER_RANK"]
        ranks = int(nodes) * per_node  # on the stand-ins all nodes are this machine
        self.assertIn(f"mpiexec -n {ranks} --ppn {ranks} --hostfile ", self.text("launches"))
        self.assertIn(f"--depth {depth} --cpu-bind depth", self.text("launches"))
        self.assertIn("run.seed=3 actor.adam.lr=1e-6", self.text("arguments"))
        environment = self.text("environment.0").splitlines()
        for name, value in first["variables"].items():
            if name.startswith(("NCCL_", "FI_", "MPICH_")):
                self.assertIn(f"{name}={value}", environment)
        if path.stem == "polaris":
            self.assertIn("CUDA_VISIBLE_DEVICES=3", environment)
            self.assertIn("NCCL_NET=AWS Libfabric", environment)
        self.assertEqual("CUDA_VISIBLE_DEVICES" in self.text("environment.0"), path.stem not in NOT_CUDA)
        for key in ("resources", "account", "queue"):
            self.assertEqual(second[key], first[key])
        for name, value in first["variables"].items():
            self.assertEqual(second["variables"][name], value)


if __name__ == "__main__":
    sys.exit(main())
