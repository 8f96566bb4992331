// `lnbench plan`: what would run, its cost, what does not fit; a rank's program. No MPI, no GPU.
#include <algorithm>
#include <iostream>
#include <optional>

#include "core/check.h"
#include "core/tagged_memory.h"
#include "core/transports.h"
#include "core/work_ahead.h"
#include "io/expand.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "lnbench/terminal.h"
#include "run/backend.h"
#include "run/cluster_sweep.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

const Point& find_point(const std::vector<Point>& points, const std::string& which) {
  for (size_t i = 0; i < points.size(); ++i)
    if (points[i].id == which || std::to_string(i + 1) == which) return points[i];
  throw UsageError("no point '", which, "': give its id or its number (1 to ", points.size(),
                   ") as `lnbench plan` without --schedule lists them");
}

int print_schedule(const Options& options, const Point& point) {
  const Schedule schedule = make_schedule(point.params);
  const int world = schedule.sharded.layout.world_size();
  if (options.dot) {
    std::cout << to_dot(schedule, std::min(world, 8));
    return kOk;
  }
  if (options.schedule_rank < 0 || options.schedule_rank >= world)
    throw UsageError("--rank ", options.schedule_rank, ": this point has the ranks 0 to ",
                     world - 1);
  std::cout << "# " << describe(point.params) << "\n";
  for (size_t b = 0; b < point.params.pattern.branches.size(); ++b)
    std::cout << "# branch " << b << ": segment_length "
              << point.params.pattern.branches[b].segment_length << ", dilation_rate "
              << point.params.pattern.branches[b].dilation_rate << "\n";
  const RankProgram program = schedule.program(options.schedule_rank);
  std::cout << to_text(schedule.sharded, program, options.schedule_rank);
  const RankAccount cost = account(schedule.sharded, program, options.schedule_rank);
  std::cout << "# flops " << cost.flops << ", sends " << cost.bytes_sent << " bytes in "
            << cost.messages_sent << " messages, holds " << cost.memory_bytes() << " bytes\n";
  const auto faults = check_schedule(schedule);
  for (const std::string& line : faults) std::cout << "# FAULT " << line << "\n";
  if (faults.empty()) std::cout << "# check_schedule: correct on all " << world << " ranks\n";
  return faults.empty() ? kOk : kFailed;
}

void note_branches(TableWriter& table, const PointPlan& plan) {
  const ShardedProblem s = sharded_problem(plan.point.params);
  for (int b = 0; b < int(s.pattern.branches.size()); ++b) {
    const BranchRows rows(s.pattern, b, s.problem);
    table.note(concat("     branch ", b, ": w=", s.pattern.branches[size_t(b)].segment_length,
                      " r=", rows.dilation_rate(), " coverage=", coverage(s.problem, s.pattern, b),
                      " rows/segment=", rows.count(0, rows.segment(0))));
  }
}

// The largest rank's memory, from the largest part of it.
void note_memory(TableWriter& table, const PointPlan& plan) {
  auto by_tag = plan.account.memory_by_tag;
  by_tag[kWorkspaceTag] = plan.workspace_bytes;
  std::vector<std::pair<int64_t, std::string>> parts;
  for (const auto& [tag, bytes] : by_tag)
    if (bytes > 0) parts.emplace_back(-bytes, concat(tag, " ", format_bytes(double(bytes))));
  std::ranges::sort(parts);
  std::string text;
  for (const auto& [bytes, part] : parts) text += concat(text.empty() ? "" : ", ", part);
  table.note("     memory: " + text);
}

struct PlanRow {
  int number;
  const Point& point;  // with its status
  std::optional<double> flops{}, balance{}, seconds{}, runs{}, check_s{}, gpu_hours{};
  std::optional<int64_t> bytes_sent{}, messages{}, memory_bytes{};
};

