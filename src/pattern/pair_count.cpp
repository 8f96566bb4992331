#include "pattern/pair_count.h"

#include "core/check.h"

namespace longnet {

namespace {

// Sum of floor((a i + b) / m) for i in [0, n); a, b >= 0, m >= 1 (a Euclid-like descent, O(log m)).
__int128 floor_sum(int64_t n, int64_t m, int64_t a, int64_t b) {
  check(n >= 0 && m >= 1 && a >= 0 && b >= 0, "floor_sum needs n, a, b >= 0 and m >= 1: ", n, ' ',
        m, ' ', a, ' ', b);
  __int128 sum = 0, count = n, modulus = m, slope = a, start = b;
  while (count > 0) {
    sum += (count - 1) * count / 2 * (slope / modulus) + count * (start / modulus);
    slope %= modulus;
    start %= modulus;
    const __int128 top = slope * count + start;
    if (top < modulus) break;
    // Count the same lattice points column-wise: swaps slope and modulus, as in Euclid's algorithm.
    count = top / modulus;
    start = top % modulus;
    std::swap(modulus, slope);
  }
  return sum;
}

}  // namespace

int64_t count_pairs(const TokenRange& queries, const TokenRange& keys, bool causal) {
  if (queries.empty() || keys.empty()) return 0;
  if (!causal) return queries.count * keys.count;
  // Query i sees floor((q_i - k_0) / s) + 1 keys, cut to [0, keys.count]: nothing before `low`,
  // everything from `high` on.
  const auto first_query_at = [&](int64_t token) {
    return token <= queries.first
               ? int64_t{0}
               : std::min(queries.count, ceil_div(token - queries.first, queries.stride));
  };
  const int64_t low = first_query_at(keys.first), high = first_query_at(keys.last());
  const __int128 between =
      low < high ? floor_sum(high - low, keys.stride, queries.stride, queries[low] - keys.first) +
                       (high - low)
                 : 0;
  return int64_t(between) + (queries.count - high) * keys.count;
}

namespace {
// Each query sees the selected keys of all other segments; causal: of the earlier ones, which lie
// wholly before it.
int64_t summary_pairs(const BranchRows& rows, int64_t offset, const AttentionProblem& problem) {
  const int64_t all = rows.count(offset, {0, problem.seq_len});
  int64_t pairs = 0, before = 0;
  for (int64_t i = 0; i < rows.num_segments(); ++i) {
    const int64_t own = rows.count(offset, rows.segment(i));
    pairs += rows.segment(i).length() * (problem.causal ? before : all - own);
    before += own;
  }
  return pairs;
}
}  // namespace

double branch_pairs(const AttentionProblem& problem, const DilatedPattern& pattern, int branch) {
  const BranchRows rows(pattern, branch, problem.seq_len);
  const auto pairs_of = [&](int64_t n) {
    return problem.causal ? double(n) * double(n + 1) / 2 : double(n) * double(n);
  };
  double pairs = 0;
  for (int64_t head = 0; head < problem.num_heads; ++head) {
    const int64_t offset = head_offset(pattern.offset, head, problem.num_heads, rows.num_offsets());
    if (rows.is_summary()) {
      pairs += double(summary_pairs(rows, offset, problem));
    } else if (pattern.phase_parts > 1) {  // segments differ
      for (int64_t i = 0; i < rows.num_segments(); ++i)
        pairs += pairs_of(rows.count(offset, rows.segment(i)));
    } else {
      const int64_t last = rows.num_segments() - 1;
      pairs += double(last) * pairs_of(rows.count(offset, rows.segment(0))) +
               pairs_of(rows.count(offset, rows.segment(last)));
    }
  }
  return pairs;
}

double paper_macs(const AttentionProblem& problem, const DilatedPattern& pattern) {
  double sum = 0;
  for (const DilatedBranch& b : pattern.branches)
    if (b.summary_tokens > 0)  // 2 N d keys, c of each of N / w segments
      sum += 2.0 * double(problem.seq_len) * double(problem.head_dim) * double(b.summary_tokens) *
             double(problem.seq_len) / double(b.segment_length);
    else
      sum += 2.0 * double(problem.seq_len) * double(std::min(b.segment_length, problem.seq_len)) *
             double(problem.head_dim) / (double(b.dilation_rate) * double(b.dilation_rate));
  return sum * double(problem.num_heads) * double(problem.batch);
}

}  // namespace longnet
