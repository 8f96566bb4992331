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
constexpr double kMostCpuSeconds = 10;  // one run's; a candidate has one a latency

// A question to one cluster, as it is or changed, and its answer.
struct Answer {
  SimulatePoint how;
  std::vector<Point> points;  // candidates
  double share;               // that counts as a tie (tie_share)
  bool names_kernel = false;  // in titles: another answer has another kernel
  Ranking ranking{};

  // "exact attention", "exact attention with latency=2, kernel cudnn"
  std::string title(const char* kind) const {
    const std::string& kernel = how.cluster.device.kernel;
    return concat(kind, " attention", how.what_if.is_plain() ? "" : " with " + how.what_if.text(),
                  names_kernel && how.what_if.kernel.empty() ? ", kernel " + kernel : "");
  }
};

struct Choice {
  size_t place;
  std::string kind;  // "exact", "dilated"
  const PointRecord& record;
  const PointRecord& first;
  double share;
};

// Title of the list of dilated candidates, which all have one pattern.
std::string dilated_title(const Answer& a) {
  const auto& found = a.ranking.dilated;
  return concat(a.title("dilated"),
                found.empty() ? "" : ", segments/rates " + branches_text(found[0].params.pattern),
                ": another function of the tokens");
}

// `ratios`: times over those of the unchanged cluster, in the place of bytes sent.
std::vector<Column<Choice>> choice_columns(bool ratios) {
  using enum Shown;
  using C = const Choice&;
  std::vector<Column<Choice>> columns{
      {"attention", "", kText, 9, 1, [](C c) { return c.kind; }},
      {"place", "", kNumber, 5, 0, [](C c) { return c.place; }},
      {"algorithm", "", kText, 32, 0, [](C c) { return choice_text(c.record.params); }},
      {"median_s", "time", kSeconds, 9, 0, [](C c) { return c.record.timing.median_s; }},
      {"ci_low_s", "low", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_low_s; }},
      {"ci_high_s", "high", kSeconds, 9, 0, [](C c) { return c.record.timing.ci_high_s; }},
      {"memory_bytes", "memory", kBytes, 8, 0,
       [](C c) { return to_json(c.record.memory.predicted_peak_bytes); }},
      {"bytes_per_rank", "sent", kBytes, 8, 2,
       [](C c) { return to_json(c.record.comm.predicted_bytes_per_rank); }},
      {"branches", "branches w/r", kText, 26, 5,
       [](C c) {
         const DilatedPattern& pattern = c.record.params.pattern;
         return pattern.kind == PatternKind::kDilated ? branches_text(pattern) : "";
       }},
      {"ties", "", kText, 4, 3, [](C c) { return ties(c.record, c.first, c.share); }},
      {"cluster", "", kText, 9, 4, [](C c) { return c.record.params.cluster; }},
      {"why", "", kNote, 0, 0, [](C c) { return reason_text(c.record, c.first.timing.median_s); }},
  };
  if (ratios)
    columns.insert(std::ranges::find(columns, "memory_bytes", &Column<Choice>::name),
                   {{kRatioToUnchanged, "ratio", kRatio, 6, 0},
                    [](C c) { return ratio_to_unchanged(c.record); }});
  return columns;
}

