#include "fuzz_targets.h"

#include <algorithm>

#include "io/filter.h"
#include "io/sha256.h"
#include "io/units.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "run/calibrate.h"
#include "run/checkpoint.h"
#include "run/shard_journal.h"
#include "run/simulate_point.h"
#include "run/sweep.h"
#include "run/validation.h"
#include "run/walk_point.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> texts_in(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == extension && fs::file_size(entry.path()) < 100000)
      paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const fs::path& path : paths) texts.push_back(read_file_text(path.string(), ""));
  return texts;
}

void require_same(const std::string& a, const std::string& b) {
  if (a != b) throw Error(concat("what was written reads as something else:\n", a, "\n", b));
}

std::string resolved_text(const Config& config) { return dump_json(resolved_config(config)); }

void parse_one_config(const std::string& text, int64_t run) {
  const KnownNames known = known_names();
  const Config config = parse_config(text, "fuzz.json", {.overrides = {}, .known = known});
  const std::string resolved = resolved_text(config);
  require_same(resolved, resolved_text(parse_config(resolved, "fuzz.json", {{}, known})));
  if (run % 8 != 0) return;
  const std::vector<Point> points = read_points(config, {.world_size = 2, .mode = config.run.mode});
  plan_point(points[size_t(run / 8) % points.size()], machine_limits(config, 1e11), 1, 2);
}

void parse_one_cluster(const std::string& text, const Config& config, int64_t run) {
  const ClusterSpec cluster = parse_cluster(text, "fuzz.json");
  const std::string written = cluster_to_json(cluster);
  require_same(written, cluster_to_json(parse_cluster(written, "fuzz.json")));
  const std::string what_if = run % 3 == 0 ? "bandwidth=0.5,nodes=64" : "";
  SimulatePoint how{.cluster = cluster, .what_if = parse_what_if(what_if)};
  how.cluster = apply(cluster, how.what_if);
  for (const Point& point : on_cluster(read_points(config, {.mode = Mode::kSimulated}), how))
    simulate_point(point, how);
}

void parse_one_result(const std::string& text, const Scratch& scratch) {
  const std::string written = result_to_json(read_result(scratch.put("result.json", text)));
  require_same(written, result_to_json(read_result(scratch.put("result.json", written))));
}

// A line that was changed passes no seal: every second run sets them anew.
std::string sealed_again(const std::string& text) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (seal_holds(line)) line = line.substr(0, line.rfind(",\"sha256\"")) + "}";
    lines += (line.empty() ? line : sealed(line)) + "\n";
    begin = end + 1;
  }
  return lines;
}

void parse_one_journal(const std::string& text, const Scratch& scratch, int64_t run) {
  const std::string lines = run % 2 == 0 ? text : sealed_again(text);
  if (lines.find("\"walk\"") == std::string::npos) {
    scratch.put("points.jsonl", lines);
    const Result result = read_result(scratch.folder());
    ResultWriter::resume(scratch.folder(), result, /*allow_changed_machine=*/true);
    return;
  }
  const std::string path = scratch.put("shards.jsonl", lines);
  const double share = ShardJournal::share_of(path, 1);
  const size_t before = ShardJournal(path, "fuzz", "plan", share).lines().size();
  if (ShardJournal(path, "fuzz", "plan", share).lines().size() != before)
    throw Error("a journal lost lines when it was opened");
}

void parse_one_filter(const std::string& text, const std::vector<Point>& points) {
  const Filter filter = parse_filter(text, known_names());
  for (const Point& point : points) filter(point);
}

void parse_one_word(const std::string& text) {
  if (const auto tokens = try_parse_tokens(text))
    require_same(concat(*tokens), concat(*try_parse_tokens(format_tokens(*tokens))));
  if (const auto bytes = try_parse_bytes(text)) format_bytes(double(*bytes));
  closest_match(text, filter_keys());
  for (const auto& parse : std::initializer_list<std::function<void()>>{
           [&] { format_seconds(parse_duration(text)); }, [&] { parse_fraction(text); },
           [&] { parse_ranks(text); }, [&] { parse_what_if(parse_what_if(text).text()); }}) {
    try {
      parse();
    } catch (const UsageError&) {  // the next may take it
    }
  }
}

