#!/usr/bin/env python3
"""lnbench on emulated CUDA devices (src/emulation/emulated_device.h). Run by ctest.

Everything is what a GPU machine runs but the kernels' launches and the libraries: plans, transports, NCCL's calls,
measurement, walks, results. What a real device computes, and how fast, only a real one can show.
"""
import json
import pathlib
import re
import signal
import subprocess
import time
import unittest

from cli_case import LNBENCH, MPIRUN, Case

QUICK = ("--set", "measure.disturbed_budget=0", "--set", "measure.warmup=1", "--set", "measure.min_samples=3", "--set", "measure.max_samples=3", "--progress", "none")
MODEL = ("--set", "model.heads=4", "--set", "dilated.segments=128,per_rank,sequence")


class Gpu(Case):
    def run_config(self, name, *args, code=0, out="gpu", gpus=1, **more):
        folder = self.path / out
        done = self.expect(code, "run", f"configs/{name}.json", "-o", str(folder), *QUICK, *args,
                           LONGNET_EMULATED_GPUS=str(gpus), **more)
        return (self.result(folder) if (folder / "result.json").exists() else None), done

    def assert_all_ok(self, points):
        for p in points:
            self.assertEqual((p["status"], p["check"]["status"]), ("ok", "pass"), p)
            comm = p["comm"]
            self.assertEqual(comm["counted_bytes_per_rank"] + comm.get("modelled_bytes_per_rank", 0), comm["predicted_bytes_per_rank"])
            self.assertEqual(comm["closed_form_bytes_per_rank"], comm["predicted_bytes_per_rank"])
            self.assertLess(p["check"]["rel_l2_error"], 4e-3)

    def test_every_algorithm_by_nccl_on_a_gpu_each(self):
        listed = self.expect(0, "--help").stdout.partition("Algorithms:")[2].partition("\n\n")[0]
        algorithms = set(re.findall(r"^  ([a-z_]+) ", listed, re.MULTILINE)) - {"local"}  # which runs on one rank
        self.assertGreater(len(algorithms), 8)
        result, done = self.run_config("h100-8", *MODEL, "--set", "sweep.seq_len=512", "--set", "sweep.ranks=1,2,4",
                                       "--set", f"sweep.algorithm={','.join(sorted(algorithms))}", gpus=4)
        points = result["points"]
        self.assert_all_ok(points)
        self.assertEqual({p["params"]["algorithm"] for p in points if p["params"]["ranks"] == 4}, algorithms)
        for p in points:
            ranks = p["params"]["ranks"]
            self.assertEqual(p["params"]["transport"], "nccl")  # one for all points of a run
            self.assertEqual(p["metrics"]["devices"], ranks)
            self.assertEqual(p["memory"]["device_bytes"], 4 << 30)
            self.assertEqual("ablations" in p, ranks > 1)
            self.assertGreater(p["timing"]["median_s"], 0)
            if ranks > 1:
                parts, full = p["phases"], p["ablations"]["full_s"]
                self.assertAlmostEqual(parts["exposed_communication_s"], full - p["ablations"]["compute_only_s"])
                self.assertLess(parts["compute_s"] + parts["merge_s"], 30 * full)  # an emulated device beside other tests
            self.assertEqual(p["content"]["nan_values"], 0)
            self.assertEqual(p["content"]["rows"], 4 * 512)
        self.assertTrue(0 <= points[-1]["metrics"]["busy_share"] <= 1)  # share of the host's cores; the first are too short to tell
        timelines = map(json.loads, (self.path / "gpu" / "timelines.jsonl").read_text().splitlines())
        self.assertEqual({line["id"] for line in timelines}, {p["id"] for p in points})
        self.assertEqual(len({p["content"]["input_digest"] for p in points}), 1)
        on_cpu = self.run_config("h100-8", *MODEL, "--set", "sweep.seq_len=512", "--set", "sweep.ranks=1", "--set", "run.kernel=cpu",
                                 "--set", "sweep.algorithm=dilated", out="cpu")[0]["points"][0]
        self.assertEqual(on_cpu["content"]["input_digest"], points[0]["content"]["input_digest"])
        gathers = [p for p in points if p["params"]["algorithm"] == "all_gather"]
        self.assertTrue(gathers and all(p["comm"]["collectives_used"] for p in gathers))
        self.assertIn("4 x emulated GPU", done.stdout)
        self.assertEqual([r["device"] for r in result["ranks"]], [f"{i}: emulated GPU" for i in range(4)])
        self.assertEqual(len(result["environment"]["devices"]), 4)
        self.assertIn("nccl", result["environment"]["device_software"])
        self.assert_valid(str(self.path / "gpu" / "result.json"))

    def test_passes(self):
        sweep = (*MODEL, "--set", "sweep.seq_len=256", "--set", "sweep.ranks=2", "--set", "sweep.algorithm=dilated,ring",
                 "--set", "sweep.pass=backward,forward_backward", "--set", "sweep.kernel=cuda,cudnn")
        result, _ = self.run_config("h100-8", *sweep, "--set", "sweep.keep_gathered=false,true", gpus=2)
        points = result["points"]
        self.assertEqual(len(points), 12)
        self.assert_all_ok(points)
        digests = {}
        for p in points:
            gradients = p["check"]["gradients"]
            for name in ("dq", "dk", "dv"):
                self.assertLess(gradients[f"{name}_rel_l2_error"], 5e-3)
                digests.setdefault((p["params"]["algorithm"], p["params"]["kernel"], name), set()).add(p["content"][f"{name}_digest"])
            laws = max(gradients["sum_dk"], gradients["q_dq_k_dk"], gradients["v_dv_o_do"])
            self.assertLess(laws, 1e-6 if p["params"]["kernel"] == "cuda" else 1e-2 / 256**0.5)
        self.assertEqual({len(of_both) for of_both in digests.values()}, {1})
        plan = ("plan", "configs/h100-8.json", *sweep, "--set", "sweep.kernel=cuda,cudnn,gather")
        reasons = {row["kernel"]: row["note"] for row in self.rows(*plan, LONGNET_EMULATED_GPUS="2")}
        self.assertEqual(reasons, {"cuda": "", "cudnn": "", "gather": "kernel gather has no backward pass: use kernel cuda"})

    def test_layers_and_models(self):
        model = ("--set", "model.heads=4", "--set", "model.layers=2", "--set", "model.vocabulary=61", "--set", "model.causal=true", "--set", "sweep.seq_len=128",
                 "--set", "model.head_dim=16", "--set", "dilated.segments=32,sequence")
        sweep = (*model, "--set", "sweep.scope=layer,model", "--set", "sweep.pass=forward,forward_backward,step", "--set", "sweep.ranks=1,2",
                 "--set", "sweep.algorithm=dilated")
        points = self.run_config("h100-8", *sweep, gpus=2)[0]["points"]
        self.assertEqual([p["status"] for p in points].count("skipped_unsupported"), 2)  # a layer alone makes no step
        points = [p for p in points if p["status"] != "skipped_unsupported"]
        self.assertEqual(len(points), 10)
        model_on_cpu = self.run_config("h100-8", *model, "--set", "sweep.scope=model", "--set", "sweep.pass=step", "--set", "sweep.ranks=1",
                                       "--set", "sweep.algorithm=dilated", "--set", "run.kernel=cpu", out="cpu")[0]["points"][0]["metrics"]
        self.assert_all_models_ok(points)
        for p in points:
            if p["params"]["scope"] == "model":
                self.assertAlmostEqual(p["metrics"]["loss_nats"], model_on_cpu["loss_nats"], delta=1e-4)
                if "pass" in p["params"]:
                    self.assertAlmostEqual(p["metrics"]["gradient_norm"], model_on_cpu["gradient_norm"], delta=1e-3)
        # Replicas, ranks that split heads, a sharded optimizer, recomputation; four ranks on two GPUs.
        more = (*model, "--set", "sweep.scope=model", "--set", "sweep.pass=step", "--set", "sweep.ranks=4", "--ranks", "4", "--set",
                "sweep.batch.size=2", "--set", "sweep.replicas=1,2", "--set", "sweep.head_groups=1,2", "--set", "model.shard_optimizer=true",
                "--set", "model.recompute=full", "--set", "sweep.algorithm=ring", "--set", "run.kernel=cuda")
        points = self.run_config("h100-8", *more, gpus=2, out="groups")[0]["points"]
        self.assertEqual(len(points), 4)
        self.assert_all_models_ok(points)
        for p in points:
            self.assertAlmostEqual(p["metrics"]["loss_nats"], points[0]["metrics"]["loss_nats"], delta=1e-3)

    def assert_all_models_ok(self, points):
        for p in points:
            self.assertEqual((p["status"], p["check"]["status"]), ("ok", "pass"), p)
            comm = p["comm"]
            self.assertEqual(comm["counted_bytes_per_rank"] + comm.get("modelled_bytes_per_rank", 0), comm["predicted_bytes_per_rank"])
            self.assertEqual(comm["closed_form_bytes_per_rank"], comm["predicted_bytes_per_rank"])
            memory = p["memory"]  # scratch memory of products, too, but no lists of tasks
            self.assertEqual(sum(memory["by_tag"].values()) - memory["by_tag"].get("task_lists", 0), memory["predicted_peak_bytes"])
            for phase in ("gemm_s", "row_wise_s", "attend_s"):
                self.assertGreater(p["metrics"][phase], 0)
            self.assertLess(p["metrics"]["attention_rel_l2_error"], 4e-3)
            if "pass" in p["params"]:  # one with gradients
                self.assertEqual(p["check"]["reference"], "fp32")
                self.assertLess(p["check"]["rel_l2_error"], 1.5e-2)

    def test_walks_of_passes(self):
        sweep = (*MODEL, "--set", "sweep.seq_len=256", "--set", "sweep.ranks=1,4", "--set", "sweep.algorithm=dilated,ring",
                 "--set", "sweep.pass=backward,forward_backward", "--set", "sweep.kernel=cuda,cudnn", "--mode", "virtual",
                 "--set", "measure.warmup=0", "--set", "measure.min_samples=1", "--set", "measure.max_samples=1")
        points = self.run_config("h100-8", *sweep)[0]["points"]
        self.assertEqual(len(points), 16)
        self.assertEqual({(p["status"], p["reason"]) for p in points}, {("ok", None)})
        on_cpu = self.run_config("h100-8", *sweep, "--set", "sweep.kernel=cpu", "--set", "sweep.ranks=4", "--set", "sweep.pass=backward",
                                 out="cpu")[0]["points"]
        digests = {}
        for p in points:
            gradients = p["check"]["gradients"]
            self.assertGreater(gradients["keys"], 4)
            for name in ("dq", "dk", "dv"):
                self.assertLess(gradients[f"{name}_rel_l2_error"], 5e-3)
                of_point = tuple(p["params"][key] for key in ("algorithm", "kernel", "ranks"))
                digests.setdefault((of_point, name), set()).add(p["content"][f"{name}_digest"])
            self.assertLess(max(gradients["sum_dk"], gradients["q_dq_k_dk"], gradients["v_dv_o_do"]), 1e-2 / 256**0.5)
            self.assertEqual("shared_gradients" in p["memory"]["by_tag"], p["params"]["ranks"] > 1)
            same = next(q for q in on_cpu if q["params"]["algorithm"] == p["params"]["algorithm"])["content"]
            self.assertEqual(same["input_digest"], p["content"]["input_digest"])
        self.assertEqual({len(of_both) for of_both in digests.values()}, {1})

    def test_three_ways_to_attend(self):
        result, done = self.run_config("kernels-gpu", "--set", "sweep.seq_len=512", "--set", "model.heads=2",
                                       "--set", "sweep.batch.tokens_per_batch=512", "--set", "dilated.segments=64,128,256")
        self.assert_all_ok(result["points"])
        self.assertEqual({p["params"]["kernel"] for p in result["points"]}, {"cuda", "cuda_sm90a", "cudnn", "gather"})
        self.assertIn("cudnn d=128 causal", done.stdout)

    def test_cudnn_takes_zigzag_masks(self):
        result, _ = self.run_config("h100-8", *MODEL, "--set", "run.kernel=cudnn", "--set", "model.causal=true", "--set",
                                    "sweep.layout=zigzag", "--set", "sweep.algorithm=ring,all_gather,double_ring",
                                    "--set", "sweep.seq_len=256", "--set", "sweep.ranks=4", gpus=4)
        self.assertEqual(len(result["points"]), 3)
        self.assert_all_ok(result["points"])

    def test_more_ranks_than_gpus(self):
        sweep = (*MODEL, "--set", "sweep.algorithm=dilated", "--set", "sweep.seq_len=512", "--set", "sweep.ranks=1,2,4", "--ranks", "4")
        result, _ = self.run_config("h100-8", *sweep, gpus=2)
        self.assert_all_ok(result["points"])
        self.assertEqual({p["params"]["ranks"]: (p["params"]["transport"], p["metrics"]["devices"]) for p in result["points"]},
                         {1: ("cuda_ipc", 1), 2: ("cuda_ipc", 2), 4: ("cuda_ipc", 2)})
        self.assertEqual(result["points"][-1]["memory"]["device_bytes"], 2 << 30)
        plan = ("plan", "configs/h100-8.json", *sweep)
        self.assertIn("1 points have more ranks than this machine's 2 GPU(s)", self.expect(0, *plan, LONGNET_EMULATED_GPUS="2").stdout)
        self.assertIn("nccl refuses", self.expect(0, *plan, "--transport", "nccl", LONGNET_EMULATED_GPUS="2").stdout)
        self.assertNotIn("more ranks than", self.expect(0, *plan, LONGNET_EMULATED_GPUS="4").stdout)
        # Points that a named transport cannot run are left out, with the reason; the rest is measured.
        result, _ = self.run_config("h100-8", *sweep, "--transport", "nccl_registered", gpus=2, out="named")
        self.assertEqual([p["status"] for p in result["points"]], ["ok", "ok", "skipped_unsupported"])
        self.assertEqual({p["params"]["transport"] for p in result["points"]}, {"nccl_registered"})
        self.assertIn("share a GPU", result["points"][-1]["reason"])
        self.assertIn("cuda_ipc", result["points"][-1]["reason"])

    def test_what_does_not_fit(self):
        sweep = (*MODEL, "--set", "sweep.algorithm=dilated,local", "--set", "sweep.batch.rule=fixed", "--set", "sweep.batch.size=1")
        result, _ = self.run_config("figure5-gpu", *sweep, "--set", "sweep.seq_len=512,8K", LONGNET_EMULATED_GPU_BYTES="12000000")
        status = {(p["params"]["algorithm"], p["params"]["seq_len"]): p["status"] for p in result["points"]}
        self.assertEqual(status, {(a, n): s for a in ("dilated", "local") for n, s in ((512, "ok"), (8192, "skipped_memory"))})
        # A limit that promises more than there is: the device's refusal is caught, and the sweep goes on.
        result, _ = self.run_config("figure5-gpu", *sweep, "--set", "sweep.seq_len=8K,512", "--set", "memory.limit_bytes=1GiB", code=1,
                                    out="promised", LONGNET_EMULATED_GPU_BYTES="12000000")
        status = {(p["params"]["algorithm"], p["params"]["seq_len"]): p["status"] for p in result["points"]}
        self.assertEqual(status, {(a, n): s for a in ("dilated", "local") for n, s in ((512, "ok"), (8192, "oom"))})
        for p in result["points"]:
            self.assertGreater(p["memory"]["predicted_peak_bytes"], 0)
            if p["status"] == "oom":
                self.assertIn("the device refused", p["reason"])

    def test_a_batch_as_large_as_the_device(self):
        tokens = {}
        for gigabytes in (42, 85, 150, 170, 100000):
            rows = self.rows("plan", "configs/figure5-gpu.json", "--set", "sweep.seq_len=8K", "--set", "sweep.ranks=1",
                             LONGNET_EMULATED_GPU_BYTES=str(gigabytes * 10**9))
            tokens[gigabytes] = next(int(row["batch"]) for row in rows if row["algorithm"] == "dilated") * 8192
        self.assertEqual(tokens, {42: 4 << 20, 85: 8 << 20, 150: 8 << 20, 170: 16 << 20, 100000: 1 << 30})
        result, _ = self.run_config("figure5-gpu", *MODEL, "--set", "sweep.algorithm=dilated", "--set", "sweep.seq_len=512,1K",
                                    LONGNET_EMULATED_GPU_BYTES="12000000")
        self.assert_all_ok(result["points"])
        batch = result["run"]["config"]["sweep"]["batch"]["tokens_per_batch"]
        self.assertEqual({p["params"]["batch"] * p["params"]["seq_len"] for p in result["points"]}, {batch})
        self.assertIn(batch, (512, 1024, 2048))

    def test_scratch_memory_stands_within_a_limit(self):
        sweep = (*MODEL, "--set", "sweep.seq_len=1K", "--set", "sweep.ranks=1", "--set", "sweep.algorithm=dilated", "--set",
                 'sweep.kernel=["gather", "cuda"]', "--set", "memory.limit_fraction=1")
        free = self.run_config("h100-8", *sweep)[0]["points"]
        self.assert_all_ok(free)
        memory = next(p["memory"] for p in free if p["params"]["kernel"] == "gather")
        between = (memory["predicted_peak_bytes"] + memory["measured_peak_bytes"]) // 2 + (4 << 20)  # the flush of 4 x L2
        points = self.run_config("h100-8", *sweep, "--set", f"memory.limit_bytes={between}", code=1, out="limited")[0]["points"]
        self.assertEqual({p["params"]["kernel"]: p["status"] for p in points}, {"gather": "oom", "cuda": "ok"})
        self.assertIn("memory.limit_bytes admits", next(p["reason"] for p in points if p["status"] == "oom"))

    def test_results_by_two_transports(self):
        sweep = (*MODEL, "--set", "sweep.algorithm=ring", "--set", "sweep.seq_len=512", "--set", "sweep.ranks=2", "--ranks", "2")
        samples = ("--set", "measure.min_samples=4", "--set", "measure.max_samples=4")  # fewer decide nothing
        for transport in ("nccl", "nccl_registered"):
            self.run_config("h100-8", *sweep, *samples, "--transport", transport, gpus=2, out=transport)
        both = (str(self.path / "nccl"), str(self.path / "nccl_registered"))
        for folder in both:  # emulated by busy cores
            file = pathlib.Path(folder) / "result.json"
            result = json.loads(file.read_text())
            result["summary"]["disturbed"] = {}
            file.write_text(json.dumps(result))
        self.assertIn("nothing could be compared", self.expect(1, "compare", *both).stdout)
        self.assertRegex(self.expect(0, "compare", *both, "--threshold", "10000%", "--any-transport").stdout, "verdict: no regression among 1 decided points\n")

    def test_clocks_and_links_by_nvml(self):
        out = self.expect(0, "env", "--json", str(self.path / "env.json"), LONGNET_EMULATED_GPUS="2").stdout
        self.assertIn("18 NVLinks, PCIe 5 x16", out)
        self.assertEqual(len(json.loads((self.path / "env.json").read_text())["devices"]), 2)
        sweep = (*MODEL, "--set", "sweep.algorithm=dilated", "--set", "sweep.seq_len=512", "--set", "sweep.ranks=2")
        for name, more, mhz in (("cool", {}, 1980), ("hot", {"LONGNET_EMULATED_THROTTLE": "1"}, 1500)):
            metrics = self.run_config("h100-8", *sweep, gpus=2, out=name, **more)[0]["points"][0]["metrics"]
            self.assertEqual((metrics["device_sm_mhz"], metrics["device_power_w"], metrics["device_temperature_c"]), (mhz, 612.5, 41))
            self.assertEqual(metrics["device_throttled"], name == "hot")
            self.assertEqual(metrics["device_slowed_s"] > 0, name == "hot")

    def test_transports_alone(self):
        file = self.path / "comm.json"
        for transport, gpus, ranks in (("gpu", 3, 3), ("nccl_registered", 2, 2), ("gpu", 1, 4), ("mpi_host", 2, 3)):
            out = self.expect(0, "comm", "--transport", transport, "--ranks", str(ranks), "--max-bytes", "256KiB", "--json", str(file),
                              LONGNET_EMULATED_GPUS=str(gpus)).stdout
            written = json.loads(file.read_text())
            used = transport if transport != "gpu" else "nccl" if gpus >= ranks else "cuda_ipc"
            self.assertEqual((written["transport"], written["ranks"], written["host_transport"]), (used, ranks, "threads"))
            self.assertIn(f"{ranks} ranks ({used}); time is the median over runs, of the device", out)
            self.assertEqual([p["device"] for p in written["places"]], [f"{r % gpus}: emulated GPU" for r in range(ranks)])
            self.assertEqual(len(written["environment"]["devices"]), gpus)
            self.assertEqual({row["operation"] for row in written["rows"]}, {"send_recv", "exchange", "all_gather", "all_to_all"})
            self.assertTrue(all(row["median_s"] > 0 for row in written["rows"]))
            if gpus == 3:  # the measurements go into a cluster
                made = self.path / "cluster.json"
                self.expect(0, "calibrate", "--cluster", "configs/clusters/h100-ndr400.json", "--gpu-comm", str(file), "-o", str(made))
                self.assertIn("between 0: emulated GPU and 1: emulated GPU of one host",
                              json.loads(made.read_text())["links"]["intra"]["bandwidth_bytes_per_s"]["source"])
        refused = self.expect(2, "comm", "--transport", "nccl", "--ranks", "3", LONGNET_EMULATED_GPUS="2").stderr
        self.assertIn("share a GPU", refused)
        refused = self.expect(2, "comm", "--transport", "gpu", "--max-bytes", "8GiB", LONGNET_EMULATED_GPUS="2").stderr
        self.assertIn("--max-bytes 8 GiB", refused)

    def test_a_walk_is_the_cpus_walk(self):
        walk = ("--set", "sweep.seq_len=2K", "--set", "sweep.ranks=8", "--set", "model.heads=2",
                "--set", "dilated.segments=64,256,sequence", "--set", "check.sampled_queries=64")
        on_gpu = self.run_config("one-billion-gpu", *walk)[0]["points"][0]
        on_cpu = self.run_config("one-billion-gpu", *walk, "--set", "run.kernel=cpu", out="cpu")[0]["points"][0]
        self.assertEqual(on_gpu["status"], "ok")
        for key in ("input_digest", "rows", "absent_rows", "nan_values"):
            self.assertEqual(on_gpu["content"][key], on_cpu["content"][key], key)
        self.assertAlmostEqual(on_gpu["content"]["sum"], on_cpu["content"]["sum"], delta=1e-5 * on_cpu["content"]["sum_squares"])
        self.assertTrue(on_gpu["metrics"]["attend_share_of_kernel"] > 0)
        replayed = self.run_config("one-billion-gpu", *walk, "--replay", "0,7", out="replayed")[0]["points"][0]
        self.assertEqual((replayed["source"], replayed["status"]), ("replayed", "ok"))

    def test_a_walk_goes_on_after_a_kill(self):
        folder = self.path / "killed"
        args = ("run", "configs/one-billion-gpu.json", "--set", "sweep.seq_len=64K", "--set", "sweep.ranks=64", "--set", "model.heads=2",
                "--set", "dilated.segments=512,2K,sequence", "--set", "check.sampled_queries=64", "--progress", "none")
        with subprocess.Popen([LNBENCH, *args, "-o", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              cwd=pathlib.Path(__file__).resolve().parent.parent) as process:
            for _ in range(3000):
                if any(p.read_text().count("\n") >= 4 for p in folder.glob("shards-*.jsonl")):
                    break
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        kept = next(folder.glob("shards-*.jsonl")).read_text().count("\n")
        self.assertGreaterEqual(kept, 4)
        self.assertLess(kept, 64)
        self.expect(0, *args, "--resume", str(folder))
        point = self.result(folder)["points"][0]
        self.assertEqual((point["status"], point["content"]["rows"]), ("ok", 2 * (64 << 10)))
        self.assertEqual(point["content"]["nan_values"], 0)

    def test_ranks_as_processes(self):
        if not MPIRUN:
            self.skipTest("no MPI in this build")
        sweep = (*MODEL, "--set", "sweep.algorithm=dilated,ring", "--set", "sweep.seq_len=512", "--set", "sweep.batch.tokens_per_batch=512")
        result, _ = self.run_config("figure5-gpu", *sweep, "--transport", "mpi_host", ranks=2)
        self.assert_all_ok(result["points"])
        self.assertEqual({p["params"]["transport"] for p in result["points"]}, {"mpi_host"})
        out = self.expect(0, "comm", "--transport", "mpi_host", "--max-bytes", "4KiB", ranks=2).stdout
        self.assertIn("2 ranks (mpi_host)", out)
        # No process sees another's emulated GPU: what all ranks meet alike is a point's error, and the sweep goes on.
        result, _ = self.run_config("figure5-gpu", *sweep, "--transport", "cuda_ipc", ranks=2, out="broken", code=1)
        self.assertEqual([p["status"] for p in result["points"]], ["ok", "error", "error"])
        self.assertIn("only one process sees", result["points"][-1]["reason"])

    def test_a_plan_speaks_of_gpus(self):
        out = self.expect(0, "plan", "configs/h100-8.json", "--filter", "seq_len == 64K", LONGNET_EMULATED_GPUS="2").stdout
        self.assertIn("2 x emulated GPU on this machine, estimated at", out)
        self.assertNotIn("core", out)
        error = self.expect(2, "plan", "configs/h100-8.json", "--set", "run.kernel=cpu", "--transport", "nccl").stderr
        self.assertIn("moves the memory of GPUs", error)


if __name__ == "__main__":
    unittest.main()
