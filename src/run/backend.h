// Where kernels run: on the cores of the host or on GPUs. Planning, measuring and walking ask a
// backend for all in which the two differ.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_operations.h"
#include "comm/communicator.h"
#include "core/cuda/device.h"
#include "core/tagged_memory.h"
#include "execute/executor.h"
#include "execute/model_memory.h"
#include "execute/virtual_walk.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"
#include "run/measure_point.h"

namespace longnet {

// One rank's side of measuring a point: its executor, its clock and its transport.
class PointSession {
 public:
  virtual ~PointSession() = default;

  virtual std::string_view transport() const = 0;
  // FLOP/s of all ranks' hardware together when nothing else runs; 0: not known.
  virtual double peak_flops() const = 0;
  // The peak at this moment, FLOP/s: cores are measured for about `seconds`, GPUs have their data
  // sheet's. 0: not known. Collective.
  virtual double peak_now(double seconds) = 0;
  // Metrics of what the ranks run on.
  virtual void record_machine(PointRecord& record) const = 0;

  // Makes the executor, in the place of one before it and its memory. Not collective; throws
  // std::bad_alloc or Error on a rank that cannot.
  virtual void bind(const Schedule& schedule) = 0;
  Executor& executor() { return *executor_; }
  ModelMemory& model() { return *model_; }  // for a point with layers
  // Collective. Opens the executor and makes the inputs of its program.
  void fill_inputs() { model_ ? model_->fill_inputs() : executor_->fill_inputs(); }
  // Restores the inputs that a run changes. A run of attention changes none.
  void restore_inputs() {
    if (model_) model_->restore_inputs();
  }
  // Nothing that a run wrote is left.
  void poison() {
    executor_->poison(*worker_);
    restore_inputs();
  }
  const MemoryLedger& ledger() const { return ledger_; }
  const RowWorker& worker() const { return *worker_; }
  std::function<void()> progress = [] {};  // RunnerOptions::progress

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
  void adopt(std::unique_ptr<Executor> executor, const PointParams& params) {
    executor_ = std::move(executor);
    if (has_layers(params.scope)) model_.emplace(model_shape(params), *executor_);
  }

  MemoryLedger ledger_;
  std::unique_ptr<RowWorker> worker_;
  std::unique_ptr<Executor> executor_;

 private:
  std::optional<ModelMemory> model_;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual bool on_gpu() const = 0;

  // For plans, on any machine and in any build. Empty, or why the kernel cannot do this point.
  virtual std::string why_kernel_unsupported(const PointParams& params) const = 0;
  // Empty when the kernel can run on this machine, else what is missing.
  virtual std::string why_kernel_absent(const PointParams&) const { return {}; }
  // Scratch memory of one rank as far as it is known before tasks are.
  virtual int64_t workspace_bytes(const PointParams& params, int threads) const = 0;
  // Seconds that the generator takes for a value of Q, K or V.
  virtual double fill_s_per_value() const = 0;

  // Collective. Throws UsageError on all ranks where these do not fit the transport.
  virtual std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                             Communicator& comm) const = 0;

  // Virtual ranks: one device, that of the calling thread, walks the programs of all.
  virtual std::unique_ptr<UnitWalk> make_walk(const PointParams& params,
                                              UnitWalk::MakeSchedule make_schedule,
                                              MemoryLedger& ledger) const = 0;
  // FLOP/s (4 d per pair) of the point's kernel on dense segments of 2048 rows, to which a walk is
  // compared. Takes half a second at most on a quiet core.
  virtual double attend_rate(const PointParams& params) const = 0;
  // PointSession::peak_now for the device that walks.
  virtual double peak_now(const PointParams& params, double seconds,
                          const RunnerOptions& options) const = 0;
  // Describes the device that walks in the record.
  virtual void record_walking_device(PointRecord& record) const = 0;
  // Whether the point's kernel rounds P to 16 bits (execute/tolerances.h).
  virtual bool rounds_probabilities(const PointParams& params) const = 0;
};

// The backend of a kernel's name. Nothing else decides by names where a kernel runs.
const Backend& backend_of(std::string_view kernel);
inline bool on_gpu(const PointParams& params) { return backend_of(params.kernel).on_gpu(); }
// One rank's dense attention over `count` sequences of 2048 rows, and FLOP/s (4 d per pair) of such
// a program: the mean of three runs.
Schedule dense_segments(AttentionProblem problem, int64_t count);
double attend_rate_of(Executor& executor);
// The GPU backend, also in builds and on machines without GPUs.
const Backend& gpu_backend();

// The part of it that every build has, for `lnbench plan` on any machine.
class GpuPlanning : public Backend {
 public:
  bool on_gpu() const override { return true; }
  std::string why_kernel_unsupported(const PointParams& params) const override;
  std::string why_kernel_absent(const PointParams& params) const override;
  int64_t workspace_bytes(const PointParams& params, int threads) const override;
  double fill_s_per_value() const override { return 0; }  // a GPU generates in no time
};

// Writing as much before a sample leaves nothing in a GPU's L2 that the sample reads.
inline int64_t flush_bytes(const DeviceInfo& d) { return 4 * d.l2_bytes; }

// Returns the transport that "auto" is for all ranks of a run, so that all points use the same one;
// other names unchanged, and "auto" where some rank has no GPU. Collective.
std::string transport_of_run(const std::string& name, Communicator& comm);

// Returns the operations that `lnbench comm` times, on each rank's device. `transport`: a name, or
// "gpu" for the transport that "auto" resolves to.
// Throws on every rank when it does not fit, or some device lacks the memory. Collective.
std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes);

// Returns the GPU of each rank of `comm`: equal texts are the same GPU. Collective.
std::vector<std::string> devices_of_ranks(Communicator& comm);

}  // namespace longnet
