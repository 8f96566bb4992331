#include "pattern/dilated_pattern.h"

#include "core/check.h"

namespace longnet {

std::string_view to_string(PatternKind kind) {
  switch (kind) {
    case PatternKind::kDense:
      return "dense";
    case PatternKind::kSparse:
      return "sparse";
    default:
      return "dilated";
  }
}

std::string_view to_string(OffsetRule rule) {
  constexpr std::string_view kNames[] = {"paper", "block", "none"};
  return kNames[size_t(rule)];
}

std::string_view to_string(MixRule rule) {
  constexpr std::string_view kNames[] = {"lse", "mean", "sum"};
  return kNames[size_t(rule)];
}

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

void check_pattern(const DilatedPattern& pattern, const AttentionProblem& problem) {
  if (pattern.branches.empty()) throw UsageError("a pattern needs at least one branch");
  for (size_t b = 0; b < pattern.branches.size(); ++b) {
    const auto [w, r, c] = pattern.branches[b];
    if (w < 1)
      throw UsageError(concat("branch ", b, ": segment_length must be at least 1, is ", w));
    if (r < 1) throw UsageError(concat("branch ", b, ": dilation_rate must be at least 1, is ", r));
    if (c > 0 && (r != 1 || c > w))
      throw UsageError(concat(
          "a summary branch has dilation_rate 1 and at most segment_length summary tokens, not ", r,
          " and ", c, " of ", w));
  }
  if (pattern.phase_parts < 1)
    throw UsageError(concat("phase_parts must be at least 1, is ", pattern.phase_parts));
  check_problem(problem);
}

int64_t head_offset(OffsetRule rule, int64_t head, int64_t num_heads, int64_t offsets) {
  switch (rule) {
    case OffsetRule::kBlock:
      return head / ceil_div(num_heads, offsets);
    case OffsetRule::kNone:
      return 0;
    default:
      return head % offsets;
  }
}

BranchRows::BranchRows(const DilatedPattern& pattern, int branch, int64_t seq_len)
    : seq_len_(seq_len), phase_parts_(std::min(pattern.phase_parts, seq_len)) {
  const DilatedBranch& b = pattern.branches.at(size_t(branch));
  rate_ = b.dilation_rate;
  summary_ = b.summary_tokens;
  offsets_ = longnet::num_offsets(b);
  // Sub-blocks are counted from the nominal end of a segment, which a short sequence may not reach.
  length_ = is_summary() ? b.segment_length : std::min(b.segment_length, seq_len);
}

namespace {
// The part that holds `token`: parts of ceil(N/parts) tokens come first, shorter ones after.
int64_t part_of(int64_t length, int64_t parts, int64_t token) {
  const int64_t longer = length % parts, size = length / parts;
  return token < longer * (size + 1) ? token / (size + 1)
                                     : longer + (token - longer * (size + 1)) / size;
}
}  // namespace

int64_t BranchRows::next_border(int64_t token) const {
  int64_t border = std::min((segment_of(token) + 1) * length_, seq_len_);
  if (phase_parts_ > 1) {
    const int64_t part = part_of(seq_len_, phase_parts_, token);
    border = std::min(border, part_begin(seq_len_, phase_parts_, part + 1));
  }
  return border;
}

int64_t BranchRows::phase_origin(int64_t token) const {
  int64_t origin = segment_of(token) * length_;
  if (phase_parts_ > 1) {
    const int64_t part = part_of(seq_len_, phase_parts_, token);
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
  const int64_t offsets = num_offsets(pattern.branches.at(size_t(branch)));
  for (int64_t head = first_head; head < first_head + num_heads; ++head) {
    const KvStream stream{problem.kv_head_of(head),
                          head_offset(pattern.offset, head, problem.num_heads, offsets)};
    const auto known = std::find(out.streams.begin(), out.streams.end(), stream);
    out.of_head.push_back(int(known - out.streams.begin()));
    if (known == out.streams.end()) out.streams.push_back(stream);
  }
  return out;
}

double coverage(const AttentionProblem& problem, const DilatedPattern& pattern, int branch) {
  const BranchRows rows(pattern, branch, problem.seq_len);
  double selected = 0;
  for (int64_t head = 0; head < problem.num_heads; ++head)
    selected +=
        double(rows.count(head_offset(pattern.offset, head, problem.num_heads, rows.num_offsets()),
                          {0, problem.seq_len}));
  return selected / (double(problem.seq_len) * double(problem.num_heads));
}

}  // namespace longnet
