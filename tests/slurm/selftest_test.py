#!/usr/bin/env python3
"""slurm/selftest.sh as it is shipped, on a real Slurm of two fake nodes, at its smallest size: a job that comes back once and ends with one line."""

import json
import sys

from one_box_slurm import OneBoxSlurm, missing_programs
from slurm_run import ONE_BOX, PROGRAM, ROOT, SMALL, TWO_NODES, ProgramTest, trireme_run

PARTS = ["program", "learning", "killed", "requeued"]
WRONG = 70


class ClusterSelfTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = cls.folder / "home"
        (cls.home / "build" / "release").mkdir(parents=True)
        (cls.home / "build" / "release" / "trireme").symlink_to(PROGRAM)
        for name in ("inputs", "slurm"):
            (cls.home / name).symlink_to(ROOT / name)
        cls.cluster = OneBoxSlurm(nodes=2)
        cls.cluster.start()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()
        super().tearDownClass()

    def run_job(self, name, **settings):
        """The job's state, exit code, how often it came back, and the result."""
        folder = self.folder / name
        env = ONE_BOX | {"TRIREME_HOME": self.home, "TRIREME_SELFTEST_DIR": folder, "TRIREME_SELFTEST_SHAPE": "inputs/tutorial/tiny-model",
                         "TRIREME_GPUS_PER_NODE": 0} | settings
        job = self.cluster.sbatch(f"--job-name={name}", f"--output={folder}.out", *SMALL, *TWO_NODES, self.home / "slurm" / "selftest.sh",
                                  env={key: str(value) for key, value in env.items()}, cwd=self.folder)
        explain = lambda: "\n".join(f"--- {path}\n{path.read_text(errors='replace')}" for path in [*self.folder.glob(f"{name}*.out"), *folder.glob("*.log")])
        self.cluster.wait(lambda: self.cluster.state(job) in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"), f"the end of {name}", explain=explain)
        result = folder / "selftest.json"
        self.assertTrue(result.is_file(), explain())
        return self.cluster.state(job), self.cluster.exit_code(job), int(self.cluster.show(job).get("Restarts", 0)), json.loads(result.read_text()), explain()

    def test_two_nodes(self):
        state, code, restarts, result, log = self.run_job("sound")
        self.assertEqual((state, code, restarts), ("COMPLETED", 0, 1), log)
        self.assertEqual((result["selftest"], result["nodes"], result["ranks"]), ("passed", 2, 2), log)
        parts = {row["part"]: row for row in result["parts"]}
        self.assertEqual(list(parts), PARTS)
        self.assertLess(parts["learning"]["largest_error"], 1e-3)
        self.assertGreater(parts["learning"]["sync_gb_per_second"], 0)
        self.assertGreater(parts["learning"]["sync_over_bound"], 0)
        self.assertEqual(parts["requeued"]["how"], "the job came back")
        self.assertEqual([row["verdict"] for row in result["program"]["parts"]], ["passed"] * 7)
        self.assertEqual(result["program"]["ranks"], 2)

    def test_other_numbers_and_used_folders(self):
        """Weights of another kind: the first part whose numbers are not the stored ones says which. A folder with results is not used again."""
        shape = json.loads((ROOT / "inputs" / "tutorial" / "tiny-model" / "config.json").read_text()) | {"rope_theta": 500.0}
        other = self.folder / "tiny-model"
        other.mkdir()
        (other / "config.json").write_text(json.dumps(shape))
        state, code, restarts, result, log = self.run_job("other", TRIREME_SELFTEST_SHAPE=other, TRIREME_SELFTEST_PARTS="learning")
        self.assertEqual((state, code, restarts), ("FAILED", WRONG, 0), log)
        self.assertEqual([(row["part"], row["verdict"]) for row in result["parts"]], [("learning", "failed")])
        self.assertRegex(result["parts"][0]["problem"], r"of iteration \d+ is .*, stored .*: more than")
        again = self.run_job("other", TRIREME_SELFTEST_PARTS="program")
        self.assertEqual(again[:3], ("FAILED", 73, 0))
        self.assertIn("has results of another self-test", again[4])


if __name__ == "__main__":
    missing = missing_programs()
    if missing:
        print(f"skipped: Slurm is not installed here (no {', '.join(missing)}): apt-get install slurmctld slurmd slurm-client munge")
        sys.exit(trireme_run.SKIPPED)
    trireme_run.main()
