// Runs one rank's program for real: comm x kernels.
//
// Ops run in program order. A communication is posted when its dependencies are over and waited for
// when an op needs it, so that it overlaps with what stands between; while kernels work, the
// executor pokes messages in flight from time to time, because MPI may make no progress by itself.
// Buffers, tasks and groups are prepared when the program is bound; run() allocates nothing.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "kernels/attention_kernel.h"

namespace longnet {

// What part of a program runs; the others measure what overlaps (ablations), their results are not
// to be used.
enum class RunMode { kFull, kComputeOnly, kCommunicationOnly, kSerialised };

struct OpTime {  // seconds since run() began; a communication ends when it is known to be over
  double begin_s = 0, end_s = 0;
};

struct RunPhases {
  double compute_s = 0;  // attends, packs, resets
  double merge_s = 0;
  double exposed_communication_s = 0;  // posting and waiting
};

// One big attend with as many (query, key) pairs as a rank's program, or a few more. Belongs to the
// executor that made it; never copied, because tasks point into `keys`.
struct SingleAttend {
  SingleAttend() = default;
  SingleAttend(SingleAttend&&) = default;
  std::vector<std::vector<KvRun>> keys;  // of each task
  std::vector<AttendTask> tasks;
  double pairs = 0, listed_pairs = 0;  // of the program, of the tasks
};

class ProgramExecutor {
 public:
  // Allocates and binds the program of comm.rank(); talks to nobody, so that a rank that has too
  // little memory can say so. The kernel, communicator and ledger must outlive the executor.
  ProgramExecutor(const Schedule& schedule, const AttentionKernel& kernel, int threads,
                  Communicator& comm, MemoryLedger& ledger);
  ~ProgramExecutor();

  // Opens the groups of collectives (so all ranks call it) and fills Q, K and V from the generator;
  // every other buffer becomes NaN, so that a row that is read before it is written, or never
  // written, shows.
  void fill_inputs();
  void run(RunMode mode = RunMode::kFull);
  // Own queries against own keys, listed as often as needed. What the program's compute takes
  // beyond it is lost to many small attends and merges. Running it overwrites the output.
  SingleAttend single_attend();
  void run(const SingleAttend& single);

  // Of the last run.
  RunPhases phases() const;
  std::span<const OpTime> op_times() const { return times_; }

  const RankProgram& program() const { return bound_->program(); }
  const ShardedProblem& sharded() const { return bound_->sharded(); }
  TokenRanges shard() const { return bound_->shard(); }
  const BoundProgram& bound() const { return *bound_; }  // its output, after run()

 private:
  void execute(size_t op);
  void post(size_t op);
  void wait_for(size_t op);
  // Without the computing ops their own dependencies still hold: waits for the communications that
  // the op depends on, also through ops that compute. Each of those is looked at once a run.
  void wait_for_communications_before(size_t op);
  void poke();
  double elapsed() const;

  Communicator& comm_;
  std::vector<TaggedBuffer> slots_;
  std::unique_ptr<BoundProgram> bound_;
  TaggedBuffer workspace_;
  std::vector<OpTime> times_;
  std::vector<size_t> in_flight_;  // ops whose communication has been posted
  // Communication alone: computing ops whose communications have been waited for in this run, and
  // those still to look at.
  std::vector<bool> passed_;
  std::vector<size_t> to_pass_;
  double waited_s_ = 0, poked_s_ = 0;
  const std::function<void()> poke_ = [this] { poke(); };
  std::chrono::steady_clock::time_point start_;
};

}  // namespace longnet