// `on_cluster`: of what GPUs take, else of what this machine takes. `common`: options left out.
std::vector<Column<PlanRow>> plan_columns(bool on_cluster, const std::set<std::string>& common) {
  using enum Shown;
  using R = const PlanRow&;
  std::vector<Column<PlanRow>> columns{
      {"no", "no", kNumber, 4, 0, [](R r) { return r.number; }},
      {"id", "", kText, 8, 0, [](R r) { return r.point.id; }},
      {"status", "", kText, 6, 0, [](R r) { return to_string(r.point.status); }},
      {"flops", "FLOP", kCount, 6, 2, [](R r) { return to_json(r.flops); }},
      {"bytes_per_rank", "sent", kBytes, 8, 1, [](R r) { return to_json(r.bytes_sent); }},
      {"messages", "", kNumber, 8, 3, [](R r) { return to_json(r.messages); }},
      {"memory_bytes", "memory", kBytes, 8, 0, [](R r) { return to_json(r.memory_bytes); }},
      {"balance", "", kNumber, 7, 3, [](R r) { return to_json(r.balance); }},
      {"estimate_s", "time", kSeconds, 8, 0, [](R r) { return to_json(r.seconds); }},
      {"options", "", kText, on_cluster ? 16 : 10, 0,
       [common](R r) { return shown_options(r.point.params, common); }},
      {"note", "", kNote, 0, 0, [](R r) { return r.point.reason; }},
  };
  insert_axis_columns(columns, "flops", [](R r) -> const PointParams& { return r.point.params; });
  if (on_cluster) {
    std::erase_if(columns, [](const auto& c) { return c.name == "flops" || c.name == "balance"; });
    std::ranges::find(columns, "bytes_per_rank", &Column<PlanRow>::name)->priority = 3;
    columns.insert(
        columns.end() - 2,
        {{"runs", "", kNumber, 5, 2, [](R r) { return to_json(r.runs); }},
         {"check_s", "check", kSeconds, 8, 2, [](R r) { return to_json(r.check_s); }},
         {"gpu_hours", "GPU-h", kNumber, 7, 0, [](R r) { return to_json(r.gpu_hours); }}});
  }
  return columns;
}

PlanRow row_of(int number, const PointPlan& plan) {
  const WorldAccount& a = plan.account;
  PlanRow row{.number = number, .point = plan.point};
  if (a.pairs <= 0) return row;
  row.flops = a.flops;
  row.bytes_sent = a.max_bytes_sent;
  row.messages = a.max_messages_sent;
  row.memory_bytes = plan.memory_bytes();
  row.balance = a.balance(plan.point.params.program_ranks());
  if (plan.estimated_s > 0) row.seconds = plan.estimated_s;
  return row;
}

// Cost of the points on a cluster: simulated times, and GPU-hours to measure each there.
int plan_on_cluster(const Options& options, const Config& config) {
  SimulatePoint how{.cluster = read_cluster(options, config),
                    .memory_fraction = config.memory.limit_fraction,
                    .communication_alone = false};
  const auto points = on_cluster(config, how, options.filter);
  how.alpha = AlphaSet::kNcclLl;  // after on_cluster(): it would change the points' ids
  Progress progress(options, true, int(points.size()));
  TableStyle style = table_style(options, &progress);
  const auto common = leave_out_constants(style, points);
  Table<PlanRow> table(plan_columns(true, common), style);
  table.note(concat("plan of ", config.path, " on ", how.cluster.name, ": ",
                    points_text(points.size()), "; ",
                    format_bytes(how.cluster.device.memory_bytes.value), " on each of ",
                    how.cluster.num_gpus(), " ", how.cluster.device.name));
  table.head();
  ClusterCost all;
  int fitting = 0;
  WorkAhead<PointRecord> simulated(points.size(), simulation_threads(how),
                                   [&](size_t i) { return simulate_point(points[i], how).record; });
  for (size_t i = 0; i < points.size(); ++i) {
    progress.start(int(i) + 1, describe(points[i].params), 0);
    const PointRecord r = simulated.next();
    PlanRow row{.number = int(i) + 1, .point = {r.id, r.params, r.status, note_of(r)}};
    if (r.status == PointStatus::kOk) {
      const PointCost cost = cost_on_cluster(r, config.measure);
      row.bytes_sent = r.comm.predicted_bytes_per_rank;
      row.messages = r.comm.predicted_messages_per_rank;
      row.memory_bytes = r.memory.predicted_peak_bytes;
      row.seconds = r.timing.median_s;
      row.runs = cost.runs;
      row.check_s = cost.other_s;  // GPUs fill their inputs in no time
      row.gpu_hours = all.add(cost, r.params.ranks);
      ++fitting;
    }
    table.add(row);
  }
  table.finish();
  table.note(
      concat(fitting, " of ", points.size(), " points fit; time: of one pass, simulated; ",
             "GPU-h: to measure it, ranks x (runs x time + check); runs: ", config.measure.warmup,
             " to warm up, ", config.measure.min_samples,
             " samples or more, the rest of its parts alone; check: of its rows, on the host",
             options.wide ? "" : " (--wide has both)"));
  table.note(concat("all of them: ", format_seconds(all.seconds), ", ",
                    human(all.gpu_hours, Shown::kNumber), " GPU-hours point by point, ",
                    human(all.gpu_hours_of_one_job(), Shown::kNumber), " in one job of ", all.ranks,
                    " GPUs"));
  return fitting > 0 ? kOk : kFailed;
}

