// Classes of tokens that belong to the same groups (sets of rows that attend to one another).
//
// Inside an interval that no branch cuts, the groups of a token follow from its residues alone: in
// a branch of rate r a token at residue o belongs to the heads of offset o, or to no head.
//
//   rates 1 and 4, two heads (offsets 0 and 1), 8 tokens from residue 0:
//   {0,4}: offsets 0 0    {1,5}: offsets 0 1    {2,3,6,7}: offsets 0 and none.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/problem.h"
#include "core/token_range.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

struct Dilation {
  int64_t rate = 1;
  int64_t num_offsets = 1;  // heads take the offsets [0, num_offsets), at most rate of them
};

inline constexpr int32_t kNoOffset = -1;     // no head of the branch selects the token
inline constexpr int64_t kNoSelection = -1;  // a phase: the branch selects nothing here

// Number of distinct offsets of `num_heads` heads: head_offset yields exactly [0, count).
int64_t count_offsets(OffsetRule rule, int64_t num_heads, int64_t dilation_rate);

struct TokenClass {
  std::vector<int32_t> offsets;  // per branch, or kNoOffset
  int64_t first = 0, last = 0;   // its outermost tokens, counted from the interval's begin
  bool operator==(const TokenClass&) const = default;
};

// The classes of an interval of `length` tokens, ordered by offsets. phases: per branch the residue
// of the first token, or kNoSelection. Intersects residue classes (Chinese remainders): the time
// does not grow with the length.
std::vector<TokenClass> token_classes(std::span<const Dilation> branches,
                                      std::span<const int64_t> phases, int64_t length);

// The branches of a pattern (none of them a summary branch) over one sequence, which their segments
// and the phase parts cut into intervals.
class BranchLayout {
 public:
  BranchLayout(const AttentionProblem& problem, const DilatedPattern& pattern);

  int64_t seq_len() const { return seq_len_; }
  size_t num_branches() const { return rows_.size(); }
  const BranchRows& rows(size_t b) const { return rows_[b]; }
  const std::vector<Dilation>& dilations() const { return dilations_; }

  int64_t count_borders() const;         // at least the number of intervals
  std::vector<int64_t> borders() const;  // begins of the intervals, and the sequence's end
  // The classes of an interval, found once for all that have the same length and phases.
  // References stay valid.
  const std::vector<TokenClass>& classes(TokenInterval interval);
  bool same_group(int64_t a, int64_t b) const;  // whether some branch joins these tokens

 private:
  int64_t residue(size_t b, int64_t token) const;

  int64_t seq_len_, parts_;
  std::vector<BranchRows> rows_;
  std::vector<Dilation> dilations_;
  std::vector<int64_t> key_;
  std::map<std::vector<int64_t>, std::vector<TokenClass>> classes_;
};

}  // namespace longnet
