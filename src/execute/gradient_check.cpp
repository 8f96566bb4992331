#include "execute/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/random.h"
#include "execute/program_rows.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

constexpr Tensor kTensors[] = {Tensor::kQuery, Tensor::kKey, Tensor::kValue};
// Length below which a row's error counts as if it had this one: the gradient of the scores of a
// query with one key is 0, and rounding makes a few 1e-7 of it.
constexpr double kLeastNorm = 0.25;

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

// Keys whose dK and dV can be computed. All queries of a segment may see a key, and all its keys.
int64_t most_keys(const ShardedProblem& s) {
  if (s.pattern.mix == MixRule::kLse) return kMostKeys;
  double pairs = 0;
  for (const DilatedBranch& b : s.pattern.branches)
    pairs += std::pow(1 + (std::min(b.segment_length, s.problem.seq_len) - 1) / b.dilation_rate, 2);
  pairs *= double(s.problem.num_heads / s.problem.num_kv_heads);
  return std::min(kMostKeys, int64_t(kMostPairs / pairs));
}

}  // namespace

KeyChoice choose_keys(const ShardedProblem& s, const std::vector<QuerySample>& queries,
                      const std::set<Rank>& running) {
  const AttentionProblem& p = s.problem;
  KeyChoice out;
  const int64_t most = most_keys(s);
  const int ranks = s.layout.world_size();
  std::vector<TokenRanges> shards;
  for (Rank r = 0; r < ranks; ++r) shards.push_back(s.layout.shard(r));
  const auto has_token = [](int64_t token) {
    return [token](const TokenRanges& shard) { return shard.index_of(token) >= 0; };
  };
  enum Kind { kBranch, kRank };
  std::map<std::array<int64_t, 3>, bool> strata;  // (kind, branch or rank, K/V head): has a key
  for (Rank r = 0; r < ranks; ++r)
    for (int64_t h = 0; h < p.num_kv_heads && !shards[size_t(r)].empty(); ++h)
      if (running.empty() || running.contains(r)) strata[{kRank, r, h}] = false;
  const auto is_full = [&] { return int64_t(out.keys.size()) >= most; };
  const auto add = [&](const KeySample& key) {
    if (std::ranges::count(out.keys, key) > 0) return true;
    if (is_full()) return false;
    out.keys.push_back(key);
    const auto shard = std::ranges::find_if(shards, has_token(key.token));
    strata[{kRank, shard - shards.begin(), key.kv_head}] = true;
    return true;
  };
  const auto kv_head = [&](const QuerySample& q) {
    return q.head / (p.num_heads / p.num_kv_heads);
  };
  for (const bool own : {false, true})
    for (const QuerySample& q : queries)
      for (size_t b = 0; b < s.pattern.branches.size(); ++b) {
        const std::array<int64_t, 3> stratum{kBranch, int64_t(b), kv_head(q)};
        const auto known = strata.find(stratum);
        if (known != strata.end() && (known->second || is_full())) continue;
        const auto token = nearest_key(p, s.pattern, b, q);
        if (token && (own || *token != q.token))
          strata[stratum] = add({q.batch, kv_head(q), *token});
      }
  for (const QuerySample& q : queries) {
    const auto shard = std::ranges::find_if(shards, has_token(q.token));
    if (!strata[{kRank, shard - shards.begin(), kv_head(q)}]) add({q.batch, kv_head(q), q.token});
  }
  const int64_t wanted = std::min(most, std::max<int64_t>(kKeysPerRank * ranks, kFewestKeys));
  const size_t step = std::max<size_t>(1, queries.size() / std::max<size_t>(1, size_t(wanted)));
  for (size_t i = 0; i < queries.size() && int64_t(out.keys.size()) < wanted; i += step)
    add({queries[i].batch, kv_head(queries[i]), queries[i].token});
  out.is_full = is_full();
  out.strata = int64_t(strata.size());
  out.strata_left_out =
      std::ranges::count_if(strata, [](const auto& stratum) { return !stratum.second; });
  return out;
}

