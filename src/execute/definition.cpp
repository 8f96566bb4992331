#include "execute/definition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/reference/row_oracle.h"

namespace longnet {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One branch over one sequence, as the papers word it.
class BranchDefinition {
 public:
  BranchDefinition(const DilatedPattern& pattern, size_t branch, const AttentionProblem& problem)
      : b_(pattern.branches[branch]), rule_(pattern.offset), p_(problem) {
    // The option "dilation phase: shard" cuts the sequence into parts whose sizes differ by one
    // token at most, longer ones first, and dilation begins anew with each.
    for (int64_t part = 0, begin = 0; part < pattern.phase_parts; ++part) {
      part_begins_.push_back(begin);
      begin += p_.seq_len / pattern.phase_parts;
      if (part < p_.seq_len % pattern.phase_parts) ++begin;
    }
  }
  // A segment of a sparse pattern ends where it is nominally; a dilated one with the sequence.
  int64_t segment(int64_t token) const { return token / b_.segment_length; }
  bool is_summary() const { return b_.summary_tokens > 0; }
  bool is_regular() const { return !is_summary() && part_begins_.size() == 1; }
  int64_t rate() const { return b_.dilation_rate; }

  // Head j's offset: j mod r; of contiguous groups of heads j / ceil(H / r); or 0. A summary has as
  // many offsets as blocks of c tokens in a segment.
  int64_t offset(int64_t head) const {
    int64_t offsets = b_.dilation_rate;
    if (is_summary()) offsets = std::max<int64_t>(b_.segment_length / b_.summary_tokens, 1);
    switch (rule_) {
      case OffsetRule::kPaper:
        return head % offsets;
      case OffsetRule::kBlock:
        return head / ((p_.num_heads + offsets - 1) / offsets);
      case OffsetRule::kNone:
        break;
    }
    return 0;
  }
  bool selects_key(int64_t token, int64_t offset) const {
    const int64_t in_segment = token % b_.segment_length;
    if (is_summary()) {  // counted from the segment's end
      const int64_t from_end = b_.segment_length - in_segment;
      return from_end > b_.summary_tokens * offset && from_end <= b_.summary_tokens * (offset + 1);
    }
    const int64_t part = *(std::ranges::upper_bound(part_begins_, token) - 1);
    return std::min(in_segment, token - part) % b_.dilation_rate == offset;
  }
  bool selects_query(int64_t token, int64_t offset) const {
    return is_summary() || selects_key(token, offset);
  }
  // The first query of [token, end) that sees a key, of another token than its own if `others`;
  // `end`: none.
  int64_t first_seeing_query(int64_t token, int64_t offset, int64_t end, bool others) const {
    while (token < end && !sees_keys(token, offset, others))
      token = is_summary() ? (segment(token) + 1) * b_.segment_length  // its segment sees the same
                           : first_selected(token + 1, offset, end);
    return std::min(token, end);
  }
  // The key that a query sees nearest before its token, else after it, else of it; -1: none.
  int64_t nearest_key(int64_t query, int64_t offset) const {
    if (!selects_query(query, offset)) return -1;
    const int64_t own = segment(query), end = p_.causal ? query + 1 : end_of_keys(own);
    const auto sees = [&](int64_t t) {
      return sees_segment(own, segment(t)) && selects_key(t, offset);
    };
    for (int64_t t = query - 1; t >= first_key(own); --t)
      if (sees(t)) return t;
    for (int64_t t = query + 1; t < end; ++t)
      if (sees(t)) return t;
    return sees(query) ? query : -1;
  }
  bool sees_segment(int64_t query_segment, int64_t key_segment) const {
    return is_summary() != (query_segment == key_segment);
  }
  // The tokens that hold all keys which a query of `segment` sees.
  int64_t first_key(int64_t segment) const {
    return is_summary() ? 0 : segment * b_.segment_length;
  }
  int64_t end_of_keys(int64_t segment) const {
    const bool own = !is_summary() && segment < p_.seq_len / b_.segment_length;
    return own ? (segment + 1) * b_.segment_length : p_.seq_len;
  }
  // The first selected token of [token, end), of a branch that is no summary; `end`: none.
  int64_t first_selected(int64_t token, int64_t offset, int64_t end) const {
    while (token < end && !selects_key(token, offset)) {
      const auto next_part = std::ranges::upper_bound(part_begins_, token);
      const int64_t in_segment = token % b_.segment_length;
      const int64_t since = std::min(in_segment, token - *(next_part - 1));
      const int64_t ahead = offset - since % b_.dilation_rate;
      // There, unless the selection begins anew before.
      int64_t next = token + (ahead > 0 ? ahead : ahead + b_.dilation_rate);
      if (next_part != part_begins_.end()) next = std::min(next, *next_part);
      token = std::min(next, token - in_segment + b_.segment_length);
    }
    return std::min(token, end);
  }

