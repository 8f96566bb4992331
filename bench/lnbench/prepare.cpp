#include "lnbench/prepare.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "io/environment.h"
#include "io/units.h"
#include "kernels/attention_kernel.h"
#include "schedule/registry.h"

namespace longnet {

KnownNames known_names() {
  KnownNames known;
  known.dilated_algorithms.clear();
  for (const AlgorithmInfo& a : algorithms()) {
    known.algorithms.emplace_back(a.name);
    if (a.takes_pattern) known.dilated_algorithms.emplace_back(a.name);
  }
  known.kernels = kernel_names();
  known.layouts = {"contiguous"};
  return known;
}

Config read_config(const Options& options) {
  return load_config(options.config, {.overrides = options.sets, .known = known_names()});
}

ShardedProblem sharded_problem(const PointParams& p) {
  return {p.problem,
          p.pattern,
          {p.problem.seq_len, p.ranks},
          p.gather_scope == "world" ? GatherScope::kWholeWorld : GatherScope::kSegmentGroup};
}

Schedule make_schedule(const PointParams& p) {
  return find_algorithm(p.algorithm).make(sharded_problem(p));
}

MachineLimits machine_limits(const Config& config, int ranks_here, double peak_flops_per_rank) {
  const int64_t all = config.memory.limit_bytes.value_or(capture_environment().memory_limit_bytes);
  return {
      .memory_bytes = int64_t(double(all) * config.memory.limit_fraction) / std::max(1, ranks_here),
      .flops_per_rank = kExpectedShareOfPeak * peak_flops_per_rank,
      .point_timeout_s = config.measure.point_timeout_s};
}

namespace {

AttendOptions attend_options(const PointParams& p) {
  return {.head_dim = p.problem.head_dim, .dtype = p.problem.dtype, .causal = p.problem.causal};
}

std::string why_unsupported(const PointParams& p) {
  if (const std::string why = find_algorithm(p.algorithm).why_unsupported(sharded_problem(p));
      !why.empty())
    return why;
  return make_kernel(p.kernel)->why_unsupported(attend_options(p));
}

int64_t predicted_memory(const PointParams& p, int threads) {
  return account(make_schedule(p)).max_memory_bytes +
         make_kernel(p.kernel)->workspace_bytes(attend_options(p), threads);
}

// Halves or doubles one thing at a time; the first change that fits with the smallest factor wins.
std::string cheapest_change(const PointParams& original, int64_t limit, int threads) {
  struct Change {
    const char* name;
    bool (*apply)(PointParams&);
  };
  static constexpr Change kChanges[] = {
      {"dtype=bf16",
       [](PointParams& p) {
         const bool changes = p.problem.dtype == DType::kFloat32;
         p.problem.dtype = DType::kBFloat16;
         return changes;
       }},
      {"batch",
       [](PointParams& p) {
         p.problem.batch /= 2;
         return p.problem.batch >= 1;
       }},
      {"ranks",
       [](PointParams& p) {
         p.ranks *= 2;
         return p.algorithm != "local" && p.ranks <= 65536;
       }},
      {"seq_len",
       [](PointParams& p) {
         p.problem.seq_len /= 2;
         for (DilatedBranch& b : p.pattern.branches)
           b.segment_length = std::min(b.segment_length, p.problem.seq_len);
         return p.problem.seq_len >= 1;
       }},
  };
  for (int steps = 1; steps <= 10; ++steps)
    for (const Change& change : kChanges) {
      PointParams p = original;
      bool valid = true;
      for (int i = 0; i < steps && valid; ++i) valid = change.apply(p);
      if (!valid || !why_unsupported(p).empty() || predicted_memory(p, threads) > limit) continue;
      const std::string name = change.name;
      if (name == "batch") return concat("batch=", p.problem.batch);
      if (name == "ranks") return concat("ranks=", p.ranks, " on machines of their own");
      if (name == "seq_len") return concat("seq_len=", format_tokens(p.problem.seq_len));
      return name;
    }
  return "";
}

}  // namespace

PointPlan plan_point(const Point& point, const MachineLimits& limits, int threads) {
  PointPlan plan{.point = point};
  if (plan.point.params.threads == 0) plan.point.params.threads = threads;
  const auto skip = [&](PointStatus status, std::string reason) {
    plan.point.status = status;
    plan.point.reason = std::move(reason);
  };
  if (point.status != PointStatus::kOk) return plan;
  const PointParams& p = plan.point.params;
  if (const std::string why = why_unsupported(p); !why.empty()) {
    skip(PointStatus::kSkippedUnsupported, why);
    return plan;
  }
  plan.account = account(make_schedule(p));
  plan.workspace_bytes = make_kernel(p.kernel)->workspace_bytes(attend_options(p), p.threads);
  if (limits.flops_per_rank > 0)
    plan.estimated_s = plan.account.max_rank_flops / limits.flops_per_rank;
  if (limits.memory_bytes > 0 && plan.memory_bytes() > limits.memory_bytes) {
    plan.fits_if = cheapest_change(p, limits.memory_bytes, p.threads);
    skip(PointStatus::kSkippedMemory,
         concat("needs ", format_bytes(double(plan.memory_bytes())), " per rank, ",
                format_bytes(double(limits.memory_bytes)), " are allowed",
                plan.fits_if.empty() ? "" : concat("; fits with ", plan.fits_if)));
  } else if (limits.point_timeout_s > 0 && plan.estimated_s > limits.point_timeout_s) {
    skip(PointStatus::kTimeout,
         concat("one forward is estimated at ", format_seconds(plan.estimated_s),
                ", measure.point_timeout_s is ", limits.point_timeout_s));
  }
  return plan;
}

}  // namespace longnet
