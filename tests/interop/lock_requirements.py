#!/usr/bin/env python3
"""Writes requirements.lock, or with the argument `sinks` sinks.lock: every package that requirements.txt (sinks.txt) brings along, with its version and the SHA-256 of the wheels for the Pythons and
processors of cmake/wheels.txt, so that pip takes no other file. Run it after a change of the list; needs the network."""

import collections
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LIST = sys.argv[1] if len(sys.argv) > 1 else "requirements"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
ONLY_FOR = {"3.10": ["exceptiongroup"]}  # which pip does not see from another Python: it takes conditions for its own version
SYSTEMS = ("manylinux_2_36", "manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux_2_5",
           "manylinux1")


def wheels_of(python, processor):
    """[(package, version, digest)] that pip would take there."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--target", "unused",
               "--only-binary", ":all:", "--python-version", python, "-r", str(HERE / f"{LIST}.txt"), *ONLY_FOR.get(python, [])]
    for system in SYSTEMS:
        command += ["--platform", f"{system}_{processor}"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return [(re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower(), one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"]["sha256"])
            for one in report["install"]]


def main():
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: (set(), set())))  # package: {version: (Pythons, digests)}
    for python in PYTHONS:
        for processor in PROCESSORS:
            for package, version, digest in wheels_of(python, processor):
                pythons, digests = found[package][version]
                pythons.add(python)
                digests.add(digest)
    lines = [f"# Made by lock_requirements.py from {LIST}.txt."]
    for package in sorted(found):
        for version, (pythons, digests) in sorted(found[package].items()):
            only = "" if pythons == set(PYTHONS) else " ; " + " or ".join(f'python_version == "{python}"' for python in sorted(pythons))
            lines.append(" \\\n    ".join([f"{package}=={version}{only}", *(f"--hash=sha256:{digest}" for digest in sorted(digests))]))
    (HERE / f"{LIST}.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
