#!/usr/bin/env python3
"""The instruction set from outside (TRIREME_ISA) and by the deck (run.isa), as the log tells it; what generates, by deck and command."""

import math

from trireme_run import ProgramTest, main, read_lines, write_lines

ORDER = ["portable", "avx2", "avx512", "avx512_bf16"]
# What at::get_cpu_capability() says under each cap.
LIBTORCH = {"portable": "DEFAULT", "avx2": "AVX2", "avx512": "AVX512"}


class InstructionSet(ProgramTest):
    def log_of(self, name, *overrides, env=None, ranks=1, code=0):
        result = self.succeed("sft", "sft.toml", f"run.dir={name}", "run.iterations=1", "ckpt.interval=0", *overrides, env=env, ranks=ranks,
                              code=code)
        return (self.folder / name / "log.txt").read_text() if code == 0 else result.text

    def line_of(self, text):
        lines = [line for line in text.splitlines() if "instruction set:" in line]
        self.assertEqual(len(lines), 1, text)
        return lines[0]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_program("sft", "sft.toml", "run.dir=plain", "run.iterations=1", "ckpt.interval=0", env={"TRIREME_ISA": ""})
        text = (cls.folder / "plain" / "log.txt").read_text()
        words = text.split("instruction set: ")[1].split(";")[0]
        cls.best = words.split()[0]

    def lower(self):
        """Instruction sets below the processor's best."""
        return ORDER[:ORDER.index(self.best)]

    def test_without_a_wish_the_best_is_taken_and_no_library_is_capped(self):
        for env in ({"TRIREME_ISA": ""}, {"TRIREME_ISA": "auto"}):
            line = self.line_of(self.log_of("auto-" + str(len(env["TRIREME_ISA"])), env=env))
            self.assertRegex(line, f"instruction set: {self.best}( with matrix units)?;")
            self.assertNotIn("capped", line)

    def test_the_deck_and_the_environment_cap_the_libraries_too(self):
        for isa in self.lower():
            for source, overrides, env in (("run.isa", [f"run.isa={isa}"], {"TRIREME_ISA": ""}), ("TRIREME_ISA", [], {"TRIREME_ISA": isa})):
                with self.subTest(isa=isa, source=source):
                    text = self.log_of(f"{source}-{isa}".replace(".", "-"), *overrides, env=env)
                    line = self.line_of(text)
                    self.assertIn(f"instruction set: {isa} by {source} (the processor has {self.best}); LibTorch {LIBTORCH[isa]},", line)
                    for variable in ("ATEN_CPU_CAPABILITY=", "ONEDNN_MAX_CPU_ISA=", "MKL_ENABLE_INSTRUCTIONS="):
                        self.assertIn(variable, line)
                    self.assertRegex(text, r"library products on one thread: fp32 \d+\.\d GFLOP/s, bf16 \d+\.\d GFLOP/s, at \d\.\d GHz")

    def test_matrix_units_are_not_used_where_the_library_may_not(self):
        line = self.line_of(self.log_of("no-tiles", env={"TRIREME_ISA": "", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}))
        self.assertIn(f"instruction set: {self.best};", line)

    def test_the_deck_goes_below_the_cap_and_not_above(self):
        if self.best == "portable":
            self.skipTest("one instruction set only")
        below = self.line_of(self.log_of("below", "run.isa=portable", env={"TRIREME_ISA": "avx2"}))
        self.assertIn("instruction set: portable by run.isa", below)
        above = self.line_of(self.log_of("above", f"run.isa={self.best}", env={"TRIREME_ISA": "portable"}))
        self.assertIn("instruction set: portable by TRIREME_ISA", above)

    def test_every_rank_has_it(self):
        line = self.line_of(self.log_of("two", env={"TRIREME_ISA": "portable"}, ranks=2))
        self.assertIn("instruction set: portable", line)

    def test_unknown_words_and_what_the_processor_lacks(self):
        text = self.succeed("help", env={"TRIREME_ISA": "sse9"}, code=64).text
        self.assertIn("TRIREME_ISA=sse9 is no instruction set: use auto, avx512_bf16, avx512, avx2 or portable", text)
        self.assertIn("run.isa", self.log_of("word", "run.isa=sse9", code=78))
        if self.best != ORDER[-1]:
            self.assertIn("this processor has no", self.succeed("help", env={"TRIREME_ISA": ORDER[-1]}, code=69).text)
            self.assertIn("this processor has no", self.log_of("lacking", f"run.isa={ORDER[-1]}", env={"TRIREME_ISA": ""}, code=69))


class Backend(ProgramTest):
    def test_of_a_run(self):
        for backend, says in (("fused", "generation kernels:"), ("torch", "generation by LibTorch operations")):
            self.succeed("ppo", "ppo.toml", f"run.dir=by-{backend}", f"generate.backend={backend}", "run.iterations=1", "ckpt.interval=0")
            self.assertIn(f"generator: {says}", (self.folder / f"by-{backend}" / "log.txt").read_text())
        first = [self.samples(f"by-{backend}") for backend in ("fused", "torch")]
        self.assertEqual([s["prompt"] for s in first[0]], [s["prompt"] for s in first[1]])

    def test_of_the_tool(self):
        write_lines(self.folder / "in.jsonl", [{"prompt": f"{i}+{i}="} for i in range(20)])
        answers = {}
        for backend in ("auto", "fused", "torch"):
            self.succeed("generate", "--model", "model", "--input", "in.jsonl", "--output", f"{backend}.jsonl", "--max-new-tokens", "6",
                         "--temperature", "0", "--dtype", "fp32", "--log-probs", "--backend", backend)
            answers[backend] = sorted(read_lines(self.folder / f"{backend}.jsonl"), key=lambda a: a["index"])
        self.assertEqual(answers["auto"], answers["fused"])
        for a, b in zip(answers["fused"], answers["torch"], strict=True):
            if a["output_ids"] == b["output_ids"]:
                for x, y in zip(a["log_probs"], b["log_probs"], strict=True):
                    self.assertTrue(math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-4), (a, b))
        same = sum(a["output_ids"] == b["output_ids"] for a, b in zip(answers["fused"], answers["torch"], strict=True))
        self.assertGreaterEqual(same, 19)

    def test_fused_is_for_cpus(self):
        result = self.succeed("ppo", "ppo.toml", "generate.backend=fused", "run.device=cuda", code=78)
        self.assertIn('generate.backend = "fused" with run.device = "cuda"', result.text)
        self.succeed("generate", "--model", "model", "--input", "in.jsonl", "--output", "x", "--backend", "fast", code=64)


if __name__ == "__main__":
    main()
