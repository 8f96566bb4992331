#include "model/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace longnet {
Trainer::Trainer(const ModelShape& shape, const Schedule& step, const Schedule& losses,
                 const AttentionKernel& kernel, const ModelKernel& model_kernel, int threads,
                 Communicator& comm, MemoryLedger& ledger)
    : parameters_(shape, step.sharded.problem),
      comm_(comm),
      step_(step, kernel, threads, comm, ledger, &model_kernel),
      losses_(losses, step_) {
  step_.open();
}

void Trainer::initialise(uint64_t seed) {
  for (const std::span<float> all : {weights(), first_moments(), second_moments()})
    std::ranges::fill(all, 0.0f);
  parameters_.initialise(weights(), seed);
}

void Trainer::set_tokens(std::span<const int32_t> tokens) {
  const AttentionProblem& p = step_.sharded().problem;
  check(int64_t(tokens.size()) == p.batch * (p.seq_len + 1), "a batch of ", tokens.size(),
        " tokens, not of ", p.batch, " x ", p.seq_len + 1);
  const std::span<int32_t> own = values<int32_t>(kTokenSlot);
  const size_t rows = own.size() / 2;
  size_t row = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (const TokenRange& range : step_.shard())
      for (int64_t i = 0; i < range.count; ++i, ++row) {
        const auto at = size_t(b * (p.seq_len + 1) + range[i]);
        own[row] = tokens[at], own[rows + row] = tokens[at + 1];
      }
}

StepResult Trainer::result() const {
  const AttentionProblem& p = step_.sharded().problem;
  const auto sums = values<double>(kSumsSlot);  // of each rank: squared norm, loss
  StepResult all;
  for (size_t i = 0; i + 1 < sums.size(); i += 2)
    all.gradient_norm += sums[i], all.loss += sums[i + 1];
  return {all.loss / double(p.batch * p.seq_len), std::sqrt(all.gradient_norm)};
}

StepResult Trainer::step(std::span<const int32_t> tokens, int64_t number, double learning_rate) {
  set_tokens(tokens);
  const auto schedule = values(kScheduleSlot);
  schedule[0] = float(number), schedule[1] = float(learning_rate);
  step_.run();
  return result();
}

double Trainer::evaluate(std::span<const int32_t> tokens) {
  set_tokens(tokens);
  losses_.run();
  return result().loss;
}

}  // namespace longnet
