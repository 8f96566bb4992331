// `lnbench check`: points on threads or under mpirun against the reference, once each.
#include "comm/host_transport.h"
#include "core/check.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/run_sweep.h"

namespace longnet {

int run_check(const Options& options) {
  const Sweep sweep = read_sweep(options);
  print_notes(options, sweep.config, /*measures=*/true);
  Watchdog watchdog(launched_rank());
  const double limit_s = sweep.config.measure.point_timeout_s + kGraceSeconds;
  if (!sweep.is_virtual()) watchdog.expect_start(limit_s);
  World world(sweep.is_virtual() ? 1 : sweep.world_size);
  Plan plan = make_plan(sweep, world);
  plan.runner.progress = [&watchdog] { watchdog.progress(); };
  plan.runner.measure.warmup = 0;
  plan.runner.measure.min_samples = plan.runner.measure.max_samples = 1;
  plan.runner.ablations = false;
  const int64_t left_out = std::erase_if(plan.points, [&](const PointPlan& p) {
    return p.point.status != PointStatus::kOk ||
           p.point.params.problem.seq_len > sweep.config.check.max_seq_len;
  });
  if (plan.points.empty())
    throw UsageError(
        "no point can be checked: all are skipped, or longer than check.max_seq_len = ",
        format_tokens(sweep.config.check.max_seq_len), ", which --set can raise");
  int64_t wrong = 0;
  Table<PointRecord> table = record_table(options, sweep.points);
  if (world.is_root()) table.head();
  SweepRun(world, sweep, plan, watchdog)
      .run({.run_point = [&](const PointPlan& p) { return run_point(world, p, plan.runner, {}); },
            .written =
                [&](size_t, const PointRecord& record, double) {
                  wrong += record.status != PointStatus::kOk;
                  add_record(table, record, options);
                }});
  if (world.is_root()) {
    table.finish();
    table.note(concat(plan.points.size(), " points checked against the reference in double, ",
                      wrong, " wrong, ", left_out,
                      " left out (skipped, or longer than check.max_seq_len = ",
                      format_tokens(sweep.config.check.max_seq_len), ")"));
  }
  return world.agree(wrong > 0) ? kFailed : kOk;
}

}  // namespace longnet
