// `lnbench run`: points for real, on threads or under mpirun.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>

#include "comm/mpi/mpi_world.h"
#include "core/check.h"
#include "io/disturbed.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "measure/sampler.h"
#include "run/walk_point.h"
#include "run/watchdog.h"

namespace longnet {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

// Says so, since what is at work may take minutes; pressed again, the default: the end, now. Launchers
// may pass one SIGTERM on twice at once: the second counts a second later. (steady_seconds() is
// clock_gettime(), which a handler may call.)
void request_stop(int signal) {
  static volatile double first_term_s = 0;
  if (signal == SIGTERM) {
    if (first_term_s > 0 && steady_seconds() > first_term_s + 1) {
      std::signal(SIGTERM, SIG_DFL);
      raise(SIGTERM);
    }
    if (!(first_term_s > 0)) first_term_s = steady_seconds();
  }
  if (signal == SIGINT) {
    static constexpr char kText[] =
        "\nstopping when the point or shard at work is finished; Ctrl-C again: now (what is "
        "finished stays)\n";
    if (stop_requested == 0 && write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
    std::signal(SIGINT, SIG_DFL);
  }
  stop_requested = 1;
}

// The point at hand is finished, then the run ends with exit code 4 and can be resumed.
void stop_gently_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, request_stop);
}

Result head_of(const Options& options, const Sweep& sweep, const Plan& plan, World& world) {
  RunInfo run = run_info(sweep.config, options, sweep.points.size());
  run.mode = to_string(sweep.config.run.mode);
  run.transport = sweep.transport;
  run.world_size = world.size();
  return {.path = options.output,
          .run = run,
          .environment = environment_of(world, sweep.busy_share, sweep.on_devices()),
          .ranks = describe_ranks(world, plan.threads, sweep.on_devices())};
}

void print_head(TableWriter& table, const Sweep& sweep, const Plan& plan, World& world,
                const Options& options) {
  if (!options.quiet)
    for (const std::string& line : fitness_warnings(environment_of(world, sweep.busy_share)))
      std::cerr << "warning: " << line << "\n";
  int most_ranks = sweep.is_virtual() ? 1 : world.size();
  std::set<int> threads;
  for (const PointPlan& point : plan.points) {
    if (sweep.is_virtual()) most_ranks = std::max(most_ranks, point.point.params.ranks);
    threads.insert(point.point.params.threads);
  }
  std::string threads_text;
  for (const int t : threads) threads_text += concat(threads_text.empty() ? "" : " or ", t);
  table.note(concat(sweep.config.name, ": ", plan.points.size(), " points on up to ", most_ranks,
                    " ranks (", sweep.is_virtual() ? "virtual" : sweep.transport, "), ",
                    std::ranges::all_of(sweep.points, on_gpu, &Point::params)
                        ? devices_text()
                        : concat(threads_text, " thread(s) each; peak of a core ",
                                 format_si(plan.runner.peak_flops_per_thread, "FLOP/s"))));
  table.head();
}

// Returns the options that select the same points, quoted for a shell.
std::string same_options(const Options& o) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += concat(" ", name, " '", value, "'");
  };
  for (const std::string& set : o.sets) add("--set", set);
  add("--filter", o.filter);
  add("--transport", o.transport);
  add("--replay", o.replay);
  if (o.ranks > 0) text += concat(" --ranks ", o.ranks);
  return text;
}

// "shard 17 of 128, 13.2%, 1.21 Mtok/s, ETA 31min"
std::string to_text(const WalkProgress& w) {
  std::ostringstream share;
  share << std::fixed << std::setprecision(1) << 100 * w.share_done;
  return concat("shard ", w.units_done, " of ", w.units, ", ", share.str(), "%, ",
                format_si(w.tokens_per_s, "tokens/s"), ", ETA ", format_seconds(w.left_s));
}

// The points of a sweep, one after another, on all ranks of the world; rank 0 writes.
class SweepRun {
 public:
  SweepRun(const Options& options, const Sweep& sweep, World& world, const Plan& plan,
           const Result& now, Watchdog& watchdog)
      : options_(options),
        sweep_(sweep),
        world_(world),
        plan_(plan),
        now_(now),
        color_(use_color(options, 1)),
        progress_(options, world.is_root(), int(plan.points.size())),
        table_(record_columns(), table_style(options, &progress_)),
        watchdog_(watchdog) {
    open_result();
  }

