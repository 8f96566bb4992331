// `lnbench run` and `lnbench check`: points for real, on threads or under mpirun.
#include <csignal>
#include <iostream>

#include "core/check.h"
#include "io/expand.h"
#include "io/result.h"
#include "io/units.h"
#include "lnbench/machine.h"
#include "lnbench/point_runner.h"
#include "lnbench/table.h"
#include "lnbench/terminal.h"
#include "lnbench/watchdog.h"
#include "lnbench/world.h"
#include "measure/sampler.h"

namespace longnet {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
void request_stop(int) { stop_requested = 1; }

// The point at hand is finished, then the run ends with exit code 4 and can be resumed.
void stop_gently_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, request_stop);
}

struct Sweep {
  Config config;
  std::vector<PointPlan> plans;
  RunnerOptions runner;
  double left_after(size_t index, const std::vector<bool>& todo) const {
    double seconds = 0;
    for (size_t i = index + 1; i < plans.size(); ++i)
      if (todo[i]) seconds += cost(i);
    return seconds;
  }
  // Of one point, by the estimate: a forward for each run, and as much again for filling and
  // checking.
  double cost(size_t i) const {
    if (plans[i].point.status != PointStatus::kOk) return 0;
    return plans[i].estimated_s * double(config.measure.warmup + config.measure.min_samples) + 0.2;
  }
};

Sweep prepare_sweep(const Options& options, World& world) {
  Sweep sweep{.config = read_config(options), .plans = {}, .runner = {}};
  const auto points = expand(sweep.config, {.world_size = world.size(),
                                            .max_ranks = world.size(),
                                            .filter = options.filter,
                                            .transport = world.transport(),
                                            .known = known_names()});
  const int threads = world.threads_per_rank();
  const double peak = measure_peak_per_rank(world, threads);
  sweep.runner = {
      .measure = sweep.config.measure, .check = sweep.config.check, .peak_flops_per_rank = peak};
  for (const Point& point : points)
    sweep.plans.push_back(plan_point(
        point, machine_limits(sweep.config, world.ranks_on_this_machine(), peak), threads));
  return sweep;
}

PointRecord run_on_world(World& world, const PointPlan& plan, const RunnerOptions& runner) {
  PointRecord record = make_record(plan.point);
  record.params.transport = world.transport();
  if (plan.point.status != PointStatus::kOk) {  // nothing to run: only rank 0 needs the reason
    return record;
  }
  world.run(plan.point.params.ranks, [&](Communicator& comm) {
    PointRecord mine = run_point(plan, runner, comm);
    if (comm.rank() == 0) record = std::move(mine);
  });
  return record;
}

ResultWriter open_writer(const Options& options, const Sweep& sweep, World& world,
                         const std::string& command_line) {
  const std::string sha = config_sha256(sweep.config);
  if (!options.resume.empty()) return ResultWriter::resume(options.resume, sha);
  return ResultWriter::create(
      {.directory = options.output,
       .run = {.name = sweep.config.name,
               .description = sweep.config.description,
               .command = command_line,
               .config_path = sweep.config.path,
               .config_json = resolved_config_json(sweep.config),
               .config_sha256 = sha,
               .transport = world.transport(),
               .world_size = world.size()},
       .environment = capture_environment({.mpi_version = world.mpi_version()}),
       .ranks = {}});
}

void print_summary(const Summary& summary, const std::string& directory) {
  std::cout << "#";
  for (const auto& [status, count] : summary.counts)
    if (count > 0) std::cout << " " << count << " " << status;
  std::cout << "; verdict: " << summary.verdict << "\n# result: " << directory << "\n"
            << std::flush;
}

}  // namespace

