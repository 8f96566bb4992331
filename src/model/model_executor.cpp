#include "model/model_executor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/random.h"

namespace longnet {

ModelExecutor::ModelExecutor(const ModelShape& shape, const Schedule& schedule,
                             const AttentionKernel& kernel, const ModelKernel& model_kernel,
                             int threads, Communicator& comm, MemoryLedger& ledger)
    : ProgramExecutor(schedule, kernel, threads, comm, ledger, &model_kernel),
      parameters_(shape, schedule.sharded.problem),
      vocabulary_(shape.vocabulary) {}

void ModelExecutor::fill_inputs() {
  open();
  restore_inputs();
  set_step(1, kFirstLearningRate);
  const AttentionProblem& p = sharded().problem;
  std::vector<int32_t> tokens(size_t(p.batch * (p.seq_len + 1)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t word = row_words({p.seed, Tensor::kKey, int64_t(i), 0}, 0).word[0];
    tokens[i] = int32_t(int64_t{word} % vocabulary_);
  }
  set_tokens(tokens);
}

void ModelExecutor::restore_inputs() { initialise(sharded().problem.seed); }

void ModelExecutor::poison(const RowWorker& worker) {
  ProgramExecutor::poison(worker);
  restore_inputs();
}

int64_t ModelExecutor::count_nan() const {
  int64_t count = std::isnan(result().loss);
  std::vector<int> slots{kWeightSlot, kFirstMomentSlot, kSecondMomentSlot};
  if (has_backward(program().pass)) slots.push_back(kWeightGradientSlot);
  for (const int slot : slots)
    count += std::ranges::count_if(values(slot), [](float x) { return std::isnan(x); });
  return count;
}

void ModelExecutor::initialise(uint64_t seed) {
  for (const std::span<float> all : {weights(), first_moments(), second_moments()})
    std::ranges::fill(all, 0.0f);
  parameters_.initialise(weights(), seed);
}

void ModelExecutor::set_tokens(std::span<const int32_t> tokens) {
  const AttentionProblem& p = sharded().problem;
  check(int64_t(tokens.size()) == p.batch * (p.seq_len + 1), "a batch of ", tokens.size(),
        " tokens, not of ", p.batch, " x ", p.seq_len + 1);
  const std::span<int32_t> own = values<int32_t>(kTokenSlot);
  const size_t rows = own.size() / 2;
  size_t row = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (const TokenRange& range : shard())
      for (int64_t i = 0; i < range.count; ++i, ++row) {
        const auto at = size_t(b * (p.seq_len + 1) + range[i]);
        own[row] = tokens[at], own[rows + row] = tokens[at + 1];
      }
}

void ModelExecutor::set_step(int64_t number, double learning_rate) {
  const auto schedule = values(kScheduleSlot);
  schedule[0] = float(number), schedule[1] = float(learning_rate);
}

StepResult ModelExecutor::result() const {
  const AttentionProblem& p = sharded().problem;
  const auto sums = values<double>(kSumsSlot);  // of each rank: squared norm, loss
  StepResult all;
  for (size_t i = 0; i + 1 < sums.size(); i += 2)
    all.gradient_norm += sums[i], all.loss += sums[i + 1];
  return {all.loss / double(p.batch * p.seq_len), std::sqrt(all.gradient_norm)};
}

}  // namespace longnet