// True when `run` would start these ranks on this machine.
bool runs_here(const Config& config) {
  return config.run.mode != Mode::kVirtual && config.cluster.file.empty();
}

// Sums over the points that this machine can run.
struct MachineTotals {
  double seconds = 0;
  int runnable = 0;
  int unknown = 0;  // points whose speed no GPU here tells
  int crowded = 0;  // points with more ranks than GPUs
};

void add_point(MachineTotals& all, const PointPlan& plan, const MachineLimits& limits,
               const MeasureConfig& measure) {
  if (plan.point.status != PointStatus::kOk) return;
  ++all.runnable;
  all.seconds += point_cost(plan, measure).seconds();
  all.unknown += plan.estimated_s <= 0 ? 1 : 0;
  all.crowded += on_gpu(plan.point.params) && !is_virtual(plan.point.params) &&
                 plan.point.params.ranks > limits.devices && limits.devices > 0;
}

// `on_cpus`: points that need no GPU. `threads`: each rank's.
std::string text_of(const MachineTotals& all, size_t points, size_t on_cpus, int threads,
                    int cores) {
  return concat(
      all.runnable, " of ", points, " points can run; at least ", format_seconds(all.seconds),
      on_cpus > 0 ? concat(" with ", threads, " thread(s) per rank on ", cores, " core(s)") : "",
      all.unknown > 0 ? concat(", without the forwards of ", all.unknown,
                               " points: no GPU here tells its speed")
                      : "",
      "; time: of one run");
}

// Cost of the points on this machine, with `world` ranks.
int plan_here(const Options& options, const Config& config, const std::vector<Point>& points,
              int world) {
  const int usable = std::max(1, capture_environment().usable_threads);
  const int threads = config.run.mode == Mode::kVirtual ? usable : std::max(1, usable / world);
  const double peak = measure_fma_peak_flops(1, 0.1);
  MachineLimits limits = machine_limits(config, peak * threads);
  limits.cores = usable;
  const auto gpus = size_t(std::ranges::count_if(points, on_gpu, &Point::params));
  const size_t on_cpus = points.size() - gpus;
  Progress progress(options, true, int(points.size()));
  TableStyle style = table_style(options, &progress);
  const auto common = leave_out_constants(style, points);
  Table<PlanRow> table(plan_columns(false, common), style);
  std::string head = concat("plan of ", config.path, ": ", points_text(points.size()));
  if (on_cpus > 0)
    head += concat("; ", format_si(peak, "FLOP/s"), " FMA peak per core measured here");
  if (gpus > 0) head += "; " + devices_text();
  if (gpus > 0 && limits.device_flops > 0)
    head += concat(", estimated at ", format_si(limits.device_flops, "FLOP/s"), " each");
  table.note(head);
  table.head();
  MachineTotals all;
  for (size_t i = 0; i < points.size(); ++i) {
    progress.start(int(i) + 1, describe(points[i].params), 0);
    const PointPlan plan = plan_point(points[i], limits, threads, points[i].params.ranks);
    table.add(row_of(int(i) + 1, plan));
    if (options.verbose > 0 && plan.account.pairs > 0) {
      note_branches(table, plan);
      note_memory(table, plan);
    }
    add_point(all, plan, limits, config.measure);
  }
  table.finish();
  table.note(text_of(all, points.size(), on_cpus, threads, usable));
  if (runs_here(config)) print_ranks_missing(table, points, world);
  if (all.crowded > 0)
    table.note(concat(all.crowded, " points have more ranks than this machine's ", limits.devices,
                      " GPU(s): on this machine alone, ranks share GPUs, which ",
                      needs_gpu_per_rank(config.run.transport)
                          ? concat(config.run.transport, " refuses: they will be skipped")
                          : "shows in their times"));
  return kOk;
}

}  // namespace

int run_plan(const Options& options) {
  Config config = read_config(options);
  print_notes(options, config);
  if (!options.cluster.empty() && options.schedule_of.empty())
    return plan_on_cluster(options, config);
  scale_batch_to_device(config);
  // Defaults are those of `run` without a launcher.
  const std::string transport = transport_of(config, /*launched=*/nullptr);
  const int world = options.ranks > 0 ? options.ranks : default_world_size(config);
  auto points = read_points(config, {.world_size = world,
                                     .filter = options.filter,
                                     .mode = config.run.mode,
                                     .transport = transport});
  if (config.cluster.file.empty()) require_fitting_transport(config, points);
  if (runs_here(config))  // as `run` does
    for (Point& point : points) skip_too_many_ranks(point, options.ranks);
  if (!options.schedule_of.empty())
    return print_schedule(options, find_point(points, options.schedule_of));
  return plan_here(options, config, points, world);
}

}  // namespace longnet
