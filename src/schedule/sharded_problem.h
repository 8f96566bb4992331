// An attention problem, its pattern, and the order of its tokens over ranks.
#pragma once
#include <array>
#include <cstdint>

#include "core/problem.h"
#include "core/rank_group.h"
#include "core/token_range.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

struct HeadRange {
  int64_t first = 0, count = 0;  // query heads
  int64_t end() const { return first + count; }
  bool contains(int64_t head) const { return first <= head && head < end(); }
  bool contains(const HeadRange& o) const {
    return o.count == 0 || (first <= o.first && o.end() <= end());
  }
  auto operator<=>(const HeadRange&) const = default;
};
HeadRange intersect(const HeadRange& a, const HeadRange& b);

// A shard's tokens: at most two ranges, ascending.
struct TokenRanges {
  std::array<TokenRange, 2> range{};
  int count = 0;
  void add(const TokenRange& r) {
    if (!r.empty()) range[size_t(count++)] = r;
  }
  const TokenRange* begin() const { return range.data(); }
  const TokenRange* end() const { return range.data() + count; }
  bool empty() const { return count == 0; }
  int64_t tokens() const;
  int64_t first() const { return range[0].first; }                  // when not empty
  int64_t last() const { return range[size_t(count) - 1].last(); }  // when not empty
  // Position of `token` in the shard; -1 when it is not there.
  int64_t index_of(int64_t token) const;
  bool operator==(const TokenRanges&) const = default;
};

// Order of tokens over ranks.
class SequenceLayout {
 public:
  SequenceLayout(int64_t seq_len, int world_size, LayoutKind kind = LayoutKind::kContiguous,
                 int ring_size = 0)
      : seq_len_(seq_len),
        grid_{.sequence = world_size},
        kind_(kind),
        ring_size_(ring_size > 0 ? ring_size : world_size) {}
  int world_size() const { return grid_.count(); }
  const RankGrid& grid() const { return grid_; }
  int64_t seq_len() const { return seq_len_; }
  LayoutKind kind() const { return kind_; }
  // This layout with `ring_size` ring positions for the zigzag.
  SequenceLayout with_ring_size(int ring_size) const {
    return {seq_len_, grid_.sequence, kind_, ring_size};
  }
  // This layout in each of `replicas` groups of ranks, with `head_groups` ranks for each shard.
  SequenceLayout replicated(int replicas, int head_groups = 1) const {
    SequenceLayout out = *this;
    out.grid_.replicas = replicas, out.grid_.head_groups = head_groups;
    return out;
  }

  TokenRanges shard(Rank rank) const;
  // The one interval of a contiguous shard; throws for other layouts.
  TokenInterval interval(Rank p) const;
  Rank owner(int64_t token) const;  // contiguous only, of one group

 private:
  int64_t seq_len_;
  RankGrid grid_;
  LayoutKind kind_;
  int ring_size_;
};

// An attention problem, its pattern, and the distribution of its tokens over ranks.
struct ShardedProblem {
  AttentionProblem problem;
  DilatedPattern pattern;
  SequenceLayout layout;
  GatherScope gather_scope = GatherScope::kSegmentGroup;
  AlgorithmOptions options = {};
  HeadRange all_heads() const { return {0, problem.num_heads}; }
  TokenInterval all_tokens() const { return {0, problem.seq_len}; }
};

}  // namespace longnet
