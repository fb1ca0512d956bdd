#!/usr/bin/env python3
"""The README's two commands, demo first, as a newcomer runs them: a copy of the sources, an empty home, an empty cache.

The demo is cut to one iteration; of `test` everything but ctest itself, which would start this test again. Kept from the
machine are what was downloaded and what was compiled: the packages, LibTorch's folder, pip's download cache, the compiler cache.

    commands_test.py ROOT TORCH_ROOT [WHY_SKIPPED]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

# What ctest gives its tests, and what would lead back to the user's own caches.
DROPPED = ("OMP_", "OMPI_", "GTEST_", "TORCH_", "XDG_", "CCACHE_", "TRIREME_SOURCE_DIR", "TRIREME_BINARY_DIR", "HOME")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(125)


def output_of(*command):
    run = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""


def copy_sources(root, target):
    """What git would give a clone, with changes that are not committed; without git all but the folders that builds and runs make."""
    listed = output_of("git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if not listed:
        shutil.copytree(root, target, ignore=shutil.ignore_patterns("build", "runs", "__pycache__"), symlinks=True)
        return
    for name in filter(None, listed.split("\0")):
        source = root / name
        if source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def newcomer(folder, torch_root):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    kept |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache"), "TRIREME_TORCH_ROOT": torch_root}
    kept |= {"CCACHE_DIR": output_of("ccache", "--get-config", "cache_dir"), "CCACHE_MAXSIZE": output_of("ccache", "--get-config", "max_size")}
    downloads = output_of(os.environ.get("TRIREME_PYTHON", "python3"), "-m", "pip", "cache", "dir")
    if downloads:
        kept["PIP_CACHE_DIR"] = downloads
    for name in ("home", "cache"):
        (folder / name).mkdir()
    return kept


def run(sources, environment, *command):
    print(f"$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    rc = subprocess.run(command, cwd=sources, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    print(f"ended with code {rc} after {time.monotonic() - start:.0f} s", flush=True)
    if rc:
        sys.exit(f"{' '.join(command)} fails with an empty home and an empty cache")


def require(condition, problem):
    if not condition:
        sys.exit(problem)


def main():
    if len(sys.argv) > 3 and sys.argv[3]:
        skip(sys.argv[3])
    if os.environ.get("TRIREME_NO_INSTALL") == "1":
        skip("TRIREME_NO_INSTALL=1 allows no download of the demo's model")
    if not shutil.which("ccache"):
        skip("without ccache the whole program would be compiled a second time")
    root, torch_root = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="trireme-newcomer-") as name:
        folder = pathlib.Path(name)
        sources = folder / "trireme"
        copy_sources(root, sources)
        environment = newcomer(folder, torch_root)

        run(sources, environment, "./bootstrap.sh", "demo", "run.iterations=1")
        metrics = (sources / "runs/demo/metrics.jsonl").read_text().splitlines()
        rewards = [json.loads(line) for line in metrics if "reward" in json.loads(line)]
        require(len(rewards) == 1, f"the demo wrote {len(rewards)} iterations into metrics.jsonl, 1 was asked for")

        run(sources, environment, "./bootstrap.sh", "test-build")
        listed = output_of("ctest", "--test-dir", str(sources / "build/release"), "-N")
        count = int(listed.rsplit("Total Tests:", 1)[-1]) if "Total Tests:" in listed else 0
        require(count > 50, f"ctest knows {count} tests after `./bootstrap.sh test-build`")
        models = [path.name for path in (folder / "cache/trireme/models").iterdir()]
        require("SmolLM2-135M-Instruct" in models, f"no converted model in the new cache, only {models}")
        print(f"both commands work; {count} tests are ready to run")


if __name__ == "__main__":
    main()
