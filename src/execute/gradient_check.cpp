#include "execute/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/random.h"
#include "execute/executor.h"
#include "execute/program_rows.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

constexpr Tensor kTensors[] = {Tensor::kQuery, Tensor::kKey, Tensor::kValue};
// Length below which a row's error counts as if it had this one: the gradient of the scores of a
// query with one key is 0, and rounding makes a few 1e-7 of it.
constexpr double kLeastNorm = 0.25;

bool owns(const BoundProgram& bound, int64_t token) { return bound.shard().index_of(token) >= 0; }

std::vector<KeySample> keys_of(const std::vector<QuerySample>& queries, const AttentionProblem& p) {
  std::vector<KeySample> keys;
  const size_t step = std::max<size_t>(1, queries.size() / GradientCheck::kMostKeys);
  for (size_t i = 0; i < queries.size() && keys.size() < GradientCheck::kMostKeys; i += step)
    keys.push_back({queries[i].batch, p.kv_head_of(queries[i].head), queries[i].token});
  return keys;
}

// dK and dV of the keys, on every rank, from O and L of the rows whose delta the program takes: each
// query is on one rank.
std::vector<KeyGradient> key_gradients(const BoundProgram& bound,
                                       const std::vector<KeySample>& keys, Communicator& comm) {
  const ShardedProblem& s = bound.sharded();
  const auto d = static_cast<size_t>(s.problem.head_dim);
  std::vector<KeyGradient> sums(keys.size(), {std::vector<double>(d), std::vector<double>(d)});
  for (const Op& op : bound.program().ops) {
    const auto* delta = std::get_if<Delta>(&op.what);
    if (delta == nullptr) continue;
    const SlotView& view = delta->output;
    const RowMap rows(s, TensorKind::kPartial, view.rows);
    for (int i = 0; i < view.num_pieces(); ++i) {
      const RowMap::Piece& piece = rows.pieces()[size_t(view.first_piece() + i)];
      const auto* o =
          reinterpret_cast<const float*>(bound.memory(view.slot).data() + piece.byte_offset);
      const auto statistics = [&](const QuerySample& q, const std::vector<float>& grad_out) {
        const int64_t row = rows.locate(piece, q.batch, q.head, {q.token, 1, 1}).row;
        return RowStatistics{
            o[piece.rows * int64_t(d) + row],
            std::inner_product(grad_out.begin(), grad_out.end(), o + row * int64_t(d), 0.0)};
      };
      for (const TokenRange& run : piece.tokens)
        add_key_gradients(
            s.problem, s.pattern,
            {piece.heads.first, piece.heads.end(), run.first, run.stride, run.count, statistics},
            keys, sums);
    }
  }
  for (KeyGradient& sum : sums) {
    comm.all_sum(sum.k);
    comm.all_sum(sum.v);
  }
  return sums;
}

// a . b and |a| . |b| of rows, column by column.
class Products {
 public:
  explicit Products(int64_t head_dim) : sums_(size_t(head_dim)), absolute_(size_t(head_dim)) {}
  void add(std::span<const float> a, std::span<const float> b) {
    for (size_t c = 0; c < sums_.size(); ++c) {
      const double product = double(a[c]) * double(b[c]);
      sums_[c] += product;
      absolute_[c] += std::fabs(product);
    }
  }
  double sum() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }
  double absolute() const { return std::accumulate(absolute_.begin(), absolute_.end(), 0.0); }

 private:
  std::vector<double> sums_, absolute_;
};

// Calls visit(input, gradient, run, i) for the i-th row of each run of an input's rows, as floats,
// and for the row of `gradients` beside it, whose runs are the same.
template <class Visit>
void for_each_row(const AttentionProblem& p, const std::vector<FillRows>& inputs,
                  const std::vector<FillRows>& gradients, Visit visit) {
  const auto d = static_cast<size_t>(p.head_dim);
  std::vector<float> row(d);
  for (size_t r = 0; r < inputs.size(); ++r)
    for (int64_t i = 0; i < inputs[r].rows; ++i) {
      const int64_t at = i * inputs[r].row_stride;
      if (p.dtype == DType::kFloat32)
        std::copy_n(static_cast<const float*>(inputs[r].out) + at, d, row.begin());
      else
        std::transform(static_cast<const uint16_t*>(inputs[r].out) + at,
                       static_cast<const uint16_t*>(inputs[r].out) + at + d, row.begin(),
                       bf16_value);
      const float* const beside = gradients.empty() ? nullptr
                                                    : static_cast<const float*>(gradients[r].out) +
                                                          i * gradients[r].row_stride;
      visit(std::span<const float>(row), std::span<const float>(beside, beside ? d : 0), inputs[r],
            i);
    }
}

double length(std::span<const double> v) {
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}

}  // namespace