 private:
  bool sees_keys(int64_t query, int64_t offset, bool others) const {
    const int64_t own = segment(query);
    const int64_t end = p_.causal ? query + 1 : end_of_keys(own);
    if (!is_summary()) {  // a selected query sees the key of its own token
      if (!selects_query(query, offset) || !others) return selects_query(query, offset);
      return first_selected(first_key(own), offset, end) < query ||
             first_selected(query + 1, offset, end) < end;
    }
    for (int64_t t = 0; t < end; ++t)
      if (sees_segment(own, segment(t)) && selects_key(t, offset)) return true;
    return false;
  }

  DilatedBranch b_;
  OffsetRule rule_;
  const AttentionProblem& p_;
  std::vector<int64_t> part_begins_;
};

// Queries that see keys of one place: their keys are generated once for all of them.
struct KeyGroup {
  int64_t batch, kv_head, offset, segment;
  size_t branch;
  auto operator<=>(const KeyGroup&) const = default;
};

std::vector<BranchDefinition> branch_definitions(const AttentionProblem& p,
                                                 const DilatedPattern& pattern) {
  std::vector<BranchDefinition> branches;
  for (size_t b = 0; b < pattern.branches.size(); ++b) branches.emplace_back(pattern, b, p);
  return branches;
}

// The queries, by index, that see the keys of each group.
std::map<KeyGroup, std::vector<size_t>> key_groups(const AttentionProblem& p,
                                                   const std::vector<BranchDefinition>& branches,
                                                   const std::vector<QuerySample>& queries) {
  std::map<KeyGroup, std::vector<size_t>> groups;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto [batch, head, token, spread, extra] = queries[i];
    // H / Hkv neighbouring query heads share a K/V head.
    const int64_t kv_head = head * p.num_kv_heads / p.num_heads;
    for (size_t b = 0; b < branches.size(); ++b) {
      const int64_t offset = branches[b].offset(head);
      if (branches[b].selects_query(token, offset))
        groups[{batch, kv_head, offset, branches[b].segment(token), b}].push_back(i);
    }
  }
  return groups;
}

// Calls see(i, k, v) for each key of the group and each i-th of its queries that sees it.
template <class See>
void for_each_pair(const AttentionProblem& p, const BranchDefinition& branch, const KeyGroup& group,
                   const std::vector<size_t>& readers, const std::vector<QuerySample>& queries,
                   const ReadInput& read, See see) {
  std::vector<float> k, v;
  int64_t last = 0;
  for (const size_t query : readers) last = std::max(last, queries[query].token);
  const int64_t begin = branch.first_key(group.segment);
  int64_t end = branch.end_of_keys(group.segment);
  if (p.causal) end = std::min(end, last + 1);
  // In a regular branch the selected tokens lie r apart: the others are skipped.
  const int64_t first = branch.is_regular() ? begin + group.offset : begin;
  for (int64_t t = first; t < end; t += branch.is_regular() ? branch.rate() : 1) {
    if (!branch.sees_segment(group.segment, branch.segment(t)) ||
        !branch.selects_key(t, group.offset))
      continue;
    const QuerySample at{group.batch, group.kv_head, t};
    read(Tensor::kKey, at, k);
    if (k.empty()) continue;
    read(Tensor::kValue, at, v);
    for (size_t i = 0; i < readers.size(); ++i)
      if (!p.causal || t <= queries[readers[i]].token) see(i, k, v);
  }
}

bool is_by_lse(const DilatedPattern& pattern) {
  return pattern.mix == MixRule::kLse || pattern.mix == MixRule::kLseDetached;
}

DefinedRow mix(const std::vector<RowOracle::Row>& branches, const DilatedPattern& pattern,
               size_t head_dim) {
  DefinedRow out{std::vector<double>(head_dim, 0.0), kMinusInfinity};
  double top = kMinusInfinity, sum = 0;
  for (const auto& b : branches) top = std::max(top, b.lse);
  if (top == kMinusInfinity) return out;
  for (const auto& b : branches) sum += std::exp(b.lse - top);
  out.lse = top + std::log(sum);
  for (const auto& b : branches) {
    double weight = b.lse == kMinusInfinity ? 0 : 1;
    if (pattern.mix == MixRule::kMean) weight /= double(pattern.branches.size());
    if (is_by_lse(pattern)) weight = std::exp(b.lse - out.lse);
    for (size_t i = 0; i < head_dim; ++i) out.o[i] += weight * b.o[i];
  }
  return out;
}

