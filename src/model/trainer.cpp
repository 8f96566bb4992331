#include "model/trainer.h"

namespace longnet {

Trainer::Trainer(const ModelShape& shape, Executor& step, const Schedule& losses)
    : ModelMemory(shape, step), losses_(step.in_same_memory(losses)) {
  step.open();
}

StepResult Trainer::step(std::span<const int32_t> tokens, int64_t number, double learning_rate) {
  set_tokens(tokens);
  set_step(number, learning_rate);
  run();
  return result();
}

double Trainer::evaluate(std::span<const int32_t> tokens) {
  set_tokens(tokens);
  losses_->run();
  return result().loss;
}

}  // namespace longnet
