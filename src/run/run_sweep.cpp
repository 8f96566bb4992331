#include "run/run_sweep.h"

#include <filesystem>
#include <map>
#include <utility>

#include "core/check.h"
#include "io/disturbed.h"

namespace longnet {
namespace {

std::string beats_file(const std::string& directory) { return directory + "/ranks.alive"; }

}  // namespace

SweepRun::SweepRun(World& world, const Sweep& sweep, const Plan& plan, RunTarget target,
                   Watchdog& watchdog)
    : world_(world), sweep_(sweep), plan_(plan), target_(std::move(target)), watchdog_(watchdog) {
  const bool root = world_.is_root();
  if (root) writer_ = target_->open();
  if (root && !world_.is_one_process()) {  // the others may join
    writer_->lock(/*alone=*/false);
    std::filesystem::remove(beats_file(writer_->directory()));
  }
  directory_ = world_.all_texts(root ? writer_->directory() : "").front();
  if (!world_.is_one_process()) {
    if (!root) joined_ = join_run(directory_);
    watchdog_.join(beats_file(directory_));
  }
  for (const PointPlan& p : plan_.points)
    todo_.push_back(world_.agree(root && !writer_->finished(p.point.id)));
}

bool SweepRun::run(const SweepHooks& hooks) {
  hooks_ = hooks;
  for (size_t i = 0; i < plan_.points.size() && !stopped_; ++i) {
    // At least one point is run, else a requeued job could go on for ever without progress.
    const bool late = taken_ > 0 && !sweep_.is_virtual() &&
                      steady_seconds() + (todo_[i] ? plan_.cost(i) : 0) > sweep_.stop_at_s;
    stopped_ = world_.agree(hooks_.stop() || late);
    if (!stopped_ && todo_[i]) run_one(i);
  }
  if (!stopped_ && !sweep_.is_virtual() && target_) measure_disturbed_again();
  watchdog_.expect("the end of the run", limit_s());
  return !stopped_;
}

Summary SweepRun::finish() {
  Summary summary = writer_->finish(int64_t(plan_.points.size()));
  std::filesystem::remove(beats_file(directory_));
  return summary;
}

// The last time counts, whatever it is.
void SweepRun::measure_disturbed_again() {
  again_until_s_ = (1 + sweep_.config.measure.disturbed_budget) * took_s_;
  const std::vector<bool> ran = todo_;
  for (times_measured_ = 2; times_measured_ <= 3; ++times_measured_) {
    std::map<std::string, std::string> disturbed;
    if (world_.is_root()) disturbed = disturbed_points(writer_->records());
    for (size_t i = 0; i < ran.size(); ++i)
      todo_[i] = ran[i] && world_.agree(disturbed.contains(plan_.points[i].point.id));
    for (size_t i = 0; i < plan_.points.size(); ++i) {
      const auto found = disturbed.find(plan_.points[i].point.id);
      const double cost_s = plan_.cost(i);
      if (!world_.agree(todo_[i] && cost_s < budget_s())) continue;
      if (world_.agree(hooks_.stop() || steady_seconds() + cost_s > sweep_.stop_at_s)) return;
      if (found != disturbed.end())
        hooks_.note(concat("measured again: ", found->first, ": ", found->second));
      run_one(i);
    }
  }
}

// A run of a program takes no longer than its point's timeout, by the estimate that let it begin.
double SweepRun::limit_s() const { return sweep_.config.measure.point_timeout_s + kGraceSeconds; }

void SweepRun::run_one(size_t i) {
  const PointPlan& point = plan_.points[i];
  const std::string what = describe(point.point.params);
  hooks_.started(i);
  if (!sweep_.is_virtual()) watchdog_.expect(what, limit_s());
  const double begin = steady_seconds();
  std::optional<PointRecord> record;
  try {
    record = hooks_.run_point(point);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& e) {
    watchdog_.rest();
    if (target_) write_failure(point, e.what());
    if (!world_.is_one_process()) throw;
    if (target_) return;
    record = failed_record(point, e.what());
  }
  if (!sweep_.is_virtual()) watchdog_.expect("the end of " + what, limit_s());
  stopped_ = !record;
  if (stopped_) return;
  const double took_s = steady_seconds() - begin;
  taken_ += point.point.status == PointStatus::kOk;
  took_s_ += took_s;
  if (times_measured_ > 1) record->metrics["times_measured"] = times_measured_;
  if (!world_.is_root()) return;
  if (!target_) validate_record(*record);
  hooks_.written(i, writer_ ? writer_->append(*record) : *record, took_s);
}

// Writes the error of a point where it was thrown: other ranks may never hear of it.
void SweepRun::write_failure(const PointPlan& point, const std::string& why) {
  const std::string what = describe(point.point.params);
  if (world_.is_one_process())
    hooks_.note(concat("error: ", what, ": ", why));
  else
    hooks_.error(concat("rank ", world_.rank(), ", ", what, ": ", why));
  try {
    if (!writer_)
      writer_ = ResultWriter::resume(directory_, target_->head, /*allow_changed_machine=*/true,
                                     /*alone=*/false);
    writer_->append(failed_record(point, why));
  } catch (const std::exception& e) {  // a folder that only rank 0 has
    hooks_.error(concat("it is not in the result: ", e.what()));
  }
  if (!world_.is_one_process())
    hooks_.error(concat("points that were finished are in ", directory_,
                        "; mend this, then add --resume ", directory_));
}

}  // namespace longnet
