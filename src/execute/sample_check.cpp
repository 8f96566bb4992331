#include "execute/sample_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "core/check.h"
#include "core/random.h"
#include "execute/executor.h"
#include "execute/program_rows.h"
#include "kernels/reference/row_oracle.h"

namespace longnet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative_error(double difference, double norm) {  // of sums of squares
  return norm > 0 ? std::sqrt(difference / norm) : difference > 0 ? kInfinity : 0;
}

// Selection as the specification words it. Restarts at parts are the option "dilation phase:
// shard".
struct Definition {
  int64_t w, r, c, seq_len, parts;
  int64_t origin(int64_t token) const {
    int64_t at = token / w * w;
    for (int64_t p = 1; parts > 1 && p < parts; ++p)
      if (part_begin(seq_len, parts, p) <= token) at = std::max(at, part_begin(seq_len, parts, p));
    return at;
  }
  bool selects_key(int64_t token, int64_t offset) const {
    if (c > 0) return token % w >= w - c * (offset + 1) && token % w < w - c * offset;
    return (token - origin(token)) % r == offset;
  }
  bool selects_query(int64_t token, int64_t offset) const {
    return c > 0 || selects_key(token, offset);
  }
  bool sees_segment(int64_t query_segment, int64_t key_segment) const {
    return c > 0 ? query_segment != key_segment : query_segment == key_segment;
  }
};

Definition definition(const DilatedPattern& pattern, size_t branch, int64_t seq_len) {
  const auto [w, r, c] = pattern.branches[branch];
  return {c > 0 ? w : std::min(w, seq_len), r, c, seq_len, pattern.phase_parts};
}

void load_row(const AttentionProblem& p, Tensor tensor, int64_t token, int64_t head,
              std::vector<float>& out) {
  const RowKey key{p.seed, tensor, token, head};
  out.resize(size_t(p.head_dim));
  if (p.dtype == DType::kFloat32) return generate_row(key, p.head_dim, out.data());
  std::vector<uint16_t> bits(out.size());
  generate_row(key, p.head_dim, bits.data());
  std::transform(bits.begin(), bits.end(), out.begin(), bf16_value);
}

// Queries that see keys of one place: their keys are generated once for all of them.
struct KeyGroup {
  int64_t batch, kv_head, offset, segment;
  size_t branch;
  auto operator<=>(const KeyGroup&) const = default;
};
struct Reader {
  size_t query;  // index into the samples
  RowOracle oracle;
};

void fold_keys(const AttentionProblem& p, const Definition& def, const KeyGroup& group,
               std::vector<Reader>& readers, const std::vector<QuerySample>& queries) {
  std::vector<float> k, v;
  int64_t last = 0;
  for (const Reader& r : readers) last = std::max(last, queries[r.query].token);
  const bool everywhere = def.c > 0;  // keys of other segments
  const int64_t begin = everywhere ? 0 : group.segment * def.w;
  const int64_t end = std::min({everywhere ? p.seq_len : (group.segment + 1) * def.w, p.seq_len,
                                p.causal ? last + 1 : p.seq_len});
  // Without restarts the selected tokens lie r apart: the others need not be looked at.
  const bool regular = def.c == 0 && def.parts <= 1;
  for (int64_t t = regular ? begin + group.offset : begin; t < end; t += regular ? def.r : 1) {
    if (!def.sees_segment(group.segment, t / def.w) || !def.selects_key(t, group.offset)) continue;
    load_row(p, Tensor::kKey, group.batch * p.seq_len + t, group.kv_head, k);
    load_row(p, Tensor::kValue, group.batch * p.seq_len + t, group.kv_head, v);
    for (Reader& r : readers)
      if (!p.causal || t <= queries[r.query].token) r.oracle.add_key(k.data(), v.data());
  }
}

