// `lnbench depth`: layers until every token has heard from every other, for each pattern.
#include <cmath>
#include <iomanip>
#include <iostream>
#include <limits>
#include <set>

#include "core/check.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/sampler.h"
#include "pattern/dependency_depth.h"

namespace longnet {
namespace {

std::string layers_text(int64_t layers) {
  if (layers == DependencyDepth::kUnknown) return "unknown";
  return layers == DependencyDepth::kNever ? "never" : std::to_string(layers);
}

std::string branches_text(const DilatedPattern& pattern) {
  std::string text;
  for (const DilatedBranch& b : pattern.branches) {
    if (!text.empty()) text += ',';
    text += concat(b.segment_length, "/", b.dilation_rate);
    if (b.summary_tokens > 0) text += concat("+", b.summary_tokens);
  }
  return text;
}

// Returns one point for each pattern, of those that differ only in ranks, kernel or algorithm.
std::vector<Point> distinct_patterns(const std::vector<Point>& points) {
  std::set<std::string> seen;
  std::vector<Point> out;
  for (const Point& point : points) {
    const AttentionProblem& problem = point.params.problem;
    const DilatedPattern& pattern = point.params.pattern;
    if (seen.insert(concat(problem.seq_len, " ", problem.num_heads, " ", problem.causal, " ",
                           branches_text(pattern), " ", to_string(pattern.offset), " ",
                           pattern.phase_parts))
            .second)
      out.push_back(point);
  }
  return out;
}

}  // namespace

int run_depth(const Options& options) {
  const Config config = read_config(options);
  const auto points =
      distinct_patterns(expand(config, {.world_size = options.ranks > 0 ? options.ranks : 2,
                                        .filter = options.filter,
                                        .known = known_names()}));
  std::cout
      << "# dependency depth of the patterns of " << config.path << "\n"
      << "# never: two neighbours are enough, such as tokens 2047 and 2048 under a causal mask, "
         "where no branch joins them\n"
         "# reachable: between tokens that do hear from each other (- : not looked for under a "
         "mask); paper: the estimate of section 2.4\n"
      << "# unknown: beyond 1M tokens, segments that cut each other so irregularly that a minute "
         "does not suffice\n"
      << "#   tokens heads  mask   layers reachable   paper  time      branches w/r\n";
  Progress progress(options, true, int(points.size()));
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
    progress.clear();
    const double took = steady_seconds() - begin;
    const double bound = paper_depth_bound(pattern, problem.seq_len);
    std::cout << std::setw(10) << format_tokens(problem.seq_len) << std::setw(6)
              << problem.num_heads << "  " << (problem.causal ? "causal" : "none  ") << std::setw(8)
              << layers_text(depth.layers) << std::setw(10)
              << (problem.causal && depth.layers == DependencyDepth::kNever
                      ? "-"
                      : layers_text(depth.reachable_layers))
              << std::setw(8) << (std::isnan(bound) ? "-" : concat(std::round(100 * bound) / 100))
              << "  " << std::left << std::setw(10) << format_seconds(took) << std::right
              << branches_text(pattern) << "\n"
              << std::flush;
  }
  return kOk;
}

}  // namespace longnet
