#!/usr/bin/env python3
"""Simulations and calibration by the command line. Run by ctest."""
import collections
import itertools
import json
import os
import pathlib
import re
import unittest

from cli_case import MPIRUN, ROOT, SMALL, Case


class Simulate(Case):
    CLUSTER = str(ROOT / "configs" / "clusters" / "h100-ndr400.json")

    def simulate(self, *args, code=0, **more):
        return self.expect(code, "simulate", self.config, "--cluster", self.CLUSTER, "--set", "model.dtype=bf16", *args, **more)

    def test_points_of_a_cluster(self):
        folder = self.path / "out"
        out = self.simulate("--set", "sweep.ranks=8,512", "--what-if", "latency=3", "--what-if", "", "-o", str(folder)).stdout
        self.assertIn("messages_per_s", out)
        result = self.result(folder)
        self.assertEqual(result["summary"]["verdict"], "pass")
        points = [p for p in result["points"] if p["status"] == "ok"]
        seconds = {(p["params"]["algorithm"], p["params"]["seq_len"], p["params"]["ranks"], p["params"]["cluster"]): p["timing"]["median_s"]
                   for p in points}
        for p in points:
            *key, cluster = (p["params"][k] for k in ("algorithm", "seq_len", "ranks", "cluster"))
            ratio = p["metrics"].get("ratio_to_unchanged")
            self.assertEqual(ratio, None if " " not in cluster else p["timing"]["median_s"] / seconds[*key, "h100-ndr400"])
            self.assertRegex(out, rf"(?m)^{p['id']} .*" + (rf" x{ratio:.3g} .* latency=3" if ratio else " - "))
        self.assertGreater(max(p["metrics"].get("ratio_to_unchanged", 0) for p in points), 1.5)
        self.assertEqual({p["source"] for p in points}, {"simulated"})
        self.assertEqual({p["params"]["cluster"] for p in points}, {"h100-ndr400", "h100-ndr400 latency=3"})
        self.assertEqual(len({p["id"] for p in points}), len(points))
        for p in points:
            timing, phases = p["timing"], p["phases"]
            whole = sum(phases[k] for k in ("compute_s", "merge_s", "exposed_communication_s"))
            self.assertAlmostEqual(whole / p["ablations"]["full_s"], 1, places=9)  # parts that do not overlap
            self.assertLessEqual(timing["ci_low_s"], timing["median_s"])
            self.assertLessEqual(timing["median_s"], timing["ci_high_s"])
            self.assertGreater(p["memory"]["predicted_peak_bytes"], 0)
        self.assert_valid(str(folder))

    def test_on_one_core_the_same_in_the_same_order(self):
        def points(out):
            self.simulate("--set", "sweep.ranks=4,8,16,64", "-o", str(self.path / out))
            found = self.result(self.path / out)["points"]
            for p in found:
                for cost in ("simulation_s", "messages_per_s"):
                    p.get("metrics", {}).pop(cost, None)
            return found
        cores = os.sched_getaffinity(0)
        on_all = points("all")
        self.addCleanup(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        self.assertEqual(points("one"), on_all)

    def test_one_of_equal_groups_stands_for_all(self):
        names = ["dilated", "ring", "ulysses", "local"]
        config = self.write("groups.json", SMALL | {
            "model": {"heads": 4, "head_dim": 64, "dtype": "bf16"},
            "sweep": {"algorithm": names, "seq_len": "16K", "ranks": 8, "batch": {"rule": "fixed", "size": 8},
                      "replicas": [1, 2, "auto", 3]}})
        def simulate(out, *sets, code=0):
            args = [word for s in sets for word in ("--set", s)]
            self.expect(code, "simulate", config, "--cluster", self.CLUSTER, *args, "-o", str(self.path / out))
            self.assert_valid(str(self.path / out))
            return {(p["params"]["algorithm"], p["params"].get("replicas", 1)): p for p in self.result(self.path / out)["points"]}
        groups, alone = simulate("groups"), simulate("alone", "sweep.ranks=4", "sweep.batch.size=4", "sweep.replicas=1")
        for name in ("dilated", "ring", "ulysses"):
            both, one = groups[name, 2], alone[name, 1]
            self.assertEqual((both["params"]["ranks"], both["params"]["batch"]), (8, 8))
            self.assertEqual(both["timing"], one["timing"])
            self.assertEqual(both["comm"], one["comm"])
            self.assertEqual(both["memory"], one["memory"])
            self.assertEqual(both["work"]["flops"], 2 * one["work"]["flops"])
            self.assertEqual(both["work"]["tokens"], 2 * one["work"]["tokens"])
            self.assertEqual(both["work"]["paper_macs"], 2 * one["work"]["paper_macs"])
            self.assertAlmostEqual(both["work"]["flops_per_s"] / one["work"]["flops_per_s"], 2, places=9)
            self.assertAlmostEqual(both["work"]["share_of_peak"] / one["work"]["share_of_peak"], 1, places=9)
            self.assertEqual(both["work"]["balance"], one["work"]["balance"])
            self.assertIn("must divide the ranks", groups[name, 3]["reason"])
        # A rank for each sequence: nothing to exchange, every exact algorithm is the local one.
        self.assertEqual(groups["ring", 8]["timing"], groups["local", 8]["timing"])
        self.assertEqual(groups["ring", 8]["comm"]["predicted_bytes_per_rank"], 0)
        self.assertEqual(groups["local", 2]["status"], "skipped_unsupported")
        # All ranks must be there, though one group is simulated; slow ranks are looked for in that group.
        many = simulate("many", "sweep.ranks=8192", "sweep.batch.size=8192", "sweep.replicas=8192", code=1)  # not one point
        self.assertIn("has 4096", many["ring", 8192]["reason"])
        late = self.expect(0, "simulate", config, "--cluster", self.CLUSTER, "--what-if", "straggler=1@5", "--set",
                           "sweep.replicas=2,1", "-o", str(self.path / "late")).stdout
        self.assertIn("of 2 replicas the first is simulated, ranks 0 to 3", late)
        # Real ranks have no groups: run and check leave such points out, and run says why.
        sets = ("model.dtype=fp32", "sweep.seq_len=256", "sweep.algorithm=ring", "sweep.ranks=2", "sweep.replicas=1,2")
        args = ["--ranks", "2", *[word for s in sets for word in ("--set", s)]]
        done = self.expect(0, "run", config, *args, "-o", str(self.path / "run"))
        self.assertIn("only `lnbench simulate` has them", done.stdout)
        self.assertIn("1 left out", self.expect(0, "check", config, *args).stdout)
        self.assertIn("only `lnbench simulate` has them", self.expect(0, "plan", config, *args).stdout)
        ran = {p["params"].get("replicas", 1): p["status"] for p in self.result(self.path / "run")["points"]}
        self.assertEqual(ran, {1: "ok", 2: "skipped_unsupported"})

    def test_passes_are_points_of_their_own(self):
        folder = self.path / "out"
        sets = ["--set", "sweep.pass=forward,backward,forward_backward", "--set", "sweep.algorithm=ring", "--set", "sweep.ranks=8",
                "--set", "sweep.seq_len=64K"]
        self.simulate(*sets, "-o", str(folder))
        points = {p["params"].get("pass", "forward"): p for p in self.result(folder)["points"]}
        self.assertEqual({p["status"] for p in points.values()}, {"ok"})
        flops, seconds = ({name: value(p) for name, p in points.items()}
                          for value in (lambda p: p["work"]["flops"], lambda p: p["timing"]["median_s"]))
        self.assertEqual([flops["backward"], flops["forward_backward"]], [2.5 * flops["forward"], 3.5 * flops["forward"]])
        self.assertGreater(seconds["backward"], 1.5 * seconds["forward"])
        self.assertAlmostEqual(seconds["forward_backward"] / (seconds["forward"] + seconds["backward"]), 1, places=1)
        self.assert_valid(str(folder))
        # A cluster without rows of backward passes is refused, not guessed.
        cluster = json.loads(pathlib.Path(self.CLUSTER).read_text())
        rows = cluster["device"]["attend"]
        cluster["device"]["attend"] = [row for row in rows if not row.get("backward")]
        plain = self.write("plain.json", cluster)
        none = self.path / "none"
        self.expect(1, "simulate", self.config, "--cluster", plain, "--set", "model.dtype=bf16", *sets[2:], "--set", "sweep.pass=backward",
                    "-o", str(none))
        (point,) = self.result(none)["points"]
        self.assertRegex(point["reason"], "no speed of the backward pass of attention in bf16.*sweep.pass=forward")

    def test_what_cannot_run_says_why(self):
        args = ("simulate", self.config, "--cluster", self.CLUSTER, "-o", str(self.path / "fp32"))
        self.assertIn("or --set model.dtype=bf16", self.expect(1, *args, "--wide").stdout)
        folder = self.path / "out"
        self.simulate("--set", "sweep.ranks=8,8192", "--set", "sweep.seq_len=16K", "-o", str(folder))
        reasons = {p["reason"] for p in self.result(folder)["points"] if p["status"] == "skipped_unsupported"}
        self.assertTrue(any("has 4096" in r for r in reasons), reasons)
        text = self.expect(2, "simulate", self.config, "--cluster", self.config).stderr
        self.assertIn("unknown key", text)
        self.assertIn("did you mean 'bandwidth'", self.simulate("--what-if", "bandwith=2", code=2).stderr)

    def test_a_config_names_its_cluster_and_what_ifs(self):
        folder, config = self.path / "out", self.path / "asks.json"
        block = {"file": self.CLUSTER, "what_if": ["", "latency=2,straggler=0.5@3"]}

        def write(cluster):
            config.write_text(json.dumps({"extends": self.config, "model": {"dtype": "bf16"}, "cluster": cluster}))

        write(block)
        args = [str(config), "--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "--filter", "algorithm == ring"]
        self.expect(0, "simulate", *args, "-o", str(folder))
        found = {p["params"]["cluster"]: p["timing"]["median_s"] for p in self.result(folder)["points"]}
        self.assertEqual(set(found), {"h100-ndr400", "h100-ndr400 latency=2 straggler=0.5@3"})
        self.assertLess(found["h100-ndr400"], found["h100-ndr400 latency=2 straggler=0.5@3"])
        self.assert_valid(str(folder))
        # The command line goes before it; other commands do not look.
        other = str(ROOT / "configs" / "clusters" / "gb200-nvl72.json")
        self.expect(0, "simulate", *args, "--cluster", other, "--what-if", "bandwidth=2", "-o", str(self.path / "two"))
        self.assertEqual({p["params"]["cluster"] for p in self.result(self.path / "two")["points"]}, {"gb200-nvl72 bandwidth=2"})
        self.assertNotIn("h100", self.expect(0, "plan", *args).stdout)
        for cluster, message in (
            ({"fil": "x"}, "cluster.fil: unknown key"),
            ({"file": self.CLUSTER, "what_if": ["bandwith=2"]}, "cluster.what_if: what if 'bandwith=2'"),
            ({"file": self.CLUSTER, "what_if": [2]}, "cluster.what_if: must be a string"),
            ({"file": self.CLUSTER, "what_if": ["", ""]}, "stands there twice"),
            ({"file": ""}, "cluster.file: is empty"),
            ({"what_if": ["latency=2"]}, "no cluster to simulate"),
        ):
            write(cluster)
            self.assertIn(message, self.expect(2, "simulate", *args).stderr)

    def test_what_nccl_would_not_do_is_skipped(self):
        args = ["--set", "sweep.ranks=16", "--set", "sweep.seq_len=64K", "--set", "sweep.algorithm=all_gather", "--set",
                "sweep.collective=nccl_pat"]
        self.simulate(*args, "--what-if", "", "--what-if", "gpus_per_node=1", "-o", str(self.path / "out"))
        shared, alone = self.result(self.path / "out")["points"]
        self.assertIn("needs one GPU per node, h100-ndr400 has 8", shared["reason"])
        self.assertEqual(alone["status"], "ok")
        late = self.simulate("--set", "sweep.ranks=4", "--what-if", "straggler=1@16", "-o", str(self.path / "late"), code=1).stdout
        self.assertIn("verdict: incomplete", late)
        self.assertIn("there is no rank 16 of 4", late)

    def test_a_cluster_takes_what_a_gpu_measured(self):
        point = {"section": "sweep", "kernel": "cuda", "head_dim": 64, "rows": 2048, "dilation_rate": 1, "causal": False, "flops_per_s": 1e13}
        report = {"program": "gpu_kernels_benchmark", "device": {"name": "Some GPU"},
                  "points": [point, point | {"rows": 8192, "flops_per_s": 2e13}, point | {"section": "dilation", "rows": 512},
                             point | {"causal": True, "flops_per_s": None}, point | {"kernel": "cudnn", "shape": "", "default": True, "flops_per_s": 5e14},
                             point | {"rows": 4096, "shape": "64x64q-4", "default": False},
                             {"section": "gemm", "dtype": "bf16", "m": 10, "n": 20, "k": 30, "flops_per_s": 4e14},
                             {"section": "gemm", "dtype": "bf16", "m": 10, "n": 20, "k": 90, "flops_per_s": 8e14},
                             {"section": "gemm", "dtype": "fp32", "m": 10, "n": 20, "k": 30, "status": "error"}]}
        kernels, made = self.write("kernels.json", report), self.path / "measured.json"
        args = ("calibrate", "--cluster", self.CLUSTER, "--gpu-kernels")
        self.expect(0, *args, kernels, "-o", str(made))
        device = json.loads(made.read_text())["device"]  # measured rows are those of their own kernel, which the cluster takes
        rows = device["attend"]
        self.assertAlmostEqual(device["gemm_flops"]["bf16"]["value"] / 6.4e14, 1)  # 4 parts of FLOPs in 2.5 of time
        self.assertNotIn("fp32", device["gemm_flops"])

        def replaced(r):
            return r["head_dim"] == 64 and not r["causal"] and not r.get("backward") and r["kernel"] == device["kernel"]

        plain = [r for r in rows if replaced(r)]
        self.assertEqual([(r["rows"], r["flops_per_s"]) for r in plain], [(2048, 1e13), (8192, 2e13)])
        self.assertIn("measured on Some GPU", plain[0]["source"])
        published = json.loads(pathlib.Path(self.CLUSTER).read_text())["device"]["attend"]
        self.assertEqual([r for r in rows if r not in plain], [r for r in published if not replaced(r)])
        self.expect(0, "simulate", self.config, "--cluster", str(made), "--set", "model.dtype=bf16", "--set", "sweep.ranks=4",
                    "-o", str(self.path / "out"))
        self.assertIn("it has cuda, cudnn", self.expect(2, *args, kernels, "--kernel", "gather", "-o", str(made)).stderr)
        self.assertIn("no figures of kernels", self.expect(2, *args, self.CLUSTER, "-o", str(made)).stderr)
        self.expect(2, "calibrate", "--gpu-kernels", kernels)

    def test_a_cluster_takes_a_link_that_gpus_measured(self):
        row = {"operation": "exchange", "median_s": None}
        report = {"program": "lnbench comm", "transport": "nccl",
                  "places": [{"rank": r, "hostname": "one", "device": f"{r}: Some GPU", "gpu": f"uuid {r}"} for r in range(2)],
                  "rows": [row | {"bytes": n, "median_s": 1e-5 + n / 2e11} for n in (1024, 65536, 1 << 24)] +
                          [row | {"bytes": 4}, row | {"bytes": 1024, "operation": "send_recv", "median_s": 1e-3}]}
        made = self.path / "measured.json"
        args = ("calibrate", "--cluster", self.CLUSTER, "-o", str(made), "--gpu-comm")
        published = json.loads(pathlib.Path(self.CLUSTER).read_text())
        for link, hostname in (("intra", "one"), ("inter", "two")):
            report["places"][1]["hostname"] = hostname
            self.assertIn("nodes measured with nccl", self.expect(0, *args, self.write("comm.json", report)).stdout)
            links = json.loads(made.read_text())["links"]
            alpha = links[link]["alpha_s"]
            self.assertIn("0: Some GPU and 1: Some GPU", alpha.pop("source"))
            for value in alpha.values() if len(alpha) > 1 else [alpha["value"]]:
                self.assertAlmostEqual(value + links[link]["call_s"]["value"], 1e-5, delta=1e-10)
            self.assertAlmostEqual(links[link]["bandwidth_bytes_per_s"]["value"] / 2e11, 1, delta=1e-6)
            other = "inter" if link == "intra" else "intra"
            self.assertEqual(links[other], published["links"][other])
            self.assertEqual(json.loads(made.read_text())["device"], published["device"])
        shared = [{"hostname": "one", "device": "0: Some GPU", "gpu": "uuid 0"}] * 2
        self.assertIn("shared a GPU", self.expect(2, *args, self.write("comm.json", report | {"places": shared})).stderr)
        for wrong in (report | {"transport": "mpi"}, report | {"program": "other"}):
            self.assertIn("no times of messages between GPUs", self.expect(2, *args, self.write("comm.json", wrong)).stderr)
        self.assertIn("fewer than two sizes", self.expect(2, *args, self.write("comm.json", report | {"rows": []})).stderr)
        self.assertIn("--gpu-kernels or --gpu-comm", self.expect(2, "calibrate", "--cluster", self.CLUSTER).stderr)

    def test_the_result_holds_its_cluster(self):
        out = self.path / "out"
        self.simulate("--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "-o", str(out))
        run = self.result(out)["run"]
        kept = self.write("kept.json", run["cluster"])
        again = self.path / "again"
        self.expect(0, "simulate", self.config, "--cluster", kept, "--set", "model.dtype=bf16", "--set", "sweep.ranks=4", "--set",
                    "sweep.seq_len=8K", "-o", str(again))
        other = self.result(again)
        self.assertEqual(other["run"]["cluster_sha256"], run["cluster_sha256"])
        self.assertEqual([p["timing"]["median_s"] for p in other["points"]],
                         [p["timing"]["median_s"] for p in self.result(out)["points"]])

    def test_trace(self):
        trace = self.path / "trace.json"
        self.simulate("--set", "sweep.ranks=4", "--set", "sweep.seq_len=8K", "--filter", "algorithm == ring", "--trace", str(trace),
                      "-o", str(self.path / "out"))
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {0, 1, 2, 3})
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        tracks = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
                if e["name"] in ("send", "recv"):
                    self.assertEqual(abs(e["args"]["peer"] - e["pid"]) % 2, 1)  # a neighbour of four in a ring
                    self.assertGreater(e["args"]["bytes"], 0)
        steps = collections.Counter((e["pid"], e["args"]["branch"]) for e in events if e["name"] == "attend")
        self.assertEqual(steps, {(rank, 0): 4 for rank in range(4)})  # one branch, a step of the ring each
        self.assertEqual({e["args"]["step"] for e in events if e["name"] == "attend"}, {0, 1, 2, 3})
        self.assertEqual(set(names), set(tracks))
        self.assertTrue({"compute", "send", "receive"} <= set(names.values()))
        for done in tracks.values():  # nothing overlaps on a track
            for (_, end, _), (begin, _, _) in itertools.pairwise(sorted(done)):
                self.assertLessEqual(end, begin + 1e-6)
        self.assertTrue({"attend", "send", "recv", "wait"} <= {name for done in tracks.values() for _, _, name in done})
        self.assertIn("--trace shows one point", self.simulate("--set", "sweep.ranks=1,4", "--trace", "x", code=2).stderr)

    def test_recommend(self):
        out = self.expect(0, "recommend", "--cluster", self.CLUSTER, "--seq-len", "1M", "--ranks", "64", "--causal").stdout
        first = out.split("# exact attention\n")[1].splitlines()[0]
        self.assertIn("zigzag", first)
        name = first.split()[2]
        self.assertRegex(out.splitlines()[0], rf"^# exact attention: use {name} .*[\d.]+ [mu]?s \([\d.]+ [mu]?s to ")
        self.assertIn("# dilated attention: use dilated", out.splitlines()[1] + out.splitlines()[2])
        self.assertRegex(out, r"\d+ left out, as their ranks do the same: .*usp Pu=1 \(ring\)")
        self.assertNotIn("a tie:", out.split("# exact attention\n")[1])
        self.assertIn("left out: ulysses, ulysses zigzag, ulysses striped: ", out)
        legend = " ".join(line.lstrip("# ") for line in out.split("# attention place")[0].splitlines())
        self.assertIn("on 64 ranks of h100-ndr400 with kernel cudnn (simulated)", legend)
        self.assertEqual(legend.count("more keys than the kernel table has, whose longest row has 16K"), 1)
        self.assertNotIn("more keys", out.split("# attention place")[1])
        self.assertEqual(legend.count("rings over nodes may be predicted too fast"), 1)
        alone = self.expect(0, "recommend", "--cluster", self.CLUSTER, "--seq-len", "8K", "--ranks", "8").stdout
        self.assertNotIn("rings over nodes", alone)
        self.assertNotIn("more keys", alone)
        guessed = self.expect(0, "recommend", "--cluster", "a100", "--seq-len", "64K", "--ranks", "8").stdout
        self.assertRegex(guessed.replace("\n#   ", " "), r"use .*, by estimated kernel speeds; ")
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        rows = self.rows("recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64", "--top", "2")
        self.assertEqual([(row["attention"], row["place"]) for row in rows], [("exact", "1"), ("exact", "2"), ("dilated", "1"), ("dilated", "2")])
        pattern = "2048/1,16384/8,1048576/512"  # 1M tokens on 64 ranks, geometric
        self.assertEqual([row["branches"] for row in rows], ["", "", pattern, pattern])
        self.assertIn(f"# dilated attention, segments/rates {pattern}: another function of the tokens", out)
        rows = self.rows("recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64", "--pass", "forward_backward", "--top", "20")
        self.assertTrue(any(row["algorithm"].startswith("query_ring") for row in rows), rows)
        self.assertIn("has 4096 GPUs", self.expect(2, "recommend", "--cluster", self.CLUSTER, "--seq-len", "1M", "--ranks", "5000").stderr)
        asked = ("recommend", "--cluster", "h100", "--seq-len", "1M", "--ranks", "64")
        done = self.expect(2, *asked, "--dtype", "fp16")
        self.assertEqual(done.stderr, "error: --dtype does not take 'fp16'\n  hint: it takes fp32, bf16\n")
        self.assertIn("--pass does not take 'step'", self.expect(2, *asked, "--pass", "step").stderr)
        done = self.expect(2, *asked, "--dtype", "fp32")
        self.assertEqual(done.stderr, "error: h100-ndr400 has no speed of attention in fp32\n  hint: try --dtype bf16\n")
        self.assertEqual(done.stdout, "")

    def test_recommend_says_how_what_ifs_change_the_answer(self):
        asked = ("recommend", "--cluster", "h100", "--seq-len", "256K", "--ranks", "16", "--top", "30", "--what-if")
        both = (*asked, "inter_bandwidth=0.1", "--what-if", "")
        out = self.expect(0, *both).stdout
        answers = re.findall(r"^# (\w+ attention(?: with [a-z_]+=[\d.]+)?): use ", out, re.MULTILINE)
        self.assertEqual(answers, ["exact attention", "dilated attention", "exact attention with inter_bandwidth=0.1",
                                   "dilated attention with inter_bandwidth=0.1"])
        self.assertRegex(out, r"(?m)^# attention place algorithm +time +low +high +ratio +memory$")
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        found = self.rows(*both)
        seconds = {row["algorithm"]: float(row["median_s"]) for row in found if row["cluster"] == "h100-ndr400"}
        changed = [row for row in found if row["cluster"] == "h100-ndr400 inter_bandwidth=0.1"]
        self.assertEqual({row["ratio_to_unchanged"] for row in found if row not in changed}, {""})
        ratios = {row["algorithm"]: float(row["ratio_to_unchanged"]) for row in changed if row["algorithm"] in seconds}
        self.assertEqual(ratios, {row["algorithm"]: float(row["median_s"]) / seconds[row["algorithm"]] for row in changed if row["algorithm"] in ratios})
        self.assertGreater(ratios["ring"], 2)
        alone = self.rows(*asked, "inter_bandwidth=0.1")
        self.assertEqual(alone, [{k: v for k, v in row.items() if k != "ratio_to_unchanged"} for row in changed])
        of_fa3 = self.expect(0, *asked, "kernel=fa3").stdout
        self.assertIn("exact attention with kernel=fa3: use", of_fa3)
        self.assertIn("h100-ndr400 with kernel fa3", of_fa3.replace("\n#   ", " "))
        several = self.expect(0, *asked, "kernel=fa3", "--what-if", "latency=2", "--what-if", "").stdout
        titles = ["exact attention, kernel cudnn", "exact attention with kernel=fa3", "exact attention with latency=2, kernel cudnn"]
        self.assertEqual(re.findall(r"^# (exact attention[^:\n]*)$", several, re.MULTILINE), titles)
        self.assertEqual(re.findall(r"^# (exact attention[^:\n]*): use ", several, re.MULTILINE), titles)
        self.assertNotIn("with kernel cudnn", several)
        for slow, why in (("0.2@16", "there is no rank 16 of 16"), ("0.2x17", "17 slow ranks of 16")):
            done = self.expect(2, *asked, "", "--what-if", f"straggler={slow}")
            self.assertEqual((done.stdout, done.stderr), ("", f"error: --what-if 'straggler={slow}': {why}\n"))
        self.assertIn("there twice", self.expect(2, *asked, "latency=2", "--what-if", "latency=2").stderr)
        self.assertIn("has 8 GPUs; --what-if nodes=2 adds some", self.expect(2, *asked, "nodes=1").stderr)


class Calibrate(Case):
    def calibrated(self, *args, **more):
        path = self.path / "here.json"
        self.expect(0, "calibrate", "--quick", "-q", "-o", str(path), *args, **more)
        self.assert_valid(str(path))
        return path, json.loads(path.read_text())

    def test_a_cluster_file_that_simulate_takes(self):
        path, cluster = self.calibrated("--ranks", "2")
        self.assertEqual((cluster["name"], cluster["gpus_per_node"]["value"]), ("here", 2))
        self.assertIn("measured by lnbench calibrate, 20", cluster["device"]["launch_s"]["source"])
        self.assertNotIn(os.uname().nodename + " ", path.read_text())
        self.assertFalse(cluster["async_progress"]["value"])
        models = {(m["dtype"], m["causal"]) for m in cluster["device"]["attend_model"]}
        self.assertEqual(models, {(d, c) for d in ("fp32", "bf16") for c in (False, True)})
        folder = self.path / "out"
        self.expect(0, "simulate", self.config, "--cluster", str(path), "-o", str(folder))
        seconds = [p["timing"]["median_s"] for p in self.result(folder)["points"] if p["status"] == "ok"]
        self.assertEqual(len(seconds), 10)
        self.assertTrue(all(s > 0 for s in seconds))

    def test_on_mpi_ranks(self):
        if not MPIRUN:
            self.skipTest("no MPI in this build")
        _, cluster = self.calibrated(ranks=2)
        self.assertIn("2 ranks (mpi)", cluster["links"]["intra"]["bandwidth_bytes_per_s"]["source"])

    def test_mistakes(self):
        error = self.expect(2, "calibrate", "--quick", "--ranks", "1", "-o", str(self.path / "no" / "where.json")).stderr
        self.assertIn("there is no folder", error)
        error = self.expect(2, "calibrate", "--quick", "--ranks", "1", "-o", str(self.path)).stderr  # before it measures
        self.assertIn("that is a folder", error)
        nowhere = str(self.path / "no" / "where.json")
        for args in (["validate", "--json", nowhere], ["env", "--json", nowhere],
                     ["simulate", self.config, "--cluster", "h100", "--set", "model.dtype=bf16", "--filter", "algorithm==ring && ranks==2 && seq_len==256",
                      "--trace", nowhere, "-o", str(self.path / "out")]):
            done = self.expect(2, *args)
            self.assertIn("there is no folder", done.stderr)
            self.assertEqual(done.stdout, "")  # before any work
        for option in ("--real", "--published"):  # refused before the minute that SimGrid takes
            error = self.expect(2, "validate", option, str(self.path / "none")).stderr
            self.assertIn("none", error)
            self.assertNotIn("SimGrid", error)


if __name__ == "__main__":
    unittest.main()