ReferenceRow mix(const std::vector<RowOracle::Row>& branches, const DilatedPattern& pattern,
                 size_t head_dim) {
  ReferenceRow out{std::vector<double>(head_dim, 0.0), -kInfinity};
  double top = -kInfinity, sum = 0;
  for (const auto& b : branches) top = std::max(top, b.lse);
  if (top == -kInfinity) return out;
  for (const auto& b : branches) sum += std::exp(b.lse - top);
  out.lse = top + std::log(sum);
  for (const auto& b : branches) {
    double weight = std::exp(b.lse - out.lse);
    if (pattern.mix != MixRule::kLse) weight = b.lse == -kInfinity ? 0 : 1;
    if (pattern.mix == MixRule::kMean) weight /= double(pattern.branches.size());
    for (size_t i = 0; i < head_dim; ++i) out.o[i] += weight * b.o[i];
  }
  return out;
}

std::vector<ReferenceRow> reference_rows(const AttentionProblem& p, const DilatedPattern& pattern,
                                         const std::vector<QuerySample>& queries) {
  std::map<KeyGroup, std::vector<Reader>> groups;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto [batch, head, token, spread] = queries[i];
    std::vector<float> q;
    load_row(p, Tensor::kQuery, batch * p.seq_len + token, head, q);
    for (size_t b = 0; b < pattern.branches.size(); ++b) {
      const Definition def = definition(pattern, b, p.seq_len);
      const int64_t offset =
          head_offset(pattern.offset, head, p.num_heads, num_offsets(pattern.branches[b]));
      if (!def.selects_query(token, offset)) continue;
      groups[{batch, p.kv_head_of(head), offset, token / def.w, b}].push_back({i, RowOracle(q)});
    }
  }
  std::vector<std::vector<RowOracle::Row>> branches(queries.size());
  for (auto& [group, readers] : groups) {
    fold_keys(p, definition(pattern, group.branch, p.seq_len), group, readers, queries);
    for (const Reader& r : readers) branches[r.query].push_back(r.oracle.finish());
  }
  std::vector<ReferenceRow> rows;
  for (const auto& parts : branches) rows.push_back(mix(parts, pattern, size_t(p.head_dim)));
  return rows;
}

}  // namespace