std::vector<KeyGradient> gradients_of_own_queries(const BoundProgram& bound,
                                                  const AttentionProblem& problem,
                                                  const std::vector<KeySample>& keys) {
  const ShardedProblem& s = bound.sharded();
  const auto d = static_cast<size_t>(s.problem.head_dim);
  std::vector<KeyGradient> sums(keys.size(), {std::vector<double>(d), std::vector<double>(d)});
  if (s.pattern.mix != MixRule::kLse) {
    for (const TokenRange& run : bound.shard())
      add_defined_key_gradients(problem, s.pattern,
                                {0, s.problem.num_heads, run.first, run.stride, run.count}, keys,
                                sums);
    return sums;
  }
  for (const Op& op : bound.program().ops) {
    const auto* delta = std::get_if<Delta>(&op.what);
    if (delta == nullptr) continue;
    const SlotView& view = delta->output;
    const RowMap rows(s, TensorKind::kPartial, view.rows);
    for (int i = 0; i < view.num_pieces(); ++i) {
      const RowMap::Piece& piece = rows.pieces()[size_t(view.first_piece() + i)];
      const auto* const o = reinterpret_cast<const float*>(bound.begin_of(view, piece));
      const auto statistics = [&](const QuerySample& q, const std::vector<float>& grad_out) {
        const int64_t batch = q.batch - bound.first_batch();
        const int64_t row = rows.locate(piece, batch, q.head, {q.token, 1, 1}).row;
        return RowStatistics{
            o[piece.rows * int64_t(d) + row],
            std::inner_product(grad_out.begin(), grad_out.end(), o + row * int64_t(d), 0.0)};
      };
      for (const TokenRange& run : piece.tokens)
        add_key_gradients(
            problem, s.pattern,
            {piece.heads.first, piece.heads.end(), run.first, run.stride, run.count, statistics},
            keys, sums);
    }
  }
  return sums;
}

ExpectedRows expected_keys(const std::vector<KeySample>& keys,
                           const std::vector<KeyGradient>& gradients, Tensor tensor) {
  ExpectedRows rows;
  rows.least_norm = kLeastNorm;
  for (size_t i = 0; i < keys.size(); ++i) {
    rows.samples.push_back({keys[i].batch, keys[i].kv_head, keys[i].token});
    rows.rows.push_back({tensor == Tensor::kKey ? gradients[i].k : gradients[i].v, 0});
  }
  return rows;
}

ExpectedGradients expected_gradients(const BoundProgram& bound, const AttentionProblem& problem,
                                     const std::vector<QuerySample>& queries,
                                     const std::vector<KeySample>& keys,
                                     const std::vector<KeyGradient>& gradients) {
  ExpectedGradients expected;
  expected[0].least_norm = kLeastNorm;
  for (const QuerySample& q : queries)
    if (has_row(bound, q.batch, q.token)) expected[0].samples.push_back(q);
  for (std::vector<double>& row :
       defined_query_gradients(problem, bound.sharded().pattern, expected[0].samples))
    expected[0].rows.push_back({std::move(row), 0});
  std::vector<KeySample> own;
  std::vector<KeyGradient> of_own;
  for (size_t i = 0; i < keys.size(); ++i)
    if (has_row(bound, keys[i].batch, keys[i].token))
      own.push_back(keys[i]), of_own.push_back(gradients[i]);
  for (const Tensor tensor : {Tensor::kKey, Tensor::kValue})
    expected[size_t(tensor)] = expected_keys(own, of_own, tensor);
  return expected;
}

GradientErrors compare_gradients(const BoundProgram& bound, const ExpectedGradients& expected,
                                 const ReadRows& read) {
  GradientErrors errors;
  for (size_t i = 0; i < errors.size(); ++i) {
    MemoryRows rows;
    for (const QuerySample& q : expected[i].samples)
      rows.push_back(
          gradient_row(bound, kTensors[i], q.batch - bound.first_batch(), q.head, q.token));
    const std::vector<float> values = read(rows);
    const auto d = size_t(bound.sharded().problem.head_dim);
    errors[i] = compare_rows(expected[i], [&](size_t sample) {
      return OutputRow{std::span(values).subspan(sample * d, d), {}};
    });
  }
  return errors;
}

