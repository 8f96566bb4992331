#include "run/plan_point.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "execute/virtual_walk.h"
#include "io/expand.h"
#include "io/units.h"
#include "run/backend.h"
#include "schedule/registry.h"
#include "simulate/collective_times.h"

namespace longnet {

int64_t layers_of(const PointParams& p) { return p.scope == Scope::kModel ? p.model.layers : 1; }

std::string why_cannot_run(const PointParams& p) {
  if (p.replicas > 1 && p.scope == Scope::kAttention)
    return concat(
        "replicas of attention alone exchange nothing: only `lnbench simulate` has them "
        "(sweep.replicas = ",
        p.replicas, "); one group runs as ranks ", p.group_ranks(), ", batch ", p.group_batch());
  if (is_formula(p.collective))
    return concat(p.collective, " is a model of NCCL: `lnbench simulate` knows its time");
  if (const std::string why = why_no_program(p); !why.empty()) return why;
  if (has_layers(p.scope) && is_virtual(p))
    return "no virtual ranks: a walk is one of attention alone";
  if (const std::string why =
          why_not_collective(one_layer_schedule(p), p.collective, collective_choice(p));
      !why.empty())
    return why;
  if (is_virtual(p))
    if (const std::string why = why_not_virtual(make_schedule(p).program(p.ranks / 2));
        !why.empty())
      return "no virtual ranks: " + why;
  return backend_of(p.kernel).why_kernel_unsupported(p);
}

namespace {

// Bytes by tag that a walk of `batches` sequences at a time needs.
std::map<std::string, int64_t> walked_memory(const PointParams& p, int64_t batches,
                                             bool in_part = false) {
  return walk_memory(make_schedule(p, batches), accounted_ranks(p.ranks, kMaxAccountedRanks),
                     in_part);
}

// Bytes of the rank with the most memory, or of a walk of one sequence at a time. Computed from the
// slots alone, because cheapest_change calls it dozens of times, at any P.
int64_t predicted_buffers(const PointParams& p, int threads) {
  const int64_t bytes = backend_of(p.kernel).workspace_bytes(p, threads);
  if (!is_virtual(p)) return bytes + predicted_slots(make_schedule(p), max_accounted(p));
  return bytes + total_bytes(walked_memory(p, 1));
}

int64_t predicted_check(const PointParams& p, int threads) {
  const auto wide = checking_run(p);
  return wide ? predicted_buffers(*wide, threads) : 0;
}

// Estimates the fp32 run on the host's cores that checks a GPU's gradients. Where it exceeds the
// limit of memory the point is skipped, where it exceeds that of time it counts as timed out.
void skip_for_check(PointPlan& plan, const MachineLimits& machine, int ranks_at_once) {
  const int64_t allowed = machine.memory_bytes / ranks_at_once;
  const std::string run = "the fp32 run on the cores that the check holds gradients against";
  if (machine.memory_bytes > 0 && plan.check_bytes > allowed) {
    set_status(plan.point, PointStatus::kSkippedMemory,
               concat(run, " needs ", format_bytes(double(plan.check_bytes)), " per rank, ",
                      format_bytes(double(allowed)), " are allowed"));
    return;
  }
  if (machine.flops_per_rank > 0)
    plan.check_s = plan.account.max_rank_flops / machine.flops_per_rank;
  if (machine.point_timeout_s > 0 && plan.check_s > machine.point_timeout_s)
    set_status(plan.point, PointStatus::kTimeout,
               concat(run, " is estimated at ", format_seconds(plan.check_s),
                      ", measure.point_timeout_s is ", machine.point_timeout_s));
}

// Programs of large models are made only of points that may fit.
bool fits(const PointParams& p, int64_t limit) {
  if (!why_no_program(p).empty()) return false;
  const auto wide = on_gpu(p) ? std::nullopt : checking_run(p);
  if (least_slots(p) + (wide ? least_slots(*wide) : 0) > limit) return false;
  return why_cannot_run(p).empty() &&
         predicted_buffers(p, p.threads) + (wide ? predicted_buffers(*wide, p.threads) : 0) <=
             limit;
}

// Sets the share of an exact point that is walked, and its estimated time.
void plan_share(PointPlan& plan, const MachineLimits& limits) {
  const PointParams& p = plan.point.params;
  if (limits.flops_per_rank > 0) plan.estimated_s = plan.account.flops / limits.flops_per_rank;
  if (limits.replayed_ranks > 0) {  // in full
    plan.estimated_s *= double(limits.replayed_ranks) / p.ranks;
    return;
  }
  if (find_algorithm(p.algorithm).pattern != PatternKind::kDense) return;
  plan.share = limits.virtual_ranks.sample_share;
  if (const double most = limits.virtual_ranks.exact_point_s; most > 0 && plan.estimated_s > most)
    plan.share = std::min(plan.share, most / plan.estimated_s);
  plan.estimated_s *= plan.share;
}

// Chooses how many sequences are walked at once, and sets the memory that this takes.
void plan_walk(PointPlan& plan, const MachineLimits& limits) {
  const PointParams& p = plan.point.params;
  plan_share(plan, limits);
  int64_t& batches = plan.batches_at_once = p.problem.batch;
  for (;; batches = ceil_div(batches, int64_t{2})) {
    plan.account.memory_by_tag = walked_memory(p, batches, plan.share < 1);
    if (batches == 1 || limits.memory_bytes == 0 || plan.memory_bytes() <= limits.memory_bytes)
      break;
  }
}

}  // namespace

std::optional<PointParams> checking_run(const PointParams& p) {
  if (!has_layers(p.scope) || !has_backward(p.pass) || p.problem.dtype == DType::kFloat32)
    return std::nullopt;
  PointParams wide = p;
  wide.problem.dtype = DType::kFloat32;
  if (on_gpu(p)) wide.kernel = "cpu";
  return wide;
}

void resolve_options(PointParams& p) {
  if (const auto effective_options = find_algorithm(p.algorithm).effective_options)
    p.options = effective_options(sharded_problem(p));
}

ShardedProblem sharded_problem(const PointParams& p) {
  AttentionProblem problem = p.problem;
  problem.batch = p.group_batch();
  problem.num_heads /= p.head_groups, problem.num_kv_heads /= p.head_groups;
  return {problem,
          p.pattern,
          {p.problem.seq_len, p.group_ranks(), p.layout},
          p.gather_scope,
          p.options};
}

ModelShape model_shape(const PointParams& p) {
  ModelShape shape = p.model;
  if (p.scope == Scope::kLayer) shape.layers = 1;
  return shape;
}

StepOptions step_options(const PointParams& p, StepOptions others) {
  others.scope = p.scope, others.pass = p.pass;
  others.replicas = p.replicas, others.head_groups = p.head_groups;
  return others;
}

CollectiveChoice collective_choice(const PointParams& p) {
  CollectiveChoice choice = parse_collective(p.collective);
  choice.node_size = p.node_size;
  return choice;
}

// Empty where head j of any group selects the rows that head j of the first one does, so that all
// groups are one problem.
std::string why_no_head_groups(const PointParams& p) {
  const int64_t groups = p.head_groups, heads = p.problem.num_heads;
  if (groups == 1) return {};
  if (heads % groups != 0 || p.problem.num_kv_heads % groups != 0 ||
      p.model.ffn_width % groups != 0)
    return concat("sweep.head_groups ", groups, " must divide the heads (", heads, "), K/V heads (",
                  p.problem.num_kv_heads, ") and model.ffn_width (", p.model.ffn_width, ")");
  for (const DilatedBranch& b : p.pattern.branches)
    if (p.pattern.offset == OffsetRule::kBlock
            ? b.dilation_rate > 1
            : p.pattern.offset == OffsetRule::kPaper && heads / groups % b.dilation_rate != 0)
      return concat("the ", heads / groups,
                    " heads of a group do not have the offsets of all at rate ", b.dilation_rate,
                    ": use heads that are a multiple of ", groups * b.dilation_rate,
                    ", or dilated.offset none");
  return {};
}

std::string why_no_program(const PointParams& p) {
  if (std::string why = why_uneven(p); !why.empty()) return why;
  if (std::string why = why_no_head_groups(p); !why.empty()) return why;
  if (p.group_ranks() > p.problem.seq_len)
    return concat(p.problem.seq_len, " tokens for ", p.group_ranks(),
                  " ranks leave some without any: use at most as many ranks as tokens");
  if (p.scope != Scope::kModel && p.pass == Pass::kStep)
    return concat(p.scope == Scope::kLayer ? "one layer alone is not trained"
                                           : "attention alone has no weights to update",
                  ": a step is one of sweep.scope model");
  if (has_layers(p.scope) && p.pass == Pass::kBackward)
    return concat("the backward pass of a ", to_string(p.scope),
                  " follows its forward pass: use sweep.pass forward_backward");
  const Pass pass = has_layers(p.scope) ? Pass::kForwardBackward : p.pass;
  return why_no_program(find_algorithm(p.algorithm), sharded_problem(p), pass);
}

Schedule unlowered_schedule(const PointParams& p, const StepOptions& step) {
  const AlgorithmInfo& algorithm = find_algorithm(p.algorithm);
  const ShardedProblem sharded = sharded_problem(p);
  if (p.scope == Scope::kAttention) return make_schedule(algorithm, sharded, p.pass);
  return training_step(model_shape(p), make_schedule(algorithm, sharded, Pass::kForward),
                       make_schedule(algorithm, sharded, Pass::kBackward), step_options(p, step));
}

Schedule one_layer_schedule(PointParams p) {
  p.model.layers = 1;
  return unlowered_schedule(p);
}

Schedule make_schedule(const PointParams& p, const StepOptions& step) {
  return lower_collectives(unlowered_schedule(p, step), collective_choice(p));
}

Schedule make_schedule(PointParams p, int64_t batch) {
  p.problem.batch = batch;
  return make_schedule(p);
}

int max_accounted(const PointParams& p) {
  return layers_of(p) * p.ranks > int64_t{kMaxAccountedRanks} * kMaxAccountedRanks
             ? 5
             : kMaxAccountedRanks;
}

int64_t least_slots(const PointParams& p) {
  if (!has_layers(p.scope)) return 0;
  return total_bytes(unlowered_schedule(p, {.with_ops = false}).program(0).memory_by_tag());
}

int64_t predicted_slots(const Schedule& schedule, int max_ranks, int period) {
  int64_t most = 0;
  std::set<Rank> ranks;
  for (const Rank r : accounted_ranks(schedule.sharded.layout.world_size(), max_ranks))
    ranks.insert(period > 0 ? r % period : r);
  for (const Rank r : ranks)
    most = std::max(most, total_bytes(schedule.program(r).memory_by_tag()));
  return most;
}

std::string cheapest_change(const PointParams& original,
                            const std::function<bool(const PointParams&)>& fits) {
  // Each makes its change and names the result; "" where it is not possible.
  using Change = std::string (*)(PointParams&);
  static constexpr Change kChanges[] = {
      [](PointParams& p) -> std::string {
        const bool changes = p.problem.dtype == DType::kFloat32;
        p.problem.dtype = DType::kBFloat16;
        return changes ? "dtype=bf16" : "";
      },
      [](PointParams& p) -> std::string {
        if (!has_layers(p.scope) || p.model.recompute == Recompute::kFull) return "";
        p.model.recompute = Recompute(int(p.model.recompute) + 1);
        return concat("recompute=", to_string(p.model.recompute));
      },
      [](PointParams& p) -> std::string {
        if (p.scope != Scope::kModel || p.model.shard_optimizer) return "";
        p.model.shard_optimizer = true;
        return "shard_optimizer=true";
      },
      [](PointParams& p) {
        p.problem.batch /= 2;
        return p.problem.batch >= 1 ? concat("batch=", p.problem.batch) : "";
      },
      [](PointParams& p) {
        p.ranks *= 2;
        if (p.ranks > 1024) return std::string();
        return concat("ranks=", p.ranks, p.mode == Mode::kReal ? " on machines of their own" : "");
      },
      [](PointParams& p) {
        p.problem.seq_len /= 2;
        for (DilatedBranch& b : p.pattern.branches)
          b.segment_length = std::min(b.segment_length, p.problem.seq_len);
        return p.problem.seq_len >= 1 ? concat("seq_len=", format_tokens(p.problem.seq_len)) : "";
      },
  };
  const auto fits_too = [&](const PointParams& p) {
    try {
      return fits(p);
    } catch (const UsageError&) {  // its program would have too many ops
      return false;
    }
  };
  for (int steps = 1; steps <= 10; ++steps)
    for (const Change change : kChanges) {
      PointParams p = original;
      std::string name = change(p);
      for (int i = 1; i < steps && !name.empty(); ++i) name = change(p);
      if (!name.empty() && fits_too(p)) return name;
    }
  return "";
}

void skip_for_memory(Point& point, int64_t needed, int64_t allowed, std::string_view where,
                     const std::function<bool(const PointParams&)>& fits) {
  const std::string change = cheapest_change(point.params, fits);
  set_status(point, PointStatus::kSkippedMemory,
             concat("needs ", format_bytes(double(needed)),
                    is_virtual(point.params) ? ", " : " per rank, ", format_bytes(double(allowed)),
                    " are allowed", where, change.empty() ? "" : "; fits with ", change));
}

PointPlan plan_point(const Point& point, const MachineLimits& machine, int threads,
                     int ranks_here) {
  PointPlan plan{.point = point};
  if (plan.point.params.threads == 0) plan.point.params.threads = threads;
  if (point.status != PointStatus::kOk) return plan;
  const PointParams& p = plan.point.params;
  const Backend& backend = backend_of(p.kernel);
  std::string why = why_cannot_run(p);
  if (why.empty() && machine.to_run) why = backend.why_kernel_absent(p);
  if (!why.empty()) {
    set_status(plan.point, PointStatus::kSkippedUnsupported, why);
    return plan;
  }
  const bool on_gpu = backend.on_gpu();
  const int ranks_at_once = is_virtual(p) ? 1 : std::max(1, std::min(p.ranks, ranks_here));
  const int sharers =
      on_gpu ? int(ceil_div(ranks_at_once, std::max(1, machine.devices))) : ranks_at_once;
  MachineLimits limits = machine;
  if (on_gpu) {
    limits.memory_bytes = machine.device_memory_bytes;
    limits.flops_per_rank = machine.device_flops / sharers;
  }
  try {
    plan.account = account(make_schedule(p), max_accounted(p), layers_of(p));
    plan.collectives_used = collectives_used(one_layer_schedule(p), collective_choice(p));
  } catch (const UsageError& e) {
    set_status(plan.point, PointStatus::kSkippedUnsupported, e.what());
    return plan;
  }
  // More threads than cores take turns.
  const double per_core = double(ranks_at_once) * p.threads / std::max(1, machine.cores);
  if (!on_gpu && machine.cores > 0 && per_core > 1) limits.flops_per_rank /= per_core;
  const int64_t per_rank = limits.memory_bytes / sharers;
  if (on_gpu && limits.device_limit_given) plan.device_limit_bytes = per_rank;
  plan.workspace_bytes = backend.workspace_bytes(p, p.threads);
  if (is_virtual(p))
    plan_walk(plan, limits);
  else if (limits.flops_per_rank > 0)
    plan.estimated_s = plan.account.max_rank_flops / limits.flops_per_rank;
  plan.check_bytes = predicted_check(p, p.threads);
  const int64_t beside = on_gpu ? 0 : plan.check_bytes, needed = plan.memory_bytes() + beside;
  if (limits.memory_bytes > 0 && needed > per_rank) {
    const std::string_view why_more =
        beside > 0 ? " (the check holds the gradients against an fp32 run)" : "";
    skip_for_memory(plan.point, needed, per_rank, why_more,
                    [&](const PointParams& changed) { return fits(changed, per_rank); });
  } else if (limits.point_timeout_s > 0 && plan.estimated_s > limits.point_timeout_s) {
    set_status(
        plan.point, PointStatus::kTimeout,
        concat("one ", to_string(p.pass), " is estimated at ", format_seconds(plan.estimated_s),
               ", measure.point_timeout_s is ", limits.point_timeout_s));
  } else if (on_gpu && plan.check_bytes > 0) {
    skip_for_check(plan, machine, ranks_at_once);
  }
  return plan;
}

PointCost point_cost(const PointPlan& plan, const MeasureConfig& measure) {
  if (plan.point.status != PointStatus::kOk) return {};
  const PointParams& p = plan.point.params;
  const double samples = double(measure.warmup + measure.min_samples);
  if (is_virtual(p)) {  // its other work is below a tenth; an output comes before a whole backward
    const double passes = has_forward(p.pass) || plan.share < 1 ? 1 : 1.4;
    return {1.1 * passes * samples, plan.estimated_s};
  }
  double keys = 0;
  for (const DilatedBranch& b : p.pattern.branches)
    keys += double(std::min(b.segment_length, p.problem.seq_len)) / double(b.dilation_rate);
  const double fill =
      backend_of(p.kernel).fill_s_per_value() *
      double(p.problem.seq_len * p.problem.batch * p.problem.num_heads * p.problem.head_dim) /
      p.ranks;
  double runs = samples + ablation_runs(plan.estimated_s, p), references = 1;
  if (has_layers(p.scope))  // two forward passes; no rows of attention are recomputed
    return {runs + 2, plan.estimated_s, plan.check_s + fill};
  if (has_backward(p.pass)) {  // the output is made once before; dQ takes the keys twice more
    runs += has_forward(p.pass) ? 1 : 0.4;
    references = 3;
  }
  return {runs, plan.estimated_s, fill + 5e-6 * references * keys * double(p.problem.num_heads)};
}

}  // namespace longnet
