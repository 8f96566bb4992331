#include "execute/model_memory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/check.h"
#include "core/random.h"

namespace longnet {

ModelMemory::ModelMemory(const ModelShape& shape, Executor& executor)
    : executor_(executor),
      parameters_(shape, sharded().problem, program().scope,
                  {grid().head_group(executor.bound().rank()), grid().head_groups}),
      vocabulary_(shape.vocabulary) {}

void ModelMemory::fill_inputs() {
  executor_.open();
  restore_inputs();
  if (of_layer()) return;
  set_step(1, kFirstLearningRate);
  const AttentionProblem& p = sharded().problem;
  std::vector<int32_t> tokens(size_t(grid().replicas * p.batch * (p.seq_len + 1)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t word = row_words({p.seed, Tensor::kKey, int64_t(i), 0}, 0).word[0];
    tokens[i] = int32_t(int64_t{word} % vocabulary_);
  }
  set_tokens(tokens);
}

void ModelMemory::restore_inputs() {
  initialise(sharded().problem.seed);
  if (!of_layer()) return;
  set_values(kInputRowsSlot, generated_rows(Tensor::kQuery));
  set_values(kGradRowsSlot, generated_rows(Tensor::kGradOut));
}

template <class Fn>
void ModelMemory::for_each_range(Fn fn) const {
  const int64_t batch = sharded().problem.batch,
                first = grid().replica(executor_.bound().rank()) * batch;
  int64_t row = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (const TokenRange& range : executor_.shard()) {
      fn(first + b, range, row);
      row += range.count;
    }
}

DType ModelMemory::stored_in(int slot) const {
  return holds_stored(program().slots[size_t(slot)].kind) ? sharded().problem.dtype
                                                          : DType::kFloat32;
}

int64_t ModelMemory::count(int slot) const {
  return std::ssize(executor_.bound().memory(slot)) / dtype_bytes(stored_in(slot));
}

template <class T>
std::vector<T> ModelMemory::read(int slot) const {
  const std::span<const std::byte> bytes = executor_.bound().memory(slot);
  std::vector<T> values(bytes.size() / sizeof(T));
  executor_.read(bytes, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

template <class T>
void ModelMemory::write(int slot, const std::vector<T>& values) {
  executor_.write(std::as_bytes(std::span(values)), executor_.bound().memory(slot));
}

std::vector<float> ModelMemory::values(int slot) const {
  if (stored_in(slot) == DType::kFloat32) return read<float>(slot);
  const std::vector<uint16_t> stored = read<uint16_t>(slot);
  std::vector<float> values(stored.size());
  std::ranges::transform(stored, values.begin(), bf16_value);
  return values;
}

void ModelMemory::set_values(int slot, std::span<const float> values) {
  check(std::ssize(values) == count(slot), "slot ", slot, " has ", count(slot), " values, not ",
        values.size());
  if (stored_in(slot) == DType::kFloat32)
    return executor_.write(std::as_bytes(values), executor_.bound().memory(slot));
  std::vector<uint16_t> stored(values.size());
  std::ranges::transform(values, stored.begin(), bf16_bits);
  write(slot, stored);
}

std::vector<float> ModelMemory::generated_rows(Tensor tensor) const {
  const AttentionProblem& p = sharded().problem;
  std::vector<float> rows(size_t(count(kInputRowsSlot)));
  float* into = rows.data();
  for_each_range([&](int64_t sequence, const TokenRange& range, int64_t) {
    for (int64_t i = 0; i < range.count; ++i)
      for (int64_t head = 0; head < heads(); ++head, into += p.head_dim)
        generate_row({p.seed, tensor, sequence * p.seq_len + range[i], head}, p.head_dim, into);
  });
  return rows;
}

int64_t ModelMemory::count_nan() const {
  int64_t count = 0;
  std::vector<int> slots{kWeightSlot};
  if (of_layer()) {
    slots.push_back(kOutputRowsSlot);
    if (has_backward(program().pass)) slots.push_back(kGradRowsSlot);
  } else {
    count = std::isnan(result().loss);
    slots.insert(slots.end(), {kFirstMomentSlot, kSecondMomentSlot});
  }
  if (has_backward(program().pass)) slots.push_back(kWeightGradientSlot);
  for (const int slot : slots)
    count += std::ranges::count_if(values(slot), [](float x) { return std::isnan(x); });
  return count;
}

TokenInterval ModelMemory::updated() const {
  const int64_t all = count(kWeightSlot), own = count(kFirstMomentSlot);
  const Rank rank = executor_.bound().rank();
  const int64_t begin = own < all ? grid().same_heads(rank).index_of(rank) * own : 0;
  return {begin, begin + own};
}

void ModelMemory::initialise(uint64_t seed) {
  std::vector<float> weights(size_t(count(kWeightSlot)));
  parameters_.initialise(weights, seed);
  write(kWeightSlot, weights);
  if (of_layer()) return;
  for (const int slot : {kFirstMomentSlot, kSecondMomentSlot})
    write(slot, std::vector<float>(size_t(count(slot))));
}

void ModelMemory::set_tokens(std::span<const int32_t> tokens) {
  const AttentionProblem& p = sharded().problem;
  const int64_t sequences = grid().replicas * p.batch;
  check(int64_t(tokens.size()) == sequences * (p.seq_len + 1), "a batch of ", tokens.size(),
        " tokens, not of ", sequences, " x ", p.seq_len + 1);
  std::vector<int32_t> own(size_t(count(kTokenSlot)));
  const size_t rows = own.size() / 2;
  for_each_range([&](int64_t sequence, const TokenRange& range, int64_t row) {
    for (int64_t i = 0; i < range.count; ++i) {
      const auto at = size_t(sequence * (p.seq_len + 1) + range[i]), to = size_t(row + i);
      own[to] = tokens[at], own[rows + to] = tokens[at + 1];
    }
  });
  write(kTokenSlot, own);
}

void ModelMemory::set_step(int64_t number, double learning_rate) {
  write(kScheduleSlot, std::vector<float>{float(number), float(learning_rate)});
}

StepResult ModelMemory::result() const {
  const AttentionProblem& p = sharded().problem;
  const auto sums = read<double>(kSumsSlot);  // each rank's: squared norm, loss
  StepResult all;
  for (size_t i = 0; i + 1 < sums.size(); i += 2) {
    all.gradient_norm += sums[i];
    if (grid().head_group(Rank(i / 2)) == 0) all.loss += sums[i + 1];  // that of the same tokens
  }
  const double tokens = double(p.batch * p.seq_len) * grid().replicas;
  return {all.loss / tokens, std::sqrt(all.gradient_norm)};
}

double ModelMemory::product_with_gradients(std::span<const float> rows) const {
  const std::vector<float> gradients = generated_rows(Tensor::kGradOut);
  return std::inner_product(rows.begin(), rows.end(), gradients.begin(), 0.0, std::plus<>(),
                            [](float a, float b) { return double(a) * double(b); });
}

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
