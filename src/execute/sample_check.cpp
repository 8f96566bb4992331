#include "execute/sample_check.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/random.h"
#include "execute/executor.h"
#include "execute/tolerances.h"

namespace longnet {
namespace {

constexpr uint32_t kSampleKey = 0x5A5A5A5A;  // key of the samples; the inputs have another
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative_error(double difference, double norm) {  // from sums of squares
  return norm > 0 ? std::sqrt(difference / norm) : difference > 0 ? kInfinity : 0;
}

int64_t token_at(const TokenRanges& shard, int64_t index) {
  const TokenRange& a = shard.range[0];
  return index < a.count ? a[index] : shard.range[1][index - a.count];
}

// Keys of its branch that a query of a stratum sees. One that sees its own key alone, as the first
// of a causal segment, may be right although keys are missing.
enum Keys { kNothing, kOwn, kOthers };

// The strata of a point, and what the sampled queries of each see.
class Strata {
 public:
  Strata(const ShardedProblem& s, const std::vector<Rank>& ranks)
      : s_(s), branches_(int64_t(s.pattern.branches.size())), ranks_(int64_t(ranks.size())) {
    for (const Rank r : ranks) shards_.push_back(s.layout.shard(r));
    seen_.resize(size_t(branches_ * heads_ + ranks_ * heads_ + ranks_ * branches_), kNothing);
  }

  // False when none of these ranks has the query.
  bool cover(const QuerySample& q) {
    const auto shard = std::ranges::find_if(
        shards_, [&](const TokenRanges& tokens) { return tokens.index_of(q.token) >= 0; });
    if (shard == shards_.end()) return false;
    const int64_t rank = shard - shards_.begin();
    seen_[rank_head(rank, q.head)] = kOthers;
    for (int64_t b = 0; b < branches_; ++b)
      for (const Keys keys : {kOwn, kOthers})
        if (first_seen(b, keys, q, q.token + 1) == q.token)
          for (const size_t stratum : {branch_head(b, q.head), rank_branch(rank, b)})
            seen_[stratum] = std::max(seen_[stratum], keys);
    return true;
  }