  int run() {
    for (size_t i = 0; i < plan_.points.size() && !stopped_; ++i) {
      // At least one point is run, else a requeued job could go on for ever without progress.
      const bool late = taken_ > 0 && !sweep_.is_virtual() &&
                        steady_seconds() + (todo_[i] ? plan_.cost(i) : 0) > sweep_.stop_at_s;
      stopped_ = world_.agree(stop_requested != 0 || late);
      if (!stopped_ && todo_[i]) run_one(i);
    }
    if (!stopped_ && !sweep_.is_virtual()) measure_disturbed_again();
    watchdog_.expect("the end of the run", limit_s());
    const int code = world_.is_root() ? finish() : int(kOk);
    const bool failed = world_.agree(code == kFailed), early = world_.agree(code == kStoppedEarly);
    return early ? kStoppedEarly : failed ? kFailed : kOk;
  }

 private:
  // Rank 0 creates or resumes the result; all learn where it is and what is left to do.
  void open_result() {
    const bool root = world_.is_root();
    if (root) {
      writer_ = options_.resume.empty()
                    ? ResultWriter::create(now_)
                    : ResultWriter::resume(options_.resume, now_, options_.allow_changed_machine);
      print_head(table_, sweep_, plan_, world_, options_);
    }
    if (root && !world_.is_one_process()) {  // the others may join
      writer_->lock(/*alone=*/false);
      std::filesystem::remove(beats_file(writer_->directory()));
    }
    directory_ = world_.root_text(root ? writer_->directory() : "");
    if (!world_.is_one_process()) {
      if (!root) joined_ = join_run(directory_);
      watchdog_.join(beats_file(directory_));
    }
    todo_.resize(plan_.points.size());
    for (size_t i = 0; i < todo_.size(); ++i)
      todo_[i] = world_.agree(root && !writer_->finished(plan_.points[i].point.id));
    walk_ = {.directory = directory_,
             .replay = sweep_.replay,
             .config = sweep_.config.virtual_ranks,
             .progress = [this](const WalkProgress& w) { progress_.step(to_text(w)); },
             .stop = [this] { return stop_requested != 0 || steady_seconds() > sweep_.stop_at_s; }};
  }

  // Points beside which something else ran, up to twice more: the last time counts, whatever it is.
  void measure_disturbed_again() {
    double left_s = sweep_.config.measure.disturbed_budget * took_s_;
    for (times_measured_ = 2; times_measured_ <= 3; ++times_measured_) {
      std::map<std::string, std::string> disturbed;
      if (world_.is_root()) disturbed = disturbed_points(writer_->records());
      for (size_t i = 0; i < plan_.points.size(); ++i) {
        const auto found = disturbed.find(plan_.points[i].point.id);
        const double cost_s = plan_.cost(i);
        if (!world_.agree(found != disturbed.end() && todo_[i] && cost_s < left_s)) continue;
        if (world_.agree(stop_requested != 0 || steady_seconds() + cost_s > sweep_.stop_at_s))
          return;
        if (found != disturbed.end())
          progress_.note(concat("measured again: ", found->first, ": ", found->second));
        const double before_s = took_s_;
        run_one(i);
        left_s -= took_s_ - before_s;
      }
    }
  }
  static std::string beats_file(const std::string& directory) { return directory + "/ranks.alive"; }

  // A run of a point takes no longer than its timeout, by the estimate that let it begin.
  double limit_s() const { return sweep_.config.measure.point_timeout_s + kGraceSeconds; }