GradientCheck::GradientCheck(const Executor& executor, const std::vector<QuerySample>& queries,
                             Communicator& comm)
    : executor_(executor) {
  const BoundProgram& bound = executor.bound();
  const ShardedProblem& s = bound.sharded();
  for (ExpectedRows& rows : expected_) rows.least_norm = kLeastNorm;
  for (const QuerySample& q : queries)
    if (owns(bound, q.token)) expected_[0].samples.push_back(q);
  for (std::vector<double>& row :
       reference_query_gradients(s.problem, s.pattern, expected_[0].samples))
    expected_[0].rows.push_back({std::move(row), 0});
  if (s.pattern.mix != MixRule::kLse) return;  // a branch's own L and delta do not last
  const std::vector<KeySample> keys = keys_of(queries, s.problem);
  const std::vector<KeyGradient> sums = key_gradients(bound, keys, comm);
  for (size_t i = 0; i < keys.size(); ++i)
    for (const int tensor : {1, 2}) {
      if (!owns(bound, keys[i].token)) continue;
      expected_[size_t(tensor)].samples.push_back({keys[i].batch, keys[i].kv_head, keys[i].token});
      expected_[size_t(tensor)].rows.push_back({tensor == 1 ? sums[i].k : sums[i].v, 0});
    }
}

GradientErrors GradientCheck::compare() const {
  GradientErrors errors;
  for (size_t i = 0; i < errors.size(); ++i)
    errors[i] = compare_rows(expected_[i], [&](size_t sample) {
      const auto& [batch, head, token, spread, extra] = expected_[i].samples[sample];
      return OutputRow{gradient_row(executor_.bound(), kTensors[i], batch, head, token), {}};
    });
  return errors;
}

std::array<CheckOutcome, 3> GradientCheck::judge_together(const GradientErrors& mine,
                                                          Communicator& comm,
                                                          double tolerance) const {
  if (tolerance <= 0) tolerance = 2 * check_tolerance(executor_.sharded());
  std::array<CheckOutcome, 3> outcomes;
  for (size_t i = 0; i < mine.size(); ++i)
    outcomes[i] = longnet::judge_together(executor_, mine[i], 0, comm, tolerance);
  return outcomes;
}

Conservation conservation(const BoundProgram& bound, Communicator& comm) {
  using enum TensorKind;
  const AttentionProblem& p = bound.sharded().problem;
  const int64_t d = p.head_dim;
  Products queries(d), keys(d), values(d), outputs(d);
  // For each sequence and K/V head: the sum of dK, then the sum of its absolute values.
  std::vector<double> sums(size_t(2 * p.batch * p.num_kv_heads * d));
  for_each_row(p, shard_rows(bound, kQuery), shard_rows(bound, kGradQuery),
               [&](auto q, auto grad, const FillRows&, int64_t) { queries.add(q, grad); });
  for_each_row(p, shard_rows(bound, kKeyValue), shard_rows(bound, kGradKeyValue),
               [&](auto row, auto grad, const FillRows& run, int64_t) {
                 (run.tensor == Tensor::kKey ? keys : values).add(row, grad);
                 if (run.tensor != Tensor::kKey) return;
                 const int64_t batch = run.first_token / p.seq_len - bound.first_batch();
                 double* const sum = &sums[size_t(2 * (batch * p.num_kv_heads + run.head) * d)];
                 for (int64_t c = 0; c < d; ++c) {
                   sum[c] += grad[size_t(c)];
                   sum[d + c] += std::fabs(grad[size_t(c)]);
                 }
               });
  for_each_row(p, shard_rows(bound, kGradOut), {},
               [&](auto grad, auto, const FillRows& run, int64_t i) {
                 const int64_t token = run.first_token + i * run.token_step;
                 const int64_t batch = token / p.seq_len;
                 outputs.add(grad, output_row(bound, batch - bound.first_batch(), run.head,
                                              token - batch * p.seq_len));
               });
  double totals[] = {queries.sum() - keys.sum(), queries.absolute() + keys.absolute(),
                     values.sum() - outputs.sum(), values.absolute() + outputs.absolute()};
  comm.all_sum(totals);
  comm.all_sum(sums);
  // Terms may all be 0 up to rounding, where each query sees one key.
  const double rounding = std::sqrt(double(p.seq_len));
  const auto over = [](double difference, double terms) { return std::fabs(difference) / terms; };
  Conservation laws{.scores = over(totals[0], totals[1] + rounding),
                    .values = over(totals[2], totals[3] + rounding)};
  if (!bound.program().output_is_partial() && p.dtype == DType::kBFloat16)
    laws.values_tolerance = check_tolerance(bound.sharded(), /*rounded=*/true);
  const std::span<const double> all(sums);
  for (size_t at = 0; at < sums.size(); at += 2 * size_t(d)) {
    const double one = over(length(all.subspan(at, size_t(d))),
                            length(all.subspan(at + size_t(d), size_t(d))) + rounding);
    if (std::isnan(one) || one > laws.keys) laws.keys = one;
  }
  return laws;
}

}  // namespace longnet