std::array<CheckOutcome, 3> judge_gradients(const GradientErrors& errors,
                                            const ShardedProblem& sharded, double tolerance) {
  std::array<CheckOutcome, 3> outcomes;
  for (size_t i = 0; i < errors.size(); ++i)
    outcomes[i] = judge(errors[i], 0, sharded, {.rel_l2 = tolerance});
  return outcomes;
}

CheckOutcome worst_of(CheckOutcome all, const std::array<CheckOutcome, 3>& gradients) {
  all.tolerance = gradients[0].tolerance;
  for (const CheckOutcome& one : gradients) {
    all.pass = all.pass && one.pass;
    all.rel_l2_error = std::max(all.rel_l2_error, one.rel_l2_error);
    all.max_rel_error = std::max(all.max_rel_error, one.max_rel_error);
  }
  return all;
}

GradientCheck::GradientCheck(const Executor& executor, const std::vector<QuerySample>& queries,
                             Communicator& comm)
    : executor_(executor) {
  std::vector<int> outputs;  // slots of O from which the program takes delta
  for (const Op& op : executor.program().ops)
    if (const auto* delta = std::get_if<Delta>(&op.what)) outputs.push_back(delta->output.slot);
  const auto on_host = executor.on_host(outputs);
  const BoundProgram& bound = *on_host;
  const ShardedProblem& s = bound.sharded();
  keys_ = choose_keys(s, queries);
  std::vector<KeyGradient> sums = gradients_of_own_queries(bound, s.problem, keys_.keys);
  for (KeyGradient& sum : sums) {  // each query is on one rank
    comm.all_sum(sum.k);
    comm.all_sum(sum.v);
  }
  expected_ = expected_gradients(bound, s.problem, queries, keys_.keys, sums);
}

GradientErrors GradientCheck::compare() const {
  return compare_gradients(executor_.bound(), expected_,
                           std::bind_front(&Executor::read_rows, &executor_));
}

std::array<CheckOutcome, 3> GradientCheck::judge_together(const GradientErrors& mine,
                                                          Communicator& comm,
                                                          double tolerance) const {
  if (tolerance <= 0)
    tolerance = gradient_tolerance(executor_.rounds_probabilities(), executor_.sharded(), 0);
  std::array<CheckOutcome, 3> outcomes;
  for (size_t i = 0; i < mine.size(); ++i)
    outcomes[i] = longnet::judge_together(executor_, mine[i], 0, comm, tolerance);
  return outcomes;
}

void LawTerms::add(const LawTerms& other, size_t at) {
  for (size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
  keys.resize(std::max(keys.size(), at + other.keys.size()));
  for (size_t i = 0; i < other.keys.size(); ++i) keys[at + i] += other.keys[i];
}

void LawSums::Products::add(std::span<const float> a, std::span<const float> b) {
  for (size_t c = 0; c < sums_.size(); ++c) {
    const double product = double(a[c]) * double(b[c]);
    sums_[c] += product;
    absolute_[c] += std::fabs(product);
  }
}
double LawSums::Products::sum() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }
double LawSums::Products::absolute() const {
  return std::accumulate(absolute_.begin(), absolute_.end(), 0.0);
}

LawSums::LawSums(const AttentionProblem& problem, int64_t first_batch)
    : problem_(problem),
      first_batch_(first_batch),
      queries_(problem.head_dim),
      keys_(problem.head_dim),
      values_(problem.head_dim),
      outputs_(problem.head_dim),
      key_sums_(size_t(2 * problem.batch * problem.num_kv_heads * problem.head_dim)) {}

