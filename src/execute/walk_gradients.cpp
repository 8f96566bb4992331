#include "execute/walk_gradients.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/program_rows.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

// Rows that another rank's gradients reach: those of its own in the messages that a rank receives.
SharedGradients::Tokens shared_tokens(const Schedule& schedule) {
  const ShardedProblem& s = schedule.sharded;
  std::vector<std::set<int64_t>> tokens(size_t(s.problem.num_kv_heads));
  for (Rank rank = 0; rank < s.layout.world_size(); ++rank) {
    const RankProgram program = schedule.program(rank);
    std::set<Slice> seen;  // the same rows come from each of many ranks
    for (const Op& op : program.ops) {
      const auto* recv = std::get_if<Recv>(&op.what);
      if (!recv || program.slots[size_t(recv->what.slot)].kind != TensorKind::kGradKeyValue)
        continue;
      for (int i = 0; i < recv->what.num_pieces(); ++i) {
        if (owner_of(recv->what, i) != rank) continue;
        const Slice own{.branch = recv->what.rows.branch,
                        .owners = {.first = rank},
                        .within = recv->what.rows.within,
                        .heads = heads_of(recv->what, i)};
        if (!seen.insert(own).second) continue;
        const RowMap map(s, TensorKind::kGradKeyValue, own);
        for (const int64_t head : map.heads_with_rows(own.heads))
          map.for_each_run(map.pieces().front(), head, [&](const TokenRange& run) {
            for (int64_t t = 0; t < run.count; ++t)
              tokens[size_t(s.problem.kv_head_of(head))].insert(run[t]);
          });
      }
    }
  }
  SharedGradients::Tokens sorted;
  for (const auto& of_head : tokens) sorted.emplace_back(of_head.begin(), of_head.end());
  return sorted;
}

}  // namespace

SharedGradients::SharedGradients(const Schedule& schedule, Tokens tokens)
    : problem_(schedule.sharded.problem), tokens_(std::move(tokens)) {
  for (const auto& of_head : tokens_) {
    first_row_.push_back(rows_per_sequence_);
    rows_per_sequence_ += int64_t(of_head.size());
  }
  num_keys_ = std::min(rows(), kMostKeys);
}

SharedGradients::SharedGradients(const Schedule& schedule, MemoryLedger& ledger)
    : SharedGradients(schedule, shared_tokens(schedule)) {
  if (rows() > 0) memory_ = TaggedBuffer(ledger, kTag, doubles() * int64_t{sizeof(double)});
  clear();
}

int64_t SharedGradients::bytes(const Schedule& schedule) {
  return SharedGradients(schedule, shared_tokens(schedule)).doubles() * int64_t{sizeof(double)};
}

void SharedGradients::clear() { std::ranges::fill(memory_.bytes(), std::byte{0}); }

bool SharedGradients::has(int64_t kv_head, int64_t token) const {
  return std::ranges::binary_search(tokens_[size_t(kv_head)], token);
}

int64_t SharedGradients::index_of(int64_t kv_head, int64_t token) const {
  const std::vector<int64_t>& tokens = tokens_[size_t(kv_head)];
  const auto found = std::ranges::lower_bound(tokens, token % problem_.seq_len);
  check(found != tokens.end() && *found == token % problem_.seq_len, "K/V head ", kv_head,
        ", token ", token, ": no shared row");
  return (token / problem_.seq_len - first_batch_) * rows_per_sequence_ +
         first_row_[size_t(kv_head)] + (found - tokens.begin());
}

double* SharedGradients::sum_of(int64_t index, Tensor tensor) const {
  return reinterpret_cast<double*>(memory_.data()) +
         (2 * index + (tensor == Tensor::kValue)) * problem_.head_dim;
}

void SharedGradients::add(std::span<const FillRows> gradients) {
  for (const FillRows& run : gradients)
    for (int64_t i = 0; i < run.rows; ++i) {
      const float* const row = static_cast<const float*>(run.out) + i * run.row_stride;
      double* const sum =
          sum_of(index_of(run.head, run.first_token + i * run.token_step), run.tensor);
      for (int64_t c = 0; c < problem_.head_dim; ++c) sum[c] += double(row[c]);
    }
}

