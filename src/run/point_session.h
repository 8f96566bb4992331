// One rank's side of measuring a point: its executor, its clock and its transport. HostSession and
// GpuSession make one, see backend.h.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "core/tagged_memory.h"
#include "execute/executor.h"
#include "io/record.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"

namespace longnet {

class PointSession {
 public:
  virtual ~PointSession() = default;

  virtual std::string_view transport() const = 0;
  // FLOP/s of all ranks' hardware together; 0: not known.
  virtual double peak_flops() const = 0;
  // Metrics of what the ranks run on.
  virtual void record_machine(PointRecord& record) const = 0;

  // Makes the executor. Not collective; throws std::bad_alloc or Error on a rank that cannot.
  virtual void bind(const Schedule& schedule) = 0;
  Executor& executor() { return *executor_; }
  const MemoryLedger& ledger() const { return ledger_; }
  const RowWorker& worker() const { return *worker_; }

  // Does the work that must not count in the first sample. Collective, as all that follows.
  virtual void warm_up(PointRecord&) {}
  virtual const CommCounters& counters() const = 0;
  virtual void reset_counters() = 0;
  // Full runs of the program, as samples are taken of them.
  virtual SampleHooks sample_hooks() = 0;
  // Name of the reduction of the ranks' seconds to those of a run (TimingRecord::reduction).
  virtual std::string_view reduction() const = 0;
  // Seconds of one run of all ranks, after a barrier; `run` gives this rank's.
  virtual double time(const std::function<double()>& run) = 0;
  // Records the state of the machine while samples were taken.
  virtual void record_conditions(PointRecord&) {}
  virtual void close() {}

 protected:
  MemoryLedger ledger_;
  std::unique_ptr<RowWorker> worker_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace longnet