void LawSums::add_keys(const std::vector<FillRows>& rows, const std::vector<FillRows>& gradients) {
  const int64_t d = problem_.head_dim;
  for_each_row(problem_, rows, gradients, [&](auto row, auto grad, const FillRows& run, int64_t i) {
    (run.tensor == Tensor::kKey ? keys_ : values_).add(row, grad);
    if (run.tensor != Tensor::kKey) return;
    const int64_t token = run.first_token + i * run.token_step;
    const int64_t batch = token / problem_.seq_len - first_batch_;
    double* const sum = &key_sums_[size_t(2 * (batch * problem_.num_kv_heads + run.head) * d)];
    for (int64_t c = 0; c < d; ++c) {
      sum[c] += grad[size_t(c)];
      sum[d + c] += std::fabs(grad[size_t(c)]);
    }
  });
}

void LawSums::add(const BoundProgram& bound) {
  using enum TensorKind;
  for_each_row(problem_, shard_rows(bound, kQuery), shard_rows(bound, kGradQuery),
               [&](auto q, auto grad, const FillRows&, int64_t) { queries_.add(q, grad); });
  add_keys(shard_rows(bound, kKeyValue), shard_rows(bound, kGradKeyValue));
  for_each_row(problem_, shard_rows(bound, kGradOut), {},
               [&](auto grad, auto, const FillRows& run, int64_t i) {
                 const int64_t token = run.first_token + i * run.token_step;
                 const int64_t batch = token / problem_.seq_len;
                 outputs_.add(grad, output_row(bound, batch - first_batch_, run.head,
                                               token - batch * problem_.seq_len));
               });
}

LawTerms LawSums::terms() const {
  return {{queries_.sum(), keys_.sum(), values_.sum(), outputs_.sum(), queries_.absolute(),
           keys_.absolute(), values_.absolute(), outputs_.absolute()},
          key_sums_};
}

void Conservation::keep_worst(const Conservation& other) {
  for (double Conservation::*const law :
       {&Conservation::keys, &Conservation::scores, &Conservation::values})
    if (!std::isnan(this->*law) && !(this->*law >= other.*law)) this->*law = other.*law;
}

Conservation conservation(const LawTerms& terms, const ShardedProblem& s, bool output_is_partial,
                          double tolerance) {
  const AttentionProblem& p = s.problem;
  const std::vector<double>& x = terms.products;
  // Terms may all be 0 up to rounding, where each query sees one key.
  const double rounding = std::sqrt(double(p.seq_len));
  const auto over = [](double difference, double of) { return std::fabs(difference) / of; };
  Conservation laws{.scores = over(x[0] - x[1], x[4] + x[5] + rounding),
                    .values = over(x[2] - x[3], x[6] + x[7] + rounding),
                    .tolerance = tolerance,
                    .terms = {x[4], x[5], x[6]}};
  if (!output_is_partial && p.dtype == DType::kBFloat16)
    laws.values_tolerance = std::max(tolerance, check_tolerance(s, /*rounded=*/true));
  const std::span<const double> all(terms.keys);
  const auto d = static_cast<size_t>(p.head_dim);
  for (size_t at = 0; at < all.size(); at += 2 * d) {
    const double one = over(length(all.subspan(at, d)), length(all.subspan(at + d, d)) + rounding);
    if (std::isnan(one) || one > laws.keys) laws.keys = one;
  }
  return laws;
}

Conservation conservation(const Executor& executor, Communicator& comm) {
  const auto on_host = executor.on_host(
      std::array{kQuerySlot, kKvSlot, kOutputSlot, kGradOutSlot, kGradQuerySlot, kGradKvSlot});
  const BoundProgram& bound = *on_host;
  LawSums sums(bound.sharded().problem, bound.first_batch());
  sums.add(bound);
  LawTerms terms = sums.terms();
  comm.all_sum(terms.products);
  comm.all_sum(terms.keys);
  return conservation(terms, bound.sharded(), bound.program().output_is_partial(),
                      law_tolerance(executor.rounds_probabilities(), executor.sharded()));
}

}  // namespace longnet
