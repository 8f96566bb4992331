// For tests: a session whose executor runs nothing and takes the seconds that it is told.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tagged_memory.h"
#include "run/backend.h"

namespace longnet {

// The program of a rank in host memory, poisoned.
class FakeExecutor final : public Executor {
 public:
  FakeExecutor(const Schedule& schedule, Rank rank, MemoryLedger& ledger) {
    RankProgram program = schedule.program(rank);
    BoundProgram::Memory memory;
    for (const Slot& slot : program.slots)
      memory.push_back(
          slots_.emplace_back(ledger, std::string(to_string(slot.tag)), slot.bytes).bytes());
    bound_ = std::make_unique<BoundProgram>(schedule, std::move(program), BindOptions{.rank = rank},
                                            std::move(memory));
    times_.resize(this->program().ops.size());
  }
  void fill_inputs() override { longnet::fill_inputs(*bound_, *make_cpu_row_worker()); }
  using Executor::run;
  double run(RunMode mode) override {
    runs.push_back(mode);
    return seconds.at(mode);
  }
  std::optional<SingleAttend> single_attend() override {
    if (single_s == 0) return {};
    SingleAttend single;
    single.pairs = 100, single.listed_pairs = 125;
    return single;
  }
  double run(const SingleAttend&) override {
    runs.push_back(RunMode::kComputeOnly);
    return single_s;
  }
  RunPhases phases() const override { return of_phases; }
  std::span<const OpTime> op_times() const override { return times_; }
  void time_ops(bool on) override { timed = on; }
  bool times_every_run() const override { return every_run; }
  int64_t count_nan() const override { return 0; }

  std::map<RunMode, double> seconds{{RunMode::kFull, 5},
                                    {RunMode::kComputeOnly, 3},
                                    {RunMode::kCommunicationOnly, 2.5},
                                    {RunMode::kSerialised, 5.5}};
  RunPhases of_phases{.compute_s = 2, .merge_s = 0.5, .attend_s = 1.5};
  double single_s = 1;
  bool every_run = true, timed = false;
  std::vector<RunMode> runs;

 private:
  std::vector<TaggedBuffer> slots_;
  std::vector<OpTime> times_;
};

class FakeSession final : public PointSession {
 public:
  explicit FakeSession(Communicator& comm) : comm_(comm) { worker_ = make_cpu_row_worker(); }
  std::string_view transport() const override { return "fake"; }
  double peak_flops() const override { return 0; }
  double peak_now(double) override { return 0; }
  void record_machine(PointRecord&) const override {}
  void bind(const Schedule& schedule) override {
    executor_ = std::make_unique<FakeExecutor>(schedule, comm_.rank(), ledger_);
  }
  FakeExecutor& fake() { return static_cast<FakeExecutor&>(*executor_); }
  MemoryLedger& own_ledger() { return ledger_; }
  const CommCounters& counters() const override { return counted; }
  void reset_counters() override { counted = {}; }
  SampleHooks sample_hooks() override { return {}; }
  std::string_view reduction() const override { return "max"; }
  double time(const std::function<double()>& run) override { return comm_.max_of(run()); }
  CommCounters counted;

 private:
  Communicator& comm_;
};

}  // namespace longnet
