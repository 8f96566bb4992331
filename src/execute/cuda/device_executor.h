// Runs one rank's program on a GPU: a stream that computes, one that communicates, events between.
//
// The host walks the program once per run and only enqueues. Computing ops follow each other in
// program order; a round of communications (op_groups.h) starts when the ops that it depends on
// are over and is waited for by the ops that depend on it, so that a gather runs beside the local
// branches. Lists of tasks and cuDNN's plans are made when the program is bound.
//
//   dilated, rank 1 of 4:   compute  pack | attend branch 0 ............ | attend branch 1 | merge
//                           comm          | all_gather |
//
// With virtual ranks (no transport) messages are made again by the generator (virtual_walk.h).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/cuda/device_transport.h"
#include "execute/cuda/op_groups.h"
#include "execute/executor.h"
#include "execute/virtual_walk.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"
#include "schedule/program.h"

namespace longnet {

// One op of a bound program, prepared for a GPU: its lists of tasks are in device memory.
struct DeviceOp {
  Prepared work;                 // communication of virtual ranks: generates what others would send
  std::optional<BoundOp> fused;  // the attend whose results belong in the rows of this merge
  bool planned = false;          // `work` comes from an earlier executor
  bool skipped = false;          // runs as part of a later op, or not at all
  OpId also_after = -1;          // the op that runs as part of this one
  int round = -1;                // round of a communication; -1: none
  std::optional<Event> done;     // end of a computing op that communications wait for
  std::optional<Event> begin, end;  // timing; computing ops begin when their messages are there
  std::optional<Event> asked;       // timing; recorded before it waits for messages
};

class DeviceExecutor final : public Executor {
 public:
  struct Options {
    bool virtual_ranks = false;
    int64_t first_batch = 0;  // the batch's first sequence, in the problem
    // Below 1, with virtual ranks: only this share of the pairs (choose_share). Merges are not
    // fused then, so that they can be scaled by themselves.
    double share = 1;
    // With virtual ranks: gets the rows of dK and dV, on the host, that the rank would send.
    std::function<void(std::span<const FillRows>)> take_gradients = {};
    BoundProgram::Memory memory = {};  // for the slots; empty: its own
  };
  // Allocates and binds on the calling thread's device; sends nothing. Throws DeviceOutOfMemory.
  // `transport` may be null for one rank or virtual ranks; it, kernel and ledger outlive this.
  // `before`: one for the same problem and kernel; plans of attends that are the same are taken
  // from it, and it is freed before others are made.
  DeviceExecutor(const Schedule& schedule, Rank rank, const DeviceKernel& kernel,
                 DeviceTransport* transport, const Options& options, MemoryLedger& ledger,
                 std::unique_ptr<DeviceExecutor> before = nullptr);

  void open() override;
  void fill_inputs() override;
  std::vector<std::span<std::byte>> poisoned() const override;
  using Executor::run;
  // Returns when the device has finished: seconds between the first and the last op, by events.
  double run(RunMode mode) override;

  // Runs all ops as a CUDA graph, which the first call records, and returns its seconds: for runs
  // so short that the host's launches would be timed with them. Records no phases and no op_times.
  // Only for programs that do not communicate; throws Error where an op cannot be recorded.
  double replay();
  bool can_replay() const { return rounds_.empty(); }
  // The stream that computes. Work enqueued here runs before the next run and is not timed.
  const Stream& compute_stream() const { return compute_; }

  // Turns the timing of ops in the next runs on (the default) or off: two events each.
  // Events cost the host a microsecond each, which short runs show.
  void time_ops(bool on) override { timing_ = on; }
  bool times_every_run() const override { return false; }
  bool times_merges() const override;  // those that no attend has taken in
  // Phases of the last run that noted times (a full one, or one that only computes); zeros when
  // there was none.
  RunPhases phases() const override { return phases_; }
  std::span<const OpTime> op_times() const override { return times_; }
  double receive_s() const { return receive_s_; }             // virtual ranks: generating messages
  int64_t received_bytes() const { return received_bytes_; }  // virtual ranks: of a run
  const WalkShare& share() const { return share_; }           // zeros when everything runs

  int64_t count_nan() const override;
  bool rounds_probabilities() const override { return true; }
  std::unique_ptr<Executor> in_same_memory(const Schedule& schedule) const override;
  std::shared_ptr<const BoundProgram> on_host(std::span<const int> slots) const override;
  void read(std::span<const std::byte> from, std::byte* into) const override {
    compute_.copy(into, from.data(), int64_t(from.size()));
    compute_.synchronize();
  }
  void write(std::span<const std::byte> from, std::span<std::byte> into) override {
    compute_.copy(into.data(), from.data(), int64_t(from.size()));
    compute_.synchronize();
  }
  std::vector<float> read_rows(const MemoryRows& rows) const override;

 private:
  struct Round {
    CommRound ops;
    DeviceTransport::Ticket ticket = -1;
    bool known_over = false;
    OpId last() const { return ops.back(); }  // its events time the round
  };
  bool communicates() const { return transport_ != nullptr && !options_.virtual_ranks; }
  void bind(const Schedule& schedule, Rank rank);
  void make_rounds();
  void take_merges_into_attends();
  void take_plans(DeviceExecutor& from);
  std::span<const AttendGrid> attends_of(size_t op) const {
    return ops_[op].fused ? ops_[op].fused->attends : bound_->op(op).attends;
  }
  void prepare(OpId op, const ShareChoice& choice);
  DeviceAttendOptions attend_options(bool merge = false) const;
  Prepared prepare_virtual_message(OpId op);  // device_walk.cpp
  // The tasks of `grids` as one attend. `merge`: into its results instead of overwriting them.
  Prepared prepare_attend(std::span<const AttendGrid> grids, bool merge) const;
  void post(size_t round, RunMode mode);
  void complete(Round& round);  // before the next op that computes
  void wait_for_messages(OpId op);
  void collect_times(RunMode mode);
  void note(const std::optional<Event>& event, const Stream& stream) const {
    if (timing_ && event) event->record(stream);
  }

  const DeviceKernel& kernel_;
  DeviceTransport* transport_;
  Options options_;
  bool timing_ = true;
  MemoryLedger& ledger_;
  std::vector<DeviceBuffer> slots_;
  DeviceBuffer model_scratch_;  // tasks of a model's layers, one after the other
  Stream compute_, comm_{Stream::Priority::kHigh};
  Event begin_{Event::Kind::kTiming}, end_{Event::Kind::kTiming};
  std::unique_ptr<Graph> graph_;
  std::vector<DeviceOp> ops_;
  std::vector<Round> rounds_;
  std::vector<OpTime> times_;
  RunPhases phases_;
  double receive_s_ = 0;
  int64_t received_bytes_ = 0;
  WalkShare share_;
};

}  // namespace longnet
