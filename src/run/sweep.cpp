#include "run/sweep.h"

#include <algorithm>
#include <set>
#include <utility>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "core/transports.h"
#include "io/units.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "measure/sampler.h"
#include "run/fill_record.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"
#include "simulate/cluster.h"
#include "simulate/collective_times.h"

namespace longnet {
namespace {

// GPUs that a machine's ranks see together (a launcher may show each its own); of all, the least.
int devices_per_machine(World& world) {
  std::vector<std::string> mine{capture_environment().hostname};  // and the devices' uuids
  for (const DeviceInfo& device : describe_devices().devices) mine.push_back(device.uuid);
  std::set<std::string> seen;
  for (const auto& told : gather(world, mine))
    if (told[0] == mine[0]) seen.insert(told.begin() + 1, told.end());
  return int(world.smallest(double(seen.size())));
}

// Refuses on every rank the points that some rank refuses, e.g. where its machine lacks a driver.
void agree_on_refusals(std::vector<PointPlan>& plans, World& world) {
  std::vector<Refusal> mine;
  for (const PointPlan& p : plans) mine.push_back({p.point.status, p.point.reason});
  const auto told = gather(world, mine);
  for (size_t rank = 0; rank < told.size(); ++rank)
    for (size_t i = 0; i < plans.size(); ++i) {
      const Refusal& refusal = told[rank][i];
      Point& point = plans[i].point;
      if (refusal.status != PointStatus::kOk && point.status == PointStatus::kOk)
        set_status(point, refusal.status, concat("rank ", rank, ": ", refusal.reason));
    }
}

// Throws where a sweep as a whole is for another machine: one error instead of a row per point.
void require_this_machine(const Sweep& sweep, const Plan& plan, World& world) {
  const Config& config = sweep.config;
  const auto runs = [](const PointPlan& p) { return p.point.status == PointStatus::kOk; };
  if (plan.points.empty() || std::ranges::any_of(plan.points, runs)) return;
  if (!config.cluster.file.empty())
    throw UsageError(config.path, ": none of its ", plan.points.size(),
                     " points can run here: ", plan.points[0].point.reason,
                     "\n  hint: it names the cluster ", config.cluster.file, ": lnbench simulate ",
                     config.path);
  if (!std::ranges::all_of(sweep.points, on_gpu, &Point::params)) return;
  const auto missing = world.all_texts(describe_devices().unusable);
  for (size_t rank = 0; rank < missing.size(); ++rank)
    if (!missing[rank].empty())
      throw UsageError(config.path, ": all of its ", plan.points.size(),
                       " points need GPUs, and rank ", rank, " has none: ", missing[rank],
                       "\n  hint: --set ", config.sweep.find("kernel") ? "sweep" : "run",
                       ".kernel=cpu measures on the cores; lnbench plan and lnbench "
                       "simulate need no GPU");
}

void require_memory(const Config& config, const Plan& plan) {
  if (config.memory.on_exceed != "fail") return;
  for (const PointPlan& p : plan.points)
    if (p.point.status == PointStatus::kSkippedMemory)
      throw UsageError(config.path, ": ", describe(p.point.params), ": ", p.point.reason,
                       "\n  hint: --set memory.on_exceed=skip leaves such points out");
}

}  // namespace

KnownNames known_names() {
  KnownNames known;
  const auto add = [](std::vector<std::string>& names, const auto& more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  add(known.names["algorithm"], names_of(algorithms()));
  add(known.names["kernel"], names_of(kernels()));
  add(known.names["kernel"], names_of(device_kernels()));
  add(known.names["collective"], collective_names());
  add(known.names["collective"], formula_names());
  for (const AlgorithmInfo& a : algorithms()) {
    KnownAlgorithm& its = known.algorithms[std::string(a.name)];
    its = {a.pattern, a.one_rank_only, lowerings_of(a.collectives)};
    if (a.collectives == CollectiveUse::kAllGather) add(its.collectives, formula_names());
  }
  known.why_bad_what_if = [](const std::string& text) -> std::string {
    try {
      parse_what_if(text);
      return {};
    } catch (const UsageError& e) {
      return e.what();
    }
  };
  return known;
}

Config read_config(const SweepRequest& request) {
  std::vector<std::string> overrides = request.sets;
  if (!request.mode.empty()) overrides.push_back("run.mode=" + request.mode);
  if (!request.transport.empty()) overrides.push_back("run.transport=" + request.transport);
  Config config = load_config(request.config, {.overrides = overrides, .known = known_names()});
  // No launcher decides how many virtual ranks there are.
  if (config.run.mode == Mode::kVirtual && request.ranks > 0)
    config.sweep.axes["ranks"] = {.values = {request.ranks}};
  return config;
}

std::string transport_of(const Config& config, const HostTransport* launched) {
  if (config.run.mode != Mode::kVirtual) return name_of(launched);
  if (launched)
    throw UsageError(
        "virtual ranks are walked by one process\n  hint: start it without a launcher");
  return "";
}

std::vector<Point> read_points(const Config& config, ExpandOptions options) {
  options.known = known_names();
  options.resolve = resolve_options;
  return expand(config, options);
}

std::vector<Point> distinct_patterns(const std::vector<Point>& points) {
  std::vector<Point> out;
  std::set<std::string> seen;
  for (const Point& point : points) {
    PointParams told;  // those that decide the point's pattern
    const AttentionProblem& problem = point.params.problem;
    told.problem = {
        .seq_len = problem.seq_len, .num_heads = problem.num_heads, .causal = problem.causal};
    told.pattern = point.params.pattern;
    told.pattern.mix = {};
    if (seen.insert(canonical_params_json(told)).second) out.push_back(point);
  }
  return out;
}

void require_fitting_transport(const Config& config, const std::vector<Point>& points) {
  if (config.run.transport == to_string(DeviceTransportKind::kAuto)) return;
  for (const Point& point : points)
    if (!on_gpu(point.params))
      throw UsageError("transport ", config.run.transport, " moves the memory of GPUs, and kernel ",
                       point.params.kernel,
                       " works on the CPU\n  hint: --set run.kernel=cuda, or leave "
                       "the transport out");
}

void scale_batch_to_device(Config& config) {
  BatchConfig& batch = config.sweep.batch;
  if (!std::exchange(batch.tokens_of_device, false)) return;
  const MachineLimits limits = machine_limits(config, 0);
  if (limits.device_memory_bytes == 0 || config.run.mode == Mode::kVirtual) return;
  Config shortest = config;
  const Value length = std::ranges::min(config.values_of(*find_axis("seq_len"), 1));
  const int64_t seq_len = std::get<int64_t>(length);
  shortest.sweep.axes["seq_len"] = {.values = {length}};
  shortest.sweep.axes["ranks"] = {.values = {1}};
  constexpr int64_t kPaperTokens = int64_t{1} << 30;
  for (int64_t tokens = kPaperTokens; tokens >= seq_len; tokens /= 2) {
    shortest.sweep.batch.tokens_per_batch = batch.tokens_per_batch = tokens;
    if (std::ranges::none_of(read_points(shortest, {}), [&](const Point& point) {
          return plan_point(point, limits, 1, 1).point.status == PointStatus::kSkippedMemory;
        }))
      return;
  }
}

Sweep read_sweep(const SweepRequest& request) {
  const double begin_s = steady_seconds();
  Sweep sweep{.config = read_config(request), .points = {}, .transport = {}, .replay = {}};
  scale_batch_to_device(sweep.config);
  if (!request.max_time.empty()) sweep.stop_at_s = begin_s + parse_duration(request.max_time);
  const std::optional<Launch> launch = launched();
  sweep.world_size = launch              ? launch->ranks
                     : request.ranks > 0 ? request.ranks
                                         : default_world_size(sweep.config);
  sweep.transport = transport_of(sweep.config, launched_transport());
  constexpr int kMostThreadRanks = 1024;  // each pair of them has a channel
  if (!launch && !sweep.is_virtual() && sweep.world_size > kMostThreadRanks)
    throw UsageError("--ranks ", sweep.world_size, ": at most ", kMostThreadRanks,
                     " ranks run as threads of one process\n  hint: use mpirun, "
                     "--mode virtual, or lnbench simulate");
  sweep.points = read_points(sweep.config, {.world_size = sweep.world_size,
                                            .max_ranks = sweep.is_virtual() ? 0 : sweep.world_size,
                                            .filter = request.filter,
                                            .mode = sweep.config.run.mode,
                                            .transport = sweep.transport});
  if (!request.replay.empty() && !sweep.is_virtual())
    throw UsageError("--replay takes ranks out of a virtual run\n  hint: add --mode virtual");
  require_fitting_transport(sweep.config, sweep.points);
  sweep.replay = parse_ranks(request.replay);
  for (const Point& point : sweep.points)
    if (!sweep.replay.empty() && sweep.replay.back() >= point.params.ranks)
      throw UsageError("--replay ", sweep.replay.back(), ": ", describe(point.params),
                       " has the ranks 0 to ", point.params.ranks - 1,
                       "\n  hint: --filter leaves points out");
  return sweep;
}

Plan make_plan(const Sweep& sweep, World& world) {
  const std::string tokens = std::to_string(sweep.config.sweep.batch.tokens_per_batch);
  for (const std::string& other : world.all_texts(tokens))
    if (other != tokens)  // GPUs are unequal
      throw UsageError(
          "tokens_per_batch is \"device\", which is ", tokens, " here and ", other,
          " on another rank\n  hint: --set sweep.batch.tokens_per_batch=", "the smaller one");
  Plan plan;
  world.mark_load();  // for the first points
  plan.threads = int(world.smallest(world.threads_per_rank()));
  const double peak = measure_peak_per_rank(world, plan.threads);
  std::string device_transport = sweep.config.run.transport;
  if (sweep.on_devices() && !sweep.is_virtual())
    device_transport = world.run(
        [&](Communicator& comm) { return transport_of_run(sweep.config.run.transport, comm); });
  plan.runner = {.measure = sweep.config.measure,
                 .check = sweep.config.check,
                 .peak_flops_per_thread = peak / plan.threads,
                 .device_transport = device_transport};
  MachineLimits limits = machine_limits(sweep.config, peak);
  limits.replayed_ranks = int(sweep.replay.size());
  limits.memory_bytes = int64_t(world.smallest(double(limits.memory_bytes)));
  limits.flops_per_rank = world.smallest(limits.flops_per_rank);
  limits.device_memory_bytes = int64_t(world.smallest(double(limits.device_memory_bytes)));
  limits.device_flops = world.smallest(limits.device_flops);
  if (sweep.on_devices() && limits.devices > 0) limits.devices = devices_per_machine(world);
  limits.to_run = true;
  if (world.is_one_process()) limits.cores = std::max(1, capture_environment().usable_threads);
  const int ranks_here = -int(world.smallest(-world.ranks_on_this_machine()));
  for (const Point& point : sweep.points)
    plan.points.push_back(plan_point(point, limits, plan.threads, ranks_here));
  agree_on_refusals(plan.points, world);
  require_this_machine(sweep, plan, world);
  require_memory(sweep.config, plan);
  return plan;
}

std::optional<PointRecord> run_point(World& world, const PointPlan& plan,
                                     const RunnerOptions& runner, const VirtualRun& walk) {
  const PointParams& p = plan.point.params;
  if (plan.point.status == PointStatus::kOk) {
    require_threads(p.threads * (is_virtual(p) || !world.is_one_process() ? 1 : p.ranks));
    world.mark_load();
    std::optional<PointRecord> record = is_virtual(p) ? walk_point(plan, runner, walk)
                                                      : world.run(p.ranks, [&](Communicator& comm) {
                                                          return measure_point(plan, runner, comm);
                                                        });
    const double busy = world.busy_share();
    if (record && busy >= 0)
      record->metrics.try_emplace("busy_share", busy);  // else samples or units were long enough
    return record;
  }
  PointRecord record = make_record(plan.point);
  if (plan.point.status == PointStatus::kSkippedMemory) set_memory(record, plan.memory_bytes());
  if (!is_virtual(p))
    record.params.transport = on_gpu(p) && runner.device_transport != "auto"
                                  ? runner.device_transport
                                  : world.transport();
  return record;
}

PointRecord failed_record(const PointPlan& plan, const std::string& what) {
  PointRecord record = make_record(plan.point);
  set_status(record, PointStatus::kError, what);
  return record;
}

}  // namespace longnet