int run_points(const Options& options, const std::string& command_line) {
  const double deadline =
      options.max_time.empty() ? 0 : steady_seconds() + parse_duration(options.max_time);
  World world(options.ranks > 0 ? options.ranks
                                : std::max(1, capture_environment().usable_threads));
  stop_gently_on_signals();
  const bool root = world.is_root();
  const Sweep sweep = prepare_sweep(options, world);
  const auto ranks = describe_ranks(world, world.threads_per_rank());

  std::unique_ptr<ResultWriter> writer;  // rank 0's
  std::vector<bool> todo(sweep.plans.size());
  if (root) {
    writer = std::make_unique<ResultWriter>(open_writer(options, sweep, world, command_line));
    for (const std::string& line :
         fitness_warnings(capture_environment({.mpi_version = world.mpi_version()})))
      if (!options.quiet) std::cerr << "warning: " << line << "\n";
    std::cout << "# " << sweep.config.name << ": " << sweep.plans.size() << " points on up to "
              << world.size() << " ranks (" << world.transport() << "), "
              << world.threads_per_rank() << " thread(s) each; peak "
              << format_si(sweep.runner.peak_flops_per_rank, "FLOP/s") << " per rank\n"
              << result_header() << "\n"
              << std::flush;
  }
  for (size_t i = 0; i < todo.size(); ++i)
    todo[i] = world.agree(root && !writer->finished(sweep.plans[i].point.id));

  Progress progress(options, root, int(sweep.plans.size()));
  Watchdog watchdog([&](const std::string& what) {
    std::cerr << "\nerror: no progress for too long in '" << what
              << "' (a rank did not arrive); giving up, exit 3\n";
  });
  const bool color = use_color(options, 1);
  bool stopped = false;
  for (size_t i = 0; i < sweep.plans.size() && !stopped; ++i) {
    stopped = world.agree(stop_requested != 0 ||
                          (deadline > 0 && steady_seconds() + sweep.cost(i) > deadline));
    if (stopped || !todo[i]) continue;
    const PointPlan& plan = sweep.plans[i];
    const std::string what = describe(plan.point.params);
    progress.start(int(i) + 1, what, sweep.cost(i));
    watchdog.expect(what, 3 * sweep.config.measure.point_timeout_s + 120);
    const double begin = steady_seconds();
    PointRecord record = run_on_world(world, plan, sweep.runner);
    const double took = steady_seconds() - begin;
    watchdog.rest();
    if (!root) continue;
    const PointRecord& written = writer->append(std::move(record));
    const std::string status(to_string(written.status));
    std::cout << colored(result_row(written), status, color) << "\n" << std::flush;
    const bool ran = plan.point.status == PointStatus::kOk;
    progress.done(what + "  " + status + (ran ? "  " + format_seconds(took) : ""), took,
                  sweep.cost(i), sweep.left_after(i, todo));
  }
  int code = kOk;
  if (root) {
    const Summary summary = writer->finish(int64_t(sweep.plans.size()));
    print_summary(summary, writer->directory());
    if (stopped) {
      std::cerr << "stopped early; go on with: lnbench run " << options.config << " --resume "
                << writer->directory() << "\n";
      code = kStoppedEarly;
    } else if (summary.verdict != "pass") {
      code = kFailed;
    }
  }
  const bool failed = world.agree(code == kFailed), early = world.agree(code == kStoppedEarly);
  return early ? kStoppedEarly : failed ? kFailed : kOk;
}

int run_check(const Options& options) {
  World world(options.ranks > 0 ? options.ranks
                                : std::max(1, capture_environment().usable_threads));
  Sweep sweep = prepare_sweep(options, world);
  sweep.runner.measure.warmup = 0;
  sweep.runner.measure.min_samples = sweep.runner.measure.max_samples = 1;
  sweep.runner.phases = false;
  int64_t checked = 0, wrong = 0, left_out = 0;
  const bool root = world.is_root(), color = use_color(options, 1);
  if (root) std::cout << result_header() << "\n";
  for (const PointPlan& plan : sweep.plans) {
    if (plan.point.status != PointStatus::kOk ||
        plan.point.params.problem.seq_len > sweep.config.check.max_seq_len) {
      ++left_out;
      continue;
    }
    PointRecord record = run_on_world(world, plan, sweep.runner);
    if (!root) continue;
    validate_record(record);
    ++checked;
    wrong += record.status != PointStatus::kOk;
    std::cout << colored(result_row(record), to_string(record.status), color) << "\n" << std::flush;
  }
  if (root) {
    std::cout << "# " << checked << " points checked against the reference in double, " << wrong
              << " wrong, " << left_out << " left out (skipped, or longer than check.max_seq_len = "
              << format_tokens(sweep.config.check.max_seq_len) << ")\n";
    if (checked == 0)
      throw UsageError("no point is short enough to check: raise check.max_seq_len");
  }
  return world.agree(wrong > 0) ? kFailed : kOk;
}

}  // namespace longnet
