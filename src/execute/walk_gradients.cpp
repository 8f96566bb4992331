#include "execute/walk_gradients.h"

#include <algorithm>
#include <iterator>

#include "core/stopwatch.h"
#include "execute/program_rows.h"

namespace longnet {

std::span<std::byte> WalkGradients::sums_of(const Schedule& schedule, const WalkUnit& unit) {
  if (!shared_ || batches_ != unit.batches) {
    shared_.reset();  // first, so that old and new are never held together
    shared_ = std::make_unique<SharedGradients>(schedule, ledger_);
    batches_ = unit.batches;
  }
  shared_->set_first_batch(unit.first_batch);
  return shared_->memory();
}

void WalkGradients::begin(const Schedule& schedule, const WalkUnit& unit) {
  sums_of(schedule, unit);
  if (unit.rank == 0) shared_->clear();
}

void WalkGradients::inspect(const BoundProgram& bound, const std::vector<QuerySample>& samples,
                            const std::vector<KeySample>& keys, ShardOutcome& out) {
  GradientOutcome& g = out.gradients.emplace();
  const auto shares = [&](const KeySample& key) { return shared_->has(key.kv_head, key.token); };
  const auto keys_where = [&](auto where) {
    std::vector<KeySample> some;
    std::ranges::copy_if(keys, std::back_inserter(some), where);
    return some;
  };
  // Keys of the unit's sequences to which other ranks add as well.
  const std::vector<KeySample> shared_keys = keys_where([&](const KeySample& key) {
    return key.batch >= out.unit.first_batch &&
           key.batch < out.unit.first_batch + out.unit.batches && shares(key);
  });
  {
    Stopwatch watch(out.times.check_s);
    const std::vector<KeySample> local = keys_where(
        [&](const KeySample& key) { return has_row(bound, key.batch, key.token) && !shares(key); });
    g.errors = compare_gradients(
        bound, expected_gradients(bound, problem_, samples, local,
                                  gradients_of_own_queries(bound, problem_, local)));
    shared_->add_expected(bound, problem_, shared_keys);
  }
  LawSums laws(bound.sharded().problem, bound.first_batch());
  {
    Stopwatch watch(out.times.summarize_s);
    g.digests = digest_gradients(bound, *worker_);
    const std::vector<FillRows> moved = shared_->rows_of(bound);
    add_digests(moved, ~uint64_t{0}, g);
    shared_->add(moved);
    for (const FillRows& row : moved)
      std::fill_n(static_cast<float*>(row.out), problem_.head_dim, 0.0f);
    laws.add(bound);
  }
  if (out.unit.rank == bound.sharded().layout.world_size() - 1) complete(shared_keys, laws, out);
  g.laws = laws.terms();
}

// Adds `times` the digests of rows of dK and dV.
void WalkGradients::add_digests(const std::vector<FillRows>& rows, uint64_t times,
                                GradientOutcome& g) const {
  std::array<std::vector<FillRows>, 3> of;
  for (const FillRows& row : rows) of[size_t(row.tensor)].push_back(row);
  for (const Tensor tensor : {Tensor::kKey, Tensor::kValue})
    g.digests[size_t(tensor)] +=
        times * worker_->digest(of[size_t(tensor)], {.head_dim = problem_.head_dim}, threads_);
}

// The rows that all ranks have added to.
void WalkGradients::complete(const std::vector<KeySample>& shared_keys, LawSums& laws,
                             ShardOutcome& out) const {
  GradientOutcome& g = *out.gradients;
  {
    Stopwatch watch(out.times.check_s);
    const auto errors = shared_->compare(shared_keys);
    g.errors[1].add(errors[0]);
    g.errors[2].add(errors[1]);
  }
  Stopwatch watch(out.times.summarize_s);
  std::vector<std::byte> inputs;
  shared_->for_each_rounded([&](const std::vector<FillRows>& gradients) {
    add_digests(gradients, 1, g);
    const int64_t row_bytes = problem_.head_dim * dtype_bytes(problem_.dtype);
    inputs.resize(gradients.size() * size_t(row_bytes));
    std::vector<FillRows> rows = gradients;
    for (size_t i = 0; i < rows.size(); ++i) rows[i].out = &inputs[i * size_t(row_bytes)];
    worker_->fill(rows, row_format(problem_), threads_);
    laws.add_keys(rows, gradients);
  });
}

}  // namespace longnet
