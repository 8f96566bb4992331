#include "model/trainer.h"

namespace longnet {

Trainer::Trainer(const ModelShape& shape, const Schedule& step, const Schedule& losses,
                 const AttentionKernel& kernel, const ModelKernel& model_kernel, int threads,
                 Communicator& comm, MemoryLedger& ledger)
    : ModelExecutor(shape, step, kernel, model_kernel, threads, comm, ledger),
      losses_(losses, *this) {
  open();
}

StepResult Trainer::step(std::span<const int32_t> tokens, int64_t number, double learning_rate) {
  set_tokens(tokens);
  set_step(number, learning_rate);
  run();
  return result();
}

double Trainer::evaluate(std::span<const int32_t> tokens) {
  set_tokens(tokens);
  losses_.run();
  return result().loss;
}

}  // namespace longnet
