// `lnbench check`: points on threads or under mpirun against the reference, once each.
#include <algorithm>

#include "comm/mpi/mpi_world.h"
#include "core/check.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/walk_point.h"
#include "run/watchdog.h"

namespace longnet {

int run_check(const Options& options) {
  const Sweep sweep = read_sweep(options);
  print_notes(options, sweep.config, /*measures=*/true);
  Watchdog watchdog(launched_rank());
  const double limit_s = sweep.config.measure.point_timeout_s + kGraceSeconds;
  if (!sweep.is_virtual()) watchdog.expect("the start", limit_s);
  World world(sweep.is_virtual() ? 1 : sweep.world_size);
  Plan plan = make_plan(sweep, world);
  plan.runner.progress = [&watchdog] { watchdog.progress(); };
  plan.runner.measure.warmup = 0;
  plan.runner.measure.min_samples = plan.runner.measure.max_samples = 1;
  plan.runner.ablations = false;
  const auto short_enough = [&](const PointPlan& p) {
    return p.point.status == PointStatus::kOk &&
           p.point.params.problem.seq_len <= sweep.config.check.max_seq_len;
  };
  const int64_t to_check = std::count_if(plan.points.begin(), plan.points.end(), short_enough);
  if (to_check == 0)
    throw UsageError(
        "no point can be checked: all are skipped, or longer than check.max_seq_len = ",
        format_tokens(sweep.config.check.max_seq_len), ", which --set can raise");
  int64_t wrong = 0;
  const bool root = world.is_root(), color = use_color(options, 1);
  Table<PointRecord> table(record_columns(), table_style(options));
  if (root) table.head();
  for (const PointPlan& point : plan.points) {
    if (!short_enough(point)) continue;
    if (!sweep.is_virtual()) watchdog.expect(describe(point.point.params), limit_s);
    PointRecord record;
    try {
      record = run_point(world, point, plan.runner, {}).value();
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& e) {
      if (!world.is_one_process()) throw;  // the other ranks are stuck in this point
      record = failed_record(point, e.what());
    }
    if (!root) continue;
    validate_record(record);
    wrong += record.status != PointStatus::kOk;
    add_record(table, record, color);
  }
  if (root) {
    table.finish();
    table.note(concat(to_check, " points checked against the reference in double, ", wrong,
                      " wrong, ", int64_t(plan.points.size()) - to_check,
                      " left out (skipped, or longer than check.max_seq_len = ",
                      format_tokens(sweep.config.check.max_seq_len), ")"));
  }
  return world.agree(wrong > 0) ? kFailed : kOk;
}

}  // namespace longnet
