"""Our side of the comparisons: runs the program on the tutorial's decks and reads its metrics."""
import json
import os
import subprocess

from settings import ROOT, TUTORIAL

MODEL = "hf"  # the export in a run folder


def launch_environment():
    """Open MPI's switches for root and for more ranks than cores."""
    return dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1",
                OMP_WAIT_POLICY="passive")


class Program:
    """`trireme`, with two ranks; what it prints goes to FOLDER.out."""

    def __init__(self, path):
        self.path = path

    def run(self, subcommand, deck, folder, keys):
        command = ["mpirun", "-n", "2", str(self.path), subcommand, str(deck), f"run.dir={folder}", "ckpt.interval=0",
                   "ckpt.resume=never", *keys]
        self._call(command, folder)
        return [json.loads(line) for line in open(folder / "metrics.jsonl")]

    def init(self, folder, seed):
        """Random weights of the tutorial's shape, in Hugging Face layout."""
        self._call([str(self.path), "init", "--shape", str(TUTORIAL / "tiny-model"), "--tokenizer", str(TUTORIAL / "tokenizer"), "--output",
                    str(folder), "--seed", str(seed), "--dtype", "fp32"], folder)

    @staticmethod
    def _call(command, folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(folder.name + ".out"), "w") as out:
            done = subprocess.run(command, cwd=ROOT, env=launch_environment(), stdout=out, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}, see {out.name}")


def columns(metrics, **names):
    """{our name: [value per iteration]} of metrics.jsonl under the peer's names."""
    return {name: [line[key] for line in metrics] for name, key in names.items()}
