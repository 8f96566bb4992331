// Runs the points of a sweep, one after another, on all ranks of the world, into a result folder.
//
//   point ─> run_point ─┬─ a record   rank 0 writes it
//                       ├─ nothing    a walk was stopped: the run ends early, --resume goes on
//                       └─ an error   the rank that threw it writes it; ranks that are threads go
//                                     on with the next point; processes would wait for ever for
//                                     that rank: the run ends
//   then the points beside which something else ran, up to twice more (measure.disturbed_budget)
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/result.h"
#include "run/sweep.h"
#include "run/watchdog.h"

namespace longnet {

// Called on every rank, `written` and `note` where there is something to say.
struct SweepHooks {
  // Measures or walks a point; nothing when that was stopped early. Collective.
  std::function<std::optional<PointRecord>(const PointPlan&)> run_point;
  std::function<bool()> stop = [] { return false; };  // asked before each point, on rank 0
  std::function<void(size_t point)> started = [](size_t) {};
  std::function<void(size_t point, const PointRecord&, double took_s)> written =
      [](size_t, const PointRecord&, double) {};                             // on rank 0
  std::function<void(const std::string&)> note = [](const std::string&) {};  // on rank 0
  std::function<void(const std::string&)> error = note;  // this rank's, always to be shown
};

class SweepRun {
 public:
  // Creates or resumes the result on rank 0; the other ranks learn where it is and what is left to
  // do. Throws UsageError where the folder refuses. Collective. The arguments outlive the run.
  SweepRun(World& world, const Sweep& sweep, const Plan& plan, RunTarget target,
           Watchdog& watchdog);
  // Runs each point once and keeps no result: `written` gets all records, those of points that
  // broke on threads included.
  SweepRun(World& world, const Sweep& sweep, const Plan& plan, Watchdog& watchdog)
      : world_(world),
        sweep_(sweep),
        plan_(plan),
        watchdog_(watchdog),
        todo_(plan.points.size(), true) {}

  const std::string& directory() const { return directory_; }
  // For each point of the plan, whether it is to be measured; once all have run, measured again.
  const std::vector<bool>& todo() const { return todo_; }
  // Seconds that the points left may take.
  double budget_s() const { return again_until_s_ - took_s_; }

  // Returns false when it ended early. Throws what a point threw when that is a UsageError, or the
  // ranks are processes. Collective.
  bool run(const SweepHooks& hooks);
  // Writes the end of the result. On rank 0.
  Summary finish();
  const std::vector<PointRecord>& records() const { return writer_->records(); }  // on rank 0

 private:
  double limit_s() const;
  void measure_disturbed_again();
  void run_one(size_t i);
  void write_failure(const PointPlan& point, const std::string& why);

  World& world_;
  const Sweep& sweep_;
  const Plan& plan_;
  std::optional<RunTarget> target_;  // nothing: no result is kept
  Watchdog& watchdog_;
  SweepHooks hooks_{};
  std::optional<ResultWriter> writer_;   // rank 0's, or that of a rank that threw
  std::unique_ptr<DurableFile> joined_;  // other ranks': the lock of the folder
  std::string directory_;
  std::vector<bool> todo_;
  bool stopped_ = false;
  int taken_ = 0;                                                   // points that ran
  double took_s_ = 0;                                               // all of them
  double again_until_s_ = std::numeric_limits<double>::infinity();  // limit of took_s_
  int times_measured_ = 1;  // number of times, with this one
};

}  // namespace longnet
