// A model's training on one rank: steps and evaluations in the same memory.
#pragma once
#include "model/model_executor.h"

namespace longnet {

class Trainer : public ModelExecutor {
 public:
  // Collective. As ModelExecutor, with `step` and `losses` of the passes kStep and kForward.
  Trainer(const ModelShape& shape, const Schedule& step, const Schedule& losses,
          const AttentionKernel& kernel, const ModelKernel& model_kernel, int threads,
          Communicator& comm, MemoryLedger& ledger);

  // See ModelExecutor::set_tokens and set_step.
  StepResult step(std::span<const int32_t> tokens, int64_t number, double learning_rate);
  // The loss alone.
  double evaluate(std::span<const int32_t> tokens);

 private:
  ProgramExecutor losses_;
};

}  // namespace longnet
