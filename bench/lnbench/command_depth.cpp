// `lnbench depth`: layers until every token has heard from every other, for each pattern.
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/stopwatch.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "pattern/dependency_depth.h"

namespace longnet {
namespace {

JsonNode layers_node(int64_t layers) {
  if (layers == DependencyDepth::kUnknown) return "unknown";
  return layers == DependencyDepth::kNever ? JsonNode("never") : JsonNode(layers);
}

struct DepthRow {
  int ranks;
  const AttentionProblem& problem;
  const DilatedPattern& pattern;
  DependencyDepth depth;
  double took_s;
};

std::vector<Column<DepthRow>> depth_columns() {
  using enum Shown;
  using R = const DepthRow&;
  return {
      {"seq_len", "tokens", kTokens, 10, 0, [](R r) { return r.problem.seq_len; }},
      {"ranks", "", kNumber, 5, 0, [](R r) { return r.ranks; }},
      {"heads", "", kNumber, 5, 0, [](R r) { return r.problem.num_heads; }},
      {"mask", "", kText, 6, 0, [](R r) { return r.problem.causal ? "causal" : "none"; }},
      {"layers", "", kNumber, 7, 0, [](R r) { return layers_node(r.depth.layers); }},
      {"reachable", "", kNumber, 9, 0,
       [](R r) {
         const bool unasked = r.problem.causal && r.depth.layers == DependencyDepth::kNever;
         return unasked ? JsonNode() : layers_node(r.depth.reachable_layers);
       }},
      {"paper", "", kNumber, 7, 0,
       [](R r) { return std::round(100 * paper_depth_bound(r.pattern, r.problem.seq_len)) / 100; }},
      {"took_s", "time", kSeconds, 9, 0, [](R r) { return r.took_s; }},
      {"branches", "branches w/r", kText, 12, 0, [](R r) { return branches_text(r.pattern); }},
  };
}

}  // namespace

int run_depth(const Options& options) {
  const Config config = read_config(options);
  const auto points =
      distinct_patterns(expand(config, {.world_size = options.ranks > 0 ? options.ranks : 2,
                                        .filter = options.filter,
                                        .known = known_names()}));
  Progress progress(options, true, int(points.size()));
  Table<DepthRow> table(depth_columns(), table_style(options, &progress));
  table.note("dependency depth of the patterns of " + config.path);
  table.note(
      "ranks: that share a sequence; never: some token hears from some other through no number of "
      "layers");
  table.note(
      "reachable: between tokens that do hear from each other (- : not looked for under a mask); "
      "paper: the estimate of section 2.4, by the mean ratio of segments");
  table.note(
      "unknown: beyond 1M tokens, segments that cut each other so irregularly that a minute does "
      "not suffice");
  table.head();
  int number = 0;
  for (const Point& point : points) {
    const AttentionProblem& problem = point.params.problem;
    const DilatedPattern& pattern = point.params.pattern;
    const double begin = steady_seconds();
    // Higher limits than for a point of a sweep: exact up to 1M tokens, about a minute beyond.
    DepthOptions limits;
    limits.max_steps *= 10;
    if (problem.seq_len <= int64_t{1} << 20)
      limits.max_steps = limits.max_intervals = std::numeric_limits<int64_t>::max();
    limits.progress = [&](double done) {
      const double left = (steady_seconds() - begin) * (1 / done - 1);
      progress.step(concat(std::llround(100 * done), " % of the tokens to start from, about ",
                           format_seconds(left), " left"));
    };
    progress.start(++number, describe(point.params), 0);
    const DependencyDepth depth = dependency_depth(problem, pattern, limits);
    table.add({point.params.group_ranks(), problem, pattern, depth, steady_seconds() - begin});
  }
  table.finish();
  return kOk;
}

}  // namespace longnet