void add_ranking(Table<Choice>& table, const std::string& title, const char* kind,
                 const std::vector<PointRecord>& records, int top, double share) {
  table.note(title);
  if (records.empty()) table.note("none fits");
  for (size_t i = 0; i < records.size() && int(i) < top; ++i)
    table.add({i + 1, kind, records[i], records[0], share});
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

// Asks one cluster, without an answer yet.
Answer asked_of(const Options& options, SimulatePoint how) {
  how.communication_alone = false;
  how.max_program_bytes = kMaxProgramBytes;
  how.most_cpu_s = kMostCpuSeconds;
  const Question& question = options.question;
  if (question.ranks > how.cluster.num_gpus())
    throw UsageError(
        "--ranks ", question.ranks, ": ", how.cluster.name, " has ", how.cluster.num_gpus(),
        " GPUs; --what-if nodes=", ceil_div(question.ranks, how.cluster.node_size()), " adds some");
  const Config config = parse_config(question_config(question, how.cluster), "the command line",
                                     {.known = known_names()});
  print_notes(options, config);
  std::vector<Point> points = on_cluster(config, how);
  check_speed(how.cluster, points.at(0).params);
  if (const std::string why = why_no_straggler(how.what_if.straggler, points[0].params);
      !why.empty())
    throw UsageError("--what-if '", how.what_if.text(), "': ", why);
  return {.how = how, .points = std::move(points), .share = tie_share(how.cluster)};
}

void rank(std::vector<Answer>& answers, Progress& progress) {
  UnchangedTimes times;
  int number = 0;
  for (Answer& a : answers) {
    WorkAhead<SimulatedPoint> simulated(a.points.size(), simulation_threads(a.how), [&](size_t i) {
      return simulate_point(a.points[i], a.how);
    });
    for (const Point& point : a.points) {
      progress.start(++number, describe(point.params), 0);
      SimulatedPoint done = simulated.next();
      times.compare(done.record, a.how.what_if);
      a.ranking.add(std::move(done.record), done.program);
    }
    a.ranking.sort();
  }
  progress.clear();
}

// Adds what the numbers of all rows rest on.
void add_legend(TableWriter& table, const std::vector<Answer>& answers, bool ratios) {
  const SimulatePoint& how = answers[0].how;
  const PointParams& params = answers[0].points[0].params;
  const AttentionProblem& p = params.problem;
  const std::string& kernel = how.cluster.device.kernel;
  table.note(concat(
      format_tokens(p.seq_len), " tokens x batch ", p.batch, ", ", p.num_heads, " heads (",
      p.num_kv_heads, " K/V) of ", p.head_dim, ", ", to_string(p.dtype), p.causal ? ", causal" : "",
      params.pass == Pass::kForward ? "" : concat(", ", to_string(params.pass)), ", on ",
      params.ranks, " ranks of ", how.cluster.name,
      kernel.empty() || answers[0].names_kernel ? "" : " with kernel " + kernel, " (simulated)"));
  const double share = answers[0].share;
  table.note(concat("a tie: the time of one lies in the interval of the other",
                    share > 0 ? concat(", or ", 100 * share, " % apart at most") : "",
                    ratios ? "; ratio: to the same candidate on the cluster as it is" : ""));
  std::vector<std::string> longest;  // rows of each kernel
  for (const Answer& a : answers) {
    if (!a.ranking.has_guess(Guess::kLongerRows)) continue;
    const DeviceSpec& device = a.how.cluster.device;
    const std::string row = concat(format_tokens(longest_row(device, p, params.pass)),
                                   a.names_kernel ? concat(" (", device.kernel, ")") : "");
    if (std::ranges::find(longest, row) == longest.end()) longest.push_back(row);
  }
  if (!longest.empty())
    table.note(concat(to_string(Guess::kLongerRows), ", whose longest row has ",
                      join(longest, ", "), ", take the speed to which its rows lead"));
  if (std::ranges::any_of(answers, [](const Answer& a) {
        return a.ranking.answers_with_rings_over_nodes(a.how.cluster, a.share);
      }))
    table.note(kRingsOverNodes);
}

}  // namespace

int run_recommend(const Options& options) {
  if (const auto tokens = try_parse_tokens(options.question.seq_len);
      tokens && *tokens < options.question.ranks)
    throw UsageError("--seq-len ", options.question.seq_len, " on --ranks ", options.question.ranks,
                     ": most ranks would have no token\n  hint: at most ", *tokens,
                     " ranks, or data parallelism (sweep.replicas)");
  std::vector<Answer> answers;
  std::vector<Point> points;
  for (const SimulatePoint& how : read_variants(options, {}, read_cluster(options, {}))) {
    answers.push_back(asked_of(options, how));
    points.insert(points.end(), answers.back().points.begin(), answers.back().points.end());
  }
  const auto kernel_of = [](const Answer& a) { return a.how.cluster.device.kernel; };
  const bool many_kernels = std::ranges::any_of(
      answers, [&](const Answer& a) { return kernel_of(a) != kernel_of(answers[0]); });
  for (Answer& a : answers) a.names_kernel = many_kernels;
  Progress progress(options, true, int(points.size()));
  rank(answers, progress);
  const bool ratios = compares_clusters(points);
  Table<Choice> table(choice_columns(ratios), table_style(options));
  for (const Answer& a : answers) {
    table.note(concat(a.title("exact"), ": ", answer_text(a.ranking.exact, a.share)));
    table.note(concat(a.title("dilated"), ": ", answer_text(a.ranking.dilated, a.share)));
  }
  add_legend(table, answers, ratios);
  table.head();
  std::vector<std::string> left_out;
  for (const Answer& a : answers) {
    add_ranking(table, a.title("exact"), "exact", a.ranking.exact, options.top, a.share);
    add_ranking(table, dilated_title(a), "dilated", a.ranking.dilated, options.top, a.share);
    for (const std::string& line : a.ranking.left_out())
      if (std::ranges::find(left_out, line) == left_out.end()) left_out.push_back(line);
  }
  table.finish();
  for (const std::string& line : left_out) table.note(line);
  return std::ranges::all_of(
             answers,
             [](const Answer& a) { return a.ranking.exact.empty() && a.ranking.dilated.empty(); })
             ? kFailed
             : kOk;
}

}  // namespace longnet
