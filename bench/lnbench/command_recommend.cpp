// `lnbench recommend`: simulates every algorithm with its options on a cluster, and ranks them.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

#include "core/check.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/simulate_point.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// Programs of ranks that all differ are made one by one: larger sets take too long for an answer.
constexpr int64_t kMaxProgramBytes = int64_t{512} << 20;

// Differences below this are a tie on a cluster that does not say how far predictions may be off:
// the median error on a calibrated machine (results/reference/validation.md).
constexpr double kSure = 0.05;
double sure(const ClusterSpec& c) { return c.error.value > 0 ? c.error.value : kSure; }

constexpr std::string_view kHeader =
    "#   algorithm                              time         band                     "
    "memory     sent       why";

JsonNode words(const std::vector<std::string>& list) { return to_json(list); }

// The question as a config: one length, one number of ranks, every algorithm and option.
std::string question(const Options& o, const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const AlgorithmInfo& a : algorithms())
    if (a.pattern != PatternKind::kSparse) names.emplace_back(a.name);
  JsonNode sweep =
      JsonNode::object({{"algorithm", words(names)},
                        {"seq_len", o.seq_len},
                        {"ranks", o.ranks},
                        {"batch", JsonNode::object({{"rule", "fixed"}, {"size", o.batch}})},
                        {"collective", words({"native", "recursive_doubling", "hierarchical"})},
                        {"ulysses_degree", "divisors"}});
  if (o.causal) sweep.set("layout", words({"contiguous", "zigzag", "striped"}));
  if (o.ranks % cluster.node_size() == 0 && o.ranks > cluster.node_size())
    sweep.set("ring_inner", cluster.node_size());
  JsonNode segments = JsonNode::array(), dilated = JsonNode::object();
  for (const std::string& text : o.dilated_segments) {
    const auto tokens = try_parse_tokens(text);
    segments.push(tokens ? JsonNode(*tokens) : JsonNode(text));
  }
  if (!o.dilated_segments.empty()) dilated.set("segments", segments);
  return dump_json(JsonNode::object(
      {{"schema_version", 1},
       {"name", "question"},
       {"model", JsonNode::object({{"heads", o.heads},
                                   {"kv_heads", o.kv_heads > 0 ? o.kv_heads : o.heads},
                                   {"head_dim", o.head_dim},
                                   {"dtype", o.dtype},
                                   {"causal", o.causal}})},
       {"dilated", dilated},
       {"sweep", sweep}}));
}

std::string variant(const PointParams& p) {
  const std::string options = options_text(p, /*with_sections=*/false);
  return options.empty() ? p.algorithm : p.algorithm + " " + options;
}

std::string reason(const PointRecord& r, double fastest, double error) {
  const double total = r.timing.median_s;
  const double waits = r.phases.exposed_communication_s / total;
  std::string text;
  if (waits < 0.02)
    text = "attention decides, communication is hidden";
  else
    text = concat("waits ", std::lround(100 * waits), " % of the time for others");
  if (r.work.balance < 0.95)
    text += concat("; ",
                   r.params.problem.causal && r.params.layout == "contiguous"
                       ? "the mask"
                       : "unequal parts of tokens or heads",
                   " may leave ranks idle, balance ", std::round(100 * r.work.balance) / 100);
  if (total > 1.1 * fastest)
    text += concat("; ", std::round(100 * total / fastest) / 100, " x the first");
  else if (total > 1.0005 * fastest)
    text += concat("; ", std::round(1000 * (total / fastest - 1)) / 10, " % behind the first");
  if (total > 1.0005 * fastest && total <= (1 + error) * fastest) text += ": a tie";
  if (r.metrics.contains("beyond_kernel_table")) text += "; no measured kernel covers this size";
  return text;
}

