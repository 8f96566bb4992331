#include "pattern/dilated_pattern.h"

#include "core/check.h"

namespace longnet {
namespace {

// Segments that differ are counted one by one, for each head.
void check_segments(const DilatedPattern& pattern, const AttentionProblem& problem, int branch) {
  constexpr double kMost = 1 << 26;
  const DilatedBranch& b = pattern.branches[size_t(branch)];
  const bool differ = b.summary_tokens > 0 || pattern.phase_parts > 1;
  const double segments = double(problem.seq_len) / double(std::max<int64_t>(1, b.segment_length));
  if (differ && segments * double(problem.num_heads) > kMost)
    throw UsageError("branch ", branch, ": ", segments, " segments of ", problem.num_heads,
                     " heads, at most ", kMost, " are counted: use longer segments");
}

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

// Each query sees the selected keys of all other segments; causal: of the earlier ones, which lie
// wholly before it.
double summary_pairs(const BranchRows& rows, int64_t offset, const AttentionProblem& problem) {
  const int64_t all = rows.count(offset, {0, problem.seq_len});
  int64_t before = 0;
  __int128 pairs = 0;  // up to 2^80, for 2^40 tokens
  for (int64_t i = 0; i < rows.num_segments(); ++i) {
    const int64_t own = rows.count(offset, rows.segment(i));
    pairs += __int128{rows.segment(i).length()} * (problem.causal ? before : all - own);
    before += own;
  }
  return double(pairs);
}

}  // namespace

DilatedPattern dense_pattern(int64_t seq_len) {
  return {.branches = {{seq_len, 1}}, .kind = PatternKind::kDense};
}

DilatedPattern sparse_pattern(int64_t segment_length, int64_t summary_tokens) {
  return {.branches = {{segment_length, 1}, {segment_length, 1, summary_tokens}},
          .kind = PatternKind::kSparse};
}

int64_t num_offsets(const DilatedBranch& branch) {
  return branch.summary_tokens > 0
             ? std::max<int64_t>(1, branch.segment_length / branch.summary_tokens)
             : branch.dilation_rate;
}

std::string branches_text(const DilatedPattern& pattern) {
  std::string text;
  for (const DilatedBranch& b : pattern.branches) {
    if (!text.empty()) text += ',';
    text += concat(b.segment_length, "/", b.dilation_rate);
    if (b.summary_tokens > 0) text += concat("+", b.summary_tokens);
  }
  return text;
}

void check_pattern(const DilatedPattern& pattern, const AttentionProblem& problem) {
  if (pattern.branches.empty()) throw UsageError("a pattern needs at least one branch");
  for (size_t b = 0; b < pattern.branches.size(); ++b) {
    const auto [w, r, c] = pattern.branches[b];
    if (w < 1) throw UsageError("branch ", b, ": segment_length must be at least 1, is ", w);
    if (r < 1) throw UsageError("branch ", b, ": dilation_rate must be at least 1, is ", r);
    if (c > 0 && (r != 1 || c > w))
      throw UsageError(
          "a summary branch has dilation_rate 1 and at most segment_length summary tokens, not ", r,
          " and ", c, " of ", w);
  }
  if (pattern.phase_parts < 1)
    throw UsageError("phase_parts must be at least 1, is ", pattern.phase_parts);
  check_problem(problem);
  for (int b = 0; b < int(pattern.branches.size()); ++b) check_segments(pattern, problem, b);
}

int64_t head_offset(OffsetRule rule, int64_t head, int64_t num_heads, int64_t offsets) {
  if (rule == OffsetRule::kNone) return 0;
  return rule == OffsetRule::kBlock ? head / ceil_div(num_heads, offsets) : head % offsets;
}

BranchRows::BranchRows(const DilatedPattern& pattern, int branch, const AttentionProblem& problem)
    : rule_(pattern.offset),
      num_heads_(problem.num_heads),
      seq_len_(problem.seq_len),
      phase_parts_(std::min(pattern.phase_parts, seq_len_)) {
  const DilatedBranch& b = pattern.branches.at(size_t(branch));
  rate_ = b.dilation_rate;
  summary_ = b.summary_tokens;
  offsets_ = longnet::num_offsets(b);
  // Sub-blocks are counted from the nominal end of a segment, which a short sequence may not reach.
  length_ = is_summary() ? b.segment_length : std::min(b.segment_length, seq_len_);
}

int64_t BranchRows::next_border(int64_t token) const {
  int64_t border = std::min((segment_of(token) + 1) * length_, seq_len_);
  if (phase_parts_ > 1) {
    const int64_t part = part_index(seq_len_, phase_parts_, token);
    border = std::min(border, part_begin(seq_len_, phase_parts_, part + 1));
  }
  return border;
}

int64_t BranchRows::phase_origin(int64_t token) const {
  int64_t origin = segment_of(token) * length_;
  if (phase_parts_ > 1) {
    const int64_t part = part_index(seq_len_, phase_parts_, token);
    origin = std::max(origin, part_begin(seq_len_, phase_parts_, part));
  }
  return origin;
}

TokenRange BranchRows::select(int64_t offset, TokenInterval within) const {
  if (within.empty()) return {within.begin, rate_, 0};
  if (is_summary()) {
    const int64_t end = (segment_of(within.begin) + 1) * length_ - summary_ * offset;
    const TokenInterval block = intersect({end - summary_, end}, within);
    return {block.begin, 1, block.length()};
  }
  const int64_t phase = phase_origin(within.begin) + offset - within.begin;
  const int64_t first = within.begin + ((phase % rate_) + rate_) % rate_;
  return {first, rate_, first < within.end ? 1 + (within.end - 1 - first) / rate_ : 0};
}

int64_t BranchRows::count(int64_t offset, TokenInterval within) const {
  if (within.empty()) return 0;
  int64_t rows = 0;
  if (phase_parts_ > 1) {
    for_each_run(offset, within, [&](int64_t, const TokenRange& run) { rows += run.count; });
    return rows;
  }
  const int64_t first = segment_of(within.begin), last = segment_of(within.end - 1);
  const auto piece = [&](int64_t i) { return select(offset, intersect(segment(i), within)).count; };
  if (first == last) return piece(first);
  return piece(first) + (last - first - 1) * select(offset, segment(0)).count + piece(last);
}

KvStreams kv_streams(const AttentionProblem& problem, const DilatedPattern& pattern, int branch,
                     int64_t first_head, int64_t num_heads) {
  KvStreams out;
  const BranchRows rows(pattern, branch, problem);
  for (int64_t head = first_head; head < first_head + num_heads; ++head) {
    const KvStream stream{problem.kv_head_of(head), rows.offset_of(head)};
    const auto known = std::find(out.streams.begin(), out.streams.end(), stream);
    out.of_head.push_back(int(known - out.streams.begin()));
    if (known == out.streams.end()) out.streams.push_back(stream);
  }
  return out;
}

double coverage(const AttentionProblem& problem, const DilatedPattern& pattern, int branch) {
  const BranchRows rows(pattern, branch, problem);
  double selected = 0;
  for (int64_t head = 0; head < problem.num_heads; ++head)
    selected += double(rows.count(rows.offset_of(head), {0, problem.seq_len}));
  return selected / (double(problem.seq_len) * double(problem.num_heads));
}

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

double branch_pairs(const AttentionProblem& problem, const DilatedPattern& pattern, int branch) {
  check_segments(pattern, problem, branch);
  const BranchRows rows(pattern, branch, problem);
  const auto pairs_of = [&](int64_t n) {
    return problem.causal ? double(n) * double(n + 1) / 2 : double(n) * double(n);
  };
  double pairs = 0;
  for (int64_t head = 0; head < problem.num_heads; ++head) {
    const int64_t offset = rows.offset_of(head);
    if (rows.is_summary()) {
      pairs += summary_pairs(rows, offset, problem);
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