template <class A, class B>
double dot(const A& a, const B& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
void add_scaled(double factor, const std::vector<float>& row, std::vector<double>& sum) {
  for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * row[c];
}

// A query's side of its pairs in the backward pass.
struct BackwardRow {
  std::vector<float> q, grad_out;
  RowStatistics statistics{};

  BackwardRow(const AttentionProblem& p, const QuerySample& query) {
    generated_rows(p)(Tensor::kQuery, query, q);
    generated_rows(p)(Tensor::kGradOut, query, grad_out);
  }
  // P and dS / sqrt(d).
  std::pair<double, double> pair(const std::vector<float>& k, const std::vector<float>& v) const {
    const double scale = 1 / std::sqrt(double(q.size()));
    const double weight = std::exp(dot(q, k) * scale - statistics.lse);
    return {weight, weight * (dot(grad_out, v) - statistics.delta) * scale};
  }
};

// Branches with one softmax, whose gradients are a summand of the mixture's; and O and L of
// queries.
struct SoftmaxPart {
  DilatedPattern pattern;
  double share;
  std::vector<DefinedRow> rows;
};

// Returns the parts of a mixture: by LSE all branches are one part, else each branch is one. Where
// the weights w of branches are constants, the gradient is w times that of the branch alone: with O
// of the branch and L of all, as exp(score - L) = w exp(score - L of the branch).
std::vector<SoftmaxPart> softmax_parts(const AttentionProblem& p, const DilatedPattern& pattern,
                                       const std::vector<QuerySample>& queries) {
  std::vector<DefinedRow> all;
  if (is_by_lse(pattern)) all = defined_rows(p, pattern, queries);
  if (pattern.mix == MixRule::kLse) return {{pattern, 1, std::move(all)}};
  const double share = pattern.mix == MixRule::kMean ? 1.0 / double(pattern.branches.size()) : 1.0;
  DilatedPattern alone = pattern;
  alone.mix = MixRule::kLse;
  std::vector<SoftmaxPart> parts;
  for (const DilatedBranch& branch : pattern.branches) {
    alone.branches = {branch};
    parts.push_back({alone, share, defined_rows(p, alone, queries)});
    for (size_t i = 0; i < all.size(); ++i) parts.back().rows[i].lse = all[i].lse;
  }
  return parts;
}

}  // namespace

int64_t first_seeing_query(const AttentionProblem& problem, const DilatedPattern& pattern,
                           SeenKeys seen, const QuerySample& from, int64_t end) {
  const BranchDefinition b(pattern, seen.branch, problem);
  return b.first_seeing_query(from.token, b.offset(from.head), end, seen.others);
}

std::optional<int64_t> nearest_key(const AttentionProblem& problem, const DilatedPattern& pattern,
                                   size_t branch, const QuerySample& query) {
  const BranchDefinition b(pattern, branch, problem);
  const int64_t key = b.nearest_key(query.token, b.offset(query.head));
  return key < 0 ? std::nullopt : std::optional(key);
}

ReadInput generated_rows(const AttentionProblem& p) {
  return [&p](Tensor tensor, const QuerySample& at, std::vector<float>& out) {
    const RowKey key{p.seed, tensor, at.batch * p.seq_len + at.token, at.head};
    out.resize(size_t(p.head_dim));
    if (p.dtype == DType::kFloat32) return generate_row(key, p.head_dim, out.data());
    std::vector<uint16_t> bits(out.size());
    generate_row(key, p.head_dim, bits.data());
    std::transform(bits.begin(), bits.end(), out.begin(), bf16_value);
  };
}

std::vector<DefinedRow> attended_rows(const AttentionProblem& p, const DilatedPattern& pattern,
                                      const std::vector<QuerySample>& queries,
                                      const ReadInput& read) {
  const std::vector<BranchDefinition> branches = branch_definitions(p, pattern);
  std::vector<std::vector<RowOracle::Row>> partial(queries.size());
  std::vector<float> q;
  for (const auto& [group, readers] : key_groups(p, branches, queries)) {
    std::vector<RowOracle> oracles;
    for (const size_t query : readers) {
      read(Tensor::kQuery, queries[query], q);
      oracles.emplace_back(q);
    }
    for_each_pair(p, branches[group.branch], group, readers, queries, read,
                  [&](size_t i, const std::vector<float>& k, const std::vector<float>& v) {
                    oracles[i].add_key(k.data(), v.data());
                  });
    for (size_t i = 0; i < readers.size(); ++i) partial[readers[i]].push_back(oracles[i].finish());
  }
  std::vector<DefinedRow> rows;
  for (const auto& parts : partial) rows.push_back(mix(parts, pattern, size_t(p.head_dim)));
  return rows;
}

