// Ablations of a point: rounds in which it runs in full, without communication, without compute and
// serialised; and the phases of its ranks (measure_point.h).
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "execute/program_executor.h"
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "run/backend.h"
#include "run/fill_record.h"

namespace longnet {
namespace {

// Modes in the order in which round 0 runs them. kTimedOps computes and notes the times of its ops.
enum class AblationMode {
  kTimedOps,
  kFull,
  kSingleAttend,
  kComputeOnly,
  kCommunicationOnly,
  kSerialised
};

// The rank that computed longest in the last run.
RunPhases busiest_rank(const Executor& executor, Communicator& comm) {
  RunPhases phases = executor.phases();
  std::vector<double> busy(size_t(comm.size()));
  busy[size_t(comm.rank())] = phases.compute_s + phases.merge_s;
  comm.all_sum(busy);
  const auto busiest = Rank(std::ranges::max_element(busy) - busy.begin());
  comm.broadcast(std::as_writable_bytes(std::span(&phases, 1)), busiest);
  return phases;
}

// Returns the index of the round with the median time; of two in the middle, of the faster.
size_t median_round(const std::vector<double>& seconds) {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double middle = sorted[(sorted.size() - 1) / 2];
  return size_t(std::find(seconds.begin(), seconds.end(), middle) - seconds.begin());
}

class ModeRuns {
 public:
  ModeRuns(PointSession& session, bool ablations, Communicator& comm)
      : session_(session), comm_(comm) {
    const bool alone = comm.size() == 1;
    const AblationMode computing = alone ? AblationMode::kFull : AblationMode::kComputeOnly;
    phases_mode_ = executor().times_every_run() ? computing : AblationMode::kTimedOps;
    if (phases_mode_ == AblationMode::kTimedOps)
      add(AblationMode::kTimedOps, alone ? RunMode::kFull : RunMode::kComputeOnly);
    if (!ablations) return;
    single_ = executor().single_attend();
    if (single_ || !alone) add(AblationMode::kFull, RunMode::kFull);
    if (single_)
      modes_.emplace_back(AblationMode::kSingleAttend, [this] { return executor().run(*single_); });
    if (alone) return;
    add(AblationMode::kComputeOnly, RunMode::kComputeOnly);
    add(AblationMode::kCommunicationOnly, RunMode::kCommunicationOnly);
    add(AblationMode::kSerialised, RunMode::kSerialised);
  }

  void take(int rounds) {
    for (const auto& [mode, run] : modes_)  // warms up what has not run yet
      if (mode == AblationMode::kCommunicationOnly || !executor().times_every_run()) run();
    seconds_ = take_rounds(int(modes_.size()), rounds, [&](int i) {
      const auto& [mode, run] = modes_[size_t(i)];
      session_.progress();
      session_.restore_inputs();
      executor().time_ops(mode == AblationMode::kTimedOps);
      const double took = session_.time(run);
      if (mode == phases_mode_) {
        busy_.push_back(busiest_rank(executor(), comm_));
        merges_untimed_ |= executor().times_merges() && !(executor().phases().merge_s > 0);
      }
      return took;
    });
    executor().time_ops(false);
  }

  // On some rank. Collective.
  bool merges_took_no_time() const { return comm_.max_of(merges_untimed_ ? 1.0 : 0.0) > 0; }
  RunPhases busy() const { return busy_[median_round(of(phases_mode_))]; }
  bool has(AblationMode mode) const { return std::ranges::count(modes_, mode, &Mode::first) > 0; }
  bool empty() const { return modes_.empty(); }
  double median_s(AblationMode mode) const { return median(of(mode)); }
  // Listed pairs over the program's, of all ranks: the big attend has a few more. NaN: not taken.
  double single_attend_s() {
    if (!single_) return kNotMeasured;
    const double pairs = comm_.sum_of(single_->pairs), listed = comm_.sum_of(single_->listed_pairs);
    return median_s(AblationMode::kSingleAttend) * (listed > 0 ? pairs / listed : 1);
  }

 private:
  using Mode = std::pair<AblationMode, std::function<double()>>;

  Executor& executor() const { return session_.executor(); }
  void add(AblationMode mode, RunMode how) {
    modes_.emplace_back(mode, [this, how] { return executor().run(how); });
  }
  const std::vector<double>& of(AblationMode mode) const {
    return seconds_[size_t(std::ranges::find(modes_, mode, &Mode::first) - modes_.begin())];
  }

  PointSession& session_;
  Communicator& comm_;
  AblationMode phases_mode_;  // its op times become the phases
  std::optional<SingleAttend> single_;
  std::vector<Mode> modes_;
  std::vector<std::vector<double>> seconds_;  // by mode and round
  std::vector<RunPhases> busy_;               // by round
  bool merges_untimed_ = false;
};

}  // namespace

// Counts the runs that ModeRuns makes.
int ablation_runs(double run_s, const PointParams& p) {
  const bool alone = p.ranks == 1, gpu = on_gpu(p);
  const int single = !gpu && ProgramExecutor::has_single_attend(p.pass, p.scope);
  const int modes = gpu + (alone ? 2 * single : 4 + single);
  return worthwhile_rounds(run_s) * modes + (gpu ? modes : !alone);
}

void record_phases(PointRecord& record, PointSession& session, bool ablations, Communicator& comm) {
  using enum AblationMode;
  const bool alone = comm.size() == 1;
  ModeRuns runs(session, ablations, comm);
  if (!runs.empty()) runs.take(ablations ? worthwhile_rounds(record.timing.median_s) : 1);
  // Phases of the last sample where there are no such runs.
  const RunPhases busy = runs.empty() ? busiest_rank(session.executor(), comm) : runs.busy();
  set_phases(record, busy.compute_s, busy.merge_s, alone ? 0 : kNotMeasured);
  record.metrics["attend_s"] = busy.attend_s;
  if (has_layers(record.params.scope)) {
    set_model_phases(record, busy.gemm_s, busy.row_wise_s, busy.update_s);
    record.metrics["cross_entropy_s"] = busy.cross_entropy_s;
  }
  if (runs.merges_took_no_time()) fail_check(record, "the program merges, and that took no time");
  if (!runs.has(kFull)) return;
  const double full = runs.median_s(kFull);
  // One rank has no communication to leave out.
  const auto part = [&](AblationMode mode, double else_s) {
    return runs.has(mode) ? runs.median_s(mode) : else_s;
  };
  set_ablations(record, {full, part(kComputeOnly, full), part(kCommunicationOnly, 0),
                         part(kSerialised, full), runs.single_attend_s()});
}

}  // namespace longnet
