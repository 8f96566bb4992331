// Dilated attention (LongNet, arXiv 2307.02486, section 2): the keys that each query sees.
//
// Branch (w, r) cuts the sequence into segments [i w, (i+1) w); head j selects in each the tokens
// at distance o_j, o_j + r, o_j + 2r, ... from the segment's begin, with the offset o_j = j mod r.
// Selected queries attend to selected keys of their own segment and head.
//
//   N = 10, w = 4, r = 2, two heads:   segments          0 1 2 3   4 5 6 7   8 9
//                                      head 0 selects    0   2     4   6     8
//                                      head 1 selects      1   3     5   7     9
//
// Dense ("vanilla") attention is the one branch {N, 1}. This room has no ranks.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/token_range.h"

namespace longnet {

// A branch of the pattern. With summary_tokens = c > 0 it is the other half of the Sparse
// Transformer's fixed pattern (Child et al., arXiv 1904.10509) instead: every query sees, of each
// *other* segment, c tokens near its end; head j takes the sub-block [w - c (s + 1), w - c s) with
// s = offset of the head, so that heads see distinct ones. Together with the branch {w, 1} of whole
// segments it is one softmax over the union: no key counts twice.
struct DilatedBranch {
  int64_t segment_length = 0;  // w; longer than the sequence means the sequence
  int64_t dilation_rate = 1;   // r; 1 in a summary branch
  int64_t summary_tokens = 0;  // c
  bool operator==(const DilatedBranch&) const = default;
};

// The family of a pattern, as recorded with every point. A dilated pattern stays dilated on a
// sequence so short that one dense branch is left of it.
enum class PatternKind { kDense, kDilated, kSparse };
// Offset of head j: j mod r (the paper), j / ceil(H/r) (contiguous head groups), or 0.
enum class OffsetRule { kPaper, kBlock, kNone };
// Mixture of branches: by LSE (one softmax over the multiset union of keys), by mean over the
// number of branches, or by plain sum; a branch that does not select a row contributes 0 to mean
// and sum. kLseDetached: by LSE, with a backward pass that takes the branches' weights
// exp(LSE of the branch - LSE of all) as constants, as torchscale does: no exact gradient.
enum class MixRule { kLse, kMean, kSum, kLseDetached };
inline bool mixes_by_lse(MixRule mix) {
  return mix == MixRule::kLse || mix == MixRule::kLseDetached;
}

constexpr auto texts_of(PatternKind) { return texts("dense", "dilated", "sparse"); }
constexpr auto texts_of(OffsetRule) { return texts("paper", "block", "none"); }
constexpr auto texts_of(MixRule) { return texts("lse", "mean", "sum", "lse_detached"); }

struct DilatedPattern {
  std::vector<DilatedBranch> branches;
  OffsetRule offset = OffsetRule::kPaper;
  MixRule mix = MixRule::kLse;
  // Dilation restarts at the begin of each of this many nearly equal parts of the sequence
  // (part_begin) as well as at each segment: 1 is the paper's; P reproduces implementations that
  // dilate each rank's shard.
  int64_t phase_parts = 1;
  PatternKind kind = PatternKind::kDilated;
  bool operator==(const DilatedPattern&) const = default;
};

DilatedPattern dense_pattern(int64_t seq_len);
// The Sparse Transformer's fixed pattern: whole segments of w tokens and c summary tokens of each
// other segment.
DilatedPattern sparse_pattern(int64_t segment_length, int64_t summary_tokens);

// "2048/1,8192/4": segment length and rate of each branch, "+c" behind one of c summary tokens.
std::string branches_text(const DilatedPattern& pattern);

// Throws UsageError when a branch or the pattern cannot be applied to `problem`.
void check_pattern(const DilatedPattern& pattern, const AttentionProblem& problem);

// Number of offsets that heads are spread over: r, or the sub-blocks of a segment in a summary
// branch.
int64_t num_offsets(const DilatedBranch& branch);
// Offset o_j of `head` among `offsets`, in [0, offsets).
int64_t head_offset(OffsetRule rule, int64_t head, int64_t num_heads, int64_t offsets);

// One branch laid over one sequence: row algebra in closed form.
class BranchRows {
 public:
  BranchRows(const DilatedPattern& pattern, int branch, const AttentionProblem& problem);

