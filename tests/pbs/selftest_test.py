#!/usr/bin/env python3
"""pbs/selftest.pbs as it is shipped, under stand-ins of PBS, at its smallest size: a job and its successor, and one line at the end."""

import json

from pbs_run import ROOT, PbsTest, main


class ClusterSelfTest(PbsTest):
    def test_a_job_and_its_successor(self):
        self.install()
        home = self.folder / "home"
        for name in ("inputs", "pbs"):
            (home / name).symlink_to(ROOT / name)
        folder = self.folder / "selftest"
        self.submit("", script="pbs/selftest.pbs", TRIREME_SELFTEST_DIR=folder, TRIREME_SELFTEST_SHAPE="inputs/tutorial/tiny-model")
        self.wait_all_ended()
        logs = "\n".join([self.logs(), *(f"--- {path}\n{path.read_text(errors='replace')}" for path in folder.glob("*.log"))])
        self.assertEqual([job["exit"] for job in self.pbs.jobs()], [75, 0], logs)
        result = json.loads((folder / "selftest.json").read_text())
        self.assertEqual((result["selftest"], result["nodes"], result["ranks"]), ("passed", 1, 2), logs)
        self.assertEqual([row["part"] for row in result["parts"]], ["program", "learning", "killed", "requeued"])
        self.assertEqual(result["parts"][-1]["how"], "the job came back")


if __name__ == "__main__":
    main()
