// The branches of a point, by the rules of a config.
#include <algorithm>

#include "core/check.h"
#include "io/expand.h"

namespace longnet {
namespace {

int64_t geometric_ratio(int64_t w, int64_t w0) {
  return std::max<int64_t>(1, (w + w0 / 2) / w0);  // rounds half up
}

int64_t sqrt_ratio(int64_t w, int64_t w0) {
  int shift = 0;  // the smallest 2^shift with 4^shift w0 >= w
  while (shift < 31 && (w >> (2 * shift)) + ((w & ((int64_t{1} << (2 * shift)) - 1)) != 0) > w0)
    ++shift;
  return int64_t{1} << shift;
}

int64_t ratio_of(const DilatedConfig& d, size_t index, int64_t w, int64_t w0, int64_t heads) {
  switch (d.ratio_rule) {
    case RatioRule::kGeometric:
      return geometric_ratio(w, w0);
    case RatioRule::kSqrt:
      return sqrt_ratio(w, w0);
    case RatioRule::kCapped:
      return std::min(geometric_ratio(w, w0), heads);
    case RatioRule::kList:
      return d.ratios.at(index);
  }
  return 1;
}

int64_t resolve_length(const SegmentSpec& s, int64_t seq_len, int64_t ranks) {
  switch (s.kind) {
    case SegmentSpec::Kind::kTokens:
      return std::min(s.tokens, seq_len);
    case SegmentSpec::Kind::kPerRank:
      return ceil_div(seq_len, ranks);
    case SegmentSpec::Kind::kSequence:
      return seq_len;
  }
  return seq_len;
}

int64_t total_pairs(const AttentionProblem& problem, const DilatedPattern& pattern) {
  int64_t pairs = 0;
  for (int b = 0; b < int(pattern.branches.size()); ++b) pairs += branch_pairs(problem, pattern, b);
  return pairs;
}

// The power of two nearest to sqrt(n); halfway counts as above: 4 n >= (3 p)^2 without roots.
int64_t sqrt_power_of_two(int64_t n) {
  int64_t p = 1;
  while (p <= n / (4 * p)) p *= 2;  // the largest with p^2 <= n
  return 4 * n >= 9 * p * p ? 2 * p : p;
}

}  // namespace

std::vector<DilatedBranch> resolve_branches(const DilatedConfig& dilated, int64_t seq_len,
                                            int64_t ranks, int64_t heads) {
  check(!dilated.segments.empty() && seq_len >= 1 && ranks >= 1, "branches of ",
        dilated.segments.size(), " segments, N = ", seq_len, ", P = ", ranks);
  std::vector<DilatedBranch> branches;
  const int64_t w0 = resolve_length(dilated.segments[0], seq_len, ranks);
  for (size_t i = 0; i < dilated.segments.size(); ++i) {
    const SegmentSpec& s = dilated.segments[i];
    const int64_t w = resolve_length(s, seq_len, ranks);
    if (i > 0 && s.kind != SegmentSpec::Kind::kTokens && w <= w0) continue;
    const DilatedBranch branch{w, ratio_of(dilated, i, w, w0, heads)};
    if (std::find(branches.begin(), branches.end(), branch) == branches.end())
      branches.push_back(branch);
  }
  return branches;
}

DilatedPattern resolve_sparse(const SparseConfig& sparse, const AttentionProblem& problem,
                              const DilatedPattern& dilated) {
  const int64_t w =
      std::min(sparse.segment.value_or(sqrt_power_of_two(problem.seq_len)), problem.seq_len);
  if (sparse.summary) return sparse_pattern(w, std::min(*sparse.summary, w));
  const int64_t target = total_pairs(problem, dilated);
  const auto pairs = [&](int64_t c) { return total_pairs(problem, sparse_pattern(w, c)); };
  int64_t low = 1, high = w;  // the smallest c with at least as many pairs, or w
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (pairs(middle) >= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const auto distance = [&](int64_t c) { return std::abs(pairs(c) - target); };
  return sparse_pattern(w, low > 1 && distance(low - 1) <= distance(low) ? low - 1 : low);
}

}  // namespace longnet
