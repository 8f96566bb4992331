// Executor of one rank's program: the interface that measurements use, whether the program runs on
// the host (program_executor.h) or on a GPU (cuda/device_executor.h).
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "execute/bound_program.h"
#include "execute/program_rows.h"
#include "execute/sample_check.h"
#include "kernels/row_worker.h"

namespace longnet {

// The part of a program that runs. Modes other than kFull are ablations that measure overlap; their
// outputs are not valid.
enum class RunMode { kFull, kComputeOnly, kCommunicationOnly, kSerialised };

struct OpTime {  // seconds since run() began; a communication ends when it is known to be over
  double begin_s = 0, end_s = 0;
};

struct RunPhases {
  double compute_s = 0;  // all that computes, but for merges
  double merge_s = 0;
  double exposed_communication_s = 0;  // posting and waiting
  // Parts of compute_s. Attends include the merges that they take in; row-wise functions of models
  // the cross entropy.
  double attend_s = 0, gemm_s = 0, row_wise_s = 0, cross_entropy_s = 0, update_s = 0;
  double all_s() const { return compute_s + merge_s + exposed_communication_s; }
  void add(const Action& what, double seconds);  // for an op that computes
};

// One big attend with as many (query, key) pairs as a rank's program, or a few more. Belongs to the
// executor that made it; never copied, because tasks point into `keys`.
struct SingleAttend {
  SingleAttend() = default;
  SingleAttend(SingleAttend&&) = default;
  SingleAttend& operator=(SingleAttend&&) = default;
  std::vector<std::vector<KvRun>> keys;  // key runs of each task
  std::vector<AttendGrid> tasks;
  double pairs = 0, listed_pairs = 0;  // pairs by the program, and by the tasks
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Collective. Opens what communicates; every buffer becomes NaN, so that a row that is read
  // before it is written, or never written, shows.
  virtual void open() {}
  // Collective. The same, and fills the inputs of attention from the generator.
  virtual void fill_inputs() = 0;
  // Every buffer but the inputs. Made NaN again, rows of an earlier run cannot pass for the next's.
  virtual std::vector<std::span<std::byte>> poisoned() const { return written_memory(*bound_); }
  void poison(const RowWorker& worker) const {
    for (const std::span<std::byte> bytes : poisoned()) worker.poison(bytes, bound_->threads());
  }
  // Returns when the run is over: its seconds by the clock of the device that runs it.
  virtual double run(RunMode mode) = 0;
  double run() { return run(RunMode::kFull); }

  // Phases and op times of the last run whose ops were timed.
  virtual RunPhases phases() const = 0;
  virtual std::span<const OpTime> op_times() const = 0;
  // Turns the timing of ops in the next runs on or off, where it costs time.
  virtual void time_ops(bool) {}
  virtual bool times_every_run() const { return true; }
  // True when phases must tell of merges: some have a time of their own.
  virtual bool times_merges() const {
    return std::ranges::any_of(program().ops,
                               [](const Op& op) { return std::holds_alternative<Merge>(op.what); });
  }

  // Own queries against own keys, listed as often as needed. What the program's compute takes
  // beyond it is lost to many small attends and merges. Running it overwrites the output. Nothing
  // where an executor has no such run.
  virtual std::optional<SingleAttend> single_attend() { return {}; }
  virtual double run(const SingleAttend&) { return 0; }

  // Returns the errors of the last run's output against rows of this shard (expected_rows).
  SampleErrors compare(const ExpectedRows& expected) const {
    return compare_samples(*bound_, expected, std::bind_front(&Executor::read_rows, this));
  }
  // Number of values of the output that are NaN: 0 after a right run.
  virtual int64_t count_nan() const = 0;
  // Whether the kernel rounds P to 16 bits, which decides what errors pass (tolerances.h).
  virtual bool rounds_probabilities() const { return false; }
  // Returns an executor of another program in the memory of this one, which must outlive it and be
  // open: its first slots are this one's, and scratch memory behind them, as lowered collectives
  // use, is in any others. Null where an executor cannot.
  virtual std::unique_ptr<Executor> in_same_memory(const Schedule&) const { return {}; }
  // The program over memory that the host reads: its own, or a copy of these slots as they are now.
  virtual std::shared_ptr<const BoundProgram> on_host(std::span<const int>) const {
    return {std::shared_ptr<void>(), bound_.get()};
  }
  // Copies a part of its memory to the host, and back.
  virtual void read(std::span<const std::byte> from, std::byte* into) const {
    std::ranges::copy(from, into);
  }
  virtual void write(std::span<const std::byte> from, std::span<std::byte> into) {
    std::ranges::copy(from, into.begin());
  }
  // Returns a copy of rows of its memory, one after the other.
  virtual std::vector<float> read_rows(const MemoryRows& rows) const {
    return copy_host_rows(rows);
  }

  const BoundProgram& bound() const { return *bound_; }
  const RankProgram& program() const { return bound_->program(); }
  const ShardedProblem& sharded() const { return bound_->sharded(); }
  TokenRanges shard() const { return bound_->shard(); }

 protected:
  std::unique_ptr<BoundProgram> bound_;
};

}  // namespace longnet