  // Pairs with a branch first: a query of each covers most of the others on its way. What two
  // pairs could share is rotated, so that few queries cover many.
  void complete(SampleChoice& out, int64_t budget) {
    const auto want = [&](size_t stratum, int64_t candidates, const auto& candidate) {
      const Keys before = seen_[stratum];
      std::optional<QuerySample> q;
      for (const Keys keys : {kOthers, kOwn})
        for (int64_t i = 0; i < candidates && !q && before < keys; ++i) q = candidate(i, keys);
      if (q && int64_t(out.queries.size()) < budget && cover(*q)) out.queries.push_back(*q);
      out.strata += q || before != kNothing;
      out.strata_left_out += q && seen_[stratum] == before;
    };
    for (int64_t b = 0; b < branches_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        want(branch_head(b, h), ranks_,
             [&](int64_t i, Keys keys) { return find((b + h + i) % ranks_, b, h, keys); });
    for (int64_t r = 0; r < ranks_; ++r)
      for (int64_t b = 0; b < branches_; ++b)
        want(rank_branch(r, b), heads_,
             [&](int64_t i, Keys keys) { return find(r, b, (r + b + i) % heads_, keys); });
    for (int64_t r = 0; r < ranks_; ++r)
      for (int64_t h = 0; h < heads_; ++h)  // at last a row that no branch selects
        want(rank_head(r, h), branches_ + 1, [&](int64_t i, Keys keys) {
          return find(r, i < branches_ ? (r + h + i) % branches_ : kEveryRow, h, keys);
        });
  }

 private:
  size_t branch_head(int64_t b, int64_t h) const { return size_t(b * heads_ + h); }
  size_t rank_head(int64_t r, int64_t h) const { return size_t((branches_ + r) * heads_ + h); }
  size_t rank_branch(int64_t r, int64_t b) const {
    return size_t((branches_ + ranks_) * heads_ + r * branches_ + b);
  }

  int64_t first_seen(int64_t branch, Keys keys, const QuerySample& from, int64_t end) const {
    return first_seeing_query(s_.problem, s_.pattern, {size_t(branch), keys == kOthers}, from, end);
  }

  // A query of the rank and head that sees such keys of the branch: the first from some place on.
  std::optional<QuerySample> find(int64_t rank, int64_t branch, int64_t head, Keys keys) const {
    const AttentionProblem& p = s_.problem;
    const TokenRanges& shard = shards_[size_t(rank)];
    const int64_t tokens = shard.tokens();
    if (tokens == 0) return {};
    const PhiloxBlock x = philox4x32_10({{uint32_t(rank), uint32_t(branch), uint32_t(head), 2}},
                                        uint32_t(p.seed), kSampleKey);
    const auto begin = int64_t((uint64_t{x.word[0]} << 32 | x.word[1]) % uint64_t(tokens));
    QuerySample q{(rank + branch + 1 + head) % p.batch, head, 0};
    for (const auto& [from, to] : {std::pair{begin, tokens}, std::pair{int64_t{0}, begin}})
      for (int64_t i = from; i < to;) {
        const TokenRange& range = shard.range[i < shard.range[0].count ? 0 : 1];
        q.token = token_at(shard, i);
        const int64_t seen =
            branch == kEveryRow ? q.token : first_seen(branch, keys, q, range.last() + 1);
        if (seen == q.token) return q;
        i += ceil_div(seen - q.token, range.stride);
      }
    return {};
  }

  const ShardedProblem& s_;
  int64_t branches_, ranks_, heads_ = s_.problem.num_heads;
  std::vector<TokenRanges> shards_;
  std::vector<Keys> seen_;
};

}  // namespace

SampleChoice stratify(const ShardedProblem& sharded, const std::vector<QuerySample>& samples,
                      int64_t budget, std::vector<Rank> ranks) {
  if (ranks.empty()) {
    ranks.resize(size_t(sharded.layout.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  Strata strata(sharded, ranks);
  SampleChoice out;
  for (const QuerySample& q : samples)
    if (strata.cover(q))
      out.queries.push_back(q);
    else
      check(int(ranks.size()) < sharded.layout.world_size(), "no rank has token ", q.token);
  strata.complete(out, budget);
  return out;
}

std::vector<QuerySample> choose_samples(const ShardedProblem& s, int64_t count) {
  const AttentionProblem& p = s.problem;
  std::vector<QuerySample> samples;
  if (p.batch * p.seq_len * p.num_heads <= count) {
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.num_heads; ++h)
        for (int64_t t = 0; t < p.seq_len; ++t) samples.push_back({b, h, t, true});
    return samples;
  }
  bool spread = true;
  const auto add = [&](int64_t batch, int64_t head, int64_t token) {
    const QuerySample q{batch, head, std::clamp<int64_t>(token, 0, p.seq_len - 1), spread};
    if (int64_t(samples.size()) < count && std::ranges::count(samples, q) == 0)
      samples.push_back(q);
  };
  add(0, 0, 0);
  add(p.batch - 1, p.num_heads - 1, p.seq_len - 1);
  // Every other row is moved to one that the sparsest branch selects: chance alone would miss it.
  const DilatedBranch& sparsest =
      *std::ranges::max_element(s.pattern.branches, {}, &DilatedBranch::dilation_rate);
  uint32_t i = 0;
  const auto add_random = [&](int64_t wanted) {
    for (; int64_t(samples.size()) < wanted && i < 100 * uint32_t(count); ++i) {
      const PhiloxBlock x = philox4x32_10({{i, 0, 0, 0}}, uint32_t(p.seed), kSampleKey);
      const int64_t head = int64_t(x.word[1] % uint64_t(p.num_heads));
      int64_t token = int64_t((uint64_t{x.word[0]} << 32 | x.word[3]) % uint64_t(p.seq_len));
      if (i % 2 == 0) {
        const int64_t w = std::min(sparsest.segment_length, p.seq_len), in_segment = token % w;
        token += head_offset(s.pattern.offset, head, p.num_heads, sparsest.dilation_rate) -
                 in_segment % sparsest.dilation_rate;
      }
      add(int64_t(x.word[2] % uint64_t(p.batch)), head, token);
    }
  };
  add_random(count / 2);
  spread = false;
  int64_t turn = 0;
  // Both sides of a border, and a selected row beyond it.
  for (const DilatedBranch& b : s.pattern.branches) {
    const int64_t w = std::min(b.segment_length, p.seq_len), border = p.seq_len / w / 2 * w;
    const int64_t head = turn++ % p.num_heads;
    add(0, head, border - 1);
    add(0, head, border);
    add(0, head, border + head_offset(s.pattern.offset, head, p.num_heads, b.dilation_rate));
  }
  for (Rank r = 1; r < std::min(s.layout.world_size(), 8); ++r) {
    if (s.layout.shard(r).empty()) continue;
    add(0, turn++ % p.num_heads, s.layout.shard(r).first() - 1);
    add(0, turn++ % p.num_heads, s.layout.shard(r).first());
  }
  add_random(count);
  return samples;
}

double check_tolerance(const ShardedProblem& s, bool rounded) {
  if (rounded) return 5e-4;
  int64_t keys = 0;
  for (const DilatedBranch& b : s.pattern.branches)
    keys += b.summary_tokens > 0 ? ceil_div(s.problem.seq_len, b.segment_length) * b.summary_tokens
                                 : std::min(b.segment_length, s.problem.seq_len) / b.dilation_rate;
  const double arithmetic = keys <= 65536 ? 1e-6 : 5e-6;
  // Exact attention over P ranks merges up to P partials in fp32: two units of rounding each, which
  // add up like a random walk. Measured: 4.0e-6 at P = 1024, 8.2e-6 at 4096.
  const bool dense = s.pattern.branches.size() == 1 && s.pattern.branches[0].dilation_rate == 1;
  return dense ? std::max(arithmetic, 2.5e-7 * std::sqrt(double(s.layout.world_size())))
               : arithmetic;
}

std::vector<QuerySample> choose_shard_samples(const ShardedProblem& s, Rank rank,
                                              int64_t first_batch, int64_t batches,
                                              const std::vector<QuerySample>& all, int64_t count) {
  const AttentionProblem& p = s.problem;
  const TokenRanges shard = s.layout.shard(rank);
  std::vector<QuerySample> mine;
  const auto add = [&](QuerySample q, bool extra = true) {
    q.extra = extra;
    if (q.batch >= first_batch && q.batch < first_batch + batches && shard.index_of(q.token) >= 0 &&
        std::ranges::count(mine, q) == 0)
      mine.push_back(q);
  };
  for (const QuerySample& q : all) add(q, false);
  if (shard.empty()) return mine;
  add({first_batch, 0, shard.first()});
  add({first_batch + batches - 1, p.num_heads - 1, shard.last()});
  const int64_t tokens = shard.tokens();
  const int64_t wanted = std::min(count, tokens * p.num_heads * batches);
  for (uint32_t i = 0; int64_t(mine.size()) < wanted && i < 100 * uint32_t(count); ++i) {
    const PhiloxBlock x = philox4x32_10({{i, uint32_t(rank), uint32_t(first_batch), 1}},
                                        uint32_t(p.seed), kSampleKey);
    const int64_t head = int64_t(x.word[0] % uint64_t(p.num_heads));
    const int64_t batch = first_batch + int64_t(x.word[1] % uint64_t(batches));
    int64_t token =
        token_at(shard, int64_t((uint64_t{x.word[2]} << 32 | x.word[3]) % uint64_t(tokens)));
    // Takes in turn any row, a row that a branch selects, both sides of a border of its segments.
    const DilatedBranch& b = s.pattern.branches[i / 4 % s.pattern.branches.size()];
    const int64_t w = std::min(b.segment_length, p.seq_len), begin = token / w * w;
    const int64_t offset = head_offset(s.pattern.offset, head, p.num_heads, b.dilation_rate);
    if (i % 4 == 1) token = begin + (token - begin) / b.dilation_rate * b.dilation_rate + offset;
    if (i % 4 == 2) token = begin;
    if (i % 4 == 3) token = begin - 1;
    add({batch, head, token});
  }
  return mine;
}

void SampleErrors::add(const SampleErrors& o) {
  queries += o.queries;
  chosen += o.chosen;
  difference += o.difference;
  norm += o.norm;
  spread_difference += o.spread_difference;
  spread_norm += o.spread_norm;
  worst_row = std::max(worst_row, o.worst_row);
  worst_lse = std::max(worst_lse, o.worst_lse);
  rounded = rounded || o.rounded;
}

void SampleErrors::keep_worst(const SampleErrors& o) {
  const auto keep = [](double& a, double b) { a = std::isnan(a) || a >= b ? a : b; };
  queries = std::min(queries, o.queries);
  chosen = std::min(chosen, o.chosen);
  rounded = rounded || o.rounded;
  keep(difference, o.difference);
  keep(norm, o.norm);
  keep(spread_difference, o.spread_difference);
  keep(spread_norm, o.spread_norm);
  keep(worst_row, o.worst_row);
  keep(worst_lse, o.worst_lse);
}

ExpectedRows expected_rows(const AttentionProblem& problem, const DilatedPattern& pattern,
                           std::vector<QuerySample> samples, bool rounded,
                           const Definition& definition) {
  ExpectedRows out{std::move(samples), {}, rounded};
  out.rows = definition(problem, pattern, out.samples);
  if (rounded)
    for (DefinedRow& row : out.rows)
      for (double& x : row.o) x = double(bf16_value(bf16_bits(float(x))));
  return out;
}

ExpectedRows expected_rows(const BoundProgram& bound, const AttentionProblem& problem,
                           const std::vector<QuerySample>& samples, const Definition& definition) {
  std::vector<QuerySample> mine;
  for (const QuerySample& q : samples)
    if (has_row(bound, q.batch, q.token)) mine.push_back(q);
  const AttentionProblem& p = bound.sharded().problem;
  const DType stored = bound.program().output_is_partial() ? p.output_dtype : p.dtype;
  const bool rounded = stored == DType::kBFloat16;
  return expected_rows(problem, bound.sharded().pattern, std::move(mine), rounded, definition);
}

SampleErrors compare_samples(const BoundProgram& bound, const ExpectedRows& expected,
                             const ReadRows& read) {
  const AttentionProblem& p = bound.sharded().problem;
  const bool has_lse = bound.program().output_is_partial();
  MemoryRows rows;  // rows of O, each followed by its LSE
  for (const QuerySample& q : expected.samples) {
    const int64_t batch = q.batch - bound.first_batch();
    rows.push_back(output_row(bound, batch, q.head, q.token));
    if (has_lse) rows.push_back({output_lse(bound, batch, q.head, q.token), 1});
  }
  const std::vector<float> values = read(rows);
  const auto length = size_t(p.output_row_floats());
  std::vector<float> widened(static_cast<size_t>(p.head_dim));
  return compare_rows(expected, [&](size_t i) {
    const float* const at = values.data() + i * (length + has_lse);
    OutputRow row{.o = {at, length}, .lse = {}};
    if (has_lse) row.lse = at[length];
    if (p.output_dtype == DType::kFloat32) return row;
    const auto* const bits = reinterpret_cast<const uint16_t*>(at);
    std::transform(bits, bits + p.head_dim, widened.begin(), bf16_value);
    row.o = widened;
    return row;
  });
}

SampleErrors compare_rows(const ExpectedRows& all,
                          const std::function<OutputRow(size_t sample)>& computed) {
  const std::vector<DefinedRow>& expected = all.rows;
  SampleErrors e{.queries = int64_t(expected.size()), .rounded = all.rounded};
  for (size_t i = 0; i < expected.size(); ++i) {
    e.chosen += !all.samples[i].extra;
    const auto [row, lse] = computed(i);
    double row_difference = 0, row_norm = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      row_difference += (row[c] - expected[i].o[c]) * (row[c] - expected[i].o[c]);
      row_norm += expected[i].o[c] * expected[i].o[c];
    }
    constexpr double kZero = 1e-6;
    const double least = all.least_norm * all.least_norm;
    if (row_norm >= kZero * kZero * least) e.difference += row_difference, e.norm += row_norm;
    if (all.samples[i].spread) {
      e.spread_difference += row_difference;
      e.spread_norm += row_norm;
    }
    const double relative = relative_error(row_difference, std::max(row_norm, least));
    e.worst_row = std::isnan(relative) ? kInfinity : std::max(e.worst_row, relative);
    if (!lse) continue;
    if (double(*lse) != expected[i].lse) {  // also equal infinities
      const double off =
          std::abs(double(*lse) - expected[i].lse) / std::max(1.0, std::abs(expected[i].lse));
      e.worst_lse = std::isnan(off) ? kInfinity : std::max(e.worst_lse, off);
    }
  }
  return e;
}

CheckOutcome judge(const SampleErrors& e, int64_t nan_values, const ShardedProblem& s,
                   const Tolerance& tolerance) {
  CheckOutcome out{.queries = e.queries, .chosen = e.chosen, .nan_values = nan_values};
  out.rel_l2_error = relative_error(e.difference, e.norm);
  out.spread_rel_l2_error = std::sqrt(e.spread_difference / e.spread_norm);
  out.max_rel_error = e.worst_row;
  out.max_lse_error = e.worst_lse;
  out.tolerance = tolerance.rel_l2 > 0 ? tolerance.rel_l2 : check_tolerance(s, e.rounded);
  out.pass = out.nan_values == 0 && out.rel_l2_error <= out.tolerance &&
             out.max_rel_error <= 10 * out.tolerance && out.max_lse_error <= tolerance.lse;
  return out;
}

CheckOutcome judge_together(const Executor& executor, const SampleErrors& mine, int64_t nan_values,
                            Communicator& comm, double tolerance) {
  SampleErrors all, one;
  const std::string bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  for (const std::string& told : comm.all_texts(bytes)) {
    std::memcpy(&one, told.data(), sizeof one);
    all.add(one);
  }
  return judge(all, int64_t(comm.sum_of(double(nan_values))), executor.sharded(),
               output_tolerance(executor.rounds_probabilities(), tolerance, mine.rounded));
}

CheckOutcome check_samples(const Executor& executor, const std::vector<QuerySample>& samples,
                           Communicator& comm, double tolerance, const Definition& definition) {
  const auto expected =
      expected_rows(executor.bound(), executor.sharded().problem, samples, definition);
  return judge_together(executor, executor.compare(expected), executor.count_nan(), comm,
                        tolerance);
}

}  // namespace longnet
