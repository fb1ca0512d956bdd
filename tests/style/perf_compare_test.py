#!/usr/bin/env python3
"""perf/compare tells better from worse whichever way a row counts, and of figures that are 0; perf/run writes results of such figures; the
bandwidth probe is larger than the last-level caches. Nothing is measured.

    perf_compare_test.py ROOT
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.stem.replace("-", "_"), str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def result(row, unit, ours, median=None, **more):
    return {"row": row, "metric": f"what {row} measures", "unit": unit, "ours": ours, "ours_median": ours if median is None else median, "processor": "one",
            **more}


def benchmarks(microseconds, aggregates_only=False):
    """A report of Google Benchmark: two repetitions of one benchmark by processor time, one by real time, one that failed."""
    def entry(name, time, **more):
        return {"name": name, "run_name": name, "run_type": "iteration", "real_time": 10 * time, "cpu_time": time, "time_unit": "us", **more}
    whole = [entry("product/8", microseconds), entry("product/8", 1.01 * microseconds),
             {"name": "product/8_median", "run_name": "product/8", "run_type": "aggregate", "aggregate_name": "median", "real_time": 1e9,
              "cpu_time": 1.005 * microseconds, "time_unit": "us"},
             {"name": "product/8_stddev", "run_name": "product/8", "run_type": "aggregate", "aggregate_name": "stddev", "real_time": 1e9,
              "cpu_time": 0.005 * microseconds, "time_unit": "us"},
             entry("meeting/real_time", 7.0), {"name": "broken", "run_name": "broken", "run_type": "iteration", "error_occurred": True, "error_message": "no"}]
    if aggregates_only:
        whole = [e for e in whole if e["run_type"] == "aggregate"]
    return {"context": {"num_cpus": 2, "caches": [{"type": "Unified", "level": 3, "size": 1 << 25}]}, "benchmarks": whole}


class Comparison:
    def __init__(self, root, folder):
        self.program, self.folder = root / "perf" / "compare", pathlib.Path(folder)

    def __call__(self, old, new):
        """Exit code and lines of the program, from two files of different names."""
        paths = []
        for name, content in (("before", old), ("after", new)):
            paths.append(self.folder / f"{name}.json")
            paths[-1].write_text(json.dumps(content))
        run = subprocess.run([sys.executable, str(self.program), *map(str, paths)], capture_output=True, text=True, check=False)
        if run.stderr and run.returncode != 2:
            return run.returncode, [run.stderr]
        return run.returncode, run.stdout.splitlines()


def verdict_problems(compare):
    def differs(what, old, new, code, *beginnings):
        got, lines = compare(old, new)
        words = [" ".join(line.split()) for line in lines]
        if got != code or len(words) != len(beginnings) or not all(word.startswith(begin) for word, begin in zip(words, beginnings)):
            yield f"{what}: exit code {got} for {code}, lines {words} for {list(beginnings)}"
    for row, unit in (("G1", "tokens/s"), ("G6", ""), ("K1", "GB/s")):
        yield from differs(f"{row} doubled", [result(row, unit, 1.0)], [result(row, unit, 2.0)], 0, "BETTER 2.000 x")
        yield from differs(f"{row} halved", [result(row, unit, 1.0)], [result(row, unit, 0.5)], 1, "WORSE 0.500 x")
    for row, unit in (("P3", ""), ("K4", ""), ("R1", ""), ("S2", "MB"), ("T5", "bytes"), ("W1", "ms"), ("G8", "s")):
        yield from differs(f"{row} doubled", [result(row, unit, 1.0)], [result(row, unit, 2.0)], 1, "WORSE 0.500 x")
        yield from differs(f"{row} halved", [result(row, unit, 1.0)], [result(row, unit, 0.5)], 0, "BETTER 2.000 x")
    yield from differs("a row that says how it counts", [result("X9", "", 1.0)], [result("X9", "", 2.0, lower=True)], 1, "WORSE 0.500 x")
    yield from differs("nothing and nothing", [result("K2", "s", 0.0)], [result("K2", "s", 0.0)], 0, "same - x")
    yield from differs("a stall where there was none", [result("K2", "s", 0.0, 0.0005)], [result("K2", "s", 0.2)], 1, "WORSE 0.000 x")
    yield from differs("no stall where there was one", [result("K2", "s", 0.2)], [result("K2", "s", 0.0)], 0, "BETTER - x")
    yield from differs("within the noise", [result("W1", "ms", 10.0, 12.0)], [result("W1", "ms", 12.0)], 0, "same 0.833 x")
    yield from differs("another processor", [result("W1", "ms", 10.0)], [result("W1", "ms", 12.0, processor="two")], 2, "not compared: W1")
    yield from differs("kernels, 10 % slower", benchmarks(100.0), benchmarks(110.0), 1, "not compared: broken", "not compared: broken", "same 1.000 x",
                       "WORSE 0.909 x")
    yield from differs("kernels, aggregates, 10 % faster", benchmarks(110.0, True), benchmarks(100.0, True), 0, "BETTER 1.100 x")


def result_problems(run):
    def measured(**sides):
        return {side: [(value, 0.0), (value, 0.0)] for side, value in sides.items()}

    def row(lower, target, limit):
        return types.SimpleNamespace(name="K2", metric="stall", unit="s", lower=lower, ours=types.SimpleNamespace(command="program"), limit=lambda limits: limit,
                                     limit_target=1.0, peers=[types.SimpleNamespace(name="peer", target=target)])
    for what, lower, ours, peer, limit, expected in (
            ("nothing against something", True, 0.0, 0.2, 0.1, (None, True, None, True)), ("something against nothing", True, 0.2, 0.0, 0.1, (0.0, False, 0.5, False)),
            ("twice as fast", False, 2.0, 1.0, 1.0, (2.0, True, 2.0, True)), ("half as long", True, 0.1, 0.2, 0.1, (2.0, True, 1.0, True))):
        found = run.results_of(row(lower, 1.5, limit), measured(**{"": ours, "peer": peer}), {}, None)[0]
        got = tuple(found[key] for key in ("ratio", "met", "fraction_of_limit", "limit_met"))
        if got != expected or found["lower"] is not lower:
            yield f"perf/run, {what}: {got} for {expected}"


def probe_problems(common, folder):
    def machine(name, caches):
        for cpu, index, level, size, shared in caches:
            place = folder / name / f"cpu{cpu}" / "cache" / f"index{index}"
            place.mkdir(parents=True)
            for file, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (place / file).write_text(f"{text}\n")
        return folder / name
    of_core = [(cpu, index, level, size, str(cpu)) for cpu in range(4) for index, level, size in ((0, 1, "48K"), (2, 2, "2048K"))]
    one = machine("one", [*of_core, *((cpu, 3, 3, "266240K", "0-3") for cpu in range(4))])
    two = machine("two", [*of_core, *((cpu, 3, 3, "96M", "0-1" if cpu < 2 else "2-3") for cpu in range(4))])
    small = machine("small", of_core)
    for what, place, expected in (("one cache of 260 MiB", one, 4 * 260 << 20), ("two of 96 MiB", two, 8 * 96 << 20), ("2 MiB for each core", small, 256 << 20),
                                  ("a system that does not say", folder / "none", 2 << 30)):
        if common.bandwidth_block(place) != expected:
            yield f"the bandwidth probe of {what} reads {common.bandwidth_block(place)} bytes for {expected}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        problems = [*verdict_problems(Comparison(root, folder)), *result_problems(load(root / "perf" / "run")),
                    *probe_problems(load(root / "perf" / "peers" / "common.py"), pathlib.Path(folder))]
    print("\n".join([*problems, f"{len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
