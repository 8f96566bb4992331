// Runs one rank's program on a GPU: a stream that computes, one that communicates, events between.
//
// The host walks the program once per run and only enqueues. Computing ops follow each other in
// program order; a round of communications (comm_rounds.h) starts when the ops that it depends on
// are over and is waited for by the ops that depend on it, so that a gather runs beside the local
// branches. Lists of tasks and cuDNN's plans are made when the program is bound.
//
//   dilated, rank 1 of 4:   compute  pack   | attend branch 0 ............ | attend branch 1 |
//   merge
//                           comm            | all_gather |
//
// With virtual ranks (no transport) messages are made again by the generator, as in VirtualWalk.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/cuda/device_transport.h"
#include "execute/bound_program.h"
#include "execute/program_executor.h"
#include "execute/sample_check.h"
#include "execute/share_choice.h"
#include "kernels/cuda/device_kernel.h"
#include "schedule/program.h"

namespace longnet {

class DeviceExecutor {
 public:
  struct Options {
    bool fuse_merges = true;  // where the kernel can
    bool times = true;        // of every op; two events each
    bool virtual_ranks = false;
    int64_t first_batch = 0;  // of the problem: the batch's first sequence
    // Below 1, with virtual ranks: only this share of the pairs (share_choice.h). Merges are not
    // fused then, so that they can be scaled by themselves.
    double share = 1;
  };
  // Allocates and binds on the calling thread's device; talks to nobody. Throws DeviceOutOfMemory.
  // `transport` may be null for one rank or virtual ranks; it, kernel and ledger outlive this.
  DeviceExecutor(const Schedule& schedule, Rank rank, const DeviceKernel& kernel,
                 DeviceTransport* transport, const Options& options, MemoryLedger& ledger);
  ~DeviceExecutor();

  // Collective. Inputs come from the generator; every other buffer becomes NaN.
  void fill_inputs();
  // Returns when the device has finished: seconds between the first and the last op, by events.
  double run(RunMode mode = RunMode::kFull);

  // The same output and seconds from a CUDA graph, which the first call records: where a run is so
  // short that the host's launches would be timed with it. Neither phases nor op_times. Only of
  // programs that do not communicate; throws Error where something in it cannot be recorded.
  double replay();
  bool can_replay() const { return rounds_.empty(); }
  // What is enqueued here comes before the next run, outside its seconds.
  const Stream& compute_stream() const { return compute_; }

  // With Options::times: whether the next runs note the times of their ops (at first they do).
  // Events cost the host a microsecond each, which short runs show.
  void time_ops(bool on) { timing_ = on && options_.times; }
  // Of the last run that noted times, a full one or one that computes only; zeros when there was
  // none.
  RunPhases phases() const { return phases_; }
  std::span<const OpTime> op_times() const { return times_; }
  double attend_s() const { return attend_s_; }    // with the merges that they include
  double receive_s() const { return receive_s_; }  // virtual ranks: making messages again
  int64_t received_bytes() const { return received_bytes_; }  // virtual ranks: of a run
  const WalkShare& share() const { return share_; }           // zeros when everything runs

  const RankProgram& program() const { return bound_->program(); }
  const ShardedProblem& sharded() const { return bound_->sharded(); }
  TokenRanges shard() const { return bound_->shard(); }
  int64_t task_list_bytes() const;

  SampleErrors compare(const AttentionProblem& problem, const std::vector<QuerySample>& samples);
  int64_t count_nan();  // in the whole output
  // Of rows on the device: what a worker for it says.
  uint64_t digest_inputs(const RowWorker& worker) const;
  std::vector<OutputSummary> summarize_output(const RowWorker& worker) const;  // per head
  // Sums of all ranks' errors, and the verdict for 16-bit storage.
  CheckOutcome check_samples(const std::vector<QuerySample>& samples, Communicator& comm,
                             double tolerance = 0);

 private:
  struct DeviceOp;
  struct Round;
  bool communicates() const { return transport_ != nullptr && !options_.virtual_ranks; }
  void prepare(OpId op, const ShareChoice& choice);
  void prepare_attend(OpId op, std::span<const AttendTask> tasks, bool merge);
  void prepare_messages(OpId op);
  void enqueue(OpId op);
  void post(size_t round, RunMode mode);
  void complete(Round& round, const Stream& waiting);
  void wait_for_end();
  void wait_for_messages(OpId op, const Stream& waiting);
  void collect_times(RunMode mode);
  void note(const std::optional<Event>& event, const Stream& stream) const {
    if (timing_ && event) event->record(stream);
  }
  std::vector<Transfer> transfers_of(OpId op, const Stream& stream);

  const DeviceKernel& kernel_;
  DeviceTransport* transport_;
  Options options_;
  bool timing_ = options_.times;
  MemoryLedger& ledger_;
  std::unique_ptr<AttentionKernel> binder_;  // BoundProgram asks it, nothing runs on it
  std::vector<DeviceBuffer> slots_;
  std::unique_ptr<BoundProgram> bound_;
  Stream compute_, comm_;
  Event begin_, end_;
  std::unique_ptr<Graph> graph_;
  std::vector<DeviceOp> ops_;
  std::vector<Round> rounds_;
  std::vector<OpTime> times_;
  RunPhases phases_;
  double attend_s_ = 0, receive_s_ = 0;
  int64_t received_bytes_ = 0;
  WalkShare share_;
};

// Largest relative L2 error that counts as right for 16-bit storage of probabilities: 4e-3.
inline constexpr double kDeviceTolerance = 4e-3, kDeviceLseTolerance = 1e-4;

}  // namespace longnet
