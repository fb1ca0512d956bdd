"""A shell script in place of the program and of the MPI launchers, for tests of what the batch scripts themselves do."""

import os
import pathlib
import tempfile
import unittest

from pbs_run import ROOT, SCRIPT, Pbs

# Each run takes one line of the file `RUN_DIR.plan`: exit code, step of the checkpoint that it leaves (0: none), seconds to wait
# for a signal (0: none), and the verdict that it writes, if another one. Without a line left it ends with 0. A dry run says what it was asked.
PROGRAM = """#!/bin/bash
case $* in *--dry-run*) echo "checked: $*"; exit ;; esac
here={folder}
echo "$@" >"$here/arguments"
env >"$here/environment.${{PALS_LOCAL_RANKID:-${{OMPI_COMM_WORLD_LOCAL_RANK:-${{MPI_LOCALRANKID:-${{PMI_LOCAL_RANK:-0}}}}}}}}"
for a in "$@"; do case $a in run.dir=*) dir=${{a#run.dir=}};; esac; done
read -r rc step seconds verdict <"$dir.plan"; sed -i 1d "$dir.plan"
trap 'got=1' USR1; trap '' TERM
[ "${{seconds:-0}}" = 0 ] || : >"$dir.waits"
for ((i = 0; i < ${{seconds:-0}} * 20; i++)); do [ -n "${{got:-}}" ] && break; sleep 0.05; done
rm -f "$dir.waits"
if [ "${{step:-0}}" != 0 ] && mkdir -p "$dir/ckpt" && save=$dir/ckpt/step-$(printf %06d "$step") && mkdir "$save" 2>/dev/null; then
  printf '{{\\n  "step": %d,\\n  "fence": %d,\\n  "world_size": 2\\n}}\\n' "$step" "$(date +%s%N)" >"$save/manifest.json"
fi
[ -z "${{verdict:-}}" ] || echo "$verdict host n1 pid 12" >"$TRIREME_VERDICT"
exit "${{rc:-0}}"
"""

# Says what it is, records its options, and starts what follows them: with `ranks` once for each local rank.
LAUNCHER = """#!/bin/bash
[ "$1" = --version ] && {{ echo '{version}'; exit; }}
echo "${{0##*/}} $*" >>{folder}/launches
while [ "${{1##*/}}" != trireme ] && [ "$1" != bash ]; do shift; done
[ '{ranks}' = 1 ] || exec "$@"
for i in 0 1 2 3; do {variable}=$i "$@" || exit; done
"""


class StandInTest(unittest.TestCase):
    longMessage = True

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.executable("home/build/release/trireme", PROGRAM.format(folder=self.folder))
        deck = self.folder / "home" / "inputs" / "deck.toml"
        deck.parent.mkdir()
        deck.write_text('[ranks]\ntrainer = ""\n')
        self.launcher("mpiexec (Open MPI) 4.1.4")

    def executable(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def launcher(self, version, variable="", folder="bin"):
        text = LAUNCHER.format(version=version, folder=self.folder, variable=variable or "NONE", ranks=1 if variable else 0)
        for name in ("mpiexec", "mpirun"):
            self.executable(f"{folder}/{name}", text)

    def install(self, name="pbs", bin_folder="bin", **settings):
        profile = {"BASH_FUNC_module%%": '() { echo "module $*"; }', "NCCL_AUTH_TOKEN": "hush"} | settings.pop("profile", {})
        self.pbs = Pbs(self.folder / name, self, poll=1, path=f"{self.folder / bin_folder}:{os.environ['PATH']}", profile=profile,
                       **settings)
        self.addCleanup(self.pbs.end)

    def plan(self, text, run="run"):
        (self.folder / f"{run}.plan").write_text(text.replace(",", "\n") + "\n")

    def submit(self, plan="", options=("-l", "select=2:ncpus=8:mpiprocs=2,walltime=00:10:00"), run="run", **settings):
        self.plan(plan, run)
        values = {"TRIREME_HOME": self.folder / "home", "TRIREME_DECK": "inputs/deck.toml", "TRIREME_RUN_DIR": self.folder / run,
                  "TRIREME_GPUS_PER_NODE": 0, "TRIREME_THREADS_PER_RANK": 2, "TRIREME_RETRY_PAUSE": 0} | settings
        result = self.pbs.command("qsub", "-N", run, "-v", ",".join(f"{name}={value}" for name, value in values.items()), *options,
                                  ROOT / SCRIPT, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)

    def run_jobs(self, plan="", bin_folder="bin", **settings):
        """Submits the script, and waits until it and all its successors have ended."""
        self.install(bin_folder=bin_folder)
        self.submit(plan, **settings)
        return self.exit_codes()

    def exit_codes(self):
        """Of all jobs, when all have ended."""
        self.pbs.wait(self.pbs.all_ended, "the end of all jobs")
        self.log = "\n".join(self.pbs.log(job) for job in self.pbs.jobs())
        return [job.get("exit") for job in self.pbs.jobs()]

    def text(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""