std::vector<std::vector<double>> defined_query_gradients(const AttentionProblem& p,
                                                         const DilatedPattern& pattern,
                                                         const std::vector<QuerySample>& queries) {
  std::vector<std::vector<double>> out(queries.size(), std::vector<double>(size_t(p.head_dim)));
  for (const auto& [pattern_of_part, share, rows] : softmax_parts(p, pattern, queries)) {
    const std::vector<BranchDefinition> branches = branch_definitions(p, pattern_of_part);
    for (const auto& [group, readers] : key_groups(p, branches, queries)) {
      std::vector<BackwardRow> backward;
      for (const size_t query : readers) {
        backward.emplace_back(p, queries[query]);
        const std::vector<float>& grad_out = backward.back().grad_out;
        backward.back().statistics = {rows[query].lse, dot(grad_out, rows[query].o)};
      }
      for_each_pair(p, branches[group.branch], group, readers, queries, generated_rows(p),
                    [&](size_t i, const std::vector<float>& k, const std::vector<float>& v) {
                      const auto [weight, slope] = backward[i].pair(k, v);
                      add_scaled(share * slope, k, out[readers[i]]);
                    });
    }
  }
  return out;
}

void add_key_gradients(const AttentionProblem& p, const DilatedPattern& pattern,
                       const QueryRows& queries, const std::vector<KeySample>& keys,
                       std::vector<KeyGradient>& sums) {
  std::vector<float> k, v;
  const int64_t shared_by = p.num_heads / p.num_kv_heads;
  for (size_t j = 0; j < keys.size(); ++j) {
    const auto [batch, kv_head, token] = keys[j];
    generated_rows(p)(Tensor::kKey, {batch, kv_head, token}, k);
    generated_rows(p)(Tensor::kValue, {batch, kv_head, token}, v);
    for (const BranchDefinition& branch : branch_definitions(p, pattern))
      for (int64_t head = std::max(kv_head * shared_by, queries.first_head);
           head < std::min((kv_head + 1) * shared_by, queries.end_of_heads); ++head) {
        const int64_t offset = branch.offset(head), segment = branch.segment(token);
        if (!branch.selects_key(token, offset)) continue;
        const int64_t step = queries.token_step,
                      begin = branch.is_summary() ? 0 : branch.first_key(segment);
        int64_t t = queries.first_token,
                end = branch.is_summary() ? p.seq_len : branch.end_of_keys(segment);
        end = std::min(end, t + queries.count * step);
        if (t < begin) t += (begin - t + step - 1) / step * step;
        for (; t < end; t += step) {
          if (step == 1 && !branch.is_summary()) t = branch.first_selected(t, offset, end);
          if (t == end) break;
          if ((p.causal && t < token) || !branch.sees_segment(branch.segment(t), segment) ||
              !branch.selects_query(t, offset))
            continue;
          BackwardRow row(p, {batch, head, t});
          row.statistics = queries.statistics({batch, head, t}, row.grad_out);
          const auto [weight, slope] = row.pair(k, v);
          add_scaled(slope, row.q, sums[j].k);
          add_scaled(weight, row.grad_out, sums[j].v);
        }
      }
  }
}

void add_defined_key_gradients(const AttentionProblem& p, const DilatedPattern& pattern,
                               QueryRows queries, const std::vector<KeySample>& keys,
                               std::vector<KeyGradient>& sums) {
  std::vector<QuerySample> readers;
  std::map<std::array<int64_t, 3>, size_t> places;  // by reader
  const auto name = [](const QuerySample& q) { return std::array{q.batch, q.head, q.token}; };
  queries.statistics = [&](const QuerySample& q, const auto&) {
    if (places.try_emplace(name(q), readers.size()).second) readers.push_back(q);
    return RowStatistics{};
  };
  std::vector<KeyGradient> unused = sums;
  add_key_gradients(p, pattern, queries, keys, unused);
  for (const SoftmaxPart& part : softmax_parts(p, pattern, readers)) {
    queries.statistics = [&](const QuerySample& q, const std::vector<float>& grad_out) {
      const DefinedRow& row = part.rows[places.at(name(q))];
      // exp(score - L + ln share): the share of both gradients.
      return RowStatistics{row.lse - std::log(part.share), dot(grad_out, row.o)};
    };
    add_key_gradients(p, part.pattern, queries, keys, sums);
  }
}

}  // namespace longnet
