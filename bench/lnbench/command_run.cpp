// `lnbench run`: points for real, on threads or under mpirun.
#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include "comm/host_transport.h"
#include "core/check.h"
#include "core/stopwatch.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "run/run_sweep.h"

namespace longnet {
namespace {

void print_head(TableWriter& table, const Sweep& sweep, const Plan& plan, World& world,
                const Options& options) {
  if (!options.quiet) warn(fitness_warnings(environment_of(world, sweep.busy_share)));
  int most_ranks = sweep.is_virtual() ? 1 : world.size();
  std::set<int> threads;
  for (const PointPlan& point : plan.points) {
    if (sweep.is_virtual()) most_ranks = std::max(most_ranks, point.point.params.ranks);
    threads.insert(point.point.params.threads);
  }
  std::string threads_text;
  for (const int t : threads) threads_text += concat(threads_text.empty() ? "" : " or ", t);
  table.note(concat(sweep.config.name, ": ", points_text(plan.points.size()), " on up to ",
                    most_ranks, most_ranks == 1 ? " rank (" : " ranks (",
                    sweep.is_virtual() ? "virtual" : sweep.transport, "), ",
                    std::ranges::all_of(sweep.points, on_gpu, &Point::params)
                        ? devices_text()
                        : concat(threads_text, " thread(s) each; peak of a core ",
                                 format_si(plan.runner.peak_flops_per_thread, "FLOP/s"))));
  table.head();
}

// "shard 17 of 128, 13.2%, 1.21 Mtok/s, ETA 31min"
std::string to_text(const WalkProgress& w) {
  std::ostringstream share;
  share << std::fixed << std::setprecision(1) << 100 * w.share_done;
  return concat("shard ", w.units_done, " of ", w.units, ", ", share.str(), "%, ",
                format_si(w.tokens_per_s, "tokens/s"), ", ETA ", format_seconds(w.left_s));
}

// Returns the verdict.
std::string end_result(const Sweep& sweep, SweepRun& run, Table<PointRecord>& table) {
  const Summary summary = run.finish();
  const bool none = summary.counts.at("ok") == 0 && summary.verdict == "incomplete";
  table.finish();
  print_summary(table, summary,
                !none                   ? ""
                : run.records().empty() ? " nothing was measured"
                                        : " nothing was measured, the points say why",
                run.directory());
  if (!sweep.is_virtual()) print_ranks_missing(table, sweep.points, sweep.world_size);
  return summary.verdict;
}

}  // namespace

int run_points(const Options& options) {
  Sweep sweep = read_sweep(options);
  print_notes(options, sweep.config, /*measures=*/true);
  sweep.busy_share = measure_busy_share();  // before MPI's threads and waits are there
  Watchdog watchdog(launched_rank());
  if (!sweep.is_virtual())  // one process waits for nobody
    watchdog.expect_start(sweep.config.measure.point_timeout_s + kGraceSeconds);
  World world(sweep.is_virtual() ? 1 : sweep.world_size);
  stop_gently_on_signals();
  Plan plan = make_plan(sweep, world);
  plan.runner.progress = [&watchdog] { watchdog.progress(); };
  SweepRun run(world, sweep, plan, run_target(options, sweep, plan.threads, world), watchdog);
  Progress progress(options, world.is_root(), int(plan.points.size()));
  Table<PointRecord> table = record_table(options, sweep.points, &progress);
  if (world.is_root()) print_head(table, sweep, plan, world, options);
  const VirtualRun walk{
      .directory = run.directory(),
      .replay = sweep.replay,
      .config = sweep.config.virtual_ranks,
      .progress = [&](const WalkProgress& w) { progress.step(to_text(w)); },
      .stop = [&] { return stop_requested() || steady_seconds() > sweep.stop_at_s; }};
  const auto started = [&](size_t i) {
    progress.start(int(i) + 1, describe(plan.points[i].point.params), plan.cost(i));
  };
  const auto written = [&](size_t i, const PointRecord& record, double took_s) {
    const Point& point = plan.points[i].point;
    add_record(table, record, options);
    progress.done(concat(describe(point.params), "  ", to_string(record.status),
                         point.status == PointStatus::kOk ? "  " + format_seconds(took_s) : ""),
                  took_s, plan.cost(i), plan.cost_after(i, run.todo()), run.budget_s());
  };
  const bool complete = run.run(
      {.run_point = [&](const PointPlan& p) { return run_point(world, p, plan.runner, walk); },
       .stop = [] { return stop_requested(); },
       .started = started,
       .written = written,
       .note = [&](const std::string& line) { progress.note(line); },
       .error = [](const std::string& line) { say("error: " + line); }});
  const bool passed = world.agree(world.is_root() && end_result(sweep, run, table) == "pass");
  if (!complete && world.is_root())
    say(concat("stopped early; go on with: lnbench run ", options.config, same_options(options),
               " --resume ", run.directory()));
  return !complete ? kStoppedEarly : passed ? kOk : kFailed;
}

}  // namespace longnet