  void run_one(size_t i) {
    const PointPlan& point = plan_.points[i];
    const std::string what = describe(point.point.params);
    progress_.start(int(i) + 1, what, plan_.cost(i));
    if (!sweep_.is_virtual()) watchdog_.expect(what, limit_s());
    const double begin = steady_seconds();
    std::optional<PointRecord> record;
    try {
      record = run_point(world_, point, plan_.runner, walk_);
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& e) {
      watchdog_.rest();
      // Whichever rank broke writes it down: the others may never hear of it.
      if (world_.is_one_process())
        progress_.note("error: " + what + ": " + e.what());
      else
        std::cerr << "error: rank " << world_.rank() << ", " << what << ": " << e.what() << "\n";
      try {
        if (!writer_)
          writer_ = ResultWriter::resume(directory_, now_, /*allow_changed_machine=*/true,
                                         /*alone=*/false);
        writer_->append(failed_record(point, e.what()));
      } catch (const std::exception& second) {  // a folder that only rank 0 has
        std::cerr << "error: it is not in the result: " << second.what() << "\n";
      }
      if (!world_.is_one_process()) {  // the other ranks are stuck in this point
        std::cerr << "error: points that were finished are in " << directory_
                  << "; mend this, then add --resume " << directory_ << "\n";
        throw;
      }
      return;
    }
    if (!sweep_.is_virtual()) watchdog_.expect("the end of " + what, limit_s());
    stopped_ = !record;
    if (stopped_) return;
    taken_ += point.point.status == PointStatus::kOk;
    took_s_ += steady_seconds() - begin;
    if (times_measured_ > 1) record->metrics["times_measured"] = times_measured_;
    if (world_.is_root()) write(i, what, std::move(*record), steady_seconds() - begin);
  }

  void write(size_t i, const std::string& what, PointRecord record, double took) {
    const bool runs = plan_.points[i].point.status == PointStatus::kOk;
    const PointRecord& written = writer_->append(std::move(record));
    add_record(table_, written, color_);
    progress_.done(
        concat(what, "  ", to_string(written.status), runs ? "  " + format_seconds(took) : ""),
        took, plan_.cost(i), plan_.cost_after(i, todo_));
  }

  int finish() {  // rank 0's
    const Summary summary = writer_->finish(int64_t(plan_.points.size()));
    std::filesystem::remove(beats_file(directory_));
    const bool none = summary.counts.at("ok") == 0 && summary.verdict == "incomplete";
    table_.finish();
    print_summary(table_, summary,
                  !none                        ? ""
                  : writer_->records().empty() ? " nothing was measured"
                                               : " nothing was measured, the points say why",
                  writer_->directory());
    if (!sweep_.is_virtual()) print_ranks_missing();
    if (stopped_) {
      std::cerr << "stopped early; go on with: lnbench run " << options_.config
                << same_options(options_) << " --resume " << writer_->directory() << "\n";
      return kStoppedEarly;
    }
    return summary.verdict == "pass" ? kOk : kFailed;
  }

  // Points that only more ranks can run are no failure, but easily overlooked.
  void print_ranks_missing() {
    int64_t points = 0;
    int ranks = 0;
    for (const PointPlan& p : plan_.points)
      if (p.point.params.ranks > sweep_.world_size) {
        ++points;
        ranks = std::max(ranks, p.point.params.ranks);
      }
    if (points > 0)
      table_.note(concat(points, " points need more ranks than the ", sweep_.world_size,
                         " there are: ", launched_world_size() ? "mpirun -np " : "--ranks ",
                         ranks));
  }

  const Options& options_;
  const Sweep& sweep_;
  World& world_;
  const Plan& plan_;
  const Result& now_;
  std::optional<ResultWriter> writer_;   // rank 0's, or that of a rank that broke
  std::unique_ptr<DurableFile> joined_;  // other ranks': the lock of the folder
  std::string directory_;
  std::vector<bool> todo_;
  bool color_;
  Progress progress_;
  Table<PointRecord> table_;
  Watchdog& watchdog_;
  VirtualRun walk_;
  bool stopped_ = false;
  int taken_ = 0;           // points that ran
  double took_s_ = 0;       // all of them
  int times_measured_ = 1;  // of the points that run now
};

}  // namespace

int run_points(const Options& options) {
  Sweep sweep = read_sweep(options);
  print_notes(options, sweep.config, /*measures=*/true);
  sweep.busy_share = measure_busy_share();  // before MPI's threads and waits are there
  Watchdog watchdog(launched_rank(), "; a rank did not arrive. Giving up");
  if (!sweep.is_virtual())  // one process waits for nobody
    watchdog.expect("the start", sweep.config.measure.point_timeout_s + kGraceSeconds);
  World world(sweep.is_virtual() ? 1 : sweep.world_size);
  stop_gently_on_signals();
  Plan plan = make_plan(sweep, world);
  plan.runner.progress = [&watchdog] { watchdog.progress(); };
  const Result now = head_of(options, sweep, plan, world);
  return SweepRun(options, sweep, world, plan, now, watchdog).run();
}

}  // namespace longnet
