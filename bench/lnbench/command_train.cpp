// `lnbench train`: a byte-level language model around the attention of a config's one point.
#include <cmath>

#include "comm/host_transport.h"
#include "core/check.h"
#include "core/stopwatch.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "run/train.h"

namespace longnet {
namespace {

std::vector<Column<TrainStep>> step_columns(int64_t tokens_per_step) {
  using enum Shown;
  using R = const TrainStep&;
  return {
      {"step", "", kNumber, 7, 0, [](R r) { return r.step; }},
      {"bits_per_byte", "bits/byte", kNumber, 9, 0,
       [](R r) { return std::round(1e4 * r.bits_per_byte) / 1e4; }},
      {"held_out_bits", "held out", kNumber, 8, 0,
       [](R r) { return std::round(1e4 * r.held_out_bits) / 1e4; }},
      {"gradient_norm", "norm", kNumber, 7, 1,
       [](R r) { return std::round(1e3 * r.gradient_norm) / 1e3; }},
      {"learning_rate", "rate", kNumber, 9, 2,
       [](R r) { return std::round(1e7 * r.learning_rate) / 1e7; }},
      {"seconds", "time", kSeconds, 8, 0, [](R r) { return r.seconds; }},
      {"tokens_per_s", "tokens/s", kCount, 8, 0,
       [=](R r) { return double(tokens_per_step) / r.seconds; }},
  };
}

std::string what_trains(const TrainPlan& plan, const World& world) {
  const PointParams& p = plan.point.params;
  return concat(plan.config.name, ": ", format_si(double(plan.parameters), "parameters"), ", ",
                p.model.layers, " layers of ", p.problem.num_heads, " heads x ", p.problem.head_dim,
                ", ", describe(p), " (", world.transport(), "), ",
                format_si(double(plan.tokens_per_step()), "tokens"), " a step, ",
                format_bytes(double(plan.memory_bytes())), " a rank");
}

}  // namespace

int run_train(const Options& options) {
  SweepRequest request = options;
  for (const char* set : {"sweep.scope=model", "sweep.pass=step"}) request.sets.emplace_back(set);
  Sweep sweep = read_sweep(request);  // a point of attention alone would drop the model's shape
  sweep.busy_share = measure_busy_share();
  Watchdog watchdog(launched_rank());
  watchdog.expect_start(sweep.config.measure.point_timeout_s + kGraceSeconds);
  World world(sweep.world_size);
  stop_gently_on_signals();
  for (Point& point : sweep.points)
    if (point.params.threads == 0) point.params.threads = world.threads_per_rank();
  const TrainPlan plan =
      plan_training(sweep, machine_limits(sweep.config, 1), world.ranks_on_this_machine());
  const RunTarget target = run_target(options, sweep, plan.point.params.threads, world);
  Progress progress(options, world.is_root(), 1);
  Table<TrainStep> table(step_columns(plan.tokens_per_step()), table_style(options, &progress));
  if (world.is_root()) {
    if (plan.train.warmup_steps >= plan.train.steps)
      warn({concat("train.warmup_steps = ", plan.train.warmup_steps, " of train.steps = ",
                   plan.train.steps, ": the learning rate only rises. Set fewer.")});
    table.note(what_trains(plan, world));
    table.head();
  }
  progress.start(1, "training", 0);
  double began_s = steady_seconds();
  int64_t made = 0;
  const auto stepped = [&](const TrainStep& step) {
    const double a_step_s = (steady_seconds() - began_s) / double(++made);
    progress.step(concat("step ", step.step, " of ", plan.train.steps, ", ",
                         std::round(1e3 * step.bits_per_byte) / 1e3, " bits/byte, ETA ",
                         format_seconds(a_step_s * double(plan.train.steps - step.step))));
    if (std::isfinite(step.held_out_bits) || step.step == 1) table.add(step);
  };
  const auto stop = [&] { return stop_requested() || steady_seconds() > sweep.stop_at_s; };
  const Trained trained = train(world, plan, target, {stop, stepped}, watchdog);
  watchdog.expect("the end of the run", kGraceSeconds);
  if (!world.is_root()) return trained.complete ? kOk : kStoppedEarly;
  progress.clear();
  if (std::isfinite(trained.held_out_bits))
    table.note(
        concat("held-out text: ", std::round(1e4 * trained.held_out_bits) / 1e4, " bits per byte"));
  table.note("result: " + trained.directory);
  table.finish();
  if (!trained.complete)
    say(concat("stopped early; go on with: lnbench train ", options.config, same_options(options),
               " --resume ", trained.directory));
  return trained.complete ? kOk : kStoppedEarly;
}

}  // namespace longnet
