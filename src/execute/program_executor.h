// Runs one rank's program for real: comm x kernels.
//
// Ops run in program order. A communication is posted when its dependencies are over and waited for
// when an op needs it, so that it overlaps with the ops between; while kernels work, the
// executor tests messages in flight from time to time, because MPI may make no progress by itself.
// Buffers, tasks and groups are prepared when the program is bound; run() allocates nothing.
#pragma once
#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/tagged_memory.h"
#include "execute/executor.h"
#include "kernels/attention_kernel.h"

namespace longnet {

// Throws Error when the kernel cannot do what the program asks for.
void require_supported(const AttentionKernel& kernel, const BoundProgram& bound);
// Runs an op that computes, in the host's memory, on all its tasks but those of attends.
void execute_rows(const AttentionKernel& kernel, const BoundProgram& bound, size_t op);

class ProgramExecutor : public Executor {
 public:
  // Allocates and binds the program of comm.rank(); does not communicate, so that a rank with
  // too little memory can report it. The kernel, communicator and ledger must outlive the executor.
  // `model`: for programs of models.
  ProgramExecutor(const Schedule& schedule, const AttentionKernel& kernel, int threads,
                  Communicator& comm, MemoryLedger& ledger, const ModelKernel* model = nullptr);
  ProgramExecutor(const Schedule& schedule, const ProgramExecutor& memory_of);  // in_same_memory
  ~ProgramExecutor() override;

  void open() override;
  void fill_inputs() override;
  std::vector<std::span<std::byte>> poisoned() const override;
  using Executor::run;
  double run(RunMode mode) override;
  // It takes the kernel of one forward pass.
  static constexpr bool has_single_attend(Pass pass, Scope scope) {
    return !has_backward(pass) && !has_layers(scope);
  }
  std::optional<SingleAttend> single_attend() override;
  double run(const SingleAttend& single) override;

  RunPhases phases() const override;  // times of the last run
  std::span<const OpTime> op_times() const override { return times_; }
  int64_t count_nan() const override;
  bool rounds_probabilities() const override {
    return kernel_.rounds_probabilities(sharded().problem.dtype);
  }
  std::unique_ptr<Executor> in_same_memory(const Schedule& schedule) const override {
    return std::make_unique<ProgramExecutor>(schedule, *this);
  }

 private:
  void bind(const Schedule& schedule, RankProgram program, int threads,
            BoundProgram::Memory memory);
  void execute(size_t op);
  void post(size_t op);
  void wait_for(size_t op);
  // Used where computing ops are left out: waits for the communications that the op depends on,
  // also through ops that compute. Each of those is visited once a run.
  void wait_for_communications_before(size_t op);
  void test_in_flight();
  double elapsed() const;

  const AttentionKernel& kernel_;
  const ModelKernel* model_;
  Communicator& comm_;
  std::vector<TaggedBuffer> slots_;
  TaggedBuffer own_workspace_;
  std::span<std::byte> workspace_;
  std::vector<OpTime> times_;
  struct Posted {
    size_t op;
    Communicator::Request request;
  };
  std::vector<Posted> in_flight_;
  // Communication alone: computing ops whose communications have been waited for in this run.
  std::vector<bool> passed_;
  CountedBytes lists_;
  double waited_s_ = 0, tested_s_ = 0;
  const std::function<void()> test_in_flight_ = [this] { test_in_flight(); };
  std::chrono::steady_clock::time_point start_;
};

}  // namespace longnet
