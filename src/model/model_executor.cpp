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
      parameters_(shape, schedule.sharded.problem, program().scope,
                  {grid().head_group(bound().rank()), grid().head_groups}),
      vocabulary_(shape.vocabulary) {}

void ModelExecutor::fill_inputs() {
  open();
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

void ModelExecutor::restore_inputs() {
  initialise(sharded().problem.seed);
  if (!of_layer()) return;
  make_rows(kInputRowsSlot, Tensor::kQuery);
  make_rows(kGradRowsSlot, Tensor::kGradOut);
}

template <class Fn>
void ModelExecutor::for_each_range(Fn fn) const {
  const int64_t batch = sharded().problem.batch, first = grid().replica(bound().rank()) * batch;
  int64_t row = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (const TokenRange& range : shard()) {
      fn(first + b, range, row);
      row += range.count;
    }
}

// Rows of the generator, head by head, as those of Q.
void ModelExecutor::make_rows(int slot, Tensor tensor) {
  const AttentionProblem& p = sharded().problem;
  const int64_t width = heads() * p.head_dim;
  RowFormat format = row_format(p);
  format.dtype = in_bf16(slot) ? DType::kBFloat16 : DType::kFloat32;
  std::byte* const out = bound().memory(slot).data();
  std::vector<FillRows> tasks;
  for_each_range([&](int64_t sequence, const TokenRange& range, int64_t row) {
    for (int64_t head = 0; head < heads(); ++head)
      tasks.push_back({.tensor = tensor,
                       .head = head,
                       .first_token = sequence * p.seq_len + range.first,
                       .token_step = range.stride,
                       .rows = range.count,
                       .out = out + (row * width + head * p.head_dim) * dtype_bytes(format.dtype),
                       .row_stride = width});
  });
  make_cpu_row_worker()->fill(tasks, format, bound().threads());
}

void ModelExecutor::poison(const RowWorker& worker) {
  ProgramExecutor::poison(worker);
  restore_inputs();
}

int64_t ModelExecutor::count_nan() const {
  int64_t count = 0;
  std::vector<int> slots{kWeightSlot};
  const auto count_in = [&](std::span<const float> values) {
    count += std::ranges::count_if(values, [](float x) { return std::isnan(x); });
  };
  if (of_layer()) {
    count_in(rows(kOutputRowsSlot));
    if (has_backward(program().pass)) count_in(rows(kGradRowsSlot));
  } else {
    count = std::isnan(result().loss);
    slots.insert(slots.end(), {kFirstMomentSlot, kSecondMomentSlot});
  }
  if (has_backward(program().pass)) slots.push_back(kWeightGradientSlot);
  for (const int slot : slots) count_in(values(slot));
  return count;
}

std::vector<float> ModelExecutor::rows(int slot) const {
  std::vector<float> out;
  if (in_bf16(slot))
    for (const uint16_t bits : values<uint16_t>(slot)) out.push_back(bf16_value(bits));
  else
    out.assign(values(slot).begin(), values(slot).end());
  return out;
}

void ModelExecutor::set_rows(int slot, std::span<const float> rows) {
  if (in_bf16(slot))
    std::ranges::transform(rows, values<uint16_t>(slot).begin(), bf16_bits);
  else
    std::ranges::copy(rows, values(slot).begin());
}

void ModelExecutor::read_attention(Tensor tensor, const QuerySample& at,
                                   std::vector<float>& row) const {
  row.clear();
  const AttentionProblem& p = sharded().problem;
  const int64_t in_shard = shard().index_of(at.token), tokens = shard().tokens();
  if (in_shard < 0) return;
  const bool query = tensor == Tensor::kQuery;
  const int slot = query ? kQuerySlot : kKvSlot;
  const int64_t heads = query ? p.num_heads : p.num_kv_heads;
  int64_t index = (at.batch * tokens + in_shard) * heads + at.head;
  if (tensor == Tensor::kValue) index += p.batch * tokens * heads;  // behind all K
  const auto from = size_t(index * p.head_dim), count = size_t(p.head_dim);
  if (in_bf16(slot))
    for (const uint16_t bits : values<uint16_t>(slot).subspan(from, count))
      row.push_back(bf16_value(bits));
  else
    row.assign(&values(slot)[from], &values(slot)[from] + count);
}

TokenInterval ModelExecutor::updated() const {
  const auto all = std::ssize(values(kWeightSlot)), own = std::ssize(values(kFirstMomentSlot));
  const Rank rank = bound().rank();
  const int64_t begin = own < all ? grid().same_heads(rank).index_of(rank) * own : 0;
  return {begin, begin + own};
}

void ModelExecutor::initialise(uint64_t seed) {
  std::vector<int> slots{kWeightSlot};
  if (!of_layer()) slots.insert(slots.end(), {kFirstMomentSlot, kSecondMomentSlot});
  for (const int slot : slots) std::ranges::fill(values(slot), 0.0f);
  parameters_.initialise(weights(), seed);
}

void ModelExecutor::set_tokens(std::span<const int32_t> tokens) {
  const AttentionProblem& p = sharded().problem;
  const int64_t sequences = grid().replicas * p.batch;
  check(int64_t(tokens.size()) == sequences * (p.seq_len + 1), "a batch of ", tokens.size(),
        " tokens, not of ", sequences, " x ", p.seq_len + 1);
  const std::span<int32_t> own = values<int32_t>(kTokenSlot);
  const size_t rows = own.size() / 2;
  for_each_range([&](int64_t sequence, const TokenRange& range, int64_t row) {
    for (int64_t i = 0; i < range.count; ++i) {
      const auto at = size_t(sequence * (p.seq_len + 1) + range[i]), to = size_t(row + i);
      own[to] = tokens[at], own[rows + to] = tokens[at + 1];
    }
  });
}

void ModelExecutor::set_step(int64_t number, double learning_rate) {
  const auto schedule = values(kScheduleSlot);
  schedule[0] = float(number), schedule[1] = float(learning_rate);
}

StepResult ModelExecutor::result() const {
  const AttentionProblem& p = sharded().problem;
  const auto sums = values<double>(kSumsSlot);  // of each rank: squared norm, loss
  StepResult all;
  for (size_t i = 0; i + 1 < sums.size(); i += 2) {
    all.gradient_norm += sums[i];
    if (grid().head_group(Rank(i / 2)) == 0) all.loss += sums[i + 1];  // that of the same tokens
  }
  const double tokens = double(p.batch * p.seq_len) * grid().replicas;
  return {all.loss / tokens, std::sqrt(all.gradient_norm)};
}

double ModelExecutor::product_with_gradients(std::span<const float> rows) const {
  const AttentionProblem& p = sharded().problem;
  std::vector<float> grad(size_t(p.head_dim));
  double sum = 0;
  size_t at = 0;
  for_each_range([&](int64_t sequence, const TokenRange& range, int64_t) {
    for (int64_t i = 0; i < range.count; ++i)
      for (int64_t head = 0; head < heads(); ++head) {
        const int64_t token = sequence * p.seq_len + range[i];
        generate_row({p.seed, Tensor::kGradOut, token, head}, p.head_dim, grad.data());
        for (const float g : grad) sum += double(g) * double(rows[at++]);
      }
  });
  return sum;
}

}  // namespace longnet