// Cases of few ranks are predicted as well, some of them.
void parse_one_published(const std::string& text, const Scratch& scratch, int64_t run) {
  scratch.put("published/fuzz.json", text);
  const std::vector<PublishedCase> cases = load_published(scratch.folder() + "/published");
  const PublishedCase& one = cases[size_t(run) % cases.size()];
  if (run % 4 == 0 && one.params.ranks <= 64) judge_published({one}, {predict(one)});
}

// Adds a file of gpu_kernels_benchmark or `lnbench comm` to a cluster, which must read back equal.
void parse_one_gpu_file(const std::string& text, const ClusterSpec& base, const Scratch& scratch) {
  const std::string path = scratch.put("gpu.json", text);
  const bool link = text.find("lnbench comm") != std::string::npos;
  const std::string written = cluster_to_json(link ? with_measured_link(base, path)
                                                   : with_measured_kernels(base, path, "cuda"));
  require_same(written, cluster_to_json(parse_cluster(written, "fuzz.json")));
}

// Every second checkpoint gets its digest anew.
void parse_one_checkpoint(std::string text, const Scratch& scratch, int64_t run) {
  const size_t end = text.find('\n'), digest = text.find("\"sha256\":\"");
  if (run % 2 == 1 && digest < end && end != std::string::npos && end - digest > 74)
    text.replace(digest + 10, 64, sha256_hex(std::string_view(text).substr(end + 1)));
  const std::string path = scratch.put("checkpoint.bin", text);
  const auto again = [&] {
    if (const auto checkpoint = read_checkpoint(scratch.folder()))
      write_checkpoint(scratch.folder(), *checkpoint);
    return read_file_text(path, "");
  };
  const std::string written = again();
  require_same(written, again());
}

constexpr const char* kSmallConfig = R"({"schema_version": 1,
  "model": {"dtype": "bf16", "heads": 4, "head_dim": 64}, "dilated": {"segments": [256, "sequence"]},
  "sweep": {"algorithm": ["dilated", "ring", "ulysses"], "seq_len": "4K", "ranks": [1, 4]}})";

// As scripts/validate_real.py, gpu_kernels_benchmark and `lnbench comm` write them.
constexpr const char* kRealRuns = R"({"points": 2, "median_rel_error": 0.04, "p95_rel_error": 0.14,
  "max_rel_error": 0.2, "goal_median_rel_error": 0.05, "goal_p95_rel_error": 0.15, "reason": null,
  "setup": {"ranks": 2}, "left_out": 0, "cases": [
  {"algorithm": "ring", "seq_len": 8192, "measured_s": 0.5, "predicted_s": 0.52, "error": 0.04},
  {"algorithm": "dilated", "seq_len": 8192, "measured_s": 0.05, "predicted_s": 0.04}]})";
constexpr const char* kGpuKernels = R"({"program": "gpu_kernels_benchmark",
  "device": {"name": "GPU X"}, "points": [
  {"section": "sweep", "kernel": "cuda", "default": true, "rows": 4096, "head_dim": 64,
   "dilation_rate": 1, "causal": false, "flops_per_s": 5e14},
  {"section": "sweep", "kernel": "cudnn", "rows": 1, "head_dim": 64, "flops_per_s": 1},
  {"section": "backward", "kernel": "cuda", "rows": 2048, "head_dim": 128, "causal": true,
   "dilation_rate": 1, "flops_per_s": 3e14}]})";
constexpr const char* kGpuLinks = R"({"program": "lnbench comm", "transport": "nccl", "ranks": 2,
  "places": [{"rank": 0, "hostname": "a", "device": "0: X", "gpu": "g0"},
             {"rank": 1, "hostname": "b", "device": "0: X", "gpu": "g1"}],
  "rows": [{"operation": "exchange", "bytes": 1000, "median_s": 11e-6},
           {"operation": "all_gather", "bytes": 1000, "median_s": 1e-5},
           {"operation": "exchange", "bytes": 1000000, "median_s": 1010e-6}]})";

std::string text_of(const std::vector<UnitLine>& lines, const Scratch& scratch) {
  const std::string path = scratch.put("made.jsonl", "");
  {
    ShardJournal journal(path, "fuzz", "plan", 0.5);
    for (const UnitLine& line : lines) journal.append(line);
  }
  return read_file_text(path, "");
}

