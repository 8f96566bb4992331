// `lnbench recommend`: simulates every algorithm with its options on a cluster, and ranks them.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/shipped.h"
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

struct Choice {
  size_t place;
  std::string kind;  // "exact", "dilated"
  const PointRecord& record;
  double fastest_s, error;  // a tie: as much apart
};

std::vector<Column<Choice>> choice_columns() {
  using enum Shown;
  using C = const Choice&;
  return {
      {"attention", "", kText, 9, 1, [](C c) { return c.kind; }},
      {"place", "", kNumber, 5, 0, [](C c) { return c.place; }},
      {"algorithm", "", kText, 32, 0, [](C c) { return variant(c.record.params); }},
      {"median_s", "time", kSeconds, 9, 0, [](C c) { return c.record.timing.median_s; }},
      {"ci_low_s", "low", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_low_s; }},
      {"ci_high_s", "high", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_high_s; }},
      {"memory_bytes", "memory", kBytes, 8, 0,
       [](C c) { return to_json(c.record.memory.predicted_peak_bytes); }},
      {"bytes_per_rank", "sent", kBytes, 8, 0,
       [](C c) { return to_json(c.record.comm.predicted_bytes_per_rank); }},
      {"why", "", kNote, 0, 0, [](C c) { return reason(c.record, c.fastest_s, c.error); }},
  };
}

void add_ranking(Table<Choice>& table, const char* title, const char* kind,
                 std::vector<PointRecord> records, int top, double error) {
  std::ranges::stable_sort(records, {}, [](const PointRecord& r) { return r.timing.median_s; });
  table.note(title);
  if (records.empty()) table.note("none fits");
  for (size_t i = 0; i < records.size() && int(i) < top; ++i)
    table.add({i + 1, kind, records[i], records[0].timing.median_s, error});
}

// One line for each reason, with who it stops.
void note_stopped(TableWriter& table, const std::vector<PointRecord>& stopped) {
  std::set<std::string> said;
  for (const PointRecord& r : stopped)
    if (const std::string why = concat(r.params.algorithm, ": ", r.reason); said.insert(why).second)
      table.note("not possible: " + why);
}

}  // namespace

int run_recommend(const Options& options) {
  if (options.what_if.size() > 1)
    throw UsageError("one --what-if at a time: several changes of it with commas");
  const WhatIf what_if = parse_what_if(options.what_if.empty() ? "" : options.what_if[0]);
  SimulatePoint how{
      .cluster = apply(load_cluster(find_shipped("clusters", options.cluster)), what_if),
      .what_if = what_if};
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
  Table<Choice> table(choice_columns(), table_style(options));
  table.note(concat(format_tokens(p.seq_len), " tokens x batch ", p.batch, ", ", p.num_heads,
                    " heads (", p.num_kv_heads, " K/V) of ", p.head_dim, ", ", to_string(p.dtype),
                    p.causal ? ", causal" : "", ", on ", options.ranks, " GPUs of ",
                    how.cluster.name, what_if.is_plain() ? "" : " with " + what_if.text(),
                    " (simulated)"));
  table.note(concat("a tie: less than ", 100 * error, " % apart, which predictions cannot tell"));
  table.head();
  add_ranking(table, "exact attention", "exact", exact, options.top, error);
  add_ranking(table, "dilated attention: another result, LongNet's approximation", "dilated",
              dilated, options.top, error);
  table.finish();
  note_stopped(table, stopped);
  return exact.empty() && dilated.empty() ? kFailed : kOk;
}

}  // namespace longnet
