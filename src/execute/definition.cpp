#include "execute/definition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/random.h"
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

 private:
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

// Row `token` of one sequence, as it is stored.
void load_row(const AttentionProblem& p, Tensor tensor, int64_t batch, int64_t token, int64_t head,
              std::vector<float>& out) {
  const RowKey key{p.seed, tensor, batch * p.seq_len + token, head};
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

void fold_keys(const AttentionProblem& p, const BranchDefinition& branch, const KeyGroup& group,
               std::vector<Reader>& readers, const std::vector<QuerySample>& queries) {
  std::vector<float> k, v;
  int64_t last = 0;
  for (const Reader& r : readers) last = std::max(last, queries[r.query].token);
  const int64_t begin = branch.first_key(group.segment);
  int64_t end = branch.end_of_keys(group.segment);
  if (p.causal) end = std::min(end, last + 1);
  // In a regular branch the selected tokens lie r apart: the others are skipped.
  const int64_t first = branch.is_regular() ? begin + group.offset : begin;
  for (int64_t t = first; t < end; t += branch.is_regular() ? branch.rate() : 1) {
    if (!branch.sees_segment(group.segment, branch.segment(t)) ||
        !branch.selects_key(t, group.offset))
      continue;
    load_row(p, Tensor::kKey, group.batch, t, group.kv_head, k);
    load_row(p, Tensor::kValue, group.batch, t, group.kv_head, v);
    for (Reader& r : readers)
      if (!p.causal || t <= queries[r.query].token) r.oracle.add_key(k.data(), v.data());
  }
}

ReferenceRow mix(const std::vector<RowOracle::Row>& branches, const DilatedPattern& pattern,
                 size_t head_dim) {
  ReferenceRow out{std::vector<double>(head_dim, 0.0), kMinusInfinity};
  double top = kMinusInfinity, sum = 0;
  for (const auto& b : branches) top = std::max(top, b.lse);
  if (top == kMinusInfinity) return out;
  for (const auto& b : branches) sum += std::exp(b.lse - top);
  out.lse = top + std::log(sum);
  for (const auto& b : branches) {
    double weight = std::exp(b.lse - out.lse);
    if (pattern.mix != MixRule::kLse) weight = b.lse == kMinusInfinity ? 0 : 1;
    if (pattern.mix == MixRule::kMean) weight /= double(pattern.branches.size());
    for (size_t i = 0; i < head_dim; ++i) out.o[i] += weight * b.o[i];
  }
  return out;
}

// Of a mixture by sum or mean, whose branches have softmaxes of their own.
ReferenceGradients sum_of_branches(const AttentionProblem& p, const DilatedPattern& pattern) {
  const double share = pattern.mix == MixRule::kMean ? 1.0 / double(pattern.branches.size()) : 1.0;
  DilatedPattern alone = pattern;
  alone.mix = MixRule::kLse;
  ReferenceGradients out;
  for (const DilatedBranch& branch : pattern.branches) {
    alone.branches = {branch};
    const ReferenceGradients more = reference_gradients(p, alone);
    for (auto tensor : {&ReferenceGradients::q, &ReferenceGradients::k, &ReferenceGradients::v}) {
      std::vector<double>& sum = out.*tensor;
      sum.resize((more.*tensor).size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += share * (more.*tensor)[i];
    }
  }
  return out;
}

}  // namespace

int64_t first_seeing_query(const AttentionProblem& problem, const DilatedPattern& pattern,
                           SeenKeys seen, const QuerySample& from, int64_t end) {
  const BranchDefinition b(pattern, seen.branch, problem);
  return b.first_seeing_query(from.token, b.offset(from.head), end, seen.others);
}

std::vector<ReferenceRow> reference_rows(const AttentionProblem& p, const DilatedPattern& pattern,
                                         const std::vector<QuerySample>& queries) {
  std::vector<BranchDefinition> branches;
  for (size_t b = 0; b < pattern.branches.size(); ++b) branches.emplace_back(pattern, b, p);
  std::map<KeyGroup, std::vector<Reader>> groups;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto [batch, head, token, spread, extra] = queries[i];
    std::vector<float> q;
    load_row(p, Tensor::kQuery, batch, token, head, q);
    // H / Hkv neighbouring query heads share a K/V head.
    const int64_t kv_head = head * p.num_kv_heads / p.num_heads;
    for (size_t b = 0; b < branches.size(); ++b) {
      const int64_t offset = branches[b].offset(head);
      if (!branches[b].selects_query(token, offset)) continue;
      groups[{batch, kv_head, offset, branches[b].segment(token), b}].push_back({i, RowOracle(q)});
    }
  }
  std::vector<std::vector<RowOracle::Row>> partial(queries.size());
  for (auto& [group, readers] : groups) {
    fold_keys(p, branches[group.branch], group, readers, queries);
    for (const Reader& r : readers) partial[r.query].push_back(r.oracle.finish());
  }
  std::vector<ReferenceRow> rows;
  for (const auto& parts : partial) rows.push_back(mix(parts, pattern, size_t(p.head_dim)));
  return rows;
}