// A finished run: its result, or its journal, as corpus.
Target target_of_run(const std::string& name, const Config& config,
                     const std::vector<Point>& points, const Scratch& scratch) {
  const fs::path source = LONGNET_SOURCE_DIR;
  Result head{.run = {.name = "fuzz", .config_sha256 = config_sha256(config), .planned = 6}};
  head.run.config = parse_json(resolved_text(config), "config");
  head.path = scratch.folder() + "/run";
  ResultWriter writer = ResultWriter::create(head);
  for (const Point& point : points) {
    PointRecord record = make_record(point);
    set_timing(record, {0.25, 0.5, 0.125}, 1);
    record.timeline = {{0, "compute", "attend", 0, 1, "branch 1"}};
    writer.append(record);
  }
  writer.finish(6);
  const std::string folder = writer.directory() + "/";
  if (name == "result") {
    Target target{
        name, texts_in(source / "results", ".json"),
        [&scratch](const std::string& text, int64_t) { parse_one_result(text, scratch); }};
    target.corpus.push_back(read_file_text(folder + "result.json", ""));
    return target;
  }
  scratch.put("run.json", read_file_text(folder + "run.json", ""));
  UnitLine line;
  line.finished_utc = "2026-01-01T00:00:00Z";
  line.seconds["attend"] = 0.5;
  line.heads = {{.rows = 7, .sum = 0.5}};
  Target target{
      name,
      {read_file_text(folder + "points.jsonl", ""), text_of({line, line}, scratch)},
      [&scratch](const std::string& text, int64_t run) { parse_one_journal(text, scratch, run); }};
  for (const std::string& text : texts_in(source / "results", ".jsonl"))
    if (text.find("\"walk\"") != std::string::npos) target.corpus.push_back(text);
  return target;
}

}  // namespace

Target make_target(const std::string& name, const Scratch& scratch) {
  const fs::path source = LONGNET_SOURCE_DIR;
  const Config small = parse_config(kSmallConfig, "small.json", {{}, known_names()});
  const std::vector<Point> points = read_points(small, {.world_size = 4});
  if (name == "config") return {name, texts_in(source / "configs", ".json"), parse_one_config};
  if (name == "cluster")
    return {name, texts_in(source / "configs/clusters", ".json"),
            [small](const std::string& text, int64_t run) { parse_one_cluster(text, small, run); }};
  if (name == "filter")
    return {name,
            {"algorithm==dilated && seq_len<=1M", "!(causal || ranks > 4) && id != '9c41d07b'",
             "dtype == \"bf16\" && heads >= 1.5", "(((batch < 2)))"},
            [points](const std::string& text, int64_t) { parse_one_filter(text, points); }};
  if (name == "tokens")
    return {name,
            {"8K", "1B", "12.5 GiB", "90s", "1.5h", "5%", "0,17,4095", "9223372036854775807",
             "bandwidth=0.5,taper=2,straggler=0.2@17,kernel=fa3", "straggler=0.2x8,nodes=1024"},
            [](const std::string& text, int64_t) { parse_one_word(text); }};
  if (name == "published") {
    fs::create_directories(scratch.folder() + "/published");
    fs::copy(source / "configs/clusters", scratch.folder() + "/clusters");
    return {name, texts_in(source / "configs/published", ".json"),
            [&scratch](const std::string& text, int64_t run) {
              parse_one_published(text, scratch, run);
            }};
  }
  if (name == "real")
    return {name, {kRealRuns}, [](const std::string& text, int64_t) {
              judge_real(parse_json(text, "fuzz.json"));
            }};
  if (name == "gpu") {
    const ClusterSpec base = load_cluster((source / "configs/clusters/h100-ndr400.json").string());
    return {name, {kGpuKernels, kGpuLinks}, [base, &scratch](const std::string& text, int64_t) {
              parse_one_gpu_file(text, base, scratch);
            }};
  }
  if (name == "checkpoint") {
    write_checkpoint(scratch.folder(), {3, {0.5f, -1}, {0, 1e-9f}, {1e30f, 2}});
    return {name,
            {read_file_text(scratch.folder() + "/checkpoint.bin", "")},
            [&scratch](const std::string& text, int64_t run) {
              parse_one_checkpoint(text, scratch, run);
            }};
  }
  if (name == "result" || name == "journal") return target_of_run(name, small, points, scratch);
  throw UsageError(concat("no target is named '", name, "'"));
}

}  // namespace longnet
