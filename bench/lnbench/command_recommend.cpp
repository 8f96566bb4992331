// `lnbench recommend`: simulates every algorithm with its options on a cluster, and ranks them.
#include "core/check.h"
#include "core/work_ahead.h"
#include "lnbench/terminal.h"
#include "run/cluster_sweep.h"
#include "run/recommend.h"
#include "simulate/cost_model.h"

namespace longnet {
namespace {

// Programs of ranks that all differ are made one by one: larger sets take too long for an answer.
constexpr int64_t kMaxProgramBytes = int64_t{512} << 20;
constexpr double kMostCpuSeconds = 10;  // of one run of a candidate: one a latency

struct Choice {
  size_t place;
  std::string kind;  // "exact", "dilated"
  const PointRecord& record;
  double fastest_s;
  bool ties;  // with the first
};

std::vector<Column<Choice>> choice_columns() {
  using enum Shown;
  using C = const Choice&;
  return {
      {"attention", "", kText, 9, 1, [](C c) { return c.kind; }},
      {"place", "", kNumber, 5, 0, [](C c) { return c.place; }},
      {"algorithm", "", kText, 32, 0, [](C c) { return choice_text(c.record.params); }},
      {"median_s", "time", kSeconds, 9, 0, [](C c) { return c.record.timing.median_s; }},
      {"ci_low_s", "low", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_low_s; }},
      {"ci_high_s", "high", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_high_s; }},
      {"memory_bytes", "memory", kBytes, 8, 0,
       [](C c) { return to_json(c.record.memory.predicted_peak_bytes); }},
      {"bytes_per_rank", "sent", kBytes, 8, 0,
       [](C c) { return to_json(c.record.comm.predicted_bytes_per_rank); }},
      {"ties", "", kText, 4, 2, [](C c) { return c.ties; }},
      {"why", "", kNote, 0, 0, [](C c) { return reason_text(c.record, c.fastest_s); }},
  };
}

void add_ranking(Table<Choice>& table, const char* title, const char* kind,
                 const std::vector<PointRecord>& records, int top, double share) {
  table.note(title);
  if (records.empty()) table.note("none fits");
  for (size_t i = 0; i < records.size() && int(i) < top; ++i)
    table.add(
        {i + 1, kind, records[i], records[0].timing.median_s, ties(records[i], records[0], share)});
}

// The device has no speed for any algorithm: said once.
void check_speed(const ClusterSpec& cluster, const PointParams& p) {
  const auto why = [&](Pass pass) {
    return CostModel::why_no_speed(cluster, p.problem, pass, Scope::kAttention);
  };
  const std::string text = why(p.pass);
  if (text.empty()) return;
  const char* other = p.problem.dtype == DType::kFloat32 ? "bf16" : "fp32";
  throw UsageError(text.substr(0, text.find(';')), "\n  hint: try ",
                   why(Pass::kForward).empty() ? "--pass forward" : concat("--dtype ", other));
}

}  // namespace

int run_recommend(const Options& options) {
  if (options.what_if.size() > 1)
    throw UsageError("one --what-if at a time: several changes of it with commas");
  SimulatePoint how = read_variants(options, {}, read_cluster(options, {})).at(0);
  how.communication_alone = false;
  how.max_program_bytes = kMaxProgramBytes;
  how.most_cpu_s = kMostCpuSeconds;
  if (options.question.ranks > how.cluster.num_gpus())
    throw UsageError("--ranks ", options.question.ranks, ": ", how.cluster.name, " has ",
                     how.cluster.num_gpus(), " GPUs; --what-if nodes=",
                     ceil_div(options.question.ranks, how.cluster.node_size()), " adds some");
  if (const auto tokens = try_parse_tokens(options.question.seq_len);
      tokens && *tokens < options.question.ranks)
    throw UsageError("--seq-len ", options.question.seq_len, " on --ranks ", options.question.ranks,
                     ": most ranks would have no token\n  hint: at most ", *tokens,
                     " ranks, or data parallelism (sweep.replicas)");
  const Config config = parse_config(question_config(options.question, how.cluster),
                                     "the command line", {.known = known_names()});
  print_notes(options, config);
  const auto points = on_cluster(config, how);
  check_speed(how.cluster, points.at(0).params);
  Progress progress(options, true, int(points.size()));
  Ranking ranking;
  int number = 0;
  WorkAhead<SimulatedPoint> simulated(points.size(), simulation_threads(how),
                                      [&](size_t i) { return simulate_point(points[i], how); });
  for (const Point& point : points) {
    progress.start(++number, describe(point.params), 0);
    SimulatedPoint done = simulated.next();
    ranking.add(std::move(done.record), done.program);
  }
  ranking.sort();
  progress.clear();
  const double share = tie_share(how.cluster);
  const AttentionProblem p = points.at(0).params.problem;
  Table<Choice> table(choice_columns(), table_style(options));
  table.note("exact attention: " + answer_text(ranking.exact, share));
  table.note("dilated attention: " + answer_text(ranking.dilated, share));
  table.note(concat(format_tokens(p.seq_len), " tokens x batch ", p.batch, ", ", p.num_heads,
                    " heads (", p.num_kv_heads, " K/V) of ", p.head_dim, ", ", to_string(p.dtype),
                    p.causal ? ", causal" : "",
                    options.question.pass == "forward" ? "" : ", " + options.question.pass, ", on ",
                    options.question.ranks, " GPUs of ", how.cluster.name,
                    how.what_if.is_plain() ? "" : " with " + how.what_if.text(), " (simulated)"));
  table.note(concat("a tie: the time of one lies in the interval of the other",
                    share > 0 ? concat(", or ", 100 * share, " % apart at most") : ""));
  table.head();
  add_ranking(table, "exact attention", "exact", ranking.exact, options.top, share);
  add_ranking(table, "dilated attention: another function of the tokens", "dilated",
              ranking.dilated, options.top, share);
  table.finish();
  if (!ranking.same.empty())
    table.note(concat(ranking.same.size(),
                      " left out, as their ranks do the same: ", few_of(ranking.same)));
  for (const std::string& why : ranking.reasons_of_stopped()) table.note("left out: " + why);
  return ranking.exact.empty() && ranking.dilated.empty() ? kFailed : kOk;
}

}  // namespace longnet