std::vector<FillRows> SharedGradients::rows_of(const BoundProgram& bound) const {
  std::vector<FillRows> rows;
  for (const FillRows& run : shard_rows(bound, TensorKind::kGradKeyValue)) {
    const std::vector<int64_t>& tokens = tokens_[size_t(run.head)];
    const int64_t begin = run.first_token / problem_.seq_len * problem_.seq_len;
    const TokenRange range{run.first_token - begin, run.token_step, run.rows};
    for (auto at = std::ranges::lower_bound(tokens, range.first);
         at != tokens.end() && *at <= range.last(); ++at) {
      if ((*at - range.first) % range.stride != 0) continue;
      FillRows row = run;
      row.first_token = begin + *at;
      row.rows = 1;
      row.out = static_cast<float*>(run.out) + (*at - range.first) / range.stride * run.row_stride;
      rows.push_back(row);
    }
  }
  return rows;
}

void SharedGradients::add_expected(const BoundProgram& bound, const AttentionProblem& problem,
                                   const std::vector<KeySample>& keys) {
  check(int64_t(keys.size()) <= num_keys_, "shared keys: ", keys.size(), " of at most ", num_keys_);
  const std::vector<KeyGradient> given = gradients_of_own_queries(bound, problem, keys);
  for (size_t i = 0; i < given.size(); ++i)
    for (const auto& [tensor, row] :
         {std::pair(Tensor::kKey, &given[i].k), std::pair(Tensor::kValue, &given[i].v)})
      std::ranges::transform(*row, std::span(sum_of(rows() + int64_t(i), tensor), row->size()),
                             sum_of(rows() + int64_t(i), tensor), std::plus<>());
}

void SharedGradients::for_each_rounded(
    const std::function<void(std::vector<FillRows> rows)>& visit) const {
  constexpr size_t kRowsAtOnce = 1024;
  const int64_t d = problem_.head_dim;
  std::vector<float> rounded(2 * kRowsAtOnce * size_t(d));
  std::vector<FillRows> some;
  const auto pass_on = [&] { visit(std::exchange(some, {})); };
  for (int64_t batch = 0; batch < problem_.batch; ++batch)
    for (size_t head = 0; head < tokens_.size(); ++head)
      for (const int64_t at : tokens_[head]) {
        const int64_t token = (first_batch_ + batch) * problem_.seq_len + at;
        for (const Tensor tensor : {Tensor::kKey, Tensor::kValue}) {
          float* const row = rounded.data() + int64_t(some.size()) * d;
          std::copy_n(sum_of(index_of(int64_t(head), token), tensor), d, row);
          some.push_back({tensor, int64_t(head), token, 1, 1, row, d});
        }
        if (some.size() == 2 * kRowsAtOnce) pass_on();
      }
  if (!some.empty()) pass_on();
}

std::array<SampleErrors, 2> SharedGradients::compare(const std::vector<KeySample>& keys) const {
  const auto d = static_cast<size_t>(problem_.head_dim);
  std::vector<KeyGradient> sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto sum = [&](Tensor tensor) {
      const double* const first = sum_of(rows() + int64_t(i), tensor);
      return std::vector<double>(first, first + d);
    };
    sums.push_back({sum(Tensor::kKey), sum(Tensor::kValue)});
  }
  std::array<SampleErrors, 2> errors;
  std::vector<float> row(d);
  for (const Tensor tensor : {Tensor::kKey, Tensor::kValue})
    errors[tensor == Tensor::kValue] =
        compare_rows(expected_keys(keys, sums, tensor), [&](size_t i) {
          const auto& [batch, head, token] = keys[i];
          std::copy_n(sum_of(index_of(head, batch * problem_.seq_len + token), tensor), d,
                      row.begin());
          return OutputRow{row, {}};
        });
  return errors;
}

std::span<std::byte> WalkGradients::sums_of(const Schedule& schedule, const WalkUnit& unit) {
  if (!shared_ || batches_ != unit.batches) {
    shared_.reset();  // first, so that old and new are never held together
    shared_ = std::make_unique<SharedGradients>(schedule, ledger_);
    batches_ = unit.batches;
  }
  shared_->set_first_batch(unit.first_batch);
  return shared_->memory();
}

void WalkGradients::inspect(const BoundProgram& bound, const std::vector<QuerySample>& samples,
                            const std::vector<KeySample>& keys, UnitOutcome& out) {
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
    add_digests(moved, ~uint64_t{0}, g);  // -1 modulo 2^64: takes them out
    shared_->add(moved);
    for (const FillRows& row : moved)
      std::fill_n(static_cast<float*>(row.out), problem_.head_dim, 0.0f);
    laws.add(bound);
  }
  if (out.unit.rank == last_.value_or(bound.sharded().layout.world_size() - 1))
    complete(shared_keys, laws, out);
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

// The rows that all ranks that are walked have added to.
void WalkGradients::complete(const std::vector<KeySample>& shared_keys, LawSums& laws,
                             UnitOutcome& out) {
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
  shared_->clear();
}

}  // namespace longnet