void print_ranking(const char* title, std::vector<PointRecord> records, int top, double error) {
  std::ranges::stable_sort(records, {}, [](const PointRecord& r) { return r.timing.median_s; });
  std::cout << "# " << title << "\n";
  if (records.empty()) std::cout << "# none fits\n";
  for (size_t i = 0; i < records.size() && int(i) < top; ++i) {
    const PointRecord& r = records[i];
    std::cout << table_row(
                     kHeader,
                     {std::to_string(i + 1), variant(r.params), format_seconds(r.timing.median_s),
                      concat(format_seconds(r.timing.ci_low_s), " - ",
                             format_seconds(r.timing.ci_high_s)),
                      format_bytes(double(r.memory.predicted_peak_bytes.value_or(0))),
                      format_bytes(double(r.comm.predicted_bytes_per_rank.value_or(0))),
                      reason(r, records[0].timing.median_s, error)})
              << "\n";
  }
}

// One line for each reason, with who it stops.
void print_stopped(const std::vector<PointRecord>& stopped) {
  std::set<std::string> said;
  for (const PointRecord& r : stopped) {
    const std::string line = concat("# not possible: ", r.params.algorithm, ": ", r.reason);
    if (said.insert(line).second) std::cout << line << "\n";
  }
}

}  // namespace

int run_recommend(const Options& options) {
  const WhatIf what_if = parse_what_if(options.what_if.empty() ? "" : options.what_if[0]);
  SimulatePoint how{.cluster = apply(load_cluster(options.cluster), what_if), .what_if = what_if};
  if (options.alpha != "band") how.alpha = parse_enum<AlphaSet>(options.alpha);
  how.communication_alone = false;
  how.max_program_bytes = kMaxProgramBytes;
  if (options.ranks > how.cluster.num_gpus())
    throw UsageError(concat("--ranks ", options.ranks, ": ", how.cluster.name, " has ",
                            how.cluster.num_gpus(), " GPUs; --what-if nodes=",
                            (options.ranks + how.cluster.node_size() - 1) / how.cluster.node_size(),
                            " adds some"));
  if (const auto tokens = try_parse_tokens(options.seq_len); tokens && *tokens < options.ranks)
    throw UsageError(concat("--seq-len ", options.seq_len, " on --ranks ", options.ranks,
                            ": most ranks would have no token\n  hint: at most ", *tokens,
                            " ranks, or data parallelism (sweep.replicas)"));
  const Config config =
      parse_config(question(options, how.cluster), "the command line", {.known = known_names()});
  print_notes(options, config);
  std::vector<PointRecord> exact, dilated, stopped;
  const auto points = on_cluster(
      read_points(config, {.world_size = options.ranks, .mode = Mode::kSimulated, .transport = ""}),
      how);
  Progress progress(options, true, int(points.size()));
  int number = 0;
  for (const Point& point : points) {
    progress.start(++number, describe(point.params), 0);
    PointRecord r = simulate_point(point, how).record;
    if (r.status != PointStatus::kOk) {
      if (r.params.algorithm != "local") stopped.push_back(std::move(r));
      continue;
    }
    (r.params.algorithm == "dilated" ? dilated : exact).push_back(std::move(r));
  }
  progress.clear();
  const double error = sure(how.cluster);
  const AttentionProblem p = [&] {
    const auto& any = !exact.empty() ? exact : !dilated.empty() ? dilated : stopped;
    return any.at(0).params.problem;
  }();
  std::cout << "# " << format_tokens(p.seq_len) << " tokens x batch " << p.batch << ", "
            << p.num_heads << " heads (" << p.num_kv_heads << " K/V) of " << p.head_dim << ", "
            << to_string(p.dtype) << (p.causal ? ", causal" : "") << ", on " << options.ranks
            << " GPUs of " << how.cluster.name
            << (what_if.is_plain() ? "" : " with " + what_if.text()) << " (simulated)\n"
            << "# a tie: less than " << 100 * error << " % apart, which predictions cannot tell\n"
            << kHeader << "\n";
  print_ranking("exact attention", exact, options.top, error);
  print_ranking("dilated attention: another result, LongNet's approximation", dilated, options.top,
                error);
  print_stopped(stopped);
  return exact.empty() && dilated.empty() ? kFailed : kOk;
}

}  // namespace longnet