ReferenceGradients reference_gradients(const AttentionProblem& p, const DilatedPattern& pattern) {
  if (pattern.mix != MixRule::kLse) return sum_of_branches(p, pattern);
  const auto all_rows = [&](Tensor tensor, int64_t heads) {
    std::vector<std::vector<float>> rows(size_t(p.batch * p.seq_len * heads));
    for (size_t i = 0; i < rows.size(); ++i)
      load_row(p, tensor, 0, int64_t(i) / heads, int64_t(i) % heads, rows[i]);
    return rows;
  };
  const auto q = all_rows(Tensor::kQuery, p.num_heads), k = all_rows(Tensor::kKey, p.num_kv_heads),
             v = all_rows(Tensor::kValue, p.num_kv_heads),
             grad_out = all_rows(Tensor::kGradOut, p.num_heads);
  const size_t d = size_t(p.head_dim);
  const double scale = 1 / std::sqrt(double(d));
  ReferenceGradients out{std::vector<double>(q.size() * d), std::vector<double>(k.size() * d),
                         std::vector<double>(k.size() * d)};
  const auto dot = [&](const auto& a, const auto& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  // One pair of a query with these statistics.
  const auto add = [&](size_t i, size_t j, double lse, double delta) {
    const double weight = std::exp(dot(q[i], k[j]) * scale - lse);
    const double slope = weight * (dot(grad_out[i], v[j]) - delta) * scale;
    for (size_t c = 0; c < d; ++c) {
      out.q[i * d + c] += slope * k[j][c];
      out.k[j * d + c] += slope * q[i][c];
      out.v[j * d + c] += weight * grad_out[i][c];
    }
  };
  std::vector<QuerySample> queries;
  for (size_t i = 0; i < q.size(); ++i) {
    const int64_t token = int64_t(i) / p.num_heads;
    queries.push_back({token / p.seq_len, int64_t(i) % p.num_heads, token % p.seq_len});
  }
  const std::vector<ReferenceRow> rows = reference_rows(p, pattern, queries);
  for (size_t b = 0; b < pattern.branches.size(); ++b) {
    const BranchDefinition branch(pattern, b, p);
    for (size_t i = 0; i < q.size(); ++i) {
      const auto [batch, head, token, spread, extra] = queries[i];
      const int64_t offset = branch.offset(head), kv_head = head * p.num_kv_heads / p.num_heads;
      if (!branch.selects_query(token, offset)) continue;
      const double delta = dot(grad_out[i], rows[i].o);
      const int64_t own = branch.segment(token),
                    end = p.causal ? token + 1 : branch.end_of_keys(own);
      for (int64_t t = branch.first_key(own); t < end; ++t)
        if (branch.sees_segment(own, branch.segment(t)) && branch.selects_key(t, offset))
          add(i, size_t((batch * p.seq_len + t) * p.num_kv_heads + kv_head), rows[i].lse, delta);
    }
  }
  return out;
}

}  // namespace longnet