ReferenceRow reference_row(const AttentionProblem& problem, const DilatedPattern& pattern,
                           const QuerySample& query) {
  return reference_rows(problem, pattern, {query}).front();
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
    if (int64_t(samples.size()) < count &&
        std::find(samples.begin(), samples.end(), q) == samples.end())
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
      const PhiloxBlock x = philox4x32_10({{i, 0, 0, 0}}, uint32_t(p.seed), 0x5A5A5A5Au);
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
  const auto add = [&](const QuerySample& q) {
    if (q.batch >= first_batch && q.batch < first_batch + batches && shard.index_of(q.token) >= 0 &&
        std::find(mine.begin(), mine.end(), q) == mine.end())
      mine.push_back(q);
  };
  for (const QuerySample& q : all) add(q);
  if (shard.empty()) return mine;
  add({first_batch, 0, shard.first()});
  add({first_batch + batches - 1, p.num_heads - 1, shard.last()});
  const int64_t tokens = shard.tokens();
  const auto token_at = [&](int64_t index) {
    const TokenRange& a = shard.range[0];
    return index < a.count ? a[index] : shard.range[1][index - a.count];
  };
  const int64_t wanted = std::min(count, tokens * p.num_heads * batches);
  for (uint32_t i = 0; int64_t(mine.size()) < wanted && i < 100 * uint32_t(count); ++i) {
    const PhiloxBlock x = philox4x32_10({{i, uint32_t(rank), uint32_t(first_batch), 1}},
                                        uint32_t(p.seed), 0x5A5A5A5Au);
    const int64_t head = int64_t(x.word[0] % uint64_t(p.num_heads));
    const int64_t batch = first_batch + int64_t(x.word[1] % uint64_t(batches));
    int64_t token = token_at(int64_t((uint64_t{x.word[2]} << 32 | x.word[3]) % uint64_t(tokens)));
    // In turn: any row, a row that a branch selects, both sides of a border of its segments.
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
  difference += o.difference;
  norm += o.norm;
  spread_difference += o.spread_difference;
  spread_norm += o.spread_norm;
  worst_row = std::max(worst_row, o.worst_row);
  worst_lse = std::max(worst_lse, o.worst_lse);
  rounded = rounded || o.rounded;
}

std::vector<QuerySample> own_samples(const BoundProgram& bound,
                                     const std::vector<QuerySample>& samples) {
  const int64_t first = bound.first_batch(), end = first + bound.sharded().problem.batch;
  std::vector<QuerySample> mine;
  for (const QuerySample& q : samples)
    if (bound.shard().index_of(q.token) >= 0 && q.batch >= first && q.batch < end)
      mine.push_back(q);
  return mine;
}

bool output_is_rounded(const BoundProgram& bound) {
  return !bound.program().output_is_partial() && bound.sharded().problem.dtype == DType::kBFloat16;
}

SampleErrors compare_samples(const BoundProgram& bound, const AttentionProblem& problem,
                             const std::vector<QuerySample>& samples) {
  const auto mine = own_samples(bound, samples);
  return compare_rows(problem, bound.sharded().pattern, mine, output_is_rounded(bound),
                      [&](size_t i) {
                        const auto [sequence, head, token, spread] = mine[i];
                        const int64_t batch = sequence - bound.first_batch();
                        OutputRow row{output_row(bound, batch, head, token), {}};
                        if (bound.program().output_is_partial())
                          row.lse = *output_lse(bound, batch, head, token);
                        return row;
                      });
}

SampleErrors compare_rows(const AttentionProblem& problem, const DilatedPattern& pattern,
                          const std::vector<QuerySample>& samples, bool rounded,
                          const std::function<OutputRow(size_t sample)>& computed) {
  std::vector<ReferenceRow> expected = reference_rows(problem, pattern, samples);
  if (rounded)
    for (ReferenceRow& row : expected)
      for (double& x : row.o) x = double(bf16_value(bf16_bits(float(x))));
  SampleErrors e{.queries = int64_t(samples.size()), .rounded = rounded};
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto [row, lse] = computed(i);
    double row_difference = 0, row_norm = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      row_difference += (row[c] - expected[i].o[c]) * (row[c] - expected[i].o[c]);
      row_norm += expected[i].o[c] * expected[i].o[c];
    }
    e.difference += row_difference;
    e.norm += row_norm;
    if (samples[i].spread) {
      e.spread_difference += row_difference;
      e.spread_norm += row_norm;
    }
    const double relative = relative_error(row_difference, row_norm);
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
  CheckOutcome out{.queries = e.queries, .nan_values = nan_values};
  out.rel_l2_error = relative_error(e.difference, e.norm);
  out.spread_rel_l2_error = std::sqrt(e.spread_difference / e.spread_norm);
  out.max_rel_error = e.worst_row;
  out.max_lse_error = e.worst_lse;
  out.tolerance = tolerance.rel_l2 > 0 ? tolerance.rel_l2 : check_tolerance(s, e.rounded);
  out.pass = out.nan_values == 0 && out.rel_l2_error <= out.tolerance &&
             out.max_rel_error <= 10 * out.tolerance && out.max_lse_error <= tolerance.lse;
  return out;
}

CheckOutcome check_samples(const Executor& executor, const std::vector<QuerySample>& samples,
                           Communicator& comm, double tolerance) {
  const SampleErrors mine = executor.compare(executor.sharded().problem, samples);
  double sums[6] = {double(mine.queries),         mine.difference,        mine.norm,
                    double(executor.count_nan()), mine.spread_difference, mine.spread_norm};
  double maxima[3] = {mine.worst_row, mine.worst_lse, mine.rounded ? 1.0 : 0.0};
  comm.all_sum(sums);
  comm.all_max(maxima);
  return judge({.queries = int64_t(sums[0]),
                .difference = sums[1],
                .norm = sums[2],
                .spread_difference = sums[4],
                .spread_norm = sums[5],
                .worst_row = maxima[0],
                .worst_lse = maxima[1],
                .rounded = maxima[2] > 0},
               int64_t(sums[3]), executor.sharded(), executor.tolerance(tolerance, mine.rounded));
}

}  // namespace longnet
