// A model's training on one rank: its program bound to memory, run step by step.
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "comm/communicator.h"
#include "execute/program_executor.h"
#include "kernels/model_kernel.h"
#include "model/model_program.h"

namespace longnet {

struct StepResult {
  double loss = 0;           // nats a token, mean over the batch
  double gradient_norm = 0;  // before clipping
};

class Trainer {
 public:
  // Collective. The kernels, communicator and ledger must outlive the trainer.
  // `step` and `losses`: training_step of the shape, lowered, with the passes kStep and kForward.
  Trainer(const ModelShape& shape, const Schedule& step, const Schedule& losses,
          const AttentionKernel& kernel, const ModelKernel& model_kernel, int threads,
          Communicator& comm, MemoryLedger& ledger);

  // Initial weights, the same for any number of ranks; moments of 0.
  void initialise(uint64_t seed);
  // `tokens`: batch sequences of seq_len + 1, the same on every rank; each token but the first is
  // the target of the one before. `number` counts from 1.
  StepResult step(std::span<const int32_t> tokens, int64_t number, double learning_rate);
  // The loss alone.
  double evaluate(std::span<const int32_t> tokens);

  const Parameters& parameters() const { return parameters_; }
  // As Parameters lays them out; of a sharded optimizer, moments outside of the own part are 0.
  std::span<float> weights() { return values(kWeightSlot); }
  std::span<float> first_moments() { return values(kFirstMomentSlot); }
  std::span<float> second_moments() { return values(kSecondMomentSlot); }
  std::span<const float> weight_gradients() { return values(kWeightGradientSlot); }
  ProgramExecutor& executor() { return step_; }

 private:
  template <typename T = float>
  std::span<T> values(int slot) const {
    const std::span<std::byte> bytes = step_.bound().memory(slot);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  void set_tokens(std::span<const int32_t> tokens);
  StepResult result() const;

  Parameters parameters_;
  Communicator& comm_;
  ProgramExecutor step_, losses_;
};

}  // namespace longnet
