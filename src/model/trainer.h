// A model's training on one rank: steps and evaluations in the same memory.
#pragma once
#include <memory>

#include "model/model_memory.h"

namespace longnet {

class Trainer : public ModelMemory {
 public:
  // Collective. `step`, which must outlive this, has the program of the pass kStep; `losses` is
  // that of kForward.
  Trainer(const ModelShape& shape, Executor& step, const Schedule& losses);

  // See ModelMemory::set_tokens and set_step.
  StepResult step(std::span<const int32_t> tokens, int64_t number, double learning_rate);
  // The loss alone.
  double evaluate(std::span<const int32_t> tokens);

 private:
  std::unique_ptr<Executor> losses_;
};

}  // namespace longnet