  int64_t segment_length() const { return length_; }
  int64_t dilation_rate() const { return rate_; }
  int64_t num_segments() const { return ceil_div(seq_len_, length_); }
  int64_t segment_of(int64_t token) const { return token / length_; }
  TokenInterval segment(int64_t i) const {
    return {i * length_, std::min((i + 1) * length_, seq_len_)};
  }

  bool is_summary() const { return summary_ > 0; }
  int64_t num_offsets() const { return offsets_; }
  int64_t offset_of(int64_t head) const { return head_offset(rule_, head, num_heads_, offsets_); }
  // The rows that take part as queries: the selected ones, or all rows in a summary branch.
  BranchRows queries() const {
    BranchRows rows = *this;
    rows.summary_ = 0;
    return rows;
  }

  // The key rows that a head of this offset selects in `within`, which must not cross a border of
  // segments nor of phase parts (see for_each_run): `count` may be 0, which is normal.
  TokenRange select(int64_t offset, TokenInterval within) const;

  // Number of key rows selected in `within`, across any borders.
  int64_t count(int64_t offset, TokenInterval within) const;

  // The tokens among which queries of segment `i` see the selected keys (apart from a causal mask).
  std::array<TokenInterval, 2> key_scope(int64_t i) const {
    const TokenInterval own = segment(i);
    if (!is_summary()) return {own, TokenInterval{own.end, own.end}};
    return {TokenInterval{0, own.begin}, TokenInterval{own.end, seq_len_}};
  }

  // Calls fn(segment index, TokenRange) for each non-empty run of selected rows in `within`,
  // ascending. A run lies in one segment and one phase part.
  template <class Fn>
  void for_each_run(int64_t offset, TokenInterval within, Fn fn) const {
    for (int64_t at = within.begin; at < within.end;) {
      const int64_t stop = std::min(next_border(at), within.end);
      const TokenRange run = select(offset, {at, stop});
      if (!run.empty()) fn(segment_of(at), run);
      at = stop;
    }
  }

 private:
  // Begin of the first segment or phase part after `token`.
  int64_t next_border(int64_t token) const;
  // The last token at or before `token` at which dilation restarts.
  int64_t phase_origin(int64_t token) const;

  OffsetRule rule_;
  int64_t num_heads_, seq_len_, length_, rate_, phase_parts_, summary_, offsets_;
};

// K/V rows that a set of query heads reads in one branch: one stream per distinct (kv head,
// offset). Two query heads of a group may read different rows of the same kv head, so streams >= kv
// heads.
struct KvStream {
  int64_t kv_head, offset;
  bool operator==(const KvStream&) const = default;
};
struct KvStreams {
  std::vector<KvStream> streams;
  std::vector<int> of_head;  // index into streams, for head first_head + i
};
KvStreams kv_streams(const AttentionProblem& problem, const DilatedPattern& pattern, int branch,
                     int64_t first_head, int64_t num_heads);

// Share of (token, head) pairs that branch `branch` updates, in [0, 1].
double coverage(const AttentionProblem& problem, const DilatedPattern& pattern, int branch);

// ---- exact numbers of (query, key) pairs, in closed form: the base of every FLOP count ----

// Pairs of a query in `queries` and a key in `keys`; causal: only keys at positions <= the query's.
//   queries 4, 6, 8 and keys 5, 6, 7: causal pairs 0 + 2 + 3 = 5.
int64_t count_pairs(const TokenRange& queries, const TokenRange& keys, bool causal);

// Pairs of one sequence and all heads in one branch, multiply by batch for a forward pass. Exact
// below 2^53; dense attention over 2^30 tokens and 12 heads has more than an int64_t holds.
double branch_pairs(const AttentionProblem& problem, const DilatedPattern& pattern, int branch);

// FLOPs of `pairs` pairs: two products of head_dim multiply-adds each.
inline double pair_flops(double pairs, int64_t head_dim) { return 4.0 * double(head_dim) * pairs; }
// A pair's FLOPs in a backward pass, of those in a forward pass: five products, not two.
inline constexpr double kBackwardFlops = 2.5;

// The paper's estimate, summed over branches: 2 N w d / r^2 for each head and sequence.
double paper_macs(const AttentionProblem& problem, const DilatedPattern& pattern);

}  // namespace longnet
