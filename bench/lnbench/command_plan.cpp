// `lnbench plan`: what would run, its cost, what does not fit; a rank's program. No MPI, no GPU.
#include <algorithm>
#include <iostream>

#include "core/check.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "lnbench/terminal.h"
#include "run/backend.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

const Point& find_point(const std::vector<Point>& points, const std::string& which) {
  for (size_t i = 0; i < points.size(); ++i)
    if (points[i].id == which || std::to_string(i + 1) == which) return points[i];
  throw UsageError(concat("no point '", which, "': give its id or its number (1 to ", points.size(),
                          ") as `lnbench plan` without --schedule lists them"));
}

int print_schedule(const Options& options, const Point& point) {
  const Schedule schedule = make_schedule(point.params);
  const int world = schedule.sharded.layout.world_size();
  if (options.dot) {
    std::cout << to_dot(schedule, std::min(world, 8));
    return kOk;
  }
  if (options.schedule_rank < 0 || options.schedule_rank >= world)
    throw UsageError(
        concat("--rank ", options.schedule_rank, ": this point has the ranks 0 to ", world - 1));
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

void print_branches(const PointPlan& plan) {
  const ShardedProblem s = sharded_problem(plan.point.params);
  for (int b = 0; b < int(s.pattern.branches.size()); ++b) {
    const BranchRows rows(s.pattern, b, s.problem);
    std::cout << "#      branch " << b << ": w=" << s.pattern.branches[size_t(b)].segment_length
              << " r=" << rows.dilation_rate() << " coverage=" << coverage(s.problem, s.pattern, b)
              << " rows/segment=" << rows.count(0, rows.segment(0)) << "\n";
  }
}

}  // namespace

int run_plan(const Options& options) {
  Config config = read_config(options);
  print_notes(options, config);
  scale_batch_to_device(config);
  // The same defaults as `run` without a launcher.
  const int usable = std::max(1, capture_environment().usable_threads);
  const std::string transport = transport_of(config, /*launched=*/false);
  const int world = options.ranks > 0 ? options.ranks : default_world_size(config);
  const int threads = config.run.mode == Mode::kVirtual ? usable : std::max(1, usable / world);
  auto points = read_points(config, {.world_size = world,
                                     .filter = options.filter,
                                     .mode = config.run.mode,
                                     .transport = transport});
  if (config.cluster.file.empty()) require_fitting_transport(config, points);
  if (options.ranks > 0 && config.run.mode != Mode::kVirtual && config.cluster.file.empty())
    for (Point& point : points)
      if (point.status == PointStatus::kOk &&
          point.params.ranks > options.ranks) {  // as `run` does
        point.status = PointStatus::kSkippedUnsupported;
        point.reason = concat("needs ", point.params.ranks, " ranks, there are ", options.ranks);
      }
  if (!options.schedule_of.empty())
    return print_schedule(options, find_point(points, options.schedule_of));
  const double peak = measure_fma_peak_flops(1, 0.1);
  MachineLimits limits = machine_limits(config, peak * threads);
  limits.cores = usable;
  const auto gpus = std::ranges::count_if(points, on_gpu, &Point::params);
  std::cout << "# plan of " << config.path << ": " << points.size() << " points";
  if (size_t(gpus) < points.size())
    std::cout << "; " << format_si(peak, "FLOP/s") << " FMA peak per core measured here";
  if (gpus > 0) {
    std::cout << "; " << devices_text();
    if (limits.device_flops > 0)
      std::cout << ", estimated at " << format_si(limits.device_flops, "FLOP/s") << " each";
  }
  std::cout << "\n" << kPlanHeader << "\n";
  double seconds = 0;
  int runnable = 0, unknown = 0, crowded = 0;
  Progress progress(options, true, int(points.size()));
  for (size_t i = 0; i < points.size(); ++i) {
    progress.start(int(i) + 1, describe(points[i].params), 0);
    const PointPlan plan = plan_point(points[i], limits, threads, points[i].params.ranks);
    progress.clear();
    std::cout << plan_row(int(i) + 1, plan) << "\n" << std::flush;
    if (options.verbose > 0 && plan.account.pairs > 0) print_branches(plan);
    if (plan.point.status != PointStatus::kOk) continue;
    ++runnable;
    seconds += point_cost(plan, config.measure);
    unknown += plan.estimated_s <= 0 ? 1 : 0;
    crowded += on_gpu(plan.point.params) && !is_virtual(plan.point.params) &&
               plan.point.params.ranks > limits.devices && limits.devices > 0;
  }
  std::cout << "# " << runnable << " of " << points.size() << " points can run; at least "
            << format_seconds(seconds)
            << (size_t(gpus) < points.size()
                    ? concat(" with ", threads, " thread(s) per rank on ", usable, " core(s)")
                    : "")
            << (unknown > 0 ? concat(", without the forwards of ", unknown,
                                     " points: no GPU here tells its speed")
                            : std::string())
            << "; estimate: seconds of one forward; above 64 ranks, maxima are over 5 of "
               "them\n";
  if (crowded > 0)
    std::cout << "# " << crowded << " points have more ranks than this machine's " << limits.devices
              << " GPU(s): on this machine alone, ranks share GPUs, which "
              << (config.run.transport.starts_with("nccl")
                      ? concat(config.run.transport, " refuses: they will be skipped")
                      : std::string("shows in their times"))
              << "\n";
  return kOk;
}

}  // namespace longnet
