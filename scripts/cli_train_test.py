#!/usr/bin/env python3
"""Models. lnbench train: losses fall, any ranks train the same model, a stopped run goes on to the same bits; lnbench run: steps are measured. LNBENCH=path of the program."""
import hashlib
import json
import pathlib
import shlex
import shutil
import signal
import statistics
import struct
import subprocess
import time
import unittest

from cli_case import LNBENCH, MPIRUN, ROOT, Case, sanitized

TRAIN = {
    "schema_version": 1,
    "name": "tiny",
    "model": {"heads": 2, "head_dim": 8, "causal": True, "layers": 2, "ffn_width": 32},
    "dilated": {"segments": [16, 64], "ratio_rule": "list", "ratios": [1, 2]},
    "sweep": {"algorithm": "dilated", "seq_len": 64, "ranks": "world", "batch": {"rule": "fixed", "size": 2}},
    "run": {"threads": 1},
    "train": {"steps": 12, "warmup_steps": 3, "learning_rate": 0.02, "evaluate_every": 4, "checkpoint_every": 4},
}


class Train(Case):
    def setUp(self):
        super().setUp()
        text = self.write("text.txt", "".join(f"{i} times {i % 7} is {i * (i % 7)}.\n" for i in range(900)))
        self.config = self.write("tiny.json", TRAIN | {"train": TRAIN["train"] | {"text": [text]}})

    def steps(self, folder):
        return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]

    def train(self, name, *more, ranks=0, code=0):
        folder = self.path / name
        self.expect(code, "train", self.config, "-o", str(folder), *more, ranks=ranks)
        return self.steps(folder), (folder / "checkpoint.bin").read_bytes()

    def trained(self, folder):
        return json.loads((folder / "run.json").read_text())["run"]["training"]

    def test_the_model_is_that_of_the_config(self):
        self.train("tiny", "--ranks", "2", "--set", "train.steps=1", "--set", "model.positions=none")
        trained = self.trained(self.path / "tiny")
        point = {key: trained["point"][key] for key in ("scope", "pass", "layers", "ffn_width", "positions")}
        self.assertEqual(point, {"scope": "model", "pass": "step", "layers": 2, "ffn_width": 32, "positions": "none"})
        layer = 4 * 16 * 16 + 2 * 16 * 32  # q, k, v, out, fc1, fc2; norms, biases and the table of 256 bytes beside them
        self.assertLess(abs(trained["parameters"] - 2 * layer - 256 * 16), 1000)
        self.assertEqual(trained["memory_by_tag"]["weights"], 4 * trained["parameters"])

    def test_the_same_losses_on_any_ranks(self):
        one, _ = self.train("one", "--ranks", "1")
        self.assertEqual([s["step"] for s in one], list(range(1, 13)))
        self.assertLess(one[-1]["held_out_bits"], one[3]["held_out_bits"] - 0.5)
        hidden = [abs(s["seconds"] - sum(s["seconds_by"].values())) / s["seconds"] for s in one[1:]]
        if not sanitized():
            self.assertLess(statistics.median(hidden), 0.05)  # other programs' load is in some steps
        runs = {
            "two": self.train("two", "--ranks", "2"),
            "again": self.train("again", "--ranks", "1", "--set", "model.recompute=none"),
            "sharded": self.train("sharded", "--ranks", "3", "--set", "model.shard_optimizer=true"),
            "replicas": self.train("replicas", "--ranks", "2", "--set", "sweep.replicas=2", "--set", "model.shard_optimizer=true"),
        }
        if MPIRUN:
            runs["mpi"] = self.train("mpi", ranks=2)
        bf16, _ = self.train("bf16", "--ranks", "2", "--set", "model.dtype=bf16")
        self.assertNotEqual([s["bits_per_byte"] for s in bf16], [s["bits_per_byte"] for s in runs["two"][0]])
        self.assertLess(abs(bf16[-1]["held_out_bits"] - one[-1]["held_out_bits"]), 0.01)
        for name, (steps, _) in runs.items():
            first, its = one[0]["bits_per_byte"], steps[0]["bits_per_byte"]
            self.assertLess(abs(its - first) / first, 1e-6, name)
            for mine, other in zip(one, steps, strict=True):
                self.assertAlmostEqual(mine["bits_per_byte"], other["bits_per_byte"], delta=1e-4, msg=name)

    def test_a_stopped_run_goes_on_to_the_same_bits(self):
        ways = [("2", ["--ranks", "2"], 0), ("3", ["--ranks", "3", "--set", "model.shard_optimizer=true"], 0)]
        if MPIRUN:
            ways.append(("mpi", ["--set", "train.steps=6"], 2))
        for name, more, ranks in ways:
            whole, weights = self.train(f"whole{name}", *more, ranks=ranks)
            folder = self.path / f"parts{name}"
            stopped = self.expect(4, "train", self.config, "-o", str(folder), *more, "--max-time", "1ms", ranks=ranks)
            go_on = shlex.split(stopped.stderr.split("go on with: lnbench ")[1].splitlines()[0])
            self.assertLess(len(self.steps(folder)), len(whole))
            with (folder / "train.jsonl").open("a") as lines:  # as a kill leaves it: steps behind the checkpoint, half a line
                lines.write(json.dumps(whole[-1]) + '\n{"step": 3')
            self.expect(0, *go_on, ranks=ranks)
            self.assertEqual((folder / "checkpoint.bin").read_bytes(), weights)
            losses = [s["bits_per_byte"] for s in self.steps(folder)]
            self.assertEqual(losses, [s["bits_per_byte"] for s in whole])

    def test_other_ranks_go_on_where_that_is_allowed(self):
        one, _ = self.train("one", "--ranks", "1")
        folder = self.path / "other"
        self.train(folder.name, "--ranks", "2", "--max-time", "1ms", code=4)
        go_on = ("train", self.config, "--ranks", "1", "--resume", str(folder))
        self.assertIn("--allow-changed-machine", self.expect(2, *go_on).stderr)
        self.expect(0, *go_on, "--allow-changed-machine")
        for mine, other in zip(one, self.steps(folder), strict=True):
            self.assertAlmostEqual(mine["bits_per_byte"], other["bits_per_byte"], delta=1e-4)

    def test_a_checkpoint_is_the_same_whoever_holds_the_moments(self):
        one, _ = self.train("one", "--ranks", "1")
        for ranks in "2", "3":
            sharded = ("--ranks", ranks, "--set", "model.shard_optimizer=true")
            _, whole = self.train(f"whole{ranks}", "--ranks", ranks)
            _, parts = self.train(f"sharded{ranks}", *sharded)
            self.assertEqual(parts, whole)
            of_one, folder = self.path / f"one{ranks}", self.path / f"resumed{ranks}"
            self.train(of_one.name, "--ranks", "1", "--max-time", "1ms", code=4)
            self.train(folder.name, *sharded, "--max-time", "1ms", code=4)
            (folder / "checkpoint.bin").write_bytes((of_one / "checkpoint.bin").read_bytes())
            self.expect(0, "train", self.config, *sharded, "--resume", str(folder))
            for mine, other in zip(one, self.steps(folder), strict=True):
                self.assertAlmostEqual(mine["bits_per_byte"], other["bits_per_byte"], delta=1e-4)

    def test_a_signal_ends_after_a_step(self):
        folder = self.path / "signal"
        options = ["train", self.config, "-o", str(folder), "--ranks", "1", "--set", "train.steps=1000000"]
        process = subprocess.Popen([LNBENCH, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        lines = pathlib.Path(folder / "train.jsonl")
        for _ in range(600):
            if lines.exists() and lines.read_text().count("\n") >= 3:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 4)
        self.assertIn("--resume", process.communicate()[1])
        self.assertTrue((folder / "checkpoint.bin").exists())

    def test_a_warmup_as_long_as_the_training_is_warned_of(self):
        for warmup, warned in ((1, False), (2, True)):
            said = self.expect(0, "train", self.config, "--set", "train.steps=2", "--set", f"train.warmup_steps={warmup}", "-o",
                               str(self.path / str(warmup))).stderr
            self.assertEqual("warning: train.warmup_steps = 2 of train.steps = 2: the learning rate only rises" in said, warned, said)

    def test_mistakes(self):
        for more, hint in (
            (["--set", "sweep.seq_len=64,128"], "a model trains with one"),
            (["--set", "train.text=/nowhere/at.txt"], "name a text file"),
            (["--set", "sweep.seq_len=32K"], "more text"),
            (["--set", "model.recompute=ful"], "did you mean"),
            (["--set", "memory.limit_bytes=1000"], "sweep.batch"),
        ):
            done = self.expect(2, "train", self.config, "--ranks", "1", "-o", str(self.path / "wrong"), *more)
            self.assertIn(hint, done.stderr)
            self.assertIn("hint:", done.stderr)
        for kernel in "cuda", "cudnn":
            done = self.expect(2, "train", self.config, "--ranks", "1", "--set", f"run.kernel={kernel}")
            self.assertIn("models train on cores", done.stderr)
        done = self.expect(2, "train", self.write("none.json", {k: v for k, v in TRAIN.items() if k != "train"}))
        self.assertIn("train: is missing", done.stderr)

    def test_a_loss_that_is_no_number_ends_the_run(self):
        folder = self.path / "nan"
        self.train(folder.name, "--ranks", "1", "--max-time", "1ms", code=4)
        file = folder / "checkpoint.bin"
        head, values = file.read_bytes().split(b"\n", 1)
        values = struct.pack("<f", float("nan")) + values[4:]
        head = json.loads(head) | {"sha256": hashlib.sha256(values).hexdigest()}
        file.write_bytes(json.dumps(head).encode() + b"\n" + values)
        before = self.steps(folder)
        done = self.expect(2, "train", self.config, "--ranks", "1", "--resume", str(folder))
        self.assertIn("is not a number", done.stderr)
        self.assertIn("train.learning_rate", done.stderr)
        self.assertEqual(self.steps(folder), before)

    def test_a_damaged_checkpoint_is_refused(self):
        folder = self.path / "damaged"
        self.train(folder.name, "--ranks", "1", "--max-time", "1ms", code=4)
        file = folder / "checkpoint.bin"
        whole = file.read_bytes()
        for bad in whole[:-3], whole[:-1] + bytes([whole[-1] ^ 1]), b"nonsense", b"":
            file.write_bytes(bad)
            done = self.expect(2, "train", self.config, "--ranks", "1", "--resume", str(folder))
            self.assertIn("checkpoint.bin", done.stderr)
        larger = self.path / "larger"
        self.train(larger.name, "--ranks", "1", "--set", "train.steps=1", "--set", "model.ffn_width=64")
        shutil.copy(larger / "checkpoint.bin", file)
        done = self.expect(2, "train", self.config, "--ranks", "1", "--resume", str(folder))
        self.assertIn("checkpoint.bin' is of another model", done.stderr)

    def test_a_run_goes_on_with_its_own_text_alone(self):
        folder = self.path / "text"
        self.train(folder.name, "--ranks", "1", "--max-time", "1ms", code=4)
        text = self.path / "text.txt"
        self.assertEqual(self.trained(folder)["text_sha256"], hashlib.sha256(text.read_bytes()).hexdigest())
        text.write_bytes(text.read_bytes().replace(b"times", b"TIMES", 1))
        done = self.expect(2, "train", self.config, "--ranks", "1", "--resume", str(folder))
        self.assertIn("another text", done.stderr)
        self.assertEqual(len(self.steps(folder)), 1)


class Steps(Case):
    def test_steps_are_measured(self):
        """lnbench run: every scope and pass around dilated and ring attention, in replicas too, on threads and under mpirun; journal, resume and export."""
        config = self.write("steps.json", {k: v for k, v in TRAIN.items() if k != "train"} | {
            "model": TRAIN["model"] | {"heads": 4},
            "dilated": {"segments": [16, "sequence"], "ratio_rule": "list", "ratios": [1, 2]},
            "sweep": {"scope": ["model", "layer"], "pass": ["forward", "forward_backward", "step"], "algorithm": ["dilated", "ring"],
                      "seq_len": 64, "ranks": [1, 2], "replicas": [1, 2], "head_groups": [1, 2],
                      "batch": {"rule": "fixed", "size": 2}},
            "exclude": [{"where": "replicas == 2 && head_groups == 2 || ranks == 1 && (replicas == 2 || head_groups == 2) || scope == layer && pass == step", "reason": "none", "omit": True}],
            "measure": {"warmup": 1, "min_samples": 2, "max_samples": 2, "disturbed_budget": 0},
        })
        losses = {}
        for name, ranks, options in ("threads", 0, ["--ranks", "2"]), ("mpi", 2, []):
            if ranks and not MPIRUN:
                continue
            folder = str(self.path / name)
            self.expect(4, "run", config, *options, "-o", folder, "--max-time", "0s", ranks=ranks)
            self.expect(0, "run", config, *options, "--resume", folder, ranks=ranks)
            points = self.result(folder)["points"]
            self.assertEqual(len(points), 24 + 16)
            for p in points:
                self.assertEqual(p["status"], "ok", p["reason"])
                comm = p["comm"]
                moved = comm["counted_bytes_per_rank"] + comm.get("modelled_bytes_per_rank", 0)  # by MPI's own gathers
                self.assertEqual(moved, comm["predicted_bytes_per_rank"])
                self.assertEqual(p["memory"]["measured_peak_bytes"], p["memory"]["predicted_peak_bytes"])
                self.assertEqual(comm["closed_form_bytes_per_rank"], comm["predicted_bytes_per_rank"])
                scope, metrics = p["params"].get("scope"), p["metrics"]
                said = metrics["loss_nats" if scope == "model" else "output_product"]
                losses.setdefault((scope, p["params"]["algorithm"]), []).append(said)
                if p["params"].get("pass", "forward") != "forward":
                    self.assertLess(p["check"]["rel_l2_error"], 5e-4)
            self.assert_valid(folder)
            self.assertEqual(len(self.rows("export", folder)), 24 + 16)
        self.assertEqual(len(losses), 4)
        for same in losses.values():
            self.assertLess((max(same) - min(same)) / max(1, abs(min(same))), 1e-6)
        planned = self.rows("plan", config, "--ranks", "2")
        self.assertEqual({p["status"] for p in planned}, {"ok"})
        needed = max(int(p["memory_bytes"]) for p in planned if p["ranks"] == "1")
        tight = self.rows("plan", config, "--ranks", "1", "--set", f"memory.limit_bytes={needed - 1}", "--set", "memory.limit_fraction=1")
        self.assertIn("recompute=", " ".join(p["note"] for p in tight))
        folder = str(self.path / "bf16")
        self.expect(0, "run", config, "--ranks", "2", "--set", "model.dtype=bf16", "-o", folder)
        for p in self.result(folder)["points"]:
            self.assertEqual(p["status"], "ok", p["reason"])
            if p["params"].get("pass", "forward") != "forward":
                self.assertEqual(p["check"]["reference"], "fp32")


if __name__ == "__main__":
    unittest.main()
