#!/usr/bin/env python3
"""CPU seconds that compiling takes, of one or more revisions, without a compiler cache: what docs/dev/build_time.md reports.

    build_time.py [--jobs N] [--target NAME | --share NAME] [--cmake FLAG]... FOLDER_OR_REVISION...
    build_time.py --edit FILE:TARGET [--edit ...] FOLDER_OR_REVISION     what a change of one file costs until TARGET can be started, e.g.
                                                                        --edit src/ppo/losses.cpp:ppo_unit --edit include/trireme/config/options.hpp:trireme

Every compiler call is timed by its own user and system time, so that other load on the machine changes little; linking and CMake
are not counted. A revision is checked out into a temporary folder. Prints the seconds by module, the longest single calls (what a machine with many cores
waits for), and the ratios to the first.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def launch(log, command):
    """As CMake's compiler launcher: runs the command, appends its time and its output file to the log."""
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    output = command[command.index("-o") + 1] if "-o" in command else ""
    line = json.dumps({"seconds": usage.ru_utime + usage.ru_stime, "output": output}) + "\n"
    with open(log, "a", encoding="utf-8") as file:
        file.write(line)
    sys.exit(os.waitstatus_to_exitcode(status))


def measure(sources, work, options):
    build, log = work / "build", work / "log"
    launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};--launch;{log}"
    flags = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={launcher}" for language in ("CXX", "CUDA")]
    environment = os.environ | {"CCACHE_DISABLE": "1"}
    subprocess.run(["cmake", "-G", "Ninja", "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *flags, *options.cmake], check=True,
                   stdout=subprocess.DEVNULL)
    target = ["--target", options.target] if options.target else []
    subprocess.run(["cmake", "--build", build, "--parallel", str(options.jobs), *target], check=True, env=environment, stdout=subprocess.DEVNULL)
    inputs = subprocess.run(["ninja", "-C", build, "-t", "inputs", options.share], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in log.read_text().splitlines()], set(inputs.split("\n"))


def measure_edits(sources, work, options):
    """Builds the targets, then for each edit appends a comment to the file and builds its target again: wall time and processor seconds."""
    build, log = work / "build", work / "log"
    edits = [edit.rsplit(":", 1) for edit in options.edit]
    options.target = options.share = edits[0][1]
    measure(sources, work, options)
    environment = os.environ | {"CCACHE_DISABLE": "1"}
    make = lambda target: subprocess.run(["cmake", "--build", build, "--parallel", str(options.jobs), "--target", target], check=True, env=environment,
                                         stdout=subprocess.DEVNULL)
    for _, target in edits:
        make(target)
    for file, target in edits:
        with open(sources / file, "a", encoding="utf-8") as edited:
            edited.write("// edited\n")
        log.write_text("")
        began = time.monotonic()
        make(target)
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        print(f"{file}: {target} again after {time.monotonic() - began:.0f} s; {sum(call['seconds'] for call in calls):.0f} processor seconds in "
              f"{len(calls)} compiler calls, longest {max((call['seconds'] for call in calls), default=0):.0f} s", flush=True)


def checked_out(name, work, copy=False):
    """`copy`: the folder's files, which are going to be changed."""
    if pathlib.Path(name).is_dir() and copy:
        target = work / "sources"
        shutil.copytree(name, target, ignore=shutil.ignore_patterns("build", "runs", ".git"), symlinks=True)
        return target
    if pathlib.Path(name).is_dir():
        return pathlib.Path(name).resolve()
    target = work / "sources"
    target.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", name], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    return target


def module_of(output):
    parts = output.split("/CMakeFiles/")[0].split("/")
    return "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def main():
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--target", default="", help="builds this only; left out: everything")
    parser.add_argument("--share", default="trireme", help="also prints what this target needs of it (trireme: the program)")
    parser.add_argument("--cmake", action="append", default=[], metavar="FLAG")
    parser.add_argument("--calls", type=int, default=0, metavar="N", help="also prints the N longest calls")
    parser.add_argument("--edit", action="append", default=[], metavar="FILE:TARGET", help="measures this instead")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    if options.edit:
        for name in options.sources:
            with tempfile.TemporaryDirectory(prefix="trireme-build-time-") as folder:
                measure_edits(checked_out(name, pathlib.Path(folder), copy=True), pathlib.Path(folder), options)
        return
    totals = []
    for name in options.sources:
        with tempfile.TemporaryDirectory(prefix="trireme-build-time-") as folder:
            work = pathlib.Path(folder)
            calls, inputs = measure(checked_out(name, work), work, options)
        modules = collections.Counter()
        for call in calls:
            modules[module_of(call["output"])] += call["seconds"]
        totals.append((sum(modules.values()), sum(call["seconds"] for call in calls if call["output"] in inputs)))
        whole, share = (now / first for now, first in zip(totals[-1], totals[0]))
        print(f"{name}: {totals[-1][0]:.0f} s in {len(calls)} calls, {whole:.2f} of the first; {options.share} {totals[-1][1]:.0f} s, {share:.2f}; "
              f"longest {max(call['seconds'] for call in calls):.0f} s", flush=True)
        for module, seconds in modules.most_common():
            print(f"  {seconds:7.1f}  {module}")
        for call in sorted(calls, key=lambda call: -call["seconds"])[:options.calls]:
            print(f"  {call['seconds']:7.1f}    {call['output']}")


if __name__ == "__main__":
    main()
